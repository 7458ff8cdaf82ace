//! Feature gates, by the names of API level 1.36 and, where a gate has been removed since, of the level that had it.
//!
//! Every name is taken by every command, so that command lines for Kubernetes work. What setting a gate does here is its
//! [`Effect`]: a few can be switched, most are always on, and who sets one that is not built, or that governs nothing here,
//! is refused or told so ([`Features::remarks`]). A name that is not in the table is refused.
//!
//! Fields of kinds name the gates they belong to ([`crate::kinds::Validation::feature_gates`]); the API server drops what
//! belongs to a gate that is off. Gates this table does not know govern nothing here and count as on.

mod table;

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use table::GATES;

/// A gate of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Gate {
    name: &'static str,
    stage: Stage,
    /// As Kubernetes has it when nothing is said, or as it always is here.
    on: bool,
    effect: Effect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Alpha,
    Beta,
    Ga,
    Deprecated,
}

/// What setting a gate does here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Effect {
    /// It switches the feature.
    Switched,
    /// None: the feature is always there, and it cannot be switched off.
    Always,
    /// The feature is not built. Switching it on is refused, or remarked upon where Kubernetes has it on anyway.
    NotBuilt,
    /// None: it governs how Kubernetes' own programs work inside.
    None,
}

/// Lists of values as attributes of devices, and `includes` in selectors.
pub const LIST_ATTRIBUTES: &str = "DRAListTypeAttributes";
/// Permissions for parts of the status of claims.
pub const GRANULAR_STATUS: &str = "DRAResourceClaimGranularStatusAuthorization";
/// Workloads and PodGroups, and pods that name one.
pub const GENERIC_WORKLOAD: &str = "GenericWorkload";
/// PodGroups of which so many pods are scheduled together, or none.
pub const GANG_SCHEDULING: &str = "GangScheduling";
/// PodGroups whose pods are placed in one domain of a topology.
pub const TOPOLOGY_AWARE: &str = "TopologyAwareWorkloadScheduling";
/// PodGroups with priorities of their own, for which pods are removed as a whole, and which go whole where they say so.
pub const GROUP_PREEMPTION: &str = "WorkloadAwarePreemption";
/// Claims of devices that the pods of a group share, made and reserved for the group.
pub const WORKLOAD_CLAIMS: &str = "DRAWorkloadResourceClaims";
/// Workloads and PodGroups that are made for Jobs whose pods are of use together alone.
pub const WORKLOAD_WITH_JOB: &str = "WorkloadWithJob";
/// Objects that cannot be read from the store can be deleted.
pub const UNSAFE_DELETION: &str = "AllowUnsafeMalformedObjectDeletion";
/// Extended resources that are served by device classes.
pub const EXTENDED_RESOURCE: &str = "DRAExtendedResource";

/// Objects are written anew where a StorageVersionMigration asks for it.
pub const STORAGE_VERSION_MIGRATOR: &str = "StorageVersionMigrator";

/// The API server decides which candidate holds a Lease.
pub const COORDINATED_LEADER_ELECTION: &str = "CoordinatedLeaderElection";

/// Containers with CPUs of their own have no quota of CPU time.
pub const UNTHROTTLED: &str = "DisableCPUQuotaWithExclusiveCPUs";
/// How long containers that end again and again wait at most can be configured.
pub const MOST_RESTART_DECAY: &str = "KubeletCrashLoopBackOffMax";
/// Containers that end again and again wait for less.
pub const LESS_RESTART_DECAY: &str = "ReduceDefaultCrashLoopBackOffDecay";
/// The podresources API lists pods that may hold something, and no others.
pub const LIST_ACTIVE: &str = "KubeletPodResourcesListUseActivePods";

/// Gates that need another one, of those that can be switched.
const DEPENDENCIES: &[(&str, &str)] = &[
    (GANG_SCHEDULING, GENERIC_WORKLOAD),
    (WORKLOAD_CLAIMS, GENERIC_WORKLOAD),
    (TOPOLOGY_AWARE, GENERIC_WORKLOAD),
    (WORKLOAD_WITH_JOB, GENERIC_WORKLOAD),
    (GROUP_PREEMPTION, GANG_SCHEDULING),
];

