use super::*;
use davit_pods::objects::FixedObjects;
use mounts::NoMounter;
use serde_json::json;
use std::os::unix::fs::PermissionsExt;

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
    let names = list.as_array().unwrap().iter();
    let mounts: Vec<_> = names
        .map(|volume| json!({"name": volume["name"], "mountPath": "/x"}))
        .collect();
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u1", "labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "volumeMounts": mounts}], "volumes": list},
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
    let dir = mounted["kube-api-access"].path();
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
        async move { v.setup(&p, facts).await.unwrap_err()[0].to_string() }
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
            json!([{"name": "x", "rbd": {"monitors": [], "image": "i"}}])
        ))
        .await,
        "MountVolume.SetUp failed for volume \"x\" : volumes of kind rbd are not built into this node"
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
        .unwrap_err()
        .remove(0);
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
    std::fs::write(mounted["e"].path().join("f"), "x").unwrap();
    let again = v.setup(&p, &NodeFacts::default()).await.unwrap();
    assert_eq!(
        std::fs::read_to_string(again["e"].path().join("f")).unwrap(),
        "x"
    );
    let mode = std::fs::metadata(again["e"].path())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o777);
}

#[tokio::test]
async fn local_volumes_are_bound_and_taken_down_without_loss() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: mounting needs root");
        return;
    }
    let tmp = tempfile::tempdir().unwrap();
    let root = tmp.path().canonicalize().unwrap();
    let data = root.join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("kept"), "x").unwrap();
    let objects = FixedObjects::from_json(&[
        json!({"kind": "PersistentVolumeClaim", "metadata": {"name": "c", "namespace": "ns", "uid": "c1"},
            "spec": {"volumeName": "pv", "accessModes": ["ReadWriteOncePod"]}, "status": {"phase": "Bound"}}),
        json!({"kind": "PersistentVolume", "metadata": {"name": "pv"}, "spec": {"claimRef": {"uid": "c1"},
            "mountOptions": ["noexec"], "local": {"path": data}}}),
    ]);
    let paths = Paths::new(root.join("kubelet"), root.join("log/pods"));
    paths.protect().unwrap();
    let v = Volumes::new(paths, Arc::new(mounts::SystemMounter), Arc::new(objects));
    let mut pod = pod(json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]));
    pod.spec.as_mut().unwrap().security_context =
        serde_json::from_value(json!({"fsGroup": 2000})).unwrap();
    let facts = NodeFacts::default();
    for _ in 0..2 {
        let mounted = v.setup(&pod, &facts).await.unwrap();
        let dir = mounted["v"].path();
        std::fs::write(dir.join("new"), "y").unwrap();
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let path = dir.to_str().unwrap();
        let mut lines = table.lines().filter(|line| line.contains(path));
        assert!(lines.next().unwrap().contains("noexec"));
        assert_eq!(lines.next(), None, "mounted once");
    }
    let mut other = pod.clone();
    other.metadata.uid = Some("u2".to_owned());
    let refused = v.setup(&other, &facts).await.unwrap_err();
    assert_eq!(
        refused[0].to_string(),
        "MountVolume.SetUp failed for volume \"pv\" : volume uses the ReadWriteOncePod access mode and is already in use by another pod"
    );
    v.teardown("u1").await.unwrap();
    let kept = std::fs::read_to_string(data.join("kept")).unwrap();
    let new = std::fs::read_to_string(data.join("new")).unwrap();
    assert_eq!((kept.as_str(), new.as_str()), ("x", "y"));
    assert!(!root.join("kubelet/pods/u1").exists());
    v.setup(&other, &facts).await.unwrap();
    v.teardown("u2").await.unwrap();
}

/// Somebody who has the agent's directory as a volume knows the UID of a pod that waits, and puts links in its place.
#[tokio::test]
async fn no_volume_is_made_behind_a_link() {
    use std::os::unix::fs::PermissionsExt as _;
    for source in [
        json!([{"name": "v", "emptyDir": {}}]),
        json!([{"name": "v", "downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}}]),
    ] {
        let tmp = tempfile::tempdir().unwrap();
        let v = volumes(tmp.path(), &[]);
        let victim = tmp.path().join("victim");
        std::fs::create_dir_all(victim.join("v")).unwrap();
        std::fs::set_permissions(victim.join("v"), std::fs::Permissions::from_mode(0o700)).unwrap();
        let pod = pod(source);
        let dir = tmp
            .path()
            .join("kubelet/pods")
            .join(pod.metadata.uid.as_deref().unwrap())
            .join("volumes");
        std::fs::create_dir_all(&dir).unwrap();
        for plugin in ["kubernetes.io~empty-dir", "kubernetes.io~downward-api"] {
            std::os::unix::fs::symlink(&victim, dir.join(plugin)).unwrap();
        }
        assert!(v.setup(&pod, &NodeFacts::default()).await.is_err());
        let mode = std::fs::metadata(victim.join("v"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o700);
        assert_eq!(std::fs::read_dir(victim.join("v")).unwrap().count(), 0);
    }
}
