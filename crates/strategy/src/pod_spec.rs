//! The pod spec as a whole, in pods and in templates.

use std::collections::HashSet;

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use davit_api::status::MOST_CAUSES;
use serde_json::{Value, json};

use super::containers::{Scope, seccomp, user_id};
use super::fields::{choice, one_of, optional_choice};
use super::json::{at, bool_at, has, int_at, list_at, str_at};
use super::{app_armor, containers, meta, resources, scheduling, volumes, windows};

const LONGEST_HOSTNAME: usize = 64;

/// Faults of the pod spec at `path`; `is_pod` tells a pod from a template.
pub(super) fn validate(spec: &Value, is_pod: bool, path: &Path, errors: &mut ErrorList) {
    volumes::all(spec, path, errors);
    let claims = list_at(spec, &["resourceClaims"]);
    resource_claims(claims, &path.child("resourceClaims"), errors);
    let scope = Scope {
        volumes: list_at(spec, &["volumes"])
            .iter()
            .map(|v| (str_at(v, &["name"]), v))
            .collect(),
        claims: claims.iter().map(|c| str_at(c, &["name"])).collect(),
        host_network: bool_at(spec, &["hostNetwork"]),
        host_users: at(spec, &["hostUsers"]) != &Value::Bool(false),
        is_pod,
        grace: int_at(spec, &["terminationGracePeriodSeconds"]),
    };
    containers::all(spec, &scope, path, errors);
    volumes::env_files::volumes(spec, path, errors);
    if has(spec, &["resources"]) && str_at(spec, &["os", "name"]) == "windows" {
        let why = "may not be set for a windows pod";
        errors.push(FieldError::forbidden(&path.child("resources"), why));
    } else if has(spec, &["resources"]) {
        let path = path.child("resources");
        resources::pod(at(spec, &["resources"]), &scope.claims, &path, errors);
        resources::pod_and_containers(spec, &path, errors);
    }
    choice(
        spec,
        "restartPolicy",
        &["Always", "OnFailure", "Never"],
        path,
        errors,
    );
    dns(spec, path, errors);
    meta::labels(
        at(spec, &["nodeSelector"]),
        &path.child("nodeSelector"),
        errors,
    );
    security_context(spec, path, errors);
    windows::host_process(spec, path, errors);
    host_users(spec, path, errors);
    scheduling::affinity(at(spec, &["affinity"]), &path.child("affinity"), errors);
    let tolerations = list_at(spec, &["tolerations"]);
    scheduling::tolerations(tolerations, &path.child("tolerations"), errors);
    let spread = list_at(spec, &["topologySpreadConstraints"]);
    scheduling::spread(spread, &path.child("topologySpreadConstraints"), errors);
    scheduling::group(spec, path, errors);
    named(spec, path, errors);
    deadlines(spec, path, errors);
    gates(spec, path, errors);
    host_aliases(spec, path, errors);
    resources::overhead(at(spec, &["overhead"]), &path.child("overhead"), errors);
    let policies = ["PreemptLowerPriority", "Never"];
    optional_choice(spec, "preemptionPolicy", &policies, path, errors);
    let os = at(spec, &["os"]);
    if !os.is_null() {
        let (known, at_os) = (["linux", "windows"], path.child("os"));
        match str_at(os, &["name"]) {
            "" => errors.push(FieldError::required(&at_os.child("name"), "")),
            // upstream says this of the whole
            name if !known.contains(&name) => {
                errors.push(FieldError::not_supported(&at_os, name, &known));
            }
            _ => windows::other_system(spec, path, errors),
        }
    }
}

/// What is new of the faults of an object whose pod spec is at `spec`: those in the pod spec that the object had before
/// may be carried on, and where a plain init container restarts for a resize, others may as well.
pub(super) fn new_faults(
    spec: &str,
    found: ErrorList,
    before: impl FnOnce(&mut ErrorList),
) -> ErrorList {
    let within = |fault: &FieldError| {
        let below = fault.field.strip_prefix(spec);
        below.is_some_and(|below| below.starts_with('.'))
    };
    if !found.iter().any(within) {
        return found;
    }
    let mut known = ErrorList::new();
    before(&mut known);
    let restarts = |fault: &FieldError| fault.detail == containers::INIT_RESTARTS;
    let restarted = known.iter().any(restarts);
    let known: HashSet<&FieldError> = known.iter().collect();
    let is_known = |fault: &FieldError| known.contains(fault) || restarts(fault) && restarted;
    let mut found = found;
    found.retain(|fault| !within(fault) || !is_known(fault));
    found
}

