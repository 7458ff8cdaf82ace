//! Limits of values, with the sentences of the validator that Kubernetes uses.

use davit_api::field::{ErrorList, ErrorType, FieldError, Path, quote};
use serde_json::Value;

use super::numbers::whole;
use super::{Additional, Kind, Limits, Node, formats, lists};

/// Most errors of one object.
const MAX_ERRORS: usize = 100;

/// What is wrong with `new`. Where a value equals the one that stood there before, nothing is.
pub(super) fn validate(node: &Node, new: &Value, old: Option<&Value>) -> ErrorList {
    let mut errors = ErrorList::new();
    value(node, new, old, "", &mut errors);
    errors.truncate(MAX_ERRORS);
    errors
}

/// What is wrong with the status of an object, where nothing else was written. Sentences name fields from the status on,
/// as in the original.
pub(super) fn validate_status(root: &Node, new: &Value, old: Option<&Value>) -> ErrorList {
    let (Some(node), Some(new)) = (root.property("status"), new.get("status")) else {
        return ErrorList::new();
    };
    let mut errors = validate(node, new, old.and_then(|old| old.get("status")));
    for error in &mut errors {
        let inner = std::mem::replace(&mut error.field, "status".to_owned());
        if inner != Path::root().to_string() {
            error.field = child(&error.field, &inner);
        }
    }
    errors
}

fn at(path: &str) -> Path {
    if path.is_empty() {
        Path::root()
    } else {
        Path::new(path)
    }
}

fn invalid(path: &str, shown: impl Into<Value>, why: &str) -> FieldError {
    FieldError::invalid(&at(path), shown, format!("{path} in body {why}"))
}

