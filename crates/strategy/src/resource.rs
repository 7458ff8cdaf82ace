//! resource.k8s.io: defaults, what never changes, and what is valid.

mod claims;
mod classic;
mod parts;
mod slices;

use davit_api::field::{ErrorList, FieldError, Path};
use davit_cel::PatternBudget;
use serde_json::Value;

pub use claims::admin_requests;

use super::fields::required;
use super::json::{
    at, at_mut, default, default_nonzero, default_unset, has, is_empty, list_at, list_mut, remove,
    same, set, str_at,
};
use super::storage::Fixed;
use super::{Generic, KindInfo, Strategy, access, meta, status_conditions};

pub(super) fn build(info: KindInfo) -> Box<dyn Strategy> {
    match &*info.kind {
        "ResourceClaim" => Box::new(Claim(info)),
        "ResourceClaimTemplate" => Box::new(Template(info)),
        "ResourceSlice" => Box::new(Slice(info)),
        "ResourcePoolStatusRequest" => Box::new(PoolStatusRequest(Fixed {
            info,
            paths: &[&["spec"]],
        })),
        "ResourceClass" => Box::new(classic::Class(info)),
        "PodScheduling" => Box::new(classic::PodScheduling(info)),
        "DeviceClass" => Box::new(Class(info)),
        "DeviceTaintRule" => Box::new(TaintRule(info)),
        _ => Box::new(Generic::new(info)),
    }
}

/// Defaults of the spec of a claim, in any version.
fn claim_spec(info: &KindInfo, spec: &mut Value) {
    if info.version == "v1alpha1" {
        default(spec, "allocationMode", "WaitForFirstConsumer");
        return;
    }
    for request in list_mut(spec, &["devices", "requests"]) {
        for sub in list_mut(request, &["firstAvailable"]) {
            device_request(sub);
        }
        if info.version != "v1beta1" {
            if let Some(exactly) = at_mut(request, &["exactly"]).filter(|e| e.is_object()) {
                device_request(exactly);
            }
        } else if !str_at(request, &["deviceClassName"]).is_empty() {
            device_request(request);
        }
    }
}

fn device_request(request: &mut Value) {
    default(request, "allocationMode", "ExactCount");
    if str_at(request, &["allocationMode"]) == "ExactCount" {
        default_nonzero(request, "count", 1);
    }
    for toleration in list_mut(request, &["tolerations"]) {
        default(toleration, "operator", "Equal");
    }
}

struct Claim(KindInfo);

impl Strategy for Claim {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        if let Some(spec) = at_mut(obj, &["spec"]) {
            claim_spec(&self.0, spec);
        }
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        let (spec, path) = (at(obj, &["spec"]), Path::new("spec"));
        if is_classic(&self.0) {
            classic::spec(spec, &path, &mut errors);
        } else {
            claims::spec(spec, &path, &mut errors);
        }
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        meta::immutable_at(new, old, &["spec"], &mut errors);
        errors
    }

    fn prepare_status_update(&self, new: &mut Value, old: &Value) {
        access::keep_all_but_status(new, old);
        if !is_classic(&self.0) {
            drop_freed_devices(new, old);
        }
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        if is_classic(&self.0) {
            classic::status(new, old, &mut errors);
        } else {
            claims::status(new, old, &mut errors);
        }
        errors
    }
}

/// The API of 1.26, which shares nothing but names with today's.
fn is_classic(info: &KindInfo) -> bool {
    info.version == "v1alpha1"
}

/// What drivers said of devices goes with the allocation.
fn drop_freed_devices(new: &mut Value, old: &Value) {
    let key =
        |d: &Value| ["driver", "pool", "device", "shareID"].map(|k| str_at(d, &[k]).to_owned());
    let results = |of: &Value| -> Vec<_> {
        let list = list_at(of, &["status", "allocation", "devices", "results"]);
        list.iter().map(key).collect()
    };
    let (before, after) = (results(old), results(new));
    if before.iter().all(|d| after.contains(d)) {
        return;
    }
    let Some(status) = at_mut(new, &["status"]) else {
        return;
    };
    if let Some(list) = at_mut(status, &["devices"]).and_then(Value::as_array_mut) {
        list.retain(|d| after.contains(&key(d)) || !before.contains(&key(d)));
        if list.is_empty() {
            remove(status, "devices");
        }
    }
}