/// Faults of a pod template.
pub(super) fn validate_template(template: &Value, path: &Path, errors: &mut ErrorList) {
    meta::template(at(template, &["metadata"]), path, errors);
    let spec = at(template, &["spec"]);
    let at_annotations = path.child("annotations");
    let path = path.child("spec");
    let paths = [&at_annotations, &path];
    app_armor::annotations(at(template, &["metadata"]), spec, paths, errors);
    validate(spec, false, &path, errors);
    if !list_at(spec, &["ephemeralContainers"]).is_empty() {
        let why = "ephemeral containers not allowed in pod template";
        errors.push(FieldError::forbidden(
            &path.child("ephemeralContainers"),
            why,
        ));
    }
}

fn dns(spec: &Value, path: &Path, errors: &mut ErrorList) {
    const MAX_NAMESERVERS: usize = 3;
    let policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    choice(spec, "dnsPolicy", &policies, path, errors);
    let path = path.child("dnsConfig");
    let config = at(spec, &["dnsConfig"]);
    let servers = list_at(config, &["nameservers"]);
    let at_servers = path.child("nameservers");
    if str_at(spec, &["dnsPolicy"]) == "None" {
        if config.is_null() {
            let why = "must provide `dnsConfig` when `dnsPolicy` is None";
            errors.push(FieldError::required(&path, why));
        } else if servers.is_empty() {
            let why = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            errors.push(FieldError::required(&at_servers, why));
        }
    }
    if servers.len() > MAX_NAMESERVERS {
        let fault = "must not have more than 3 nameservers";
        errors.push(FieldError::invalid(&at_servers, servers.to_vec(), fault));
    }
    for (i, server) in servers.iter().filter_map(Value::as_str).enumerate() {
        errors.extend(invalid_each(
            &at_servers.index(i),
            server,
            names::check_ip(server),
        ));
    }
    searches(
        list_at(config, &["searches"]),
        &path.child("searches"),
        errors,
    );
    for (i, option) in list_at(config, &["options"]).iter().enumerate() {
        if str_at(option, &["name"]).is_empty() {
            let path = path.child("options").index(i);
            errors.push(FieldError::required(&path, "must not be empty"));
        }
    }
}

/// Domains in which names without one are looked up; underscores are let pass, and the root is one.
fn searches(searches: &[Value], path: &Path, errors: &mut ErrorList) {
    const MOST: usize = 32;
    const MOST_CHARACTERS: usize = 2048;
    let texts = || searches.iter().filter_map(Value::as_str);
    if searches.len() > MOST {
        let fault = format!("must not have more than {MOST} search paths");
        errors.push(FieldError::invalid(path, searches.to_vec(), fault));
    }
    if texts().map(|text| text.len() + 1).sum::<usize>() > MOST_CHARACTERS + 1 {
        let fault = format!(
            "must not have more than {MOST_CHARACTERS} characters (including spaces) in the search list"
        );
        errors.push(FieldError::invalid(path, searches.to_vec(), fault));
    }
    for (i, text) in texts().enumerate().filter(|(_, text)| *text != ".") {
        let text = text.strip_suffix('.').unwrap_or(text);
        if text.len() > names::SUBDOMAIN_MAX {
            let fault = names::too_many_characters(names::SUBDOMAIN_MAX);
            errors.push(FieldError::invalid(&path.index(i), text, fault));
        }
        let is_label = |label: &str| {
            let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
            let label = label.strip_prefix('_').unwrap_or(label);
            label.starts_with(edge)
                && label.ends_with(edge)
                && label.chars().all(|c| edge(c) || c == '-' || c == '_')
        };
        if !text.split('.').all(is_label) {
            const MESSAGE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must start and end with an alphanumeric character";
            const PATTERN: &str =
                "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*";
            let fault = names::regex_text(MESSAGE, PATTERN, &["example.com"]);
            errors.push(FieldError::invalid(&path.index(i), text, fault));
        }
    }
}