/// A gate as people are told of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GateInfo {
    /// The name, as in `--feature-gates`.
    pub name: &'static str,
    /// `ALPHA`, `BETA`, `GA` or `DEPRECATED`, as in the descriptions of flags.
    pub stage: &'static str,
    /// Whether it is on when nothing is said.
    pub default: bool,
    /// It cannot be switched.
    pub locked: bool,
    /// What setting it does.
    pub effect: Effect,
}

/// All gates that are known, by name.
pub fn gates() -> impl Iterator<Item = GateInfo> {
    GATES.iter().map(|gate| GateInfo {
        name: gate.name,
        stage: match gate.stage {
            Stage::Alpha => "ALPHA",
            Stage::Beta => "BETA",
            Stage::Ga => "GA",
            Stage::Deprecated => "DEPRECATED",
        },
        default: gate.on && gate.effect != Effect::NotBuilt,
        locked: gate.effect != Effect::Switched,
        effect: gate.effect,
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
    /// Kubernetes lets one switch it off.
    #[error(
        "cannot set feature gate {0} to false: Kubernetes has a switch for the feature, in davit it is always on \
         (`davit features`)"
    )]
    AlwaysOn(String),
    /// The gate cannot be switched.
    #[error("cannot set feature gate {name} to {to}, feature is locked to {}", !to)]
    Locked {
        /// The gate.
        name: String,
        /// What it was to be set to.
        to: bool,
    },
    /// The gate's feature is not built.
    #[error("cannot set feature gate {0} to true, the feature is not built")]
    NotBuilt(String),
    /// The gate is on, and one that it needs is off.
    #[error("{0} is enabled, but depends on features that are disabled: [{1}]")]
    Depends(&'static str, &'static str),
}

/// Which gates are on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Features {
    off: BTreeSet<&'static str>,
    /// What was set and does nothing.
    without_effect: BTreeSet<&'static str>,
}

