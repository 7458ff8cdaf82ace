//! Pods.

mod annotations;
mod claim_statuses;
mod resize;
mod warnings;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use serde_json::{Map, Value, json};

use super::json::{
    at, bool_at, has, int_at, is_empty, keep, list_at, object_mut, remove, same, set, str_at,
};
use super::{KindInfo, Strategy, access, app_armor, meta, pod_defaults, pod_spec, scheduling};

pub(super) use warnings::{spec_warnings, template_warnings};

/// What may change in the spec of a pod, as upstream says it.
const UPDATABLE: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

pub(super) struct Pod(pub(super) KindInfo);

impl Strategy for Pod {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        pod_defaults::pod(obj);
    }

    fn prepare_for_create(&self, obj: &mut Value) {
        access::first_generation(&self.0, obj);
        let qos = match str_at(obj, &["status", "qosClass"]) {
            "" => pod_defaults::qos_class(at(obj, &["spec"])),
            given => given,
        };
        let mut status = json!({"phase": "Pending", "qosClass": qos});
        if !list_at(obj, &["spec", "schedulingGates"]).is_empty() {
            status["conditions"] = json!([{
                "type": "PodScheduled",
                "status": "False",
                "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
                "lastTransitionTime": str_at(obj, &["metadata", "creationTimestamp"]),
            }]);
        }
        set(obj, "status", status);
        scheduling::merge_label_keys(obj);
        app_armor::from_annotations(obj);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value) {
        access::keep_status(&self.0, new, old);
        pod_defaults::keep_nested_claims(new, old);
        access::next_generation(&self.0, new, old);
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        let spec = at(obj, &["spec"]);
        let path = Path::new("spec");
        pod_spec::validate(spec, true, &path, &mut errors);
        if !list_at(spec, &["ephemeralContainers"]).is_empty() {
            let why = "cannot be set on create";
            errors.push(FieldError::forbidden(
                &path.child("ephemeralContainers"),
                why,
            ));
        }
        let gated = !list_at(spec, &["schedulingGates"]).is_empty();
        if gated && !str_at(spec, &["nodeName"]).is_empty() {
            let why = "cannot be set until all schedulingGates have been cleared";
            errors.push(FieldError::forbidden(&path.child("nodeName"), why));
        }
        mirror(obj, &mut errors);
        let at_annotations = Path::new("metadata").child("annotations");
        let metadata = at(obj, &["metadata"]);
        app_armor::annotations(metadata, spec, [&at_annotations, &path], &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        spec_update(new, old, &mut errors);
        mirror_update(new, old, &mut errors);
        app_armor::annotations_update(new, old, &mut errors);
        update(new, old, &mut errors);
        errors
    }

    fn prepare_status_update(&self, new: &mut Value, old: &Value) {
        access::keep_all_but_status_and_metadata(new, old);
        if let (Some(meta), Some(stored)) = (new.get_mut("metadata"), old.get("metadata")) {
            // status writers leave owners alone
            keep(meta, stored, "ownerReferences");
        }
        let qos = at(old, &["status", "qosClass"]);
        if let Some(status) = object_mut(new, "status") {
            if !qos.is_null() {
                status.entry("qosClass").or_insert_with(|| qos.clone());
            }
            settle_addresses(status);
        }
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        mirror_update(new, old, &mut errors);
        app_armor::annotations_update(new, old, &mut errors);
        status_update(new, old, &mut errors);
        errors
    }

    fn prepare_subresource_update(&self, subresource: &str, new: &mut Value, old: &Value) {
        match subresource {
            "ephemeralcontainers" => only_in_spec(new, old, keep_all_but_ephemeral),
            "resize" => only_in_spec(new, old, resize::keep_all_but_resources),
            _ => return self.prepare_status_update(new, old),
        }
        access::next_generation(&self.0, new, old);
    }

    fn validate_subresource_update(
        &self,
        subresource: &str,
        new: &Value,
        old: &Value,
    ) -> ErrorList {
        match subresource {
            "ephemeralcontainers" => {
                if is_mirror(old) {
                    return vec![of_the_whole(
                        "static pods do not support ephemeral containers",
                    )];
                }
                let mut errors = meta::validate_update(&self.0, new, old);
                ephemeral_update(new, old, &mut errors);
                errors
            }
            "resize" => {
                if let Some(why) = resize::refusal(old) {
                    return vec![of_the_whole(why)];
                }
                let mut errors = meta::validate_update(&self.0, new, old);
                spec_update(new, old, &mut errors);
                resize::validate(new, old, &mut errors);
                errors
            }
            _ => self.validate_status_update(new, old),
        }
    }

    fn field_names(&self) -> &'static [&'static str] {
        &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.podIPs",
            "status.nominatedNodeName",
        ]
    }

    fn fields(&self, obj: &Value) -> Vec<(&'static str, String)> {
        self.field_names()
            .iter()
            .map(|name| {
                let value = match *name {
                    "spec.hostNetwork" => bool_at(obj, &["spec", "hostNetwork"]).to_string(),
                    "status.podIPs" | "status.podIP" => {
                        str_at(obj, &["status", "podIP"]).to_owned()
                    }
                    name => {
                        let path: Vec<&str> = name.split('.').collect();
                        str_at(obj, &path).to_owned()
                    }
                };
                (*name, value)
            })
            .collect()
    }

    fn field_alias<'a>(&self, label: &'a str) -> &'a str {
        if label == "spec.host" {
            "spec.nodeName"
        } else {
            label
        }
    }

    fn grace_period(&self, obj: &Value, requested: Option<i64>) -> Option<i64> {
        let unscheduled = str_at(obj, &["spec", "nodeName"]).is_empty();
        let ended = matches!(str_at(obj, &["status", "phase"]), "Succeeded" | "Failed");
        if unscheduled || ended {
            return Some(0);
        }
        let own = int_at(obj, &["spec", "terminationGracePeriodSeconds"]).unwrap_or(0);
        let seconds = requested.unwrap_or(own);
        Some(if seconds < 0 { 1 } else { seconds })
    }

    fn preparation_warnings(&self, obj: &Value) -> Vec<String> {
        annotations::app_armor_of_pod(obj)
    }

    fn create_warnings(&self, obj: &Value) -> Vec<String> {
        meta::label_warning(obj, "the Pod's hostname")
    }

    /// None: who updates pods is rarely a human being, and what a pod is made of has been said of it.
    fn update_warnings(&self, _new: &Value, _old: &Value) -> Vec<String> {
        Vec::new()
    }

    fn warnings(&self, obj: &Value) -> Vec<String> {
        let mut warnings = spec_warnings(at(obj, &["spec"]), "spec");
        warnings.extend(annotations::annotation_warnings(obj, "metadata"));
        warnings
    }
}

