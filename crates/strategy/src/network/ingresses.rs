//! Ingresses and their classes.

use std::collections::HashSet;
use std::net::IpAddr;

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use serde_json::Value;

use super::super::containers::port_number;
use super::super::fields;
use super::super::json::{at, at_mut, default_unset, has, int_at, list_at, str_at};
use super::super::{KindInfo, Strategy, access, meta};
use super::load_balancers;

const CLASS_NOTE: &str = "kubernetes.io/ingress.class";

pub(super) struct Ingress(pub(super) KindInfo);

impl Strategy for Ingress {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        ingress(obj, &Value::Null, &mut errors);
        let class = at(obj, &["spec", "ingressClassName"]).as_str();
        let note = at(obj, &["metadata", "annotations", CLASS_NOTE]).as_str();
        if let (Some(class), Some(note)) = (class, note)
            && class != note
        {
            let path = Path::new("annotations").child(CLASS_NOTE);
            let fault = "must match `ingressClassName` when both are specified";
            errors.push(FieldError::invalid(&path, note, fault));
        }
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        ingress(new, old, &mut errors);
        errors
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        let path = Path::new("status").child("loadBalancer").child("ingress");
        let stored = list_at(old, &["status", "loadBalancer", "ingress"]).iter();
        let stored: HashSet<&str> = stored.map(|p| str_at(p, &["ip"])).collect();
        let points = list_at(new, &["status", "loadBalancer", "ingress"]);
        for (i, point) in points.iter().enumerate() {
            let path = path.index(i);
            let ip = str_at(point, &["ip"]);
            if !stored.contains(ip) {
                fields::optional_name(point, "ip", names::check_ip, &path, &mut errors);
            }
            load_balancers::hostname(point, &path, &mut errors);
        }
        errors
    }
}

/// What was stored of some faults of before may stay.
struct KeptFaults {
    secret_names: bool,
    wildcard_rules: bool,
}

impl KeptFaults {
    fn of(old: &Value) -> Self {
        let is_bad = |tls: &Value| {
            let name = str_at(tls, &["secretName"]);
            !name.is_empty() && !names::check_dns1123_subdomain(name).is_empty()
        };
        let is_bad_rule = |rule: &Value| {
            let mut errors = ErrorList::new();
            rule_value(rule, &Path::root(), &mut errors);
            str_at(rule, &["host"]).contains('*') && !errors.is_empty()
        };
        Self {
            secret_names: list_at(old, &["spec", "tls"]).iter().any(is_bad),
            wildcard_rules: list_at(old, &["spec", "rules"]).iter().any(is_bad_rule),
        }
    }
}

fn ingress(obj: &Value, old: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec");
    let spec = at(obj, &["spec"]);
    let stored = KeptFaults::of(old);
    let default_backend = at(spec, &["defaultBackend"]);
    let rules = list_at(spec, &["rules"]);
    if rules.is_empty() && default_backend.is_null() {
        let fault = "either `defaultBackend` or `rules` must be specified";
        let shown = at(spec, &["rules"]).clone();
        errors.push(FieldError::invalid(&path, shown, fault));
    }
    if !default_backend.is_null() {
        backend(default_backend, &path.child("defaultBackend"), errors);
    }
    for (i, rule) in rules.iter().enumerate() {
        let path = path.child("rules").index(i);
        let name = str_at(rule, &["host"]);
        if !name.is_empty() {
            if name.parse::<IpAddr>().is_ok() {
                let fault = "must be a DNS name, not an IP address";
                errors.push(FieldError::invalid(&path.child("host"), name, fault));
            }
            host(name, &path.child("host"), errors);
        }
        if !(name.contains('*') && stored.wildcard_rules) {
            rule_value(rule, &path, errors);
        }
    }
    for (i, tls) in list_at(spec, &["tls"]).iter().enumerate() {
        let path = path.child("tls").index(i);
        for (i, name) in list_at(tls, &["hosts"]).iter().enumerate() {
            let name = name.as_str().unwrap_or_default();
            host(name, &path.child("hosts").index(i), errors);
        }
        if !stored.secret_names {
            let check = names::check_dns1123_subdomain;
            fields::optional_name(tls, "secretName", check, &path, errors);
        }
    }
    let check = names::check_dns1123_subdomain;
    fields::given_name(spec, "ingressClassName", check, &path, errors);
}

