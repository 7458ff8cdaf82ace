//! resource.k8s.io: v1beta1 has the members of an exact request in the request itself, and those
//! of a device under `basic`. v1beta2 and v1 have one shape.

use serde_json::Value;

use super::{each, single, take};

/// Members of an exact request.
const EXACTLY: [&str; 7] = [
    "deviceClassName",
    "selectors",
    "allocationMode",
    "count",
    "adminAccess",
    "tolerations",
    "capacity",
];

/// The path to the claim spec in a kind.
fn claim_path(kind: &str) -> Option<&'static [&'static str]> {
    match kind {
        "ResourceClaim" => Some(&["spec", "devices", "requests"]),
        "ResourceClaimTemplate" => Some(&["spec", "spec", "devices", "requests"]),
        _ => None,
    }
}

pub(super) fn from_v1beta1(kind: &str, obj: &mut Value) {
    if let Some(path) = claim_path(kind) {
        for request in each(obj, path) {
            let mut flat = take(request, &EXACTLY);
            // v1beta1 writes the class also where there is none
            if flat.values().all(|value| value == "") {
                flat.clear();
            }
            // what says nothing at all is an exact request without a class, not one of an unknown form
            let has_form = flat.is_empty() && !is_empty_list(request.get("firstAvailable"));
            if let (false, Some(request)) = (has_form, request.as_object_mut()) {
                request.insert("exactly".to_owned(), Value::Object(flat));
            }
        }
    }
    if kind == "ResourceSlice" {
        for device in each(obj, &["spec", "devices"]) {
            let Some(device) = device.as_object_mut() else {
                continue;
            };
            if let Some(Value::Object(basic)) = device.remove("basic") {
                device.extend(basic);
            }
        }
        unset_zeroes(obj);
    }
}

pub(super) fn to_v1beta1(kind: &str, obj: &mut Value) {
    if let Some(path) = claim_path(kind) {
        for request in each(obj, path) {
            let Some(request) = request.as_object_mut() else {
                continue;
            };
            if let Some(Value::Object(exactly)) = request.remove("exactly") {
                request.extend(exactly);
            }
            request
                .entry("deviceClassName")
                .or_insert_with(|| "".into());
        }
    }
    if kind == "ResourceSlice" {
        for device in each(obj, &["spec", "devices"]) {
            let name = device.get("name").cloned().unwrap_or_default();
            let mut rest = device.take();
            if let Some(rest) = rest.as_object_mut() {
                rest.remove("name");
            }
            *device = single("name", name);
            if let Some(object) = device.as_object_mut() {
                object.insert("basic".to_owned(), rest);
            }
        }
    }
}

fn is_empty_list(value: Option<&Value>) -> bool {
    value.is_none_or(|v| v.is_null() || v.as_array().is_some_and(Vec::is_empty))
}

/// The name in v1beta1 of a field of v1: exact requests have no member `exactly`, what devices have but their names is in
/// `basic`.
pub(super) fn field_in_v1beta1(kind: &str, field: &str) -> String {
    let list = match kind {
        "ResourceClaim" => "spec.devices.requests[",
        "ResourceClaimTemplate" => "spec.spec.devices.requests[",
        "ResourceSlice" => "spec.devices[",
        _ => return field.to_owned(),
    };
    let parts = field
        .strip_prefix(list)
        .and_then(|rest| rest.split_once(']'));
    let Some((index, rest)) = parts else {
        return field.to_owned();
    };
    let rest = if kind == "ResourceSlice" {
        match rest {
            "" | ".name" => rest.to_owned(),
            rest => format!(".basic{rest}"),
        }
    } else {
        let inner = rest.strip_prefix(".exactly");
        let inner = inner.filter(|r| r.is_empty() || r.starts_with(['.', '[']));
        inner.unwrap_or(rest).to_owned()
    };
    format!("{list}{index}]{rest}")
}

/// In v1beta1 an empty node name and `allNodes: false` mean unset.
fn unset_zeroes(slice: &mut Value) {
    let Some(spec) = slice.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    if spec.get("nodeName").and_then(Value::as_str) == Some("") {
        spec.remove("nodeName");
    }
    if spec.get("allNodes").and_then(Value::as_bool) == Some(false) {
        spec.remove("allNodes");
    }
}
