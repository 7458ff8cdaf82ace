//! The arguments of the plugins in the tree, each under the kind that has its name.

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{NodeAffinity, TopologySpreadConstraint};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};

use super::types::PluginConfiguration;
use super::{API_VERSION, duration};

/// The arguments of a plugin.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "each has the name of its plugin")]
pub enum PluginArgs {
    DefaultPreemption(DefaultPreemptionArgs),
    InterPodAffinity(InterPodAffinityArgs),
    NodeAffinity(Box<NodeAffinityArgs>),
    NodeResourcesBalancedAllocation(BalancedAllocationArgs),
    NodeResourcesFit(NodeResourcesFitArgs),
    PodTopologySpread(PodTopologySpreadArgs),
    VolumeBinding(VolumeBindingArgs),
    DynamicResources(DynamicResourcesTimeouts),
    /// Of a plugin that is not in the tree, as they were given.
    Other(Value),
}

/// The plugins in the tree that have arguments.
pub(super) const WITH_ARGS: [&str; 8] = [
    "DefaultPreemption",
    "InterPodAffinity",
    "NodeAffinity",
    "NodeResourcesBalancedAllocation",
    "NodeResourcesFit",
    "PodTopologySpread",
    "VolumeBinding",
    "DynamicResources",
];

impl PluginArgs {
    /// Reads the arguments of a plugin, with its defaults.
    ///
    /// # Errors
    /// What does not fit its kind.
    pub fn decode(plugin: &str, args: Value) -> Result<Self, String> {
        fn read<T: serde::de::DeserializeOwned>(mut args: Value) -> Result<T, String> {
            if let Value::Object(fields) = &mut args {
                fields.remove("apiVersion");
                fields.remove("kind");
            }
            serde_json::from_value(args).map_err(|e| e.to_string())
        }
        if !WITH_ARGS.contains(&plugin) {
            return Ok(Self::Other(args));
        }
        let args = if args.is_null() { json!({}) } else { args };
        let mut args = match plugin {
            "DefaultPreemption" => Self::DefaultPreemption(read(args)?),
            "InterPodAffinity" => Self::InterPodAffinity(read(args)?),
            "NodeAffinity" => Self::NodeAffinity(read(args)?),
            "NodeResourcesBalancedAllocation" => Self::NodeResourcesBalancedAllocation(read(args)?),
            "NodeResourcesFit" => Self::NodeResourcesFit(read(args)?),
            "PodTopologySpread" => Self::PodTopologySpread(read(args)?),
            "VolumeBinding" => Self::VolumeBinding(read(args)?),
            _ => Self::DynamicResources(read(args)?),
        };
        args.set_defaults();
        Ok(args)
    }

    /// The arguments a plugin has when none are given; `None`: it takes none.
    pub fn default_of(plugin: &str) -> Option<Self> {
        WITH_ARGS
            .contains(&plugin)
            .then(|| Self::decode(plugin, Value::Null).ok())?
    }

    fn set_defaults(&mut self) {
        match self {
            Self::NodeResourcesBalancedAllocation(args) => fill(&mut args.resources),
            Self::NodeResourcesFit(args) => {
                fill(&mut args.scoring_strategy.resources);
            }
            _ => {}
        }
    }
}

/// CPU and memory where nothing is named; a weight of 0 is 1.
fn fill(resources: &mut Vec<ResourceWeight>) {
    if resources.is_empty() {
        *resources = vec![
            ResourceWeight::new("cpu", 1),
            ResourceWeight::new("memory", 1),
        ];
    }
    for resource in resources.iter_mut().filter(|r| r.weight == 0) {
        resource.weight = 1;
    }
}

impl Serialize for PluginArgs {
    /// With `apiVersion` and `kind`.
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let (plugin, value) = match self {
            Self::DefaultPreemption(args) => ("DefaultPreemption", serde_json::to_value(args)),
            Self::InterPodAffinity(args) => ("InterPodAffinity", serde_json::to_value(args)),
            Self::NodeAffinity(args) => ("NodeAffinity", serde_json::to_value(args)),
            Self::NodeResourcesBalancedAllocation(args) => (
                "NodeResourcesBalancedAllocation",
                serde_json::to_value(args),
            ),
            Self::NodeResourcesFit(args) => ("NodeResourcesFit", serde_json::to_value(args)),
            Self::PodTopologySpread(args) => ("PodTopologySpread", serde_json::to_value(args)),
            Self::VolumeBinding(args) => ("VolumeBinding", serde_json::to_value(args)),
            Self::DynamicResources(args) => ("DynamicResources", serde_json::to_value(args)),
            Self::Other(args) => return args.serialize(to),
        };
        let mut value = value.map_err(serde::ser::Error::custom)?;
        value["apiVersion"] = json!(API_VERSION);
        value["kind"] = json!(format!("{plugin}Args"));
        value.serialize(to)
    }
}

/// An entry of `pluginConfig` before its kind is known.
#[derive(Deserialize)]
pub(super) struct UntypedConfiguration {
    #[serde(default)]
    name: String,
    #[serde(default)]
    args: Value,
}

