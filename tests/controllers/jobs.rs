//! Jobs: whose pods are theirs, and how they end.

use super::{SOON, names, value};
use crate::harness::{Cluster, any_kubectl, eventually, kubectl, kubectl_stdin};
use std::path::Path;

/// A job whose pods nobody runs, with more fields in its spec.
fn job(name: &str, fields: &str) -> String {
    format!(
        "apiVersion: batch/v1
kind: Job
metadata: {{name: {name}}}
spec:
{fields}
  template:
    spec: {{restartPolicy: Never, containers: [{{name: c, image: i}}]}}
"
    )
}

/// The pods of a job, in the order of their names.
fn pods_of(cluster: &Cluster, k: &Path, job: &str) -> Vec<String> {
    let selector = format!("batch.kubernetes.io/job-name={job}");
    names(cluster, k, &["pods", "-l", &selector])
}

/// Plays the node: the pod has ended.
pub(super) fn end(cluster: &Cluster, k: &Path, pod: &str, exit_code: i32) {
    let phase = if exit_code == 0 {
        "Succeeded"
    } else {
        "Failed"
    };
    let status = format!(
        r#"{{"status":{{"phase":"{phase}","containerStatuses":[{{"name":"c","ready":false,"restartCount":0,"image":"i","imageID":"i","state":{{"terminated":{{"exitCode":{exit_code},"finishedAt":"2026-01-01T00:00:00Z"}}}}}}]}}}}"#
    );
    let pod = format!("pod/{pod}");
    let args = [
        "patch",
        &pod,
        "--subresource=status",
        "--type=merge",
        "-p",
        &status,
    ];
    kubectl(cluster, k, args);
}

fn condition(cluster: &Cluster, k: &Path, job: &str, type_: &str) -> String {
    let path = format!(".status.conditions[?(@.type==\"{type_}\")].reason");
    value(cluster, k, &format!("job/{job}"), &path)
}

/// A pod without an owner that a job selects becomes the job's; one that it does not select any more is let go, and
/// nothing of the job's holds it.
#[test]
fn jobs_adopt_and_let_go_of_pods() {
    let Some(k) = any_kubectl() else { return };
    let cluster = Cluster::up(&["--no-node"]);
    let manifest = "apiVersion: batch/v1
kind: Job
metadata: {name: j}
spec:
  parallelism: 1
  template:
    spec: {restartPolicy: Never, containers: [{name: c, image: i}]}
";
    kubectl_stdin(&cluster, &k, &["apply", "-f", "-"], manifest);
    eventually("a pod", SOON, || names(&cluster, &k, &["pods"]).len() == 1);
    let pod = format!("pod/{}", names(&cluster, &k, &["pods"])[0]);
    let owner = || value(&cluster, &k, &pod, ".metadata.ownerReferences[*].name");
    assert_eq!(owner(), "j");
    let orphan = r#"[{"op":"remove","path":"/metadata/ownerReferences"}]"#;
    kubectl(&cluster, &k, ["patch", &pod, "--type=json", "-p", orphan]);
    eventually("it is adopted", SOON, || owner() == "j");
    let label = "batch.kubernetes.io/controller-uid-";
    kubectl(&cluster, &k, ["label", &pod, label]);
    eventually("it is let go", SOON, || owner().is_empty());
    assert_eq!(value(&cluster, &k, &pod, ".metadata.finalizers"), "");
    eventually("the job has another", SOON, || {
        names(&cluster, &k, &["pods"]).len() == 2
    });
}

/// Nothing holds the pods of a job that is gone: neither those that go with it nor those that its owner keeps.
#[test]
fn pods_of_a_job_that_is_gone_are_free() {
    let Some(k) = any_kubectl() else { return };
    let cluster = Cluster::up(&["--no-node"]);
    kubectl_stdin(
        &cluster,
        &k,
        &["apply", "-f", "-"],
        &job("j", "  parallelism: 2"),
    );
    eventually("two pods", SOON, || pods_of(&cluster, &k, "j").len() == 2);
    kubectl(&cluster, &k, ["delete", "job", "j", "--cascade=orphan"]);
    let held = || value(&cluster, &k, "pods", ".items[*].metadata.finalizers");
    eventually("nothing holds them", SOON, || held().is_empty());
    assert_eq!(pods_of(&cluster, &k, "j").len(), 2);
    kubectl(&cluster, &k, ["delete", "pods", "--all", "--timeout=30s"]);

    let manifest = job("j", "  parallelism: 2");
    kubectl_stdin(&cluster, &k, &["apply", "-f", "-"], &manifest);
    eventually("two pods", SOON, || pods_of(&cluster, &k, "j").len() == 2);
    kubectl(&cluster, &k, ["delete", "job", "j", "--cascade=background"]);
    eventually("they go as well", SOON, || {
        pods_of(&cluster, &k, "j").is_empty()
    });
}