fn security_context(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let context = at(spec, &["securityContext"]);
    let path = path.child("securityContext");
    for key in ["runAsUser", "runAsGroup", "fsGroup"] {
        user_id(context, key, &path, errors);
    }
    let groups = list_at(context, &["supplementalGroups"]);
    let most = i64::from(i32::MAX);
    for (i, id) in groups.iter().filter_map(Value::as_i64).enumerate() {
        if !(0..=most).contains(&id) {
            let path = path.child("supplementalGroups").index(i);
            errors.push(FieldError::invalid(&path, id, names::range_text(0, most)));
        }
    }
    // `MountOption` comes with the gate SELinuxMount (KEP-1710), which is off.
    let choices: [(_, &[&str]); 3] = [
        ("fsGroupChangePolicy", &["Always", "OnRootMismatch"]),
        ("supplementalGroupsPolicy", &["Merge", "Strict"]),
        ("seLinuxChangePolicy", &["Recursive"]),
    ];
    for (key, policies) in choices {
        if has(context, &[key]) {
            one_of(context, key, policies, &path, errors);
        }
    }
    sysctls(list_at(context, &["sysctls"]), spec, &path, errors);
    seccomp(
        at(context, &["seccompProfile"]),
        &path.child("seccompProfile"),
        errors,
    );
    windows::options(context, &path, errors);
    app_armor::profile(
        at(context, &["appArmorProfile"]),
        &path.child("appArmorProfile"),
        errors,
    );
    if bool_at(spec, &["hostPID"]) && bool_at(spec, &["shareProcessNamespace"]) {
        let fault = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.push(FieldError::invalid(
            &path.child("shareProcessNamespace"),
            true,
            fault,
        ));
    }
}

/// Users of its own do not go together with namespaces of the host, nor with devices, whose owners are not mapped.
fn host_users(spec: &Value, path: &Path, errors: &mut ErrorList) {
    const WHY: &str = "when `hostUsers` is false";
    if at(spec, &["hostUsers"]) != &Value::Bool(false) {
        return;
    }
    for (field, shown) in [
        ("hostNetwork", "hostNetwork"),
        ("hostPID", "HostPID"),
        ("hostIPC", "HostIPC"),
    ] {
        if bool_at(spec, &[field]) {
            errors.push(FieldError::forbidden(&path.child(shown), WHY));
        }
    }
    for list in app_armor::LISTS {
        for (i, container) in list_at(spec, &[list]).iter().enumerate() {
            let devices = list_at(container, &["volumeDevices"]);
            if !devices.is_empty() && errors.len() <= MOST_CAUSES {
                let path = path.child(list).index(i).child("volumeDevices");
                errors.push(FieldError::forbidden(&path, WHY));
            }
        }
    }
}

/// Fields that are names of something.
fn named(spec: &Value, path: &Path, errors: &mut ErrorList) {
    for key in [
        "serviceAccountName",
        "nodeName",
        "priorityClassName",
        "runtimeClassName",
    ] {
        let name = str_at(spec, &[key]);
        if !name.is_empty() {
            let faults = names::check_dns1123_subdomain(name);
            errors.extend(invalid_each(&path.child(key), name, faults));
        }
    }
    for key in ["hostname", "subdomain"] {
        let name = str_at(spec, &[key]);
        if !name.is_empty() {
            errors.extend(invalid_each(
                &path.child(key),
                name,
                names::check_dns1123_label(name),
            ));
        }
    }
    hostname_override(spec, path, errors);
}

/// Sysctls by their names; which of them a pod may set is for the node to say.
fn sysctls(sysctls: &[Value], spec: &Value, path: &Path, errors: &mut ErrorList) {
    const LONGEST: usize = 253;
    const PATTERN: &str = "^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
    let is_segment = |segment: &str| {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_".contains(&b);
        let edge = |b: Option<&u8>| b.is_some_and(|b| !b"-_".contains(b));
        let bytes = segment.as_bytes();
        bytes.iter().all(|b| inner(*b)) && edge(bytes.first()) && edge(bytes.last())
    };
    let mut seen = HashSet::new();
    for (i, sysctl) in sysctls.iter().enumerate() {
        let path = path.child("sysctls").index(i).child("name");
        let name = str_at(sysctl, &["name"]);
        if name.is_empty() {
            errors.push(FieldError::required(&path, ""));
        } else if name.len() > LONGEST || !name.split(['.', '/']).all(is_segment) {
            let fault = format!("must have at most {LONGEST} characters and match regex {PATTERN}");
            errors.push(FieldError::invalid(&path, name, fault));
        } else if !seen.insert(name) {
            errors.push(FieldError::duplicate(&path, name));
        }
        let starts = |prefixes: &[&str]| {
            let name = name.replace('/', ".");
            prefixes.iter().any(|prefix| name.starts_with(prefix))
        };
        let ipc = ["kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue."];
        for (host, is_of) in [
            ("hostNetwork", starts(&["net."])),
            ("hostIPC", starts(&ipc)),
        ] {
            if is_of && bool_at(spec, &[host]) {
                let fault = format!("may not be specified when '{host}' is true");
                errors.push(FieldError::invalid(&path, name, fault));
            }
        }
    }
}

