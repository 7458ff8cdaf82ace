//! The checks of a level, and what they have in common.

use davit_api::field::quote;
use serde_json::Value;

use super::policy::{Level, LevelVersion};
use super::{baseline, restricted};
use crate::pods::{CONTAINERS, containers};

/// What a check found.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) reason: &'static str,
    pub(super) detail: String,
}

impl Fault {
    pub(super) fn new(reason: &'static str, detail: impl Into<String>) -> Self {
        Self {
            reason,
            detail: detail.into(),
        }
    }
}

/// The pod as a check sees it.
#[derive(Clone, Copy)]
pub(super) struct Pod<'a> {
    pub(super) wanted: LevelVersion,
    pub(super) metadata: &'a Value,
    pub(super) spec: &'a Value,
}

type Check = fn(Pod<'_>) -> Option<Fault>;

/// Everything a pod does that the level does not allow: the baseline's checks in the order of
/// their names, then those of the restricted level, some of which stand for one of the baseline.
pub(super) fn evaluate(wanted: LevelVersion, metadata: &Value, spec: &Value) -> Vec<Fault> {
    const BASELINE: &[(Check, bool)] = &[
        (baseline::app_armor, false),
        (baseline::capabilities, true),
        (baseline::host_namespaces, false),
        (baseline::host_path, false),
        (baseline::host_ports, false),
        (baseline::host_probes, false),
        (baseline::privileged, false),
        (baseline::proc_mount, false),
        (baseline::se_linux, false),
        (baseline::seccomp, true),
        (baseline::sysctls, false),
        (baseline::windows_host_process, false),
    ];
    const RESTRICTED: &[Check] = &[
        restricted::privilege_escalation,
        restricted::capabilities,
        restricted::volumes,
        restricted::run_as_non_root,
        restricted::run_as_user,
        restricted::seccomp,
    ];
    let pod = Pod {
        wanted,
        metadata,
        spec,
    };
    let mut found = Vec::new();
    if wanted.level == Level::Privileged {
        return found;
    }
    let is_restricted = wanted.level == Level::Restricted;
    for (check, replaced) in BASELINE {
        if !(is_restricted && *replaced && wanted.since(22)) {
            found.extend(check(pod));
        }
    }
    if is_restricted {
        found.extend(RESTRICTED.iter().filter_map(|check| check(pod)));
    }
    found
}

impl<'a> Pod<'a> {
    /// All containers, as the original visits them.
    pub(super) fn containers(self) -> impl Iterator<Item = &'a Value> {
        containers(self.spec, &CONTAINERS)
    }

    /// Names of the containers that `is_bad`.
    pub(super) fn bad(self, is_bad: impl Fn(&Value) -> bool) -> Vec<String> {
        self.containers()
            .filter(|container| is_bad(container))
            .map(|container| text(container, "name").to_owned())
            .collect()
    }

    pub(super) fn is_windows(self) -> bool {
        self.spec["os"]["name"] == "windows"
    }

    /// Pods in user namespaces of their own may be root in them.
    pub(super) fn has_user_namespace(self) -> bool {
        self.wanted.since(35) && self.spec["hostUsers"] == false
    }
}

pub(super) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

pub(super) fn plural<'a>(one: &'a str, many: &'a str, count: usize) -> &'a str {
    if count == 1 { one } else { many }
}

/// `"a", "b"`.
pub(super) fn quoted<S: AsRef<str>>(list: impl IntoIterator<Item = S>) -> String {
    let list: Vec<String> = list.into_iter().map(|item| quote(item.as_ref())).collect();
    list.join(", ")
}

/// `container "a"` or `containers "a", "b"`.
pub(super) fn named(containers: &[String]) -> String {
    format!(
        "{} {}",
        plural("container", "containers", containers.len()),
        quoted(containers)
    )
}

/// Those who set something: the pod, containers, or both.
pub(super) fn setters(pod: bool, containers: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    if pod {
        found.push("pod".to_owned());
    }
    if !containers.is_empty() {
        found.push(named(containers));
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(level: Level, version: Option<u32>, spec: &Value) -> Vec<String> {
        let wanted = LevelVersion { level, version };
        let faults = evaluate(wanted, &json!({}), spec);
        faults
            .iter()
            .map(|f| format!("{} ({})", f.reason, f.detail))
            .collect()
    }

    #[test]
    fn item_180_a_plain_pod_violates_the_restricted_level() {
        let spec = json!({ "containers": [{ "name": "c" }] });
        assert!(found(Level::Baseline, None, &spec).is_empty());
        assert_eq!(
            found(Level::Restricted, None, &spec),
            [
                "allowPrivilegeEscalation != false (container \"c\" must set securityContext.allowPrivilegeEscalation=false)",
                "unrestricted capabilities (container \"c\" must set securityContext.capabilities.drop=[\"ALL\"])",
                "runAsNonRoot != true (pod or container \"c\" must set securityContext.runAsNonRoot=true)",
                "seccompProfile (pod or container \"c\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")",
            ]
        );
    }

    #[test]
    fn item_180_the_baseline_forbids_what_reaches_the_host() {
        let spec = json!({
            "hostNetwork": true, "hostPID": true,
            "volumes": [{ "name": "v", "hostPath": { "path": "/" } }],
            "securityContext": { "sysctls": [{ "name": "kernel.msgmax" }] },
            "initContainers": [{ "name": "i", "ports": [{ "hostPort": 80 }] }],
            "containers": [{
                "name": "c",
                "securityContext": {
                    "privileged": true, "procMount": "Unmasked",
                    "capabilities": { "add": ["SYS_ADMIN"] },
                    "seccompProfile": { "type": "Unconfined" },
                    "seLinuxOptions": { "type": "spc_t" },
                },
                "livenessProbe": { "httpGet": { "host": "1.1.1.1" } },
            }],
        });
        assert_eq!(
            found(Level::Baseline, None, &spec),
            [
                "non-default capabilities (container \"c\" must not include \"SYS_ADMIN\" in securityContext.capabilities.add)",
                "host namespaces (hostNetwork=true, hostPID=true)",
                "hostPath volumes (volume \"v\")",
                "hostPort (container \"i\" uses hostPort 80)",
                "probe or lifecycle host (container \"c\" uses probe or lifecycle host \"1.1.1.1\")",
                "privileged (container \"c\" must not set securityContext.privileged=true)",
                "procMount (container \"c\" must not set securityContext.procMount to \"Unmasked\")",
                "seLinuxOptions (container \"c\" set forbidden securityContext.seLinuxOptions: type \"spc_t\")",
                "seccompProfile (container \"c\" must not set securityContext.seccompProfile.type to \"Unconfined\")",
                "forbidden sysctls (kernel.msgmax)",
            ]
        );
        let old = found(Level::Baseline, Some(33), &spec);
        assert!(old.iter().all(|text| !text.contains("probe")), "since 1.34");
    }

    #[test]
    fn item_180_a_careful_pod_passes() {
        let spec = json!({
            "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
            "containers": [{
                "name": "c",
                "securityContext": {
                    "allowPrivilegeEscalation": false,
                    "capabilities": { "drop": ["ALL"], "add": ["NET_BIND_SERVICE"] },
                },
            }],
            "volumes": [{ "name": "e", "emptyDir": {} }, { "name": "t", "projected": {} }],
        });
        assert!(found(Level::Restricted, None, &spec).is_empty());
    }
}
