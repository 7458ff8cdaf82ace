//! Defaults of pods and pod templates that depend on other fields or that upstream sets in code.
//! All of them are idempotent.

use davit_api::quantity::Quantity;
use serde_json::{Map, Value, json};

use super::json::{
    at, at_mut, bool_at, default, default_nonzero, default_unset, has, is_empty, list_at, list_mut,
    remove, set, str_at,
};

/// Lists of containers in a pod spec.
pub(super) const CONTAINER_LISTS: [&str; 3] =
    ["initContainers", "containers", "ephemeralContainers"];

/// Defaults of a pod (not of a template): requests from limits, host ports, service links.
pub(super) fn pod(pod: &mut Value) {
    let Some(spec) = at_mut(pod, &["spec"]) else {
        return;
    };
    let nested = nested_claims(spec);
    pod_spec(spec);
    nest_claims(spec, nested);
    for list in ["containers", "initContainers"] {
        for container in list_mut(spec, &[list]) {
            requests_from_limits(container);
        }
    }
    pod_level_requests(spec);
    default_unset(spec, "enableServiceLinks", true);
    if bool_at(spec, &["hostNetwork"]) {
        host_ports(spec);
    }
    for status in [
        "initContainerStatuses",
        "containerStatuses",
        "ephemeralContainerStatuses",
    ] {
        for container in list_mut(pod, &["status", status]) {
            round_quantities(container, &["allocatedResources"]);
        }
    }
}

/// Defaults of the pod spec of pods and of pod templates.
pub(super) fn pod_spec(spec: &mut Value) {
    if !spec.is_object() {
        return;
    }
    default(spec, "dnsPolicy", "ClusterFirst");
    default(spec, "restartPolicy", "Always");
    default_unset(spec, "securityContext", json!({}));
    default_unset(spec, "terminationGracePeriodSeconds", 30);
    default(spec, "schedulerName", "default-scheduler");
    service_account(spec);
    classic_claims(spec);
    for list in CONTAINER_LISTS {
        for c in list_mut(spec, &[list]) {
            container(c);
        }
    }
    for v in list_mut(spec, &["volumes"]) {
        volume(v);
    }
    round_quantities(spec, &["overhead"]);
    round_quantities(spec, &["resources", "limits"]);
    round_quantities(spec, &["resources", "requests"]);
}

/// `serviceAccount` is the older name of `serviceAccountName`; the newer one wins.
fn service_account(spec: &mut Value) {
    let name = match str_at(spec, &["serviceAccountName"]) {
        "" => str_at(spec, &["serviceAccount"]),
        name => name,
    }
    .to_owned();
    if !name.is_empty() {
        set(spec, "serviceAccountName", name.clone());
        set(spec, "serviceAccount", name);
    }
}

/// The classic era nests the reference to a claim under `source`. Templates keep the flat form only:
/// there `source` is news from an old writer, and overrules what is stored.
fn classic_claims(spec: &mut Value) {
    for claim in list_mut(spec, &["resourceClaims"]) {
        let Some(Value::Object(source)) = remove(claim, "source") else {
            continue;
        };
        if source.values().any(|v| !v.is_null()) {
            remove(claim, "resourceClaimName");
            remove(claim, "resourceClaimTemplateName");
        }
        for (key, value) in source {
            default(claim, &key, value);
        }
    }
}

/// Pods, which cannot change, keep both forms: programs of 1.26 read `source`, later ones the rest.
fn nested_claims(spec: &Value) -> Vec<Value> {
    let claims = list_at(spec, &["resourceClaims"]).iter();
    claims.map(|c| at(c, &["source"]).clone()).collect()
}

/// Puts back what [`nested_claims`] found.
fn nest_claims(spec: &mut Value, sources: Vec<Value>) {
    let claims = list_mut(spec, &["resourceClaims"]);
    for (claim, source) in claims.zip(sources) {
        if source.is_object() {
            set(claim, "source", source);
        }
    }
}

