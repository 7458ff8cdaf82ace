//! Devices: of a CSI driver and of the node, with and without a file system.

use super::csi::{calls, driver_with, program};
use super::{Kube, claim as kube_claim, pod};
use crate::harness::part;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A running pod's volumes are looked at once a minute.
pub(super) const LOOK: Duration = Duration::from_secs(100);

/// Loop devices, which need the kernel's driver and a program.
pub(super) fn loop_devices() -> Option<()> {
    let there = Path::new("/dev/loop-control").exists();
    let program = Command::new("losetup").arg("--version").output().is_ok();
    part("loop devices", (there && program).then_some(()))
}

pub(super) fn losetup(args: &[&str]) -> String {
    let out = Command::new("losetup").args(args).output().unwrap();
    assert!(out.status.success(), "losetup {args:?}: {out:?}");
    String::from_utf8_lossy(&out.stdout).trim().to_owned()
}

/// Whether the kernel lets this process grow file systems (CAP_SYS_RESOURCE).
pub(super) fn may_resize() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    u64::from_str_radix(line.unwrap().trim(), 16).unwrap() & (1 << 24) != 0
}

/// A disk of the node, made of a file.
struct Disk(String);

impl Disk {
    fn new(image: &Path, bytes: u64) -> Self {
        std::fs::File::create(image)
            .unwrap()
            .set_len(bytes)
            .unwrap();
        let image = image.display().to_string();
        Self(losetup(&["--find", "--show", &image]))
    }

    fn grow(&self, image: &Path, bytes: u64) {
        let file = std::fs::OpenOptions::new().write(true).open(image);
        file.unwrap().set_len(bytes).unwrap();
        losetup(&["--set-capacity", &self.0]);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _gone = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

const CSI: &str = "apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: dir.peers.davit.dev}
spec: {attachRequired: false}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec:
  capacity: {storage: 1Mi}
  accessModes: [ReadWriteOnce]
  volumeMode: Block
  storageClassName: by-hand
  persistentVolumeReclaimPolicy: Retain
  csi: {driver: dir.peers.davit.dev, volumeHandle: one}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: raw}
spec: {storageClassName: by-hand, volumeMode: Block, volumeName: disk, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
";

pub(super) fn with_device(name: &str, claim: &str, read_only: bool) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{{name: raw, persistentVolumeClaim: {{claimName: {claim}, readOnly: {read_only}}}}}]
  containers:
  - name: main
    image: davit.local/host
    command: [/bin/sh, -c, 'exec sleep 1000']
    volumeDevices: [{{name: raw, devicePath: /dev/own}}]
"
    )
}

const READ: &str = "dd if=/dev/own bs=6 count=1 2>/dev/null";

