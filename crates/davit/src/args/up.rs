//! Flags of `davit up`.

use super::{ControllerFlags, NodeOptions, ServerOptions};
use crate::pod_ranges::{ClusterCidrs, NodeSizes};
use anyhow::{Result, bail};
use davit_controllers::LoadBalancing;
use davit_netplan::{BalancerPool, Network};
use std::path::PathBuf;

/// The class of storage that a cluster begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DefaultStorageClass {
    /// `standard`: directories of nodes.
    Local,
    /// No class.
    None,
}

/// Where Services of type LoadBalancer have their addresses from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LoadBalancer {
    /// They have those of the nodes.
    Node,
    /// Another load balancer gives them some.
    None,
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct BalancerRange {
    /// Addresses that Services of type LoadBalancer have, one each, instead of those of nodes: addresses of the nodes' own
    /// network that no machine has (`192.0.2.200-192.0.2.220,2001:db8::/120`). A node that is ready answers for each
    #[arg(long, value_name = "RANGE,...", conflicts_with = "load_balancer")]
    load_balancer_range: Option<BalancerPool>,
}

impl LoadBalancer {
    /// Where addresses come from: a range that was given is it.
    ///
    /// # Errors
    /// It has addresses of `inside`, those of the cluster's Services and pods: nothing would be reached at them, or somebody else.
    pub(crate) fn or_range(
        self,
        range: &BalancerRange,
        inside: impl IntoIterator<Item = Network>,
    ) -> Result<LoadBalancing> {
        match (&range.load_balancer_range, self) {
            (Some(pool), _) => {
                for network in inside {
                    if let Some((first, last)) = pool.within(network) {
                        bail!(
                            "--load-balancer-range: {first}-{last} overlaps {network}, addresses of Services or pods"
                        );
                    }
                }
                Ok(LoadBalancing::Range(pool.clone()))
            }
            (None, Self::Node) => Ok(LoadBalancing::Nodes),
            (None, Self::None) => Ok(LoadBalancing::Others),
        }
    }
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Up {
    #[command(flatten)]
    pub(crate) server: ServerOptions,
    #[command(flatten)]
    pub(crate) node: NodeOptions,
    /// The storage class that the cluster begins with: `local` makes class `standard`, whose volumes are directories of
    /// nodes, once in the cluster's life
    #[arg(long, value_name = "CLASS", value_enum, default_value_t = DefaultStorageClass::Local)]
    pub(crate) default_storage_class: DefaultStorageClass,
    /// Where Services of type LoadBalancer have their addresses from: `node`, those of the nodes that are ready, or `none`,
    /// from another load balancer
    #[arg(long, value_name = "FROM", value_enum, default_value_t = LoadBalancer::Node, conflicts_with = "no_controllers")]
    pub(crate) load_balancer: LoadBalancer,
    #[command(flatten)]
    pub(crate) balancer_range: BalancerRange,
    /// Directory of the executables of FlexVolume drivers that attach volumes [default: that of --volume-plugin-dir]
    #[arg(long, value_name = "DIR")]
    pub(crate) flex_volume_plugin_dir: Option<PathBuf>,
    /// Only the control plane; needs no privileges
    #[arg(long)]
    pub(crate) no_node: bool,
    /// Serve the simulated devices of this inventory on the node, and on the simulated ones (docs/lab.md)
    #[arg(long, value_name = "FILE")]
    pub(crate) devices: Option<PathBuf>,
    /// Add so many simulated nodes sim-0, sim-1, …: real node agents with devices, whose containers run nothing
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) sim_nodes: usize,
    /// In directories of its own, without waiting for disks; everything is removed at the end. Ports are any unless given
    #[arg(long, conflicts_with_all = ["data_dir", "root", "volumes_dir"])]
    pub(crate) ephemeral: bool,
    /// Begin with a copy of this data directory, which no davit uses
    #[arg(long, value_name = "DIR", requires = "ephemeral")]
    pub(crate) template: Option<PathBuf>,
    /// Stop when the process that has started this one ends, however it does
    #[arg(long)]
    pub(crate) exit_with_parent: bool,
    /// Start the example device plugin and a pod that holds two of its devices, and show who holds what
    #[arg(long, conflicts_with_all = ["no_node", "no_scheduler"])]
    pub(crate) demo: bool,
    /// Addresses of all pods of the cluster, of which each node gets a part: one range, or one of each family
    /// [default: of each family of --service-cluster-ip-range one; the first of 10.244.0.0/16, 10.245.0.0/16, … and of fd00:10:244::/56, … that this machine does not use]
    #[arg(long, value_name = "CIDR[,CIDR]")]
    pub(crate) cluster_cidr: Option<ClusterCidrs>,
    #[command(flatten)]
    pub(crate) node_sizes: NodeSizes,
    /// KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1) of the scheduler (docs/scheduler.md)
    #[arg(long, value_name = "FILE", conflicts_with = "no_scheduler")]
    pub(crate) scheduler_config: Option<PathBuf>,
    /// Leave the scheduler out: another one places the pods
    #[arg(long)]
    pub(crate) no_scheduler: bool,
    /// Each controller acts as a service account of its own in kube-system, with the rights of its ClusterRole alone
    #[arg(long, value_name = "BOOL", default_value_t = true, default_missing_value = "true", num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set)]
    pub(crate) use_service_account_credentials: bool,
    #[command(flatten)]
    pub(crate) controllers: ControllerFlags,
    /// Leave the controllers out: others run them
    #[arg(long, conflicts_with = "demo")]
    pub(crate) no_controllers: bool,
    /// End after the demo has shown everything, instead of waiting for Ctrl-C
    #[arg(long, requires = "demo", hide = true)]
    pub(crate) exit_after_demo: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_balancers_have_no_addresses_of_the_cluster() {
        let inside = ["10.96.0.0/16", "10.244.0.0/16"].map(|range| range.parse().unwrap());
        let of = |text: &str| {
            let range = BalancerRange {
                load_balancer_range: Some(text.parse().unwrap()),
            };
            LoadBalancer::Node.or_range(&range, inside)
        };
        assert!(of("192.0.2.200-192.0.2.220,2001:db8::/120").is_ok());
        for wrong in [
            "192.0.2.1,10.96.255.0/24",
            "10.0.0.1-10.255.0.1",
            "10.244.3.7",
        ] {
            let error = of(wrong).unwrap_err().to_string();
            assert!(error.contains("overlaps 10."), "{error}");
        }
    }
}
