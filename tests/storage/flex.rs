//! Volumes of FlexVolume drivers, which are shell scripts here: one that mounts only, and one that attaches as well.

use super::Kube;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// Writes the words of every call into `calls` beside it.
const HEAD: &str = r#"#!/bin/sh
own="$(dirname "$0")"
echo "$@" >> "$own/calls"
ok() { echo '{"status":"Success"}'; }
"#;

/// Mounts memory for each pod.
const MEMORY: &str = r#"
case "$1" in
init) echo '{"status":"Success","capabilities":{"attach":false}}' ;;
mount)
  if [ -e "$own/broken" ]; then echo '{"status":"Failure","message":"no memory left"}'; exit 1; fi
  mount -t tmpfs -o size=1m tmpfs "$2" && echo "$3" > "$2/options" && ok ;;
unmount) umount "$2" && ok ;;
*) echo '{"status":"Not supported"}' ;;
esac
"#;

/// Mounts memory once for all pods of a node, and leaves it to the agent to give it to them.
const DISK: &str = r#"
case "$1" in
init|detach|getvolumename) ok ;;
attach) echo '{"status":"Success","device":"/dev/disk-of-'"$3"'"}' ;;
isattached) echo '{"status":"Success","attached":true}' ;;
waitforattach) echo '{"status":"Success","device":"'"$2"'"}' ;;
mountdevice) mount -t tmpfs -o size=1m tmpfs "$2" && ok ;;
unmountdevice) umount "$2" && ok ;;
expandvolume)
  if [ -e "$own/small" ]; then echo '{"status":"Failure","message":"no room"}'; exit 1; fi
  ok ;;
expandfs) mount -o remount,size="$5" "$4" && ok ;;
*) echo '{"status":"Not supported"}' ;;
esac
"#;

struct Driver {
    dir: PathBuf,
    name: &'static str,
}

impl Driver {
    fn new(plugins: &std::path::Path, name: &'static str) -> Self {
        let dir = plugins.join(format!("acme~{name}"));
        std::fs::create_dir_all(&dir).unwrap();
        Self { dir, name }
    }

    /// As installers do: under a hidden name first.
    fn install(&self, body: &str) {
        let hidden = self.dir.join(".driver");
        std::fs::write(&hidden, format!("{HEAD}{body}")).unwrap();
        std::fs::set_permissions(&hidden, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::rename(hidden, self.dir.join(self.name)).unwrap();
    }

    fn calls(&self, command: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.dir.join("calls")).unwrap_or_default();
        let of = text
            .lines()
            .filter(|line| line.split(' ').next() == Some(command));
        of.map(str::to_owned).collect()
    }
}

fn up() -> Option<(Kube, tempfile::TempDir)> {
    let plugins = super::harness::temp_dir();
    let dir = plugins.path().to_str().unwrap().to_owned();
    let kube = Kube::up(&["--volume-plugin-dir", &dir])?;
    Some((kube, plugins))
}

const INLINE: &str = "apiVersion: v1
kind: Secret
metadata: {name: key}
type: acme/mem
stringData: {password: secret}
---
apiVersion: v1
kind: Pod
metadata: {name: inline}
spec:
  terminationGracePeriodSeconds: 1
  securityContext: {fsGroup: 2000}
  volumes:
  - name: data
    flexVolume: {driver: acme/mem, options: {size: small}, secretRef: {name: key}}
  containers:
  - name: main
    image: davit.local/host
    command: [/bin/sh, -c, 'echo x > /mnt/file; mkdir -p /mnt/sub; exec sleep 1000']
    volumeMounts: [{name: data, mountPath: /mnt}]
  - name: other
    image: davit.local/host
    command: [/bin/sh, -c, 'exec sleep 1000']
    volumeMounts: [{name: data, mountPath: /mnt, subPath: below}]
";

#[test]
fn items_098_100_102_103_and_108_a_driver_serves_inline_volumes() {
    let Some((mut kube, plugins)) = up() else {
        return;
    };
    let driver = Driver::new(plugins.path(), "mem");
    kube.apply(INLINE);
    kube.has_event(
        "inline",
        "FailedMount",
        "FlexVolume driver acme/mem is not installed",
    );
    std::fs::write(driver.dir.join("broken"), "").unwrap();
    driver.install(MEMORY);
    kube.has_event(
        "inline",
        "FailedMount",
        "mount command failed, status: Failure, reason: no memory left",
    );
    std::fs::remove_file(driver.dir.join("broken")).unwrap();
    kube.wait("pod/inline", "{.status.phase}", "Running");
    let options = kube.run(&["exec", "inline", "-c", "main", "--", "cat", "/mnt/options"]);
    for part in [
        "\"size\":\"small\"",
        "\"kubernetes.io/secret/password\":\"c2VjcmV0\"",
        "\"kubernetes.io/pod.name\":\"inline\"",
        "\"kubernetes.io/mounterArgs.FsGroup\":\"2000\"",
    ] {
        assert!(options.contains(part), "{options}");
    }
    let group = [
        "exec", "inline", "-c", "main", "--", "stat", "-c", "%g", "/mnt",
    ];
    assert_eq!(kube.run(&group), "2000\n");
    let mounted = driver.calls("mount").len();
    // a restarted agent leaves the pod alone
    kube.cluster.keep_port();
    kube.cluster.kill();
    kube.cluster.start_again();
    let read = ["exec", "inline", "-c", "main", "--", "cat", "/mnt/file"];
    assert_eq!(kube.run(&read), "x\n");
    kube.run(&["delete", "pod", "inline", "--timeout=60s"]);
    assert_eq!(driver.calls("mount").len(), mounted);
    assert_eq!(driver.calls("unmount").len(), 1);
    assert_eq!(kube.get("node/node-1", "{.status.volumesAttached}"), "");
    let commands = std::fs::read_to_string(driver.dir.join("calls")).unwrap();
    let other = |line: &&str| {
        let command = line.split(' ').next().unwrap_or_default();
        !["init", "mount", "unmount"].contains(&command)
    };
    assert_eq!(commands.lines().find(other), None);
}

