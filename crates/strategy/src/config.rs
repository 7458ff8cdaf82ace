//! Config maps, secrets and service accounts; quotas and limit ranges below.

mod limit_ranges;
mod quotas;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use serde_json::{Value, json};

use super::json::{
    at, bool_at, default, entries_at, has, keep, list_mut, object_mut, remove, same, str_at,
};
use super::{Generic, KindInfo, Strategy, meta};

/// Bytes of all values of a config map or secret together.
const SIZE_MAX: usize = 1024 * 1024;
const FROZEN: &str = "field is immutable when `immutable` is set";

pub(super) fn build(info: KindInfo) -> Box<dyn Strategy> {
    match &*info.kind {
        "LimitRange" => Box::new(limit_ranges::LimitRange(info)),
        "ResourceQuota" => Box::new(quotas::ResourceQuota(info)),
        "ServiceAccount" => Box::new(ServiceAccount(info)),
        _ => Box::new(Generic::new(info)),
    }
}

/// Of the secrets of a service account only the names are kept.
struct ServiceAccount(KindInfo);

impl Strategy for ServiceAccount {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn prepare_for_create(&self, obj: &mut Value) {
        only_names_of_secrets(obj);
    }

    fn prepare_for_update(&self, new: &mut Value, _old: &Value) {
        only_names_of_secrets(new);
    }

    fn create_warnings(&self, obj: &Value) -> Vec<String> {
        mountable_warning(obj)
    }

    fn update_warnings(&self, new: &Value, old: &Value) -> Vec<String> {
        match has(old, &["metadata", "annotations", MOUNTABLE]) {
            true => Vec::new(),
            false => mountable_warning(new),
        }
    }
}

const MOUNTABLE: &str = "kubernetes.io/enforce-mountable-secrets";

fn mountable_warning(obj: &Value) -> Vec<String> {
    let given = has(obj, &["metadata", "annotations", MOUNTABLE]);
    let text = format!(
        "metadata.annotations[{MOUNTABLE}]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets"
    );
    given.then_some(text).into_iter().collect()
}

fn only_names_of_secrets(obj: &mut Value) {
    for secret in list_mut(obj, &["secrets"]) {
        if let Some(secret) = secret.as_object_mut() {
            secret.retain(|key, _| key == "name");
        }
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
