//! Whether there is room for a new volume, where its driver says how much there is.

use davit_api::quantity::Quantity;
use davit_volume::matching::request_of;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};

use crate::node::NodeInfo;
use crate::selector::Selector;
use crate::storage::Storage;

pub(super) fn is_enough(
    storage: &Storage,
    class: &StorageClass,
    claim: &PersistentVolumeClaim,
    node: &NodeInfo,
) -> bool {
    let driver = storage.csi_driver(&class.provisioner);
    if driver.and_then(|driver| driver.spec.storage_capacity) != Some(true) {
        return true;
    }
    let wanted = request_of(claim);
    let name = class.metadata.name.as_deref().unwrap_or_default();
    let capacities = storage.capacities();
    let mut of_class = capacities.iter().filter(|c| c.storage_class_name == name);
    of_class.any(|capacity| holds(capacity, wanted) && reaches(capacity, node))
}

fn holds(capacity: &CSIStorageCapacity, wanted: Quantity) -> bool {
    let largest = capacity.maximum_volume_size.as_ref();
    let most = largest.or(capacity.capacity.as_ref());
    let most = most.and_then(|quantity| quantity.0.parse::<Quantity>().ok());
    most.is_some_and(|most| most >= wanted)
}

/// No selector selects nothing, an empty one everything.
fn reaches(capacity: &CSIStorageCapacity, node: &NodeInfo) -> bool {
    let topology = capacity.node_topology.as_ref();
    topology.is_some_and(|selector| Selector::new(Some(selector)).matches(node.labels()))
}