#[test]
fn items_065_066_068_and_090_devices_of_a_csi_driver() {
    let (Some(binary), Some(())) = (program("csi-driver"), loop_devices()) else {
        return;
    };
    let Some(mut kube) = Kube::up(&[]) else {
        return;
    };
    let volume = kube.dir().join("csi/volumes/one");
    std::fs::create_dir_all(volume.join("data")).unwrap();
    let record = r#"{"id":"one","name":"one","capacity":1048576,"made":"2026-01-01T00:00:00Z"}"#;
    std::fs::write(volume.join("record.json"), record).unwrap();
    let _running = driver_with(&kube, &binary, &["--stage"]);
    kube.apply(CSI);
    kube.apply(&with_device("one", "raw", false));
    kube.wait("pod/one", "{.status.phase}", "Running");
    let exec = |kube: &Kube, pod: &str, script: &str| {
        kube.try_run(&["exec", pod, "--", "/bin/sh", "-c", script])
    };
    let write = "echo rows! | dd of=/dev/own conv=fsync,notrunc 2>&1";
    exec(&kube, "one", write).unwrap();
    kube.has_event(
        "one",
        "SuccessfulMountVolume",
        "MapVolume.MapPodDevice succeeded for volume \"disk\" globalMapPath",
    );

    // another pod of the node may only read it
    kube.apply(&with_device("two", "raw", true));
    kube.wait("pod/two", "{.status.phase}", "Running");
    assert_eq!(exec(&kube, "two", READ).unwrap(), "rows!\n");
    let refused = exec(&kube, "two", write).unwrap_err();
    assert!(!refused.contains("not found"), "{refused}");
    assert_eq!(
        (
            calls(&kube, "NodeStageVolume"),
            calls(&kube, "NodePublishVolume")
        ),
        (1, 2)
    );
    let root = kube.dir().join("root/var/lib/kubelet");
    let devices = root.join("plugins/kubernetes.io/csi/volumeDevices");
    let text = std::fs::read_to_string(kube.dir().join("calls.jsonl")).unwrap();
    let publish = text.lines().find(|line| line.contains("NodePublishVolume"));
    for part in [
        format!(
            "\"staging_target_path\":\"{}/staging/disk\"",
            devices.display()
        ),
        format!("\"target_path\":\"{}/publish/disk/", devices.display()),
        "\"block\":{}".to_owned(),
    ] {
        assert!(
            publish.unwrap().replace("\": ", "\":").contains(&part),
            "{part} in {publish:?}"
        );
    }

    // a container that comes later gets it, too
    let ephemeral = r#"{"spec":{"ephemeralContainers":[{"name":"late","image":"davit.local/host","command":["/bin/sh","-c","exec sleep 1000"],"volumeDevices":[{"name":"raw","devicePath":"/dev/own"}]}]}}"#;
    let edit = [
        "patch",
        "pod",
        "one",
        "--subresource=ephemeralcontainers",
        "-p",
        ephemeral,
    ];
    kube.run(&edit);
    let late = ["exec", "one", "-c", "late", "--", "/bin/sh", "-c", READ];
    kube.eventually("the late container reads", || {
        kube.try_run(&late).is_ok_and(|said| said == "rows!\n")
    });

    // it grows under the pods, once a resizer says that the node has to do its part
    kube.run(&[
        "patch",
        "pv",
        "disk",
        "-p",
        r#"{"spec":{"capacity":{"storage":"2Mi"}}}"#,
    ]);
    let pending = r#"{"status":{"allocatedResources":{"storage":"2Mi"},"allocatedResourceStatuses":{"storage":"NodeResizePending"},"conditions":[{"type":"FileSystemResizePending","status":"True"}]}}"#;
    kube.run(&["patch", "pvc", "raw", "--subresource=status", "-p", pending]);
    kube.within(LOOK, "the claim has its size", || {
        kube.get("pvc/raw", "{.status.capacity.storage}") == "2Mi"
    });
    assert_eq!(
        kube.get(
            "pvc/raw",
            "{.status.allocatedResourceStatuses}{.status.conditions}"
        ),
        ""
    );
    assert_eq!(
        exec(&kube, "one", "blockdev --getsize64 /dev/own").unwrap(),
        "2097152\n"
    );
    kube.has_event(
        "raw",
        "FileSystemResizeSuccessful",
        "MountVolume.NodeExpandVolume succeeded for volume \"disk\" node-1",
    );
    let metric =
        "kubelet_volume_stats_capacity_bytes{namespace=\"default\",persistentvolumeclaim=\"raw\"}";
    let metrics = || kube.run(&["get", "--raw", "/api/v1/nodes/node-1/proxy/metrics"]);
    kube.eventually("the claim has metrics", || metrics().contains(metric));

    // what a power cut leaves is taken down later
    kube.cluster.keep_port();
    kube.cluster.kill();
    kube.cluster.start_again();
    kube.run(&["delete", "pod", "one", "--timeout=60s"]);
    assert_eq!(exec(&kube, "two", READ).unwrap(), "rows!\n");
    assert_eq!(calls(&kube, "NodeUnstageVolume"), 0, "still used");
    kube.run(&["delete", "pod", "two", "--timeout=60s"]);
    kube.eventually("unstaged", || calls(&kube, "NodeUnstageVolume") == 1);
    kube.eventually("nothing is left", || {
        let left = ["", "publish", "staging"].map(|dir| {
            let entries = std::fs::read_dir(devices.join(dir));
            entries.into_iter().flatten().count()
        });
        left == [2, 0, 0]
    });
    let image = volume.join("disk.img").display().to_string();
    assert_eq!(losetup(&["--associated", &image]), "");
}

