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
            let flat = take(request, &EXACTLY);
            if let (false, Some(request)) = (flat.is_empty(), request.as_object_mut()) {
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
