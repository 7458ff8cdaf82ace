//! What the log says, change by change.

use std::collections::BTreeMap;

use davit_topology::devices::{ContainerKind, DeviceId, DeviceMap, DeviceSet};
use davit_topology::memory::MemoryBlock;
use davit_topology::{CpuSet, NumaMask};
use serde::{Deserialize, Serialize};

/// Who a pod is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PodName {
    /// UID; identifies the pod.
    pub uid: String,
    /// Namespace, for display.
    pub namespace: String,
    /// Name, for display.
    pub name: String,
}

/// One change of who holds what. Changes committed together are applied together or not at all.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "camelCase")]
pub enum Change {
    /// A container holds devices of one resource; replaces what it held of that resource.
    Hold(DeviceHold),
    /// A container holds CPUs and memory; replaces what it held of them.
    Compute(ComputeHold),
    /// A pod holds nothing any more. Claims are not touched: their drivers have to undo them first.
    Release {
        /// UID of the pod.
        uid: String,
    },
    /// A resource claim is prepared, or about to be; replaces what was known of it.
    Claim(ClaimHold),
    /// Nothing of a resource claim is left on this node.
    ClaimGone {
        /// UID of the claim.
        claim: String,
    },
    /// A device plugin has registered for a resource.
    Learned {
        /// The resource name.
        resource: String,
        /// Whether it wants PreStartContainer calls.
        pre_start: bool,
    },
    /// A resource whose plugin is gone for good; nobody waits for it any more.
    Forgotten {
        /// The resource name.
        resource: String,
    },
}

/// Devices of one resource in the hands of one container.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceHold {
    /// The pod.
    pub pod: PodName,
    /// The container's name.
    pub container: String,
    /// What kind of container it is; decides whether its devices are handed on.
    #[serde(with = "kind")]
    pub kind: ContainerKind,
    /// The resource name.
    pub resource: String,
    /// The devices with their NUMA nodes.
    #[serde(with = "devices")]
    pub devices: DeviceMap,
    /// The plugin's ContainerAllocateResponse, protobuf.
    #[serde(with = "base64_bytes")]
    pub response: Vec<u8>,
    /// When it was allocated, milliseconds since 1970.
    pub since: i64,
}

/// CPUs and memory in the hands of one container.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ComputeHold {
    /// The pod.
    pub pod: PodName,
    /// The container's name.
    pub container: String,
    /// What kind of container it is; decides whether its CPUs are handed on.
    #[serde(with = "kind")]
    pub kind: ContainerKind,
    /// CPUs for its exclusive use; empty for the shared pool.
    #[serde(default)]
    pub cpus: CpuSet,
    /// Memory set aside for it.
    #[serde(default)]
    pub memory: Vec<MemoryBlock>,
    /// When it was allocated, milliseconds since 1970.
    pub since: i64,
}

/// Which resource claim.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ClaimName {
    /// UID; identifies the claim.
    pub uid: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// A resource claim in the hands of pods of this node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClaimHold {
    /// The claim.
    pub claim: ClaimName,
    /// Whether it is of the classic API, `resource.k8s.io/v1alpha1`.
    #[serde(default)]
    pub classic: bool,
    /// The pods that use it, in order of UIDs. None: it waits for drivers that undo it.
    pub pods: Vec<PodName>,
    /// What each driver has done for it.
    pub drivers: BTreeMap<String, ClaimDriver>,
    /// When the first pod got it, milliseconds since 1970.
    pub since: i64,
}

/// One driver's part of a claim.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClaimDriver {
    /// The driver has said yes. Otherwise it may have done something or nothing.
    pub prepared: bool,
    /// What a classic driver's controller wrote for its node plugin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle: Option<String>,
    /// The devices the driver answered with.
    #[serde(default)]
    pub devices: Vec<PreparedDevice>,
}

/// One device of a prepared claim.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PreparedDevice {
    /// Requests of the claim that it serves; empty for all.
    #[serde(default)]
    pub requests: Vec<String>,
    /// Its pool.
    pub pool: String,
    /// Its name in the pool.
    pub device: String,
    /// Fully qualified CDI names.
    #[serde(default)]
    pub cdi: Vec<String>,
    /// Which share of it, when several claims may use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<String>,
}

impl ComputeHold {
    /// The CPUs by the names under which the table keeps their owners.
    pub(super) fn cpu_ids(&self) -> DeviceSet {
        cpu_ids(&self.cpus)
    }
}

/// CPU numbers as the table keeps them.
pub(super) fn cpu_ids(cpus: &CpuSet) -> DeviceSet {
    cpus.iter().map(|c| DeviceId::from(c.to_string())).collect()
}

mod kind {
    use super::ContainerKind;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(kind: &ContainerKind, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(match kind {
            ContainerKind::Init => "init",
            ContainerKind::Sidecar => "sidecar",
            ContainerKind::App => "app",
        })
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<ContainerKind, D::Error> {
        match String::deserialize(d)?.as_str() {
            "init" => Ok(ContainerKind::Init),
            "sidecar" => Ok(ContainerKind::Sidecar),
            "app" => Ok(ContainerKind::App),
            other => Err(D::Error::custom(format!(
                "unknown container kind {other:?}"
            ))),
        }
    }
}

mod devices {
    use super::{BTreeMap, DeviceId, DeviceMap, NumaMask};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(devices: &DeviceMap, s: S) -> Result<S::Ok, S::Error> {
        let map: BTreeMap<&str, u64> = devices
            .iter()
            .map(|(id, n)| (id.as_str(), n.bits()))
            .collect();
        map.serialize(s)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<DeviceMap, D::Error> {
        let map = BTreeMap::<String, u64>::deserialize(d)?;
        Ok(map
            .into_iter()
            .map(|(id, bits)| (DeviceId::from(id), NumaMask::from_bits(bits)))
            .collect())
    }
}

pub(crate) mod base64_bytes {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&STANDARD.encode(bytes))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<u8>, D::Error> {
        STANDARD
            .decode(String::deserialize(d)?)
            .map_err(D::Error::custom)
    }
}
