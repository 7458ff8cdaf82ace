//! What is valid in webhook configurations.

use std::collections::HashSet;

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use http::Uri;
use serde_json::Value;

use super::super::fields::{choice, optional_choice};
use super::super::json::{at, has, int_at, list_at, str_at};
use super::super::selectors;
use crate::conditions::validate_conditions;
use davit_cel::policy::{Scope, environment};

const VERSIONS: [&str; 2] = ["v1", "v1beta1"];
const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
const FORM: &str = "; desired format: https://host[/path]";

/// All faults of `webhooks`.
pub(super) fn validate(obj: &Value, errors: &mut ErrorList) {
    let mut seen = HashSet::new();
    for (i, hook) in list_at(obj, &["webhooks"]).iter().enumerate() {
        let path = Path::new("webhooks").index(i);
        let name = str_at(hook, &["name"]);
        check_name(name, &path.child("name"), errors);
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(&path.child("name"), name));
        }
        versions(hook, &path.child("admissionReviewVersions"), errors);
        for (j, rule) in list_at(hook, &["rules"]).iter().enumerate() {
            rules(rule, &path.child("rules").index(j), errors);
        }
        choice(hook, "failurePolicy", &["Fail", "Ignore"], &path, errors);
        choice(hook, "matchPolicy", &["Equivalent", "Exact"], &path, errors);
        if str_at(hook, &["sideEffects"]).is_empty() {
            let why = "must specify one of None, NoneOnDryRun";
            errors.push(FieldError::required(&path.child("sideEffects"), why));
        } else {
            let known = ["None", "NoneOnDryRun"];
            choice(hook, "sideEffects", &known, &path, errors);
        }
        let timeout = int_at(hook, &["timeoutSeconds"]);
        if let Some(timeout) = timeout.filter(|t| !(1..=30).contains(t)) {
            let fault = "the timeout value must be between 1 and 30 seconds";
            let path = path.child("timeoutSeconds");
            errors.push(FieldError::invalid(&path, timeout, fault));
        }
        for key in ["namespaceSelector", "objectSelector"] {
            selectors::label_selector(at(hook, &[key]), &path.child(key), errors);
        }
        let policies = ["IfNeeded", "Never"];
        optional_choice(hook, "reinvocationPolicy", &policies, &path, errors);
        client(
            at(hook, &["clientConfig"]),
            &path.child("clientConfig"),
            errors,
        );
        let conditions = at(hook, &["matchConditions"]);
        errors.extend(validate_conditions(
            conditions,
            &path.child("matchConditions"),
            &environment(Scope::WEBHOOK),
        ));
    }
}

fn check_name(name: &str, path: &Path, errors: &mut ErrorList) {
    if name.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    let faults = names::check_dns1123_subdomain(name);
    if !faults.is_empty() {
        errors.push(FieldError::invalid(path, name, faults.join(",")));
        return;
    }
    if name.split('.').count() < 3 {
        let fault = "should be a domain with at least three segments separated by dots";
        errors.push(FieldError::invalid(path, name, fault));
    }
}

fn versions(hook: &Value, path: &Path, errors: &mut ErrorList) {
    let list = list_at(hook, &["admissionReviewVersions"]);
    if list.is_empty() {
        let why = "must specify one of v1, v1beta1";
        errors.push(FieldError::required(path, why));
        return;
    }
    let mut seen = HashSet::new();
    for (i, version) in list.iter().enumerate() {
        let version = version.as_str().unwrap_or_default();
        if !seen.insert(version) {
            errors.push(FieldError::invalid(
                &path.index(i),
                version,
                "duplicate version",
            ));
        }
        let faults = names::check_dns1035_label(version);
        errors.extend(invalid_each(&path.index(i), version, faults));
    }
    if !VERSIONS.iter().any(|version| seen.contains(version)) {
        let why = "must include at least one of v1, v1beta1";
        errors.push(FieldError::invalid(path, Value::from(list.to_vec()), why));
    }
}

/// What requests a rule is about.
pub(crate) fn rules(rule: &Value, path: &Path, errors: &mut ErrorList) {
    let operations = list_at(rule, &["operations"]);
    let at_operations = path.child("operations");
    if operations.is_empty() {
        errors.push(FieldError::required(&at_operations, ""));
    }
    alone(operations, "*", "operations", &at_operations, errors);
    for (i, operation) in operations.iter().enumerate() {
        let operation = operation.as_str().unwrap_or_default();
        if !OPERATIONS.contains(&operation) {
            let path = at_operations.index(i);
            errors.push(FieldError::not_supported(&path, operation, &OPERATIONS));
        }
    }
    for (key, what, may_be_empty) in [
        ("apiGroups", "API groups", true),
        ("apiVersions", "API versions", false),
    ] {
        let list = list_at(rule, &[key]);
        let path = path.child(key);
        if list.is_empty() {
            errors.push(FieldError::required(&path, ""));
        }
        alone(list, "*", what, &path, errors);
        for (i, entry) in list.iter().enumerate() {
            if !may_be_empty && entry.as_str().is_none_or(str::is_empty) {
                errors.push(FieldError::required(&path.index(i), ""));
            }
        }
    }
    resources(
        list_at(rule, &["resources"]),
        &path.child("resources"),
        errors,
    );
    let scopes = ["*", "Cluster", "Namespaced"];
    optional_choice(rule, "scope", &scopes, path, errors);
}