/// The one address and the first of several are the same; where they differ, the one holds, as for old writers that know
/// no other.
fn settle_addresses(status: &mut Map<String, Value>) {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let one = text(status.get("podIP"));
    let first = text(status.get("podIPs").and_then(|list| list.pointer("/0/ip")));
    if one.is_empty() && !first.is_empty() {
        status.insert("podIP".to_owned(), Value::from(first));
    } else if one != first {
        status.insert("podIPs".to_owned(), json!([{ "ip": one }]));
    }
}

/// Keeps everything of the stored object except what `change` takes over from the written spec.
fn only_in_spec(new: &mut Value, old: &Value, change: fn(&mut Value, &Value)) {
    let written = remove(new, "spec").unwrap_or_default();
    let status = old.get("status").cloned();
    access::keep_all_but_status(new, old);
    if let Some(status) = status {
        set(new, "status", status);
    }
    if let Some(spec) = new.get_mut("spec") {
        change(spec, &written);
    }
}

fn keep_all_but_ephemeral(spec: &mut Value, written: &Value) {
    keep(spec, written, "ephemeralContainers");
}

/// What says that a pod is the mirror of a node's own: nobody takes it for something else later on.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Whether it is the mirror of a pod that its node has from somewhere else, a static one.
fn is_mirror(pod: &Value) -> bool {
    has(pod, &["metadata", "annotations", MIRROR])
}

/// A fault of the object and of none of its fields.
fn of_the_whole(why: &str) -> FieldError {
    FieldError {
        field: String::new(),
        ..FieldError::forbidden(&Path::root(), why)
    }
}

/// A mirror is of a pod that runs on a node.
fn mirror(pod: &Value, errors: &mut ErrorList) {
    let mirror = at(pod, &["metadata", "annotations", MIRROR]);
    if !mirror.is_null() && str_at(pod, &["spec", "nodeName"]).is_empty() {
        let path = Path::new("metadata").child("annotations").key(MIRROR);
        let why = "must set spec.nodeName if mirror pod annotation is set";
        errors.push(FieldError::invalid(&path, mirror.clone(), why));
    }
}

