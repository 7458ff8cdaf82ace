//! What others hear of a request, where it may lead, and what parts of objects may do.

use super::{SOON, Target, binding, pod};
use serde_json::{Value, json};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::time::Instant;

/// Nobody is who its headers say, and what they say goes no further.
pub(super) fn headers_that_claim(t: &Target) {
    let claims = [
        ("X-Remote-User", "root"),
        ("X-Remote-Group", "system:masters"),
        ("X-Remote-Extra-Scopes", "all"),
    ];
    for user in ["", "vera"] {
        let answer = t.send(user, "GET /api/v1/namespaces/other/secrets", &claims, "");
        assert!(matches!(answer.code, 401 | 403), "{user}: {}", answer.body);
    }
    for claim in [
        [
            ("Impersonate-User", "root"),
            ("Impersonate-Group", "system:masters"),
        ],
        [
            ("Impersonate-User", "vera"),
            ("Impersonate-Group", "system:masters"),
        ],
        [
            ("Impersonate-User", "system:node:here"),
            ("Impersonate-Group", "system:nodes"),
        ],
        [
            ("Impersonate-Group", "system:masters"),
            ("X-Remote-User", "root"),
        ],
    ] {
        let answer = t.send("vera", "GET /api/v1/secrets", &claim, "");
        assert!(matches!(answer.code, 400 | 403), "{}", answer.body);
    }
    // an application in a pod hears the request, and not who asked
    let nodes = t.allowed("root", &format!("/api/v1/nodes/{}", t.node));
    let body = nodes.split("\r\n\r\n").nth(1).unwrap();
    let node: Value =
        serde_json::from_str(&body[body.find('{').unwrap()..=body.rfind('}').unwrap()]).unwrap();
    let address = node["status"]["addresses"][0]["address"]
        .as_str()
        .unwrap()
        .to_owned();
    if address.starts_with("127.") {
        println!("skipped: this machine has no address but loopback");
        return;
    }
    let listener = TcpListener::bind((address.as_str(), 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let heard = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut heard = vec![0; 8192];
        let mut length = 0;
        while !heard[..length].ends_with(b"\r\n\r\n") {
            let count = stream.read(&mut heard[length..]).unwrap();
            assert!(count > 0);
            length += count;
        }
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nheard")
            .unwrap();
        String::from_utf8_lossy(&heard[..length]).to_ascii_lowercase()
    });
    let status = json!({ "status": { "podIP": address, "podIPs": [{ "ip": address }] } });
    t.write("PATCH /api/v1/namespaces/foo/pods/p/status", &status);
    let line = format!("GET /api/v1/namespaces/foo/pods/p:{port}/proxy/page");
    let mut headers = claims.to_vec();
    headers.extend([
        ("Impersonate-User", "alice"),
        ("Impersonate-Uid", "1"),
        ("X-Kept", "kept"),
    ]);
    let answer = t.send("root", &line, &headers, "");
    assert!(answer.body.ends_with("heard"), "{}", answer.body);
    let heard = heard.join().unwrap();
    assert!(
        heard.starts_with("get /page ") && heard.contains("x-kept"),
        "{heard}"
    );
    for name in [
        "x-remote-",
        "impersonate-",
        "authorization",
        "root",
        "alice",
    ] {
        assert!(!heard.contains(name), "{name} in {heard}");
    }
}

/// Somebody who listens on loopback and must not be called.
struct Quiet(TcpListener);

impl Quiet {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        Self(listener)
    }

    fn port(&self) -> u16 {
        self.0.local_addr().unwrap().port()
    }

    #[track_caller]
    fn was_not_called(&self) {
        let error = self.0.accept().map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    }
}