/// A wildcard stands alone.
fn alone(list: &[Value], wildcard: &str, what: &str, path: &Path, errors: &mut ErrorList) {
    if list.len() > 1 && list.iter().any(|entry| entry == wildcard) {
        let why = format!("if '{wildcard}' is present, must not specify other {what}");
        errors.push(FieldError::invalid(path, Value::from(list.to_vec()), why));
    }
}

fn resources(list: &[Value], path: &Path, errors: &mut ErrorList) {
    if list.is_empty() {
        errors.push(FieldError::required(path, ""));
    }
    let (mut all_of, mut of_all) = (HashSet::new(), HashSet::new());
    let mut plain = 0;
    for (i, entry) in list.iter().enumerate() {
        let path = path.index(i);
        let entry = entry.as_str().unwrap_or_default();
        if entry.is_empty() {
            errors.push(FieldError::required(&path, ""));
            continue;
        }
        let Some((resource, sub)) = entry.split_once('/') else {
            plain += 1;
            continue;
        };
        if all_of.contains(resource) {
            let why = format!("if '{resource}/*' is present, must not specify {entry}");
            errors.push(FieldError::invalid(&path, entry, why));
        }
        if of_all.contains(sub) {
            let why = format!("if '*/{sub}' is present, must not specify {entry}");
            errors.push(FieldError::invalid(&path, entry, why));
        }
        if sub == "*" {
            all_of.insert(resource);
        }
        if resource == "*" {
            of_all.insert(sub);
        }
    }
    alone(list, "*/*", "resources", path, errors);
    if plain > 1 && list.iter().any(|entry| entry == "*") {
        let why = "if '*' is present, must not specify other resources without subresources";
        errors.push(FieldError::invalid(path, Value::from(list.to_vec()), why));
    }
}

/// A URL or a service.
fn client(config: &Value, path: &Path, errors: &mut ErrorList) {
    match (has(config, &["url"]), has(config, &["service"])) {
        (true, false) => url(str_at(config, &["url"]), &path.child("url"), errors),
        (false, true) => service(at(config, &["service"]), &path.child("service"), errors),
        _ => {
            let why = "exactly one of url or service is required";
            errors.push(FieldError::required(path, why));
        }
    }
}

/// What is no URL at all, though its characters are those of one.
fn no_url(text: &str) -> Option<&'static str> {
    let first = text.split(['/', '?', '#']).next().unwrap_or_default();
    let scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    match first.split_once(':') {
        Some(("", _)) => Some("missing protocol scheme"),
        Some((name, _))
            if !name.starts_with(|c: char| c.is_ascii_alphabetic())
                || !name.chars().all(scheme) =>
        {
            Some("first path segment in URL cannot contain colon")
        }
        _ => None,
    }
}

fn url(text: &str, path: &Path, errors: &mut ErrorList) {
    if let Some(fault) = no_url(text) {
        let shown = davit_api::field::quote(text);
        let why = format!("url must be a valid URL: parse {shown}: {fault}{FORM}");
        errors.push(FieldError::required(path, why));
        return;
    }
    // a path alone is a URL, though none that can be called
    if !text.contains("://") {
        for why in [
            "'https' is the only allowed URL scheme",
            "host must be specified",
        ] {
            errors.push(FieldError::invalid(path, "", format!("{why}{FORM}")));
        }
        return;
    }
    let (main, fragment) = text.split_once('#').unwrap_or((text, ""));
    let parsed: Uri = match main.parse() {
        Ok(parsed) => parsed,
        Err(error) => {
            let why = format!("url must be a valid URL: {error}{FORM}");
            errors.push(FieldError::required(path, why));
            return;
        }
    };
    let mut invalid = |value: &str, why: String| errors.push(FieldError::invalid(path, value, why));
    let scheme = parsed.scheme_str().unwrap_or_default();
    if scheme != "https" {
        let why = format!("'https' is the only allowed URL scheme{FORM}");
        invalid(scheme, why);
    }
    let authority = parsed
        .authority()
        .map_or("", |authority| authority.as_str());
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    if host.is_empty() {
        invalid("", format!("host must be specified{FORM}"));
    }
    if !user.is_empty() {
        let why = "user information is not permitted in the URL";
        invalid(user, why.to_owned());
    }
    if !fragment.is_empty() {
        invalid(
            fragment,
            "fragments are not permitted in the URL".to_owned(),
        );
    }
    if let Some(query) = parsed.query().filter(|query| !query.is_empty()) {
        invalid(
            query,
            "query parameters are not permitted in the URL".to_owned(),
        );
    }
}

