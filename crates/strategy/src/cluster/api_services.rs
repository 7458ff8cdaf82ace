//! Registrations of groups and versions of other API servers.

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use serde_json::Value;

use super::super::fields::required;
use super::super::json::{at, at_mut, bool_at, default_unset, int_at, list_at, str_at};
use super::super::{KindInfo, Strategy, meta};

pub(super) struct ApiService(pub(super) KindInfo);

impl Strategy for ApiService {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        if let Some(service) = at_mut(obj, &["spec", "service"]) {
            default_unset(service, "port", 443);
        }
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        api_service(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        api_service(new, &mut errors);
        errors
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        let path = Path::new("status").child("conditions");
        let conditions = list_at(new, &["status", "conditions"]);
        for (i, condition) in conditions.iter().enumerate() {
            const WORDS: [&str; 3] = ["True", "False", "Unknown"];
            let word = str_at(condition, &["status"]);
            if !WORDS.contains(&word) {
                let path = path.index(i).child("status");
                errors.push(FieldError::not_supported(&path, word, &WORDS));
            }
        }
        errors
    }
}

fn api_service(obj: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec");
    let spec = at(obj, &["spec"]);
    let (group, version) = (str_at(spec, &["group"]), str_at(spec, &["version"]));
    let wanted = format!("{version}.{group}");
    meta::own_rule(obj, errors, |name| {
        let shown = davit_api::field::quote(&wanted);
        let is_segment = names::check_path_segment(name).is_empty();
        (name != wanted && is_segment)
            .then(|| format!("must be `spec.version+\".\"+spec.group`: {shown}"))
    });
    let at_group = path.child("group");
    if !group.is_empty() {
        let faults = names::check_dns1123_subdomain(group);
        errors.extend(invalid_each(&at_group, group, faults));
    } else if version != "v1" {
        let why = "only v1 may have an empty group and it better be legacy kube";
        errors.push(FieldError::required(&at_group, why));
    }
    let faults = names::check_dns1035_label(version);
    errors.extend(invalid_each(&path.child("version"), version, faults));
    for (key, most) in [("groupPriorityMinimum", 20000), ("versionPriority", 1000)] {
        let priority = int_at(spec, &[key]).unwrap_or(0);
        if !(1..=most).contains(&priority) {
            let fault = format!("must be positive and less than {most}");
            errors.push(FieldError::invalid(&path.child(key), priority, fault));
        }
    }
    server(spec, &path, errors);
}

/// Where the group is served, and how that server is known.
fn server(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let service = at(spec, &["service"]);
    let bundle = str_at(spec, &["caBundle"]);
    let insecure = bool_at(spec, &["insecureSkipTLSVerify"]);
    let at_insecure = path.child("insecureSkipTLSVerify");
    if service.is_null() {
        if !bundle.is_empty() {
            let bytes = bundle.trim_end_matches('=').len() * 3 / 4;
            let fault = "local APIServices may not have a caBundle";
            let path = path.child("caBundle");
            errors.push(FieldError::invalid(&path, format!("{bytes} bytes"), fault));
        }
        if insecure {
            let fault = "local APIServices may not have insecureSkipTLSVerify";
            errors.push(FieldError::invalid(&at_insecure, true, fault));
        }
        return;
    }
    let path = path.child("service");
    for key in ["namespace", "name"] {
        required(service, key, &path, errors);
    }
    let port = int_at(service, &["port"]).unwrap_or(0);
    let faults = names::check_port_number(port);
    if !faults.is_empty() {
        let fault = format!("port is not valid: {}", faults.join(", "));
        errors.push(FieldError::invalid(&path.child("port"), port, fault));
    }
    if insecure && !bundle.is_empty() {
        let fault = "may not be true if caBundle is present";
        errors.push(FieldError::invalid(&at_insecure, true, fault));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::testing::{faults, none, update_faults};

    const KIND: (&str, &str, &str) = ("apiregistration.k8s.io", "v1", "APIService");

    fn of(name: &str, change: impl FnOnce(&mut Value)) -> Value {
        let mut obj = json!({"metadata": {"name": name}, "spec": {"group": "as.example.com", "version": "v1",
            "groupPriorityMinimum": 1000, "versionPriority": 10, "service": {"namespace": "default", "name": "s"}}});
        change(&mut obj["spec"]);
        obj
    }

    #[test]
    fn faults_of_api_services() {
        type Change = fn(&mut Value);
        let cases: &[(Change, &str)] = &[
            (|s| s["service"] = Value::Null, ""),
            (
                |s| {
                    s["service"] = Value::Null;
                    s["insecureSkipTLSVerify"] = json!(true);
                },
                "spec.insecureSkipTLSVerify: Invalid value: true: local APIServices may not have insecureSkipTLSVerify",
            ),
            (
                |s| s["service"]["port"] = json!(0),
                "spec.service.port: Invalid value: 0: port is not valid: must be between 1 and 65535, inclusive",
            ),
            (
                |s| s["versionPriority"] = json!(1001),
                "spec.versionPriority: Invalid value: 1001: must be positive and less than 1000",
            ),
        ];
        for (change, wanted) in cases {
            let obj = of("v1.as.example.com", change);
            assert_eq!(faults(KIND.0, KIND.1, KIND.2, &obj), *wanted);
        }
        let named = of("v2.", |s| {
            s["group"] = json!("");
            s["version"] = json!("v2");
        });
        let wanted = "spec.group: Required value: only v1 may have an empty group and it better be legacy kube";
        assert_eq!(faults(KIND.0, KIND.1, KIND.2, &named), wanted);
        let found = faults(
            KIND.0,
            KIND.1,
            KIND.2,
            &of("1.as.example.com", |s| s["version"] = json!("1")),
        );
        assert!(
            found.starts_with("spec.version: Invalid value: \"1\": a DNS-1035 label"),
            "{found}"
        );
        let good = of("v1.as.example.com", |_| {});
        none(KIND.0, KIND.1, KIND.2, &good);
        let bad = of("v1.as.example.com", |s| s["versionPriority"] = json!(0));
        assert_ne!(update_faults(KIND.0, KIND.1, KIND.2, &bad, &good), "");
    }
}
