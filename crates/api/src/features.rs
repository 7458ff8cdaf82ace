//! Feature gates, by the names of API level 1.36 and, where a gate has been removed since, of the level that had it.
//!
//! Those of the API can be switched with a few exceptions; those of other features that are built in are known, so that
//! command lines for Kubernetes work, and cannot be switched off. A gate that is not in the table is refused.
//!
//! Fields of kinds name the gates they belong to ([`crate::kinds::Validation::feature_gates`]); the API server drops what
//! belongs to a gate that is off. Gates this table does not know govern nothing here and count as on.

use std::collections::BTreeSet;
use std::fmt;

/// A gate of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Gate {
    name: &'static str,
    stage: Stage,
    on: bool,
    /// It cannot be switched.
    locked: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Alpha,
    Beta,
    Ga,
}

const fn gate(name: &'static str, stage: Stage, on: bool) -> Gate {
    Gate {
        name,
        stage,
        on,
        locked: false,
    }
}

const fn locked(name: &'static str, stage: Stage, on: bool) -> Gate {
    Gate {
        name,
        stage,
        on,
        locked: true,
    }
}

/// What is always there: its gate takes `true` only.
const fn built_in(name: &'static str, stage: Stage) -> Gate {
    locked(name, stage, true)
}

/// Lists of values as attributes of devices, and `includes` in selectors.
pub const LIST_ATTRIBUTES: &str = "DRAListTypeAttributes";
/// Permissions for parts of the status of claims.
pub const GRANULAR_STATUS: &str = "DRAResourceClaimGranularStatusAuthorization";
/// Extended resources that are served by device classes.
pub const EXTENDED_RESOURCE: &str = "DRAExtendedResource";

const GATES: [Gate; 43] = [
    built_in("CPUManager", Stage::Ga),
    built_in("CPUManagerPolicyOptions", Stage::Ga),
    built_in("CRDValidationRatcheting", Stage::Ga),
    built_in("CustomResourceFieldSelectors", Stage::Ga),
    locked("DRAAdminAccess", Stage::Ga, true),
    gate("DRAConsumableCapacity", Stage::Beta, true),
    gate("DRADeviceBindingConditions", Stage::Beta, true),
    // served without a switch, as is the status of pools
    locked("DRADeviceTaintRules", Stage::Beta, true),
    gate("DRADeviceTaints", Stage::Beta, true),
    gate(EXTENDED_RESOURCE, Stage::Beta, true),
    gate(LIST_ATTRIBUTES, Stage::Alpha, false),
    // not built: what they would keep nobody would act on
    locked("DRANodeAllocatableResources", Stage::Alpha, false),
    gate("DRAPartitionableDevices", Stage::Beta, true),
    gate("DRAPrioritizedList", Stage::Ga, true),
    gate("DRAResourceClaimDeviceStatus", Stage::Beta, true),
    gate(GRANULAR_STATUS, Stage::Beta, true),
    locked("DRAResourcePoolStatus", Stage::Alpha, true),
    locked("DRASchedulerFilterTimeout", Stage::Beta, true),
    locked("DRAWorkloadResourceClaims", Stage::Alpha, false),
    built_in("DevicePluginCDIDevices", Stage::Ga),
    built_in("DevicePlugins", Stage::Ga),
    locked("DynamicResourceAllocation", Stage::Ga, true),
    built_in("GracefulNodeShutdown", Stage::Beta),
    built_in("GracefulNodeShutdownBasedOnPodPriority", Stage::Beta),
    built_in("InPlacePodVerticalScaling", Stage::Ga),
    built_in("KubeletCredentialProviders", Stage::Ga),
    built_in("KubeletPodResources", Stage::Ga),
    built_in("KubeletPodResourcesDynamicResources", Stage::Ga),
    built_in("KubeletPodResourcesGet", Stage::Ga),
    built_in("KubeletPodResourcesGetAllocatable", Stage::Ga),
    built_in("MemoryManager", Stage::Ga),
    built_in("MutatingAdmissionPolicy", Stage::Ga),
    built_in("PodLevelResources", Stage::Beta),
    built_in("PodSchedulingReadiness", Stage::Ga),
    built_in("ResourceHealthStatus", Stage::Beta),
    built_in("RotateKubeletServerCertificate", Stage::Beta),
    built_in("SidecarContainers", Stage::Ga),
    built_in("StructuredAuthenticationConfiguration", Stage::Ga),
    built_in("StructuredAuthorizationConfiguration", Stage::Ga),
    built_in("TopologyManager", Stage::Ga),
    built_in("TopologyManagerPolicyOptions", Stage::Ga),
    built_in("UserNamespacesSupport", Stage::Ga),
    built_in("ValidatingAdmissionPolicy", Stage::Ga),
];

/// A gate as people are told of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GateInfo {
    /// The name, as in `--feature-gates`.
    pub name: &'static str,
    /// `ALPHA`, `BETA` or `GA`, as in the descriptions of flags.
    pub stage: &'static str,
    /// Whether it is on when nothing is said.
    pub default: bool,
    /// It cannot be switched.
    pub locked: bool,
}

/// All gates that are known, by name.
pub fn gates() -> impl Iterator<Item = GateInfo> {
    GATES.iter().map(|gate| GateInfo {
        name: gate.name,
        stage: match gate.stage {
            Stage::Alpha => "ALPHA",
            Stage::Beta => "BETA",
            Stage::Ga => "GA",
        },
        default: gate.on,
        locked: gate.locked,
    })
}

