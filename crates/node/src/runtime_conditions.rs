//! What the runtime says about its own health, in the kubelet's words.

use davit_oci::runtime::Runtime;
use davit_proto::cri::v1 as cri;

const NETWORK_READY: &str = "NetworkReady";

/// What is wrong with the runtime, for the node's `Ready` condition.
pub(crate) fn problems(status: &cri::StatusResponse) -> Vec<String> {
    let conditions = status.status.iter().flat_map(|s| &s.conditions);
    conditions.filter(|c| !c.status).map(describe).collect()
}

fn describe(condition: &cri::RuntimeCondition) -> String {
    let what = match condition.r#type.as_str() {
        NETWORK_READY => "container runtime network not ready",
        _ => "container runtime not ready",
    };
    format!(
        "{what}: {}={} reason:{} message:{}",
        condition.r#type, condition.status, condition.reason, condition.message
    )
}

/// Why pods cannot be connected now; `None` when they can, or the runtime does not answer (it will say itself why).
pub(crate) async fn network_problem(runtime: &dyn Runtime) -> Option<String> {
    let status = runtime.status().await.ok()?.status?;
    let network = status
        .conditions
        .iter()
        .find(|c| c.r#type == NETWORK_READY)?;
    (!network.status).then(|| describe(network))
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

    #[test]
    fn the_networks_problem_reads_as_the_kubelet_says_it() {
        let network = cri::RuntimeCondition {
            r#type: NETWORK_READY.to_owned(),
            status: false,
            reason: "NetworkPluginNotReady".to_owned(),
            message: "Network plugin returns error: cni plugin not initialized".to_owned(),
        };
        let status = cri::StatusResponse {
            status: Some(cri::RuntimeStatus {
                conditions: vec![network],
            }),
            ..cri::StatusResponse::default()
        };
        assert_eq!(
            joined(&problems(&status)),
            "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady \
             message:Network plugin returns error: cni plugin not initialized"
        );
    }
}
