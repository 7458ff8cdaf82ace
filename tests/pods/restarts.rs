//! Restart rules of containers (KEP-5307, KEP-5532) in pods that would otherwise end.

use crate::pods::Kube;

/// In the first pod an init container, a sidecar and two containers; `source` ends with 42 once. In the second a
/// container that its own rule starts again.
const PODS: &str = r#"apiVersion: v1
kind: Pod
metadata: {name: together}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  volumes: [{name: work, emptyDir: {}}]
  initContainers:
  - name: init
    image: davit.local/host
    command: [/bin/sh, -c, "echo once more >> /mnt/inits"]
    volumeMounts: [{name: work, mountPath: /mnt}]
  - name: side
    image: davit.local/host
    command: [/bin/sh, -c, "exec sleep 1000"]
    restartPolicy: Always
  containers:
  - name: source
    image: davit.local/host
    command: [/bin/sh, -c, "if [ -f /mnt/done ]; then exec sleep 1000; fi; sleep 2; touch /mnt/done; exit 42"]
    volumeMounts: [{name: work, mountPath: /mnt}]
    restartPolicy: Never
    restartPolicyRules:
    - action: RestartAllContainers
      exitCodes: {operator: In, values: [42]}
  - name: other
    image: davit.local/host
    command: [/bin/sh, -c, "exec sleep 1000"]
---
apiVersion: v1
kind: Pod
metadata: {name: alone}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  volumes: [{name: work, emptyDir: {}}]
  containers:
  - name: main
    image: davit.local/host
    command: [/bin/sh, -c, "if [ -f /mnt/done ]; then exit 3; fi; touch /mnt/done; exit 42"]
    volumeMounts: [{name: work, mountPath: /mnt}]
    restartPolicy: Never
    restartPolicyRules:
    - action: Restart
      exitCodes: {operator: In, values: [42]}
---
"#;

pub(crate) fn scenario() {
    let Some(kube) = Kube::up("1.36", &[]) else {
        return;
    };
    kube.create(PODS);
    let field = |of: &str| kube.field("together", of);
    let counts = || {
        field(".status.initContainerStatuses[*].restartCount")
            + " "
            + &field(".status.containerStatuses[*].restartCount")
    };
    kube.eventually("all containers run for the second time", || {
        counts() == "1 1 1 1"
            && field(".status.containerStatuses[*].state.running")
                .matches("startedAt")
                .count()
                == 2
    });
    assert_eq!(field(".status.phase"), "Running");
    let last = |list: &str| field(&format!(".status.{list}[*].lastState.terminated.exitCode"));
    assert_eq!(last("initContainerStatuses"), "0 137");
    assert_eq!(last("containerStatuses"), "42 137");
    let condition = ".status.conditions[?(@.type=='AllContainersRestarting')].status";
    assert_eq!(field(condition), "False");
    let inits = kube.run([
        "exec",
        "together",
        "-c",
        "source",
        "--",
        "cat",
        "/mnt/inits",
    ]);
    assert_eq!(inits, "once more\nonce more\n", "the volume is the same");

    kube.eventually("the other pod has failed at last", || {
        kube.field("alone", ".status.phase") == "Failed"
    });
    let ended = ".status.containerStatuses[0].restartCount";
    assert_eq!(kube.field("alone", ended), "1");
    kube.clean_up();
}
