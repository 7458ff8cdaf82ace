//! Config maps, secrets, service accounts, quotas and limit ranges.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use serde_json::{Value, json};

use super::json::{
    at, bool_at, default, entries_at, keep, list_at, list_mut, object_mut, remove, same, str_at,
};
use super::{Generic, KindInfo, Strategy, meta, pod_defaults, resources};

/// Bytes of all values of a config map or secret together.
const SIZE_MAX: usize = 1024 * 1024;
const FROZEN: &str = "field is immutable when `immutable` is set";

pub(super) fn build(info: KindInfo) -> Box<dyn Strategy> {
    match &*info.kind {
        "LimitRange" => Box::new(LimitRange(info)),
        "ResourceQuota" => Box::new(ResourceQuota(info)),
        _ => Box::new(Generic::new(info)),
    }
}

pub(super) struct ConfigMap(pub(super) KindInfo);

impl Strategy for ConfigMap {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        config_map(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        frozen(new, old, &["data", "binaryData"], &mut errors);
        config_map(new, &mut errors);
        errors
    }
}

fn config_map(obj: &Value, errors: &mut ErrorList) {
    let mut size = 0;
    for (key, value) in entries_at(obj, &["data"]) {
        let path = Path::new("data").key(key);
        errors.extend(invalid_each(&path, key, names::check_config_map_key(key)));
        size += value.as_str().map_or(0, str::len);
    }
    for (key, value) in entries_at(obj, &["binaryData"]) {
        let path = Path::new("binaryData").key(key);
        errors.extend(invalid_each(&path, key, names::check_config_map_key(key)));
        if at(obj, &["data"]).get(key).is_some() {
            let fault = "duplicate of key present in data";
            errors.push(FieldError::invalid(&path, key.as_str(), fault));
        }
        size += decoded_len(value);
    }
    if size > SIZE_MAX {
        errors.push(FieldError::too_long(&Path::root(), SIZE_MAX));
    }
}

/// Bytes a base64 text stands for.
fn decoded_len(value: &Value) -> usize {
    let text = value.as_str().unwrap_or_default();
    text.trim_end_matches('=').len() * 3 / 4
}

/// `immutable: true` cannot be taken back and freezes the data.
fn frozen(new: &Value, old: &Value, data: &[&str], errors: &mut ErrorList) {
    if !bool_at(old, &["immutable"]) {
        return;
    }
    if !bool_at(new, &["immutable"]) {
        errors.push(FieldError::forbidden(&Path::new("immutable"), FROZEN));
    }
    for key in data {
        if !same(at(new, &[key]), at(old, &[key])) {
            errors.push(FieldError::forbidden(&Path::new(key), FROZEN));
        }
    }
}

pub(super) struct Secret(pub(super) KindInfo);

impl Strategy for Secret {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        default(obj, "type", "Opaque");
        let Some(Value::Object(plain)) = remove(obj, "stringData") else {
            return;
        };
        if plain.is_empty() {
            return;
        }
        let Some(data) = object_mut(obj, "data") else {
            return;
        };
        for (key, value) in plain {
            let text = value.as_str().unwrap_or_default();
            data.insert(key, json!(STANDARD.encode(text)));
        }
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value) {
        if str_at(new, &["type"]).is_empty() {
            keep(new, old, "type");
        }
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        secret(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        meta::immutable_at(new, old, &["type"], &mut errors);
        frozen(new, old, &["data"], &mut errors);
        secret(new, &mut errors);
        errors
    }

    fn field_names(&self) -> &'static [&'static str] {
        &["type"]
    }

    fn fields(&self, obj: &Value) -> Vec<(&'static str, String)> {
        vec![("type", str_at(obj, &["type"]).to_owned())]
    }
}

fn secret(obj: &Value, errors: &mut ErrorList) {
    let path = Path::new("data");
    let mut size = 0;
    for (key, value) in entries_at(obj, &["data"]) {
        errors.extend(invalid_each(
            &path.key(key),
            key,
            names::check_config_map_key(key),
        ));
        size += decoded_len(value);
    }
    if size > SIZE_MAX {
        errors.push(FieldError::too_long(&path, SIZE_MAX));
    }
    let missing = |key: &str| at(obj, &["data"]).get(key).is_none();
    let require = |key: &str, errors: &mut ErrorList| {
        if missing(key) {
            errors.push(FieldError::required(&path.key(key), ""));
        }
    };
    match str_at(obj, &["type"]) {
        "kubernetes.io/service-account-token" => {
            const NAME: &str = "kubernetes.io/service-account.name";
            if str_at(obj, &["metadata", "annotations", NAME]).is_empty() {
                let path = Path::new("metadata").child("annotations").key(NAME);
                errors.push(FieldError::required(&path, ""));
            }
        }
        "kubernetes.io/dockercfg" => registry_config(obj, ".dockercfg", errors),
        "kubernetes.io/dockerconfigjson" => registry_config(obj, ".dockerconfigjson", errors),
        "kubernetes.io/basic-auth" if missing("username") && missing("password") => {
            require("username", errors);
            require("password", errors);
        }
        "kubernetes.io/ssh-auth" => require("ssh-privatekey", errors),
        "kubernetes.io/tls" => {
            require("tls.crt", errors);
            require("tls.key", errors);
        }
        _ => {}
    }
}

