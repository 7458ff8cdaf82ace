//! Checks of single fields that many kinds share.

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use serde_json::Value;

use super::json::{at, int_at, str_at};

/// What a text must be: the faults it has.
pub(super) type NameCheck = fn(&str) -> Vec<String>;

const NOT_NEGATIVE: &str = "must be greater than or equal to 0";

/// Most bytes of the name of a storage driver.
const DRIVER_NAME_MAX: usize = 63;

/// A text that must be given.
pub(super) fn name(of: &Value, key: &str, check: NameCheck, path: &Path, errors: &mut ErrorList) {
    let text = str_at(of, &[key]);
    let path = path.child(key);
    if text.is_empty() {
        errors.push(FieldError::required(&path, ""));
    } else {
        errors.extend(invalid_each(&path, text, check(text)));
    }
}

/// A text that may be absent; an empty one counts as absent.
pub(super) fn optional_name(
    of: &Value,
    key: &str,
    check: NameCheck,
    path: &Path,
    errors: &mut ErrorList,
) {
    let text = str_at(of, &[key]);
    if !text.is_empty() {
        errors.extend(invalid_each(&path.child(key), text, check(text)));
    }
}

/// A text that may be absent, but not empty (a pointer in the original).
pub(super) fn given_name(
    of: &Value,
    key: &str,
    check: NameCheck,
    path: &Path,
    errors: &mut ErrorList,
) {
    if let Some(text) = at(of, &[key]).as_str() {
        errors.extend(invalid_each(&path.child(key), text, check(text)));
    }
}

/// A value of a closed set that must be given.
pub(super) fn choice(
    of: &Value,
    key: &str,
    supported: &[&str],
    path: &Path,
    errors: &mut ErrorList,
) {
    let value = str_at(of, &[key]);
    if value.is_empty() {
        errors.push(FieldError::required(&path.child(key), ""));
    } else if !supported.contains(&value) {
        errors.push(FieldError::not_supported(
            &path.child(key),
            value,
            supported,
        ));
    }
}

/// A value of a closed set, of which an absent one is no member.
pub(super) fn one_of(
    of: &Value,
    key: &str,
    supported: &[&str],
    path: &Path,
    errors: &mut ErrorList,
) {
    let value = str_at(of, &[key]);
    if !supported.contains(&value) {
        errors.push(FieldError::not_supported(
            &path.child(key),
            value,
            supported,
        ));
    }
}

/// As [`choice`], but may be absent.
pub(super) fn optional_choice(
    of: &Value,
    key: &str,
    supported: &[&str],
    path: &Path,
    errors: &mut ErrorList,
) {
    if !str_at(of, &[key]).is_empty() {
        choice(of, key, supported, path, errors);
    }
}

/// A text that must be given.
pub(super) fn required(of: &Value, key: &str, path: &Path, errors: &mut ErrorList) {
    if str_at(of, &[key]).is_empty() {
        errors.push(FieldError::required(&path.child(key), ""));
    }
}

/// A number that must not be negative.
pub(super) fn not_negative(of: &Value, key: &str, path: &Path, errors: &mut ErrorList) {
    if let Some(n) = int_at(of, &[key]).filter(|n| *n < 0) {
        errors.push(FieldError::invalid(&path.child(key), n, NOT_NEGATIVE));
    }
}

/// The name of a storage driver.
pub(super) fn driver_name(name: &str, path: &Path, errors: &mut ErrorList) {
    if name.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    if name.len() > DRIVER_NAME_MAX {
        errors.push(FieldError::too_long(path, DRIVER_NAME_MAX));
    }
    let faults = names::check_dns1123_subdomain(&name.to_lowercase());
    errors.extend(invalid_each(path, name, faults));
}

/// Numbers of a list of fields that may not be negative; those that are absent count as 0.
pub(super) fn counts(of: &Value, keys: &[&str], path: &Path, errors: &mut ErrorList) {
    for key in keys {
        not_negative(of, key, path, errors);
    }
}
