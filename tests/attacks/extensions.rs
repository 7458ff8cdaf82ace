//! Servers that extend the API, an aggregated one and a webhook that converts: what they answer costs the API server bounded
//! memory, and nobody else anything.

use crate::harness::Cluster;
use http::{Request, StatusCode};
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(60);
/// What the whole program may take meanwhile: a quarter of what one of the answers would.
const MEMORY: usize = 800 << 20;
const GROUP: &str = "evil.test";

/// Answers on a port of its own, as an API server, as a webhook, and as neither.
struct Extension {
    port: u16,
    pem: String,
    /// Which of the attacks is on.
    mood: Arc<AtomicU8>,
    /// The paths that were asked for, once they are answered.
    asked: Arc<Mutex<Vec<String>>>,
}

const HONEST: u8 = 0;
const MANY_VALUES: u8 = 1;
const BESIDE_THE_ANSWER: u8 = 2;
const LONG: u8 = 3;
const MANY_OBJECTS: u8 = 4;

/// As many values as there is room for in so many bytes.
fn values(bytes: usize) -> String {
    let each = "{\"\":0},".repeat(bytes / 7);
    format!("[{each}0]")
}

fn converted(question: &Value, mood: u8) -> String {
    let wanted = &question["request"]["desiredAPIVersion"];
    let mut objects = question["request"]["objects"].clone();
    for object in objects.as_array_mut().into_iter().flatten() {
        object["apiVersion"] = wanted.clone();
        if mood == MANY_VALUES {
            object["spec"] = json!("HERE");
        }
        if mood == LONG {
            object["spec"] = json!("x".repeat(12 << 20));
        }
    }
    let mut answer = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": {
        "uid": question["request"]["uid"], "result": {"status": "Success"}, "convertedObjects": objects}});
    if mood == BESIDE_THE_ANSWER {
        answer["beside"] = json!("HERE");
    }
    answer
        .to_string()
        .replacen("\"HERE\"", &values(12 << 20), 1)
}

fn document(path: &str, mood: u8) -> String {
    let is_bad = mood == MANY_VALUES;
    match path.split('?').next().unwrap_or_default() {
        "/apis" if is_bad => format!("{{\"items\":{}}}", values(7 << 20)),
        "/openapi/v2" if is_bad => format!(
            "{{\"paths\":{{\"/apis/{GROUP}/v1/things\":{}}}}}",
            values(31 << 20)
        ),
        "/openapi/v3" if is_bad => format!("{{\"paths\":{}}}", values(7 << 20)),
        "/apis" => json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": [
            {"metadata": {"name": GROUP}, "versions": [{"version": "v1", "resources": [
                {"resource": "things", "scope": "Namespaced", "verbs": ["list", "watch", "delete"],
                 "responseKind": {"group": GROUP, "version": "v1", "kind": "Thing"}}]}]}]})
        .to_string(),
        path if path.ends_with("/things") && mood == MANY_OBJECTS => format!(
            "{{\"metadata\":{{\"resourceVersion\":\"1\"}},\"items\":[{}{{\"metadata\":{{}}}}]}}",
            "{\"metadata\":{}},".repeat(6_000_000)
        ),
        _ => json!({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": [], "resources": []}).to_string(),
    }
}

impl Extension {
    fn start() -> Self {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let (pem, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let config = rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(
                vec![CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
            )
            .unwrap();
        let config = Arc::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (mood, asked) = (Arc::<AtomicU8>::default(), Arc::default());
        let (is, noted) = (Arc::clone(&mood), Arc::clone(&asked));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (config, is, noted) = (config.clone(), is.clone(), Arc::clone(&noted));
                std::thread::spawn(move || serve(stream, config, &is, &noted));
            }
        });
        Self {
            port,
            pem,
            mood,
            asked,
        }
    }

    fn be(&self, mood: u8) {
        self.mood.store(mood, Ordering::SeqCst);
    }

    fn asked(&self, part: &str) -> usize {
        let asked = self.asked.lock();
        asked.iter().filter(|path| path.contains(part)).count()
    }
}