/// A writer that does not know `source` does not mean to remove it.
pub(super) fn keep_nested_claims(new: &mut Value, old: &Value) {
    let stored = list_at(old, &["spec", "resourceClaims"]);
    for claim in list_mut(new, &["spec", "resourceClaims"]) {
        let before = stored
            .iter()
            .find(|c| str_at(c, &["name"]) == str_at(claim, &["name"]));
        let Some(source) = before.map(|b| at(b, &["source"])).filter(|s| s.is_object()) else {
            continue;
        };
        let same = |key: &str| str_at(claim, &[key]) == str_at(source, &[key]);
        if !has(claim, &["source"])
            && same("resourceClaimName")
            && same("resourceClaimTemplateName")
        {
            set(claim, "source", source.clone());
        }
    }
}

fn container(c: &mut Value) {
    let policy = pull_policy(str_at(c, &["image"]));
    default(c, "imagePullPolicy", policy);
    default(c, "terminationMessagePath", "/dev/termination-log");
    default(c, "terminationMessagePolicy", "File");
    default_unset(c, "resources", json!({}));
    for port in list_mut(c, &["ports"]) {
        default(port, "protocol", "TCP");
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(p) = at_mut(c, &[name]).filter(|p| p.is_object()) {
            probe(p);
        }
    }
    for hook in ["postStart", "preStop"] {
        if let Some(http) = at_mut(c, &["lifecycle", hook, "httpGet"]) {
            http_get(http);
        }
    }
    for env in list_mut(c, &["env"]) {
        if let Some(field) = at_mut(env, &["valueFrom", "fieldRef"]) {
            default(field, "apiVersion", "v1");
        }
        if let Some(divisor) = at_mut(env, &["valueFrom", "resourceFieldRef"]) {
            default_unset(divisor, "divisor", "0");
        }
    }
    round_quantities(c, &["resources", "limits"]);
    round_quantities(c, &["resources", "requests"]);
}

fn probe(p: &mut Value) {
    default_nonzero(p, "timeoutSeconds", 1);
    default_nonzero(p, "periodSeconds", 10);
    default_nonzero(p, "successThreshold", 1);
    default_nonzero(p, "failureThreshold", 3);
    if let Some(http) = at_mut(p, &["httpGet"]) {
        http_get(http);
    }
    if let Some(grpc) = at_mut(p, &["grpc"]) {
        default_unset(grpc, "service", "");
    }
}

fn http_get(action: &mut Value) {
    default(action, "path", "/");
    default(action, "scheme", "HTTP");
}

/// Always for images without tag or with the tag `latest`, IfNotPresent for all others (digests
/// and references that do not parse included).
pub(super) fn pull_policy(image: &str) -> &'static str {
    if image.contains('@') || !is_reference(image) {
        return "IfNotPresent";
    }
    let last = image.rsplit('/').next().unwrap_or(image);
    match last.split_once(':') {
        None | Some((_, "latest")) => "Always",
        Some(_) => "IfNotPresent",
    }
}

/// Whether an image may be called so: a domain or none, components in lower case, a tag or none.
fn is_reference(image: &str) -> bool {
    let lower = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_separator =
        |text: &str| matches!(text, "" | "." | "_" | "__") || text.bytes().all(|byte| byte == b'-');
    let is_component = |text: &str| {
        text.starts_with(lower) && text.ends_with(lower) && text.split(lower).all(is_separator)
    };
    let is_tag = |tag: &str| {
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        tag.len() <= 128
            && tag.starts_with(word)
            && tag.chars().all(|c| word(c) || c == '.' || c == '-')
    };
    let is_domain = |text: &str| {
        text.contains(['.', ':'])
            || text == "localhost"
            || text.contains(|c: char| c.is_ascii_uppercase())
    };
    let path = match image.split_once('/') {
        Some((domain, path)) if is_domain(domain) => path,
        _ => image,
    };
    let at = path.rfind('/').map_or(0, |at| at + 1);
    let (path, tag) = match path[at..].split_once(':') {
        Some((name, tag)) => (&path[..at + name.len()], Some(tag)),
        None => (path, None),
    };
    tag.is_none_or(is_tag) && path.split('/').all(is_component)
}

