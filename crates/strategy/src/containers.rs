//! Containers of pods and templates.

use std::collections::{HashMap, HashSet};

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use davit_api::status::MOST_CAUSES;
use serde_json::Value;

use super::fields::{choice, not_negative, optional_choice, required};
use super::json::{at, bool_at, has, int_at, list_at, repeats, str_at};
use super::{app_armor, fields, resources, volumes, windows};

/// The fault of init containers that releases before 1.36 let in.
pub(super) const INIT_RESTARTS: &str =
    "must not be set to 'RestartContainer' for non-sidecar initContainers";

/// What containers may refer to.
pub(super) struct Scope<'a> {
    /// The pod's volumes, by name.
    pub(super) volumes: HashMap<&'a str, &'a Value>,
    /// Names of the pod's resource claims.
    pub(super) claims: HashSet<&'a str>,
    /// Whether the pod uses the network of the node.
    pub(super) host_network: bool,
    /// Whether the pod's users are those of the node.
    pub(super) host_users: bool,
    /// Whether this is a pod and not a template.
    pub(super) is_pod: bool,
    /// Seconds that the pod has to end.
    pub(super) grace: Option<i64>,
}

/// Faults of all containers of a pod spec.
pub(super) fn all(spec: &Value, scope: &Scope<'_>, path: &Path, errors: &mut ErrorList) {
    let containers = list_at(spec, &["containers"]);
    let at_containers = path.child("containers");
    if containers.is_empty() {
        errors.push(FieldError::required(&at_containers, ""));
    }
    let mut taken: HashSet<&str> = HashSet::new();
    let mut host_ports = HashSet::new();
    for (i, c) in containers.iter().enumerate() {
        if errors.len() > MOST_CAUSES {
            return;
        }
        let path = at_containers.index(i);
        common(c, scope, &path, errors);
        unique_name(c, &mut taken, &path, errors);
        probes(c, &path, errors);
        lifecycle(c, scope, &path, errors);
        restart_policy(c, &path, errors);
        unique_host_ports(c, &mut host_ports, &path, errors);
    }
    let mut init_ports = HashSet::new();
    for (i, c) in list_at(spec, &["initContainers"]).iter().enumerate() {
        if errors.len() > MOST_CAUSES {
            return;
        }
        let path = path.child("initContainers").index(i);
        common(c, scope, &path, errors);
        unique_name(c, &mut taken, &path, errors);
        init(c, scope, &path, errors);
        // init containers run one after the other, so each has the ports for itself
        init_ports.clear();
        unique_host_ports(c, &mut init_ports, &path, errors);
    }
    let names: HashSet<&str> = containers.iter().map(|c| str_at(c, &["name"])).collect();
    for (i, c) in list_at(spec, &["ephemeralContainers"]).iter().enumerate() {
        if errors.len() > MOST_CAUSES {
            return;
        }
        let path = path.child("ephemeralContainers").index(i);
        common(c, scope, &path, errors);
        unique_name(c, &mut taken, &path, errors);
        ephemeral(c, &names, &path, errors);
    }
}

fn unique_name<'a>(
    c: &'a Value,
    taken: &mut HashSet<&'a str>,
    path: &Path,
    errors: &mut ErrorList,
) {
    let name = str_at(c, &["name"]);
    if !name.is_empty() && !taken.insert(name) {
        errors.push(FieldError::duplicate(&path.child("name"), name));
    }
}

