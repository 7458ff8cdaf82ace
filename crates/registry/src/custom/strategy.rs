//! The rules of custom kinds.

use std::collections::BTreeSet;
use std::sync::Arc;

use davit_api::field::{ErrorList, FieldError, Path};
use davit_schema::structural::{self, SimplePath};
use davit_strategy::{KindInfo, Strategy, validate_metadata, validate_metadata_update};
use serde_json::Value;

use super::definition::CustomVersion;

/// The strategy of one version of a custom kind.
pub struct CustomStrategy {
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
        if status {
            errors.extend(schema.validate_status(new, old));
        } else {
            errors.extend(schema.validate(new, old));
            self.scale_spec(new, errors);
        }
        self.scale_status(new, errors);
        if !status {
            errors.extend(structural::embedded_errors(new, root));
        }
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
        let Some(path) = &scale.label_selector else {
            return;
        };
        let why = match path.find(object) {
            Err((depth, parent)) => wrong_parent(path, depth, parent),
            Ok(Some(value)) if !value.is_string() => wrong_type(path, value, "string"),
            Ok(_) => return,
        };
        errors.push(FieldError::invalid(&Path::new(&path.to_string()), "", why));
    }
}

/// The sentence of the original about a value it cannot use, with Go's names of types.
fn wrong_type(path: &SimplePath, value: &Value, wanted: &str) -> String {
    format!("{path} accessor error: {}, expected {wanted}", typed(value))
}

/// As [`wrong_type`] for a value that the first `depth` names of a path lead into, and that is no object.
fn wrong_parent(path: &SimplePath, depth: usize, parent: &Value) -> String {
    let names: Vec<&str> = path.names().take(depth).collect();
    let what = typed(parent);
    let names = names.join(".");
    format!(".{names} accessor error: {what}, expected map[string]interface{{}}")
}

fn typed(value: &Value) -> String {
    let kind = match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    };
    format!("{} is of the type {kind}", shown(value))
}

/// A value as Go prints it.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(shown).collect();
            format!("[{}]", items.join(" "))
        }
        Value::Object(map) => {
            let mut entries: Vec<String> = map
                .iter()
                .map(|(key, value)| format!("{key}:{}", shown(value)))
                .collect();
            entries.sort();
            format!("map[{}]", entries.join(" "))
        }
    }
}

fn replicas(path: &SimplePath, object: &Value, errors: &mut ErrorList) {
    let at = Path::new(&path.to_string());
    let value = match path.find(object) {
        Ok(None) => return,
        Ok(Some(value)) => value,
        Err((depth, parent)) => {
            let why = wrong_parent(path, depth, parent);
            errors.push(FieldError::invalid(&at, 0, why));
            return;
        }
    };
    match value.as_i64() {
        None => {
            let why = wrong_type(path, value, "int64");
            errors.push(FieldError::invalid(&at, 0, why));
        }
        Some(count) if count < 0 => {
            let why = "should be a non-negative integer";
            errors.push(FieldError::invalid(&at, count, why));
        }
        Some(count) if count > i64::from(i32::MAX) => {
            let why = format!("should be less than or equal to {}", i32::MAX);
            errors.push(FieldError::invalid(&at, count, why));
        }
        Some(_) => {}
    }
}

/// Whether two objects are the same but for their metadata. Missing, null and empty are different things here.
fn same_but_metadata(a: &Value, b: &Value) -> bool {
    let (Some(a), Some(b)) = (a.as_object(), b.as_object()) else {
        return a == b;
    };
    let rest = |key: &&String| key.as_str() != "metadata";
    a.keys().filter(rest).count() == b.keys().filter(rest).count()
        && a.keys().filter(rest).all(|key| a.get(key) == b.get(key))
}

/// What is said about the finalizers of `new` that `old` has not.
fn finalizer_warnings(new: &Value, old: &Value) -> Vec<String> {
    const STANDARD: [&str; 3] = ["orphan", "foregroundDeletion", "kubernetes"];
    let known: Vec<&str> = davit_api::meta::finalizers(old).collect();
    let added = davit_api::meta::finalizers(new).filter(|name| !known.contains(name));
    let added: BTreeSet<&str> = added.collect();
    let mut warnings = Vec::new();
    for name in added {
        let mut say = |what: &str| {
            let name = davit_api::field::quote(name);
            warnings.push(format!("metadata.finalizers: {name}: {what}"));
        };
        for fault in davit_api::names::check_qualified_name(name) {
            say(&fault);
        }
        if name.contains('/') || STANDARD.contains(&name) {
            continue;
        }
        let with = if name.contains('.') {
            " including a path (/)"
        } else {
            ""
        };
        say(&format!(
            "prefer a domain-qualified finalizer name{with} to avoid accidental conflicts with other finalizer writers"
        ));
    }
    warnings
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

    fn prepare_for_update(&self, new: &mut Value, old: &Value) {
        if self.info.has_status
            && let Some(map) = new.as_object_mut()
        {
            match old.get("status") {
                Some(status) => map.insert("status".to_owned(), status.clone()),
                None => map.remove("status"),
            };
        }
        if !same_but_metadata(new, old) {
            let before = crate::object::meta_int(old, "generation").unwrap_or(0);
            crate::object::set_meta(new, "generation", before + 1);
        }
    }

    fn warnings(&self, obj: &Value) -> Vec<String> {
        finalizer_warnings(obj, &Value::Null)
    }

    fn update_warnings(&self, new: &Value, old: &Value) -> Vec<String> {
        finalizer_warnings(new, old)
    }
}
