//! What a node writes into the volumes that davit's own provisioner keeps on it: what became of their directories.

use davit_registry::object;
use davit_volume::local;
use serde_json::Value;

use super::{RestrictionResult, word};
use crate::{Attributes, Operation};

/// A node says what it has done for volumes with its label, and changes nothing else.
pub(super) fn check(
    node: &str,
    attributes: &Attributes<'_>,
    object: Option<&Value>,
) -> RestrictionResult {
    let (Operation::Update, Some(new), Some(old), "") = (
        attributes.operation,
        object,
        attributes.old,
        attributes.subresource,
    ) else {
        return Err(format!(
            "unexpected operation {:?}, node {node:?} can only say what it has done for its local volumes",
            word(attributes.operation)
        ));
    };
    let label = old["metadata"]["labels"][local::NODE_LABEL].as_str();
    if label != Some(local::label_of_node(node).as_str()) {
        return Err(format!(
            "node {node:?} can only update persistent volumes that it keeps"
        ));
    }
    let rest = |volume: &Value| {
        let mut volume = volume.clone();
        object::remove_meta(&mut volume, &["resourceVersion", "managedFields"]);
        let annotations = volume
            .pointer_mut("/metadata/annotations")
            .and_then(Value::as_object_mut);
        let left = annotations.map(|all| {
            for said in [local::STATE, local::SIZE] {
                all.remove(said);
            }
            all.len()
        });
        if left == Some(0) {
            object::remove_meta(&mut volume, &["annotations"]);
        }
        volume
    };
    if rest(new) == rest(old) {
        return Ok(());
    }
    Err(format!(
        "node {node:?} is not allowed to update persistent volumes other than annotations {:?} and {:?}",
        local::STATE,
        local::SIZE
    ))
}