/// Keys of a volume that name no source.
fn has_source(volume: &Value) -> bool {
    volume
        .as_object()
        .is_some_and(|v| v.iter().any(|(k, s)| k != "name" && !s.is_null()))
}

fn volume(v: &mut Value) {
    if !has_source(v) {
        set(v, "emptyDir", json!({}));
    }
    for source in ["configMap", "secret", "downwardAPI", "projected"] {
        if let Some(s) = at_mut(v, &[source]) {
            default_unset(s, "defaultMode", 0o644);
        }
    }
    if let Some(s) = at_mut(v, &["hostPath"]) {
        default_unset(s, "type", "");
    }
    if let Some(image) = at_mut(v, &["image"]) {
        let policy = pull_policy(str_at(image, &["reference"]));
        default(image, "pullPolicy", policy);
    }
    for item in list_mut(v, &["downwardAPI", "items"]) {
        downward_item(item);
    }
    for source in list_mut(v, &["projected", "sources"]) {
        if let Some(token) = at_mut(source, &["serviceAccountToken"]) {
            default_unset(token, "expirationSeconds", 3600);
        }
        for item in list_mut(source, &["downwardAPI", "items"]) {
            downward_item(item);
        }
    }
    if let Some(spec) = at_mut(v, &["ephemeral", "volumeClaimTemplate", "spec"]) {
        default(spec, "volumeMode", "Filesystem");
    }
    legacy_volume(v);
}

fn downward_item(item: &mut Value) {
    if let Some(field) = at_mut(item, &["fieldRef"]) {
        default(field, "apiVersion", "v1");
    }
    if let Some(field) = at_mut(item, &["resourceFieldRef"]) {
        default_unset(field, "divisor", "0");
    }
}

/// Defaults of volume sources that also stand in persistent volumes.
pub(super) fn legacy_volume(v: &mut Value) {
    const DEFAULTS: &[(&str, &[(&str, &str)])] = &[
        ("iscsi", &[("iscsiInterface", "default")]),
        (
            "rbd",
            &[
                ("pool", "rbd"),
                ("user", "admin"),
                ("keyring", "/etc/ceph/keyring"),
            ],
        ),
        (
            "scaleIO",
            &[("storageMode", "ThinProvisioned"), ("fsType", "xfs")],
        ),
        (
            "azureDisk",
            &[
                ("cachingMode", "ReadWrite"),
                ("kind", "Shared"),
                ("fsType", "ext4"),
            ],
        ),
    ];
    for (source, fields) in DEFAULTS {
        if let Some(s) = at_mut(v, &[source]) {
            for (key, value) in *fields {
                default(s, key, *value);
            }
        }
    }
    if let Some(s) = at_mut(v, &["azureDisk"]) {
        default_unset(s, "readOnly", false);
    }
}

/// A limit without request is the request.
fn requests_from_limits(container: &mut Value) {
    let Some(limits) = at(container, &["resources", "limits"]).as_object().cloned() else {
        return;
    };
    if limits.is_empty() {
        return;
    }
    let Some(resources) = at_mut(container, &["resources"]) else {
        return;
    };
    let Some(requests) = super::json::object_mut(resources, "requests") else {
        return;
    };
    for (name, value) in limits {
        requests.entry(name).or_insert(value);
    }
}

/// Pod-level requests follow from the sum of the containers' requests, then from the pod's own
/// limits (KEP-2837).
fn pod_level_requests(spec: &mut Value) {
    let Some(limits) = at(spec, &["resources", "limits"]).as_object().cloned() else {
        return;
    };
    if limits.is_empty() {
        return;
    }
    let mut derived = Map::new();
    for name in ["cpu", "memory"] {
        if let Some(total) = effective(spec, "requests", name) {
            derived.insert(name.to_owned(), Value::String(total.to_string()));
        }
    }
    for (name, value) in limits {
        if supported_at_pod_level(&name) {
            derived.entry(name).or_insert(value);
        }
    }
    let Some(resources) = at_mut(spec, &["resources"]) else {
        return;
    };
    let Some(requests) = super::json::object_mut(resources, "requests") else {
        return;
    };
    for (name, value) in derived {
        requests.entry(name).or_insert(value);
    }
}

