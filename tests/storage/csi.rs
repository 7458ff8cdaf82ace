//! Volumes of a CSI driver written in Go, provisioned and attached by the sidecars of the field where they are there.

use super::Kube;
use crate::harness::{part, tests_dir};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// A program of others, killed with the test.
pub(crate) struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let path = tests_dir().join(".cache").join(name);
    part(name, path.is_file().then_some(path))
}

fn start(kube: &Kube, program: &PathBuf, args: &[String]) -> Program {
    let log = kube
        .dir()
        .join(program.file_name().unwrap())
        .with_extension("log");
    let log = std::fs::File::create(log).unwrap();
    let child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn();
    Program(child.unwrap())
}

fn driver(kube: &Kube, program: &PathBuf) -> Program {
    driver_with(kube, program, &["--attach", "--stage"])
}

pub(crate) fn driver_with(kube: &Kube, program: &PathBuf, switches: &[&str]) -> Program {
    let dir = kube.dir().display();
    let args = [
        format!("--endpoint={dir}/csi.sock"),
        "--node-id=n1".to_owned(),
        format!("--data-dir={dir}/csi"),
        format!("--registration-socket={dir}/root/var/lib/kubelet/plugins_registry/dir-reg.sock"),
        format!("--record={dir}/calls.jsonl"),
    ];
    let switches = switches.iter().map(|switch| (*switch).to_owned());
    let args: Vec<String> = args.into_iter().chain(switches).collect();
    start(kube, program, &args)
}

/// How often the driver was called.
pub(crate) fn calls(kube: &Kube, name: &str) -> usize {
    let text = std::fs::read_to_string(kube.dir().join("calls.jsonl")).unwrap_or_default();
    text.lines()
        .filter(|line| line.contains(&format!("\"call\":\"{name}\"")))
        .count()
}

const DRIVER: &str = "apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: dir.peers.davit.dev}
spec: {attachRequired: true, podInfoOnMount: true, volumeLifecycleModes: [Persistent, Ephemeral], fsGroupPolicy: File}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: dir}
provisioner: dir.peers.davit.dev
";

const INLINE: &str = "apiVersion: v1
kind: Pod
metadata: {name: inline}
spec:
  terminationGracePeriodSeconds: 1
  securityContext: {fsGroup: 2000}
  volumes: [{name: own, csi: {driver: dir.peers.davit.dev}}]
  containers:
  - name: main
    image: davit.local/host
    command: [/bin/sh, -c, 'echo x > /mnt/file; exec sleep 1000']
    volumeMounts: [{name: own, mountPath: /mnt}]
";

#[test]
fn items_071_075_079_and_088_a_driver_registers_and_serves_pods() {
    let Some(binary) = program("csi-driver") else {
        return;
    };
    let Some(mut kube) = Kube::up(&[]) else {
        return;
    };
    kube.apply(DRIVER);
    kube.wait(
        "csinode/node-1",
        "{.metadata.ownerReferences[0].kind}",
        "Node",
    );
    kube.apply(INLINE);
    kube.has_event(
        "inline",
        "FailedMount",
        "driver name dir.peers.davit.dev not found in the list of registered CSI drivers",
    );
    let running = driver(&kube, &binary);
    kube.wait("csinode/node-1", "{.spec.drivers[0].nodeID}", "n1");
    kube.wait("pod/inline", "{.status.phase}", "Running");
    let stat = ["exec", "inline", "--", "stat", "-c", "%g", "/mnt/file"];
    kube.eventually("the file is the group's", || {
        kube.try_run(&stat).is_ok_and(|said| said == "2000\n")
    });
    let text = std::fs::read_to_string(kube.dir().join("calls.jsonl")).unwrap();
    let publish = text
        .lines()
        .find(|line| line.contains("NodePublishVolume"))
        .unwrap();
    for part in [
        "\"csi.storage.k8s.io/pod.name\":\"inline\"",
        "\"csi.storage.k8s.io/ephemeral\":\"true\"",
    ] {
        assert!(publish.contains(part), "{publish}");
    }
    // a restarted agent finds the driver and leaves the pod alone
    kube.cluster.keep_port();
    kube.cluster.kill();
    kube.cluster.start_again();
    assert_eq!(
        kube.run(&["exec", "inline", "--", "cat", "/mnt/file"]),
        "x\n"
    );
    kube.wait("csinode/node-1", "{.spec.drivers[0].nodeID}", "n1");
    // without its driver the volume cannot be undone, and the pod waits
    drop(running);
    std::fs::remove_file(
        kube.dir()
            .join("root/var/lib/kubelet/plugins_registry/dir-reg.sock"),
    )
    .unwrap();
    kube.wait("csinode/node-1", "{.spec.drivers[*].name}", "");
    kube.run(&["delete", "pod", "inline", "--wait=false"]);
    kube.has_event(
        "inline",
        "FailedUnMount",
        "not found in the list of registered CSI drivers",
    );
    assert_ne!(kube.get("pod/inline", "{.metadata.name}"), "");
    let _running = driver(&kube, &binary);
    kube.gone("pod/inline");
    assert_eq!(calls(&kube, "NodeStageVolume"), 0);
    assert!(calls(&kube, "NodeUnpublishVolume") >= 1);
}

const CLAIMED: &str = "apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: c}
spec: {storageClassName: dir, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
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
fn items_035_036_048_053_and_092_sidecars_provision_and_attach() {
    let parts = ["csi-driver", "csi-provisioner", "csi-attacher"].map(program);
    let [Some(binary), Some(provisioner), Some(attacher)] = parts else {
        return;
    };
    let Some(mut kube) = Kube::up(&[]) else {
        return;
    };
    let _running = driver(&kube, &binary);
    let args = [
        format!("--csi-address={}/csi.sock", kube.dir().display()),
        format!("--kubeconfig={}", kube.cluster.kubeconfig.display()),
    ];
    kube.cluster.keep_port();
    let _sidecars = [&provisioner, &attacher].map(|sidecar| start(&kube, sidecar, &args));
    kube.apply(DRIVER);
    for name in ["one", "two"] {
        kube.apply(&CLAIMED.replace("NAME", name));
        kube.wait(&format!("pod/{name}"), "{.status.phase}", "Running");
    }
    kube.wait("node/node-1", "{.status.volumesAttached[0].devicePath}", "");
    assert!(
        kube.get("node/node-1", "{.status.volumesInUse[0]}")
            .starts_with("kubernetes.io/csi/dir.peers.davit.dev^")
    );
    assert_eq!(calls(&kube, "NodeStageVolume"), 1, "staged once for both");
    assert_eq!(calls(&kube, "NodePublishVolume"), 2);
    kube.run(&["delete", "pod", "one", "--timeout=60s"]);
    assert_eq!(
        kube.run(&["exec", "two", "--", "cat", "/mnt/names"]),
        "one\ntwo\n"
    );
    assert_eq!(calls(&kube, "NodeUnstageVolume"), 0, "still used");
    // the pod goes while the agent is down
    kube.cluster.kill();
    kube.cluster.start_again();
    kube.run(&["delete", "pod", "two", "--timeout=60s"]);
    kube.eventually("unstaged", || calls(&kube, "NodeUnstageVolume") == 1);
    kube.run(&["delete", "pvc", "c", "--timeout=60s"]);
    kube.eventually("nothing is left", || {
        kube.run(&["get", "pv,volumeattachments", "-o", "name"])
            .is_empty()
    });
    assert!(calls(&kube, "DeleteVolume") >= 1);
}