/// Answers the one request of a connection, and ends it.
fn serve(
    mut tcp: TcpStream,
    config: Arc<rustls::ServerConfig>,
    mood: &AtomicU8,
    asked: &Mutex<Vec<String>>,
) -> Option<()> {
    let mut tls = rustls::ServerConnection::new(config).ok()?;
    let mut stream = rustls::Stream::new(&mut tls, &mut tcp);
    let (mut read, mut piece) = (Vec::new(), [0; 65536]);
    let (head, mut body) = loop {
        let length = stream.read(&mut piece).ok().filter(|length| *length > 0)?;
        read.extend_from_slice(&piece[..length]);
        let end = read.windows(4).position(|four| four == b"\r\n\r\n");
        if let Some(end) = end {
            let body = read.split_off(end + 4);
            break (String::from_utf8(read).ok()?.to_ascii_lowercase(), body);
        }
    };
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.map_or(0, |length| length.parse().unwrap());
    while body.len() < length {
        let length = stream.read(&mut piece).ok().filter(|length| *length > 0)?;
        body.extend_from_slice(&piece[..length]);
    }
    let path = head.split(' ').nth(1)?;
    let mood = mood.load(Ordering::SeqCst);
    if path.ends_with("/switch") {
        let answer =
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: any\r\n\r\n";
        stream.write_all(answer.as_bytes()).ok()?;
        return Some(());
    }
    let answer = match path.starts_with("/convert") {
        true => converted(&serde_json::from_slice(&body).ok()?, mood),
        false => document(path, mood),
    };
    let kind = match path {
        "/apis" => "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        _ => "application/json",
    };
    let head = format!(
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
        answer.len()
    );
    // Whoever has read enough goes.
    let _gone = stream.write_all(head.as_bytes());
    let _gone = stream.write_all(answer.as_bytes());
    asked.lock().push(path.to_owned());
    tls.send_close_notify();
    let _gone = tls.write_tls(&mut tcp);
    Some(())
}

struct Target {
    cluster: Cluster,
    extension: Extension,
    admin: kube::Client,
}

impl Target {
    async fn up() -> Self {
        let _installed_before = rustls::crypto::ring::default_provider().install_default();
        let args = ["--no-node", "--allow-loopback-endpoints"];
        let cluster = tokio::task::spawn_blocking(move || Cluster::up(&args));
        let cluster = cluster.await.unwrap();
        let admin = davit_client::from_kubeconfig(&cluster.kubeconfig).await;
        Self {
            admin: admin.unwrap(),
            cluster,
            extension: Extension::start(),
        }
    }

    async fn get(&self, path: &str) -> Result<Value, kube::Error> {
        let request = Request::get(path).body(Vec::new()).unwrap();
        self.admin.request(request).await
    }

    async fn post(&self, path: &str, object: &Value) -> Result<Value, kube::Error> {
        let request = Request::post(path)
            .header("content-type", "application/json")
            .body(object.to_string().into_bytes());
        self.admin.request(request.unwrap()).await
    }

