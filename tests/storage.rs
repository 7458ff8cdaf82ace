//! Claims and volumes with real containers: the class that a cluster begins with, volumes of administrators and of CSI
//! drivers.

mod block;
mod csi;
mod faults;
mod flex;
mod limits;

use crate::harness;
use harness::{Cluster, any_kubectl, kubectl_stdin, root};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a step may take on a busy machine.
const STEP: Duration = Duration::from_secs(60);

struct Kube {
    cluster: Cluster,
    binary: PathBuf,
}

impl Kube {
    fn up(args: &[&str]) -> Option<Self> {
        root()?;
        let binary = any_kubectl()?;
        let args = [&["--node-name", "node-1", "--allow-host-image"], args].concat();
        let cluster = Cluster::up(&args);
        let kube = Self { cluster, binary };
        kube.eventually("the default service account", || {
            kube.get("serviceaccount/default", "{.metadata.name}") == "default"
        });
        Some(kube)
    }

    fn apply(&self, manifest: &str) {
        kubectl_stdin(&self.cluster, &self.binary, &["apply", "-f", "-"], manifest);
    }

    fn try_run(&self, args: &[&str]) -> Result<String, String> {
        let out = harness::output(self.cluster.kubectl(&self.binary).args(args));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if out.status.success() {
            Ok(text(&out.stdout))
        } else {
            Err(text(&out.stderr))
        }
    }

    fn run(&self, args: &[&str]) -> String {
        self.try_run(args)
            .unwrap_or_else(|error| panic!("{args:?}: {error}"))
    }

    /// A field of an object, empty when it is not there.
    fn get(&self, object: &str, path: &str) -> String {
        let path = format!("jsonpath={path}");
        self.try_run(&["get", object, "-o", &path])
            .unwrap_or_default()
    }

    fn eventually(&self, what: &str, holds: impl FnMut() -> bool) {
        self.within(STEP, what, holds);
    }

    fn within(&self, limit: Duration, what: &str, holds: impl FnMut() -> bool) {
        let mut holds = holds;
        let end = std::time::Instant::now() + limit;
        while !holds() {
            if std::time::Instant::now() >= end {
                let state = ["pods", "pvc", "pv", "events"].map(|kind| {
                    self.try_run(&["get", kind, "-o", "wide"])
                        .unwrap_or_else(|e| e)
                });
                panic!("not within {limit:?}: {what}\n{}", state.join("\n"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn wait(&self, object: &str, path: &str, value: &str) {
        self.eventually(&format!("{object}: {path} is {value:?}"), || {
            self.get(object, path) == value
        });
    }

    /// Runs a pod to its end and returns what it printed.
    fn say(&self, name: &str, claim: &str, script: &str) -> String {
        self.apply(&pod(name, claim, script));
        self.wait(&format!("pod/{name}"), "{.status.phase}", "Succeeded");
        let said = self.run(&["logs", name]);
        self.run(&["delete", "pod", name, "--timeout=60s"]);
        said.trim().to_owned()
    }

    fn gone(&self, object: &str) {
        self.eventually(&format!("{object} gone"), || {
            let found = self.try_run(&["get", object]);
            found.is_err_and(|error| error.contains("NotFound"))
        });
    }

    fn has_event(&self, object: &str, reason: &str, text: &str) {
        self.eventually(&format!("event {reason} of {object} with {text:?}"), || {
            let fields = format!("involvedObject.name={object},reason={reason}");
            let path = "jsonpath={.items[*].message}";
            let events = self.try_run(&[
                "get",
                "events",
                "-A",
                "--field-selector",
                &fields,
                "-o",
                path,
            ]);
            events.unwrap_or_default().contains(text)
        });
    }

    fn dir(&self) -> &Path {
        self.cluster.dir.path()
    }

    fn volumes(&self) -> PathBuf {
        self.dir().join("data/volumes")
    }
}

fn pod(name: &str, claim: &str, script: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  volumes: [{{name: data, persistentVolumeClaim: {{claimName: {claim}}}}}]
  containers:
  - name: main
    image: davit.local/host
    command: [/bin/sh, -c, '{script}']
    volumeMounts: [{{name: data, mountPath: /mnt}}]
"
    )
}

fn claim(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}}}
spec: {{{spec}}}
"
    )
}

const SMALL: &str = "accessModes: [ReadWriteOnce], resources: {requests: {storage: 10Mi}}";

