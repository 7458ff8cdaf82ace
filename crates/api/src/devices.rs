//! Device truth of a node as one document: which device is where, healthy or not, held by whom, since when.
//!
//! The node agent serves it under `/devices` of its HTTPS server (so `nodes/NAME/proxy/devices` through the API server);
//! with `?watch=true` as one JSON document a line, a new one after each change. `davit devices` prints it.

use serde::{Deserialize, Serialize};

/// All devices of one node at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeDevices {
    /// Name of the node.
    pub node: String,
    /// Rises with each change; comparable only within one run of the node agent.
    pub generation: u64,
    /// Devices ordered by resource and natural order of their IDs.
    pub devices: Vec<Device>,
    /// What containers hold beside: devices of claims (the driver as resource, `pool/device` as ID), CPUs of their own
    /// (`cpu`, their numbers) and memory of their own (`memory`, `hugepages-…`, the size).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<Device>,
    /// Resources whose plugin is connected and has no device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub empty: Vec<String>,
    /// The machine's NUMA nodes, in order of their numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub numa: Vec<NumaPlace>,
}

/// A NUMA node of the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NumaPlace {
    /// Its number.
    pub id: i64,
    /// The numbers of its CPUs, in list format.
    pub cpus: String,
    /// Its memory in bytes, huge pages included.
    pub memory: u64,
}

/// One device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Extended resource the device counts for, e.g. `hardware-vendor.example/foo`.
    pub resource: String,
    /// ID the plugin gave it.
    pub id: String,
    /// The claim that it is held by, `namespace/name`; empty for what no claim gave.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub claim: String,
    /// `Healthy`, `Unhealthy` (the plugin said so, or is gone for good), or `Unknown` (no longer listed, or the plugin
    /// has not come back yet). Empty for what has no health.
    pub health: String,
    /// Why the health is what it is, when it is not `Healthy`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// NUMA nodes the device is local to; empty when the plugin named none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub numa_nodes: Vec<i64>,
    /// Containers that hold it: one, or several of the same pod when an init container's device is used again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<Holder>,
}

/// A container that holds a device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Holder {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// UID of the pod.
    pub uid: String,
    /// Container in the pod.
    pub container: String,
    /// When the allocation was recorded, RFC 3339.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub since: String,
}
