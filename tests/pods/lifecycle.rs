//! Restarts, init containers, probes, hooks, ends, and static pods.

use crate::pods::{Kube, NODE, pod};

pub(crate) fn scenario(kube: &Kube) {
    let host = kube.dir().join("ended");
    std::fs::create_dir_all(&host).unwrap();
    kube.create(
        &[
            failures(),
            probed(),
            init_order(),
            ending(&host.display().to_string()),
            leaving(),
        ]
        .concat(),
    );
    comes_late(kube);
    ends(kube);
    inits(kube);
    probes(kube);
    graceful_end(kube, &host);
    slow_end(kube);
    back_off(kube);
    static_pod(kube);
    came_late(kube);
}

/// A program that waits for a Secret by failing without it.
fn comes_late(kube: &Kube) {
    kube.wait_status("waits", "CrashLoopBackOff");
    kube.run(["create", "secret", "generic", "late", "--from-literal=key="]);
}

/// Its next start finds the Secret, long before volumes are brought up to date by themselves.
fn came_late(kube: &Kube) {
    kube.wait_phase("waits", "Succeeded");
    let restarts = kube.field("waits", ".status.containerStatuses[0].restartCount");
    assert!(restarts.parse::<u32>().unwrap() <= 3, "{restarts}");
}

fn failures() -> String {
    let once = "[ -e /work/ran ] && exit 0; touch /work/ran; exit 1";
    let fallback = "echo the disk is on fire; exit 2";
    [
        pod("crasher", "Always", "echo crash; exit 1", ""),
        pod("completes", "Never", "exit 0", ""),
        pod(
            "fails",
            "Never",
            "echo -n no disk >/dev/termination-log; exit 3",
            "",
        ),
        pod(
            "falls-back",
            "Never",
            fallback,
            "terminationMessagePolicy: FallbackToLogsOnError",
        ),
        pod(
            "recovers",
            "OnFailure",
            once,
            "volumeMounts: [{name: work, mountPath: /work}]",
        )
        .replace("---", "  volumes: [{name: work, emptyDir: {}}]\n---"),
        pod(
            "waits",
            "OnFailure",
            "[ -e /late/key ]",
            "volumeMounts: [{name: late, mountPath: /late}]",
        )
        .replace(
            "---",
            "  volumes: [{name: late, secret: {secretName: late, optional: true}}]\n---",
        ),
    ]
    .concat()
}

fn ends(kube: &Kube) {
    let row = kube.wait_status("completes", "Completed");
    assert_eq!(row[1], "0/1");
    kube.wait_phase("completes", "Succeeded");
    kube.wait_status("fails", "Error");
    kube.wait_phase("fails", "Failed");
    let terminated = ".status.containerStatuses[0].state.terminated";
    assert_eq!(
        kube.field("fails", &format!("{terminated}.message")),
        "no disk"
    );
    assert_eq!(kube.field("fails", &format!("{terminated}.exitCode")), "3");
    let described = kube.run(["describe", "pod", "fails"]);
    assert!(!described.contains("SandboxChanged"), "{described}");
    assert!(
        described.contains("Message:") && described.contains("no disk"),
        "{described}"
    );
    kube.wait_phase("falls-back", "Failed");
    assert_eq!(
        kube.field("falls-back", &format!("{terminated}.message")),
        "the disk is on fire\n"
    );
    kube.wait_phase("recovers", "Succeeded");
    assert_eq!(
        kube.field("recovers", ".status.containerStatuses[0].restartCount"),
        "1"
    );
    assert_eq!(kube.wait_status("recovers", "Completed")[1], "0/1");
}

fn back_off(kube: &Kube) {
    let row = kube.wait_status("crasher", "CrashLoopBackOff");
    assert!(row[3].parse::<u32>().unwrap() >= 1, "{row:?}");
    let waiting = kube.field(
        "crasher",
        ".status.containerStatuses[0].state.waiting.message",
    );
    assert!(
        waiting.starts_with("back-off ") && waiting.contains("restarting failed container=main"),
        "{waiting}"
    );
    let last = kube.field(
        "crasher",
        ".status.containerStatuses[0].lastState.terminated.reason",
    );
    assert_eq!(last, "Error");
    assert_eq!(kube.run(["logs", "crasher"]), "crash\n");
    let described = kube.run(["describe", "pod", "crasher"]);
    assert!(
        described.contains("BackOff") && described.contains("Back-off restarting failed container"),
        "{described}"
    );
}

