//! In a word how a pod is, as `kubectl get pods` says it.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

/// Words that say that somebody has to look.
const WRONG: [&str; 14] = [
    "CrashLoopBackOff",
    "ImagePullBackOff",
    "ErrImagePull",
    "ErrImageNeverPull",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "UnexpectedAdmissionError",
    "Evicted",
    "OOMKilled",
    "Error",
    "Failed",
    "Unknown",
];

/// The reason that a container or the pod gives, or the phase.
pub(crate) fn word(pod: &Pod) -> String {
    if pod.metadata.deletion_timestamp.is_some() {
        return "Terminating".to_owned();
    }
    let Some(status) = &pod.status else {
        return "Pending".to_owned();
    };
    let phase = status.phase.clone().unwrap_or_else(|| "Pending".to_owned());
    if let Some(reason) = status.reason.clone().filter(|reason| !reason.is_empty()) {
        return reason;
    }
    let init = status
        .init_container_statuses
        .as_deref()
        .unwrap_or_default();
    let main = status.container_statuses.as_deref().unwrap_or_default();
    let said = init
        .iter()
        .filter_map(of_init)
        .chain(main.iter().filter_map(of_main));
    said.into_iter().next().unwrap_or(phase)
}

/// Init containers that ended well say nothing.
fn of_init(status: &ContainerStatus) -> Option<String> {
    let state = status.state.as_ref()?;
    if let Some(waiting) = &state.waiting {
        let reason = waiting.reason.clone()?;
        return (reason != "PodInitializing").then_some(reason);
    }
    let ended = state.terminated.as_ref()?;
    (ended.exit_code != 0).then(|| ended.reason.clone().unwrap_or_else(|| "Error".to_owned()))
}

fn of_main(status: &ContainerStatus) -> Option<String> {
    let state = status.state.as_ref()?;
    if let Some(waiting) = &state.waiting {
        return waiting.reason.clone();
    }
    let ended = state.terminated.as_ref()?;
    ended.reason.clone().filter(|reason| !reason.is_empty())
}

/// Whether somebody has to look.
pub(crate) fn is_wrong(word: &str) -> bool {
    WRONG.contains(&word)
}

/// Why no node was found for it, if none was.
pub(crate) fn unschedulable(pod: &Pod) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_deref()?;
    let scheduled = conditions.iter().find(|c| c.type_ == "PodScheduled")?;
    (scheduled.status == "False").then(|| scheduled.message.clone().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(status: &serde_json::Value) -> String {
        word(&serde_json::from_value(json!({"metadata": {}, "status": status})).unwrap())
    }

    #[test]
    fn the_word_is_the_most_telling_one() {
        assert_eq!(of(&json!({})), "Pending");
        assert_eq!(of(&json!({"phase": "Running"})), "Running");
        assert_eq!(
            of(&json!({"phase": "Failed", "reason": "Evicted"})),
            "Evicted"
        );
        let container = |state: serde_json::Value| json!({"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 1, "state": state});
        let waits = container(json!({"waiting": {"reason": "CrashLoopBackOff"}}));
        assert_eq!(
            of(&json!({"phase": "Running", "containerStatuses": [waits]})),
            "CrashLoopBackOff"
        );
        let done = container(json!({"terminated": {"exitCode": 0, "reason": "Completed"}}));
        let runs = container(json!({"running": {}}));
        assert_eq!(
            of(
                &json!({"phase": "Running", "initContainerStatuses": [done], "containerStatuses": [runs]})
            ),
            "Running"
        );
        assert_eq!(
            of(&json!({"phase": "Succeeded", "containerStatuses": [done]})),
            "Completed"
        );
        assert!(is_wrong("CrashLoopBackOff") && !is_wrong("Completed"));
    }
}
