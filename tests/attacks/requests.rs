//! Requests whose path, verb, selector or headers say something else than they do.
//!
//! One cluster without containers for all of it. Users are known by tokens; what they hold is given in one namespace, `foo`,
//! and what they try to reach is outside of it.

mod bodies;
mod definitions;
mod names;
mod paths;
mod reach;
mod services;

use crate::harness::{Cluster, temp_dir};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_rustls::rustls;

const SOON: Duration = Duration::from_secs(30);
/// The longest an answer may take to end.
const ANSWER: Duration = Duration::from_secs(30);
const MERGE: &str = "application/merge-patch+json";
const USERS: [&str; 7] = [
    "root,\"system:masters\"",
    // everything in foo
    "alice,",
    // what `view` grants in foo
    "vera,",
    // one Secret of foo by its name
    "olga,",
    // watches everything, everywhere
    "walter,",
    // GET of nodes/proxy, of what is below /metrics/, and of exec in foo
    "gina,",
    // edits in foo
    "ed,",
];

/// A cluster, its node and its servers.
struct Target {
    _cluster: Cluster,
    api: SocketAddr,
    trust: Arc<rustls::ClientConfig>,
    node: String,
    _tokens: tempfile::TempDir,
}

/// What came back.
struct Answer {
    code: u16,
    body: String,
}

impl Target {
    fn up() -> Self {
        let tokens = temp_dir();
        let file = tokens.path().join("tokens.csv");
        let lines: Vec<String> = USERS
            .iter()
            .map(|user| {
                let (name, groups) = user.split_once(',').unwrap();
                format!("{name}-token,{name},{name},{groups}")
            })
            .collect();
        std::fs::write(&file, lines.join("\n")).unwrap();
        let file = file.display().to_string();
        let flags = [
            "--runtime",
            "none",
            "--node-name",
            "here",
            "--token-auth-file",
            &file,
        ];
        let cluster = Cluster::up(&flags);
        let api = cluster
            .server
            .trim_start_matches("https://")
            .trim_end_matches('/');
        let api = api.parse().unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let ca = std::fs::read(cluster.dir.path().join("data/pki/ca.crt")).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        let ca = CertificateDer::from_pem_slice(&ca).unwrap();
        roots.add(ca).unwrap();
        let trust = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Self {
            _cluster: cluster,
            api,
            trust: Arc::new(trust),
            node: "here".to_owned(),
            _tokens: tokens,
        }
    }

    /// Sends a request as it is written here, with the path untouched.
    fn send(&self, user: &str, line: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut headers = headers.to_vec();
        let token = format!("Bearer {user}-token");
        if !user.is_empty() {
            headers.push(("Authorization", &token));
        }
        self.raw(self.api, line, &headers, body)
    }

    fn raw(&self, to: SocketAddr, line: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut request = format!("{line} HTTP/1.1\r\nHost: {to}\r\n");
        if !headers.iter().any(|(name, _)| *name == "Connection") {
            request.push_str("Connection: close\r\n");
        }
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str(&format!("Content-Length: {}\r\n\r\n{body}", body.len()));
        let mut tcp = TcpStream::connect(to).unwrap();
        tcp.set_read_timeout(Some(ANSWER)).unwrap();
        let name = ServerName::from(to.ip());
        let mut tls = rustls::ClientConnection::new(self.trust.clone(), name).unwrap();
        let mut stream = rustls::Stream::new(&mut tls, &mut tcp);
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        let mut piece = [0; 4096];
        while !is_whole(&answer) {
            match stream.read(&mut piece) {
                Ok(count @ 1..) => answer.extend_from_slice(&piece[..count]),
                _ => break,
            }
        }
        let text = String::from_utf8_lossy(&answer).into_owned();
        let code = text.split(' ').nth(1).and_then(|code| code.parse().ok());
        Answer {
            code: code.unwrap_or_else(|| panic!("{line}: no answer: {text:?}")),
            body: text,
        }
    }

    fn get(&self, user: &str, path: &str) -> Answer {
        self.send(user, &format!("GET {path}"), &[], "")
    }

    /// A write that root makes and that must succeed.
    fn write(&self, line: &str, body: &Value) {
        let kind = if line.starts_with("PATCH") {
            MERGE
        } else {
            "application/json"
        };
        let headers = [("Content-Type", kind)];
        let answer = self.send("root", line, &headers, &body.to_string());
        assert!(matches!(answer.code, 200 | 201), "{line}: {}", answer.body);
    }

    /// A request that must be refused, whatever it carries.
    #[track_caller]
    fn refused(&self, user: &str, line: &str, body: &Value) {
        let kind = if line.starts_with("PATCH") {
            MERGE
        } else {
            "application/json"
        };
        let headers = [("Content-Type", kind)];
        let answer = self.send(user, line, &headers, &body.to_string());
        let code = answer.code;
        assert!(
            matches!(code, 400 | 403 | 404 | 405 | 422),
            "{user} {line}: {}",
            answer.body
        );
    }

    #[track_caller]
    fn allowed(&self, user: &str, path: &str) -> String {
        let answer = self.get(user, path);
        assert_eq!(answer.code, 200, "{user} {path}: {}", answer.body);
        answer.body
    }

