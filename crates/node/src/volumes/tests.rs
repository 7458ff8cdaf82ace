use super::*;
use crate::objects::FixedObjects;
use mounts::NoMounter;
use serde_json::json;

fn volumes(root: &Path, objects: &[serde_json::Value]) -> Volumes {
    let paths = Paths::new(root.join("kubelet"), root.join("log/pods"));
    Volumes::new(
        paths,
        Arc::new(NoMounter),
        Arc::new(FixedObjects::from_json(objects)),
    )
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "reads best with json! in place"
)]
fn pod(list: serde_json::Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u1", "labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c"}], "volumes": list},
    }))
    .unwrap()
}

#[tokio::test]
async fn projected_volume_has_token_certificate_and_namespace() {
    let tmp = tempfile::tempdir().unwrap();
    let v = volumes(
        tmp.path(),
        &[
            json!({"kind": "ConfigMap", "metadata": {"name": "kube-root-ca.crt", "namespace": "ns"}, "data": {"ca.crt": "CA"}}),
        ],
    );
    let p = pod(
        json!([{"name": "kube-api-access", "projected": {"defaultMode": 420, "sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
        ]}}]),
    );
    let mounted = v.setup(&p, &NodeFacts::default()).await.unwrap();
    let dir = &mounted["kube-api-access"];
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
    assert_eq!(
        (
            read("token").as_str(),
            read("ca.crt").as_str(),
            read("namespace").as_str()
        ),
        ("api.u1", "CA", "ns")
    );
    v.teardown("u1").await.unwrap();
    assert!(!dir.exists());
    v.teardown("u1").await.unwrap();
}

#[tokio::test]
async fn missing_objects_and_keys_say_so() {
    let tmp = tempfile::tempdir().unwrap();
    let v = volumes(
        tmp.path(),
        &[json!({"kind": "Secret", "metadata": {"name": "s", "namespace": "ns"}, "data": {}})],
    );
    let facts = NodeFacts::default();
    let text = |p: Pod| {
        let (v, facts) = (&v, &facts);
        async move { v.setup(&p, facts).await.unwrap_err().to_string() }
    };
    assert_eq!(
        text(pod(json!([{"name": "x", "configMap": {"name": "nope"}}]))).await,
        "MountVolume.SetUp failed for volume \"x\" : configmap \"nope\" not found"
    );
    assert_eq!(
        text(pod(json!([{"name": "x", "secret": {"secretName": "s", "items": [{"key": "k", "path": "k"}]}}]))).await,
        "MountVolume.SetUp failed for volume \"x\" : references non-existent secret key: k"
    );
    assert_eq!(
        text(pod(
            json!([{"name": "x", "persistentVolumeClaim": {"claimName": "c"}}])
        ))
        .await,
        "MountVolume.SetUp failed for volume \"x\" : volumes of kind persistentVolumeClaim are not built into this node"
    );
    let optional = pod(json!([{"name": "x", "configMap": {"name": "nope", "optional": true}}]));
    assert!(v.setup(&optional, &facts).await.is_ok());
}

#[tokio::test]
async fn host_path_types() {
    let tmp = tempfile::tempdir().unwrap();
    let v = volumes(tmp.path(), &[]);
    let dir = tmp.path().join("made");
    let path = dir.to_string_lossy().into_owned();
    let facts = NodeFacts::default();
    let error = v
        .setup(
            &pod(json!([{"name": "h", "hostPath": {"path": path, "type": "Directory"}}])),
            &facts,
        )
        .await
        .unwrap_err();
    assert!(error.to_string().ends_with("is not a directory"), "{error}");
    v.setup(
        &pod(json!([{"name": "h", "hostPath": {"path": path, "type": "DirectoryOrCreate"}}])),
        &facts,
    )
    .await
    .unwrap();
    assert!(dir.is_dir());
    v.setup(
        &pod(json!([{"name": "h", "hostPath": {"path": "/dev/null", "type": "CharDevice"}}])),
        &facts,
    )
    .await
    .unwrap();
}

#[tokio::test]
async fn empty_dir_keeps_its_content() {
    let tmp = tempfile::tempdir().unwrap();
    let v = volumes(tmp.path(), &[]);
    let p = pod(json!([{"name": "e", "emptyDir": {}}]));
    let mounted = v.setup(&p, &NodeFacts::default()).await.unwrap();
    std::fs::write(mounted["e"].join("f"), "x").unwrap();
    let again = v.setup(&p, &NodeFacts::default()).await.unwrap();
    assert_eq!(std::fs::read_to_string(again["e"].join("f")).unwrap(), "x");
    let mode = std::fs::metadata(&again["e"]).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o777);
}
