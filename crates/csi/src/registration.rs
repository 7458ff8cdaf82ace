//! What a registered driver changes in the cluster: the annotation and labels of its Node and its entry in CSINode. Each
//! function takes what is there and says what is to be there.

use davit_proto::csi::v1::NodeGetInfoResponse;
use k8s_openapi::api::storage::v1::{CSINodeDriver, VolumeNodeResources};
use std::collections::{BTreeMap, BTreeSet};

/// The annotation of a Node with the drivers' names for it: a JSON object, driver to name.
pub const NODE_ID_ANNOTATION: &str = "csi.volume.kubernetes.io/nodeid";

/// Why what a driver says of the node cannot be registered.
#[derive(Debug, thiserror::Error)]
pub enum RegistrationError {
    /// NodeGetInfo named no node.
    #[error("error adding CSI driver node info: driverNodeID must not be empty")]
    EmptyNodeId,
    /// NodeGetInfo says more than CSINode takes.
    #[error("error adding CSI driver node info: {0}")]
    TooMuch(&'static str),
    /// A label of the Node says something else.
    #[error(
        "detected topology value collision: driver reported {key:?}:{reported:?} but existing label is {key:?}:{existing:?}"
    )]
    TopologyCollision {
        /// The label.
        key: String,
        /// What the driver says.
        reported: String,
        /// What the Node says.
        existing: String,
    },
    /// The annotation is not of our kind; it is left as it is.
    #[error(
        "failed to parse node's \"{NODE_ID_ANNOTATION}\" annotation value ({value:?}) err={source}"
    )]
    Annotation {
        /// What it says.
        value: String,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

/// What is to become of the annotation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnnotationChange {
    /// Nothing.
    Keep,
    /// It gets this value.
    Set(String),
    /// It goes.
    Remove,
}

/// Bytes of a driver's name of a node, as CSINode is validated.
const MAX_NODE_ID: usize = 192;
/// Parts of a topology, each of which is a label of the Node.
const MAX_TOPOLOGY_KEYS: usize = 64;

/// The entry of a driver in CSINode.
///
/// # Errors
/// [`RegistrationError::EmptyNodeId`], [`RegistrationError::TooMuch`].
pub fn csi_node_driver(
    driver: &str,
    info: &NodeGetInfoResponse,
) -> Result<CSINodeDriver, RegistrationError> {
    if info.node_id.is_empty() {
        return Err(RegistrationError::EmptyNodeId);
    }
    // What is written to the Node first would stay there when CSINode refuses it.
    if info.node_id.len() > MAX_NODE_ID {
        return Err(RegistrationError::TooMuch(
            "driverNodeID has more than 192 bytes",
        ));
    }
    let topology = info.accessible_topology.as_ref();
    if topology.is_some_and(|t| t.segments.len() > MAX_TOPOLOGY_KEYS) {
        return Err(RegistrationError::TooMuch("more than 64 topology keys"));
    }
    let keys: Vec<String> = topology
        .map(|t| t.segments.keys().cloned().collect())
        .unwrap_or_default();
    Ok(CSINodeDriver {
        name: driver.to_owned(),
        node_id: info.node_id.clone(),
        topology_keys: (!keys.is_empty()).then_some(keys),
        allocatable: allocatable(driver, info),
    })
}

/// How many volumes of a driver the node takes; nothing where the driver sets no limit.
fn allocatable(driver: &str, info: &NodeGetInfoResponse) -> Option<VolumeNodeResources> {
    let count = match info.max_volumes_per_node {
        0 => None,
        limit if limit < 0 => {
            tracing::warn!(driver, limit, "limit of volumes is negative and not used");
            None
        }
        limit => Some(i32::try_from(limit).unwrap_or(i32::MAX)),
    };
    count.map(|count| VolumeNodeResources { count: Some(count) })
}

