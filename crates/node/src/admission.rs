//! Checks of a pod against the node that need no resources: name, selector, affinity, taints, operating system.

use crate::sysctls::Allowlist;
use davit_api::selector::selects_node;
use davit_api::taint::untolerated;
use davit_pods::pod::{PodExt, check_number};
use k8s_openapi::api::core::v1::{AppArmorProfile, Node, Pod};
use std::collections::BTreeMap;

/// Why a pod may not run here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// `status.reason`.
    pub reason: String,
    /// Human readable, without the prefix of the status message.
    pub message: String,
    /// What could not be placed, and what would have to be freed for it.
    pub misfit: Option<Box<davit_containermanager::compute::Misfit>>,
}

fn refuse(reason: &str, message: impl Into<String>) -> Result<(), Refusal> {
    Err(Refusal {
        reason: reason.to_owned(),
        message: message.into(),
        misfit: None,
    })
}

fn check_sysctls(pod: &Pod, allowed: &Allowlist) -> Result<(), Refusal> {
    let spec = pod.pod_spec();
    let host_ipc = spec.host_ipc == Some(true);
    let context = spec.security_context.as_ref();
    for sysctl in context.iter().flat_map(|c| &c.sysctls).flatten() {
        if let Err(fault) = allowed.check(&sysctl.name, pod.host_network(), host_ipc) {
            return refuse("SysctlForbidden", format!("forbidden sysctl: {fault}"));
        }
    }
    Ok(())
}

/// Whether the kernel enforces profiles of AppArmor.
fn app_armor_is_on() -> bool {
    std::fs::read("/sys/module/apparmor/parameters/enabled").is_ok_and(|on| on.starts_with(b"Y"))
}

/// A pod that asks for a profile of AppArmor is not run without it.
fn check_app_armor(pod: &Pod, on: impl FnOnce() -> bool) -> Result<(), Refusal> {
    let wants = |profile: Option<&AppArmorProfile>| {
        profile.is_some_and(|profile| profile.type_ != "Unconfined")
    };
    let of_pod = pod.pod_spec().security_context.as_ref();
    let wanted = wants(of_pod.and_then(|context| context.app_armor_profile.as_ref()))
        || pod.all_containers().iter().any(|(_, container)| {
            let own = container.security_context.as_ref();
            wants(own.and_then(|context| context.app_armor_profile.as_ref()))
        });
    if wanted && !on() {
        let text = "Cannot enforce AppArmor: AppArmor is not enabled on the host";
        return refuse("AppArmor", text);
    }
    Ok(())
}