fn host(name: &str, path: &Path, errors: &mut ErrorList) {
    let faults = if name.contains('*') {
        names::check_wildcard_dns1123_subdomain(name)
    } else {
        names::check_dns1123_subdomain(name)
    };
    errors.extend(invalid_each(path, name, faults));
}

fn rule_value(rule: &Value, path: &Path, errors: &mut ErrorList) {
    let http = at(rule, &["http"]);
    if http.is_null() {
        return;
    }
    let path = path.child("http").child("paths");
    let paths = list_at(http, &["paths"]);
    if paths.is_empty() {
        errors.push(FieldError::required(&path, ""));
    }
    for (i, of) in paths.iter().enumerate() {
        http_path(of, &path.index(i), errors);
    }
}

fn http_path(of: &Value, path: &Path, errors: &mut ErrorList) {
    const TYPES: [&str; 3] = ["Exact", "ImplementationSpecific", "Prefix"];
    const SEQUENCES: [&str; 5] = ["//", "/./", "/../", "%2f", "%2F"];
    const ENDS: [&str; 2] = ["/..", "/."];
    let Some(kind) = at(of, &["pathType"]).as_str() else {
        let why = "pathType must be specified";
        errors.push(FieldError::required(&path.child("pathType"), why));
        return;
    };
    let target = str_at(of, &["path"]);
    let at_target = path.child("path");
    let is_absolute =
        target.starts_with('/') || (target.is_empty() && kind == "ImplementationSpecific");
    if !TYPES.contains(&kind) {
        let path = path.child("pathType");
        errors.push(FieldError::not_supported(&path, kind, &TYPES));
    } else if !is_absolute {
        let fault = "must be an absolute path";
        errors.push(FieldError::invalid(&at_target, target, fault));
    }
    if matches!(kind, "Exact" | "Prefix") {
        for sequence in SEQUENCES.iter().filter(|s| target.contains(**s)) {
            let fault = format!("must not contain '{sequence}'");
            errors.push(FieldError::invalid(&at_target, target, fault));
        }
        for end in ENDS.iter().filter(|end| target.ends_with(**end)) {
            let fault = format!("cannot end with '{end}'");
            errors.push(FieldError::invalid(&at_target, target, fault));
        }
    }
    backend(at(of, &["backend"]), &path.child("backend"), errors);
}

fn backend(of: &Value, path: &Path, errors: &mut ErrorList) {
    match (has(of, &["service"]), has(of, &["resource"])) {
        (true, true) => {
            let fault = "cannot set both resource and service backends";
            errors.push(FieldError::invalid(path, "", fault));
        }
        (false, true) => object(at(of, &["resource"]), &path.child("resource"), errors),
        (true, false) => service(at(of, &["service"]), path, errors),
        (false, false) => {
            let fault = "resource or service backend is required";
            errors.push(FieldError::invalid(path, "", fault));
        }
    }
}

fn service(of: &Value, path: &Path, errors: &mut ErrorList) {
    let at_service = path.child("service");
    let check = names::check_dns1123_label;
    fields::name(of, "name", check, &at_service, errors);
    let port = at(of, &["port"]);
    let at_port = at_service.child("port");
    let name = str_at(port, &["name"]);
    let number = int_at(port, &["number"]).unwrap_or(0);
    match (name.is_empty(), number) {
        (true, 0) => {
            let why = "port name or number is required";
            errors.push(FieldError::required(path, why));
        }
        (true, number) => port_number(number, &at_port.child("number"), errors),
        (false, 0) => {
            let faults = names::check_port_name(name);
            errors.extend(invalid_each(&at_port.child("name"), name, faults));
        }
        (false, _) => {
            let fault = "cannot set both port name & port number";
            errors.push(FieldError::invalid(path, "", fault));
        }
    }
}