/// KEP-4762: a name of any form, but not beside other ways to choose one.
fn hostname_override(spec: &Value, path: &Path, errors: &mut ErrorList) {
    if !has(spec, &["hostnameOverride"]) {
        return;
    }
    let path = path.child("hostnameOverride");
    for other in ["setHostnameAsFQDN", "hostNetwork"] {
        if bool_at(spec, &[other]) {
            let fault = format!("may not be specified when {other} is true");
            errors.push(FieldError::forbidden(&path, fault));
        }
    }
    let name = str_at(spec, &["hostnameOverride"]);
    if name.len() > LONGEST_HOSTNAME {
        errors.push(FieldError::too_long(&path, LONGEST_HOSTNAME));
    }
    let faults = names::check_dns1123_subdomain(name);
    errors.extend(invalid_each(&path, name, faults));
}

fn deadlines(spec: &Value, path: &Path, errors: &mut ErrorList) {
    const MOST: i64 = i32::MAX as i64;
    if let Some(seconds) = int_at(spec, &["activeDeadlineSeconds"])
        && !(1..=MOST).contains(&seconds)
    {
        let path = path.child("activeDeadlineSeconds");
        errors.push(FieldError::invalid(
            &path,
            seconds,
            names::range_text(1, MOST),
        ));
    }
}

fn gates(spec: &Value, path: &Path, errors: &mut ErrorList) {
    for (i, gate) in list_at(spec, &["readinessGates"]).iter().enumerate() {
        let kind = str_at(gate, &["conditionType"]);
        let path = path.child("readinessGates").index(i).child("conditionType");
        errors.extend(invalid_each(&path, kind, names::check_qualified_name(kind)));
    }
    let mut taken = HashSet::new();
    for (i, gate) in list_at(spec, &["schedulingGates"]).iter().enumerate() {
        let name = str_at(gate, &["name"]);
        let path = path.child("schedulingGates").index(i);
        errors.extend(invalid_each(&path, name, names::check_qualified_name(name)));
        if !taken.insert(name) {
            errors.push(FieldError::duplicate(&path, name));
        }
    }
}

fn host_aliases(spec: &Value, path: &Path, errors: &mut ErrorList) {
    for (i, alias) in list_at(spec, &["hostAliases"]).iter().enumerate() {
        let path = path.child("hostAliases").index(i);
        let ip = str_at(alias, &["ip"]);
        errors.extend(invalid_each(&path.child("ip"), ip, names::check_ip(ip)));
        for (i, name) in list_at(alias, &["hostnames"]).iter().enumerate() {
            let name = name.as_str().unwrap_or_default();
            let path = path.child("hostnames").index(i);
            errors.extend(invalid_each(
                &path,
                name,
                names::check_dns1123_subdomain(name),
            ));
        }
    }
}

fn resource_claims(claims: &[Value], path: &Path, errors: &mut ErrorList) {
    let mut taken = HashSet::new();
    for (i, claim) in claims.iter().enumerate() {
        let path = path.index(i);
        let name = str_at(claim, &["name"]);
        if name.is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        } else {
            errors.extend(invalid_each(
                &path.child("name"),
                name,
                names::check_dns1123_label(name),
            ));
            if !taken.insert(name) {
                errors.push(FieldError::duplicate(&path.child("name"), name));
            }
        }
        let keys = ["resourceClaimName", "resourceClaimTemplateName"];
        let given = || keys.into_iter().filter(|key| has(claim, &[key]));
        // Upstream shows the entry by the names of its own fields.
        let shown = json!({"Name": name, "ResourceClaimName": at(claim, &[keys[0]]),
            "ResourceClaimTemplateName": at(claim, &[keys[1]])});
        let fault = match given().count() {
            0 => Some("must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"),
            1 => None,
            _ => Some(
                "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified",
            ),
        };
        errors.extend(fault.map(|fault| FieldError::invalid(&path, shown, fault)));
        for key in given() {
            let name = str_at(claim, &[key]);
            let faults = names::check_dns1123_subdomain(name);
            errors.extend(invalid_each(&path.child(key), name, faults));
        }
    }
}