struct Template(KindInfo);

/// What the metadata of claims cannot have from their template, and how Kubernetes shows it.
const NOT_IN_TEMPLATES: [(&str, &str); 13] = [
    ("name", "name"),
    ("generateName", "generateName"),
    ("namespace", "namespace"),
    ("selfLink", "selfLink"),
    ("uid", "uID"),
    ("resourceVersion", "resourceVersion"),
    ("generation", "generation"),
    ("creationTimestamp", "creationTimestamp"),
    ("deletionTimestamp", "deletionTimestamp"),
    ("deletionGracePeriodSeconds", "deletionGracePeriodSeconds"),
    ("ownerReferences", "ownerReferences"),
    ("finalizers", "finalizers"),
    ("managedFields", "managedFields"),
];

impl Strategy for Template {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        if let Some(spec) = at_mut(obj, &["spec", "spec"]) {
            claim_spec(&self.0, spec);
        }
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        self.content(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        meta::immutable_at(new, old, &["spec"], &mut errors);
        if !errors.is_empty() {
            self.content(new, &mut errors);
        }
        errors
    }
}

impl Template {
    fn content(&self, obj: &Value, errors: &mut ErrorList) {
        let path = Path::new("spec");
        let at_metadata = path.child("metadata");
        let metadata = at(obj, &["spec", "metadata"]);
        meta::template(metadata, &at_metadata, errors);
        for (field, shown) in NOT_IN_TEMPLATES {
            if !is_empty(at(metadata, &[field])) {
                errors.push(FieldError::forbidden(
                    &at_metadata.child(shown),
                    "cannot be set",
                ));
            }
        }
        let (spec, path) = (at(obj, &["spec", "spec"]), path.child("spec"));
        if is_classic(&self.0) {
            classic::spec(spec, &path, errors);
        } else {
            claims::spec(spec, &path, errors);
        }
    }
}

struct Class(KindInfo);

impl Class {
    fn content(obj: &Value, old: Option<&Value>, errors: &mut ErrorList) {
        const CONFIGS: usize = 32;
        let path = Path::new("spec");
        let stored = old.map_or(&[][..], |o| list_at(o, &["spec", "selectors"]));
        let selectors = list_at(obj, &["spec", "selectors"]);
        let mut room = PatternBudget(claims::PATTERNS);
        let at_selectors = path.child("selectors");
        claims::selectors(selectors, stored, &mut room, &at_selectors, errors);
        let configs = list_at(obj, &["spec", "config"]);
        let at_configs = path.child("config");
        parts::too_many(configs, CONFIGS, &at_configs, errors);
        for (i, config) in configs.iter().enumerate() {
            claims::configuration(config, &at_configs.index(i), errors);
        }
        let resource = str_at(obj, &["spec", "extendedResourceName"]);
        if !resource.is_empty() {
            let domain = resource.split_once('/').map(|(domain, _)| domain);
            let own = domain.is_none_or(|d| d == "kubernetes.io" || d.ends_with(".kubernetes.io"));
            let path = path.child("extendedResourceName");
            if own || resource.starts_with("requests.") {
                let fault = "must be a valid extended resource name";
                errors.push(FieldError::invalid(&path, resource, fault));
                return;
            }
            let faults = davit_api::names::check_qualified_name(resource);
            if !faults.is_empty() {
                let fault = "must be a valid extended resource name";
                errors.push(FieldError::invalid(&path, resource, fault));
            }
        }
    }
}

impl Strategy for Class {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        Self::content(obj, None, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        Self::content(new, Some(old), &mut errors);
        errors
    }
}

struct TaintRule(KindInfo);

impl TaintRule {
    fn content(obj: &Value, errors: &mut ErrorList) {
        let path = Path::new("spec");
        parts::taint(at(obj, &["spec", "taint"]), &path.child("taint"), errors);
        let selector = at(obj, &["spec", "deviceSelector"]);
        let at_selector = path.child("deviceSelector");
        let text = |key: &str| str_at(selector, &[key]);
        if has(selector, &["driver"]) {
            parts::driver_name(text("driver"), &at_selector.child("driver"), errors);
        }
        if has(selector, &["pool"]) {
            parts::pool_name(text("pool"), &at_selector.child("pool"), errors);
        }
        if has(selector, &["device"]) {
            parts::label_name(text("device"), &at_selector.child("device"), errors);
        }
    }
}