fn mirror_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let of = |pod| at(pod, &["metadata", "annotations", MIRROR]);
    let why = match (of(old).is_null(), of(new).is_null()) {
        (true, true) => return,
        (true, false) => "may not add mirror pod annotation",
        (false, _) if of(new) == of(old) => return,
        (false, _) => "may not remove or update mirror pod annotation",
    };
    let path = Path::new("metadata").child("annotations").key(MIRROR);
    errors.push(FieldError::forbidden(&path, why));
}

fn update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec");
    let (spec, stored) = (at(new, &["spec"]), at(old, &["spec"]));
    let mut same_lists = true;
    for list in ["containers", "initContainers"] {
        let (now, before) = (list_at(spec, &[list]), list_at(stored, &[list]));
        if now.len() != before.len() {
            let why = "pod updates may not add or remove containers";
            errors.push(FieldError::forbidden(&path.child(list), why));
            same_lists = false;
        }
        for (i, c) in now.iter().enumerate() {
            let image = str_at(c, &["image"]);
            let path = path.child(list).index(i).child("image");
            if image.is_empty() {
                errors.push(FieldError::required(&path, ""));
            } else if image != image.trim() {
                let fault = "must not have leading or trailing whitespace";
                errors.push(FieldError::invalid(&path, image, fault));
            }
        }
    }
    if !same_lists {
        return;
    }
    deadline_update(spec, stored, &path, errors);
    let tolerations = path.child("tolerations");
    added_tolerations(spec, stored, &tolerations, errors);
    scheduling::tolerations(list_at(spec, &["tolerations"]), &tolerations, errors);
    let gated = !list_at(stored, &["schedulingGates"]).is_empty();
    removed_gates(spec, stored, &path.child("schedulingGates"), errors);
    let mut allowed = spec.clone();
    undo_allowed(&mut allowed, stored, gated);
    if gated {
        gated_node_choice(spec, stored, &path, errors);
    }
    if !same(&allowed, stored) {
        let mut changed = Vec::new();
        differences(&allowed, stored, "", &mut changed);
        let why = format!("{UPDATABLE}\n{}", changed.join("\n"));
        errors.push(FieldError::forbidden(&path, why));
    }
}

/// Puts back what an update may change, so that the rest can be compared.
fn undo_allowed(spec: &mut Value, stored: &Value, gated: bool) {
    for list in ["containers", "initContainers"] {
        let before = list_at(stored, &[list]);
        for (c, before) in super::json::list_mut(spec, &[list]).zip(before) {
            keep(c, before, "image");
        }
    }
    for key in ["activeDeadlineSeconds", "tolerations", "schedulingGates"] {
        keep(spec, stored, key);
    }
    let negative = int_at(stored, &["terminationGracePeriodSeconds"]).is_some_and(|s| s < 0);
    if negative && int_at(spec, &["terminationGracePeriodSeconds"]) == Some(1) {
        keep(spec, stored, "terminationGracePeriodSeconds");
    }
    if gated {
        keep(spec, stored, "nodeSelector");
        let required = [
            "nodeAffinity",
            "requiredDuringSchedulingIgnoredDuringExecution",
        ];
        if !has(stored, &["affinity", required[0], required[1]]) {
            keep(spec, stored, "affinity");
        }
    }
}

/// A pod that is held back by gates may only narrow where it runs.
fn gated_node_choice(spec: &Value, stored: &Value, path: &Path, errors: &mut ErrorList) {
    let (now, before) = (at(spec, &["nodeSelector"]), at(stored, &["nodeSelector"]));
    let kept = before.as_object().is_none_or(|labels| {
        labels
            .iter()
            .all(|(key, value)| now.get(key) == Some(value))
    });
    if !kept {
        let fault = "only additions are allowed (no mutations or deletions)";
        errors.push(FieldError::invalid(
            &path.child("nodeSelector"),
            now.clone(),
            fault,
        ));
    }
    let affinity = at(spec, &["affinity"]);
    scheduling::affinity(affinity, &path.child("affinity"), errors);
    meta::labels(now, &path.child("nodeSelector"), errors);
}

fn deadline_update(spec: &Value, stored: &Value, path: &Path, errors: &mut ErrorList) {
    const KEY: &str = "activeDeadlineSeconds";
    const MOST: i64 = i32::MAX as i64;
    let path = path.child(KEY);
    match (int_at(spec, &[KEY]), int_at(stored, &[KEY])) {
        (Some(now), before) => {
            if !(0..=MOST).contains(&now) {
                errors.push(FieldError::invalid(&path, now, names::range_text(0, MOST)));
            } else if before.is_some_and(|before| now > before) {
                let fault = "must be less than or equal to previous value";
                errors.push(FieldError::invalid(&path, now, fault));
            }
        }
        (None, Some(_)) => {
            let fault = "must not update from a positive integer to nil value";
            errors.push(FieldError::invalid(&path, Value::Null, fault));
        }
        (None, None) => {}
    }
}

