//! What a path, a selector and a method ask for, and what they would do.

use super::{Target, binding};
use serde_json::{Value, json};

/// A role in one namespace rules nothing that is in none.
pub(super) fn cluster_scoped_below_a_namespace(t: &Target) {
    let crd = json!({
        "metadata": { "name": "globes.attack.test" },
        "spec": { "group": "attack.test", "scope": "Cluster",
            "names": { "plural": "globes", "singular": "globe", "kind": "Globe" },
            "versions": [{ "name": "v1", "served": true, "storage": true,
                "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } } }] },
    });
    t.write(
        "POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        &crd,
    );
    t.eventually("root", "/apis/attack.test/v1/globes", "items");
    let globe =
        json!({ "apiVersion": "attack.test/v1", "kind": "Globe", "metadata": { "name": "g" } });
    t.write("POST /apis/attack.test/v1/globes", &globe);
    t.allowed("alice", "/api/v1/namespaces/foo");
    t.allowed("alice", "/api/v1/namespaces/foo/secrets");
    let label = json!({ "metadata": { "labels": { "taken": "over" } } });
    let named = |name: &str| json!({ "metadata": { "name": name } });
    let (core, node) = ("/api/v1/namespaces/foo", &t.node);
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/foo";
    let review = json!({ "spec": { "user": "root", "resourceAttributes": { "verb": "get", "resource": "secrets" } } });
    for (line, body) in [
        (format!("GET {core}/nodes"), Value::Null),
        (format!("GET {core}/nodes/{node}"), Value::Null),
        (format!("GET {core}/nodes/{node}/proxy/pods"), Value::Null),
        (format!("GET {core}/nodes/{node}/proxy/exec/foo/p/c?command=id"), Value::Null),
        (format!("POST {core}/nodes/{node}/proxy/run/foo/p/c?cmd=id"), Value::Null),
        (format!("PATCH {core}/nodes/{node}"), label.clone()),
        (format!("PATCH {core}/nodes/{node}/status"), label.clone()),
        (format!("GET {core}/nodes/{node}/status"), Value::Null),
        (format!("GET {core}/namespaces"), Value::Null),
        (format!("GET {core}/namespaces?watch=true&timeoutSeconds=1"), Value::Null),
        ("GET /api/v1/watch/namespaces/foo/namespaces?timeoutSeconds=1".to_owned(), Value::Null),
        ("GET /api/v1/watch/namespaces/foo/nodes?timeoutSeconds=1".to_owned(), Value::Null),
        (format!("GET {core}/namespaces/other"), Value::Null),
        (format!("GET {core}/namespaces/foo"), Value::Null),
        (format!("GET {core}/namespaces/other/status"), Value::Null),
        (format!("PATCH {core}/namespaces/other"), label.clone()),
        (format!("PATCH {core}/namespaces/other/status"), label.clone()),
        (format!("PUT {core}/namespaces/other/finalize"), named("other")),
        (format!("POST {core}/namespaces"), named("mine")),
        (format!("DELETE {core}/namespaces/other"), Value::Null),
        (format!("GET {core}/persistentvolumes"), Value::Null),
        (format!("PATCH {core}/persistentvolumes/x/status"), label.clone()),
        (format!("GET {core}/componentstatuses"), Value::Null),
        (format!("POST {rbac}/clusterrolebindings"), binding("alice", "ClusterRole", "cluster-admin")),
        (format!("PATCH {rbac}/clusterroles/view"), label.clone()),
        ("GET /apis/certificates.k8s.io/v1/namespaces/foo/certificatesigningrequests".to_owned(), Value::Null),
        ("PUT /apis/certificates.k8s.io/v1/namespaces/foo/certificatesigningrequests/x/approval".to_owned(), named("x")),
        ("PATCH /apis/apiregistration.k8s.io/v1/namespaces/foo/apiservices/v1./status".to_owned(), label.clone()),
        ("PATCH /apis/apiextensions.k8s.io/v1/namespaces/foo/customresourcedefinitions/globes.attack.test".to_owned(), label.clone()),
        ("POST /apis/authorization.k8s.io/v1/namespaces/foo/subjectaccessreviews".to_owned(), review),
        ("POST /apis/authentication.k8s.io/v1/namespaces/foo/tokenreviews".to_owned(), json!({ "spec": { "token": "root-token" } })),
        ("GET /apis/attack.test/v1/namespaces/foo/globes".to_owned(), Value::Null),
        ("GET /apis/attack.test/v1/namespaces/foo/globes/g".to_owned(), Value::Null),
        ("PATCH /apis/attack.test/v1/namespaces/foo/globes/g".to_owned(), label.clone()),
        ("PATCH /apis/attack.test/v1/namespaces/foo/globes/g/status".to_owned(), label.clone()),
        ("DELETE /apis/attack.test/v1/namespaces/foo/globes".to_owned(), Value::Null),
    ] {
        t.refused("alice", &line, &body);
        // nor is there such a path for those who may have what is at its end
        t.refused("root", &line, &body);
    }
    t.refused("vera", &format!("GET {core}/namespaces"), &Value::Null);
    let other = t.allowed("root", "/api/v1/namespaces/other");
    assert!(
        other.contains("Active") && !other.contains("taken"),
        "{other}"
    );
    let globe = t.allowed("root", "/apis/attack.test/v1/globes/g");
    assert!(!globe.contains("taken"), "{globe}");
    assert_eq!(t.get("root", "/api/v1/namespaces/mine").code, 404);
}

/// What is in namespaces is listed and watched across them, and nothing else.
pub(super) fn namespaced_without_a_namespace(t: &Target) {
    let review = json!({ "spec": { "user": "root", "resourceAttributes": { "verb": "get", "resource": "secrets" } } });
    let binding =
        json!({ "metadata": { "name": "p" }, "target": { "kind": "Node", "name": t.node } });
    for (line, body) in [
        ("GET /api/v1/secrets/own", Value::Null),
        ("DELETE /api/v1/secrets", Value::Null),
        ("DELETE /api/v1/secrets/own", Value::Null),
        (
            "GET /api/v1/watch/secrets/own?timeoutSeconds=1",
            Value::Null,
        ),
        ("POST /api/v1/pods/p/exec?command=id", Value::Null),
        ("GET /api/v1/pods/p/log", Value::Null),
        ("PATCH /api/v1/pods/p/status", json!({})),
        ("POST /api/v1/bindings", binding),
        (
            "POST /apis/authorization.k8s.io/v1/localsubjectaccessreviews",
            review,
        ),
        ("POST /api/v1/serviceaccounts/app/token", json!({})),
    ] {
        t.refused("root", line, &body);
    }
}

/// The namespace that was judged is the one that is written to.
pub(super) fn bodies_of_another_namespace(t: &Target) {
    let place = json!({ "name": "smuggled", "namespace": "other" });
    let core = "/api/v1/namespaces/foo";
    let review = json!({ "metadata": place, "spec": { "user": "root", "resourceAttributes": {
        "namespace": "other", "verb": "get", "resource": "secrets" } } });
    let at = |name: &str| json!({ "name": name, "namespace": "other" });
    for (line, body) in [
        (
            format!("POST {core}/configmaps"),
            json!({ "metadata": place }),
        ),
        (
            format!("PUT {core}/secrets/own"),
            json!({ "metadata": at("own") }),
        ),
        (
            format!("PATCH {core}/secrets/own"),
            json!({ "metadata": { "namespace": "other" } }),
        ),
        (
            format!("POST {core}/pods/p/eviction"),
            json!({ "metadata": at("p") }),
        ),
        (
            format!("POST {core}/pods/p/binding"),
            json!({ "metadata": at("p"), "target": { "name": "here" } }),
        ),
        (
            format!("POST {core}/bindings"),
            json!({ "metadata": at("p"), "target": { "name": "here" } }),
        ),
        (
            format!("POST {core}/serviceaccounts/app/token"),
            json!({ "metadata": at("app") }),
        ),
        (
            "POST /apis/authorization.k8s.io/v1/namespaces/foo/localsubjectaccessreviews"
                .to_owned(),
            review,
        ),
    ] {
        t.refused("alice", &line, &body);
    }
    assert_eq!(
        t.get("root", "/api/v1/namespaces/other/configmaps/smuggled")
            .code,
        404
    );
}

/// Who may see one object by its name sees that one, however the name is said.
pub(super) fn selectors_for_another_object(t: &Target) {
    let (own, other) = ("T1dO", "T1RIRVI=");
    let secrets = "/api/v1/namespaces/foo/secrets";
    let watch = "/api/v1/watch/namespaces/foo/secrets";
    for path in [
        format!("{secrets}/own"),
        format!("{secrets}?fieldSelector=metadata.name%3Down"),
        format!("{secrets}?watch=true&timeoutSeconds=1&fieldSelector=metadata.name%3Down"),
        format!("{watch}/own?timeoutSeconds=1"),
        format!("{watch}/own?timeoutSeconds=1&fieldSelector=metadata.name%3D%3Down"),
    ] {
        let body = t.allowed("olga", &path);
        assert!(
            body.contains(own) && !body.contains(other),
            "{path}: {body}"
        );
    }
    for path in [
        format!("{watch}/own?timeoutSeconds=1&fieldSelector=metadata.name%3Dother"),
        format!(
            "{watch}/own?timeoutSeconds=1&fieldSelector=metadata.name%3Dother,metadata.name%3Down"
        ),
        format!("{watch}/own?timeoutSeconds=1&fieldSelector=metadata.name%21%3Down"),
        format!("{watch}/own?timeoutSeconds=1&fieldSelector=type%3DOpaque"),
        format!("{watch}?timeoutSeconds=1&fieldSelector=metadata.name%3Down"),
        format!("{watch}?timeoutSeconds=1"),
        format!("{secrets}?fieldSelector=metadata.name%3Dother"),
        format!("{secrets}?fieldSelector=metadata.name%3Down,metadata.name%3Dother"),
        format!("{secrets}?fieldSelector=metadata.name%3Dother,metadata.name%3Down"),
        format!("{secrets}?fieldSelector=metadata.name%3Dother&fieldSelector=metadata.name%3Down"),
        format!("{secrets}?fieldSelector=metadata.name%3Down&fieldSelector=metadata.name%3Dother"),
        format!("{secrets}?fieldSelector=metadata.name%21%3Down"),
        format!("{secrets}?fieldSelector=metadata.name%3Do%5Cwn"),
        format!("{secrets}?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Dother"),
        "/api/v1/secrets?fieldSelector=metadata.name%3Down".to_owned(),
        format!("{secrets}/other"),
        format!("{secrets}/own?fieldSelector=metadata.name%3Dother"),
    ] {
        let body = t.get("olga", &path).body;
        assert!(!body.contains(other), "{path}: {body}");
    }
    // a deletion of several is never about one name
    let line = format!("DELETE {secrets}?fieldSelector=metadata.name%3Down");
    t.refused("olga", &line, &Value::Null);
    t.allowed("root", &format!("{secrets}/own"));
}

/// A prefix of the path makes no other verb of what the method does.
pub(super) fn prefixes_that_act(t: &Target) {
    let node = &t.node;
    for line in [
        "POST /api/v1/watch/namespaces/foo/pods/p/exec?command=id".to_owned(),
        "GET /api/v1/watch/namespaces/foo/pods/p/exec?command=id".to_owned(),
        "POST /api/v1/watch/namespaces/foo/pods/p/portforward".to_owned(),
        format!("POST /api/v1/watch/nodes/{node}/proxy/run/foo/p/c?cmd=id"),
        format!("GET /api/v1/watch/nodes/{node}/proxy/pods"),
        format!("POST /api/v1/proxy/nodes/{node}/run/foo/p/c?cmd=id"),
        format!("GET /api/v1/proxy/nodes/{node}/proxy/pods"),
        "GET /api/v1/proxy/namespaces/foo/pods/p".to_owned(),
        "GET /api/v1/watch/namespaces/foo/pods/p/log".to_owned(),
        "POST /api/v1/watch/namespaces/foo/secrets".to_owned(),
        "DELETE /api/v1/watch/namespaces/foo/secrets/own".to_owned(),
        "PUT /api/v1/watch/namespaces/foo/secrets/own".to_owned(),
        "POST /apis/attack.test/v1/watch/globes".to_owned(),
        "GET /api/v1/watch/namespaces/foo/status".to_owned(),
    ] {
        for user in ["walter", "root"] {
            t.refused(user, &line, &Value::Null);
        }
    }
    t.allowed(
        "walter",
        "/api/v1/watch/namespaces/foo/pods?timeoutSeconds=1",
    );
}

/// GET of what runs something needs what POST of it needs, through the API server and at the node.
pub(super) fn reading_that_acts(t: &Target) {
    let proxy = format!("/api/v1/nodes/{}/proxy", t.node);
    for path in [
        "healthz",
        "metrics",
        "metrics/resource",
        "stats/summary",
        "pods",
        "devices",
    ] {
        t.allowed("gina", &format!("{proxy}/{path}"));
    }
    let upgrade = [
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("Sec-WebSocket-Protocol", "v5.channel.k8s.io"),
    ];
    let here = &t.node;
    for line in [
        format!("GET {proxy}/exec/foo/p/c?command=id&output=1"),
        format!("GET {proxy}/attach/foo/p/c?output=1"),
        format!("GET {proxy}/portForward/foo/p?port=80"),
        format!("GET {proxy}/run/foo/p/c?cmd=id"),
        format!("PUT {proxy}/run/foo/p/c?cmd=id"),
        format!("GET {proxy}/metrics/..%2frun/foo/p/c?cmd=id"),
        format!("GET {proxy}//run/foo/p/c?cmd=id"),
        format!("GET {proxy}/%72un/foo/p/c?cmd=id"),
        format!("GET /api/v1/nodes/https:{here}:/proxy/exec/foo/p/c?command=id&output=1"),
        "GET /api/v1/namespaces/foo/pods/p/exec?command=id&stdout=1".to_owned(),
        "GET /api/v1/namespaces/foo/pods/p/attach?stdout=1".to_owned(),
        "GET /api/v1/namespaces/foo/pods/p/portforward?ports=80".to_owned(),
    ] {
        for headers in [&upgrade[..], &[]] {
            let answer = t.send("gina", &line, headers, "");
            assert_eq!(answer.code, 403, "{line}: {}", answer.body);
        }
    }
    // an upgrade makes a stream of any path
    let answer = t.send("gina", &format!("GET {proxy}/metrics"), &upgrade, "");
    assert_eq!(answer.code, 403, "{}", answer.body);
}

/// A path means one thing to all who read it.
pub(super) fn paths_read_twice(t: &Target) {
    for path in [
        "/api/v1/namespaces/foo/../other/secrets/own",
        "/api/v1/namespaces/foo/..%2fother/secrets/own",
        "/api/v1/namespaces/foo%2f..%2fother/secrets/own",
        "/api/v1/namespaces/foo/secrets/..%2f..%2fother%2fsecrets%2fown",
        "/api/v1/namespaces/foo/pods/../secrets/own",
        "/api/v1/namespaces/foo/pods/%2e%2e/secrets/own",
        "/api/v1/namespaces/foo/pods/..%252fsecrets%252fown",
        "/api/v1/namespaces/foo%00/secrets/own",
        "/api/v1/./namespaces/other/secrets/own",
        "/api/v1//namespaces/other/secrets/own",
        "//api/v1/namespaces/other/secrets/own",
        "/api%2fv1/namespaces/other/secrets/own",
        "/api/v1%2fnamespaces%2fother%2fsecrets%2fown",
        "/apis/../api/v1/namespaces/other/secrets/own",
        "/apis%2f..%2fapi/v1/secrets",
        "/healthz/../api/v1/secrets",
        "/version/..%2f../api/v1/namespaces/other/secrets/own",
        "/openapi/v3/..%2f..%2fmetrics",
        "/api/v1/namespaces/foo/SECRETS/own",
        "/api/v1/namespaces/foo/secrets;x=y/own",
    ] {
        for user in ["", "vera", "ed"] {
            let answer = t.get(user, path);
            assert!(answer.code >= 400, "{user} {path}: {}", answer.body);
            assert!(
                !answer.body.contains("T1RIRVI="),
                "{user} {path}: {}",
                answer.body
            );
        }
    }
    let answer = t.get("root", "/api/v1/namespaces/foo%2f..%2fother/secrets/own");
    assert_eq!(answer.code, 404, "{}", answer.body);
    // Who may get what is below a path may not get the path itself by another way to write it.
    t.allowed("gina", "/metrics/slis");
    for path in [
        "/metrics",
        "/metrics/",
        "/metrics//",
        "//metrics",
        "/metrics/slis/",
    ] {
        let answer = t.get("gina", path);
        assert!(answer.code >= 400, "{path}: {}", answer.body);
    }
    // Discovery is asked for both ways.
    for path in [
        "/api/",
        "/apis/",
        "/apis/apps/",
        "/apis/apps/v1/",
        "/version/",
    ] {
        t.allowed("vera", path);
    }
}
