//! The built-in plugins and the default profile.

mod balanced_allocation;
mod classic_resources;
mod default_binder;
mod default_preemption;
mod dynamic_resources;
mod image_locality;
mod inter_pod_affinity;
mod node_affinity;
mod node_declared_features;
mod node_name;
mod node_ports;
mod node_resource_topology;
mod node_resources_fit;
mod node_unschedulable;
mod pod_topology_spread;
mod priority_sort;
mod scheduling_gates;
mod taint_toleration;

pub use balanced_allocation::BalancedAllocation;
pub use classic_resources::ClassicResources;
pub use default_binder::DefaultBinder;
pub use default_preemption::{Budgets, DefaultPreemption};
pub(crate) use dynamic_resources::Adoption;
pub use dynamic_resources::{DynamicResources, DynamicResourcesArgs};
pub use image_locality::ImageLocality;
pub use inter_pod_affinity::InterPodAffinity;
pub use node_affinity::NodeAffinity;
pub use node_declared_features::NodeDeclaredFeatures;
pub use node_name::NodeName;
pub use node_ports::NodePorts;
pub use node_resource_topology::NodeResourceTopology;
pub use node_resources_fit::{NodeResourcesFit, ScoringStrategy};
pub use node_unschedulable::NodeUnschedulable;
pub use pod_topology_spread::PodTopologySpread;
pub use priority_sort::PrioritySort;
pub use scheduling_gates::SchedulingGates;
pub use taint_toleration::TaintToleration;

use std::sync::Arc;

use crate::devices::Devices;
use crate::framework::Profile;

/// The profile of the default scheduler: the plugins of kube-scheduler with their weights, in its
/// order. Without a client the profile decides but neither binds nor preempts.
pub fn default_profile(
    name: &str,
    client: Option<kube::Client>,
    budgets: Budgets,
    devices: &Devices,
    args: DynamicResourcesArgs,
) -> Profile {
    let fit = NodeResourcesFit::default().with_devices(devices.clone());
    let dynamic = DynamicResources::new(client.clone(), devices.clone(), args);
    let classic = ClassicResources::new(client.clone(), devices.clone());
    let mut profile = Profile::new(name)
        .with(Arc::new(SchedulingGates), 0)
        .with(Arc::new(PrioritySort), 0)
        .with(Arc::new(NodeUnschedulable), 0)
        .with(Arc::new(NodeName), 0)
        .with(Arc::new(TaintToleration), 3)
        .with(Arc::new(NodeAffinity), 2)
        .with(Arc::new(NodePorts), 0)
        .with(Arc::new(fit), 1)
        .with(Arc::new(PodTopologySpread), 2)
        .with(Arc::new(InterPodAffinity::default()), 2)
        .with(Arc::new(dynamic), 2)
        .with(Arc::new(classic), 0)
        .with(Arc::new(BalancedAllocation::default()), 1)
        .with(Arc::new(ImageLocality), 1)
        .with(Arc::new(NodeDeclaredFeatures), 0);
    if let Some(client) = client {
        profile = profile
            .with(Arc::new(DefaultPreemption::new(client.clone(), budgets)), 0)
            .with(Arc::new(DefaultBinder::new(client)), 0);
    }
    profile
}

#[cfg(test)]
pub(crate) mod testing;
