//! Named formats of texts.

use davit_api::names;

/// Names of pools, which are held against a length besides.
pub(super) const POOL_NAME: &str = "k8s-resource-pool-name";
const UUID_TEXT: &str = "must be a lowercase UUID in 8-4-4-4-12 format";

/// What is wrong with a text under a format; formats that are not known allow everything.
pub(super) fn check(format: &str, text: &str) -> Vec<String> {
    match format {
        "k8s-short-name" => names::check_short_name(text),
        "k8s-long-name" => names::check_long_name(text),
        "k8s-long-name-caseless" => names::check_long_name_caseless(text),
        "k8s-label-key" => names::check_qualified_name(text),
        "k8s-path-segment-name" => names::check_path_segment(text),
        "k8s-uuid" => check_uuid(text),
        POOL_NAME => check_pool_name(text),
        "k8s-resource-fully-qualified-name" => check_fully_qualified(text),
        "k8s-extended-resource-name" => check_extended_resource(text),
        _ => Vec::new(),
    }
}

fn check_uuid(text: &str) -> Vec<String> {
    let shaped = text.len() == 36
        && text.bytes().enumerate().all(|(i, b)| match i {
            8 | 13 | 18 | 23 => b == b'-',
            _ => b.is_ascii_digit() || (b'a'..=b'f').contains(&b),
        });
    if shaped {
        Vec::new()
    } else {
        vec![UUID_TEXT.to_owned()]
    }
}

/// DNS subdomains separated by slashes.
fn check_pool_name(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for (i, segment) in text.split('/').enumerate() {
        let found = match segment {
            "" => vec!["must not be empty".to_owned()],
            _ => names::check_long_name(segment),
        };
        let placed = found.iter().map(|fault| format!("segment {i}: {fault}"));
        faults.extend(placed);
    }
    faults
}

/// A domain and a C identifier of at most 32 bytes.
fn check_fully_qualified(text: &str) -> Vec<String> {
    let Some((domain, name)) = text.split_once('/') else {
        return vec!["must include a domain".to_owned()];
    };
    let mut errors = Vec::new();
    if domain.is_empty() {
        errors.push("the domain must not be empty".to_owned());
    } else {
        errors.extend(names::check_dns1123_subdomain(domain));
    }
    if name.is_empty() {
        errors.push("the name must not be empty".to_owned());
    } else {
        if name.len() > 32 {
            errors.push(names::too_long_text(32));
        }
        errors.extend(names::check_c_identifier(name));
    }
    errors
}

fn check_extended_resource(text: &str) -> Vec<String> {
    let faults = names::check_qualified_name(text);
    if faults.is_empty() && !names::is_extended_resource(text) {
        return vec!["must be an extended resource name".to_owned()];
    }
    faults
}