fn common(c: &Value, scope: &Scope<'_>, path: &Path, errors: &mut ErrorList) {
    let name = str_at(c, &["name"]);
    let at_name = path.child("name");
    if name.is_empty() {
        errors.push(FieldError::required(&at_name, ""));
    } else {
        errors.extend(invalid_each(
            &at_name,
            name,
            names::check_dns1123_label(name),
        ));
    }
    let image = str_at(c, &["image"]);
    let at_image = path.child("image");
    if image.is_empty() {
        errors.push(FieldError::required(&at_image, ""));
    } else if scope.is_pod && image != image.trim() {
        let fault = "must not have leading or trailing whitespace";
        errors.push(FieldError::invalid(&at_image, image, fault));
    }
    let policies = ["File", "FallbackToLogsOnError"];
    choice(c, "terminationMessagePolicy", &policies, path, errors);
    choice(
        c,
        "imagePullPolicy",
        &["Always", "IfNotPresent", "Never"],
        path,
        errors,
    );
    ports(c, scope, &path.child("ports"), errors);
    env(list_at(c, &["env"]), &path.child("env"), errors);
    env_from(list_at(c, &["envFrom"]), &path.child("envFrom"), errors);
    mounts(c, scope, path, errors);
    resources::container(
        at(c, &["resources"]),
        &scope.claims,
        &path.child("resources"),
        errors,
    );
    let policies = list_at(c, &["resizePolicy"]);
    resize_policies(policies, &path.child("resizePolicy"), errors);
    let context = at(c, &["securityContext"]);
    security_context(context, scope, &path.child("securityContext"), errors);
}

/// What happens to a container whose resources change. As in the original the list is blamed.
fn resize_policies(policies: &[Value], path: &Path, errors: &mut ErrorList) {
    let twins = repeats(policies.iter().map(|p| str_at(p, &["resourceName"])));
    for ((i, policy), is_twin) in policies.iter().enumerate().zip(twins) {
        let name = str_at(policy, &["resourceName"]);
        if is_twin {
            errors.push(FieldError::duplicate(&path.index(i), name));
        }
        for (word, words) in [
            (name, ["cpu", "memory"]),
            (
                str_at(policy, &["restartPolicy"]),
                ["NotRequired", "RestartContainer"],
            ),
        ] {
            if word.is_empty() {
                errors.push(FieldError::required(path, ""));
            } else if !words.contains(&word) {
                errors.push(FieldError::not_supported(path, word, &words));
            }
        }
    }
}

fn ports(c: &Value, scope: &Scope<'_>, path: &Path, errors: &mut ErrorList) {
    let mut taken = HashSet::new();
    for (i, port) in list_at(c, &["ports"]).iter().enumerate() {
        let path = path.index(i);
        let name = str_at(port, &["name"]);
        if !name.is_empty() {
            let faults = names::check_port_name(name);
            let valid = faults.is_empty();
            errors.extend(invalid_each(&path.child("name"), name, faults));
            if valid && !taken.insert(name) {
                errors.push(FieldError::duplicate(&path.child("name"), name));
            }
        }
        let number = int_at(port, &["containerPort"]).unwrap_or(0);
        let at_number = path.child("containerPort");
        if number == 0 {
            errors.push(FieldError::required(&at_number, ""));
        } else {
            port_number(number, &at_number, errors);
        }
        let host = int_at(port, &["hostPort"]).unwrap_or(0);
        if host != 0 {
            port_number(host, &path.child("hostPort"), errors);
        }
        // templates may leave it out: their pods get it
        if scope.host_network && (scope.is_pod || host != 0) && host != number {
            let fault = "must match `containerPort` when `hostNetwork` is true";
            errors.push(FieldError::invalid(&path.child("hostPort"), host, fault));
        }
        choice(port, "protocol", &["SCTP", "TCP", "UDP"], &path, errors);
    }
}

/// Faults of a port number.
pub(super) fn port_number(port: i64, path: &Path, errors: &mut ErrorList) {
    errors.extend(
        names::check_port_number(port)
            .into_iter()
            .map(|fault| FieldError::invalid(path, port, fault)),
    );
}

fn unique_host_ports(c: &Value, taken: &mut HashSet<String>, path: &Path, errors: &mut ErrorList) {
    for (i, port) in list_at(c, &["ports"]).iter().enumerate() {
        let number = int_at(port, &["hostPort"]).unwrap_or(0);
        let key = format!(
            "{}/{}/{number}",
            str_at(port, &["protocol"]),
            str_at(port, &["hostIP"])
        );
        if number != 0 && !taken.insert(key.clone()) {
            let path = path.child("ports").index(i).child("hostPort");
            errors.push(FieldError::duplicate(&path, key));
        }
    }
}