/// CVE-2020-8562, CVE-2021-25737: whoever writes endpoints leads the API server nowhere on its own machine.
pub(super) fn endpoints_of_this_machine(t: &Target) {
    let quiet = Quiet::new();
    let port = quiet.port();
    let core = "/api/v1/namespaces/foo";
    let slices = "/apis/discovery.k8s.io/v1/namespaces/foo/endpointslices";
    for ip in [
        "127.0.0.1",
        "127.8.8.8",
        "0.0.0.0",
        "169.254.169.254",
        "224.0.0.5",
        "::1",
        "::",
        "fe80::1",
        "ff02::5",
        "::ffff:127.0.0.1",
    ] {
        let endpoints = json!({ "metadata": { "name": "web" }, "subsets": [
            { "addresses": [{ "ip": ip }], "ports": [{ "port": port }] }] });
        t.refused("root", &format!("POST {core}/endpoints"), &endpoints);
        let kind = if ip.contains(':') { "IPv6" } else { "IPv4" };
        let slice = json!({ "metadata": { "name": "web" }, "addressType": kind,
            "endpoints": [{ "addresses": [ip] }], "ports": [{ "port": port }] });
        t.refused("root", &format!("POST {slices}"), &slice);
        let service = json!({ "metadata": { "name": "out" }, "spec": { "externalIPs": [ip], "ports": [{ "port": 80 }] } });
        t.refused("root", &format!("POST {core}/services"), &service);
    }
    // names lead there, too: from a slice, from outside
    let service = json!({ "metadata": { "name": "named" }, "spec": { "ports": [{ "port": 443, "targetPort": port }] } });
    t.write(&format!("POST {core}/services"), &service);
    let slice = json!({ "metadata": { "name": "named", "labels": { "kubernetes.io/service-name": "named" } },
        "addressType": "FQDN", "endpoints": [{ "addresses": ["localhost"] }], "ports": [{ "port": port }] });
    t.write(&format!("POST {slices}"), &slice);
    let outside = json!({ "metadata": { "name": "outside" }, "spec": { "type": "ExternalName", "externalName": "localhost" } });
    t.write(&format!("POST {core}/services"), &outside);
    for (service, port) in [("named", 443), ("outside", port)] {
        let hook = json!({ "metadata": { "name": service }, "webhooks": [{
            "name": "hook.attack.test", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "locked" } },
            "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"] }],
            "clientConfig": { "service": { "namespace": "foo", "name": service, "port": port } } }] });
        let hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
        t.write(&format!("POST {hooks}"), &hook);
        let body = json!({ "metadata": { "name": "called" } }).to_string();
        let headers = [("Content-Type", "application/json")];
        let end = Instant::now() + SOON;
        // the configuration takes effect in a moment
        loop {
            let line = "POST /api/v1/namespaces/locked/configmaps?dryRun=All";
            let answer = t.send("root", line, &headers, &body);
            if answer.code != 201 {
                assert!(
                    answer.body.contains("address not allowed"),
                    "{}",
                    answer.body
                );
                break;
            }
            assert!(Instant::now() < end, "the webhook is never called");
        }
        t.delete(&format!("DELETE {hooks}/{service}"));
        let group = format!("{service}.attack.test");
        let backend = json!({ "metadata": { "name": format!("v1.{group}") }, "spec": { "group": group, "version": "v1",
            "insecureSkipTLSVerify": true, "groupPriorityMinimum": 100, "versionPriority": 100,
            "service": { "namespace": "foo", "name": service, "port": port } } });
        t.write("POST /apis/apiregistration.k8s.io/v1/apiservices", &backend);
        let name = format!("/apis/apiregistration.k8s.io/v1/apiservices/v1.{group}");
        t.eventually("root", &name, "address not allowed");
        assert_eq!(t.get("root", &format!("/apis/{group}/v1/things")).code, 503);
    }
    // endpoints that are no pods of the namespace are nobody's to reach through the API server
    let endpoints = json!({ "metadata": { "name": "named" }, "subsets": [
        { "addresses": [{ "ip": "198.51.100.1" }, { "ip": "198.51.100.2", "targetRef":
            { "kind": "Pod", "namespace": "foo", "name": "p" } }], "ports": [{ "port": port }] }] });
    t.write(&format!("PUT {core}/endpoints/named"), &endpoints);
    let answer = t.get("root", &format!("{core}/services/named/proxy/"));
    assert_eq!(answer.code, 503, "{}", answer.body);
    for ip in ["127.0.0.1", "::1", "169.254.169.254"] {
        let status = json!({ "status": { "podIP": ip, "podIPs": [{ "ip": ip }] } });
        t.write(&format!("PATCH {core}/pods/p/status"), &status);
        let answer = t.get("root", &format!("{core}/pods/p:{port}/proxy/"));
        assert_eq!(answer.code, 400, "{}", answer.body);
    }
    quiet.was_not_called();
}