/// Resources a pod may ask for as a whole.
pub(super) fn supported_at_pod_level(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with("hugepages-")
}

/// What the containers of a pod need together of one resource, by their `requests` or `limits`: the sum of containers and
/// sidecars or the highest init step, whichever is more. `None` when nobody asks.
pub(super) fn effective(spec: &Value, part: &str, name: &str) -> Option<Quantity> {
    let request = |c: &Value| -> Option<Quantity> {
        let amount = at(c, &["resources", part, name]);
        Quantity::from_json(amount)
            .ok()
            .filter(|_| !amount.is_null())
    };
    let mut asked = false;
    let mut sum = Quantity::default();
    for c in list_at(spec, &["containers"]) {
        if let Some(q) = request(c) {
            asked = true;
            sum += q;
        }
    }
    let mut sidecars = Quantity::default();
    let mut highest = Quantity::default();
    for c in list_at(spec, &["initContainers"]) {
        let q = request(c);
        asked |= q.is_some();
        let q = q.unwrap_or_default();
        if str_at(c, &["restartPolicy"]) == "Always" {
            sidecars += q;
            highest = highest.max(sidecars);
        } else {
            highest = highest.max(sidecars + q);
        }
    }
    asked.then(|| (sum + sidecars).max(highest))
}

/// With host networking a container port is a host port.
fn host_ports(spec: &mut Value) {
    for list in ["containers", "initContainers"] {
        for c in list_mut(spec, &[list]) {
            for port in list_mut(c, &["ports"]) {
                let number = at(port, &["containerPort"]).clone();
                if !number.is_null() && at(port, &["hostPort"]).as_i64().unwrap_or(0) == 0 {
                    set(port, "hostPort", number);
                }
            }
        }
    }
}

/// Quantities of resource lists are kept to a thousandth, rounded up.
pub(super) fn round_quantities(value: &mut Value, path: &[&str]) {
    let Some(Value::Object(list)) = at_mut(value, path) else {
        return;
    };
    for amount in list.values_mut() {
        let Some(text) = amount.as_str() else {
            continue;
        };
        if !text.ends_with(['n', 'u']) && !text.contains(['.', 'e']) {
            continue;
        }
        let Ok(exact) = text.parse::<Quantity>() else {
            continue;
        };
        let milli = exact.milli_value();
        let rounded = Quantity::from_milli(milli);
        // amounts beyond 64 bits of thousandths have no fraction worth rounding
        if rounded != exact && milli.unsigned_abs() < i64::MAX as u64 {
            *amount = Value::String(rounded.to_string());
        }
    }
}

/// QoS class as upstream computes it at creation.
pub(super) fn qos_class(spec: &Value) -> &'static str {
    if has(spec, &["resources"]) && !is_empty(at(spec, &["resources"])) {
        return qos_of(std::iter::once(spec));
    }
    let containers = list_at(spec, &["containers"]);
    let inits = list_at(spec, &["initContainers"]);
    qos_of(containers.iter().chain(inits))
}

fn qos_of<'a>(holders: impl Iterator<Item = &'a Value>) -> &'static str {
    let mut totals: [std::collections::BTreeMap<String, Quantity>; 2] = Default::default();
    let mut guaranteed = true;
    for holder in holders {
        let mut limited = 0;
        for (total, list) in totals.iter_mut().zip(["requests", "limits"]) {
            for (name, value) in super::json::entries_at(holder, &["resources", list]) {
                if name != "cpu" && name != "memory" {
                    continue;
                }
                let q: Quantity = value
                    .as_str()
                    .and_then(|v| v.parse().ok())
                    .unwrap_or_default();
                if q > Quantity::default() {
                    limited += usize::from(list == "limits");
                    *total.entry(name.clone()).or_default() += q;
                }
            }
        }
        guaranteed &= limited == 2;
    }
    let [requests, limits] = totals;
    if requests.is_empty() && limits.is_empty() {
        "BestEffort"
    } else if guaranteed
        && requests.len() == limits.len()
        && requests.iter().all(|(k, v)| limits.get(k) == Some(v))
    {
        "Guaranteed"
    } else {
        "Burstable"
    }
}