impl Strategy for TaintRule {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        if let Some(taint) = at_mut(obj, &["spec", "taint"]) {
            default(taint, "timeAdded", access::now());
        }
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value) {
        // Another effect with the time of the old one: the time is that of the change.
        let before = at(old, &["spec", "taint"]);
        if let Some(taint) = at_mut(new, &["spec", "taint"])
            && str_at(taint, &["effect"]) != str_at(before, &["effect"])
            && (!has(taint, &["timeAdded"]) || taint["timeAdded"] == before["timeAdded"])
        {
            set(taint, "timeAdded", access::now());
        }
        access::keep_status(&self.0, new, old);
        access::next_generation(&self.0, new, old);
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        Self::content(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        Self::content(new, &mut errors);
        errors
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        let conditions = list_at(new, &["status", "conditions"]);
        let path = Path::new("status").child("conditions");
        parts::too_many(conditions, 8, &path, &mut errors);
        status_conditions::validate(conditions, &path, &mut errors);
        errors
    }
}

struct PoolStatusRequest(Fixed);

impl Strategy for PoolStatusRequest {
    fn kind(&self) -> &KindInfo {
        self.0.kind()
    }

    fn default(&self, obj: &mut Value) {
        if let Some(spec) = at_mut(obj, &["spec"]) {
            default(spec, "limit", 100);
        }
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(self.kind(), obj);
        // What they must look like is in the table of kinds.
        required(
            at(obj, &["spec"]),
            "driver",
            &Path::new("spec"),
            &mut errors,
        );
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        self.0.validate_update(new, old)
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(self.kind(), new, old);
        // Once answered it stays as it is.
        if has(old, &["status"]) && !same(at(new, &["status"]), at(old, &["status"])) {
            meta::immutable_at(new, old, &["status"], &mut errors);
        }
        answer(at(new, &["status"]), &mut errors);
        errors
    }
}

/// What a request about pools was answered. Numbers and how names look are in the table of kinds.
fn answer(status: &Value, errors: &mut ErrorList) {
    let path = Path::new("status");
    if !status.is_null() && !has(status, &["poolCount"]) {
        errors.push(FieldError::required(&path.child("poolCount"), ""));
    }
    for (i, pool) in list_at(status, &["pools"]).iter().enumerate() {
        let path = path.child("pools").index(i);
        required(pool, "driver", &path, errors);
        required(pool, "poolName", &path, errors);
    }
    let conditions = list_at(status, &["conditions"]);
    status_conditions::validate(conditions, &path.child("conditions"), errors);
}

struct Slice(KindInfo);

impl Strategy for Slice {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    /// A taint is as old as the first object that had it; a mapping to a resource of the node multiplies by one.
    fn default(&self, obj: &mut Value) {
        for device in list_mut(obj, &["spec", "devices"]) {
            let mappings = at_mut(device, &["nodeAllocatableResourceMappings"]);
            let mappings = mappings.and_then(Value::as_object_mut);
            for mapping in mappings.into_iter().flat_map(|m| m.values_mut()) {
                default_unset(mapping, "allocationMultiplier", "1");
            }
            for taint in list_mut(device, &["taints"]) {
                default(taint, "timeAdded", access::now());
            }
        }
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        let fixed: [&[&str]; 3] = [
            &["spec", "driver"],
            &["spec", "pool", "name"],
            &["spec", "nodeName"],
        ];
        for path in fixed {
            meta::immutable_at(new, old, path, &mut errors);
        }
        slices::spec(at(new, &["spec"]), &Path::new("spec"), &mut errors);
        errors
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        slices::spec(at(obj, &["spec"]), &Path::new("spec"), &mut errors);
        errors
    }

    fn field_names(&self) -> &'static [&'static str] {
        &["spec.nodeName", "spec.driver"]
    }

    fn fields(&self, obj: &Value) -> Vec<(&'static str, String)> {
        vec![
            (
                "spec.nodeName",
                str_at(obj, &["spec", "nodeName"]).to_owned(),
            ),
            ("spec.driver", str_at(obj, &["spec", "driver"]).to_owned()),
        ]
    }
}

#[cfg(test)]
mod tests;
