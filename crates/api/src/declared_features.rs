//! Features that nodes declare in `status.declaredFeatures`, and what needs them (KEP-5328,
//! <https://kubernetes.io/docs/concepts/scheduling-eviction/node-declared-features/>).
//!
//! Schedulers keep pods off nodes that lack what the pod needs, the API server refuses changes of pods that their node
//! cannot follow. The names are those of Kubernetes 1.36.

use k8s_openapi::api::core::v1::{Container, PodSpec};

/// Streams over WebSocket as far as the node.
pub const EXTEND_WEB_SOCKETS_TO_KUBELET: &str = "ExtendWebSocketsToKubelet";
/// The size of a pod as a whole can change while it runs.
pub const IN_PLACE_POD_LEVEL_RESOURCES: &str = "InPlacePodLevelResourcesVerticalScaling";
/// The size of init containers can change while the pod runs.
pub const IN_PLACE_INIT_CONTAINERS: &str = "InPlacePodVerticalScalingInitContainers";
/// Restart rules with the action `RestartAllContainers`.
pub const RESTART_ALL_CONTAINERS: &str = "RestartAllContainersOnContainerExits";
/// User namespaces in the host's network.
pub const USER_NAMESPACES_HOST_NETWORK: &str = "UserNamespacesHostNetworkSupport";

/// The action of a restart rule by which the end of one container makes all begin anew (KEP-5532).
pub const RESTART_ALL_ACTION: &str = "RestartAllContainers";

/// Whether a container of the pod has a rule with the action [`RESTART_ALL_ACTION`].
pub fn may_restart_all(spec: &PodSpec) -> bool {
    let inits = spec.init_containers.iter().flatten();
    inits
        .chain(&spec.containers)
        .flat_map(|c| c.restart_policy_rules.iter().flatten())
        .any(|rule| rule.action == RESTART_ALL_ACTION)
}

/// The features a node must have to run a pod, in alphabetical order.
pub fn needed(spec: &PodSpec) -> Vec<&'static str> {
    let mut out = Vec::new();
    if may_restart_all(spec) {
        out.push(RESTART_ALL_CONTAINERS);
    }
    if spec.host_network == Some(true) && spec.host_users == Some(false) {
        out.push(USER_NAMESPACES_HOST_NETWORK);
    }
    out
}

/// The features a node must have to follow a change of a pod it runs, in alphabetical order.
pub fn needed_for_update(old: &PodSpec, new: &PodSpec) -> Vec<&'static str> {
    let mut out = Vec::new();
    if old.resources != new.resources {
        out.push(IN_PLACE_POD_LEVEL_RESOURCES);
    }
    let mut pairs = plain_inits(old).zip(plain_inits(new));
    if pairs.any(|(a, b)| a.resources != b.resources) {
        out.push(IN_PLACE_INIT_CONTAINERS);
    }
    out
}

/// Init containers that are no sidecars.
fn plain_inits(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    let all = spec.init_containers.iter().flatten();
    all.filter(|c| c.restart_policy.as_deref() != Some("Always"))
}

/// Those of the features that are not among the declared ones.
pub fn missing(needed: &[&'static str], declared: &[String]) -> Vec<&'static str> {
    let is_missing = |feature: &&'static str| !declared.iter().any(|d| d == *feature);
    needed.iter().copied().filter(|f| is_missing(f)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn spec(value: Value) -> PodSpec {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn what_pods_need() {
        let rule = |action: &str| json!([{"action": action, "exitCodes": {"operator": "In", "values": [1]}}]);
        let of = |value| needed(&spec(value));
        assert!(
            of(json!({"containers": [{"name": "a", "restartPolicyRules": rule("Restart")}]}))
                .is_empty()
        );
        let all = rule("RestartAllContainers");
        assert_eq!(
            of(
                json!({"containers": [], "initContainers": [{"name": "a", "restartPolicyRules": all}]})
            ),
            [RESTART_ALL_CONTAINERS]
        );
        assert_eq!(
            of(
                json!({"hostNetwork": true, "hostUsers": false, "containers": [{"name": "a", "restartPolicyRules": all}]})
            ),
            [RESTART_ALL_CONTAINERS, USER_NAMESPACES_HOST_NETWORK]
        );
    }

    #[test]
    fn what_changes_need() {
        let sized = |cpu: &str| json!({"limits": {"cpu": cpu}});
        let one = |init: &str, policy: &str, pod: &str| {
            spec(
                json!({"resources": sized(pod), "containers": [{"name": "a"}],
                "initContainers": [{"name": "i", "restartPolicy": policy, "resources": sized(init)}]}),
            )
        };
        assert!(needed_for_update(&one("1", "", "1"), &one("1", "", "1")).is_empty());
        assert!(needed_for_update(&one("1", "Always", "1"), &one("2", "Always", "1")).is_empty());
        assert_eq!(
            needed_for_update(&one("1", "", "1"), &one("2", "", "2")),
            [IN_PLACE_POD_LEVEL_RESOURCES, IN_PLACE_INIT_CONTAINERS]
        );
        let declared = [IN_PLACE_POD_LEVEL_RESOURCES.to_owned()];
        let needed = [IN_PLACE_POD_LEVEL_RESOURCES, IN_PLACE_INIT_CONTAINERS];
        assert_eq!(missing(&needed, &declared), [IN_PLACE_INIT_CONTAINERS]);
    }
}
