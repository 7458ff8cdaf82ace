use super::*;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// What a path is answered with: status line and headers, then a body, sent again and again for ever if `endless`.
#[derive(Clone, Default)]
struct Page {
    head: String,
    body: Vec<u8>,
    endless: bool,
}

fn page(status: &str, header: &str, body: &str) -> Page {
    let line_end = if header.is_empty() { "" } else { "\r\n" };
    Page {
        head: format!("{status}{line_end}{header}"),
        body: body.as_bytes().to_vec(),
        endless: false,
    }
}

/// A registry that keeps what it was asked: path and Authorization.
struct Hostile {
    port: u16,
    asked: Arc<Mutex<Vec<(String, String)>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Hostile {
    async fn new(pages: impl FnOnce(u16) -> Vec<(&'static str, Page)>) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let pages: Arc<HashMap<&str, Page>> = Arc::new(pages(port).into_iter().collect());
        let asked: Arc<Mutex<Vec<(String, String)>>> = Arc::default();
        let seen = asked.clone();
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (pages, seen) = (pages.clone(), seen.clone());
                tokio::spawn(async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        let Ok(byte) = stream.read_u8().await else {
                            return;
                        };
                        head.push(byte);
                    }
                    let head = String::from_utf8(head).unwrap();
                    let path = head.split(' ').nth(1).unwrap().split('?').next().unwrap();
                    let mut lines = head.lines();
                    let shown = lines.find_map(|l| l.strip_prefix("authorization: "));
                    let shown = shown.unwrap_or_default().to_owned();
                    seen.lock().unwrap().push((path.to_owned(), shown));
                    let missing = page("404 Not Found", "", "{}");
                    let page = pages.get(path).unwrap_or(&missing);
                    let head = format!("HTTP/1.1 {}\r\nConnection: close\r\n\r\n", page.head);
                    let _ = stream.write_all(head.as_bytes()).await;
                    while stream.write_all(&page.body).await.is_ok() && page.endless {}
                });
            }
        });
        Self { port, asked, task }
    }

    fn repository(&self) -> Repository {
        let credentials = Credentials::Basic("user".to_owned(), "secret".to_owned());
        Repository::new(&format!("127.0.0.1:{}", self.port), "a/b", credentials).unwrap()
    }

    /// The paths at which credentials were shown.
    fn told(&self) -> Vec<String> {
        let asked = self.asked.lock().unwrap();
        let told = asked.iter().filter(|(_, shown)| !shown.is_empty());
        told.map(|(path, _)| path.clone()).collect()
    }
}

async fn failure(repository: &mut Repository) -> String {
    match repository.find("1").await {
        Ok(_) => panic!("found"),
        Err(error) => error.to_string(),
    }
}

const MANIFEST: &str = "/v2/a/b/manifests/1";

#[tokio::test]
async fn documents_without_end_are_cut() {
    let endless = Page {
        endless: true,
        ..page("200 OK", "", &" ".repeat(65536))
    };
    let hostile = Hostile::new(|_| vec![(MANIFEST, endless.clone())]).await;
    let error = failure(&mut hostile.repository()).await;
    assert_eq!(error, "manifest is longer than 4194304 bytes");
    let hostile = Hostile::new(|port| {
        let header = format!("WWW-Authenticate: Bearer realm=\"http://127.0.0.1:{port}/token\"");
        let wants = page("401 Unauthorized", &header, "");
        vec![(MANIFEST, wants), ("/token", endless)]
    })
    .await;
    let error = failure(&mut hostile.repository()).await;
    assert_eq!(error, "token is longer than 1048576 bytes");
}

#[tokio::test]
async fn a_blob_has_the_length_and_the_content_it_was_said_to_have() {
    const BLOB: &str =
        "/v2/a/b/blobs/sha256:0000000000000000000000000000000000000000000000000000000000000000";
    let endless = Page {
        endless: true,
        ..page("200 OK", "", "x")
    };
    let short = page("200 OK", "", "x");
    let wrong = page("200 OK", "", "xxxxxxxxxx");
    for (body, words) in [
        (endless, "is longer than 10 bytes"),
        (short, "ends 9 bytes early"),
        (wrong, "has digest sha256:"),
    ] {
        let hostile = Hostile::new(|_| vec![(BLOB, body)]).await;
        let descriptor = format!(
            r#"{{"mediaType":"a/b","size":10,"digest":"{}"}}"#,
            &BLOB["/v2/a/b/blobs/".len()..]
        );
        let descriptor: Descriptor = serde_json::from_str(&descriptor).unwrap();
        let mut out = Vec::new();
        let failed = hostile.repository().blob(&descriptor, &mut out).await;
        let error = failed.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        assert!(out.len() <= 10);
    }
}