impl Default for Features {
    fn default() -> Self {
        let off = GATES.iter().filter(|gate| !gate.on);
        Self {
            off: off.map(|gate| gate.name).collect(),
            without_effect: BTreeSet::new(),
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

impl FromStr for Features {
    type Err = FeatureError;

    /// The defaults, with what a list like `--feature-gates` has.
    fn from_str(list: &str) -> Result<Self, FeatureError> {
        let mut features = Self::default();
        features.set_all(list)?;
        Ok(features)
    }
}

impl Features {
    /// Whether a gate is on. Gates that are not known are.
    #[must_use]
    pub fn is_on(&self, name: &str) -> bool {
        !self.off.contains(name)
    }

    /// The gates that are not as they are by default.
    pub fn changed(&self) -> impl Iterator<Item = (&'static str, bool)> {
        let default = Self::default();
        let gates = GATES.iter().map(|gate| (gate.name, self.is_on(gate.name)));
        gates.filter(move |(name, on)| default.is_on(name) != *on)
    }

    /// What to tell whoever set the gates: one sentence for each that does nothing.
    pub fn remarks(&self) -> impl Iterator<Item = String> {
        let gates = GATES
            .iter()
            .filter(|g| self.without_effect.contains(g.name));
        gates.map(|gate| match gate.effect {
            Effect::NotBuilt => format!("feature gate {}: the feature is not built", gate.name),
            _ => format!("feature gate {} has no effect here", gate.name),
        })
    }

    /// Switches a gate, or with `AllAlpha` or `AllBeta` those of a stage that can be switched.
    ///
    /// # Errors
    /// When the name is unknown, the feature always there, or not built.
    pub fn set(&mut self, name: &str, on: bool) -> Result<(), FeatureError> {
        let stage = match name {
            "AllAlpha" => Stage::Alpha,
            "AllBeta" => Stage::Beta,
            _ => return self.set_one(name, on),
        };
        let meant = |gate: &&Gate| gate.stage == stage && gate.effect == Effect::Switched;
        for gate in GATES.iter().filter(meant) {
            self.switch(gate, on);
        }
        Ok(())
    }

    fn set_one(&mut self, name: &str, on: bool) -> Result<(), FeatureError> {
        let gate = GATES.iter().find(|gate| gate.name == name);
        let gate = gate.ok_or_else(|| FeatureError::Unknown(name.to_owned()))?;
        match gate.effect {
            Effect::Switched => self.switch(gate, on),
            Effect::Always if !on && gate.stage != Stage::Ga => {
                return Err(FeatureError::AlwaysOn(name.to_owned()));
            }
            Effect::Always if !on => {
                return Err(FeatureError::Locked {
                    name: name.to_owned(),
                    to: on,
                });
            }
            Effect::NotBuilt if on && !gate.on => {
                return Err(FeatureError::NotBuilt(name.to_owned()));
            }
            Effect::NotBuilt => {
                self.switch(gate, on);
                if on {
                    self.without_effect.insert(gate.name);
                }
            }
            Effect::None if on != gate.on => {
                self.without_effect.insert(gate.name);
            }
            Effect::Always | Effect::None => {}
        }
        Ok(())
    }

    fn switch(&mut self, gate: &Gate, on: bool) {
        if on {
            self.off.remove(gate.name);
        } else {
            self.off.insert(gate.name);
        }
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
        self.set_each(entries)
    }

    /// Switches gates. Single names win over `AllAlpha` and `AllBeta`, whatever their order.
    ///
    /// # Errors
    /// As [`Features::set`].
    pub fn set_each<'n>(
        &mut self,
        entries: impl IntoIterator<Item = (&'n str, bool)>,
    ) -> Result<(), FeatureError> {
        let mut entries: Vec<_> = entries.into_iter().collect();
        entries.sort_by_key(|(name, _)| !matches!(*name, "AllAlpha" | "AllBeta"));
        for (name, on) in entries {
            self.set(name, on)?;
        }
        let lacking = |(gate, needed): &&(&str, &str)| self.is_on(gate) && !self.is_on(needed);
        match DEPENDENCIES.iter().find(lacking) {
            Some((gate, needed)) => Err(FeatureError::Depends(gate, needed)),
            None => Ok(()),
        }
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
        assert!(!features.is_on("ContainerStopSignals"));
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
        // Kubernetes has a switch for it.
        for gate in [
            "PodLevelResources",
            "InPlacePodLevelResourcesVerticalScaling",
        ] {
            assert_eq!(
                fault(&format!("{gate}=false")),
                format!(
                    "cannot set feature gate {gate} to false: Kubernetes has a switch for the feature, in davit it is always on \
                     (`davit features`)"
                )
            );
        }
        Features::default().set_all("DRAAdminAccess=true").unwrap();
        assert_eq!(
            fault("GangScheduling=true"),
            "GangScheduling is enabled, but depends on features that are disabled: [GenericWorkload]"
        );
        assert_eq!(
            fault("GenericWorkload=true,WorkloadAwarePreemption=true"),
            "WorkloadAwarePreemption is enabled, but depends on features that are disabled: [GangScheduling]"
        );
        assert_eq!(
            fault("HPAScaleToZero=true"),
            "cannot set feature gate HPAScaleToZero to true, the feature is not built"
        );
    }

    #[test]
    fn who_sets_what_does_nothing_is_told() {
        let list = "ImageVolume=true,WinDSR=false,SchedulerAsyncAPICalls=true,GangScheduling=false";
        let features: Features = list.parse().unwrap();
        let remarks: Vec<_> = features.remarks().collect();
        assert_eq!(
            remarks,
            [
                "feature gate ImageVolume: the feature is not built",
                "feature gate SchedulerAsyncAPICalls has no effect here",
                "feature gate WinDSR has no effect here",
            ]
        );
        // What is said that is so anyway is nothing to tell of.
        let usual: Features = "WinDSR=true,DevicePlugins=true".parse().unwrap();
        assert_eq!(usual.remarks().count(), 0);
    }

    #[test]
    fn fields_of_what_is_not_built_stay_where_kubernetes_has_them() {
        let features = Features::default();
        assert!(features.is_on("EnvFiles") && !features.is_on("ContainerStopSignals"));
        assert!(gates().any(|gate| gate.name == "EnvFiles" && !gate.default));
        assert!(
            !Features::from_str("EnvFiles=false")
                .unwrap()
                .is_on("EnvFiles")
        );
    }
}
