//! Definitions of custom kinds: those that are called as a built-in one, whose objects would be its, which nobody then
//! validates, and which all go when the definition goes; and those whose columns lead far.

use super::{SOON, Target};
use serde_json::{Value, json};
use std::time::Instant;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn definition(group: &str, plural: &str, kind: &str, scope: &str) -> Value {
    json!({
        "metadata": { "name": format!("{plural}.{group}"), "annotations": { "api-approved.kubernetes.io": "unapproved, x" } },
        "spec": { "group": group, "scope": scope, "names": { "plural": plural, "kind": kind }, "versions": [{
            "name": "v9", "served": true, "storage": true,
            "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } } }] },
    })
}

fn wait(t: &Target, path: &str, wanted: impl Fn(u16, &str) -> bool) {
    let end = Instant::now() + SOON;
    loop {
        let answer = t.get("root", path);
        if wanted(answer.code, &answer.body) {
            return;
        }
        assert!(Instant::now() < end, "{path}: {}", answer.body);
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

pub(super) fn of_built_in_kinds(t: &Target) {
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    t.allowed("root", &format!("{roles}/cluster-admin"));
    for (group, plural, kind, scope) in [
        (
            "rbac.authorization.k8s.io",
            "clusterroles",
            "ClusterRole",
            "Cluster",
        ),
        (
            "networking.k8s.io",
            "networkpolicies",
            "NetworkPolicy",
            "Namespaced",
        ),
    ] {
        t.write(
            &format!("POST {DEFINITIONS}"),
            &definition(group, plural, kind, scope),
        );
        let path = format!("{DEFINITIONS}/{plural}.{group}");
        wait(t, &path, |_, body| body.contains("NamesAccepted"));
        assert!(t.allowed("root", &path).contains("PluralConflict"));
        let (below, what) = match scope {
            "Cluster" => (
                format!("/apis/{group}/v9/{plural}"),
                json!({ "rules": "nonsense" }),
            ),
            _ => (
                format!("/apis/{group}/v9/namespaces/foo/{plural}"),
                json!({ "spec": "nonsense" }),
            ),
        };
        let mut object = what;
        object["metadata"] = json!({ "name": "nobodys" });
        t.refused("root", &format!("POST {below}"), &object);
        t.write(&format!("DELETE {path}"), &json!({}));
        wait(t, &path, |code, _| code == 404);
    }
    t.allowed("root", &format!("{roles}/cluster-admin"));
    assert!(
        !t.allowed("root", "/apis/networking.k8s.io/v1/networkpolicies")
            .contains("nobodys")
    );
}

/// Columns with filters in filters, with indexes before the beginning of a list, and with paths that each find all of what the
/// one before has found: the server goes on, and shows nothing there.
pub(super) fn columns_that_lead_far(t: &Target) {
    let nested = format!(".spec{}{}", "[?(@".repeat(20_000), ")]".repeat(20_000));
    let paths = [
        &*nested,
        ".spec.list[-9223372036854775807:]",
        ".spec..a..a..a..a..a..a",
        ".metadata.name",
    ];
    let mut far = definition("far.example", "fars", "Far", "Cluster");
    far["metadata"]["annotations"] = json!({});
    let columns = paths.iter().enumerate();
    far["spec"]["versions"][0]["additionalPrinterColumns"] = columns
        .map(|(i, path)| json!({ "name": format!("c{i}"), "type": "string", "jsonPath": path }))
        .collect();
    t.write(&format!("POST {DEFINITIONS}"), &far);
    let objects = "/apis/far.example/v9/fars";
    wait(t, objects, |code, _| code == 200);
    let chain = (0..100).fold(json!(1), |inner, _| json!({ "a": inner }));
    let spec = json!({ "list": [1], "chain": chain });
    let object = json!({
        "apiVersion": "far.example/v9", "kind": "Far", "metadata": { "name": "far" }, "spec": spec,
    });
    t.write(&format!("POST {objects}"), &object);
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let answer = t.send("root", &format!("GET {objects}"), &[("Accept", table)], "");
    let wanted = r#""cells":["far",null,null,null,null]"#;
    assert!(answer.body.contains(wanted), "{}", answer.body);
    t.delete(&format!("DELETE {DEFINITIONS}/fars.far.example"));
}

/// A list of very many empty objects, each of which gets a default: what they come to is refused before there is no memory left.
pub(super) fn defaults_that_multiply(t: &Target) {
    let mut filled = definition("filled.example", "fulls", "Full", "Cluster");
    filled["metadata"]["annotations"] = json!({});
    let text = json!({ "type": "string", "default": "x".repeat(10_000) });
    let item = json!({ "type": "object", "properties": { "text": text } });
    let list = json!({ "type": "array", "items": item });
    filled["spec"]["versions"][0]["schema"]["openAPIV3Schema"] =
        json!({ "type": "object", "properties": { "list": list } });
    t.write(&format!("POST {DEFINITIONS}"), &filled);
    let objects = "/apis/filled.example/v9/fulls";
    wait(t, objects, |code, _| code == 200);
    let object = |items: usize| {
        json!({
            "apiVersion": "filled.example/v9", "kind": "Full",
            "metadata": { "name": format!("with-{items}") }, "list": vec![json!({}); items],
        })
    };
    t.write(&format!("POST {objects}"), &object(100));
    let kind = [("Content-Type", "application/json")];
    let line = format!("POST {objects}");
    let begun = Instant::now();
    let answer = t.send("root", &line, &kind, &object(100_000).to_string());
    assert_eq!(answer.code, 413, "{} bytes", answer.body.len());
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    t.delete(&format!("DELETE {DEFINITIONS}/fulls.filled.example"));
}