impl TryFrom<UntypedConfiguration> for PluginConfiguration {
    type Error = String;

    fn try_from(entry: UntypedConfiguration) -> Result<Self, String> {
        Ok(Self {
            args: PluginArgs::decode(&entry.name, entry.args)?,
            name: entry.name,
        })
    }
}

/// Arguments of DefaultPreemption: on how many nodes removing pods is tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DefaultPreemptionArgs {
    /// Share of the nodes where it may help, in percent.
    pub min_candidate_nodes_percentage: i32,
    /// At least so many.
    pub min_candidate_nodes_absolute: i32,
}

impl Default for DefaultPreemptionArgs {
    fn default() -> Self {
        Self {
            min_candidate_nodes_percentage: 10,
            min_candidate_nodes_absolute: 100,
        }
    }
}

/// Arguments of InterPodAffinity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InterPodAffinityArgs {
    /// What a required term of a pod that runs already counts in scores, 0 to 100.
    pub hard_pod_affinity_weight: i32,
    /// Whether preferences of pods that run already count only for pods that have some of their own.
    pub ignore_preferred_terms_of_existing_pods: bool,
}

impl Default for InterPodAffinityArgs {
    fn default() -> Self {
        Self {
            hard_pod_affinity_weight: 1,
            ignore_preferred_terms_of_existing_pods: false,
        }
    }
}

/// Arguments of NodeAffinity.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeAffinityArgs {
    /// What all pods of the profile want beside their own affinity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub added_affinity: Option<NodeAffinity>,
}

/// A resource and how much it counts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceWeight {
    /// The resource.
    pub name: String,
    /// Its weight.
    pub weight: i64,
}

impl ResourceWeight {
    /// A resource with its weight.
    pub fn new(name: &str, weight: i64) -> Self {
        Self {
            name: name.to_owned(),
            weight,
        }
    }
}

/// Arguments of NodeResourcesBalancedAllocation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BalancedAllocationArgs {
    /// The resources that are compared.
    pub resources: Vec<ResourceWeight>,
}

/// Arguments of NodeResourcesFit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeResourcesFitArgs {
    /// Extended resources that are left to others, by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ignored_resources: Vec<String>,
    /// The same by the part of the name before the slash.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ignored_resource_groups: Vec<String>,
    /// What a good node is; a strategy that is given has to name its type.
    pub scoring_strategy: FitStrategy,
}

impl Default for NodeResourcesFitArgs {
    fn default() -> Self {
        Self {
            ignored_resources: Vec::new(),
            ignored_resource_groups: Vec::new(),
            scoring_strategy: FitStrategy::least_allocated(),
        }
    }
}

impl FitStrategy {
    fn least_allocated() -> Self {
        Self {
            kind: "LeastAllocated".to_owned(),
            ..Self::default()
        }
    }
}

/// What a good node is to NodeResourcesFit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FitStrategy {
    /// `LeastAllocated`, `MostAllocated` or `RequestedToCapacityRatio`
    #[serde(rename = "type")]
    pub kind: String,
    /// What is looked at.
    pub resources: Vec<ResourceWeight>,
    /// Scores by how full a node is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested_to_capacity_ratio: Option<CapacityRatio>,
}

/// Scores by how full a node is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CapacityRatio {
    /// Points of the function, between which it is linear.
    pub shape: Vec<UtilizationShapePoint>,
}

/// A point of a function from use to score.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UtilizationShapePoint {
    /// Percent.
    pub utilization: i32,
    /// 0 to 10.
    pub score: i32,
}

/// Arguments of PodTopologySpread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodTopologySpreadArgs {
    /// Constraints of pods that state none, for `List`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub default_constraints: Vec<TopologySpreadConstraint>,
    /// `System` or `List`
    pub defaulting_type: String,
}

impl Default for PodTopologySpreadArgs {
    fn default() -> Self {
        Self {
            default_constraints: Vec::new(),
            defaulting_type: "System".to_owned(),
        }
    }
}

/// Arguments of VolumeBinding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeBindingArgs {
    /// How long volumes may take to be bound, in seconds.
    pub bind_timeout_seconds: i64,
    /// Scores by how full storage is; only with the gate StorageCapacityScoring, which is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shape: Option<Vec<UtilizationShapePoint>>,
}

impl Default for VolumeBindingArgs {
    fn default() -> Self {
        Self {
            bind_timeout_seconds: 600,
            shape: None,
        }
    }
}

/// Arguments of DynamicResources, as they are written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DynamicResourcesTimeouts {
    /// How long looking for devices may take; zero: as long as it takes.
    #[serde(with = "duration")]
    pub filter_timeout: SignedDuration,
    /// How long binding conditions may take.
    #[serde(with = "duration")]
    pub binding_timeout: SignedDuration,
}

impl Default for DynamicResourcesTimeouts {
    fn default() -> Self {
        Self {
            filter_timeout: SignedDuration::from_secs(10),
            binding_timeout: SignedDuration::from_secs(600),
        }
    }
}
