//! What administrators do to nodes and pods with kubectl. The numbers are those of the API machinery checklist.

use crate::pods::{Kube, NODE, pod};

const STAY: &str = "trap 'exit 0' TERM; while :; do sleep 1000 & wait; done";

pub(crate) fn scenario(kube: &Kube) {
    items_087_088_changed_and_replaced(kube);
    item_113_deleted_and_made_again(kube);
    item_126_debugged(kube);
    item_119_drained(kube);
}

fn items_087_088_changed_and_replaced(kube: &Kube) {
    let file = kube.dir().join("pod.yaml");
    let (before, after) = (
        pod("kept", "Always", STAY, ""),
        pod("kept", "Always", STAY, "workingDir: /tmp"),
    );
    std::fs::write(&file, &before).unwrap();
    let file = file.to_str().unwrap();
    kube.run(["create", "--save-config", "-f", file]);
    // The configuration was saved: apply finds nothing to do.
    assert!(kube.run(["apply", "-f", file]).contains("unchanged"));
    let client_side: &[&str] = &["diff", "-f", file];
    let server_side: &[&str] = &["diff", "--server-side", "--force-conflicts", "-f", file];
    // Applied by the server, the annotation about the last configuration would change its form.
    kube.run(client_side);
    std::fs::write(
        file,
        before.replace("{name: kept}", "{name: kept, labels: {is: new}}"),
    )
    .unwrap();
    for diff in [client_side, server_side] {
        let out = kube.pipe(diff, b"");
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        assert_eq!(out.status.code(), Some(1), "{said}");
        assert!(
            said.lines()
                .any(|l| l.starts_with('+') && l.contains("is: new")),
            "{said}"
        );
    }
    assert_eq!(
        kube.field("kept", ".metadata.labels.is"),
        "",
        "a diff changes nothing"
    );
    let uid = kube.field("kept", ".metadata.uid");
    std::fs::write(file, after).unwrap();
    let refused = kube.try_run(["replace", "-f", file]).unwrap_err();
    assert!(
        refused.contains("pod updates may not change fields"),
        "{refused}"
    );
    kube.run(["replace", "--force", "--grace-period=1", "-f", file]);
    kube.wait_ready("kept");
    assert_ne!(kube.field("kept", ".metadata.uid"), uid);
    assert_eq!(kube.exec("kept", "pwd").trim(), "/tmp");
}

/// `kubectl delete` waits for the object that it deleted, not for the name.
fn item_113_deleted_and_made_again(kube: &Kube) {
    kube.create(&pod("again", "Never", STAY, ""));
    kube.wait_ready("again");
    let uid = kube.field("again", ".metadata.uid");
    let deletion = kube.spawn(&[
        "delete",
        "pod",
        "again",
        "--grace-period=1",
        "--timeout=60s",
    ]);
    kube.eventually("the name is free", || {
        kube.field("again", ".metadata.uid") != uid
    });
    kube.create(&pod("again", "Never", STAY, ""));
    let out = deletion.wait_with_output().unwrap();
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    kube.wait_ready("again");
    kube.run(["delete", "pod", "again", "--grace-period=1"]);
}

fn item_126_debugged(kube: &Kube) {
    let image = "--image=davit.local/host";
    kube.run([
        "debug",
        "kept",
        image,
        "-c",
        "looker",
        "--attach=false",
        "--",
        "/bin/sh",
        "-c",
        "echo seen; sleep 1000",
    ]);
    kube.eventually("the ephemeral container's word", || {
        kube.try_run(["logs", "kept", "-c", "looker"])
            .is_ok_and(|l| l == "seen\n")
    });
    let running = ".status.ephemeralContainerStatuses[0].state.running.startedAt";
    assert!(!kube.field("kept", running).is_empty());
    let node = format!("node/{NODE}");
    let said = kube.run([
        "debug",
        &node,
        image,
        "--attach=false",
        "--",
        "ls",
        "/host/etc/hostname",
    ]);
    let name = said
        .split_whitespace()
        .find(|w| w.starts_with("node-debugger-"))
        .map(str::to_owned);
    let name = name.unwrap_or_else(|| panic!("{said}"));
    kube.wait_phase(&name, "Succeeded");
    assert_eq!(kube.run(["logs", &name]), "/host/etc/hostname\n");
}

/// A budget that allows nothing holds the drain up until it does.
fn item_119_drained(kube: &Kube) {
    kube.clean_up();
    let template = "spec:
  replicas: 2
  selector: {matchLabels: {app: kept}}
  template:
    metadata: {labels: {app: kept}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: main, image: davit.local/host, command: [sleep, '1000']}]
";
    kube.create(&format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: kept}}\n{template}---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {{name: kept}}
spec: {{minAvailable: 2, selector: {{matchLabels: {{app: kept}}}}}}
"
    ));
    kube.run(["rollout", "status", "deployment/kept", "--timeout=60s"]);
    kube.eventually("the budget is counted", || {
        let path = "jsonpath={.status.currentHealthy}";
        kube.try_run(["get", "pdb", "kept", "-o", path])
            .is_ok_and(|n| n == "2")
    });
    let stuck = kube.try_run(["drain", NODE, "--timeout=3s"]).unwrap_err();
    assert!(
        stuck.contains("would violate the pod's disruption budget"),
        "{stuck}"
    );
    assert!(
        kube.run(["get", "node", NODE])
            .contains("SchedulingDisabled")
    );
    let mut drain = kube.spawn(&["drain", NODE, "--timeout=60s"]);
    kube.run(["delete", "pdb", "kept"]);
    let status = drain.wait().unwrap();
    assert!(status.success());
    kube.eventually("the new pods wait", || {
        let table = kube
            .try_run(["get", "pods", "--no-headers"])
            .unwrap_or_default();
        table.lines().count() == 2 && table.lines().all(|l| l.contains("Pending"))
    });
    kube.run(["uncordon", NODE]);
    kube.run(["rollout", "status", "deployment/kept", "--timeout=60s"]);
    kube.run(["delete", "deployment", "kept"]);
}
