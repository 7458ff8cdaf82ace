//! Conversion of objects between the served versions of one resource.
//!
//! Most versions of a resource share one shape, so that only `apiVersion` changes. Where shapes
//! differ the conversion keeps everything both can say; what only one version can say travels in
//! an annotation where upstream does so (autoscaling/v1).

use serde_json::{Map, Value, json};

mod autoscaling;
mod definitions;
mod events;
mod resource;

/// Brings an object of `kind` from the API version `from` into `to` (`v1`,
/// `group/version`).
///
/// The classic `resource.k8s.io/v1alpha1` is another API, nothing converts to or from it.
pub fn convert(kind: &str, obj: &mut Value, from: &str, to: &str) {
    if from != to {
        match (from, to, kind) {
            ("v1", "events.k8s.io/v1", "Event") => events::from_core(obj),
            ("events.k8s.io/v1", "v1", "Event") => events::to_core(obj),
            ("autoscaling/v1", "autoscaling/v2", "HorizontalPodAutoscaler") => {
                autoscaling::to_v2(obj);
            }
            ("autoscaling/v2", "autoscaling/v1", "HorizontalPodAutoscaler") => {
                autoscaling::to_v1(obj);
            }
            ("apiextensions.k8s.io/v1beta1", "apiextensions.k8s.io/v1", _) => {
                definitions::from_v1beta1(obj);
            }
            ("resource.k8s.io/v1beta1", to, _) if structured(to) => {
                resource::from_v1beta1(kind, obj);
            }
            (from, "resource.k8s.io/v1beta1", _) if structured(from) => {
                resource::to_v1beta1(kind, obj);
            }
            _ => {}
        }
    }
    if let Some(object) = obj.as_object_mut() {
        object.insert("apiVersion".to_owned(), Value::from(to));
    }
}

/// What a field of the storage version is called in the API version `to`.
#[must_use]
pub fn field(kind: &str, to: &str, field: String) -> String {
    if to == "resource.k8s.io/v1beta1" {
        return resource::field_in_v1beta1(kind, &field);
    }
    field
}

fn structured(version: &str) -> bool {
    matches!(version, "resource.k8s.io/v1" | "resource.k8s.io/v1beta2")
}

/// Renames members of an object; a member that is missing stays missing.
fn rename(obj: &mut Value, names: &[(&str, &str)]) {
    let Some(object) = obj.as_object_mut() else {
        return;
    };
    for (from, to) in names {
        if let Some(value) = object.remove(*from) {
            object.insert((*to).to_owned(), value);
        }
    }
}

/// Takes members out of an object into one of their own.
fn take(obj: &mut Value, names: &[&str]) -> Map<String, Value> {
    let mut taken = Map::new();
    if let Some(object) = obj.as_object_mut() {
        for name in names {
            if let Some(value) = object.remove(*name) {
                taken.insert((*name).to_owned(), value);
            }
        }
    }
    taken
}

/// The elements of the list at a path, for writing.
fn each<'a>(obj: &'a mut Value, path: &[&str]) -> impl Iterator<Item = &'a mut Value> + use<'a> {
    path.iter()
        .try_fold(obj, |v, key| v.get_mut(*key))
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
}

/// An object with one member.
fn single(key: &str, value: Value) -> Value {
    let mut object = Map::new();
    object.insert(key.to_owned(), value);
    json!(object)
}

#[cfg(test)]
mod tests;
