//! resource.k8s.io: names, defaults and what never changes. Rules about the content of claims and
//! slices belong to the allocator's own checks.

use davit_api::field::ErrorList;
use serde_json::Value;

use super::json::{at_mut, default, default_nonzero, list_mut, str_at};
use super::storage::Fixed;
use super::{Generic, KindInfo, Strategy, access, meta};

pub(super) fn build(info: KindInfo) -> Box<dyn Strategy> {
    match &*info.kind {
        "ResourceClaim" => Box::new(Claim(info)),
        "ResourceClaimTemplate" => Box::new(Template(info)),
        "ResourceSlice" => Box::new(Slice(info)),
        "ResourcePoolStatusRequest" => Box::new(Fixed {
            info,
            paths: &[&["spec"]],
        }),
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

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        meta::immutable_at(new, old, &["spec"], &mut errors);
        errors
    }

    fn prepare_status_update(&self, new: &mut Value, old: &Value) {
        access::keep_all_but_status(new, old);
    }
}

struct Template(KindInfo);

impl Strategy for Template {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        if let Some(spec) = at_mut(obj, &["spec", "spec"]) {
            claim_spec(&self.0, spec);
        }
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        meta::immutable_at(new, old, &["spec"], &mut errors);
        errors
    }
}

struct Slice(KindInfo);

impl Strategy for Slice {
    fn kind(&self) -> &KindInfo {
        &self.0
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