    /// A server behind an APIService, and two versions between which a webhook stands.
    async fn furnish(&self) {
        let port = self.extension.port;
        let service = json!({"metadata": {"name": "evil"}, "spec": {"type": "ExternalName", "externalName": "localhost"}});
        let services = "/api/v1/namespaces/default/services";
        self.post(services, &service).await.unwrap();
        let api_service = json!({"metadata": {"name": format!("v1.{GROUP}")}, "spec": {
            "group": GROUP, "version": "v1", "insecureSkipTLSVerify": true, "groupPriorityMinimum": 100, "versionPriority": 10,
            "service": {"namespace": "default", "name": "evil", "port": port}}});
        let api_services = "/apis/apiregistration.k8s.io/v1/apiservices";
        self.post(api_services, &api_service).await.unwrap();
        use base64::Engine as _;
        let bundle = base64::engine::general_purpose::STANDARD.encode(&self.extension.pem);
        let version = |name: &str| {
            let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
            json!({"name": name, "served": true, "storage": name == "v1", "schema": {"openAPIV3Schema": any}})
        };
        let definition = json!({"metadata": {"name": "doors.example.com"}, "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": "doors", "kind": "Door"},
            "versions": [version("v1"), version("v2")],
            "conversion": {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
                "clientConfig": {"url": format!("https://localhost:{port}/convert"), "caBundle": bundle}}}}});
        let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        self.post(definitions, &definition).await.unwrap();
        let door = json!({"apiVersion": "example.com/v1", "kind": "Door", "metadata": {"name": "door"}, "spec": 1});
        let doors = "/apis/example.com/v1/namespaces/default/doors";
        let is_made = async || self.post(doors, &door).await.is_ok();
        self.until("doors are served", is_made).await;
        let things = format!("/apis/{GROUP}/v1/namespaces/default/things");
        let is_answered = async || self.get(&things).await.is_ok();
        self.until("things are served", is_answered).await;
    }

    async fn until(&self, what: &str, mut holds: impl AsyncFnMut() -> bool) {
        let until = Instant::now() + SOON;
        while !holds().await {
            assert!(Instant::now() < until, "{what}: {}", self.cluster.log());
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// The most that the program has taken since the last look, bytes.
    fn peak(&self) -> usize {
        let process = format!("/proc/{}", self.cluster.pid());
        let status = std::fs::read_to_string(format!("{process}/status")).unwrap();
        std::fs::write(format!("{process}/clear_refs"), "5").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:"));
        let kilobytes = line.and_then(|line| line.split_whitespace().nth(1));
        kilobytes.unwrap().parse::<usize>().unwrap() * 1024
    }

    fn costs_little(&self, what: &str) {
        let peak = self.peak();
        println!("{what}: {} MiB", peak >> 20);
        assert!(peak < MEMORY, "{what} takes {} MiB", peak >> 20);
    }
}

fn code(answer: Result<Value, kube::Error>) -> Option<u16> {
    match answer {
        Err(kube::Error::Api(status)) => Some(status.code),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_extends_the_api_answers_within_bounds() {
    let mut t = Target::up().await;
    t.furnish().await;
    t.peak();

    let doors = "/apis/example.com/v2/namespaces/default/doors";
    t.get(doors).await.unwrap();
    for mood in [MANY_VALUES, BESIDE_THE_ANSWER, LONG] {
        t.extension.be(mood);
        let at_once = (0..4).map(|_| t.get(doors));
        for answer in futures::future::join_all(at_once).await {
            answer.expect_err("more than any object holds");
        }
        t.costs_little("a conversion");
    }
    t.extension.be(HONEST);
    t.get(doors).await.unwrap();

    let switch = format!("/apis/{GROUP}/v1/switch");
    let bad_gateway = StatusCode::BAD_GATEWAY.as_u16();
    assert_eq!(code(t.get(&switch).await), Some(bad_gateway));

    t.extension.be(MANY_VALUES);
    let documents = "/openapi/v2";
    let before = t.extension.asked(documents);
    // They are read again when something about the Service changes.
    let patch = Request::patch("/api/v1/namespaces/default/services/evil")
        .header("content-type", "application/merge-patch+json")
        .body(br#"{"metadata":{"labels":{"a":"b"}}}"#.to_vec());
    let patched: Result<Value, _> = t.admin.request(patch.unwrap()).await;
    patched.unwrap();
    let is_read = async || t.extension.asked(documents) > before;
    t.until("documents are read", is_read).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    t.costs_little("documents");

    // Whoever follows all kinds lists each of them at its start.
    t.extension.be(MANY_OBJECTS);
    let things = "/things";
    let before = t.extension.asked(things);
    tokio::task::block_in_place(|| {
        t.cluster.interrupt();
        t.cluster.start_again();
    });
    let is_listed = async || t.extension.asked(things) > before;
    t.until("things are listed", is_listed).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    t.costs_little("a list");
}
