//! What registries of images answer.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use davit_oci::Images;
use davit_proto::cri::v1::AuthConfig;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

use super::wire::Place;

thread_local! {
    static WORLD: RefCell<Option<World>> = RefCell::new(World::make());
    static PLACE: RefCell<Option<Place>> = const { RefCell::new(None) };
}

/// An answer as the input has it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Page {
    /// Which requests it answers, see [`class`].
    class: u8,
    status: &'static str,
    header: u8,
    body: Vec<u8>,
}

/// `Authorization` of a request, with its path.
type Shown = (String, String);

/// A registry on this machine, and somebody else.
struct World {
    runtime: Runtime,
    registry: Server,
    other: Server,
}

struct Server {
    at: SocketAddr,
    pages: Arc<Mutex<Vec<Page>>>,
    shown: Arc<Mutex<Vec<Shown>>>,
}

const STATUSES: [&str; 8] = [
    "200 OK",
    "200 OK",
    "401 Unauthorized",
    "307 Temporary Redirect",
    "404 Not Found",
    "206 Partial Content",
    "500 Internal Server Error",
    "204 No Content",
];
const PASSWORD: &str = "a-secret";
/// Of all of a pull. Nobody here is slow, but a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// Any answers of a registry: credentials go to it and to the token server it names, when it asks for them; what was
/// pulled is found; nothing outside the store changes.
pub fn registry(data: &[u8]) {
    let pages = pages(data);
    if pages.is_empty() {
        return;
    }
    WORLD.with_borrow(|world| {
        let Some(world) = world else { return };
        PLACE.with_borrow_mut(|slot| {
            if let Some(place) = Place::next(slot) {
                world.pull(&pages, &place.images);
                place.check();
            }
        });
    });
}

/// Class, status, header, length, body, one after the other.
fn pages(mut data: &[u8]) -> Vec<Page> {
    let mut out = Vec::new();
    while let [class, status, header, high, low, rest @ ..] = data {
        let length = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
        let (body, after) = rest.split_at(length);
        out.push(Page {
            class: class % 4,
            status: STATUSES[usize::from(*status) % STATUSES.len()],
            header: header % 12,
            body: body.to_vec(),
        });
        data = after;
    }
    out
}

/// Kinds of paths: a manifest by tag, one by digest, a blob, anything else.
fn class(path: &str) -> u8 {
    match path {
        _ if path.contains("/manifests/sha256:") => 1,
        _ if path.contains("/manifests/") => 0,
        _ if path.contains("/blobs/") => 2,
        _ => 3,
    }
}

impl World {
    fn make() -> Option<Self> {
        let _installed = rustls::crypto::ring::default_provider().install_default();
        let runtime = Builder::new_current_thread().enable_all().build().ok()?;
        let bind = || runtime.block_on(TcpListener::bind("127.0.0.1:0"));
        let (one, two) = (bind().ok()?, bind().ok()?);
        let addresses = [one.local_addr().ok()?, two.local_addr().ok()?];
        let registry = Server::start(&runtime, one, addresses)?;
        let other = Server::start(&runtime, two, addresses)?;
        Some(Self {
            runtime,
            registry,
            other,
        })
    }

    fn pull(&self, pages: &[Page], images: &Arc<Images>) {
        self.registry.begin(pages);
        self.other.begin(pages);
        let name = format!("{}/a/b:1", self.registry.at);
        let auth = AuthConfig {
            username: "user".to_owned(),
            password: PASSWORD.to_owned(),
            ..AuthConfig::default()
        };
        let pull = async { tokio::time::timeout(LONG, images.pull(&name, Some(&auth))).await };
        let outcome = self.runtime.block_on(pull);
        let outcome = outcome.expect("a pull ends when the registry has answered");
        let asked = pages.iter().any(|page| page.status.starts_with("401"));
        // A token server may lead to another place of its own.
        let elsewhere = pages.iter().any(|page| page.header == 3);
        let named = !self.registry.shown().is_empty() && elsewhere;
        for (path, shown) in self.other.shown() {
            let token = named && shown.starts_with("Basic ");
            assert!(
                shown.is_empty() || token,
                "{path} elsewhere was shown {shown}"
            );
        }
        let told = self.registry.shown();
        assert!(
            asked || told.iter().all(|(_, shown)| shown.is_empty()),
            "unasked: {told:?}"
        );
        assert!(
            told.first().is_none_or(|(_, shown)| shown.is_empty()),
            "at once: {told:?}"
        );
        if let Ok(image) = outcome {
            let found = images.find(&name).ok().flatten();
            assert_eq!(found.map(|found| found.id), Some(image.id.clone()));
            let content = |page: &Page| digest(&page.body) == image.id;
            assert!(
                pages.iter().any(content),
                "{} was served by nobody",
                image.id
            );
            let _removed = images.remove(&name);
        }
    }
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{:x}", Sha256::digest(bytes))
}