#[test]
fn jobs_end_by_their_success_and_failure_policies() {
    let Some(k) = any_kubectl() else { return };
    let cluster = Cluster::up(&["--no-node"]);
    let apply = |manifest: &str| kubectl_stdin(&cluster, &k, &["apply", "-f", "-"], manifest);

    // The leader is enough.
    let rules = "  completionMode: Indexed
  completions: 3
  parallelism: 3
  successPolicy: {rules: [{succeededIndexes: \"0\"}]}";
    apply(&job("led", rules));
    eventually("its pods", SOON, || pods_of(&cluster, &k, "led").len() == 3);
    let leader = pods_of(&cluster, &k, "led")[0].clone();
    assert!(leader.starts_with("led-0-"), "{leader}");
    end(&cluster, &k, &leader, 0);
    eventually("it is complete", SOON, || {
        condition(&cluster, &k, "led", "Complete") == "SuccessPolicy"
    });
    assert_eq!(pods_of(&cluster, &k, "led"), [leader]);
    assert_eq!(value(&cluster, &k, "job/led", ".status.succeeded"), "1");
    assert_eq!(
        value(&cluster, &k, "job/led", ".status.completedIndexes"),
        "0"
    );
    assert_eq!(value(&cluster, &k, "job/led", ".status.failed"), "");

    // An exit code that no retry helps with.
    let rules = "  podFailurePolicy:
    rules:
    - {action: Ignore, onPodConditions: [{type: DisruptionTarget, status: \"True\"}]}
    - {action: FailJob, onExitCodes: {containerName: c, operator: In, values: [42]}}";
    apply(&job("strict", rules));
    eventually("a pod", SOON, || pods_of(&cluster, &k, "strict").len() == 1);
    let first = pods_of(&cluster, &k, "strict")[0].clone();
    // Evicted, which is nobody's fault.
    let eviction = format!(
        r#"{{"apiVersion":"policy/v1","kind":"Eviction","metadata":{{"name":"{first}"}}}}"#
    );
    let path = format!("/api/v1/namespaces/default/pods/{first}/eviction");
    kubectl_stdin(
        &cluster,
        &k,
        &["create", "--raw", &path, "-f", "-"],
        &eviction,
    );
    eventually("it is replaced", SOON, || {
        let pods = pods_of(&cluster, &k, "strict");
        pods.len() == 1 && pods[0] != first
    });
    assert_eq!(value(&cluster, &k, "job/strict", ".status.failed"), "");
    let second = pods_of(&cluster, &k, "strict")[0].clone();
    end(&cluster, &k, &second, 42);
    eventually("it has failed", SOON, || {
        condition(&cluster, &k, "strict", "Failed") == "PodFailurePolicy"
    });
    assert_eq!(value(&cluster, &k, "job/strict", ".status.failed"), "1");
    let why = value(
        &cluster,
        &k,
        "job/strict",
        ".status.conditions[?(@.type==\"Failed\")].message",
    );
    assert!(
        why.contains("failed with exit code 42 matching FailJob rule at index 1"),
        "{why}"
    );
}

/// One index fails and keeps no other from succeeding.
#[test]
fn indexes_fail_on_their_own() {
    let Some(k) = any_kubectl() else { return };
    let cluster = Cluster::up(&["--no-node"]);
    let fields =
        "  completionMode: Indexed\n  completions: 2\n  parallelism: 2\n  backoffLimitPerIndex: 1";
    kubectl_stdin(&cluster, &k, &["apply", "-f", "-"], &job("j", fields));
    let of_index = |index: usize, failures: &str| {
        let pods = pods_of(&cluster, &k, "j");
        let of = |pod: &&String| {
            pod.starts_with(&format!("j-{index}-"))
                && value(
                    &cluster,
                    &k,
                    &format!("pod/{pod}"),
                    ".metadata.annotations.batch\\.kubernetes\\.io/job-index-failure-count",
                ) == failures
        };
        pods.iter().find(of).cloned()
    };
    eventually("its pods", SOON, || pods_of(&cluster, &k, "j").len() == 2);
    end(&cluster, &k, &of_index(0, "0").unwrap(), 1);
    eventually("another try, told of the first", SOON, || {
        of_index(0, "1").is_some()
    });
    end(&cluster, &k, &of_index(0, "1").unwrap(), 1);
    eventually("the index has failed", SOON, || {
        value(&cluster, &k, "job/j", ".status.failedIndexes") == "0"
    });
    assert_eq!(condition(&cluster, &k, "j", "Failed"), "");
    end(&cluster, &k, &of_index(1, "0").unwrap(), 0);
    eventually("and with the last index the job", SOON, || {
        condition(&cluster, &k, "j", "Failed") == "FailedIndexes"
    });
    assert_eq!(
        value(&cluster, &k, "job/j", ".status.completedIndexes"),
        "1"
    );
    assert_eq!(value(&cluster, &k, "job/j", ".status.failed"), "2");
}

/// A job of another controller is left alone.
#[test]
fn jobs_that_another_manages_are_left_alone() {
    let Some(k) = any_kubectl() else { return };
    let cluster = Cluster::up(&["--no-node"]);
    let apply = |manifest: &str| kubectl_stdin(&cluster, &k, &["apply", "-f", "-"], manifest);
    apply(&job("other", "  managedBy: acme.example/jobs"));
    apply(&job("own", "  managedBy: kubernetes.io/job-controller"));
    eventually("the own one has a pod", SOON, || {
        pods_of(&cluster, &k, "own").len() == 1
    });
    assert!(pods_of(&cluster, &k, "other").is_empty());
    assert_eq!(value(&cluster, &k, "job/other", ".status"), "{}");
}