fn env(variables: &[Value], path: &Path, errors: &mut ErrorList) {
    for (i, variable) in variables.iter().enumerate() {
        let path = path.index(i);
        let name = str_at(variable, &["name"]);
        if name.is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        } else {
            let faults = names::check_env_var_name(name);
            errors.extend(invalid_each(&path.child("name"), name, faults));
        }
        if has(variable, &["valueFrom"]) {
            value_from(variable, &path.child("valueFrom"), errors);
        }
    }
}

fn value_from(variable: &Value, path: &Path, errors: &mut ErrorList) {
    const SOURCES: [&str; 5] = [
        "fieldRef",
        "resourceFieldRef",
        "configMapKeyRef",
        "secretKeyRef",
        "fileKeyRef",
    ];
    let source = at(variable, &["valueFrom"]);
    let given = SOURCES.iter().filter(|s| has(source, &[s])).count();
    if given == 0 {
        let fault = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
        errors.push(FieldError::invalid(path, "", fault));
    } else if !str_at(variable, &["value"]).is_empty() {
        let fault = "may not be specified when `value` is not empty";
        errors.push(FieldError::invalid(path, "", fault));
    } else if given > 1 {
        let fault = "may not have more than one field specified at a time";
        errors.push(FieldError::invalid(path, "", fault));
    }
    if has(source, &["fieldRef"]) {
        volumes::field_ref(
            at(source, &["fieldRef"]),
            true,
            &path.child("fieldRef"),
            errors,
        );
    }
    if has(source, &["resourceFieldRef"]) {
        let path = path.child("resourceFieldRef");
        volumes::resource_field_ref(at(source, &["resourceFieldRef"]), true, &path, errors);
    }
    if has(source, &["fileKeyRef"]) {
        let path = path.child("fileKeyRef");
        volumes::env_files::reference(at(source, &["fileKeyRef"]), &path, errors);
    }
    for key in ["configMapKeyRef", "secretKeyRef"] {
        let reference = at(source, &[key]);
        if reference.is_null() {
            continue;
        }
        let path = path.child(key);
        let name = str_at(reference, &["name"]);
        let faults = names::check_dns1123_subdomain(name);
        errors.extend(invalid_each(&path.child("name"), name, faults));
        let entry = str_at(reference, &["key"]);
        if entry.is_empty() {
            errors.push(FieldError::required(&path.child("key"), ""));
        } else {
            let faults = names::check_config_map_key(entry);
            errors.extend(invalid_each(&path.child("key"), entry, faults));
        }
    }
}

fn env_from(sources: &[Value], path: &Path, errors: &mut ErrorList) {
    for (i, source) in sources.iter().enumerate() {
        let (whole, path) = (path, path.index(i));
        let prefix = str_at(source, &["prefix"]);
        if !prefix.is_empty() {
            let faults = names::check_env_var_name(prefix);
            errors.extend(invalid_each(&path.child("prefix"), prefix, faults));
        }
        let given: Vec<&str> = ["configMapRef", "secretRef"]
            .into_iter()
            .filter(|key| has(source, &[key]))
            .collect();
        for key in &given {
            let check = names::check_dns1123_subdomain;
            fields::name(at(source, &[key]), "name", check, &path.child(key), errors);
        }
        let fault = match given.len() {
            0 => "must specify one of: `configMapRef` or `secretRef`",
            1 => continue,
            _ => "may not have more than one field specified at a time",
        };
        errors.push(FieldError::invalid(whole, "", fault));
    }
}