impl Server {
    fn start(runtime: &Runtime, listener: TcpListener, all: [SocketAddr; 2]) -> Option<Self> {
        let at = listener.local_addr().ok()?;
        let (pages, shown) = (
            Arc::<Mutex<Vec<Page>>>::default(),
            Arc::<Mutex<Vec<Shown>>>::default(),
        );
        let (answers, seen) = (pages.clone(), shown.clone());
        runtime.spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (answers, seen) = (answers.clone(), seen.clone());
                tokio::spawn(async move {
                    let mut head = Vec::new();
                    let mut buffer = [0; 2048];
                    while !head.ends_with(b"\r\n\r\n") {
                        match stream.read(&mut buffer).await {
                            Ok(count @ 1..) if head.len() < 1 << 16 => {
                                head.extend_from_slice(&buffer[..count]);
                                // TLS is not spoken here.
                                if !head.starts_with(b"GET ") {
                                    return;
                                }
                            }
                            _ => return,
                        }
                    }
                    let head = String::from_utf8_lossy(&head).into_owned();
                    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
                    let shown = head
                        .lines()
                        .find_map(|line| line.strip_prefix("authorization: "));
                    let shown = shown.unwrap_or_default().to_owned();
                    locked(&seen).push((path.clone(), shown.clone()));
                    let page = choose(&locked(&answers), &path, !shown.is_empty());
                    let answer = page.map(|page| written(&page, all)).unwrap_or_default();
                    let _refused = stream.write_all(&answer).await;
                    let _refused = stream.shutdown().await;
                });
            }
        });
        Some(Self { at, pages, shown })
    }

    fn begin(&self, pages: &[Page]) {
        pages.clone_into(&mut locked(&self.pages));
        locked(&self.shown).clear();
    }

    fn shown(&self) -> Vec<Shown> {
        locked(&self.shown).clone()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The page with the digest that is asked for, else the first of the path's class; one that asks for credentials only
/// while there are none.
fn choose(pages: &[Page], path: &str, known: bool) -> Option<Page> {
    let fits =
        |page: &&Page| page.class == class(path) && !(known && page.status.starts_with("401"));
    let wanted = path.rsplit('/').next().unwrap_or_default();
    let named = pages
        .iter()
        .filter(fits)
        .find(|page| digest(&page.body) == wanted);
    named.or_else(|| pages.iter().find(fits)).cloned()
}

fn written(page: &Page, [own, other]: [SocketAddr; 2]) -> Vec<u8> {
    let text = String::from_utf8_lossy(&page.body);
    let line: String = text.chars().filter(|c| !c.is_control()).take(200).collect();
    // Nobody beyond this machine is asked.
    let harmless = !line.to_ascii_lowercase().contains("http");
    let header = match page.header {
        1 => "WWW-Authenticate: Basic realm=\"x\"".to_owned(),
        2 => format!("WWW-Authenticate: Bearer realm=\"http://{own}/token\",service=\"s\""),
        3 => format!("WWW-Authenticate: Bearer realm=\"http://{other}/token\""),
        4 => format!("WWW-Authenticate: Bearer realm=\"https://{other}/token\""),
        5 => format!("Location: http://{other}/stolen"),
        6 => format!("Location: http://{own}/v2/a/b/manifests/1"),
        7 => "Location: http://169.254.169.254/latest/meta-data".to_owned(),
        8 => "Location: file:///etc/passwd".to_owned(),
        9 if harmless => format!("WWW-Authenticate: Bearer {line}"),
        10 => format!("Content-Length: {}", page.body.len() + 1),
        11 => "Transfer-Encoding: chunked".to_owned(),
        _ => "X-Nothing: 1".to_owned(),
    };
    let head = format!(
        "HTTP/1.1 {}\r\n{header}\r\nConnection: close\r\n\r\n",
        page.status
    );
    [head.as_bytes(), &page.body].concat()
}