#[tokio::test]
async fn credentials_go_where_they_belong() {
    // the token server of a registry on another host gets them, when it is reached safely
    let elsewhere =
        "WWW-Authenticate: Bearer realm=\"http://192.0.2.1/token\",service=\"registry\"";
    let hostile = Hostile::new(|_| vec![(MANIFEST, page("401 Unauthorized", elsewhere, ""))]).await;
    let error = failure(&mut hostile.repository()).await;
    assert!(error.contains("is not asked"), "{error}");
    assert!(hostile.told().is_empty());
    // nobody gets them unasked, and a redirect does not take them along
    let other = Hostile::new(|_| vec![("/stolen", page("404 Not Found", "", "{}"))]).await;
    let hostile = Hostile::new(|port| {
        let realm = format!("WWW-Authenticate: Bearer realm=\"http://127.0.0.1:{port}/token\"");
        let away = format!("Location: http://127.0.0.1:{}/stolen", other.port);
        vec![
            (MANIFEST, page("401 Unauthorized", &realm, "")),
            ("/token", page("307 Temporary Redirect", &away, "")),
        ]
    })
    .await;
    failure(&mut hostile.repository()).await;
    assert_eq!(hostile.told(), ["/token"]);
    let reached = other.asked.lock().unwrap().clone();
    assert_eq!(reached, [("/stolen".to_owned(), String::new())]);
    // nor does a second one, from there to there
    let again = page("307 Temporary Redirect", "Location: /again", "");
    let other = Hostile::new(|_| vec![("/stolen", again)]).await;
    let hostile = Hostile::new(|port| {
        let realm = format!("WWW-Authenticate: Bearer realm=\"http://127.0.0.1:{port}/token\"");
        let away = format!("Location: http://127.0.0.1:{}/stolen", other.port);
        vec![
            (MANIFEST, page("401 Unauthorized", &realm, "")),
            ("/token", page("307 Temporary Redirect", &away, "")),
        ]
    })
    .await;
    failure(&mut hostile.repository()).await;
    assert_eq!(hostile.told(), ["/token"]);
    assert!(other.told().is_empty(), "{:?}", other.told());
    assert_eq!(other.asked.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn where_credentials_go_is_not_said_by_another_host() {
    let other = Hostile::new(|port| {
        let own = format!("WWW-Authenticate: Bearer realm=\"http://127.0.0.1:{port}/token\"");
        vec![
            ("/stolen", page("401 Unauthorized", &own, "")),
            ("/token", page("200 OK", "", r#"{"token":"t"}"#)),
        ]
    })
    .await;
    let hostile = Hostile::new(|_| {
        let away = format!("Location: http://127.0.0.1:{}/stolen", other.port);
        vec![(MANIFEST, page("307 Temporary Redirect", &away, ""))]
    })
    .await;
    let error = failure(&mut hostile.repository()).await;
    assert!(error.contains("401"), "{error}");
    assert!(other.told().is_empty() && hostile.told().is_empty());
}

#[tokio::test]
async fn redirects_end_and_do_not_leave_tls() {
    let round = page(
        "307 Temporary Redirect",
        "Location: /v2/a/b/manifests/1",
        "",
    );
    let hostile = Hostile::new(|_| vec![(MANIFEST, round)]).await;
    let error = failure(&mut hostile.repository()).await;
    assert!(error.contains("too many redirects"), "{error}");
    let metadata = page(
        "307 Temporary Redirect",
        "Location: http://169.254.169.254/latest/meta-data",
        "",
    );
    let hostile = Hostile::new(|_| vec![(MANIFEST, metadata)]).await;
    let error = failure(&mut hostile.repository()).await;
    assert!(error.contains("redirected away from TLS"), "{error}");
}

#[test]
fn where_a_registry_may_lead_to() {
    let may = |plain, url: &str| may_lead_to(plain, &Url::parse(url).unwrap());
    assert!(may(false, "https://auth.docker.io/token"));
    for refused in [
        "http://auth.docker.io/",
        "http://127.0.0.1/",
        "file:///etc/passwd",
    ] {
        assert!(!may(false, refused), "{refused}");
    }
    assert!(may(true, "http://127.0.0.1:5000/") && may(true, "http://[::1]:5000/"));
    assert!(!may(true, "http://169.254.169.254/"));
}

#[test]
fn plain_http_is_for_this_machine_only() {
    for local in [
        "localhost",
        "localhost:5000",
        "127.0.0.1:5000",
        "[::1]:5000",
    ] {
        assert!(is_local(local), "{local}");
    }
    for remote in ["docker.io", "10.0.0.1:5000", "localhost.example"] {
        assert!(!is_local(remote), "{remote}");
    }
}

#[test]
fn challenges_of_registries() {
    let bearer = |realm: &str, service: Option<&str>| {
        Some(Challenge::Bearer {
            realm: realm.to_owned(),
            service: service.map(str::to_owned),
        })
    };
    for (text, expected) in [
        (
            r#"Bearer realm="https://a/t",service="s",scope="repository:a,b:pull""#,
            bearer("https://a/t", Some("s")),
        ),
        (
            "bearer service=s, realm=https://a/t",
            bearer("https://a/t", Some("s")),
        ),
        ("Basic realm=\"x\"", Some(Challenge::Basic)),
        ("basic", Some(Challenge::Basic)),
        ("Bearer service=\"s\"", None),
        ("Bearer realm=\"unclosed", None),
        ("Negotiate", None),
        ("", None),
    ] {
        assert_eq!(Challenge::parse(text), expected, "{text}");
    }
}

#[test]
fn a_document_is_one_thing() {
    assert!(Document::read(br#"{"schemaVersion":2,"manifests":[],"layers":[]}"#).is_err());
    assert!(Document::read(b"[]").is_err());
}