#[test]
fn items_121_to_129_a_claim_needs_nothing_but_itself() {
    let Some(mut kube) = Kube::up(&[]) else {
        return;
    };
    let before = std::time::Instant::now();
    kube.apply(&claim("data", SMALL));
    assert_eq!(
        kube.say("writer", "data", "echo rows > /mnt/table; echo done"),
        "done"
    );
    println!("claim, pod, its end: {:?}", before.elapsed());
    assert_eq!(kube.get("pvc/data", "{.spec.storageClassName}"), "standard");
    assert_eq!(kube.get("pvc/data", "{.status.capacity.storage}"), "10Mi");
    let volume = kube.get("pvc/data", "{.spec.volumeName}");
    let object = format!("pv/{volume}");
    assert_eq!(kube.get(&object, "{.status.phase}"), "Bound");
    assert_eq!(
        kube.get(
            &object,
            "{.metadata.annotations.pv\\.kubernetes\\.io/provisioned-by}"
        ),
        "local.davit.dev"
    );
    let table = kube.volumes().join(&volume).join("data/table");
    assert_eq!(std::fs::read_to_string(&table).unwrap(), "rows\n");

    // what a power cut leaves is there again
    kube.apply(&pod("runner", "data", "cat /mnt/table; exec sleep 1000"));
    kube.wait("pod/runner", "{.status.phase}", "Running");
    kube.cluster.keep_port();
    kube.cluster.kill();
    kube.cluster.start_again();
    assert_eq!(
        kube.run(&["exec", "runner", "--", "cat", "/mnt/table"]),
        "rows\n"
    );
    // the claim stays as long as it is used
    kube.run(&["delete", "pvc", "data", "--wait=false"]);
    assert_ne!(kube.get("pvc/data", "{.metadata.deletionTimestamp}"), "");
    assert!(table.exists());
    kube.apply(&pod("late", "data", "true"));
    kube.has_event(
        "late",
        "FailedScheduling",
        "persistentvolumeclaim \"data\" is being deleted",
    );
    kube.run(&["delete", "pod", "runner", "late", "--timeout=60s"]);
    kube.gone("pvc/data");
    kube.gone(&object);
    kube.eventually("the data is gone", || !table.exists());
    let left = std::fs::read_dir(kube.volumes().join(".trash")).unwrap();
    assert_eq!(left.count(), 0);
}

#[test]
fn items_021_124_and_128_sizes_and_what_the_class_cannot_do() {
    let Some(kube) = Kube::up(&[]) else { return };
    kube.apply(&claim(
        "huge",
        "accessModes: [ReadWriteOnce], resources: {requests: {storage: 900Ti}}",
    ));
    kube.apply(&pod("waits", "huge", "true"));
    kube.has_event(
        "waits",
        "FailedScheduling",
        "node(s) did not have enough free storage",
    );
    kube.has_event(
        "huge",
        "WaitForPodScheduled",
        "waiting for pod waits to be scheduled",
    );
    kube.apply(&claim(
        "many",
        "accessModes: [ReadWriteMany], resources: {requests: {storage: 1Mi}}",
    ));
    kube.has_event(
        "many",
        "ProvisioningFailed",
        "access mode ReadWriteMany is not supported",
    );

    kube.apply(&claim("data", SMALL));
    assert_eq!(
        kube.say("first", "data", "echo 1 > /mnt/n; cat /mnt/n"),
        "1"
    );
    kube.apply(&claim(
        "data",
        "accessModes: [ReadWriteOnce], resources: {requests: {storage: 20Mi}}",
    ));
    kube.wait("pvc/data", "{.status.capacity.storage}", "20Mi");
    let shrink = claim(
        "data",
        "accessModes: [ReadWriteOnce], resources: {requests: {storage: 15Mi}}",
    );
    let out = harness::output(
        kube.cluster
            .kubectl(&kube.binary)
            .args(["patch", "pvc", "data", "-p"])
            .arg(r#"{"spec":{"resources":{"requests":{"storage":"15Mi"}}}}"#),
    );
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(
        !out.status.success() && said.contains("less than status.capacity"),
        "{shrink} {said}"
    );
    // a claim begins as a copy of another
    let copy = |size: &str| {
        format!(
            "accessModes: [ReadWriteOnce], resources: {{requests: {{storage: {size}}}}}, dataSource: {{kind: PersistentVolumeClaim, name: data}}"
        )
    };
    kube.apply(&claim("small", &copy("10Mi")));
    kube.apply(&pod("small", "small", "true"));
    kube.has_event(
        "small",
        "ProvisioningFailed",
        "requested 10485760 but source is 20971520",
    );
    kube.apply(&claim("copy", &copy("20Mi")));
    let script = "cat /mnt/n; echo 2 > /mnt/n";
    assert_eq!(kube.say("second", "copy", script), "1");
    assert_eq!(kube.say("third", "data", "cat /mnt/n"), "1");
    // an administrator's word about the class stands
    kube.run(&["delete", "storageclass", "standard"]);
    kube.apply(&claim("classless", SMALL));
    kube.has_event(
        "classless",
        "FailedBinding",
        "no persistent volumes available for this claim and no storage class is set",
    );
}

const STATIC: &str = "apiVersion: v1
kind: PersistentVolume
metadata: {name: NAME}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: by-hand
  persistentVolumeReclaimPolicy: Retain
  mountOptions: [noexec]
  local: {path: PATH}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [
    {key: kubernetes.io/hostname, operator: In, values: [node-1]}]}]}}
";