fn mounts(c: &Value, scope: &Scope<'_>, path: &Path, errors: &mut ErrorList) {
    let mut taken = HashSet::new();
    let of_devices = Entries::of(c, "volumeDevices", "devicePath");
    // Upstream names the list, not its entry, where a field is wrong by itself.
    let of_list = path.child("volumeMounts");
    for (i, mount) in list_at(c, &["volumeMounts"]).iter().enumerate() {
        let path = of_list.index(i);
        let name = str_at(mount, &["name"]);
        let at_name = path.child("name");
        if name.is_empty() {
            errors.push(FieldError::required(&at_name, ""));
        } else if !scope.volumes.contains_key(name) {
            errors.push(FieldError::not_found(&at_name, name));
        }
        let target = str_at(mount, &["mountPath"]);
        let at_target = path.child("mountPath");
        if target.is_empty() {
            errors.push(FieldError::required(&at_target, ""));
        } else if !taken.insert(target) {
            errors.push(FieldError::invalid(&at_target, target, "must be unique"));
        }
        if of_devices.names.contains(name) {
            let fault = "must not already exist in volumeDevices";
            errors.push(FieldError::invalid(&at_name, name, fault));
        }
        if of_devices.paths.contains(target) {
            let fault = "must not already exist as a path in volumeDevices";
            errors.push(FieldError::invalid(&at_target, target, fault));
        }
        for key in ["subPath", "subPathExpr"] {
            volumes::descending_path(str_at(mount, &[key]), &of_list.child(key), errors);
        }
        let expression = str_at(mount, &["subPathExpr"]);
        if !expression.is_empty() && !str_at(mount, &["subPath"]).is_empty() {
            let fault = "subPathExpr and subPath are mutually exclusive";
            let at = path.child("subPathExpr");
            errors.push(FieldError::invalid(&at, expression, fault));
        }
        let modes = ["Bidirectional", "HostToContainer", "None"];
        optional_choice(mount, "mountPropagation", &modes, &of_list, errors);
        let bidirectional = str_at(mount, &["mountPropagation"]) == "Bidirectional";
        if bidirectional && !bool_at(c, &["securityContext", "privileged"]) {
            let why = "Bidirectional mount propagation is available only to privileged containers";
            errors.push(FieldError::forbidden(
                &of_list.child("mountPropagation"),
                why,
            ));
        }
        recursive_read_only(mount, &of_list.child("recursiveReadOnly"), errors);
    }
    devices(c, scope, &path.child("volumeDevices"), errors);
}

/// The volumes of a list and where they are in the container: looked up, since both lists may be long.
struct Entries<'a> {
    names: HashSet<&'a str>,
    paths: HashSet<&'a str>,
}

impl<'a> Entries<'a> {
    fn of(c: &'a Value, list: &str, path: &str) -> Self {
        let entries = || list_at(c, &[list]).iter();
        Self {
            names: entries().map(|entry| str_at(entry, &["name"])).collect(),
            paths: entries().map(|entry| str_at(entry, &[path])).collect(),
        }
    }
}

fn devices(c: &Value, scope: &Scope<'_>, path: &Path, errors: &mut ErrorList) {
    let (mut names, mut paths) = (HashSet::new(), HashSet::new());
    let of_mounts = Entries::of(c, "volumeMounts", "mountPath");
    let is_claim =
        |volume: &Value| has(volume, &["persistentVolumeClaim"]) || has(volume, &["ephemeral"]);
    for (i, device) in list_at(c, &["volumeDevices"]).iter().enumerate() {
        let path = path.index(i);
        let (name, target) = (str_at(device, &["name"]), str_at(device, &["devicePath"]));
        let (at_name, at_target) = (path.child("name"), path.child("devicePath"));
        if name.is_empty() {
            errors.push(FieldError::required(&at_name, ""));
        } else if !names.insert(name) {
            errors.push(FieldError::invalid(&at_name, name, "must be unique"));
        }
        match scope.volumes.get(name) {
            Some(volume) if !is_claim(volume) => {
                let fault = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                errors.push(FieldError::invalid(&at_name, name, fault));
            }
            None if !name.is_empty() => errors.push(FieldError::not_found(&at_name, name)),
            _ => {}
        }
        if target.is_empty() {
            errors.push(FieldError::required(&at_target, ""));
        }
        if paths.contains(target) {
            errors.push(FieldError::invalid(&at_target, target, "must be unique"));
        }
        if target.split('/').any(|part| part == "..") {
            let fault = "can not contain backsteps ('..')";
            errors.push(FieldError::invalid(&at_target, target, fault));
        } else {
            paths.insert(target);
        }
        if of_mounts.names.contains(name) {
            let fault = "must not already exist in volumeMounts";
            errors.push(FieldError::invalid(&at_name, name, fault));
        }
        if of_mounts.paths.contains(target) {
            let fault = "must not already exist as a path in volumeMounts";
            errors.push(FieldError::invalid(&at_target, target, fault));
        }
    }
}