fn added_tolerations(spec: &Value, stored: &Value, path: &Path, errors: &mut ErrorList) {
    let meaning = |t: &Value| {
        ["key", "operator", "value", "effect"].map(|key| match at(t, &[key]) {
            absent if is_empty(absent) => String::new(),
            given => given.to_string(),
        })
    };
    let now = list_at(spec, &["tolerations"]).iter();
    let now: HashSet<_> = now.map(meaning).collect();
    let mut before = list_at(stored, &["tolerations"]).iter();
    if !before.all(|t| now.contains(&meaning(t))) {
        let why = "existing toleration can not be modified except its tolerationSeconds";
        errors.push(FieldError::forbidden(path, why));
    }
}

fn removed_gates(spec: &Value, stored: &Value, path: &Path, errors: &mut ErrorList) {
    let before = list_at(stored, &["schedulingGates"]).iter();
    let before: HashSet<_> = before.map(|b| str_at(b, &["name"])).collect();
    for (i, gate) in list_at(spec, &["schedulingGates"]).iter().enumerate() {
        let name = str_at(gate, &["name"]);
        if !before.contains(name) {
            let why = format!("only deletion is allowed, but found new scheduling gate '{name}'");
            errors.push(FieldError::forbidden(&path.index(i).child("name"), why));
        }
    }
}

/// Lines that tell where two values differ: what was there, what was written.
fn differences(new: &Value, old: &Value, path: &str, out: &mut Vec<String>) {
    const MOST: usize = 20;
    if out.len() >= MOST || same(new, old) {
        return;
    }
    match (new, old) {
        (Value::Object(a), Value::Object(b)) => {
            let mut keys: Vec<&String> = a.keys().chain(b.keys()).collect();
            keys.sort();
            keys.dedup();
            for key in keys {
                let path = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                differences(at(new, &[key]), at(old, &[key]), &path, out);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (i, (a, b)) in a.iter().zip(b).enumerate() {
                differences(a, b, &format!("{path}[{i}]"), out);
            }
        }
        _ => {
            out.push(format!("- {path}: {old}"));
            out.push(format!("+ {path}: {new}"));
        }
    }
}

fn status_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let path = Path::new("status");
    let nominated = str_at(new, &["status", "nominatedNodeName"]);
    if !nominated.is_empty() {
        let faults = names::check_dns1123_subdomain(nominated);
        errors.extend(invalid_each(
            &path.child("nominatedNodeName"),
            nominated,
            faults,
        ));
        let is_bound = !str_at(old, &["spec", "nodeName"]).is_empty();
        if is_bound && nominated != str_at(old, &["status", "nominatedNodeName"]) {
            errors.push(FieldError::forbidden(
                &path.child("nominatedNodeName"),
                "may not be set on pods that are already bound to a node",
            ));
        }
    }
    for (i, condition) in list_at(new, &["status", "conditions"]).iter().enumerate() {
        let path = path.child("conditions").index(i);
        let kind = str_at(condition, &["type"]);
        errors.extend(invalid_each(
            &path.child("type"),
            kind,
            names::check_qualified_name(kind),
        ));
    }
    let observed = int_at(new, &["status", "observedGeneration"]).unwrap_or(0);
    if observed < 0 {
        let why = "must be a non-negative integer";
        let path = path.child("observedGeneration");
        errors.push(FieldError::invalid(&path, observed, why));
    }
    meta::immutable_at(new, old, &["status", "qosClass"], errors);
    let policy = str_at(old, &["spec", "restartPolicy"]);
    transitions(new, old, "containerStatuses", policy, errors);
    if policy != "Always" {
        // a sidecar restarts whatever the policy of the pod is, so it is judged by its own
        transitions(new, old, "initContainerStatuses", "OnFailure", errors);
    }
    claim_statuses::check(new, &path, errors);
    addresses(new, old, "podIPs", errors);
    let first = list_at(new, &["status", "hostIPs"]).first();
    if let Some(first) = first.map(|entry| str_at(entry, &["ip"]))
        && first != str_at(new, &["status", "hostIP"])
    {
        let path = path.child("hostIPs").index(0).child("ip");
        errors.push(FieldError::invalid(
            &path,
            first,
            "must be equal to `hostIP`",
        ));
    }
    addresses(new, old, "hostIPs", errors);
}