fn child(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

fn value(node: &Node, new: &Value, old: Option<&Value>, path: &str, errors: &mut ErrorList) {
    // Of a list of a million empty elements each lacks all that it must have.
    if errors.len() >= MAX_ERRORS || old.is_some_and(|old| lists::unchanged(node, new, old)) {
        return;
    }
    if new.is_null() && node.nullable {
        return;
    }
    if !has_type(node, new, path, errors) || new.is_null() {
        return;
    }
    if node.int_or_string && !matches!(new, Value::String(_)) && !is_integer(new) {
        // the two alternatives of int-or-string, as the original spells them
        let word = type_word(new);
        errors.push(wrong_type(path, "integer,string", word));
        return;
    }
    if let Some(limits) = &node.limits {
        combined(limits, new, path, errors);
        scalar(node, limits, new, path, errors);
    }
    match new {
        Value::Array(items) => list(node, items, old, path, errors),
        Value::Object(map) => {
            if let Some(limits) = &node.limits {
                size(limits, map.len(), path, errors);
            }
            for (key, held) in map {
                let before = old.and_then(|old| old.get(key));
                if let Some(inner) = node.property(key) {
                    value(inner, held, before, &child(path, key), errors);
                } else if let Additional::Schema(inner) = &node.additional {
                    value(inner, held, before, &child(path, key), errors);
                }
            }
            let required = node.limits.iter().flat_map(|limits| &limits.required);
            for name in required.filter(|name| !map.contains_key(name.as_str())) {
                errors.push(FieldError::required(&at(&child(path, name)), ""));
            }
        }
        _ => {}
    }
}

fn type_word(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) if is_integer(value) => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn is_integer(value: &Value) -> bool {
    value.is_i64() || value.is_u64() || value.as_f64().and_then(whole).is_some()
}

fn wrong_type(path: &str, wanted: &str, word: &str) -> FieldError {
    let why = format!("{path} in body must be of type {wanted}: {}", quote(word));
    FieldError::type_invalid(&at(path), word, why)
}

fn has_type(node: &Node, value: &Value, path: &str, errors: &mut ErrorList) -> bool {
    let Some(kind) = node.kind else {
        if value.is_null() && node.int_or_string {
            errors.push(wrong_type(path, "integer,string", "null"));
        }
        return true;
    };
    let fits = match (kind, value) {
        (Kind::Object, Value::Object(_))
        | (Kind::Array, Value::Array(_))
        | (Kind::String, Value::String(_))
        | (Kind::Number, Value::Number(_))
        | (Kind::Boolean, Value::Bool(_)) => true,
        (Kind::Integer, Value::Number(_)) => is_integer(value),
        _ => false,
    };
    if !fits {
        errors.push(wrong_type(path, kind.as_str(), type_word(value)));
        if kind == Kind::Integer && value.is_number() {
            let why = format!("Checked value must be of type integer (default format) in {path}");
            errors.push(FieldError::invalid(&Path::root(), "", why));
        }
    }
    fits
}

/// allOf, anyOf, oneOf and not.
fn combined(limits: &Limits, new: &Value, path: &str, errors: &mut ErrorList) {
    let check = |node: &Node| {
        let mut found = ErrorList::new();
        value(node, new, None, path, &mut found);
        found
    };
    let say = |text: String| FieldError::invalid(&Path::root(), "", text);
    let quoted = format!("\"{path}\"");
    if !limits.any_of.is_empty() {
        let mut best: Option<ErrorList> = None;
        for node in &limits.any_of {
            let found = check(node);
            if best.as_ref().is_none_or(|best| found.len() < best.len()) {
                best = Some(found);
            }
        }
        if let Some(found) = best.filter(|best| !best.is_empty()) {
            errors.push(say(format!(
                "{quoted} must validate at least one schema (anyOf)"
            )));
            errors.extend(found);
        }
    }
    if !limits.one_of.is_empty() {
        let mut valid = 0;
        let mut best: Option<ErrorList> = None;
        for node in &limits.one_of {
            let found = check(node);
            valid += usize::from(found.is_empty());
            if best.as_ref().is_none_or(|best| found.len() < best.len()) {
                best = Some(found);
            }
        }
        if valid != 1 {
            let detail = if valid == 0 {
                "Found none valid".to_owned()
            } else {
                format!("Found {valid} valid alternatives")
            };
            errors.push(say(format!(
                "{quoted} must validate one and only one schema (oneOf). {detail}"
            )));
            errors.extend(best.filter(|_| valid == 0).into_iter().flatten());
        }
    }
    if !limits.all_of.is_empty() {
        let mut valid = 0;
        for node in &limits.all_of {
            let found = check(node);
            valid += usize::from(found.is_empty());
            errors.extend(found);
        }
        if valid != limits.all_of.len() {
            let detail = if valid == 0 { ". None validated" } else { "" };
            errors.push(say(format!(
                "{quoted} must validate all the schemas (allOf){detail}"
            )));
        }
    }
    if let Some(node) = &limits.not
        && check(node).is_empty()
    {
        errors.push(say(format!("{quoted} must not validate the schema (not)")));
    }
}

fn scalar(node: &Node, limits: &Limits, value: &Value, path: &str, errors: &mut ErrorList) {
    match value {
        Value::String(text) => string(limits, text, path, errors),
        Value::Number(_) => number(node, limits, value, path, errors),
        _ => {}
    }
    if !limits.values.is_empty() && !limits.values.contains(value) {
        let words: Vec<String> = limits
            .values
            .iter()
            .map(|value| match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            })
            .collect();
        errors.push(FieldError::not_supported(&at(path), value.clone(), &words));
    }
}

fn string(limits: &Limits, text: &str, path: &str, errors: &mut ErrorList) {
    let length = text.chars().count() as u64;
    if let Some(most) = limits.max_length
        && length > most
    {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        errors.push(FieldError::too_long(&at(path), most));
    }
    if let Some(fewest) = limits.min_length
        && length < fewest
    {
        let why = format!("should be at least {fewest} chars long");
        errors.push(invalid(path, text, &why));
    }
    if let Some(pattern) = &limits.pattern
        && !pattern.matches(text)
    {
        let why = format!("should match '{}'", pattern.text);
        errors.push(invalid(path, text, &why));
    }
    if let Some(format) = &limits.format
        && !formats::matches(format, text)
    {
        let why = format!("{path} in body must be of type {format}: {}", quote(text));
        errors.push(FieldError::type_invalid(&at(path), text, why));
    }
}