fn init_order() -> String {
    "apiVersion: v1
kind: Pod
metadata: {name: ordered}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 5
  automountServiceAccountToken: false
  volumes: [{name: work, emptyDir: {}}]
  initContainers:
  - name: one
    image: davit.local/host
    command: [/bin/sh, -c, 'sleep 0.3; echo one >>/work/order']
    volumeMounts: [{name: work, mountPath: /work}]
  - name: side
    image: davit.local/host
    restartPolicy: Always
    command: [/bin/sh, -c, \"echo side >>/work/order; touch /work/up; trap 'echo side ends; exit 0' TERM; while :; do sleep 1000 & wait; done\"]
    startupProbe: {exec: {command: [test, -e, /work/up]}, periodSeconds: 1}
    volumeMounts: [{name: work, mountPath: /work}]
  - name: two
    image: davit.local/host
    command: [/bin/sh, -c, 'echo two >>/work/order']
    volumeMounts: [{name: work, mountPath: /work}]
  containers:
  - name: main
    image: davit.local/host
    command: [/bin/sh, -c, 'echo main >>/work/order; cat /work/order; sleep 1']
    volumeMounts: [{name: work, mountPath: /work}]
---
"
    .to_owned()
}

fn inits(kube: &Kube) {
    kube.wait_phase("ordered", "Succeeded");
    assert_eq!(
        kube.run(["logs", "ordered", "-c", "main"]),
        "one\nside\ntwo\nmain\n"
    );
    assert_eq!(kube.run(["logs", "ordered", "-c", "side"]), "side ends\n");
    let davit = |line: &str| {
        let mut command = std::process::Command::new(crate::harness::DAVIT);
        command.args(line.split(' '));
        command.env("KUBECONFIG", &kube.cluster.kubeconfig);
        crate::harness::run(&mut command)
    };
    assert_eq!(davit("logs ordered --tail 2"), "two\nmain\n");
    assert_eq!(davit("logs pod/ordered -c side -f"), "side ends\n");
    assert_eq!(kube.wait_status("ordered", "Completed")[1], "0/2");
    assert_eq!(
        kube.field(
            "ordered",
            ".status.initContainerStatuses[0].state.terminated.reason"
        ),
        "Completed"
    );
}

fn probed() -> String {
    let alive = "livenessProbe: {exec: {command: [test, '!', -e, /tmp/dead]}, periodSeconds: 1, failureThreshold: 1}";
    let ready = "readinessProbe: {exec: {command: [test, -e, /tmp/ready]}, periodSeconds: 1}";
    let stay = "trap 'exit 0' TERM; while :; do sleep 1000 & wait; done";
    [
        pod(
            "mortal",
            "Always",
            &format!("sleep 1; touch /tmp/dead; {stay}"),
            alive,
        ),
        pod("hesitant", "Always", stay, ready),
    ]
    .concat()
}

fn probes(kube: &Kube) {
    kube.wait_phase("hesitant", "Running");
    assert_eq!(kube.row("hesitant")[1], "0/1");
    kube.exec("hesitant", "touch /tmp/ready");
    kube.wait_ready("hesitant");
    assert_eq!(kube.row("hesitant")[1], "1/1");
    kube.exec("hesitant", "rm /tmp/ready");
    kube.run([
        "wait",
        "--for=condition=Ready=false",
        "pod/hesitant",
        "--timeout=60s",
    ]);
    kube.eventually("a restart by the liveness probe", || {
        kube.field("mortal", ".status.containerStatuses[0].restartCount")
            .parse::<u32>()
            .is_ok_and(|n| n >= 1)
    });
    kube.eventually("events of the probe", || {
        let described = kube.run(["describe", "pod", "mortal"]);
        described.contains("Liveness probe failed")
            && described.contains("failed liveness probe, will be restarted")
    });
}

fn ending(host: &str) -> String {
    let script = "trap 'echo term >>/host/said; exit 0' TERM; touch /host/up; while :; do sleep 1000 & wait; done";
    let more =
        "lifecycle: {preStop: {exec: {command: [/bin/sh, -c, 'sleep 0.5; echo pre >>/host/said']}}}
volumeMounts: [{name: host, mountPath: /host}]";
    pod("polite", "Always", script, more)
        .replace(
            "terminationGracePeriodSeconds: 1",
            "terminationGracePeriodSeconds: 20",
        )
        .replace(
            "---",
            &format!(
                "  volumes: [{{name: host, hostPath: {{path: {host}, type: Directory}}}}]\n---"
            ),
        )
}

fn graceful_end(kube: &Kube, host: &std::path::Path) {
    kube.eventually("the polite pod", || host.join("up").exists());
    let begun = std::time::Instant::now();
    kube.run(["delete", "pod", "polite", "--timeout=60s"]);
    assert_eq!(
        std::fs::read_to_string(host.join("said")).unwrap(),
        "pre\nterm\n"
    );
    assert!(
        begun.elapsed().as_secs() < 15,
        "a pod that ends by itself is not waited for: {:?}",
        begun.elapsed()
    );
    assert!(
        kube.try_run(["get", "pod", "polite"])
            .unwrap_err()
            .contains("NotFound")
    );
}

/// One container ends at once, the other one says that it is not ready any more and takes its time.
fn leaving() -> String {
    "apiVersion: v1
kind: Pod
metadata: {name: leaving}
spec:
  terminationGracePeriodSeconds: 300
  automountServiceAccountToken: false
  volumes: [{name: work, emptyDir: {}}]
  containers:
  - name: slow
    image: davit.local/host
    command: [/bin/sh, -c, \"touch /work/up; trap 'rm /work/up' TERM; while :; do sleep 1000 & wait; done\"]
    readinessProbe: {exec: {command: [test, -e, /work/up]}, periodSeconds: 1, failureThreshold: 1}
    volumeMounts: [{name: work, mountPath: /work}]
  - name: quick
    image: davit.local/host
    command: [/bin/sh, -c, \"trap 'echo done >/dev/termination-log; exit 0' TERM; while :; do sleep 1000 & wait; done\"]
---
"
    .to_owned()
}

fn slow_end(kube: &Kube) {
    let ready = || {
        let path = r#".status.conditions[?(@.type=="Ready")].status"#;
        kube.field("leaving", path)
    };
    kube.eventually("the leaving pod", || ready() == "True");
    kube.run(["delete", "pod", "leaving", "--wait=false"]);
    let of = |name: &str, path: &str| {
        let path = format!(r#".status.containerStatuses[?(@.name=="{name}")]{path}"#);
        kube.field("leaving", &path)
    };
    kube.eventually("what the pod says while it ends", || {
        ready() == "False"
            && of("quick", ".state.terminated.message") == "done\n"
            && of("slow", ".ready") == "false"
    });
    assert!(!of("slow", ".state.running").is_empty());
    kube.run([
        "delete",
        "pod",
        "leaving",
        "--grace-period=1",
        "--timeout=60s",
    ]);
}

fn static_pod(kube: &Kube) {
    let dir = kube.dir().join("root/etc/kubernetes/manifests");
    std::fs::create_dir_all(&dir).unwrap();
    let manifest = pod("fixed", "Always", "echo static; sleep 1000", "");
    std::fs::write(dir.join("fixed.yaml"), manifest.trim_end_matches("---\n")).unwrap();
    let mirror = format!("fixed-{NODE}");
    kube.wait_phase(&mirror, "Running");
    let source = kube.field(
        &mirror,
        r".metadata.annotations.kubernetes\.io/config\.source",
    );
    assert_eq!(source, "file");
    kube.eventually("the static pod's log", || {
        kube.try_run(["logs", &mirror])
            .is_ok_and(|l| l == "static\n")
    });
    assert_eq!(kube.exec(&mirror, "echo in it"), "in it\n");
    // Deleting the mirror does not delete the pod.
    let uid = kube.field(&mirror, ".metadata.uid");
    kube.run(["delete", "pod", &mirror, "--timeout=60s"]);
    kube.eventually("a new mirror pod", || {
        ![String::new(), uid.clone()].contains(&kube.field(&mirror, ".metadata.uid"))
    });
    kube.wait_phase(&mirror, "Running");
    assert_eq!(
        kube.field(&mirror, ".status.containerStatuses[0].restartCount"),
        "0"
    );
    std::fs::remove_file(dir.join("fixed.yaml")).unwrap();
    kube.eventually("no mirror pod", || {
        kube.try_run(["get", "pod", &mirror]).is_err()
    });
}