fn service(service: &Value, path: &Path, errors: &mut ErrorList) {
    for (key, why) in [
        ("name", "service name is required"),
        ("namespace", "service namespace is required"),
    ] {
        if str_at(service, &[key]).is_empty() {
            errors.push(FieldError::required(&path.child(key), why));
        }
    }
    let port = int_at(service, &["port"]).unwrap_or(443);
    if !(1..=65535).contains(&port) {
        let why = "port is not valid: must be between 1 and 65535, inclusive";
        errors.push(FieldError::invalid(&path.child("port"), port, why));
    }
    service_path(str_at(service, &["path"]), &path.child("path"), errors);
}

/// Segments of a path. One slash at its end is none too many; what stands in the place of the first one is not looked at.
fn service_path(text: &str, path: &Path, errors: &mut ErrorList) {
    if text.is_empty() || text == "/" {
        return;
    }
    let mut invalid = |why: String| errors.push(FieldError::invalid(path, text, why));
    if !text.starts_with('/') {
        invalid("must start with a '/'".to_owned());
    }
    let rest = text.chars().skip(1).collect::<String>();
    let rest = rest.strip_suffix('/').unwrap_or(&rest);
    for (i, segment) in rest.split('/').enumerate() {
        if segment.is_empty() {
            invalid(format!("segment[{i}] may not be empty"));
            continue;
        }
        for fault in names::check_dns1123_subdomain(segment) {
            invalid(format!("segment[{i}]: {fault}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn faults(change: impl FnOnce(&mut Value)) -> Vec<String> {
        let mut hook = json!({
            "name": "a.example.com", "sideEffects": "None", "failurePolicy": "Fail",
            "matchPolicy": "Exact", "admissionReviewVersions": ["v1"],
            "clientConfig": { "url": "https://a/b" },
            "rules": [{
                "operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"],
                "resources": ["pods"],
            }],
        });
        change(&mut hook);
        let mut errors = ErrorList::new();
        validate(&json!({ "webhooks": [hook] }), &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn faults_of_configurations_name_their_fields() {
        assert!(faults(|_| {}).is_empty());
        assert_eq!(
            faults(|hook| hook["clientConfig"] = json!({ "url": "http://u@h?x=1#f" })),
            [
                "webhooks[0].clientConfig.url: Invalid value: \"http\": 'https' is the only allowed URL scheme; desired format: https://host[/path]",
                "webhooks[0].clientConfig.url: Invalid value: \"u\": user information is not permitted in the URL",
                "webhooks[0].clientConfig.url: Invalid value: \"f\": fragments are not permitted in the URL",
                "webhooks[0].clientConfig.url: Invalid value: \"x=1\": query parameters are not permitted in the URL",
            ]
        );
        assert_eq!(
            faults(|hook| hook["clientConfig"]["url"] = json!("2001:db8::1")),
            [
                "webhooks[0].clientConfig.url: Required value: url must be a valid URL: parse \"2001:db8::1\": first path segment in URL cannot contain colon; desired format: https://host[/path]"
            ]
        );
        assert_eq!(
            faults(|hook| hook["clientConfig"]["url"] = json!("a b")).len(),
            2
        );
        let path = |path: &str| {
            let service = json!({"namespace": "n", "name": "s", "path": path});
            faults(|hook| hook["clientConfig"] = json!({ "service": service }))
        };
        assert!(path("/a/b.c/").is_empty() && path("/").is_empty());
        let at = "webhooks[0].clientConfig.service.path: Invalid value";
        assert_eq!(
            path("//"),
            [format!("{at}: \"//\": segment[0] may not be empty")]
        );
        assert_eq!(
            path("0"),
            [
                format!("{at}: \"0\": must start with a '/'"),
                format!("{at}: \"0\": segment[0] may not be empty"),
            ]
        );
        assert_eq!(
            path("/a//"),
            [format!("{at}: \"/a//\": segment[1] may not be empty")]
        );
        assert_eq!(
            faults(|hook| hook["clientConfig"] = json!({})),
            ["webhooks[0].clientConfig: Required value: exactly one of url or service is required"]
        );
        assert_eq!(
            faults(|hook| hook["rules"][0]["operations"] = json!(["*", "CREATE"])),
            [
                "webhooks[0].rules[0].operations: Invalid value: [\"*\",\"CREATE\"]: if '*' is present, must not specify other operations"
            ]
        );
        assert_eq!(
            faults(|hook| hook["rules"][0]["resources"] = json!(["pods/*", "pods/exec"])),
            [
                "webhooks[0].rules[0].resources[1]: Invalid value: \"pods/exec\": if 'pods/*' is present, must not specify pods/exec"
            ]
        );
        assert_eq!(
            faults(|hook| hook["admissionReviewVersions"] = json!(["v2"])),
            [
                "webhooks[0].admissionReviewVersions: Invalid value: [\"v2\"]: must include at least one of v1, v1beta1"
            ]
        );
    }
}