const SHARED: &str = "apiVersion: v1
kind: Pod
metadata: {name: shared}
spec:
  restartPolicy: Never
  securityContext: {fsGroup: 2000, runAsUser: 1000}
  volumes:
  - {name: data, persistentVolumeClaim: {claimName: kept}}
  - {name: look, persistentVolumeClaim: {claimName: kept, readOnly: true}}
  containers:
  - name: main
    image: davit.local/host
    command: [/bin/sh, -c, 'set -e; echo mine > /mnt/new; id -G; stat -c %g /mnt/old /mnt/new; cat /sub/deep; ! echo x > /look/no']
    volumeMounts:
    - {name: data, mountPath: /mnt}
    - {name: data, mountPath: /sub, subPath: below}
    - {name: look, mountPath: /look}
";

#[test]
fn items_001_009_and_058_volumes_of_administrators_are_bound_and_kept() {
    let Some(kube) = Kube::up(&["--default-storage-class", "none"]) else {
        return;
    };
    let data = kube.dir().join("by-hand");
    std::fs::create_dir_all(data.join("below")).unwrap();
    std::fs::write(data.join("old"), "old").unwrap();
    std::fs::write(data.join("below/deep"), "deep\n").unwrap();
    let volume = STATIC
        .replace("NAME", "kept")
        .replace("PATH", &data.display().to_string());
    kube.apply(&volume);
    kube.wait("pv/kept", "{.status.phase}", "Available");
    kube.apply(&claim(
        "kept",
        &format!("{SMALL}, storageClassName: by-hand"),
    ));
    kube.wait("pvc/kept", "{.status.phase}", "Bound");
    assert_eq!(kube.get("pv/kept", "{.spec.claimRef.name}"), "kept");
    kube.apply(SHARED);
    kube.wait("pod/shared", "{.status.phase}", "Succeeded");
    let said = kube.run(&["logs", "shared"]);
    let mut lines = said.lines();
    assert!(
        lines
            .next()
            .unwrap()
            .split(' ')
            .any(|group| group == "2000"),
        "{said}"
    );
    assert_eq!(
        lines.collect::<Vec<_>>()[..3],
        ["2000", "2000", "deep"],
        "{said}"
    );
    kube.run(&["delete", "pod", "shared"]);
    kube.run(&["delete", "pvc", "kept"]);
    kube.wait("pv/kept", "{.status.phase}", "Released");
    assert_eq!(std::fs::read_to_string(data.join("new")).unwrap(), "mine\n");
    // the same claim made again does not get what was another's
    kube.apply(&claim(
        "kept",
        &format!("{SMALL}, storageClassName: by-hand"),
    ));
    kube.has_event(
        "kept",
        "ProvisioningFailed",
        "storageclass.storage.k8s.io \"by-hand\" not found",
    );
    assert_eq!(kube.get("pvc/kept", "{.status.phase}"), "Pending");
}

const SET: &str = "apiVersion: v1
kind: Service
metadata: {name: set}
spec: {clusterIP: None, selector: {app: set}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: set}
spec:
  serviceName: set
  replicas: 2
  selector: {matchLabels: {app: set}}
  template:
    metadata: {labels: {app: set}}
    spec:
      terminationGracePeriodSeconds: 1
      volumes:
      - name: scratch
        ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOncePod], resources: {requests: {storage: 1Mi}}}}}
      containers:
      - name: main
        image: davit.local/host
        command: [/bin/sh, -c, 'echo $HOSTNAME >> /mnt/starts; exec sleep 1000']
        volumeMounts: [{name: data, mountPath: /mnt}, {name: scratch, mountPath: /scratch}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
";

#[test]
fn items_089_and_129_stateful_sets_keep_their_data() {
    let Some(kube) = Kube::up(&[]) else { return };
    kube.apply(SET);
    kube.wait("statefulset/set", "{.status.readyReplicas}", "2");
    let volume = kube.get("pvc/data-set-0", "{.spec.volumeName}");
    assert_ne!(volume, kube.get("pvc/data-set-1", "{.spec.volumeName}"));
    let scratch = kube.get("pvc/set-0-scratch", "{.metadata.uid}");
    assert_ne!(scratch, "");
    let uid = kube.get("pod/set-0", "{.metadata.uid}");
    kube.run(&["delete", "pod", "set-0"]);
    kube.eventually("another set-0 runs", || {
        let now = kube.get("pod/set-0", "{.metadata.uid}");
        !now.is_empty() && now != uid && kube.get("pod/set-0", "{.status.phase}") == "Running"
    });
    kube.eventually("it has written", || {
        kube.try_run(&["exec", "set-0", "--", "cat", "/mnt/starts"])
            .is_ok_and(|text| text == "set-0\nset-0\n")
    });
    assert_eq!(kube.get("pvc/data-set-0", "{.spec.volumeName}"), volume);
    // what was made for the pod went with it
    assert_ne!(kube.get("pvc/set-0-scratch", "{.metadata.uid}"), scratch);
    kube.run(&["delete", "statefulset", "set"]);
    kube.gone("pod/set-0");
    kube.gone("pvc/set-0-scratch");
    assert_eq!(kube.get("pvc/data-set-0", "{.status.phase}"), "Bound");
    kube.run(&["delete", "pvc", "--all", "--timeout=60s"]);
    kube.eventually("no volume is left", || {
        kube.run(&["get", "pv", "-o", "name"]).is_empty()
    });
}
