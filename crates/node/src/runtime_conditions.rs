//! What the runtime says about its own health, in the kubelet's words.

use davit_oci::runtime::Runtime;
use davit_proto::cri::v1 as cri;

const NETWORK: (&str, &str) = ("NetworkReady", "container runtime network not ready");

/// What a runtime has to say of itself, and how it reads when it does not or says no. The order is the kubelet's.
const REQUIRED: [(&str, &str); 2] = [("RuntimeReady", "container runtime not ready"), NETWORK];

/// What is wrong with the runtime, for the node's `Ready` condition. Conditions of a runtime's own (containerd warns in one of
/// what it will no longer do) say nothing about that.
pub(crate) fn problems(status: &cri::StatusResponse) -> Vec<String> {
    let required = REQUIRED.into_iter();
    required.filter_map(|one| problem(status, one)).collect()
}

fn problem(status: &cri::StatusResponse, (kind, what): (&str, &str)) -> Option<String> {
    let mut conditions = status.status.iter().flat_map(|s| &s.conditions);
    match conditions.find(|c| c.r#type == kind) {
        Some(condition) if condition.status => None,
        Some(condition) => Some(format!(
            "{what}: {kind}={} reason:{} message:{}",
            condition.status, condition.reason, condition.message
        )),
        None => Some(format!("{what}: <nil>")),
    }
}

/// Why pods cannot be connected now; `None` when they can, or the runtime does not answer (it will say itself why).
pub(crate) async fn network_problem(runtime: &dyn Runtime) -> Option<String> {
    let status = runtime.status().await.ok()?;
    problem(&status, NETWORK)
}

/// The message of a condition that has several causes, as Go joins errors.
pub(crate) fn joined(problems: &[String]) -> String {
    match problems {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(conditions: &[(&str, bool, &str, &str)]) -> Vec<String> {
        let condition =
            |(kind, status, reason, message): &(&str, bool, &str, &str)| cri::RuntimeCondition {
                r#type: (*kind).to_owned(),
                status: *status,
                reason: (*reason).to_owned(),
                message: (*message).to_owned(),
            };
        problems(&cri::StatusResponse {
            status: Some(cri::RuntimeStatus {
                conditions: conditions.iter().map(condition).collect(),
            }),
            ..cri::StatusResponse::default()
        })
    }

    #[test]
    fn the_networks_problem_reads_as_the_kubelet_says_it() {
        let said = of(&[
            ("RuntimeReady", true, "", ""),
            (
                "NetworkReady",
                false,
                "NetworkPluginNotReady",
                "Network plugin returns error: cni plugin not initialized",
            ),
        ]);
        assert_eq!(
            joined(&said),
            "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady \
             message:Network plugin returns error: cni plugin not initialized"
        );
    }

    /// containerd warns in a condition of its own (of cgroup v1, for one): the node is ready all the same.
    #[test]
    fn what_a_runtime_says_besides_is_no_problem() {
        let own = (
            "ContainerdHasNoDeprecationWarnings",
            false,
            "ContainerdHasDeprecationWarnings",
            "{}",
        );
        let good = [
            ("NetworkReady", true, "", ""),
            ("RuntimeReady", true, "", ""),
            own,
        ];
        assert_eq!(of(&good), Vec::<String>::new());
    }

    #[test]
    fn what_a_runtime_does_not_say_is_not_ready() {
        assert_eq!(
            joined(&of(&[])),
            "[container runtime not ready: <nil>, container runtime network not ready: <nil>]"
        );
    }
}
