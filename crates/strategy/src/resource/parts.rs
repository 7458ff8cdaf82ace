//! What claims, slices and classes have in common: names, taints, limits.

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use serde_json::Value;

use super::super::json::str_at;

const LONGEST_DRIVER: usize = 63;
const LONGEST_POOL: usize = 253;
const LONGEST_DOMAIN: usize = 63;
const LONGEST_ID: usize = 32;

pub(super) fn too_many(list: &[Value], most: usize, path: &Path, errors: &mut ErrorList) {
    if list.len() > most {
        errors.push(FieldError::too_many(path, list.len(), most));
    }
}

/// Exactly one of several members must be there.
pub(super) fn exactly_one(members: &[(&str, bool)], path: &Path, errors: &mut ErrorList) {
    let names: Vec<String> = members.iter().map(|(n, _)| format!("`{n}`")).collect();
    let text = match &names[..] {
        [a, b] => format!("exactly one of {a} or {b} is required"),
        all => format!("exactly one of {} is required", all.join(", ")),
    };
    let several = format!("{text}, but multiple fields are set");
    exactly_one_or(members, [&text, &several], path, errors);
}

/// As [`exactly_one`], with the words for none and for several.
pub(super) fn exactly_one_or(
    members: &[(&str, bool)],
    [none, several]: [&str; 2],
    path: &Path,
    errors: &mut ErrorList,
) {
    match members.iter().filter(|(_, given)| *given).count() {
        1 => {}
        0 => errors.push(FieldError::required(path, none)),
        _ => {
            let given: Vec<String> = members
                .iter()
                .filter(|(_, given)| *given)
                .map(|(n, _)| format!("`{n}`"))
                .collect();
            let value = format!("{{{}}}", given.join(", "));
            errors.push(FieldError::invalid(path, value, several));
        }
    }
}

pub(super) fn driver_name(name: &str, path: &Path, errors: &mut ErrorList) {
    if name.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    if name.len() > LONGEST_DRIVER {
        errors.push(FieldError::too_long(path, LONGEST_DRIVER));
    }
    errors.extend(invalid_each(
        path,
        name,
        names::check_dns1123_subdomain(&name.to_lowercase()),
    ));
}

pub(super) fn pool_name(name: &str, path: &Path, errors: &mut ErrorList) {
    if name.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    if name.len() > LONGEST_POOL {
        errors.push(FieldError::too_long(path, LONGEST_POOL));
    }
    for part in name.split('/') {
        errors.extend(invalid_each(
            path,
            part,
            names::check_dns1123_subdomain(part),
        ));
    }
}

pub(super) fn label_name(name: &str, path: &Path, errors: &mut ErrorList) {
    if name.is_empty() {
        errors.push(FieldError::required(path, ""));
    } else {
        errors.extend(invalid_each(path, name, names::check_dns1123_label(name)));
    }
}

/// `id` or `domain/id`; with `full` the domain must be there.
pub(super) fn qualified(name: &str, full: bool, path: &Path, errors: &mut ErrorList) {
    if name.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    let parts: Vec<&str> = name.split('/').collect();
    let (domain, id) = match parts[..] {
        [id] => {
            if full {
                let fault =
                    "a fully qualified name must be a domain and a name separated by a slash";
                errors.push(FieldError::invalid(path, name, fault));
            }
            (None, id)
        }
        [domain, id] => (Some(domain), id),
        _ => {
            let fault = "a qualified name must not contain more than one slash";
            errors.push(FieldError::invalid(path, name, fault));
            return;
        }
    };
    match domain {
        Some("") => errors.push(FieldError::invalid(
            path,
            name,
            "the domain must not be empty",
        )),
        Some(domain) => {
            if domain.len() > LONGEST_DOMAIN {
                errors.push(FieldError::too_long(path, LONGEST_DOMAIN));
            }
            errors.extend(invalid_each(
                path,
                domain,
                names::check_dns1123_subdomain(domain),
            ));
        }
        None => {}
    }
    if id.is_empty() {
        errors.push(FieldError::invalid(
            path,
            name,
            "the name must not be empty",
        ));
        return;
    }
    if id.len() > LONGEST_ID {
        errors.push(FieldError::too_long(path, LONGEST_ID));
    }
    errors.extend(invalid_each(path, id, names::check_c_identifier(id)));
}

pub(super) fn taint_effect(effect: &str, path: &Path, errors: &mut ErrorList) {
    let known = ["NoExecute", "NoSchedule", "None"];
    if effect.is_empty() {
        errors.push(FieldError::required(path, ""));
    } else if !known.contains(&effect) {
        errors.push(FieldError::not_supported(path, effect, &known));
    }
}

pub(super) fn taint(taint: &Value, path: &Path, errors: &mut ErrorList) {
    let text = |key: &str| str_at(taint, &[key]);
    let faults = names::check_qualified_name(text("key"));
    errors.extend(invalid_each(&path.child("key"), text("key"), faults));
    let faults = names::check_label_value(text("value"));
    errors.extend(invalid_each(&path.child("value"), text("value"), faults));
    taint_effect(text("effect"), &path.child("effect"), errors);
}

pub(super) fn uuid(text: &str, path: &Path, errors: &mut ErrorList) {
    let dashes = [8, 13, 18, 23];
    let fits = text.len() == 36
        && text.chars().enumerate().all(|(i, c)| {
            if dashes.contains(&i) {
                c == '-'
            } else {
                c.is_ascii_digit() || ('a'..='f').contains(&c)
            }
        });
    if !fits {
        let fault = "must be a lowercase UUID in 36-character hyphenated form";
        errors.push(FieldError::invalid(path, text, fault));
    }
}
