use super::*;
use crate::mounts;
use davit_pods::env::NodeFacts;
use davit_pods::objects::FixedObjects;
use davit_pods::paths::Paths;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

fn source(server: &str) -> NFSVolumeSource {
    serde_json::from_value(json!({"server": server, "path": "/share"})).unwrap()
}

#[test]
fn what_the_helper_is_called_with() {
    let target = Path::new("/t");
    let (name, v6) = (source("files.example"), source("fd00::1"));
    let options = || ["vers=4.2", "hard", "hard"].map(str::to_owned).to_vec();
    for (share, words) in [
        (
            Share::new("v", &name, vec![], false),
            "files.example:/share /t",
        ),
        (
            Share::new("v", &v6, vec![], true),
            "[fd00::1]:/share /t -o ro",
        ),
        (
            Share::new("v", &name, options(), true),
            "files.example:/share /t -o hard,ro,vers=4.2",
        ),
    ] {
        assert_eq!(share.arguments(target).unwrap().join(" "), words);
    }
    for server in ["-osuid", "a b", "a/b"] {
        let source = source(server);
        let share = Share::new("v", &source, vec![], false);
        share.arguments(target).unwrap_err();
    }
}

fn pod(uid: &str) -> Pod {
    let mounts =
        json!([{"name": "inline", "mountPath": "/i"}, {"name": "claimed", "mountPath": "/c"}]);
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": uid},
        "spec": {"containers": [{"name": "c", "volumeMounts": mounts}], "volumes": [
            {"name": "inline", "nfs": {"server": "one", "path": "/a", "readOnly": true}},
            {"name": "claimed", "persistentVolumeClaim": {"claimName": "c"}}]},
    }))
    .unwrap()
}

fn objects() -> [Value; 2] {
    [
        json!({"kind": "PersistentVolumeClaim", "metadata": {"name": "c", "namespace": "ns", "uid": "c1"},
            "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}}),
        json!({"kind": "PersistentVolume", "metadata": {"name": "pv"}, "spec": {"claimRef": {"uid": "c1"},
            "mountOptions": ["soft", "nolock"], "nfs": {"server": "two", "path": "/b"}}}),
    ]
}

/// Writes its words into a file beside it, and mounts memory.
const MOUNT: &str =
    "#!/bin/sh\necho \"$1 $3 $4\" >> \"${0%/*}/calls\"\nexec mount -t tmpfs tmpfs \"$2\"\n";
const REFUSED: &str = "#!/bin/sh\necho 'mount.nfs: Connection refused' >&2\nexit 32\n";

fn install(dir: &Path, script: &str) {
    let hidden = dir.join("new");
    std::fs::write(&hidden, script).unwrap();
    std::fs::set_permissions(&hidden, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::rename(hidden, dir.join(HELPER)).unwrap();
}

#[tokio::test]
async fn item_113_the_hosts_helper_mounts_shares_for_each_pod() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: mounting needs root");
        return;
    }
    let tmp = tempfile::tempdir().unwrap();
    let root = tmp.path().canonicalize().unwrap();
    let paths = Paths::new(root.join("kubelet"), root.join("log/pods"));
    paths.protect().unwrap();
    let objects = FixedObjects::from_json(&objects());
    let mut v = Volumes::new(paths, Arc::new(mounts::SystemMounter), Arc::new(objects));
    v.helpers = vec![root.join("none"), root.clone()];
    let facts = NodeFacts::default();

    let told = |errors: Vec<super::super::Error>| errors[0].to_string();
    let missing = told(v.setup(&pod("u1"), &facts).await.unwrap_err());
    assert!(
        missing.starts_with(
            "MountVolume.SetUp failed for volume \"inline\" : mount failed: exec: \"mount.nfs\""
        ) && missing.contains("you might need a /sbin/mount.<type> helper program"),
        "{missing}"
    );
    install(&root, REFUSED);
    let refused = told(v.setup(&pod("u1"), &facts).await.unwrap_err());
    assert!(
        refused
            .contains("exit status 32\nMounting command: mount.nfs\nMounting arguments: one:/a ")
            && refused.ends_with("-o ro\nOutput: mount.nfs: Connection refused"),
        "{refused}"
    );

    install(&root, MOUNT);
    for _ in 0..2 {
        let mounted = v.setup(&pod("u1"), &facts).await.unwrap();
        for (name, expected) in [("inline", true), ("claimed", false)] {
            let Ready::Directory { path, read_only } = &mounted[name] else {
                panic!("{name} is no directory");
            };
            assert_eq!(*read_only, expected, "{name}");
            assert!(v.mounter.is_mount_point(path).unwrap(), "{name}");
        }
    }
    v.setup(&pod("u2"), &facts).await.unwrap();
    let calls = std::fs::read_to_string(root.join("calls")).unwrap();
    let mut calls: Vec<&str> = calls.lines().collect();
    calls.sort_unstable();
    let (claimed, inline) = ("two:/b -o nolock,soft", "one:/a -o ro");
    assert_eq!(
        calls,
        [inline, inline, claimed, claimed],
        "mounted once a pod"
    );

    v.teardown("u1").await.unwrap();
    assert!(!root.join("kubelet/pods/u1").exists());
    let second = root.join("kubelet/pods/u2/volumes").join(PLUGIN);
    assert!(v.mounter.is_mount_point(&second.join("pv")).unwrap());
    // As when the server does not answer.
    v.mounter.unmount_by_force(&second.join("pv")).unwrap();
    assert!(!v.mounter.is_mount_point(&second.join("pv")).unwrap());
    v.teardown("u2").await.unwrap();
    assert!(!root.join("kubelet/pods/u2").exists());
}
