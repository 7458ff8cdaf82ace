//! The checks of the baseline level.

use std::collections::BTreeSet;

use serde_json::Value;

use super::checks::{Fault, Pod, named, plural, quoted, setters, text};

const CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
/// Sysctls of a pod's own, with the release since which they count as safe.
const SYSCTLS: [(&str, u32); 12] = [
    ("kernel.shm_rmid_forced", 0),
    ("net.ipv4.ip_local_port_range", 0),
    ("net.ipv4.tcp_syncookies", 0),
    ("net.ipv4.ping_group_range", 0),
    ("net.ipv4.ip_unprivileged_port_start", 0),
    ("net.ipv4.ip_local_reserved_ports", 27),
    ("net.ipv4.tcp_keepalive_time", 29),
    ("net.ipv4.tcp_fin_timeout", 29),
    ("net.ipv4.tcp_keepalive_intvl", 29),
    ("net.ipv4.tcp_keepalive_probes", 29),
    ("net.ipv4.tcp_rmem", 32),
    ("net.ipv4.tcp_wmem", 32),
];

fn security(container: &Value) -> &Value {
    &container["securityContext"]
}

pub(super) fn app_armor(pod: Pod<'_>) -> Option<Fault> {
    let allowed = |value: &str| {
        value.is_empty() || value == "runtime/default" || value.starts_with("localhost/")
    };
    let annotations = pod.metadata["annotations"].as_object();
    let mut annotated: Vec<String> = annotations
        .into_iter()
        .flatten()
        .filter(|(key, _)| key.starts_with(APP_ARMOR))
        .filter_map(|(key, value)| Some((key, value.as_str()?)))
        .filter(|(_, value)| !allowed(value))
        .map(|(key, value)| format!("{key}={}", quoted([value])))
        .collect();
    annotated.sort_unstable();
    let mut details = Vec::new();
    let mut count = annotated.len();
    if pod.wanted.since(30) {
        let mut values = BTreeSet::new();
        let mut is_bad = |context: &Value| {
            let kind = context["appArmorProfile"]["type"]
                .as_str()
                .unwrap_or_default();
            let bad = !matches!(kind, "" | "RuntimeDefault" | "Localhost");
            if bad {
                values.insert(kind.to_owned());
            }
            bad
        };
        let of_pod = is_bad(&pod.spec["securityContext"]);
        let containers: Vec<String> = pod
            .containers()
            .filter(|container| is_bad(security(container)))
            .map(|container| text(container, "name").to_owned())
            .collect();
        let setters = setters(of_pod, &containers);
        count += values.len();
        if !setters.is_empty() {
            details.push(format!(
                "{} must not set AppArmor profile type to {}",
                setters.join(" and "),
                quoted(&values)
            ));
        }
    }
    if !annotated.is_empty() {
        let many = plural("annotation", "annotations", annotated.len());
        let shown = annotated.join(", ");
        details.push(if pod.wanted.since(30) {
            format!("forbidden {many} {shown}")
        } else {
            shown
        });
    }
    let reason = plural(
        "forbidden AppArmor profile",
        "forbidden AppArmor profiles",
        count,
    );
    (!details.is_empty()).then(|| Fault::new(reason, details.join("; ")))
}

pub(super) fn capabilities(pod: Pod<'_>) -> Option<Fault> {
    let mut others = BTreeSet::new();
    let mut bad = Vec::new();
    for container in pod.containers() {
        let added = security(container)["capabilities"]["add"].as_array();
        let before = bad.len();
        for name in added.into_iter().flatten().filter_map(Value::as_str) {
            if !CAPABILITIES.contains(&name) {
                others.insert(name.to_owned());
                if bad.len() == before {
                    bad.push(text(container, "name").to_owned());
                }
            }
        }
    }
    (!bad.is_empty()).then(|| {
        let detail = format!(
            "{} must not include {} in securityContext.capabilities.add",
            named(&bad),
            quoted(&others)
        );
        Fault::new("non-default capabilities", detail)
    })
}

pub(super) fn host_namespaces(pod: Pod<'_>) -> Option<Fault> {
    let used: Vec<String> = ["hostNetwork", "hostPID", "hostIPC"]
        .into_iter()
        .filter(|key| pod.spec[*key] == true)
        .map(|key| format!("{key}=true"))
        .collect();
    (!used.is_empty()).then(|| Fault::new("host namespaces", used.join(", ")))
}

