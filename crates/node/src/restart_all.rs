//! The restart rule action `RestartAllContainers` (KEP-5532,
//! <https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#restart-all-containers>): one container's end makes
//! all of them begin anew, init containers first, in the sandbox and on the volumes that are there.
//!
//! All instances are ended and removed, the one that asked for it last: as long as it is there it is known what is under
//! way. The condition `AllContainersRestarting` says so beside it. How often containers were started is in the status
//! then, not in the runtime.

use crate::runtime_state::{ContainerRecord, PodRuntime, State};
use davit_api::declared_features::{RESTART_ALL_ACTION, may_restart_all};
use davit_pods::pod::{PodExt, Role, matching_rule};
use k8s_openapi::api::core::v1::Pod;

/// The condition that holds until all containers are removed.
pub(crate) const CONDITION: &str = "AllContainersRestarting";
/// Why a container waits, and how it ended, that is restarted because of another one.
pub(crate) const REASON: &str = "RestartingAllContainers";
/// What is to be done about it.
#[derive(Debug)]
pub(crate) enum Step<'a> {
    /// Nothing.
    Nothing,
    /// End and remove these, in this order.
    Remove(Vec<&'a ContainerRecord>),
    /// Everything is removed; it is only to be said.
    Removed,
}

/// Whether a container of the pod has such a rule.
pub(crate) fn is_possible(pod: &Pod) -> bool {
    may_restart_all(pod.pod_spec())
}

/// Whether the pod's last status says that it is under way.
pub(crate) fn is_said(pod: &Pod) -> bool {
    let conditions = pod.pod_status().conditions.iter().flatten();
    conditions
        .into_iter()
        .any(|c| c.type_ == CONDITION && c.status == "True")
}

/// The next step for a pod with its newest status.
pub(crate) fn step<'a>(pod: &Pod, runtime: &'a PodRuntime) -> Step<'a> {
    if !is_possible(pod) {
        return Step::Nothing;
    }
    let all = pod.all_containers();
    let role = |record: &ContainerRecord| {
        let found = all.iter().find(|(_, c)| c.name == record.name);
        found.map(|(role, _)| *role)
    };
    let asks = |record: &ContainerRecord| {
        let found = all.iter().find(|(_, c)| c.name == record.name);
        let latest = runtime.latest(&record.name).map(|r| &r.id) == Some(&record.id);
        let rule = found.and_then(|(_, c)| matching_rule(c, record.exit_code));
        latest
            && record.state == State::Exited
            && rule.is_some_and(|r| r.action == RESTART_ALL_ACTION)
    };
    let mut records: Vec<&ContainerRecord> = runtime
        .containers
        .iter()
        .filter(|r| role(r).is_some_and(|role| role != Role::Ephemeral))
        .collect();
    let said = is_said(pod);
    if records.is_empty() {
        return if said { Step::Removed } else { Step::Nothing };
    }
    if !said && !records.iter().any(|r| asks(r)) {
        return Step::Nothing;
    }
    records.sort_by_key(|r| (asks(r), role(r) != Some(Role::Main)));
    Step::Remove(records)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime_state::testing::record;
    use serde_json::json;

    fn pod(condition: &str) -> Pod {
        let rule =
            json!({"action": RESTART_ALL_ACTION, "exitCodes": {"operator": "In", "values": [42]}});
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"restartPolicy": "Never",
                "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always", "restartPolicyRules": [rule]}],
                "containers": [{"name": "a"}, {"name": "b", "restartPolicy": "Never", "restartPolicyRules": [rule]}],
                "ephemeralContainers": [{"name": "e"}]},
            "status": {"conditions": [{"type": CONDITION, "status": condition}]},
        }))
        .unwrap()
    }

    fn runtime(containers: Vec<ContainerRecord>) -> PodRuntime {
        PodRuntime {
            containers,
            ..PodRuntime::default()
        }
    }

    fn nothing(pod: &Pod, runtime: &PodRuntime) {
        let step = step(pod, runtime);
        assert!(matches!(step, Step::Nothing), "{step:?}");
    }

    fn removed(pod: &Pod, runtime: &PodRuntime) -> Vec<String> {
        match step(pod, runtime) {
            Step::Remove(records) => records.iter().map(|r| r.name.clone()).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_one_that_asked_goes_last() {
        let all = |b: ContainerRecord| {
            runtime(vec![
                b,
                record("e", State::Running, 0),
                record("a", State::Running, 0),
                record("s", State::Running, 0),
                record("i", State::Exited, 0),
            ])
        };
        let asked = all(record("b", State::Exited, 42));
        assert_eq!(removed(&pod("False"), &asked), ["a", "s", "i", "b"]);
        let ended = all(record("b", State::Exited, 1));
        nothing(&pod("False"), &ended);
        let runs = all(record("b", State::Running, 42));
        nothing(&pod("False"), &runs);
    }

    #[test]
    fn an_interrupted_one_is_finished_and_then_told() {
        let left = runtime(vec![record("a", State::Exited, 137)]);
        nothing(&pod("False"), &left);
        assert_eq!(removed(&pod("True"), &left), ["a"]);
        let none = runtime(vec![record("e", State::Running, 0)]);
        assert!(matches!(step(&pod("True"), &none), Step::Removed));
        nothing(&pod("False"), &none);
    }

    /// An end that has been answered before does not count again.
    #[test]
    fn only_the_newest_instance_asks() {
        let before = record("b", State::Exited, 42);
        let now = ContainerRecord {
            id: "now".to_owned(),
            ..record("b", State::Running, 0)
        };
        nothing(&pod("False"), &runtime(vec![now, before]));
    }
}