/// Why gates cannot be set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FeatureError {
    /// No gate has this name.
    #[error("unrecognized feature gate: {0} (`davit features` lists those that are known)")]
    Unknown(String),
    /// An entry is not `NAME=BOOL`.
    #[error("missing bool value for {0}")]
    NoValue(String),
    /// The value is no bool.
    #[error("invalid value of {name}={value}, err: it is neither true nor false")]
    NoBool {
        /// The gate.
        name: String,
        /// What it was to be set to.
        value: String,
    },
    /// The gate cannot be switched.
    #[error("cannot set feature gate {name} to {to}, feature is locked to {}", !to)]
    Locked {
        /// The gate.
        name: String,
        /// What it was to be set to.
        to: bool,
    },
}

/// Which gates are on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Features {
    off: BTreeSet<&'static str>,
}

impl Default for Features {
    fn default() -> Self {
        let off = GATES.iter().filter(|gate| !gate.on);
        Self {
            off: off.map(|gate| gate.name).collect(),
        }
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, gate) in GATES.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{}={}", gate.name, self.is_on(gate.name))?;
        }
        Ok(())
    }
}

impl Features {
    /// Whether a gate is on. Gates that are not known are.
    #[must_use]
    pub fn is_on(&self, name: &str) -> bool {
        !self.off.contains(name)
    }

    /// Whether every known gate is on.
    #[must_use]
    pub fn all_on(&self) -> bool {
        self.off.is_empty()
    }

    /// Whether a gate has this name; `AllAlpha` and `AllBeta` are names, too.
    #[must_use]
    pub fn knows(name: &str) -> bool {
        matches!(name, "AllAlpha" | "AllBeta") || GATES.iter().any(|gate| gate.name == name)
    }

    /// Switches a gate, or with `AllAlpha` or `AllBeta` those of a stage that can be switched.
    ///
    /// # Errors
    /// When the name is unknown or the gate locked.
    pub fn set(&mut self, name: &str, on: bool) -> Result<(), FeatureError> {
        let stage = match name {
            "AllAlpha" => Some(Stage::Alpha),
            "AllBeta" => Some(Stage::Beta),
            _ => None,
        };
        if stage.is_none() {
            let gate = GATES.iter().find(|gate| gate.name == name);
            let gate = gate.ok_or_else(|| FeatureError::Unknown(name.to_owned()))?;
            if gate.locked && gate.on != on {
                return Err(FeatureError::Locked {
                    name: name.to_owned(),
                    to: on,
                });
            }
        }
        let meant = |gate: &&Gate| match stage {
            Some(stage) => gate.stage == stage && !gate.locked,
            None => gate.name == name,
        };
        for gate in GATES.iter().filter(meant) {
            if on {
                self.off.remove(gate.name);
            } else {
                self.off.insert(gate.name);
            }
        }
        Ok(())
    }

    /// Switches the gates of a list like `--feature-gates` has: `NAME=BOOL,…`. Single names win over `AllAlpha` and
    /// `AllBeta`, whatever their order.
    ///
    /// # Errors
    /// When an entry cannot be read, or as [`Features::set`].
    pub fn set_all(&mut self, list: &str) -> Result<(), FeatureError> {
        let mut entries = Vec::new();
        for entry in list.split(',').map(str::trim).filter(|e| !e.is_empty()) {
            let (name, value) = entry
                .split_once('=')
                .ok_or_else(|| FeatureError::NoValue(entry.to_owned()))?;
            let (name, value) = (name.trim(), value.trim());
            let on = match value {
                "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
                "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
                _ => {
                    return Err(FeatureError::NoBool {
                        name: name.to_owned(),
                        value: value.to_owned(),
                    });
                }
            };
            entries.push((name, on));
        }
        entries.sort_by_key(|(name, _)| !matches!(*name, "AllAlpha" | "AllBeta"));
        for (name, on) in entries {
            self.set(name, on)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_have_the_defaults_of_1_36() {
        let features = Features::default();
        assert!(features.is_on("DRAConsumableCapacity"));
        assert!(!features.is_on(LIST_ATTRIBUTES));
        assert!(features.is_on("SomethingElse"));
        assert!(!features.all_on());
        assert!(GATES.is_sorted_by_key(|gate| gate.name));
        assert!(gates().any(|gate| gate.name == LIST_ATTRIBUTES && !gate.default && !gate.locked));
    }

    #[test]
    fn lists_switch_gates() {
        let mut features = Features::default();
        let list = " DRAConsumableCapacity=false , AllAlpha=true,AllBeta=f,DRADeviceTaints=1";
        features.set_all(list).unwrap();
        assert!(features.is_on(LIST_ATTRIBUTES) && features.is_on("DRADeviceTaints"));
        assert!(!features.is_on("DRAConsumableCapacity") && !features.is_on(EXTENDED_RESOURCE));
        // locked ones stay
        assert!(!features.is_on("DRANodeAllocatableResources"));
        assert!(features.is_on("DRADeviceTaintRules"));
    }

    #[test]
    fn what_cannot_be_set_is_told() {
        let fault = |list: &str| {
            let result = Features::default().set_all(list);
            result.unwrap_err().to_string()
        };
        assert!(fault("Foo=true").starts_with("unrecognized feature gate: Foo ("));
        let known = "DevicePlugins=true,KubeletPodResourcesGet=true,CRDValidationRatcheting=true";
        Features::default().set_all(known).unwrap();
        assert_eq!(
            fault("DevicePlugins=false"),
            "cannot set feature gate DevicePlugins to false, feature is locked to true"
        );
        assert_eq!(
            fault("DRADeviceTaints"),
            "missing bool value for DRADeviceTaints"
        );
        assert!(fault("DRADeviceTaints=yes").starts_with("invalid value of DRADeviceTaints=yes"));
        assert_eq!(
            fault("DRAAdminAccess=false"),
            "cannot set feature gate DRAAdminAccess to false, feature is locked to true"
        );
        Features::default().set_all("DRAAdminAccess=true").unwrap();
    }
}