pub(super) fn host_path(pod: Pod<'_>) -> Option<Fault> {
    let volumes = pod.spec["volumes"].as_array().into_iter().flatten();
    let bad: Vec<&str> = volumes
        .filter(|volume| volume["hostPath"].is_object())
        .map(|volume| text(volume, "name"))
        .collect();
    (!bad.is_empty()).then(|| {
        let many = plural("volume", "volumes", bad.len());
        Fault::new("hostPath volumes", format!("{many} {}", quoted(&bad)))
    })
}

pub(super) fn host_ports(pod: Pod<'_>) -> Option<Fault> {
    let mut ports = BTreeSet::new();
    let mut bad = Vec::new();
    for container in pod.containers() {
        let held: Vec<i64> = container["ports"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|port| port["hostPort"].as_i64())
            .filter(|port| *port != 0)
            .collect();
        if !held.is_empty() {
            bad.push(text(container, "name").to_owned());
            ports.extend(held.iter().map(ToString::to_string));
        }
    }
    (!bad.is_empty()).then(|| {
        let list: Vec<String> = ports.iter().cloned().collect();
        let detail = format!(
            "{} {} {} {}",
            named(&bad),
            plural("uses", "use", bad.len()),
            plural("hostPort", "hostPorts", list.len()),
            list.join(", ")
        );
        Fault::new("hostPort", detail)
    })
}

pub(super) fn host_probes(pod: Pod<'_>) -> Option<Fault> {
    if !pod.wanted.since(34) {
        return None;
    }
    const HANDLERS: [&str; 5] = [
        "/livenessProbe",
        "/readinessProbe",
        "/startupProbe",
        "/lifecycle/postStart",
        "/lifecycle/preStop",
    ];
    let mut hosts = BTreeSet::new();
    let mut bad = BTreeSet::new();
    for container in pod.containers() {
        for handler in HANDLERS {
            for action in ["httpGet", "tcpSocket"] {
                let host = container
                    .pointer(&format!("{handler}/{action}/host"))
                    .and_then(Value::as_str)
                    .unwrap_or_default();
                if !host.is_empty() {
                    hosts.insert(host.to_owned());
                    bad.insert(text(container, "name").to_owned());
                }
            }
        }
    }
    (!bad.is_empty()).then(|| {
        let bad: Vec<String> = bad.into_iter().collect();
        let detail = format!(
            "{} {} {} {}",
            named(&bad),
            plural("uses", "use", bad.len()),
            plural(
                "probe or lifecycle host",
                "probe or lifecycle hosts",
                hosts.len()
            ),
            quoted(&hosts)
        );
        Fault::new("probe or lifecycle host", detail)
    })
}

pub(super) fn privileged(pod: Pod<'_>) -> Option<Fault> {
    let bad = pod.bad(|container| security(container)["privileged"] == true);
    (!bad.is_empty()).then(|| {
        let detail = format!(
            "{} must not set securityContext.privileged=true",
            named(&bad)
        );
        Fault::new("privileged", detail)
    })
}

pub(super) fn proc_mount(pod: Pod<'_>) -> Option<Fault> {
    if pod.has_user_namespace() {
        return None;
    }
    let mut kinds = BTreeSet::new();
    let mut bad = Vec::new();
    for container in pod.containers() {
        let kind = text(security(container), "procMount");
        if !matches!(kind, "" | "Default") {
            kinds.insert(kind.to_owned());
            bad.push(text(container, "name").to_owned());
        }
    }
    (!bad.is_empty()).then(|| {
        let detail = format!(
            "{} must not set securityContext.procMount to {}",
            named(&bad),
            quoted(&kinds)
        );
        Fault::new("procMount", detail)
    })
}