/// A reference to an object of any kind.
fn object(of: &Value, path: &Path, errors: &mut ErrorList) {
    let check = names::check_dns1123_subdomain;
    fields::given_name(of, "apiGroup", check, path, errors);
    for key in ["kind", "name"] {
        fields::name(of, key, names::check_path_segment, path, errors);
    }
}

pub(super) struct IngressClass(pub(super) KindInfo);

impl Strategy for IngressClass {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        if let Some(parameters) = at_mut(obj, &["spec", "parameters"]) {
            default_unset(parameters, "scope", "Cluster");
        }
    }

    fn prepare_for_create(&self, obj: &mut Value) {
        access::first_generation(&self.0, obj);
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        class(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        meta::immutable_at(new, old, &["spec", "controller"], &mut errors);
        class(new, &mut errors);
        errors
    }
}

fn class(obj: &Value, errors: &mut ErrorList) {
    const CONTROLLER_MAX: usize = 250;
    let path = Path::new("spec");
    let controller = str_at(obj, &["spec", "controller"]);
    if controller.len() > CONTROLLER_MAX {
        let path = path.child("controller");
        errors.push(FieldError::too_long(&path, CONTROLLER_MAX));
    }
    domain_path(controller, &path.child("controller"), errors);
    let of = at(obj, &["spec", "parameters"]);
    if of.is_null() {
        return;
    }
    let path = path.child("parameters");
    object(of, &path, errors);
    let at_namespace = path.child("namespace");
    let namespace = at(of, &["namespace"]).as_str();
    match (at(of, &["scope"]).as_str(), namespace) {
        (None, _) => errors.push(FieldError::required(&path.child("scope"), "")),
        (Some("Namespace"), None) => {
            let why = "`parameters.scope` is set to 'Namespace'";
            errors.push(FieldError::required(&at_namespace, why));
        }
        (Some("Namespace"), Some(name)) => {
            let faults = names::check_dns1123_label(name);
            errors.extend(invalid_each(&at_namespace, name, faults));
        }
        (Some("Cluster"), None) => {}
        (Some("Cluster"), Some(_)) => {
            let why = "`parameters.scope` is set to 'Cluster'";
            errors.push(FieldError::forbidden(&at_namespace, why));
        }
        (Some(scope), _) => {
            let path = path.child("scope");
            let scopes = ["Cluster", "Namespace"];
            errors.push(FieldError::not_supported(&path, scope, &scopes));
        }
    }
}

