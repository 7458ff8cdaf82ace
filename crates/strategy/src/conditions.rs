//! CEL expressions of webhooks and policies as they are written: `matchConditions` and single
//! expressions.

use std::collections::HashSet;

use davit_api::field::{ErrorList, FieldError, Path};
use davit_cel::policy::compile;
use davit_cel::{Env, Type};
use serde_json::Value;

/// Most `matchConditions` of one webhook or policy.
const CONDITIONS_MAX: usize = 64;

/// All errors of a list of `matchConditions`.
pub(crate) fn validate_conditions(list: &Value, path: &Path, env: &Env) -> ErrorList {
    let mut errors = ErrorList::new();
    let list = list.as_array().map_or(&[][..], Vec::as_slice);
    if list.len() > CONDITIONS_MAX {
        errors.push(FieldError::too_many(path, list.len(), CONDITIONS_MAX));
    }
    let mut names = HashSet::new();
    for (n, condition) in list.iter().enumerate() {
        let path = path.index(n);
        let name = condition["name"].as_str().unwrap_or_default();
        if name.is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        } else {
            for why in davit_api::names::check_qualified_name(name) {
                errors.push(FieldError::invalid(&path.child("name"), name, why));
            }
            if !names.insert(name) {
                errors.push(FieldError::duplicate(&path.child("name"), name));
            }
        }
        let expression = condition["expression"].as_str().unwrap_or_default();
        errors.extend(validate_expression(
            expression,
            &path.child("expression"),
            env,
            &[Type::Bool],
        ));
    }
    errors
}

/// The errors of one expression.
pub(crate) fn validate_expression(
    expression: &str,
    path: &Path,
    env: &Env,
    wanted: &[Type],
) -> ErrorList {
    if expression.trim().is_empty() {
        return vec![FieldError::required(path, "")];
    }
    match compile(env, expression, wanted) {
        Ok(_) => Vec::new(),
        Err(why) => vec![FieldError::invalid(path, expression, why)],
    }
}