    fn eventually(&self, user: &str, path: &str, wanted: &str) {
        let end = Instant::now() + SOON;
        loop {
            let answer = self.get(user, path);
            if answer.code == 200 && answer.body.contains(wanted) {
                return;
            }
            assert!(Instant::now() < end, "{user} {path}: {}", answer.body);
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Namespaces, Secrets and who holds what.
    fn furnish(&self) {
        for name in ["foo", "other", "locked"] {
            self.write(
                "POST /api/v1/namespaces",
                &json!({ "metadata": { "name": name } }),
            );
        }
        let secret = |name: &str, text: &str| json!({ "metadata": { "name": name }, "stringData": { "text": text } });
        self.write("POST /api/v1/namespaces/foo/secrets", &secret("own", "OWN"));
        self.write(
            "POST /api/v1/namespaces/foo/secrets",
            &secret("other", "OTHER"),
        );
        self.write(
            "POST /api/v1/namespaces/other/secrets",
            &secret("own", "OTHER"),
        );
        let rbac = "/apis/rbac.authorization.k8s.io/v1";
        let role =
            |name: &str, rules: Value| json!({ "metadata": { "name": name }, "rules": rules });
        let own = json!([{ "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["own"],
            "verbs": ["get", "list", "watch", "delete", "deletecollection"] }]);
        self.write(
            &format!("POST {rbac}/namespaces/foo/roles"),
            &role("own", own),
        );
        let exec = json!([{ "apiGroups": [""], "resources": ["pods/exec", "pods/attach", "pods/portforward"],
            "verbs": ["get"] }]);
        self.write(
            &format!("POST {rbac}/namespaces/foo/roles"),
            &role("exec", exec),
        );
        let watch =
            json!([{ "apiGroups": ["*"], "resources": ["*"], "verbs": ["watch", "proxy"] }]);
        self.write(
            &format!("POST {rbac}/clusterroles"),
            &role("watches", watch),
        );
        let nodes = json!([
            { "apiGroups": [""], "resources": ["nodes/proxy"], "verbs": ["get", "update"] },
            { "nonResourceURLs": ["/metrics/*"], "verbs": ["get"] },
        ]);
        self.write(
            &format!("POST {rbac}/clusterroles"),
            &role("scrapes", nodes),
        );
        for (user, kind, role) in [
            ("alice", "ClusterRole", "cluster-admin"),
            ("vera", "ClusterRole", "view"),
            ("ed", "ClusterRole", "edit"),
            ("olga", "Role", "own"),
            ("gina", "Role", "exec"),
        ] {
            let binding = binding(user, kind, role);
            self.write(
                &format!("POST {rbac}/namespaces/foo/rolebindings"),
                &binding,
            );
        }
        for (user, role) in [("walter", "watches"), ("gina", "scrapes")] {
            let binding = binding(user, "ClusterRole", role);
            self.write(&format!("POST {rbac}/clusterrolebindings"), &binding);
        }
        self.eventually("vera", "/api/v1/namespaces/foo/pods", "items");
        self.eventually("ed", "/api/v1/namespaces/foo/pods", "items");
        self.eventually(
            "root",
            "/api/v1/namespaces/foo/serviceaccounts/default",
            "default",
        );
        self.eventually(
            "root",
            "/api/v1/namespaces/locked/serviceaccounts/default",
            "default",
        );
        let account = "/api/v1/namespaces/foo/serviceaccounts";
        self.write(
            &format!("POST {account}"),
            &json!({ "metadata": { "name": "app" } }),
        );
        self.write("POST /api/v1/namespaces/foo/pods", &pod("p"));
    }
}

/// Whether the answer is there with all of its body, so that a connection that is kept open is not waited for.
fn is_whole(answer: &[u8]) -> bool {
    let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else {
        return false;
    };
    let (head, body) = (&answer[..end], &answer[end + 4..]);
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    head.starts_with("http/1.1 101")
        || body.ends_with(b"0\r\n\r\n")
        || length.is_some_and(|length| body.len() >= length.trim().parse().unwrap())
}

fn binding(user: &str, kind: &str, role: &str) -> Value {
    json!({
        "metadata": { "name": user },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user }],
    })
}

/// A pod that PodSecurity finds nothing wrong with and that no node takes.
fn pod(name: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": {
            "nodeSelector": { "nowhere": "" },
            "securityContext": { "runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": { "type": "RuntimeDefault" } },
            "containers": [{ "name": "c", "image": "none", "securityContext": {
                "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } } }],
        },
    })
}

#[test]
fn requests_do_what_they_were_allowed_for() {
    let t = Target::up();
    t.furnish();
    paths::cluster_scoped_below_a_namespace(&t);
    paths::namespaced_without_a_namespace(&t);
    paths::bodies_of_another_namespace(&t);
    paths::selectors_for_another_object(&t);
    paths::prefixes_that_act(&t);
    paths::reading_that_acts(&t);
    paths::paths_read_twice(&t);
    reach::headers_that_claim(&t);
    names::names_that_are_requests(&t);
    definitions::of_built_in_kinds(&t);
    definitions::columns_that_lead_far(&t);
    definitions::defaults_that_multiply(&t);
    reach::endpoints_of_this_machine(&t);
    reach::nodes_of_this_machine(&t);
    reach::ephemeral_containers(&t);
    reach::subresources_that_escalate(&t);
    services::cluster_ips_of_others(&t);
    services::external_addresses_that_are_cluster_ips(&t);
    services::statuses_that_end_watches(&t);
    bodies::patches_that_nest(&t);
    bodies::values_that_say_nothing(&t);
    bodies::managers_that_grow(&t);
    bodies::finalizers_that_multiply(&t);
    bodies::finalizers_that_nobody_is_told(&t);
    bodies::names_that_multiply(&t);
    bodies::selectors_that_multiply(&t);
}

impl Target {
    /// A deletion by root that must succeed.
    fn delete(&self, line: &str) {
        let answer = self.send("root", line, &[], "");
        assert!(matches!(answer.code, 200 | 202), "{line}: {}", answer.body);
    }
}
