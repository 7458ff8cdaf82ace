//! Both servers, asked the same.

use crate::differential::answers::{Answer, Mask};
use crate::etcd::kube_apiserver::{KubeApiserver, TOKENS};
use crate::etcd::server::Server;
use crate::harness::{DAVIT, temp_dir};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, WARNING};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// What both are started with.
const FLAGS: [&str; 4] = [
    "--runtime-config",
    "api/all=true",
    "--service-node-port-range",
    "30000-32767",
];
/// Those of pod groups, which are alpha.
const OUR_GATES: &str = "GenericWorkload=true,GangScheduling=true,TopologyAwareWorkloadScheduling=true,DRAWorkloadResourceClaims=true";
/// Of kinds that davit serves whatever its gates are.
const THEIR_GATES: &str = "StorageVersionAPI=true,APIServerIdentity=true,StorageVersionMigrator=true,PodCertificateRequest=true,ClusterTrustBundle=true,ClusterTrustBundleProjection=true";
const ANSWER: Duration = Duration::from_secs(30);

/// One request, with `$UID` and `$RV` for what the server has given the object of the case, and `$CONTINUE` for how its last
/// page goes on.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    /// What it is in words, without what differs from case to case.
    pub(crate) label: String,
    pub(crate) method: &'static str,
    pub(crate) path: String,
    pub(crate) content_type: &'static str,
    pub(crate) accept: &'static str,
    pub(crate) body: String,
    /// Headers besides those; one that names who asks stands for the administrator's.
    pub(crate) headers: Vec<(String, String)>,
}

/// Asks for objects as of any revision that the server has at hand.
const ANY_REVISION: &str = "&resourceVersion=0";

/// One server and what it has given the object of the case.
pub(crate) struct Side {
    client: kube::Client,
    uid: String,
    version: String,
    next: String,
    /// The object as it was answered last.
    pub(crate) stored: Option<Value>,
}

impl Side {
    fn new(url: &str) -> Self {
        let mut config = kube::Config::new(url.parse().unwrap());
        config.accept_invalid_certs = true;
        config.read_timeout = Some(ANSWER);
        config.default_retry = false;
        Self {
            client: kube::Client::try_from(config).unwrap(),
            uid: String::new(),
            version: String::new(),
            next: String::new(),
            stored: None,
        }
    }

    fn forget(&mut self) {
        self.stored = None;
        self.uid = "no-uid".to_owned();
        self.version = "1".to_owned();
    }

    async fn send(&mut self, request: &Request, mask: &Mask<'_>) -> Answer {
        if let Some((path, rest)) = request.path.split_once(ANY_REVISION) {
            let list = format!("{path}{rest}").replace("watch=true", "watch=false");
            self.catch_up(&list).await;
        }
        let fill = |text: &str| {
            text.replace("$UID", &self.uid)
                .replace("$RV", &self.version)
                .replace("$CONTINUE", &self.next)
        };
        let mut sent = http::Request::builder()
            .method(request.method)
            .uri(fill(&request.path))
            .header(CONTENT_TYPE, request.content_type)
            .header(ACCEPT, request.accept);
        let given =
            |(name, _): &(String, String)| name.eq_ignore_ascii_case(AUTHORIZATION.as_str());
        if !request.headers.iter().any(given) {
            sent = sent.header(AUTHORIZATION, "Bearer admin");
        }
        for (name, value) in &request.headers {
            sent = sent.header(name, value);
        }
        let sent = sent
            .body(Body::from(fill(&request.body).into_bytes()))
            .unwrap();
        let answer = self.client.send(sent).await;
        let answer = answer.unwrap_or_else(|error| panic!("{request:?}: {error}"));
        let (head, body) = answer.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let text = || Value::String(String::from_utf8_lossy(&bytes).into_owned());
        let mut body = serde_json::from_slice(&bytes)
            .or_else(|_| events(&bytes))
            .unwrap_or_else(|_| text());
        self.remember(request, head.status.as_u16(), &body);
        mask.value(&mut body);
        let warnings = head.headers.get_all(WARNING).into_iter();
        let mut warnings: Vec<String> = warnings
            .map(|w| mask.text(&String::from_utf8_lossy(w.as_bytes())))
            .collect();
        warnings.sort_unstable();
        Answer {
            code: head.status.as_u16(),
            warnings,
            body,
        }
    }

