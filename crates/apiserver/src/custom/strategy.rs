//! The rules of custom kinds.

use std::sync::Arc;

use davit_api::field::{ErrorList, FieldError, Path};
use davit_schema::structural::{self, SimplePath};
use davit_strategy::{KindInfo, Strategy, validate_metadata, validate_metadata_update};
use serde_json::Value;

use super::definition::CustomVersion;

/// The strategy of one version of a custom kind.
pub(crate) struct CustomStrategy {
    info: KindInfo,
    version: Arc<CustomVersion>,
    labels: Vec<&'static str>,
}

impl CustomStrategy {
    pub(super) fn new(info: KindInfo, version: Arc<CustomVersion>) -> Self {
        let labels = version.selectable.iter().map(|(label, _)| *label).collect();
        Self {
            info,
            version,
            labels,
        }
    }

    fn check(&self, new: &Value, old: Option<&Value>, errors: &mut ErrorList, status: bool) {
        let schema = self.version.schema();
        let root = schema.root();
        errors.extend(schema.validate(new, old));
        if !status {
            self.scale_spec(new, errors);
        }
        self.scale_status(new, errors);
        errors.extend(structural::embedded_errors(new, root));
        if old.is_none_or(|old| structural::duplicates(old, root).is_empty()) {
            errors.extend(structural::duplicates(new, root));
        }
        let rules = self.version.rules();
        if rules.is_empty() {
            return;
        }
        if structural::blocks_rules(errors) {
            let why = "some validation rules were not checked because the object was invalid; \
                       correct the existing errors to complete validation";
            errors.push(FieldError::invalid(&Path::root(), Value::Null, why));
            return;
        }
        errors.extend(rules.check(new, old));
    }

    fn scale_spec(&self, object: &Value, errors: &mut ErrorList) {
        if let Some(scale) = &self.version.scale {
            replicas(&scale.spec_replicas, object, errors);
        }
    }

    fn scale_status(&self, object: &Value, errors: &mut ErrorList) {
        let Some(scale) = &self.version.scale else {
            return;
        };
        replicas(&scale.status_replicas, object, errors);
        if let Some(path) = &scale.label_selector
            && let Some(value) = path.get(object)
            && !value.is_string()
        {
            let why = wrong_type(path, value, "string");
            errors.push(FieldError::invalid(&Path::new(&path.to_string()), "", why));
        }
    }
}

/// The sentence of the original about a value it cannot use, with Go's names of types.
fn wrong_type(path: &SimplePath, value: &Value, wanted: &str) -> String {
    let (shown, kind) = match value {
        Value::Null => ("<nil>".to_owned(), "<nil>"),
        Value::Bool(flag) => (flag.to_string(), "bool"),
        Value::Number(number) if number.is_f64() => (number.to_string(), "float64"),
        Value::Number(number) => (number.to_string(), "int64"),
        Value::String(text) => (text.clone(), "string"),
        Value::Array(_) => (value.to_string(), "[]interface {}"),
        Value::Object(_) => (value.to_string(), "map[string]interface {}"),
    };
    format!("{path} accessor error: {shown} is of the type {kind}, expected {wanted}")
}

fn replicas(path: &SimplePath, object: &Value, errors: &mut ErrorList) {
    let at = Path::new(&path.to_string());
    match path.get(object) {
        None => {}
        Some(value) => match value.as_i64() {
            None => {
                let why = wrong_type(path, value, "int64");
                errors.push(FieldError::invalid(&at, 0, why));
            }
            Some(count) if count < 0 => {
                errors.push(FieldError::invalid(
                    &at,
                    count,
                    "should be a non-negative integer",
                ));
            }
            Some(count) if count > i64::from(i32::MAX) => {
                let why = format!("should be less than or equal to {}", i32::MAX);
                errors.push(FieldError::invalid(&at, count, why));
            }
            Some(_) => {}
        },
    }
}

impl Strategy for CustomStrategy {
    fn kind(&self) -> &KindInfo {
        &self.info
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = validate_metadata(&self.info, obj);
        self.check(obj, None, &mut errors, false);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = validate_metadata_update(&self.info, new, old);
        self.check(new, Some(old), &mut errors, false);
        errors
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = validate_metadata_update(&self.info, new, old);
        self.check(new, Some(old), &mut errors, true);
        errors
    }

    fn field_names(&self) -> &[&'static str] {
        &self.labels
    }

    fn fields(&self, obj: &Value) -> Vec<(&'static str, String)> {
        self.version
            .selectable
            .iter()
            .map(|(label, path)| (*label, structural::selectable(path.get(obj))))
            .collect()
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn warnings(&self, obj: &Value) -> Vec<String> {
        let known = ["orphan", "foregroundDeletion", "kubernetes"];
        davit_api::meta::finalizers(obj)
            .filter(|name| !name.contains('/') && !known.contains(name))
            .map(|name| {
                format!(
                    "metadata.finalizers: {}: prefer a domain-qualified finalizer name including a \
                     path (/) to avoid accidental conflicts with other finalizer writers",
                    davit_api::field::quote(name)
                )
            })
            .collect()
    }
}
