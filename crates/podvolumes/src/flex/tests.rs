//! A driver of shell without real mounts: what it mounts is a file in the directory.

use super::super::mounts::{Mounter, NoMounter};
use super::*;
use davit_flexvolume::{CallLimits, FlexDrivers};
use davit_pods::env::NodeFacts;
use davit_pods::objects::FixedObjects;
use davit_pods::paths::Paths;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use tempfile::TempDir;

/// Records the words of every call in `calls` beside it.
const DRIVER: &str = r#"#!/bin/sh
own="$(dirname "$0")"
echo "$@" >> "$own/calls"
case "$1" in
init) echo '{"status":"Success","capabilities":{"attach":false}}' ;;
mount)
  if [ -e "$own/broken" ]; then echo '{"status":"Failure","message":"broken"}'; exit 1; fi
  echo "$3" > "$2/options"
  if [ -e "$own/hangs" ]; then sleep 600; fi
  echo '{"status":"Success"}' ;;
unmount) rm "$2/options"; echo '{"status":"Success"}' ;;
*) echo '{"status":"Not supported"}' ;;
esac
"#;

struct Machine {
    tmp: TempDir,
}

impl Machine {
    fn new() -> Self {
        let machine = Self {
            tmp: tempfile::tempdir().unwrap(),
        };
        machine.install();
        machine
    }

    fn driver(&self, file: &str) -> PathBuf {
        self.tmp.path().join("exec/acme~mem").join(file)
    }

    fn install(&self) {
        std::fs::create_dir_all(self.driver("")).unwrap();
        std::fs::write(self.driver(".mem"), DRIVER).unwrap();
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(self.driver(".mem"), mode).unwrap();
        std::fs::rename(self.driver(".mem"), self.driver("mem")).unwrap();
    }

    /// A new agent on this machine.
    fn volumes(&self) -> Volumes {
        let root = self.tmp.path();
        let objects = [
            json!({"kind": "Secret", "metadata": {"name": "key", "namespace": "ns"},
            "type": "acme/mem", "data": {"k": "eA=="}}),
            json!({"kind": "Secret", "metadata": {"name": "other", "namespace": "ns"}, "type": "Opaque"}),
        ];
        let limits = CallLimits {
            call: std::time::Duration::from_secs(2),
            ..CallLimits::default()
        };
        let mounter: Arc<dyn Mounter> = Arc::new(NoMounter);
        Volumes::new(
            Paths::new(root.join("kubelet"), root.join("log/pods")),
            mounter,
            Arc::new(FixedObjects::from_json(&objects)),
        )
        .with_flex_drivers(FlexDrivers::with_limits(root.join("exec"), limits))
    }

    /// The commands that were called; they are forgotten.
    fn commands(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.driver("calls")).unwrap_or_default();
        let _ = std::fs::remove_file(self.driver("calls"));
        let first = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
        text.lines().map(first).collect()
    }
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "reads best with json! in place"
)]
fn pod(source: Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u1"},
        "spec": {"serviceAccountName": "robot",
            "containers": [{"name": "c", "volumeMounts": [{"name": "data", "mountPath": "/x"}]}],
            "volumes": [{"name": "data", "flexVolume": source}]},
    }))
    .unwrap()
}

async fn set_up(volumes: &Volumes, source: Value) -> Result<PathBuf, String> {
    let made = volumes.setup(&pod(source), &NodeFacts::default()).await;
    made.map(|mounted| mounted["data"].path().to_owned())
        .map_err(|errors| errors[0].to_string())
}

/// What the pod's volume is called on the node.
fn name(source: Value) -> String {
    let source = serde_json::from_value(source).unwrap();
    FlexVolume::inline("data", &source).unwrap().name
}

fn with_secret(name: &str) -> Value {
    json!({"driver": "acme/mem", "secretRef": {"name": name}, "options": {"size": "1"}})
}

#[tokio::test]
async fn items_100_and_102_drivers_without_attaching_mount_and_unmount() {
    let (machine, source) = (Machine::new(), with_secret("key"));
    let volumes = machine.volumes();
    let dir = set_up(&volumes, source.clone()).await.unwrap();
    assert_eq!(
        dir,
        volumes
            .paths
            .volume("u1", "acme~mem", &name(source.clone()))
    );
    let options = std::fs::read_to_string(dir.join("options")).unwrap();
    let options: Value = serde_json::from_str(&options).unwrap();
    assert_eq!(options["kubernetes.io/secret/k"], "eA==");
    assert_eq!(options["kubernetes.io/serviceAccount.name"], "robot");
    assert_eq!(options["size"], "1");
    set_up(&volumes, source).await.unwrap();
    assert_eq!(machine.commands(), ["init", "mount"]);
    assert!(volumes.in_use().unwrap().is_empty());
    volumes.teardown("u1").await.unwrap();
    assert!(!dir.exists());
    assert_eq!(machine.commands(), ["unmount"]);
    volumes.teardown("u1").await.unwrap();
    assert!(machine.commands().is_empty());
}