fn recursive_read_only(mount: &Value, path: &Path, errors: &mut ErrorList) {
    match at(mount, &["recursiveReadOnly"]).as_str() {
        None | Some("Disabled") => {}
        Some("Enabled" | "IfPossible") => {
            if !bool_at(mount, &["readOnly"]) {
                let why = "may only be specified when readOnly is true";
                errors.push(FieldError::forbidden(path, why));
            }
            if !matches!(str_at(mount, &["mountPropagation"]), "" | "None") {
                let why = "may only be specified when mountPropagation is None or not specified";
                errors.push(FieldError::forbidden(path, why));
            }
        }
        Some(other) => {
            let modes = ["Disabled", "Enabled", "IfPossible"];
            errors.push(FieldError::not_supported(path, other, &modes));
        }
    }
}

fn probes(c: &Value, path: &Path, errors: &mut ErrorList) {
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let probe = at(c, &[name]);
        if probe.is_null() {
            continue;
        }
        let path = path.child(name);
        handler(
            probe,
            &["exec", "httpGet", "tcpSocket", "grpc"],
            &path,
            errors,
        );
        for key in [
            "initialDelaySeconds",
            "timeoutSeconds",
            "periodSeconds",
            "successThreshold",
            "failureThreshold",
        ] {
            not_negative(probe, key, &path, errors);
        }
        if name != "readinessProbe" {
            let threshold = int_at(probe, &["successThreshold"]).unwrap_or(0);
            if threshold != 1 {
                let path = path.child("successThreshold");
                errors.push(FieldError::invalid(&path, threshold, "must be 1"));
            }
        }
        if let Some(seconds) = int_at(probe, &["terminationGracePeriodSeconds"]) {
            let path = path.child("terminationGracePeriodSeconds");
            if name == "readinessProbe" {
                let fault = "must not be set for readinessProbes";
                errors.push(FieldError::invalid(&path, seconds, fault));
            } else if seconds <= 0 {
                errors.push(FieldError::invalid(
                    &path,
                    seconds,
                    "must be greater than 0",
                ));
            }
        }
    }
}

fn lifecycle(c: &Value, scope: &Scope<'_>, path: &Path, errors: &mut ErrorList) {
    for hook in ["postStart", "preStop"] {
        let action = at(c, &["lifecycle", hook]);
        if !action.is_null() {
            let path = path.child("lifecycle").child(hook);
            handler(
                action,
                &["exec", "httpGet", "tcpSocket", "sleep"],
                &path,
                errors,
            );
            sleep(action, scope.grace, &path, errors);
        }
    }
}

/// A hook sleeps no longer than the pod has to end.
fn sleep(action: &Value, grace: Option<i64>, path: &Path, errors: &mut ErrorList) {
    let (Some(grace), false) = (grace, at(action, &["sleep"]).is_null()) else {
        return;
    };
    let seconds = int_at(action, &["sleep", "seconds"]).unwrap_or(0);
    if seconds < 0 || seconds > grace {
        let why =
            format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
        errors.push(FieldError::invalid(&path.child("sleep"), seconds, why));
    }
}

fn handler(of: &Value, kinds: &[&str], path: &Path, errors: &mut ErrorList) {
    let mut given = 0;
    for kind in kinds {
        let action = at(of, &[kind]);
        if action.is_null() {
            continue;
        }
        let path = path.child(kind);
        given += 1;
        if given > 1 {
            let why = "may not specify more than 1 handler type";
            errors.push(FieldError::forbidden(&path, why));
            continue;
        }
        match *kind {
            "exec" if list_at(action, &["command"]).is_empty() => {
                errors.push(FieldError::required(&path.child("command"), ""));
            }
            "httpGet" => http_get(action, &path, errors),
            "tcpSocket" => port_or_name(at(action, &["port"]), &path.child("port"), errors),
            "grpc" => {
                let port = int_at(action, &["port"]).unwrap_or(0);
                port_number(port, &path.child("port"), errors);
            }
            _ => {}
        }
    }
    if given == 0 {
        errors.push(FieldError::required(path, "must specify a handler type"));
    }
}

