//! The built-in plugins and the default profile.

mod balanced_allocation;
mod classic_resources;
mod default_binder;
mod default_preemption;
mod dynamic_resources;
mod gang_scheduling;
mod image_locality;
mod inter_pod_affinity;
mod node_affinity;
mod node_declared_features;
mod node_name;
mod node_ports;
mod node_resource_topology;
mod node_resources_fit;
mod node_unschedulable;
mod node_volume_limits;
mod pod_group_pods_count;
mod pod_topology_spread;
mod priority_sort;
mod scheduling_gates;
mod taint_toleration;
mod tally;
mod topology_placement;
mod volume_binding;
mod volume_restrictions;
mod volume_zone;

pub use crate::victims::Budgets;
pub use balanced_allocation::BalancedAllocation;
pub use classic_resources::ClassicResources;
pub use default_binder::DefaultBinder;
pub use default_preemption::DefaultPreemption;
pub(crate) use dynamic_resources::{Adoption, GroupAllocations};
pub use dynamic_resources::{DynamicResources, DynamicResourcesArgs};
pub use gang_scheduling::GangScheduling;
pub use image_locality::ImageLocality;
pub use inter_pod_affinity::InterPodAffinity;
pub use node_affinity::NodeAffinity;
pub use node_declared_features::NodeDeclaredFeatures;
pub use node_name::NodeName;
pub use node_ports::NodePorts;
pub use node_resource_topology::NodeResourceTopology;
pub use node_resources_fit::{NodeResourcesFit, ScoringStrategy};
pub use node_unschedulable::NodeUnschedulable;
pub use node_volume_limits::NodeVolumeLimits;
pub use pod_group_pods_count::PodGroupPodsCount;
pub use pod_topology_spread::PodTopologySpread;
pub use priority_sort::PrioritySort;
pub use scheduling_gates::SchedulingGates;
pub use taint_toleration::TaintToleration;
pub use topology_placement::TopologyPlacement;
pub use volume_binding::VolumeBinding;
pub use volume_restrictions::VolumeRestrictions;
pub use volume_zone::VolumeZone;

use std::sync::Arc;

use crate::config::{DEFAULT_PLUGINS, PluginArgs};
use crate::devices::Devices;
use crate::framework::{Plugin, Profile};
use crate::registry::FrameworkHandle;

/// The plugins in the tree.
pub(crate) const BUILT_IN: [&str; 25] = [
    "SchedulingGates",
    "PrioritySort",
    "NodeUnschedulable",
    "NodeName",
    "TaintToleration",
    "NodeAffinity",
    "NodePorts",
    "NodeResourcesFit",
    "VolumeRestrictions",
    "NodeVolumeLimits",
    "VolumeBinding",
    "VolumeZone",
    "PodTopologySpread",
    "InterPodAffinity",
    "DynamicResources",
    "ClassicDynamicResources",
    "DefaultPreemption",
    "NodeResourcesBalancedAllocation",
    "ImageLocality",
    "DefaultBinder",
    "NodeDeclaredFeatures",
    "GangScheduling",
    "TopologyPlacementGenerator",
    "PodGroupPodsCount",
    "NodeResourceTopologyMatch",
];

/// Makes a plugin in the tree; `None` if there is none of this name, or one that writes lacks a client.
pub(crate) fn built_in(
    name: &str,
    args: Option<&PluginArgs>,
    handle: &FrameworkHandle,
) -> Option<Arc<dyn Plugin>> {
    let (client, devices) = (handle.client.clone(), handle.devices.clone());
    Some(match (name, args) {
        ("SchedulingGates", _) => Arc::new(SchedulingGates),
        ("PrioritySort", _) => Arc::new(PrioritySort::new(handle.pod_groups.clone())),
        ("NodeUnschedulable", _) => Arc::new(NodeUnschedulable),
        ("NodeName", _) => Arc::new(NodeName),
        ("TaintToleration", _) => Arc::new(TaintToleration),
        ("NodePorts", _) => Arc::new(NodePorts),
        ("ImageLocality", _) => Arc::new(ImageLocality),
        ("NodeDeclaredFeatures", _) => Arc::new(NodeDeclaredFeatures),
        ("GangScheduling", _) => Arc::new(GangScheduling::new(handle.pod_groups.clone())),
        ("TopologyPlacementGenerator", _) => Arc::new(TopologyPlacement),
        ("PodGroupPodsCount", _) => Arc::new(PodGroupPodsCount),
        ("NodeAffinity", Some(PluginArgs::NodeAffinity(args))) => Arc::new(NodeAffinity::new(args)),
        ("NodeResourcesFit", Some(PluginArgs::NodeResourcesFit(args))) => {
            Arc::new(NodeResourcesFit::new(args).with_devices(devices))
        }
        ("VolumeRestrictions", _) => Arc::new(VolumeRestrictions::new(handle.volumes.clone())),
        ("NodeVolumeLimits", _) => Arc::new(NodeVolumeLimits::new(handle.volumes.clone())),
        ("VolumeZone", _) => Arc::new(VolumeZone::new(handle.volumes.clone())),
        ("VolumeBinding", Some(PluginArgs::VolumeBinding(args))) => {
            Arc::new(VolumeBinding::new(client, handle.volumes.clone(), args))
        }
        ("PodTopologySpread", Some(PluginArgs::PodTopologySpread(args))) => {
            Arc::new(PodTopologySpread::new(args, handle.workloads.clone()))
        }
        ("InterPodAffinity", Some(PluginArgs::InterPodAffinity(args))) => {
            Arc::new(InterPodAffinity::new(args))
        }
        (
            "NodeResourcesBalancedAllocation",
            Some(PluginArgs::NodeResourcesBalancedAllocation(args)),
        ) => Arc::new(BalancedAllocation::new(args)),
        ("DynamicResources", Some(PluginArgs::DynamicResources(args))) => {
            let plugin = DynamicResources::new(client, devices, args.into());
            Arc::new(plugin.with_groups(handle.pod_groups.clone()))
        }
        ("ClassicDynamicResources", _) => Arc::new(ClassicResources::new(client, devices)),
        ("NodeResourceTopologyMatch", _) => Arc::new(NodeResourceTopology::new(
            handle.topologies.clone(),
            devices,
        )),
        ("DefaultPreemption", Some(PluginArgs::DefaultPreemption(args))) => Arc::new(
            DefaultPreemption::new(client?, handle.budgets.clone())
                .with_args(args)
                .with_extenders(handle.extenders.clone())
                .with_groups(handle.pod_groups.clone()),
        ),
        ("DefaultBinder", _) => Arc::new(DefaultBinder::new(client?)),
        _ => return None,
    })
}

/// The profile of the default scheduler, with the arguments that plugins have by default. Without a client it decides
/// but neither binds nor preempts.
pub fn default_profile(
    name: &str,
    client: Option<kube::Client>,
    budgets: Budgets,
    devices: &Devices,
) -> Profile {
    let mut handle = FrameworkHandle::new(name, client, devices.clone());
    handle.budgets = budgets;
    let plugins = DEFAULT_PLUGINS.iter().filter_map(|(name, weight)| {
        let args = PluginArgs::default_of(name);
        Some((built_in(name, args.as_ref(), &handle)?, *weight))
    });
    plugins.fold(Profile::new(name), |profile, (plugin, weight)| {
        profile.with(plugin, i64::from(weight))
    })
}

#[cfg(test)]
pub(crate) mod testing;