fn number(node: &Node, limits: &Limits, value: &Value, path: &str, errors: &mut ErrorList) {
    let Some(n) = value.as_f64() else { return };
    if let Some(most) = limits.maximum {
        if limits.exclusive_maximum && n >= most {
            let why = format!("should be less than {}", plain(most));
            errors.push(invalid(path, value.clone(), &why));
        } else if !limits.exclusive_maximum && n > most {
            let why = format!("should be less than or equal to {}", plain(most));
            errors.push(invalid(path, value.clone(), &why));
        }
    }
    if let Some(least) = limits.minimum {
        if limits.exclusive_minimum && n <= least {
            let why = format!("should be greater than {}", plain(least));
            errors.push(invalid(path, value.clone(), &why));
        } else if !limits.exclusive_minimum && n < least {
            let why = format!("should be greater than or equal to {}", plain(least));
            errors.push(invalid(path, value.clone(), &why));
        }
    }
    if let Some(of) = limits.multiple_of
        && !is_multiple(value, n, of)
    {
        let why = format!("should be a multiple of {}", plain(of));
        errors.push(invalid(path, value.clone(), &why));
    }
    if let (Some(kind @ (Kind::Integer | Kind::Number)), Some(format)) = (node.kind, &limits.format)
    {
        let fits = match format.as_str() {
            "int32" => i32::try_from(value.as_i64().unwrap_or(i64::MAX)).is_ok(),
            "float" => n.abs() <= f64::from(f32::MAX),
            _ => true,
        };
        if !fits {
            let why = format!(
                "Checked value must be of type {} with format {format} in {path}",
                kind.as_str()
            );
            errors.push(FieldError::invalid(&Path::root(), "", why));
        }
    }
}

fn is_multiple(value: &Value, n: f64, of: f64) -> bool {
    if of <= 0.0 {
        return true;
    }
    if let (Some(n), Some(of)) = (value.as_i64(), whole(of)) {
        return n % of == 0;
    }
    let quotient = n / of;
    (quotient - quotient.round()).abs() < f64::EPSILON * quotient.abs().max(1.0)
}

/// A number without a point where it is whole.
fn plain(number: f64) -> String {
    whole(number).map_or_else(|| number.to_string(), |n| n.to_string())
}

fn size(limits: &Limits, count: usize, path: &str, errors: &mut ErrorList) {
    if let Some(most) = limits.max_properties
        && count as u64 > most
    {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        errors.push(FieldError::too_many(&at(path), count, most));
    }
    if let Some(fewest) = limits.min_properties
        && (count as u64) < fewest
    {
        let why = format!("should have at least {fewest} properties");
        errors.push(invalid(path, count, &why));
    }
}

fn list(node: &Node, items: &[Value], old: Option<&Value>, path: &str, errors: &mut ErrorList) {
    if let Some(limits) = &node.limits {
        if let Some(fewest) = limits.min_items
            && (items.len() as u64) < fewest
        {
            let why = format!("should have at least {fewest} items");
            errors.push(invalid(path, items.len(), &why));
        }
        if let Some(most) = limits.max_items
            && items.len() as u64 > most
        {
            let most = usize::try_from(most).unwrap_or(usize::MAX);
            errors.push(FieldError::too_many(&at(path), items.len(), most));
        }
    }
    let Some(inner) = &node.items else { return };
    let known = old.map(|old| lists::Elements::of(node, old));
    for (i, item) in items.iter().enumerate() {
        let before = known.as_ref().and_then(|known| known.counterpart(item));
        value(inner, item, before, &format!("{path}[{i}]"), errors);
    }
}

/// Whether an error keeps rules from being checked.
pub fn blocks_rules(errors: &ErrorList) -> bool {
    errors.iter().any(|error| {
        matches!(
            error.error_type,
            ErrorType::NotSupported
                | ErrorType::Required
                | ErrorType::TooLong
                | ErrorType::TooMany
                | ErrorType::TypeInvalid
        )
    })
}