/// The list of CSINode with the number of volumes that a driver says now; nothing when it says the same already, or the
/// driver is not in it.
pub fn with_allocatable(
    drivers: &[CSINodeDriver],
    driver: &str,
    info: &NodeGetInfoResponse,
) -> Option<Vec<CSINodeDriver>> {
    let allocatable = allocatable(driver, info);
    let mut all = drivers.to_vec();
    let entry = all.iter_mut().find(|entry| entry.name == driver)?;
    if entry.allocatable == allocatable {
        return None;
    }
    entry.allocatable = allocatable;
    Some(all)
}

/// The list of CSINode with this entry in it; nothing when it says the same already.
pub fn with_driver(drivers: &[CSINodeDriver], entry: &CSINodeDriver) -> Option<Vec<CSINodeDriver>> {
    if drivers.iter().any(|d| same(d, entry)) {
        return None;
    }
    let others = drivers.iter().filter(|d| d.name != entry.name).cloned();
    Some(others.chain([entry.clone()]).collect())
}

/// The list of CSINode without a driver; nothing when it is not in it.
pub fn without_driver(drivers: &[CSINodeDriver], name: &str) -> Option<Vec<CSINodeDriver>> {
    let left: Vec<CSINodeDriver> = drivers.iter().filter(|d| d.name != name).cloned().collect();
    (left.len() < drivers.len()).then_some(left)
}

fn same(a: &CSINodeDriver, b: &CSINodeDriver) -> bool {
    let keys = |d: &CSINodeDriver| -> BTreeSet<String> {
        d.topology_keys.iter().flatten().cloned().collect()
    };
    let count = |d: &CSINodeDriver| d.allocatable.as_ref().and_then(|a| a.count);
    a.name == b.name && a.node_id == b.node_id && keys(a) == keys(b) && count(a) == count(b)
}

/// The annotation with a driver in it.
///
/// # Errors
/// [`RegistrationError::Annotation`].
pub fn annotation_with(
    existing: Option<&str>,
    driver: &str,
    node_id: &str,
) -> Result<AnnotationChange, RegistrationError> {
    let mut ids = parse(existing)?;
    let before = ids.insert(driver.to_owned(), node_id.to_owned());
    if before.as_deref() == Some(node_id) {
        return Ok(AnnotationChange::Keep);
    }
    written(&ids)
}

/// The annotation without a driver.
///
/// # Errors
/// [`RegistrationError::Annotation`].
pub fn annotation_without(
    existing: Option<&str>,
    driver: &str,
) -> Result<AnnotationChange, RegistrationError> {
    let mut ids = parse(existing)?;
    if ids.remove(driver).is_none() {
        return Ok(AnnotationChange::Keep);
    }
    if ids.is_empty() {
        return Ok(AnnotationChange::Remove);
    }
    written(&ids)
}

fn parse(existing: Option<&str>) -> Result<BTreeMap<String, String>, RegistrationError> {
    let Some(text) = existing.filter(|t| !t.is_empty()) else {
        return Ok(BTreeMap::new());
    };
    // `null` is an empty object to Go.
    serde_json::from_str::<Option<_>>(text)
        .map(Option::unwrap_or_default)
        .map_err(|source| RegistrationError::Annotation {
            value: text.to_owned(),
            source,
        })
}

fn written(ids: &BTreeMap<String, String>) -> Result<AnnotationChange, RegistrationError> {
    serde_json::to_string(ids)
        .map(AnnotationChange::Set)
        .map_err(|source| RegistrationError::Annotation {
            value: String::new(),
            source,
        })
}

/// The labels that a Node lacks for what a driver says of its place. Labels that are there are never changed.
///
/// # Errors
/// [`RegistrationError::TopologyCollision`], by the first label in order.
pub fn topology_labels(
    labels: &BTreeMap<String, String>,
    segments: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, RegistrationError> {
    let mut missing = BTreeMap::new();
    for (key, reported) in segments {
        match labels.get(key) {
            Some(existing) if existing != reported => {
                return Err(RegistrationError::TopologyCollision {
                    key: key.clone(),
                    reported: reported.clone(),
                    existing: existing.clone(),
                });
            }
            Some(_) => {}
            None => {
                missing.insert(key.clone(), reported.clone());
            }
        }
    }
    Ok(missing)
}

#[cfg(test)]
mod tests;
