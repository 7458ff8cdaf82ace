//! The checks that the restricted level adds.

use std::collections::BTreeSet;

use serde_json::Value;

use super::baseline::bad_seccomp;
use super::checks::{Fault, Pod, named, plural, quoted, setters, text};

const VOLUMES: [&str; 8] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

fn security(container: &Value) -> &Value {
    &container["securityContext"]
}

pub(super) fn privilege_escalation(pod: Pod<'_>) -> Option<Fault> {
    if !pod.wanted.since(8) || (pod.wanted.since(25) && pod.is_windows()) {
        return None;
    }
    let bad = pod.bad(|container| security(container)["allowPrivilegeEscalation"] != false);
    (!bad.is_empty()).then(|| {
        let detail = format!(
            "{} must set securityContext.allowPrivilegeEscalation=false",
            named(&bad)
        );
        Fault::new("allowPrivilegeEscalation != false", detail)
    })
}

pub(super) fn capabilities(pod: Pod<'_>) -> Option<Fault> {
    if !pod.wanted.since(22) || (pod.wanted.since(25) && pod.is_windows()) {
        return None;
    }
    let list = |container: &Value, key: &str| -> Vec<String> {
        let names = security(container)["capabilities"][key].as_array();
        let names = names.into_iter().flatten().filter_map(Value::as_str);
        names.map(str::to_owned).collect()
    };
    let missing = pod.bad(|container| !list(container, "drop").iter().any(|name| name == "ALL"));
    let mut others = BTreeSet::new();
    let mut adding = Vec::new();
    for container in pod.containers() {
        let added = list(container, "add");
        let bad: Vec<String> = added
            .into_iter()
            .filter(|name| name != "NET_BIND_SERVICE")
            .collect();
        if !bad.is_empty() {
            adding.push(text(container, "name").to_owned());
            others.extend(bad);
        }
    }
    let mut details = Vec::new();
    if !missing.is_empty() {
        details.push(format!(
            "{} must set securityContext.capabilities.drop=[\"ALL\"]",
            named(&missing)
        ));
    }
    if !adding.is_empty() {
        details.push(format!(
            "{} must not include {} in securityContext.capabilities.add",
            named(&adding),
            quoted(&others)
        ));
    }
    (!details.is_empty()).then(|| Fault::new("unrestricted capabilities", details.join("; ")))
}

pub(super) fn volumes(pod: Pod<'_>) -> Option<Fault> {
    let mut kinds = BTreeSet::new();
    let mut bad = Vec::new();
    for volume in pod.spec["volumes"].as_array().into_iter().flatten() {
        if VOLUMES.iter().any(|kind| volume[*kind].is_object()) {
            continue;
        }
        bad.push(text(volume, "name").to_owned());
        let kind = volume
            .as_object()
            .and_then(|map| map.keys().find(|key| key.as_str() != "name"));
        kinds.insert(kind.map_or("unknown", String::as_str).to_owned());
    }
    (!bad.is_empty()).then(|| {
        let detail = format!(
            "{} {} {} {} {}",
            plural("volume", "volumes", bad.len()),
            quoted(&bad),
            plural("uses", "use", bad.len()),
            plural(
                "restricted volume type",
                "restricted volume types",
                kinds.len()
            ),
            quoted(&kinds)
        );
        Fault::new("restricted volume types", detail)
    })
}

pub(super) fn run_as_non_root(pod: Pod<'_>) -> Option<Fault> {
    if pod.has_user_namespace() {
        return None;
    }
    let of_pod = &pod.spec["securityContext"]["runAsNonRoot"];
    let explicit = pod.bad(|container| security(container)["runAsNonRoot"] == false);
    let setters = setters(*of_pod == false, &explicit);
    if !setters.is_empty() {
        let detail = format!(
            "{} must not set securityContext.runAsNonRoot=false",
            setters.join(" and ")
        );
        return Some(Fault::new("runAsNonRoot != true", detail));
    }
    let silent =
        pod.bad(|container| security(container)["runAsNonRoot"].is_null() && *of_pod != true);
    (!silent.is_empty()).then(|| {
        let detail = format!(
            "pod or {} must set securityContext.runAsNonRoot=true",
            named(&silent)
        );
        Fault::new("runAsNonRoot != true", detail)
    })
}

pub(super) fn run_as_user(pod: Pod<'_>) -> Option<Fault> {
    if !pod.wanted.since(23) || pod.has_user_namespace() {
        return None;
    }
    let of_pod = pod.spec["securityContext"]["runAsUser"] == 0;
    let bad = pod.bad(|container| security(container)["runAsUser"] == 0);
    let setters = setters(of_pod, &bad);
    (!setters.is_empty()).then(|| {
        let detail = format!("{} must not set runAsUser=0", setters.join(" and "));
        Fault::new("runAsUser=0", detail)
    })
}

pub(super) fn seccomp(pod: Pod<'_>) -> Option<Fault> {
    if !pod.wanted.since(19) || (pod.wanted.since(25) && pod.is_windows()) {
        return None;
    }
    if let Some(fault) = super::baseline::seccomp(pod) {
        return Some(fault);
    }
    let of_pod = &pod.spec["securityContext"];
    let is_set = of_pod["seccompProfile"].is_object() && bad_seccomp(of_pod).is_none();
    let silent = pod.bad(|container| !is_set && !security(container)["seccompProfile"].is_object());
    (!silent.is_empty()).then(|| {
        let detail = format!(
            "pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"",
            named(&silent)
        );
        Fault::new("seccompProfile", detail)
    })
}
