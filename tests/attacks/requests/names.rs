//! Names in objects that would be other requests, were they written into a path as they are: the controllers, who may do nearly
//! everything, look at what objects name.

use super::{SOON, Target};
use serde_json::{Value, json};
use std::io::ErrorKind;
use std::net::TcpListener;
use std::time::Instant;

/// A ConfigMap with an owner that is not there.
fn owned(name: &str, number: usize, kind: &str, owner: &str) -> Value {
    json!({ "metadata": { "name": name, "ownerReferences": [{
        "apiVersion": "v1", "kind": kind, "name": owner, "uid": format!("00000000-0000-0000-0000-{number:012}") }] } })
}

/// Waits until root finds no object there.
fn gone(t: &Target, path: &str) {
    let end = Instant::now() + SOON;
    while t.get("root", path).code != 404 {
        assert!(Instant::now() < end, "{path} is still there");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// Owners, volumes and targets of autoscalers whose names hold a path or a query. Pod `p` of `foo` has the address of the node.
pub(super) fn names_that_are_requests(t: &Target) {
    let node: Value = {
        let body = t.allowed("root", &format!("/api/v1/nodes/{}", t.node));
        serde_json::from_str(&body[body.find('{').unwrap()..=body.rfind('}').unwrap()]).unwrap()
    };
    let address = node["status"]["addresses"][0]["address"].as_str().unwrap();
    let listener = TcpListener::bind((address, 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();

    // Worse names first: each would have kept a worker waiting.
    let maps = "/api/v1/namespaces/foo/configmaps";
    let calls = format!("foo/pods/p:{port}/proxy/x?");
    let call = format!("p:{port}/proxy/x?");
    let names = [
        ("Namespace", "kube-system/configmaps?watch=1&x="),
        ("Namespace", "?watch=1"),
        ("Secret", "?watch=1"),
        ("Namespace", calls.as_str()),
        ("Pod", call.as_str()),
        ("Pod", ".."),
    ];
    for number in 0..24 {
        let (kind, owner) = names[number % names.len()];
        let body = owned(&format!("owned-{number}"), number, kind, owner);
        t.write(&format!("POST {maps}"), &body);
    }
    for number in 0..4 {
        let claim = json!({
            "metadata": { "name": format!("claim-{number}"), "annotations": { "pv.kubernetes.io/bind-completed": "yes" } },
            "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": "?watch=1",
                "resources": { "requests": { "storage": "1Gi" } } } });
        t.write("POST /api/v1/namespaces/foo/persistentvolumeclaims", &claim);
    }
    let scaler = json!({ "metadata": { "name": "scaler" }, "spec": {
        "scaleTargetRef": { "apiVersion": "v1", "kind": "Pod", "name": call }, "maxReplicas": 2 } });
    let line = "/apis/autoscaling/v2/namespaces/foo/horizontalpodautoscalers";
    // Whether it is taken is a matter of validation.
    let json = [("Content-Type", "application/json")];
    t.send("root", &format!("POST {line}"), &json, &scaler.to_string());

    // Others are served meanwhile.
    let theirs = owned("theirs", 99, "Secret", "nobody");
    t.write("POST /api/v1/namespaces/other/configmaps", &theirs);
    let volume = json!({ "metadata": { "name": "theirs" }, "spec": { "capacity": { "storage": "1Gi" },
        "accessModes": ["ReadWriteOnce"], "hostPath": { "path": "/nowhere" } } });
    t.write("POST /api/v1/persistentvolumes", &volume);
    let claim = json!({ "metadata": { "name": "theirs" }, "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": "",
        "volumeName": "theirs", "resources": { "requests": { "storage": "1Gi" } } } });
    t.write(
        "POST /api/v1/namespaces/other/persistentvolumeclaims",
        &claim,
    );
    gone(t, "/api/v1/namespaces/other/configmaps/theirs");
    t.eventually(
        "root",
        "/api/v1/namespaces/other/persistentvolumeclaims/theirs",
        "\"phase\":\"Bound\"",
    );

    // No object has such a name, so they have no owner; and nobody was called.
    for number in 0..24 {
        gone(t, &format!("{maps}/owned-{number}"));
    }
    let called = listener.accept();
    assert!(
        called.is_err_and(|error| error.kind() == ErrorKind::WouldBlock),
        "the pod was called"
    );
}