fn http_get(action: &Value, path: &Path, errors: &mut ErrorList) {
    required(action, "path", path, errors);
    port_or_name(at(action, &["port"]), &path.child("port"), errors);
    choice(action, "scheme", &["HTTP", "HTTPS"], path, errors);
    for (i, header) in list_at(action, &["httpHeaders"]).iter().enumerate() {
        let name = str_at(header, &["name"]);
        let path = path.child("httpHeaders").index(i).child("name");
        errors.extend(invalid_each(
            &path,
            name,
            names::check_http_header_name(name),
        ));
    }
}

/// Faults of a port given by number or by name.
pub(super) fn port_or_name(port: &Value, path: &Path, errors: &mut ErrorList) {
    match port {
        Value::String(name) => {
            errors.extend(invalid_each(path, name, names::check_port_name(name)));
        }
        other => port_number(other.as_i64().unwrap_or(0), path, errors),
    }
}

const MAX_RESTART_RULES: usize = 20;
const MAX_EXIT_CODES: usize = 255;

/// A container's own restart policy and the rules that go before it (KEP-5307, KEP-5532).
fn restart_policy(c: &Value, path: &Path, errors: &mut ErrorList) {
    let policies = ["Always", "Never", "OnFailure"];
    optional_choice(c, "restartPolicy", &policies, path, errors);
    let rules = list_at(c, &["restartPolicyRules"]);
    if !rules.is_empty() && str_at(c, &["restartPolicy"]).is_empty() {
        let why = "must specify restartPolicy when restart rules are used";
        errors.push(FieldError::required(&path.child("restartPolicy"), why));
        return;
    }
    let path = path.child("restartPolicyRules");
    if rules.len() > MAX_RESTART_RULES {
        errors.push(FieldError::too_many(&path, rules.len(), MAX_RESTART_RULES));
    }
    for (place, rule) in rules.iter().enumerate() {
        restart_rule(rule, &path.index(place), errors);
    }
}

fn restart_rule(rule: &Value, path: &Path, errors: &mut ErrorList) {
    let one_of = |of: &Value, key: &str, values: &[&str], path: &Path, errors: &mut ErrorList| {
        let value = str_at(of, &[key]);
        if !values.contains(&value) {
            errors.push(FieldError::not_supported(&path.child(key), value, values));
        }
    };
    let actions = ["Restart", "RestartAllContainers"];
    one_of(rule, "action", &actions, path, errors);
    let codes = at(rule, &["exitCodes"]);
    let path = path.child("exitCodes");
    if codes.is_null() {
        errors.push(FieldError::required(&path, "must be specified"));
        return;
    }
    one_of(codes, "operator", &["In", "NotIn"], &path, errors);
    let values = list_at(codes, &["values"]).len();
    if values > MAX_EXIT_CODES {
        errors.push(FieldError::too_many(
            &path.child("values"),
            values,
            MAX_EXIT_CODES,
        ));
    }
}

fn init(c: &Value, scope: &Scope<'_>, path: &Path, errors: &mut ErrorList) {
    restart_policy(c, path, errors);
    if str_at(c, &["restartPolicy"]) == "Always" {
        probes(c, path, errors);
        lifecycle(c, scope, path, errors);
        return;
    }
    for key in [
        "lifecycle",
        "livenessProbe",
        "readinessProbe",
        "startupProbe",
    ] {
        if has(c, &[key]) {
            let why = "may not be set for init containers without restartPolicy=Always";
            errors.push(FieldError::forbidden(&path.child(key), why));
        }
    }
    for (i, policy) in list_at(c, &["resizePolicy"]).iter().enumerate() {
        let word = str_at(policy, &["restartPolicy"]);
        if word == "RestartContainer" {
            let path = path.child("resizePolicy").index(i).child("restartPolicy");
            errors.push(FieldError::invalid(&path, word, INIT_RESTARTS));
        }
    }
}