    /// Lists as of now, for which a server waits until its cache has what it has just stored: what is asked next may be old.
    async fn catch_up(&self, path: &str) {
        let now = http::Request::get(path).header(AUTHORIZATION, "Bearer admin");
        let now = now.body(Body::empty()).unwrap();
        let answer = self.client.send(now).await.unwrap();
        answer.into_body().collect().await.unwrap();
    }

    fn remember(&mut self, request: &Request, code: u16, body: &Value) {
        if let Some(next) = body["metadata"]["continue"].as_str() {
            next.clone_into(&mut self.next);
        }
        let uid = body["metadata"]["uid"].as_str().unwrap_or_default();
        let other_kinds = ["Table", "PartialObjectMetadata", "Status"];
        let is_other = other_kinds.iter().any(|kind| body["kind"] == *kind);
        if code >= 300 || uid.is_empty() || is_other || request.path.contains("dryRun") {
            return;
        }
        self.uid = uid.to_owned();
        let version = body["metadata"]["resourceVersion"].as_str();
        self.version = version.unwrap_or_default().to_owned();
        // A scale has the object's version, which a scale to what it has moves in kube-apiserver only.
        if body["kind"] != "Scale" {
            self.stored = Some(body.clone());
        }
    }
}

/// What a watch has told, one event a line.
fn events(bytes: &[u8]) -> serde_json::Result<Value> {
    let lines = serde_json::Deserializer::from_slice(bytes).into_iter();
    lines
        .collect::<serde_json::Result<Vec<Value>>>()
        .map(Value::from)
}

/// davit's API server and the real one. They end with the value.
pub(crate) struct Pair {
    pub(crate) theirs: Side,
    pub(crate) ours: Side,
    _kept: (KubeApiserver, Davit, Server),
}

struct Davit {
    child: Child,
    dir: tempfile::TempDir,
    url: String,
}

impl Drop for Davit {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
            let tail: Vec<&str> = log.lines().rev().take(10).collect();
            eprintln!("--- end of davit's log\n{}", tail.join("\n"));
        }
    }
}

impl Davit {
    fn start() -> Self {
        let dir = temp_dir();
        let file = |name: &str| dir.path().join(name).display().to_string();
        std::fs::write(file("tokens"), TOKENS).unwrap();
        let mut child = Command::new(DAVIT)
            .args(["server", "--port", "0", "--data-dir", &file("data")])
            .args(["--token-auth-file", &file("tokens")])
            .args(["--service-cluster-ip-range", "10.96.0.0/16"])
            .args(["--service-account-issuer", "https://kubernetes.default.svc"])
            .args(FLAGS)
            .args(["--feature-gates", OUR_GATES])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(file("log")).unwrap())
            .spawn()
            .unwrap();
        let printed = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = printed
            .map_while(Result::ok)
            .find(|line| line.starts_with("ready in "));
        let ready = ready.unwrap_or_else(|| panic!("davit did not start"));
        let mut words = ready.split_whitespace();
        let url = words.find_map(|word| word.strip_prefix("server=")).unwrap();
        Self {
            url: url.to_owned(),
            child,
            dir,
        }
    }
}

impl Pair {
    pub(crate) fn start(binary: &Path, kubectl: &Path) -> Option<Self> {
        let etcd = Server::start()?;
        let davit = Davit::start();
        let gates = format!("{OUR_GATES},{THEIR_GATES}");
        let their_flags = ["--feature-gates", &gates, "--allow-privileged"];
        let flags = [&FLAGS[..], &their_flags].concat();
        let theirs = KubeApiserver::start(binary, &etcd.url().to_string(), kubectl, &flags);
        Some(Self {
            theirs: Side::new(&theirs.url()),
            ours: Side::new(&davit.url),
            _kept: (theirs, davit, etcd),
        })
    }

    /// Begins with an object that neither has.
    pub(crate) fn forget(&mut self) {
        self.theirs.forget();
        self.ours.forget();
    }

    /// Whether what they keep has one name.
    pub(crate) fn same_name(&self) -> bool {
        let name = |side: &Side| side.stored.as_ref().map(|s| s["metadata"]["name"].clone());
        name(&self.theirs) == name(&self.ours)
    }

    /// Both answers to one request: theirs, ours.
    pub(crate) async fn send(&mut self, request: &Request, mask: &Mask<'_>) -> (Answer, Answer) {
        tokio::join!(
            self.theirs.send(request, mask),
            self.ours.send(request, mask)
        )
    }
}