/// Checks what does not change with the load of the node.
///
/// # Errors
/// The first check that fails.
pub(crate) fn check_node(pod: &Pod, node: &Node, sysctls: &Allowlist) -> Result<(), Refusal> {
    let empty = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&empty);
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let spec = pod.pod_spec();
    if let Some(os) = &spec.os
        && os.name != "linux"
    {
        return refuse(
            "PodOSNotSupported",
            format!(
                "Failed to admit pod as the OS field doesn't match node OS: {}",
                os.name
            ),
        );
    }
    if let Err(text) = check_number(spec) {
        return refuse("TooManyContainers", text);
    }
    check_sysctls(pod, sysctls)?;
    check_app_armor(pod, app_armor_is_on)?;
    let selector_os = spec
        .node_selector
        .as_ref()
        .and_then(|s| s.get("kubernetes.io/os"));
    if selector_os.is_some_and(|os| os != "linux") {
        let text = "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label";
        return refuse("PodOSSelectorNodeLabelDoesNotMatch", text);
    }
    let selected = spec
        .node_selector
        .iter()
        .flatten()
        .all(|(k, v)| labels.get(k) == Some(v));
    let required = spec
        .affinity
        .as_ref()
        .and_then(|a| a.node_affinity.as_ref())
        .and_then(|a| {
            a.required_during_scheduling_ignored_during_execution
                .as_ref()
        });
    let fits = required.is_none_or(|selector| selects_node(selector, name, labels));
    if !selected || !fits {
        return refuse(
            "NodeAffinity",
            "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        );
    }
    if !pod.is_static() {
        let tolerations = spec.tolerations.as_deref().unwrap_or_default();
        let taints = node
            .spec
            .as_ref()
            .and_then(|s| s.taints.as_deref())
            .unwrap_or_default();
        if let Some(taint) = untolerated(taints, tolerations, &["NoExecute"]) {
            let shown = format!(
                "{{{}: {}}}",
                taint.key,
                taint.value.as_deref().unwrap_or_default()
            );
            return refuse(
                "TaintToleration",
                format!(
                    "Predicate TaintToleration failed: node(s) had untolerated taint(s) {shown}"
                ),
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use davit_pods::pod::MOST_CONTAINERS;
    use serde_json::json;

    #[expect(
        clippy::needless_pass_by_value,
        reason = "reads best with json! in place"
    )]
    fn check(spec: serde_json::Value, taints: serde_json::Value) -> Option<String> {
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap();
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "n1", "labels": {"disk": "ssd", "cores": "8"}}, "spec": {"taints": taints}}))
        .unwrap();
        check_node(&pod, &node, &Allowlist::default())
            .err()
            .map(|r| r.reason)
    }

    #[expect(
        clippy::needless_pass_by_value,
        reason = "reads best with json! in place"
    )]
    fn affinity(expression: serde_json::Value) -> serde_json::Value {
        json!({"containers": [], "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}})
    }

    #[test]
    fn more_containers_than_anybody_has_are_refused() {
        let with = |count: usize| {
            let containers: Vec<_> = (0..count)
                .map(|n| json!({"name": format!("c{n}")}))
                .collect();
            check(
                json!({"containers": containers, "initContainers": [{"name": "i"}]}),
                json!([]),
            )
        };
        assert_eq!(with(MOST_CONTAINERS - 1), None);
        assert_eq!(with(MOST_CONTAINERS).as_deref(), Some("TooManyContainers"));
    }

    #[test]
    fn sysctls_of_the_host_are_refused() {
        let with = |host_network: bool| {
            let sysctls = json!([{"name": "net.ipv4.tcp_syncookies", "value": "1"}]);
            let spec = json!({"containers": [], "hostNetwork": host_network, "securityContext": {"sysctls": sysctls}});
            check(spec, json!([]))
        };
        assert_eq!(with(false), None);
        assert_eq!(with(true).as_deref(), Some("SysctlForbidden"));
    }

    #[test]
    fn selectors_and_affinity() {
        let none = json!([]);
        assert_eq!(
            check(
                json!({"containers": [], "nodeSelector": {"disk": "ssd"}}),
                none.clone()
            ),
            None
        );
        assert_eq!(
            check(
                json!({"containers": [], "nodeSelector": {"disk": "hdd"}}),
                none.clone()
            )
            .unwrap(),
            "NodeAffinity"
        );
        assert_eq!(
            check(
                affinity(json!({"key": "cores", "operator": "Gt", "values": ["4"]})),
                none.clone()
            ),
            None
        );
        assert!(
            check(
                affinity(json!({"key": "cores", "operator": "Lt", "values": ["4"]})),
                none.clone()
            )
            .is_some()
        );
        assert!(check(json!({"containers": [], "os": {"name": "windows"}}), none).is_some());
    }

    #[test]
    fn only_no_execute_taints_count() {
        let pod = json!({"containers": []});
        assert_eq!(
            check(pod.clone(), json!([{"key": "a", "effect": "NoSchedule"}])),
            None
        );
        let taint = json!([{"key": "a", "value": "1", "effect": "NoExecute"}]);
        assert_eq!(check(pod, taint.clone()).unwrap(), "TaintToleration");
        let tolerant = json!({"containers": [], "tolerations": [{"key": "a", "operator": "Equal", "value": "1"}]});
        assert_eq!(check(tolerant, taint), None);
    }
}
