//! What a job's failure policy says of a pod that failed (KEP-3329).

use k8s_openapi::api::batch::v1::{
    PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyRule,
};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

/// What the first rule that matches asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodFailureAction {
    /// The failure does not count.
    Ignore,
    /// It counts, as it does when no rule matches.
    Count,
    /// The pod's index has failed.
    FailIndex,
    /// The job has failed; why, for its condition.
    FailJob(String),
}

/// The action of the first rule that matches the failed pod; [`PodFailureAction::Count`] without one.
pub fn judge(policy: Option<&PodFailurePolicy>, pod: &Pod) -> PodFailureAction {
    let rules = policy.map_or(&[][..], |policy| &policy.rules);
    for (place, rule) in rules.iter().enumerate() {
        let Some(why) = matches(rule, pod) else {
            continue;
        };
        return match rule.action.as_str() {
            "Ignore" => PodFailureAction::Ignore,
            "FailIndex" => PodFailureAction::FailIndex,
            "FailJob" => {
                PodFailureAction::FailJob(format!("{why} matching FailJob rule at index {place}"))
            }
            // "Count", and what a later version may know
            _ => PodFailureAction::Count,
        };
    }
    PodFailureAction::Count
}

/// What of the pod a rule matches.
fn matches(rule: &PodFailurePolicyRule, pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let meta = &pod.metadata;
    let pod = format!(
        "{}/{}",
        meta.namespace.as_deref().unwrap_or_default(),
        meta.name.as_deref().unwrap_or_default()
    );
    if let Some(wanted) = &rule.on_exit_codes {
        let of = |list: &Option<Vec<ContainerStatus>>| {
            list.iter().flatten().find_map(|c| exit_code(wanted, c))
        };
        let (container, code) =
            of(&status.container_statuses).or_else(|| of(&status.init_container_statuses))?;
        return Some(format!(
            "Container {container} for pod {pod} failed with exit code {code}"
        ));
    }
    let patterns = rule.on_pod_conditions.as_ref()?;
    let condition = status.conditions.iter().flatten().find(|condition| {
        patterns.iter().any(|pattern| {
            pattern.type_ == condition.type_
                && pattern.status.as_deref().unwrap_or("True") == condition.status
        })
    })?;
    Some(format!("Pod {pod} has condition {}", condition.type_))
}

/// The name and exit code of a container that ended as the requirement says; zero never is a failure.
fn exit_code(
    wanted: &PodFailurePolicyOnExitCodesRequirement,
    container: &ContainerStatus,
) -> Option<(String, i32)> {
    let code = container.state.as_ref()?.terminated.as_ref()?.exit_code;
    let named = wanted
        .container_name
        .as_ref()
        .is_none_or(|name| *name == container.name);
    let listed = wanted.values.contains(&code);
    let fits = match wanted.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        _ => false,
    };
    (named && fits && code != 0).then(|| (container.name.clone(), code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn policy(rules: serde_json::Value) -> PodFailurePolicy {
        serde_json::from_value(json!({ "rules": rules })).unwrap()
    }

    fn pod(status: serde_json::Value) -> Pod {
        let meta = json!({"name": "p", "namespace": "ns"});
        serde_json::from_value(json!({"metadata": meta, "status": status})).unwrap()
    }

    fn ended(name: &str, code: i32) -> serde_json::Value {
        json!({"name": name, "ready": false, "restartCount": 0, "image": "i", "imageID": "i",
            "state": {"terminated": {"exitCode": code}}})
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let policy = policy(json!([
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            {"action": "FailJob", "onExitCodes": {"containerName": "main", "operator": "In", "values": [3, 42]}},
            {"action": "FailIndex", "onExitCodes": {"operator": "NotIn", "values": [1, 42]}},
        ]));
        let judged = |pod: &Pod| judge(Some(&policy), pod);
        let disrupted = json!([{"type": "DisruptionTarget", "status": "True"}]);
        assert_eq!(
            judged(&pod(
                json!({"conditions": disrupted, "containerStatuses": [ended("main", 42)]})
            )),
            PodFailureAction::Ignore
        );
        assert_eq!(
            judged(&pod(json!({"containerStatuses": [ended("side", 3), ended("main", 42)]}))),
            PodFailureAction::FailJob(
                "Container main for pod ns/p failed with exit code 42 matching FailJob rule at index 1"
                    .to_owned()
            )
        );
        // of a container that the second rule does not name, also of one that runs before the others
        assert_eq!(
            judged(&pod(json!({"initContainerStatuses": [ended("first", 3)]}))),
            PodFailureAction::FailIndex
        );
        assert_eq!(
            judged(&pod(json!({"containerStatuses": [ended("main", 1)]}))),
            PodFailureAction::Count
        );
        assert_eq!(
            judged(&pod(json!({"containerStatuses": [ended("main", 0)]}))),
            PodFailureAction::Count,
            "an end without an error matches no rule"
        );
        assert_eq!(judge(None, &pod(json!({}))), PodFailureAction::Count);
    }

    #[test]
    fn a_condition_may_fail_the_job() {
        let policy = policy(json!([
            {"action": "FailJob", "onPodConditions": [{"type": "ConfigIssue"}]}
        ]));
        let pod = pod(json!({"conditions": [{"type": "ConfigIssue", "status": "True"}]}));
        let why = "Pod ns/p has condition ConfigIssue matching FailJob rule at index 0";
        assert_eq!(
            judge(Some(&policy), &pod),
            PodFailureAction::FailJob(why.to_owned())
        );
    }
}