/// A DNS name and a path.
fn domain_path(text: &str, path: &Path, errors: &mut ErrorList) {
    const ALLOWED: &str = r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+";
    if text.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    let parts = text.split_once('/');
    let Some((domain, rest)) = parts.filter(|(d, r)| !d.is_empty() && !r.is_empty()) else {
        let fault = "must be a domain-prefixed path (such as \"acme.io/foo\")";
        errors.push(FieldError::invalid(path, text, fault));
        return;
    };
    let faults = names::check_dns1123_subdomain(domain);
    errors.extend(invalid_each(path, domain, faults));
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&b);
    if !rest.bytes().all(is_allowed) {
        let fault = names::regex_text("Invalid path", ALLOWED, &[]);
        errors.push(FieldError::invalid(path, rest, fault));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::testing::{faults, none, update_faults};

    const GROUP: &str = "networking.k8s.io";

    fn ingress(change: impl FnOnce(&mut Value)) -> Value {
        let mut obj = json!({"metadata": {"name": "i", "namespace": "default"}, "spec": {"rules": [{"host": "a.example.com",
            "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": {"service": {"name": "s", "port": {"number": 80}}}}]}}]}});
        change(&mut obj["spec"]);
        obj
    }

    #[test]
    fn faults_of_ingresses() {
        type Change = fn(&mut Value);
        let path = "spec.rules[0].http.paths[0]";
        let cases: &[(Change, String)] = &[
            (|s| s["rules"][0]["host"] = json!("10.0.0.7"),
                "spec.rules[0].host: Invalid value: \"10.0.0.7\": must be a DNS name, not an IP address".to_owned()),
            (|s| s["rules"][0]["http"]["paths"] = json!([]), "spec.rules[0].http.paths: Required value".to_owned()),
            (|s| s["rules"][0]["http"]["paths"][0]["path"] = json!("/a//b/.."),
                format!("{path}.path: Invalid value: \"/a//b/..\": must not contain '//'\n{path}.path: Invalid value: \"/a//b/..\": cannot end with '/..'")),
            (|s| s["rules"][0]["http"]["paths"][0]["pathType"] = json!("Some"),
                format!("{path}.pathType: Unsupported value: \"Some\": supported values: \"Exact\", \"ImplementationSpecific\", \"Prefix\"")),
            (|s| s["rules"][0]["http"]["paths"][0]["backend"] = json!({}),
                format!("{path}.backend: Invalid value: \"\": resource or service backend is required")),
            (|s| s["rules"][0]["http"]["paths"][0]["backend"]["service"]["port"] = json!({}),
                format!("{path}.backend: Required value: port name or number is required")),
            (|s| s["rules"][0]["http"]["paths"][0]["backend"] = json!({"resource": {"kind": "a/b"}}),
                format!("{path}.backend.resource.kind: Invalid value: \"a/b\": may not contain '/'\n{path}.backend.resource.name: Required value")),
        ];
        for (change, wanted) in cases {
            assert_eq!(faults(GROUP, "v1", "Ingress", &ingress(change)), *wanted);
        }
        for (key, value) in [
            ("ingressClassName", json!("A_b")),
            ("tls", json!([{"secretName": "A_b"}])),
            ("tls", json!([{"hosts": ["A_b"]}])),
        ] {
            let found = faults(GROUP, "v1", "Ingress", &ingress(|s| s[key] = value));
            assert!(
                found.contains("a lowercase RFC 1123 subdomain") && found.lines().count() == 1,
                "{found}"
            );
        }
        none(
            GROUP,
            "v1",
            "Ingress",
            &ingress(|s| s["tls"] = json!([{"hosts": ["*.example.com"], "secretName": "t"}])),
        );
    }

    #[test]
    fn secret_names_of_before_may_stay() {
        let old = ingress(|s| s["tls"] = json!([{"secretName": "A_b"}]));
        let mut new = old.clone();
        new["spec"]["rules"][0]["host"] = json!("b.example.com");
        assert_eq!(update_faults(GROUP, "v1", "Ingress", &new, &old), "");
    }

    #[test]
    fn faults_of_classes() {
        let class = |spec: Value| json!({"metadata": {"name": "c"}, "spec": spec});
        let with =
            |parameters: Value| class(json!({"controller": "a.io/b", "parameters": parameters}));
        let at_parameters = "spec.parameters";
        let cases = [
            (class(json!({})), "spec.controller: Required value".to_owned()),
            (class(json!({"controller": "a"})),
                "spec.controller: Invalid value: \"a\": must be a domain-prefixed path (such as \"acme.io/foo\")".to_owned()),
            (class(json!({"controller": "a.io/b c"})),
                "spec.controller: Invalid value: \"b c\": Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')".to_owned()),
            (with(json!({})), format!("{at_parameters}.kind: Required value\n{at_parameters}.name: Required value")),
            (with(json!({"kind": "K", "name": "n", "scope": "Some"})),
                format!("{at_parameters}.scope: Unsupported value: \"Some\": supported values: \"Cluster\", \"Namespace\"")),
            (with(json!({"kind": "K", "name": "n", "scope": "Namespace"})),
                format!("{at_parameters}.namespace: Required value: `parameters.scope` is set to 'Namespace'")),
            (with(json!({"kind": "K", "name": "n", "namespace": "a"})),
                format!("{at_parameters}.namespace: Forbidden: `parameters.scope` is set to 'Cluster'")),
        ];
        for (obj, wanted) in cases {
            assert_eq!(faults(GROUP, "v1", "IngressClass", &obj), wanted);
        }
        let found = update_faults(
            GROUP,
            "v1",
            "IngressClass",
            &class(json!({"controller": "a.io/c"})),
            &class(json!({"controller": "a.io/b"})),
        );
        assert_eq!(
            found,
            "spec.controller: Invalid value: \"a.io/c\": field is immutable"
        );
    }
}
