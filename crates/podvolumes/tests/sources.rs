//! What the volumes of a pod ask of the API server.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;

use davit_pods::env::NodeFacts;
use davit_pods::objects::FixedObjects;
use davit_pods::paths::Paths;
use davit_podvolumes::Volumes;
use davit_podvolumes::mounts::NoMounter;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

fn pod(volumes: &Value) -> Pod {
    let names = volumes.as_array().unwrap().iter();
    let mounts: Vec<_> = names
        .map(|volume| json!({"name": volume["name"], "mountPath": "/x"}))
        .collect();
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u1"},
        "spec": {"containers": [{"name": "c", "volumeMounts": mounts}], "volumes": volumes},
    }))
    .unwrap()
}

/// A pod has room for ten thousand sources: reading an object, or asking for a token, for each of them each time that the volume
/// is brought up to date would be the node's share of the API server, and more.
#[tokio::test]
async fn an_object_and_a_token_are_asked_for_once_however_many_sources_name_them() {
    let tmp = tempfile::tempdir().unwrap();
    let objects = Arc::new(FixedObjects::from_json(&[
        json!({"kind": "ConfigMap", "metadata": {"name": "m", "namespace": "ns"}, "data": {"k": "v"}}),
    ]));
    let paths = Paths::new(tmp.path().join("kubelet"), tmp.path().join("log/pods"));
    let v = Volumes::new(paths, Arc::new(NoMounter), objects.clone());
    let facts = NodeFacts::default();
    let sources = |volume: usize| {
        let each = (0..500).flat_map(|n| {
            [
                json!({"configMap": {"name": "m", "items": [{"key": "k", "path": format!("m{n}")}]}}),
                json!({"secret": {"name": "none", "optional": true}}),
                json!({"serviceAccountToken": {"audience": "a", "path": format!("t{n}")}}),
                json!({"clusterTrustBundle": {"signerName": "e.com/s", "labelSelector": {}, "optional": true, "path": format!("b{n}")}}),
            ]
        });
        json!({"name": format!("v{volume}"), "projected": {"sources": each.collect::<Vec<_>>()}})
    };
    let many = pod(&json!([sources(0), sources(1)]));
    v.setup(&many, &facts).await.unwrap();
    assert_eq!(objects.asked(), 4);
    v.setup(&many, &facts).await.unwrap();
    assert_eq!(objects.asked(), 7, "the token is good for a while");

    let audiences = (0..300).map(
        |n| json!({"serviceAccountToken": {"audience": format!("a{n}"), "path": format!("t{n}")}}),
    );
    let audiences: Vec<_> = audiences.collect();
    let greedy = pod(&json!([{"name": "v", "projected": {"sources": audiences}}]));
    let errors = v.setup(&greedy, &facts).await.unwrap_err();
    let text = errors[0].to_string();
    assert!(text.contains("more than 256 different tokens"), "{text}");
    assert!(objects.asked() <= 7 + 256);
}