#[tokio::test]
async fn items_098_and_108_unmounting_waits_for_the_driver_over_restarts() {
    let machine = Machine::new();
    let source = json!({"driver": "acme/mem"});
    let dir = set_up(&machine.volumes(), source.clone()).await.unwrap();
    std::fs::remove_file(machine.driver("mem")).unwrap();
    let volumes = machine.volumes();
    let error = volumes.teardown("u1").await.unwrap_err().to_string();
    assert!(
        error.starts_with(
            "UnmountVolume.TearDown failed for volume \"data\" : no volume plugin matched: "
        ),
        "{error}"
    );
    assert!(dir.join("options").exists(), "nothing of it is removed");
    let error = set_up(&volumes, source).await.unwrap_err();
    assert!(
        error.starts_with(
            "MountVolume.SetUp failed for volume \"data\" : no volume plugin matched: "
        ),
        "{error}"
    );
    machine.install();
    volumes.teardown("u1").await.unwrap();
    assert!(!dir.exists());
}

#[tokio::test]
async fn items_100_and_103_failures_say_why_and_leave_nothing() {
    let machine = Machine::new();
    let volumes = machine.volumes();
    assert_eq!(
        set_up(&volumes, with_secret("other")).await.unwrap_err(),
        "MountVolume.SetUp failed for volume \"data\" : couldn't get secret ns/other err: cannot get secret of type acme/mem"
    );
    std::fs::write(machine.driver("broken"), "").unwrap();
    assert_eq!(
        set_up(&volumes, with_secret("key")).await.unwrap_err(),
        "MountVolume.SetUp failed for volume \"data\" : mount command failed, status: Failure, reason: broken"
    );
    let dir = volumes
        .paths
        .volume("u1", "acme~mem", &name(with_secret("key")));
    assert!(!dir.exists());
    std::fs::remove_file(machine.driver("broken")).unwrap();
    set_up(&volumes, with_secret("key")).await.unwrap();
    assert_eq!(machine.commands(), ["init", "mount", "mount"]);
    let refused = set_up(&machine.volumes(), json!({"driver": "../evil"})).await;
    assert!(
        refused
            .unwrap_err()
            .contains("is not a name of a FlexVolume driver")
    );
}

#[tokio::test]
async fn item_105_what_may_be_mounted_is_unmounted_with_the_pod() {
    let machine = Machine::new();
    let volumes = machine.volumes();
    std::fs::write(machine.driver("hangs"), "").unwrap();
    let error = set_up(&volumes, json!({"driver": "acme/mem"})).await;
    assert!(error.unwrap_err().contains("did not end mount within 2 s"));
    let dir = volumes
        .paths
        .volume("u1", "acme~mem", &name(json!({"driver": "acme/mem"})));
    assert!(dir.join("options").exists());
    assert_eq!(machine.commands(), ["init", "mount"]);
    volumes.teardown("u1").await.unwrap();
    assert_eq!(machine.commands(), ["unmount"]);
    assert!(!dir.exists());
}

#[tokio::test]
async fn what_no_pod_uses_is_let_go() {
    let machine = Machine::new();
    let volumes = machine.volumes();
    let driver = davit_flexvolume::DriverName::new("acme/mem").unwrap();
    let dir = paths::global_mount(volumes.paths.root(), &driver, "pv");
    std::fs::create_dir_all(&dir).unwrap();
    let of_pod = volumes.paths.volume("u1", "acme~mem", "pv");
    std::fs::create_dir_all(&of_pod).unwrap();
    volumes.unmount_unused_flex(&dir, &driver, "pv").await;
    assert_eq!(volumes.in_use().unwrap(), ["acme/mem/pv"]);
    std::fs::remove_dir(&of_pod).unwrap();
    volumes.unmount_unused_flex(&dir, &driver, "pv").await;
    assert!(volumes.in_use().unwrap().is_empty() && !dir.exists());
    assert!(machine.commands().is_empty(), "nothing was mounted");
}
