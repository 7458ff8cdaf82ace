//! Devices of one resource on one node: hints, the split by affinity and the choice of IDs.
//!
//! The order of choice is the kubelet's device manager's. Where that picks at random among equal
//! devices, this picks in natural order of the IDs, so that equal input gives equal devices.

mod choice;
mod hints;
mod id;
mod reuse;

pub use choice::{Ask, Choice, ChoiceError, ChoiceInput, Split, Step, by_node, split_by_affinity};
pub(crate) use hints::{Group, for_subsets, subset_hints};
pub use hints::{HINT_LIMIT, HintInput, device_hints};
pub use id::DeviceId;
pub use reuse::{ContainerKind, ReuseTable};

use std::collections::{BTreeMap, BTreeSet};

use crate::numa::NumaMask;

/// A set of devices in natural order of their IDs.
pub type DeviceSet = BTreeSet<DeviceId>;

/// Devices with the NUMA nodes they are attached to; an empty mask means that the plugin gave no
/// topology for the device.
pub type DeviceMap = BTreeMap<DeviceId, NumaMask>;
