//! The conversion of a definition.

use base64::Engine as _;
use davit_api::field::{ErrorList, FieldError, Path};
use davit_api::names;
use serde_json::Value;

use super::super::json::{has, list_at, str_at};

const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];

/// Why the authorities of a webhook cannot be used.
pub fn ca_bundle_fault(bundle: &str) -> Option<String> {
    let pem = base64::engine::general_purpose::STANDARD
        .decode(bundle)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok());
    let why = "unable to load root certificates: unable to parse bytes as PEM block";
    let Some(pem) = pem else {
        return Some(why.to_owned());
    };
    let certificates = x509_parser::pem::Pem::iter_from_buffer(pem.as_bytes());
    let mut any = false;
    for certificate in certificates {
        let good = certificate
            .as_ref()
            .is_ok_and(|pem| pem.label == "CERTIFICATE" && pem.parse_x509().is_ok());
        if !good {
            return Some(why.to_owned());
        }
        any = true;
    }
    (!any).then(|| why.to_owned())
}

pub(super) fn validate(obj: &Value, old: Option<&Value>, errors: &mut ErrorList) {
    let conversion = &obj["spec"]["conversion"];
    let path = Path::new("spec").child("conversion");
    let strategy = str_at(conversion, &["strategy"]);
    super::one_of(
        strategy,
        &["None", "Webhook"],
        &path.child("strategy"),
        errors,
    );
    let at_client = path.child("webhookClientConfig");
    let at_versions = path.child("conversionReviewVersions");
    let client = &conversion["webhook"]["clientConfig"];
    let versions = list_at(conversion, &["webhook", "conversionReviewVersions"]);
    if strategy != "Webhook" {
        let why = "should not be set when strategy is not set to Webhook";
        if client.is_object() {
            errors.push(FieldError::forbidden(&at_client, why));
        }
        if !versions.is_empty() {
            errors.push(FieldError::forbidden(&at_versions, why));
        }
        return;
    }
    if client.is_object() {
        client_config(client, obj, old, &at_client, errors);
    } else {
        let why = "required when strategy is set to Webhook";
        errors.push(FieldError::required(&at_client, why));
    }
    review_versions(versions, &at_versions, errors);
}

fn client_config(
    client: &Value,
    obj: &Value,
    old: Option<&Value>,
    path: &Path,
    errors: &mut ErrorList,
) {
    let (url, service) = (client["url"].as_str(), has(client, &["service"]));
    match (url, service) {
        (Some(url), false) => check_url(url, &path.child("url"), errors),
        (None, true) => check_service(&client["service"], &path.child("service"), errors),
        _ => errors.push(FieldError::required(
            path,
            "exactly one of url or service is required",
        )),
    }
    // before it is established a definition may wait for its authorities
    let established = old.is_some_and(|old| super::is_true(old, "Established"));
    let bundle = |obj: &Value| {
        let bundle = &obj["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"];
        bundle.as_str().unwrap_or_default().to_owned()
    };
    let new = bundle(obj);
    let was_bad = old.is_some_and(|old| {
        let old = bundle(old);
        !old.is_empty() && ca_bundle_fault(&old).is_some()
    });
    if established
        && !was_bad
        && !new.is_empty()
        && let Some(why) = ca_bundle_fault(&new)
    {
        errors.push(FieldError::invalid(&path.child("caBundle"), new, why));
    }
}

fn check_url(text: &str, at: &Path, errors: &mut ErrorList) {
    let form = "; desired format: https://host[/path]";
    let mut refuse = |shown: &str, why: String| {
        errors.push(FieldError::invalid(at, shown, format!("{why}{form}")));
    };
    let Ok(url) = text.parse::<http::Uri>() else {
        refuse(text, format!("url must be a valid URL: {text}"));
        return;
    };
    let scheme = url.scheme_str().unwrap_or_default();
    if scheme != "https" {
        refuse(scheme, "'https' is the only allowed URL scheme".to_owned());
    }
    if url.host().unwrap_or_default().is_empty() {
        refuse("", "host must be specified".to_owned());
    }
    if url.authority().is_some_and(|a| a.as_str().contains('@')) {
        refuse(
            text,
            "user information is not permitted in the URL".to_owned(),
        );
    }
    if text.contains('#') {
        let fragment = text.split_once('#').map_or("", |(_, fragment)| fragment);
        refuse(
            fragment,
            "fragments are not permitted in the URL".to_owned(),
        );
    }
    if let Some(query) = url.query() {
        refuse(
            query,
            "query parameters are not permitted in the URL".to_owned(),
        );
    }
}

fn check_service(service: &Value, path: &Path, errors: &mut ErrorList) {
    for key in ["name", "namespace"] {
        if str_at(service, &[key]).is_empty() {
            let what = if key == "name" { "name" } else { "namespace" };
            let why = format!("service {what} is required");
            errors.push(FieldError::required(&path.child(key), why));
        }
    }
    let port = service["port"].as_i64().unwrap_or(443);
    for fault in names::check_port_number(port) {
        let why = format!("port is not valid: {fault}");
        errors.push(FieldError::invalid(&path.child("port"), port, why));
    }
    let Some(text) = service["path"].as_str() else {
        return;
    };
    let at = path.child("path");
    if !text.starts_with('/') {
        let why = "must start with a '/'";
        errors.push(FieldError::invalid(&at, text, why));
    } else if text != "/" {
        for (i, step) in text[1..].trim_end_matches('/').split('/').enumerate() {
            let mut faults = names::check_dns1123_subdomain(step);
            if step.is_empty() {
                faults = vec![format!("segment[{i}] may not be empty")];
            }
            errors.extend(
                faults
                    .first()
                    .map(|why| FieldError::invalid(&at, text, why.clone())),
            );
        }
    }
}

fn review_versions(versions: &[Value], path: &Path, errors: &mut ErrorList) {
    if versions.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    for (i, version) in versions.iter().enumerate() {
        let at = path.index(i);
        if versions[..i].contains(version) {
            errors.push(FieldError::invalid(
                &at,
                version.clone(),
                "duplicate version",
            ));
            continue;
        }
        for why in names::check_dns1035_label(version.as_str().unwrap_or_default()) {
            errors.push(FieldError::invalid(&at, version.clone(), why));
        }
    }
    let known = |version: &Value| REVIEW_VERSIONS.contains(&version.as_str().unwrap_or_default());
    if !versions.iter().any(known) {
        let why = format!(
            "must include at least one of {}",
            REVIEW_VERSIONS.join(", ")
        );
        errors.push(FieldError::invalid(path, versions.to_vec(), why));
    }
}