const CLAIMED: &str = "apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: manual}
provisioner: kubernetes.io/no-provisioner
allowVolumeExpansion: true
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: pv}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {storage: 1Mi}
  storageClassName: manual
  persistentVolumeReclaimPolicy: Retain
  flexVolume: {driver: acme/disk, fsType: tmpfs}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: c}
spec: {storageClassName: manual, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: data, persistentVolumeClaim: {claimName: c}}]
  containers:
  - name: main
    image: davit.local/host
    command: [/bin/sh, -c, 'echo NAME >> /mnt/names; exec sleep 1000']
    volumeMounts: [{name: data, mountPath: /mnt}]
";

#[test]
fn items_099_101_and_108_a_driver_attaches_and_serves_claims() {
    let Some((mut kube, plugins)) = up() else {
        return;
    };
    let driver = Driver::new(plugins.path(), "disk");
    driver.install(DISK);
    for name in ["one", "two"] {
        kube.apply(&CLAIMED.replace("NAME", name));
        kube.wait(&format!("pod/{name}"), "{.status.phase}", "Running");
    }
    let attached = "{.status.volumesAttached[0].name} {.status.volumesAttached[0].devicePath}";
    kube.wait("node/node-1", attached, "acme/disk/pv /dev/disk-of-node-1");
    let used = "{.status.volumesInUse[0]}";
    kube.wait("node/node-1", used, "acme/disk/pv");
    assert_eq!(driver.calls("attach").len(), 1);
    let [mount] = &driver.calls("mountdevice")[..] else {
        panic!("{:?}", driver.calls("mountdevice"));
    };
    assert!(
        mount.contains(
            "/plugins/kubernetes.io/flexvolume/acme/disk/mounts/pv /dev/disk-of-node-1 {"
        )
    );
    assert!(!mount.contains("kubernetes.io/pod.name"));
    kube.has_event(
        "one",
        "SuccessfulAttachVolume",
        "AttachVolume.Attach succeeded for volume \"pv\"",
    );
    grown(&kube, &driver);
    kube.run(&["delete", "pod", "one", "--timeout=60s"]);
    let names = ["exec", "two", "--", "cat", "/mnt/names"];
    assert_eq!(kube.run(&names), "one\ntwo\n");
    assert!(driver.calls("unmountdevice").is_empty(), "still used");
    kube.cluster.keep_port();
    kube.cluster.kill();
    kube.cluster.start_again();
    kube.run(&["delete", "pod", "two", "--timeout=60s"]);
    kube.wait("node/node-1", "{.status.volumesAttached}", "");
    assert_eq!(
        driver.calls("attach").len(),
        1,
        "not again after the restart"
    );
    assert_eq!(driver.calls("unmountdevice").len(), 1);
    kube.eventually("detached", || {
        driver.calls("detach") == ["detach pv node-1"]
    });
}

/// A claim that asks for more: the driver grows the volume where the controllers run, then the node the file system.
fn grown(kube: &Kube, driver: &Driver) {
    let small = driver.dir.join("small");
    std::fs::write(&small, "").unwrap();
    let patch = r#"{"spec":{"resources":{"requests":{"storage":"2Mi"}}}}"#;
    kube.run(&["patch", "pvc", "c", "-p", patch]);
    kube.wait(
        "pvc/c",
        "{.status.allocatedResourceStatuses.storage}",
        "ControllerResizeInProgress",
    );
    kube.eventually("the failure is said", || {
        let said = kube.run(&[
            "get",
            "events",
            "--field-selector=reason=VolumeResizeFailed",
        ]);
        said.contains("no room")
    });
    assert_eq!(kube.get("pv/pv", "{.spec.capacity.storage}"), "1Mi");
    std::fs::remove_file(small).unwrap();
    kube.wait("pvc/c", "{.status.capacity.storage}", "2Mi");
    assert_eq!(kube.get("pv/pv", "{.spec.capacity.storage}"), "2Mi");
    assert_eq!(kube.get("pvc/c", "{.status.conditions}"), "");
    let sizes = " 2097152 1048576";
    let calls = driver.calls("expandvolume");
    let last = calls.last().unwrap();
    assert!(
        last.ends_with(&format!("}} acme/disk/mounts/pv{sizes}")),
        "{last}"
    );
    let calls = driver.calls("expandfs");
    let mounted = format!("/plugins/kubernetes.io/flexvolume/acme/disk/mounts/pv{sizes}");
    let told = |call: &String| call.contains("} /dev/disk-of-node-1 ") && call.ends_with(&mounted);
    assert!(calls.iter().any(told), "{calls:?}");
    let kept = "{.metadata.annotations.volume\\.alpha\\.kubernetes\\.io/pre-resize-capacity}";
    kube.wait("pv/pv", kept, "");
    let size = ["exec", "one", "--", "stat", "-fc", "%b %S", "/mnt"];
    let size = kube.run(&size);
    let numbers: Vec<u64> = size
        .split_whitespace()
        .map(|n| n.parse().unwrap())
        .collect();
    assert_eq!(numbers[0] * numbers[1], 2 << 20, "{size}");
}