fn local(name: &str, mode: &str, path: &str) -> String {
    format!(
        "apiVersion: v1
kind: PersistentVolume
metadata: {{name: {name}}}
spec:
  capacity: {{storage: 32Mi}}
  accessModes: [ReadWriteOnce]
  volumeMode: {mode}
  storageClassName: by-hand
  persistentVolumeReclaimPolicy: Retain
  local: {{path: {path}}}
  nodeAffinity: {{required: {{nodeSelectorTerms: [{{matchExpressions: [
    {{key: kubernetes.io/hostname, operator: In, values: [node-1]}}]}}]}}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}}}
spec: {{storageClassName: by-hand, volumeMode: {mode}, volumeName: {name}, accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 32Mi}}}}}}
"
    )
}

#[test]
fn disks_of_the_node_are_formatted_once_and_grow() {
    if loop_devices().is_none() {
        return;
    }
    let Some(kube) = Kube::up(&[]) else {
        return;
    };
    let image = kube.dir().join("disk.img");
    let disk = Disk::new(&image, 32 << 20);
    kube.apply(&local("files", "Filesystem", &disk.0));
    let write = "echo rows > /mnt/table; echo done";
    assert_eq!(kube.say("writer", "files", write), "done");
    let mounts = kube
        .dir()
        .join("root/var/lib/kubelet/plugins/kubernetes.io/local-volume/mounts");
    kube.eventually("the disk is let go", || !mounts.join("files").exists());

    // a pod that asks for the device gets what is on it
    kube.apply(&local("raw", "Block", &disk.0));
    kube.apply(&with_device("raw", "raw", false));
    kube.wait("pod/raw", "{.status.phase}", "Running");
    let magic = "dd if=/dev/own bs=1 skip=1080 count=2 2>/dev/null | od -An -tx1";
    let said = kube.run(&["exec", "raw", "--", "/bin/sh", "-c", magic]);
    assert_eq!(said.trim(), "53 ef");
    kube.run(&["delete", "pod", "raw", "--timeout=60s"]);
    let maps = mounts.with_file_name("volumeDevices");
    assert_eq!(std::fs::read_dir(maps).unwrap().count(), 0);

    // a directory is no device
    let here = kube.dir().display().to_string();
    kube.apply(&local("wrong", "Block", &here));
    kube.apply(&with_device("wrong", "wrong", false));
    kube.has_event(
        "wrong",
        "FailedMapVolume",
        "what the volume gives is no block device",
    );

    // the next pod finds what the first wrote, and the file system grows with its disk
    kube.apply(&pod("reader", "files", "exec sleep 1000"));
    kube.wait("pod/reader", "{.status.phase}", "Running");
    let read = ["exec", "reader", "--", "cat", "/mnt/table"];
    assert_eq!(kube.run(&read), "rows\n");
    disk.grow(&image, 64 << 20);
    kube.run(&[
        "patch",
        "pv",
        "files",
        "-p",
        r#"{"spec":{"capacity":{"storage":"64Mi"}}}"#,
    ]);
    if !may_resize() {
        // As on machines of containers: the reason is told, and the pod runs on.
        kube.within(LOOK, "the pod is told", || {
            let reason = "involvedObject.name=reader,reason=VolumeResizeFailed";
            let events = ["get", "events", "--field-selector", reason, "-o", "name"];
            !kube.run(&events).is_empty()
        });
        kube.wait(
            "pvc/files",
            "{.status.conditions[0].type}",
            "NodeResizeError",
        );
        return;
    }
    let size = ["exec", "reader", "--", "df", "--output=size", "/mnt"];
    kube.within(LOOK, "the file system is larger", || {
        let said = kube.run(&size);
        let kib: u64 = said.lines().nth(1).unwrap().trim().parse().unwrap();
        kib > 40 << 10
    });
    kube.wait("pvc/files", "{.status.capacity.storage}", "64Mi");
    assert_eq!(kube.run(&read), "rows\n");
    kube.run(&["delete", "pod", "reader", "--timeout=60s"]);
}