fn registry_config(obj: &Value, key: &str, errors: &mut ErrorList) {
    let path = Path::new("data").key(key);
    let Some(text) = at(obj, &["data"]).get(key).and_then(Value::as_str) else {
        errors.push(FieldError::required(&path, ""));
        return;
    };
    let parsed = STANDARD
        .decode(text)
        .ok()
        .map(|b| serde_json::from_slice::<Value>(&b));
    if let Some(Err(error)) = parsed {
        let fault = error.to_string();
        errors.push(FieldError::invalid(
            &path,
            "<secret contents redacted>",
            fault,
        ));
    }
}

struct LimitRange(KindInfo);

impl Strategy for LimitRange {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        for item in list_mut(obj, &["spec", "limits"]) {
            if str_at(item, &["type"]) != "Container" {
                continue;
            }
            // limits follow from the maximum, requests from the limits, then from the minimum
            for (from, to) in [
                ("max", "default"),
                ("default", "defaultRequest"),
                ("min", "defaultRequest"),
            ] {
                let Some(source) = at(item, &[from]).as_object().cloned() else {
                    continue;
                };
                let Some(target) = object_mut(item, to) else {
                    continue;
                };
                for (name, value) in source {
                    target.entry(name).or_insert(value);
                }
            }
        }
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        limits(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        limits(new, &mut errors);
        errors
    }

    fn allow_create_on_update(&self) -> bool {
        true
    }
}

fn limits(obj: &Value, errors: &mut ErrorList) {
    let mut seen = Vec::new();
    for (i, item) in list_at(obj, &["spec", "limits"]).iter().enumerate() {
        let path = Path::new("spec").child("limits").index(i);
        let kind = str_at(item, &["type"]);
        if seen.contains(&kind) {
            errors.push(FieldError::duplicate(&path.child("type"), kind));
        }
        seen.push(kind);
        for list in ["max", "min", "default", "defaultRequest"] {
            for (name, value) in entries_at(item, &[list]) {
                let path = path.child(list).key(name);
                resources::name(name, &path, errors);
                resources::amount(name, value, &path, errors);
                if list.starts_with("default") && kind == "Pod" {
                    let why = "may not be specified when `type` is 'Pod'";
                    errors.push(FieldError::forbidden(&path, why));
                }
            }
        }
        ordered(item, &path, errors);
    }
}

/// Least, default request, default and most of each resource are in this order.
fn ordered(item: &Value, path: &Path, errors: &mut ErrorList) {
    use davit_api::quantity::Quantity;
    let amount = |list: &str, name: &str| Quantity::from_json(at(item, &[list, name])).ok();
    const ORDER: [&str; 4] = ["min", "defaultRequest", "default", "max"];
    for (lower, upper) in [(0, 3), (0, 1), (0, 2), (1, 3), (1, 2), (2, 3)] {
        let (lower, upper) = (ORDER[lower], ORDER[upper]);
        for (name, value) in entries_at(item, &[lower]) {
            let (Some(low), Some(high)) = (amount(lower, name), amount(upper, name)) else {
                continue;
            };
            if low > high {
                let low = value.as_str().unwrap_or_default();
                let fault = format!("{lower} value {low} is greater than {upper} value {high}");
                errors.push(FieldError::invalid(
                    &path.child(lower).key(name),
                    low,
                    fault,
                ));
            }
        }
    }
}

struct ResourceQuota(KindInfo);

impl Strategy for ResourceQuota {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        pod_defaults::round_quantities(obj, &["spec", "hard"]);
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        quota(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        quota(new, &mut errors);
        if !same(at(new, &["spec", "scopes"]), at(old, &["spec", "scopes"])) {
            let path = Path::new("spec").child("scopes");
            let scopes = at(new, &["spec", "scopes"]).clone();
            errors.push(FieldError::invalid(&path, scopes, "field is immutable"));
        }
        errors
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        for list in ["hard", "used"] {
            let path = Path::new("status").child(list);
            for (name, value) in entries_at(new, &["status", list]) {
                resources::amount(name, value, &path.key(name), &mut errors);
            }
        }
        errors
    }
}

fn quota(obj: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec").child("hard");
    for (name, value) in entries_at(obj, &["spec", "hard"]) {
        let path = path.key(name);
        // limits of extended resources cannot be counted apart from their requests
        let counted = name
            .strip_prefix("limits.")
            .is_none_or(names::is_native_resource);
        if !counted {
            let fault = "must be a standard resource for quota";
            errors.push(FieldError::invalid(&path, name.as_str(), fault));
        } else if !name.starts_with("count/") {
            resources::name(name, &path, errors);
        }
        resources::amount(name, value, &path, errors);
    }
}