pub(super) fn se_linux(pod: Pod<'_>) -> Option<Fault> {
    let mut kinds = BTreeSet::new();
    let (mut user, mut role) = (false, false);
    let mut is_bad = |context: &Value| {
        let options = &context["seLinuxOptions"];
        let kind = text(options, "type");
        let known = matches!(
            kind,
            "" | "container_t" | "container_init_t" | "container_kvm_t"
        ) || (kind == "container_engine_t" && pod.wanted.since(31));
        if !known {
            kinds.insert(kind.to_owned());
        }
        let (has_user, has_role) = (
            !text(options, "user").is_empty(),
            !text(options, "role").is_empty(),
        );
        user |= has_user;
        role |= has_role;
        !known || has_user || has_role
    };
    let of_pod = is_bad(&pod.spec["securityContext"]);
    let bad: Vec<String> = pod
        .containers()
        .filter(|container| is_bad(security(container)))
        .map(|container| text(container, "name").to_owned())
        .collect();
    let setters = setters(of_pod, &bad);
    if setters.is_empty() {
        return None;
    }
    let mut data = Vec::new();
    if !kinds.is_empty() {
        data.push(format!(
            "{} {}",
            plural("type", "types", kinds.len()),
            quoted(&kinds)
        ));
    }
    if user {
        data.push("user may not be set".to_owned());
    }
    if role {
        data.push("role may not be set".to_owned());
    }
    let detail = format!(
        "{} set forbidden securityContext.seLinuxOptions: {}",
        setters.join(" and "),
        data.join("; ")
    );
    Some(Fault::new("seLinuxOptions", detail))
}

/// A seccomp profile that switches the filter off.
pub(super) fn bad_seccomp(context: &Value) -> Option<&str> {
    let kind = context["seccompProfile"]["type"].as_str()?;
    (!matches!(kind, "RuntimeDefault" | "Localhost")).then_some(kind)
}

pub(super) fn seccomp(pod: Pod<'_>) -> Option<Fault> {
    if !pod.wanted.since(19) {
        return seccomp_annotations(pod);
    }
    let context = &pod.spec["securityContext"];
    let of_pod = bad_seccomp(context);
    let mut values: BTreeSet<String> = of_pod.into_iter().map(str::to_owned).collect();
    let mut bad = Vec::new();
    for container in pod.containers() {
        if let Some(kind) = bad_seccomp(security(container)) {
            values.insert(kind.to_owned());
            bad.push(text(container, "name").to_owned());
        }
    }
    let setters = setters(of_pod.is_some(), &bad);
    (!setters.is_empty()).then(|| {
        let detail = format!(
            "{} must not set securityContext.seccompProfile.type to {}",
            setters.join(" and "),
            quoted(&values)
        );
        Fault::new("seccompProfile", detail)
    })
}

fn seccomp_annotations(pod: Pod<'_>) -> Option<Fault> {
    let allowed = |value: &str| {
        matches!(value, "runtime/default" | "docker/default") || value.starts_with("localhost/")
    };
    let of_containers = pod.containers().map(|container| {
        format!(
            "container.seccomp.security.alpha.kubernetes.io/{}",
            text(container, "name")
        )
    });
    let keys = std::iter::once("seccomp.security.alpha.kubernetes.io/pod".to_owned());
    let bad: BTreeSet<String> = keys
        .chain(of_containers)
        .filter_map(|key| {
            let value = pod.metadata["annotations"][key.as_str()].as_str()?;
            (!allowed(value)).then(|| format!("{key}={}", quoted([value])))
        })
        .collect();
    (!bad.is_empty()).then(|| {
        let many = plural("annotation", "annotations", bad.len());
        let list: Vec<String> = bad.into_iter().collect();
        Fault::new(
            "seccompProfile",
            format!("forbidden {many} {}", list.join(", ")),
        )
    })
}

pub(super) fn sysctls(pod: Pod<'_>) -> Option<Fault> {
    let list = pod.spec["securityContext"]["sysctls"].as_array();
    let bad: Vec<&str> = list
        .into_iter()
        .flatten()
        .map(|sysctl| text(sysctl, "name"))
        .filter(|name| {
            !SYSCTLS
                .iter()
                .any(|(known, since)| known == name && pod.wanted.since(*since))
        })
        .collect();
    (!bad.is_empty()).then(|| Fault::new("forbidden sysctls", bad.join(", ")))
}

pub(super) fn windows_host_process(pod: Pod<'_>) -> Option<Fault> {
    let is_bad = |context: &Value| context["windowsOptions"]["hostProcess"] == true;
    let of_pod = is_bad(&pod.spec["securityContext"]);
    let bad = pod.bad(|container| is_bad(security(container)));
    let setters = setters(of_pod, &bad);
    (!setters.is_empty()).then(|| {
        let detail = format!(
            "{} must not set securityContext.windowsOptions.hostProcess=true",
            setters.join(" and ")
        );
        Fault::new("hostProcess", detail)
    })
}