/// A node that says it is where the API server is has it ask itself, with its own rights.
pub(super) fn nodes_of_this_machine(t: &Target) {
    let quiet = Quiet::new();
    t.write(
        "POST /api/v1/nodes",
        &json!({ "metadata": { "name": "evil" } }),
    );
    for (kind, address) in [
        ("InternalIP", "127.0.0.1"),
        ("InternalIP", "::ffff:127.0.0.1"),
        ("Hostname", "localhost"),
        ("InternalIP", "169.254.169.254"),
    ] {
        let status = json!({ "status": { "addresses": [{ "type": kind, "address": address }],
            "daemonEndpoints": { "kubeletEndpoint": { "Port": t.api.port() } } } });
        t.write("PATCH /api/v1/nodes/evil/status", &status);
        let answer = t.get(
            "root",
            "/api/v1/nodes/evil/proxy/api/v1/namespaces/foo/secrets/own",
        );
        assert_eq!(answer.code, 400, "{}", answer.body);
        let path = format!("/api/v1/nodes/evil:{}/proxy/", quiet.port());
        let answer = t.get("root", &path);
        assert_eq!(answer.code, 400, "{}", answer.body);
    }
    quiet.was_not_called();
    t.delete("DELETE /api/v1/nodes/evil");
}

/// What may not be in a pod may not be put into it later.
pub(super) fn ephemeral_containers(t: &Target) {
    let labels =
        json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": "restricted" } } });
    t.write("PATCH /api/v1/namespaces/locked", &labels);
    t.write("POST /api/v1/namespaces/locked/pods", &pod("p"));
    let add = |context: Value| json!({ "spec": { "ephemeralContainers": [{ "name": "debug", "image": "none", "securityContext": context }] } });
    let path = "/api/v1/namespaces/locked/pods/p";
    for context in [
        json!({ "privileged": true }),
        json!({ "capabilities": { "add": ["SYS_ADMIN"] } }),
        json!({ "runAsUser": 0 }),
        json!({}),
    ] {
        t.refused(
            "root",
            &format!("PATCH {path}/ephemeralcontainers"),
            &add(context.clone()),
        );
        t.refused("root", &format!("PATCH {path}"), &add(context));
        let held = t.allowed("root", path);
        assert!(!held.contains("\"ephemeralContainers\""), "{held}");
    }
    let fine = json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } });
    t.write(&format!("PATCH {path}/ephemeralcontainers"), &add(fine));
}

/// A part of an object does no more than that part.
pub(super) fn subresources_that_escalate(t: &Target) {
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let core = "/api/v1/namespaces/foo";
    let master = binding("ed", "ClusterRole", "cluster-admin");
    t.refused(
        "ed",
        &format!("POST {rbac}/namespaces/foo/rolebindings"),
        &master,
    );
    t.refused(
        "ed",
        &format!("PATCH {rbac}/namespaces/foo/rolebindings/ed"),
        &master,
    );
    // everything in foo is not everything
    let cluster = binding("alice2", "ClusterRole", "cluster-admin");
    t.refused(
        "alice",
        &format!("POST {rbac}/clusterrolebindings"),
        &cluster,
    );
    for line in [
        format!("PATCH {rbac}/clusterrolebindings/applied?fieldManager=x"),
        format!("PATCH {rbac}/namespaces/other/rolebindings/applied?fieldManager=x"),
    ] {
        let headers = [("Content-Type", "application/apply-patch+yaml")];
        let mut wanted = cluster.clone();
        wanted["apiVersion"] = json!("rbac.authorization.k8s.io/v1");
        wanted["kind"] = json!(if line.contains("cluster") {
            "ClusterRoleBinding"
        } else {
            "RoleBinding"
        });
        wanted["metadata"]["name"] = json!("applied");
        let answer = t.send("alice", &line, &headers, &wanted.to_string());
        assert_eq!(answer.code, 403, "{line}: {}", answer.body);
    }
    // a status carries no specification, a specification no status
    let both = json!({ "spec": { "hostNetwork": true, "nodeName": "here", "containers": [{ "name": "c", "image": "changed" }] },
        "status": { "message": "said" } });
    t.write(&format!("PATCH {core}/pods/p/status"), &both);
    let held = t.allowed("root", &format!("{core}/pods/p"));
    let unchanged =
        held.contains("said") && !held.contains("changed") && !held.contains("hostNetwork");
    assert!(unchanged && !held.contains("\"nodeName\""), "{held}");
    t.refused("ed", &format!("PATCH {core}/pods/p/status"), &both);
    t.refused(
        "ed",
        &format!("POST {core}/pods/p/binding"),
        &json!({ "target": { "kind": "Node", "name": "here" } }),
    );
    t.refused(
        "vera",
        &format!("POST {core}/serviceaccounts/app/token"),
        &json!({}),
    );
    t.refused(
        "vera",
        &format!("POST {core}/pods/p/exec?command=id"),
        &Value::Null,
    );
    t.refused("vera", &format!("GET {core}/pods/p/proxy/"), &Value::Null);
}