fn ephemeral(c: &Value, containers: &HashSet<&str>, path: &Path, errors: &mut ErrorList) {
    const NOT_ALLOWED: [&str; 9] = [
        "ports",
        "livenessProbe",
        "readinessProbe",
        "startupProbe",
        "lifecycle",
        "resources",
        "resizePolicy",
        "restartPolicy",
        "restartPolicyRules",
    ];
    for key in NOT_ALLOWED {
        if !super::json::is_empty(at(c, &[key])) {
            let why = "cannot be set for an Ephemeral Container";
            errors.push(FieldError::forbidden(&path.child(key), why));
        }
    }
    let target = str_at(c, &["targetContainerName"]);
    if !target.is_empty() && !containers.contains(target) {
        errors.push(FieldError::not_found(
            &path.child("targetContainerName"),
            target,
        ));
    }
    for (i, mount) in list_at(c, &["volumeMounts"]).iter().enumerate() {
        for key in ["subPath", "subPathExpr"] {
            if !str_at(mount, &[key]).is_empty() {
                let path = path.child("volumeMounts").index(i).child(key);
                let why = "cannot be set for an Ephemeral Container";
                errors.push(FieldError::forbidden(&path, why));
            }
        }
    }
}

fn security_context(context: &Value, scope: &Scope<'_>, path: &Path, errors: &mut ErrorList) {
    for key in ["runAsUser", "runAsGroup"] {
        user_id(context, key, path, errors);
    }
    if at(context, &["allowPrivilegeEscalation"]).as_bool() == Some(false) {
        let capabilities = list_at(context, &["capabilities", "add"]);
        if bool_at(context, &["privileged"]) {
            let fault = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            errors.push(FieldError::invalid(path, context.clone(), fault));
        }
        if capabilities.iter().any(|c| c == "CAP_SYS_ADMIN") {
            let fault = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            errors.push(FieldError::invalid(path, context.clone(), fault));
        }
    }
    optional_choice(context, "procMount", &["Default", "Unmasked"], path, errors);
    if scope.host_users && str_at(context, &["procMount"]) == "Unmasked" {
        let fault = "`hostUsers` must be false to use `Unmasked`";
        errors.push(FieldError::invalid(
            &path.child("procMount"),
            "Unmasked",
            fault,
        ));
    }
    seccomp(
        at(context, &["seccompProfile"]),
        &path.child("seccompProfile"),
        errors,
    );
    windows::options(context, path, errors);
    app_armor::profile(
        at(context, &["appArmorProfile"]),
        &path.child("appArmorProfile"),
        errors,
    );
}

/// Faults of a user or group number.
pub(super) fn user_id(context: &Value, key: &str, path: &Path, errors: &mut ErrorList) {
    let id = int_at(context, &[key]);
    if let Some(id) = id.filter(|id| !(0..=i64::from(i32::MAX)).contains(id)) {
        let fault = names::range_text(0, i64::from(i32::MAX));
        errors.push(FieldError::invalid(&path.child(key), id, fault));
    }
}

/// Faults of a seccomp profile.
pub(super) fn seccomp(profile: &Value, path: &Path, errors: &mut ErrorList) {
    if profile.is_null() {
        return;
    }
    choice(
        profile,
        "type",
        &["Localhost", "RuntimeDefault", "Unconfined"],
        path,
        errors,
    );
    let localhost = str_at(profile, &["type"]) == "Localhost";
    let file = str_at(profile, &["localhostProfile"]);
    let path = path.child("localhostProfile");
    if localhost && file.is_empty() {
        errors.push(FieldError::required(
            &path,
            "must be set when seccomp type is Localhost",
        ));
    } else if localhost {
        volumes::descending_path(file, &path, errors);
    } else if !file.is_empty() {
        let fault = "can only be set when seccomp type is Localhost";
        errors.push(FieldError::invalid(&path, file, fault));
    }
}

/// Variables that hide one of the same name and do not speak of it, with their places.
pub(super) fn repeated_env(c: &Value) -> Vec<(usize, &str)> {
    let mut seen = HashSet::new();
    let variables = list_at(c, &["env"]).iter().enumerate();
    let hides = |variable: &Value| {
        let old = format!("$({})", str_at(variable, &["name"]));
        let value = str_at(variable, &["value"]);
        has(variable, &["valueFrom"]) || value == old || !value.contains(&old)
    };
    variables
        .map(|(i, variable)| (i, variable, str_at(variable, &["name"])))
        .filter(|(_, variable, name)| !seen.insert(*name) && hides(variable))
        .map(|(i, _, name)| (i, name))
        .collect()
}
