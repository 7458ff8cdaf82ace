//! Namespaces.

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use serde_json::{Value, json};

use super::json::{at, has, keep, list_at, object_mut, set, str_at};
use super::{KindInfo, Strategy, access, meta};

/// Finalizer of the cluster itself: the content of the namespace is deleted first.
const KUBERNETES: &str = "kubernetes";
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

pub(super) struct Namespace(pub(super) KindInfo);

impl Strategy for Namespace {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        label_with_name(obj);
        if let Some(status) = object_mut(obj, "status") {
            status.entry("phase").or_insert_with(|| json!("Active"));
        }
    }

    fn prepare_for_create(&self, obj: &mut Value) {
        label_with_name(obj);
        set(obj, "status", json!({"phase": "Active"}));
        if let Some(spec) = object_mut(obj, "spec") {
            let finalizers = spec.entry("finalizers").or_insert_with(|| json!([]));
            if let Some(list) = finalizers.as_array_mut()
                && !list.contains(&json!(KUBERNETES))
            {
                list.push(json!(KUBERNETES));
            }
        }
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value) {
        keep(new, old, "spec");
        keep(new, old, "status");
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        let path = Path::new("spec").child("finalizers");
        for finalizer in self.spec_finalizers(obj) {
            let faults = names::check_qualified_name(&finalizer);
            let standard = ["kubernetes", "orphan", "foregroundDeletion"];
            if faults.is_empty() && !finalizer.contains('/') && !standard.contains(&&*finalizer) {
                let fault = "name is neither a standard finalizer name nor is it fully qualified";
                errors.push(FieldError::invalid(&path, &*finalizer, fault));
            }
            errors.extend(invalid_each(&path, &finalizer, faults));
        }
        errors
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        let phase = str_at(new, &["status", "phase"]);
        let deleting = has(new, &["metadata", "deletionTimestamp"]);
        let fault = match (deleting, phase) {
            (false, "Active") | (true, "Terminating") => return errors,
            (false, _) => "may only be 'Active' if `deletionTimestamp` is empty",
            (true, _) => "may only be 'Terminating' if `deletionTimestamp` is not empty",
        };
        errors.push(FieldError::invalid(
            &Path::new("status").child("Phase"),
            phase,
            fault,
        ));
        errors
    }

    fn prepare_subresource_update(&self, subresource: &str, new: &mut Value, old: &Value) {
        if subresource == "finalize" {
            keep(new, old, "status");
        } else {
            access::keep_all_but_status_and_metadata(new, old);
        }
    }

    fn validate_subresource_update(
        &self,
        subresource: &str,
        new: &Value,
        old: &Value,
    ) -> ErrorList {
        if subresource != "finalize" {
            return self.validate_status_update(new, old);
        }
        let mut errors = meta::validate_update(&self.0, new, old);
        let path = Path::new("spec").child("finalizers");
        for (i, finalizer) in self.spec_finalizers(new).iter().enumerate() {
            let path = path.index(i);
            errors.extend(invalid_each(
                &path,
                finalizer,
                names::check_qualified_name(finalizer),
            ));
        }
        errors
    }

    fn field_names(&self) -> &'static [&'static str] {
        &["status.phase"]
    }

    fn fields(&self, obj: &Value) -> Vec<(&'static str, String)> {
        vec![("status.phase", str_at(obj, &["status", "phase"]).to_owned())]
    }

    fn spec_finalizers(&self, obj: &Value) -> Vec<String> {
        let list = list_at(obj, &["spec", "finalizers"]);
        list.iter()
            .filter_map(|f| f.as_str().map(str::to_owned))
            .collect()
    }
}

fn label_with_name(obj: &mut Value) {
    let name = at(obj, &["metadata", "name"]).clone();
    if name.as_str().is_none_or(str::is_empty) {
        return;
    }
    if let Some(meta) = obj.get_mut("metadata")
        && let Some(labels) = object_mut(meta, "labels")
    {
        labels.insert(NAME_LABEL.to_owned(), name);
    }
}