/// Addresses of the pod or its node: valid ones, one of each family. What was there before stays.
fn addresses(new: &Value, old: &Value, key: &str, errors: &mut ErrorList) {
    let path = Path::new("status").child(key);
    let list = list_at(new, &["status", key]);
    let known = list_at(old, &["status", key]).iter();
    let known: HashSet<&str> = known.map(|k| str_at(k, &["ip"])).collect();
    for (i, entry) in list.iter().enumerate() {
        let ip = str_at(entry, &["ip"]);
        if !known.contains(ip) {
            errors.extend(invalid_each(&path.index(i), ip, names::check_ip(ip)));
        }
    }
    let ips: Vec<Option<IpAddr>> = list
        .iter()
        .map(|entry| str_at(entry, &["ip"]).parse().ok())
        .collect();
    let is_pair = match ips[..] {
        [] | [_] => return,
        [Some(a), Some(b)] => a.is_ipv4() != b.is_ipv4(),
        _ => false,
    };
    if !is_pair {
        let why = "may specify no more than one IP for each IP family";
        errors.push(FieldError::invalid(&path, list.to_vec(), why));
    }
}

/// A container that ended for good does not come back.
fn transitions(new: &Value, old: &Value, list: &str, policy: &str, errors: &mut ErrorList) {
    if policy == "Always" || restarts_all(old) {
        return;
    }
    let path = Path::new("status").child(list);
    let now = list_at(new, &["status", list]);
    let (places, restarted) = (names_of(now), restarting(old));
    for before in list_at(old, &["status", list]) {
        let terminated = at(before, &["state", "terminated"]);
        let failed = int_at(terminated, &["exitCode"]).unwrap_or(0) != 0;
        let name = str_at(before, &["name"]);
        if terminated.is_null() || (failed && policy == "OnFailure") || restarted.contains(name) {
            continue;
        }
        let Some(&i) = places.get(name) else {
            continue;
        };
        if at(&now[i], &["state", "terminated"]).is_null() {
            let why = "may not be transitioned to non-terminated state";
            errors.push(FieldError::forbidden(&path.index(i).child("state"), why));
        }
    }
}

/// Whether the end of some container makes all begin anew (KEP-5532).
fn restarts_all(pod: &Value) -> bool {
    ["initContainers", "containers"]
        .iter()
        .flat_map(|list| list_at(pod, &["spec", list]))
        .flat_map(|container| list_at(container, &["restartPolicyRules"]))
        .any(|rule| str_at(rule, &["action"]) == "RestartAllContainers")
}

/// The containers that have a restart policy or rules of their own.
fn restarting(pod: &Value) -> HashSet<&str> {
    let lists = ["initContainers", "containers"].into_iter();
    let all = lists.flat_map(|list| list_at(pod, &["spec", list]));
    let own = all.filter(|c| {
        !str_at(c, &["restartPolicy"]).is_empty() || !is_empty(at(c, &["restartPolicyRules"]))
    });
    own.map(|c| str_at(c, &["name"])).collect()
}

/// Where each name is first in a list.
fn names_of(list: &[Value]) -> HashMap<&str, usize> {
    let each = list.iter().enumerate().rev();
    each.map(|(i, of)| (str_at(of, &["name"]), i)).collect()
}

/// Faults of a pod's spec that it did not have before.
fn spec_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec");
    let mut found = ErrorList::new();
    pod_spec::validate(at(new, &["spec"]), true, &path, &mut found);
    errors.extend(pod_spec::new_faults("spec", found, |known| {
        pod_spec::validate(at(old, &["spec"]), true, &path, known);
    }));
}

fn ephemeral_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    const KEY: &str = "ephemeralContainers";
    let path = Path::new("spec").child(KEY);
    spec_update(new, old, errors);
    let now = list_at(new, &["spec", KEY]);
    let places = names_of(now);
    for before in list_at(old, &["spec", KEY]) {
        let name = str_at(before, &["name"]);
        match places.get(name) {
            None => {
                let why = format!("existing ephemeral containers \"{name}\" may not be removed\n");
                errors.push(FieldError::forbidden(&path, why));
            }
            Some(&i) if !same(&now[i], before) => {
                let mut changed = Vec::new();
                differences(&now[i], before, "", &mut changed);
                let why = format!(
                    "existing ephemeral containers \"{name}\" may not be changed\n{}",
                    changed.join("\n")
                );
                errors.push(FieldError::forbidden(&path, why));
            }
            Some(_) => {}
        }
    }
}
