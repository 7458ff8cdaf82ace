//! Objects that cannot be read: which they are, and how they are deleted.

use std::sync::Arc;

use davit_access::UserInfo;
use davit_access::authz::{Authorization, Mode};
use davit_api::features::UNSAFE_DELETION;
use davit_encryption::Encryption;
use davit_store::Write;
use serde_json::{Value, json};

use crate::cluster::*;
use crate::protection::encryption;

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const OPTION: &str = "ignoreStoreReadErrorWithClusterBreakingPotential";

/// What is damaged in the store fails the lists and watches in which it is; others go on, and so do these when it is gone.
#[tokio::test]
async fn an_object_that_cannot_be_read_is_named() {
    let c = Cluster::new().await;
    c.config_map("fine", &json!({"a": "b"})).await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let key = "/registry/core/configmaps/default/damaged";
    for damaged in [&b"k8s\0\n\x0a"[..], b"[1]"] {
        let list = c.get(maps).await.ok(200);
        let watch = format!("{maps}?watch=1&resourceVersion={}", rv(&list));
        let mut events = c.watch(&watch).await;
        let store = c.store();
        store.commit(Write::create(key, damaged)).await.unwrap();
        let named = |status: &Value| {
            assert_eq!(status["details"]["causes"][0]["field"], key, "{status}");
        };
        for accept in [
            "application/json",
            "application/json;as=Table;v=v1;g=meta.k8s.io",
        ] {
            let answer = c.request("GET", maps, &[("accept", accept)], "").await;
            named(&answer.error(500, "StorageReadError"));
        }
        let event = events.next().await.unwrap();
        assert_eq!(event["type"], "ERROR");
        named(&event["object"]);
        assert!(events.next().await.is_none());
        c.get(&format!("{maps}?labelSelector=a%3Db")).await.ok(200);
        c.get(&format!("{maps}/fine")).await.ok(200);
        store.commit(Write::delete_any(key)).await.unwrap();
        assert_eq!(
            c.get(maps).await.ok(200)["items"].as_array().unwrap().len(),
            1
        );
    }
}

/// Two Secrets whose key is lost, in a cluster where only members of system:masters may do everything.
async fn with_lost_key(is_on: bool) -> (Cluster, Cluster) {
    let first = Encryption::parse(&encryption(&["k1"])).unwrap();
    let before = Cluster::with(move |options| options.encryption = Some(Arc::new(first))).await;
    for name in ["one", "two"] {
        let secret = json!({"metadata": {"name": name, "finalizers": ["example.com/held"]}});
        before.post(SECRETS, &secret).await.ok(201);
    }
    let other = Encryption::parse(&encryption(&["k2"])).unwrap();
    let after = before.another_with(move |options| {
        options.encryption = Some(Arc::new(other));
        options.authorization = Authorization::Modes(vec![Mode::Rbac]);
        options.features.set(UNSAFE_DELETION, is_on).unwrap();
    });
    (after.await, before)
}

fn named(status: &Value) -> Vec<&str> {
    let causes = status["details"]["causes"].as_array().unwrap();
    causes
        .iter()
        .map(|cause| cause["field"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn objects_whose_key_is_lost_are_named_and_deleted() {
    let (c, _before) = with_lost_key(true).await;
    let secret = json!({"metadata": {"name": "fine"}});
    c.post(SECRETS, &secret).await.ok(201);
    let key = |name: &str| format!("/registry/core/secrets/default/{name}");
    for list in [
        SECRETS.to_owned(),
        format!("{SECRETS}?limit=10"),
        format!("{SECRETS}?resourceVersion=0"),
    ] {
        let status = c.get(&list).await.error(500, "StorageReadError");
        assert_eq!(named(&status), [key("one"), key("two")], "{list}");
        assert_eq!(status["details"]["kind"], "secrets");
    }
    let option = json!({ OPTION: true });
    let one = format!("{SECRETS}/one");
    c.delete(&one, &Value::Null)
        .await
        .error(500, "InternalError");
    // it stands with nothing else, and for one object
    for (field, value) in [
        ("dryRun", json!(["All"])),
        ("propagationPolicy", json!("Background")),
        ("orphanDependents", json!(false)),
        ("gracePeriodSeconds", json!(0)),
        ("preconditions", json!({"uid": "u"})),
    ] {
        let options = json!({ OPTION: true, field: value });
        let status = c.delete(&one, &options).await.error(422, "Invalid");
        let message = status["message"].as_str().unwrap();
        assert!(
            message.contains(&format!("cannot be set together with .{field}")),
            "{message}"
        );
    }
    c.delete(SECRETS, &option).await.error(422, "Invalid");
    // what can be read, or is not there, is deleted as ever
    for name in ["fine", "missing"] {
        let answer = c.delete(&format!("{SECRETS}/{name}"), &option).await;
        answer.error(422, "Invalid");
    }
    c.get(&format!("{SECRETS}/fine")).await.ok(200);
    let gone = c.delete(&one, &option).await.ok(200);
    assert_eq!(gone["status"], "Success");
    let status = c.get(SECRETS).await.error(500, "StorageReadError");
    assert_eq!(named(&status), [key("two")]);
    let by_query = format!("{SECRETS}/two?{OPTION}=true");
    c.delete(&by_query, &Value::Null).await.ok(200);
    // what is in the history only keeps nobody from the rest
    let list = c.get(SECRETS).await.ok(200);
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    let mut events = c.watch(&format!("{SECRETS}?watch=1")).await;
    assert_eq!(
        events.summary().await,
        ("ADDED".to_owned(), "fine".to_owned())
    );
}

/// Deleting what nobody can read passes by finalizers and admission: the right to delete is not enough.
#[tokio::test]
async fn who_may_delete_may_not_pass_by_finalizers() {
    let (c, _before) = with_lost_key(true).await;
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let grant = async |name: &str, verbs: Value| {
        let rules = json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": verbs}]);
        let role = json!({"metadata": {"name": name}, "rules": rules});
        c.post(&format!("{rbac}/roles"), &role).await.ok(201);
        let binding = json!({
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bob"}],
        });
        c.post(&format!("{rbac}/rolebindings"), &binding)
            .await
            .ok(201);
    };
    let bob = UserInfo::new("bob", &[]);
    let delete = async || {
        let url = format!("{SECRETS}/one");
        let headers = [("content-type", "application/json")];
        let body = json!({ OPTION: true }).to_string();
        whole(c.send_as(&bob, "DELETE", &url, &headers, body).await).await
    };
    grant("deletes", json!(["delete"])).await;
    let status = delete().await.error(403, "Forbidden");
    let message = status["message"].as_str().unwrap();
    let verb = "unsafe-delete-ignore-read-errors";
    assert!(
        message.contains(&format!("not permitted to do \"{verb}\"")),
        "{message}"
    );
    grant("unsafe", json!([verb])).await;
    delete().await.ok(200);
}

#[tokio::test]
async fn without_the_gate_the_option_does_nothing_and_says_so() {
    let (c, before) = with_lost_key(false).await;
    let answer = c
        .delete(&format!("{SECRETS}/one"), &json!({ OPTION: true }))
        .await;
    let warnings = answer.warnings();
    assert!(
        warnings.iter().any(|text| text.contains(UNSAFE_DELETION)),
        "{warnings:?}"
    );
    answer.error(500, "InternalError");
    before.get(&format!("{SECRETS}/one")).await.ok(200);
}