/// The loop devices of a file.
pub(super) fn devices_of(image: &Path) -> Vec<String> {
    let said = losetup(&["--associated", &image.display().to_string()]);
    said.lines().map(str::to_owned).collect()
}

#[test]
fn items_065_and_128_the_default_class_makes_devices() {
    if loop_devices().is_none() {
        return;
    }
    let Some(mut kube) = Kube::up(&[]) else {
        return;
    };
    let claim = |size: &str| {
        let spec = format!(
            "volumeMode: Block, accessModes: [ReadWriteOnce], resources: {{requests: {{storage: {size}}}}}"
        );
        kube_claim("raw", &spec)
    };
    kube.apply(&claim("4Mi"));
    kube.apply(&with_device("one", "raw", false));
    kube.wait("pod/one", "{.status.phase}", "Running");
    let exec = |kube: &Kube, pod: &str, script: &str| {
        kube.try_run(&["exec", pod, "--", "/bin/sh", "-c", script])
    };
    let write = "echo rows! | dd of=/dev/own conv=fsync,notrunc 2>&1";
    exec(&kube, "one", write).unwrap();
    let volume = kube.get("pvc/raw", "{.spec.volumeName}");
    let image = kube.volumes().join(&volume).join("data.img");
    let device = devices_of(&image);
    assert_eq!(device.len(), 1, "{device:?}");

    // another pod of the node may only read the same device
    kube.apply(&with_device("two", "raw", true));
    kube.wait("pod/two", "{.status.phase}", "Running");
    assert_eq!(exec(&kube, "two", READ).unwrap(), "rows!\n");
    let refused = exec(&kube, "two", write).unwrap_err();
    assert!(!refused.contains("not found"), "{refused}");
    assert_eq!(devices_of(&image), device);

    // it grows under the pods
    kube.apply(&claim("6Mi"));
    kube.wait("pvc/raw", "{.status.capacity.storage}", "6Mi");
    let size = "blockdev --getsize64 /dev/own";
    assert_eq!(exec(&kube, "one", size).unwrap(), "6291456\n");

    // what a power cut leaves is found again, and taken away with the last pod
    kube.cluster.keep_port();
    kube.cluster.kill();
    kube.cluster.start_again();
    kube.run(&["delete", "pod", "one", "--timeout=60s"]);
    assert_eq!(exec(&kube, "two", READ).unwrap(), "rows!\n");
    assert_eq!(devices_of(&image), device);
    kube.run(&["delete", "pod", "two", "--timeout=60s"]);
    kube.eventually("no device is left", || devices_of(&image).is_empty());

    // another claim begins with what this one has
    let copy = "volumeMode: Block, accessModes: [ReadWriteOnce], resources: {requests: {storage: 8Mi}}, dataSource: {kind: PersistentVolumeClaim, name: raw}";
    kube.apply(&kube_claim("copy", copy));
    kube.apply(&with_device("four", "copy", false));
    kube.wait("pod/four", "{.status.phase}", "Running");
    assert_eq!(exec(&kube, "four", READ).unwrap(), "rows!\n");
    assert_eq!(exec(&kube, "four", size).unwrap(), "8388608\n");
    kube.run(&["delete", "pod", "four", "--timeout=60s"]);

    // the data stays as long as the claim
    kube.apply(&with_device("three", "raw", false));
    kube.wait("pod/three", "{.status.phase}", "Running");
    assert_eq!(exec(&kube, "three", READ).unwrap(), "rows!\n");
    kube.run(&["delete", "pod", "three", "--timeout=60s"]);
    kube.run(&["delete", "pvc", "raw", "--timeout=60s"]);
    kube.gone(&format!("pv/{volume}"));
    kube.eventually("the image is gone", || !image.exists());
}
