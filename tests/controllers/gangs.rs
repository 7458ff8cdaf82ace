//! Jobs whose pods get their nodes together (KEP-5547).

use super::{SOON, names, value};
use crate::harness::{Cluster, any_kubectl, eventually, kubectl, kubectl_stdin, output};

const GATES: &str = "GenericWorkload=true,GangScheduling=true,WorkloadWithJob=true";
const SERVED: [&str; 2] = ["--runtime-config", "scheduling.k8s.io/v1alpha2=true"];

/// A job of three pods, one a node.
fn job(name: &str) -> String {
    format!(
        "apiVersion: batch/v1
kind: Job
metadata: {{name: {name}}}
spec:
  completionMode: Indexed
  completions: 3
  parallelism: 3
  template:
    metadata: {{labels: {{gang: {name}}}}}
    spec:
      restartPolicy: Never
      containers: [{{name: c, image: i}}]
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
          - {{topologyKey: kubernetes.io/hostname, labelSelector: {{matchLabels: {{gang: {name}}}}}}}
"
    )
}

#[test]
fn the_pods_of_a_job_wait_for_one_another() {
    let Some(k) = any_kubectl() else { return };
    let mut args = vec!["--no-node", "--sim-nodes", "3", "--feature-gates", GATES];
    args.extend(SERVED);
    let cluster = Cluster::up(&args);
    let names = |what: &[&str]| names(&cluster, &k, what);
    let value = |object: &str, path: &str| value(&cluster, &k, object, path);
    eventually("the nodes are there", SOON, || names(&["nodes"]).len() == 3);
    kubectl(&cluster, &k, ["cordon", "sim-2"]);
    kubectl_stdin(&cluster, &k, &["create", "-f", "-"], &job("train"));
    eventually("it has a group", SOON, || names(&["podgroups"]).len() == 1);
    let group = names(&["podgroups"]).remove(0);
    let workload = names(&["workloads"]).remove(0);
    assert!(
        group.starts_with(&format!("{workload}-train-pgt-0-")),
        "{group}"
    );
    let condition = || value(&format!("podgroup/{group}"), ".status.conditions[0].reason");
    eventually("two nodes are not enough", SOON, || {
        condition() == "Unschedulable"
    });
    let groups = || value("pods", ".items[*].spec.schedulingGroup.podGroupName");
    assert_eq!(groups(), [&*group; 3].join(" "));
    assert_eq!(value("pods", ".items[*].spec.nodeName"), "");

    kubectl(&cluster, &k, ["uncordon", "sim-2"]);
    let running = || value("pods", ".items[*].status.phase") == "Running Running Running";
    eventually("all run", SOON, running);
    eventually("the group says so", SOON, || condition() == "Scheduled");
    let lost = format!("pod/{}", names(&["pods"]).remove(0));
    kubectl(&cluster, &k, ["delete", &lost]);
    eventually("another takes its place", SOON, running);
    assert_eq!(groups(), [&*group; 3].join(" "));

    let fewer = r#"{"spec":{"parallelism":2,"completions":2}}"#;
    let patch = ["patch", "job/train", "--type=merge", "-p", fewer];
    let refused = output(cluster.kubectl(&k).args(patch));
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    let why = format!(
        "cannot change parallelism for a Job referencing gang-scheduled PodGroup \"{group}\""
    );
    assert!(!refused.status.success() && text.contains(&why), "{text}");

    kubectl(&cluster, &k, ["delete", "job/train"]);
    eventually("group and workload go with it", 2 * SOON, || {
        names(&["pods,podgroups,workloads"]).is_empty()
    });
}

/// What nobody could keep waiting for: of a gang of which one pod is done no three can be scheduled together.
#[test]
fn a_gang_that_is_not_whole_any_more_goes_on() {
    let Some(k) = any_kubectl() else { return };
    let mut args = vec!["--no-node", "--feature-gates", GATES];
    args.extend(SERVED);
    let cluster = Cluster::up(&args);
    kubectl_stdin(&cluster, &k, &["create", "-f", "-"], &job("j"));
    eventually("its pods", SOON, || {
        names(&cluster, &k, &["pods"]).len() == 3
    });
    let group_of = |index: &str| {
        let label = format!("-l=batch.kubernetes.io/job-completion-index={index}");
        let path = "{range .items[?(@.status.phase==\"Pending\")]}{.metadata.name} {.spec.schedulingGroup.podGroupName}{end}";
        let path = format!("jsonpath={path}");
        let found = kubectl(&cluster, &k, ["get", "pods", &label, "-o", &path]);
        let (name, group) = found.split_once(' ').unwrap_or((&found, ""));
        (name.to_owned(), group.to_owned())
    };
    let (first, group) = group_of("0");
    assert!(group.starts_with("j-"), "{group}");
    super::jobs::end(&cluster, &k, &first, 0);
    eventually("the first index is done", SOON, || {
        value(&cluster, &k, "job/j", ".status.completedIndexes") == "0"
    });
    let (other, _) = group_of("2");
    super::jobs::end(&cluster, &k, &other, 1);
    eventually("a pod alone takes its place", SOON, || {
        let (again, of) = group_of("2");
        !again.is_empty() && again != other && of.is_empty()
    });
}

#[test]
fn a_job_whose_group_cannot_be_made_says_so() {
    let Some(k) = any_kubectl() else { return };
    let cluster = Cluster::up(&["--no-node", "--sim-nodes", "1", "--feature-gates", GATES]);
    kubectl_stdin(&cluster, &k, &["create", "-f", "-"], &job("train"));
    let events = ["events", "--for", "job/train", "--types=Warning"];
    eventually("the job tells why it waits", SOON, || {
        kubectl(&cluster, &k, events).contains("is scheduling.k8s.io/v1alpha2 served?")
    });
    assert!(names(&cluster, &k, &["pods"]).is_empty());
}
