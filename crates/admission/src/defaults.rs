//! Classes and finalizers that objects get when they name none: DefaultStorageClass,
//! DefaultIngressClass, StorageObjectInUseProtection; and PersistentVolumeClaimResize.

use davit_api::quantity::Quantity;
use davit_api::status::Status;
use serde_json::{Value, json};

use super::{Attributes, Mutating, Operation, Validating, forbidden};

const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
const DEFAULT_STORAGE: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];
const DEFAULT_INGRESS: &str = "ingressclass.kubernetes.io/is-default-class";
const INGRESS_ANNOTATION: &str = "kubernetes.io/ingress.class";

fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object["metadata"]["annotations"][key].as_str()
}

/// The newest of the default classes; of those of one second the first by name.
fn newest(mut classes: Vec<Value>) -> Option<Value> {
    classes.sort_by(|a, b| {
        let at =
            |class: &Value| davit_registry::object::meta_str(class, "creationTimestamp").to_owned();
        at(b)
            .cmp(&at(a))
            .then_with(|| davit_registry::object::name(a).cmp(davit_registry::object::name(b)))
    });
    classes.into_iter().next()
}

/// Claims without a class get the default one.
pub(super) struct DefaultStorageClass;

impl Mutating for DefaultStorageClass {
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&mut Value>,
    ) -> Result<(), Status> {
        let creates = attributes.is("", "persistentvolumeclaims")
            && attributes.operation == Operation::Create;
        let Some(claim) = object.filter(|_| creates) else {
            return Ok(());
        };
        // an empty name asks for none
        if claim["spec"]
            .get("storageClassName")
            .is_some_and(Value::is_string)
            || annotation(claim, BETA_CLASS).is_some()
        {
            return Ok(());
        }
        let classes = attributes
            .server
            .objects("storage.k8s.io", "storageclasses", None)
            .await?;
        let defaults = classes.into_iter().filter(|class| {
            DEFAULT_STORAGE
                .iter()
                .any(|key| annotation(class, key) == Some("true"))
        });
        if let Some(class) = newest(defaults.collect()) {
            claim["spec"]["storageClassName"] = json!(davit_registry::object::name(&class));
        }
        Ok(())
    }
}

/// Ingresses without a class get the default one.
pub(super) struct DefaultIngressClass;

impl Mutating for DefaultIngressClass {
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&mut Value>,
    ) -> Result<(), Status> {
        let creates = attributes.is("networking.k8s.io", "ingresses")
            && attributes.operation == Operation::Create;
        let Some(ingress) = object.filter(|_| creates) else {
            return Ok(());
        };
        if ingress["spec"]
            .get("ingressClassName")
            .is_some_and(Value::is_string)
            || annotation(ingress, INGRESS_ANNOTATION).is_some()
        {
            return Ok(());
        }
        let classes = attributes
            .server
            .objects("networking.k8s.io", "ingressclasses", None)
            .await?;
        let defaults = classes
            .into_iter()
            .filter(|class| annotation(class, DEFAULT_INGRESS) == Some("true"));
        if let Some(class) = newest(defaults.collect()) {
            if !ingress["spec"].is_object() {
                ingress["spec"] = json!({});
            }
            ingress["spec"]["ingressClassName"] = json!(davit_registry::object::name(&class));
        }
        Ok(())
    }
}

/// Volumes, claims and attribute classes stay while they are in use.
pub(super) struct StorageObjectInUseProtection;

impl Mutating for StorageObjectInUseProtection {
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&mut Value>,
    ) -> Result<(), Status> {
        let finalizer = if attributes.is("", "persistentvolumes") {
            "kubernetes.io/pv-protection"
        } else if attributes.is("", "persistentvolumeclaims") {
            "kubernetes.io/pvc-protection"
        } else if attributes.is("storage.k8s.io", "volumeattributesclasses") {
            "kubernetes.io/vac-protection"
        } else {
            return Ok(());
        };
        let creates = attributes.operation == Operation::Create;
        let Some(object) = object.filter(|_| creates) else {
            return Ok(());
        };
        let mut held = davit_registry::object::finalizers(object);
        if !held.iter().any(|name| name == finalizer) {
            held.push(finalizer.to_owned());
            davit_registry::object::set_finalizers(object, &held);
        }
        Ok(())
    }
}

/// Only claims whose class says so may grow.
pub(super) struct PersistentVolumeClaimResize;

impl Validating for PersistentVolumeClaimResize {
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let updates = attributes.is("", "persistentvolumeclaims")
            && attributes.operation == Operation::Update;
        let (true, Some(new), Some(old)) = (updates, object, attributes.old) else {
            return Ok(());
        };
        let size = |claim: &Value| {
            claim
                .pointer("/spec/resources/requests/storage")
                .and_then(|size| Quantity::from_json(size).ok())
                .unwrap_or_default()
        };
        if size(new) <= size(old) {
            return Ok(());
        }
        if old.pointer("/status/phase").and_then(Value::as_str) != Some("Bound") {
            return Err(forbidden(
                attributes,
                object,
                "Only bound persistent volume claims can be expanded",
            ));
        }
        let class = annotation(new, BETA_CLASS)
            .or_else(|| {
                new.pointer("/spec/storageClassName")
                    .and_then(Value::as_str)
            })
            .unwrap_or_default();
        let found = attributes
            .server
            .object("storage.k8s.io", "storageclasses", "", class)
            .await?;
        if !class.is_empty() && found.is_some_and(|class| class["allowVolumeExpansion"] == true) {
            return Ok(());
        }
        let why = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize";
        Err(forbidden(attributes, object, why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_default_wins_then_the_name() {
        let class = |name: &str, created: &str| json!({"metadata": {"name": name, "creationTimestamp": created}});
        let classes = vec![
            class("old", "2026-01-01T00:00:00Z"),
            class("b", "2026-02-02T00:00:00Z"),
            class("a", "2026-02-02T00:00:00Z"),
        ];
        let found = newest(classes).unwrap();
        assert_eq!(davit_registry::object::name(&found), "a");
        assert_eq!(newest(Vec::new()), None);
    }
}
