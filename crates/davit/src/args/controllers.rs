//! Flags of the controllers.

use super::{BalancerRange, ConcurrencyFlags, DefaultStorageClass, LoadBalancer};
use crate::features::GateFlags;
use crate::leader_election::LeaderElectionFlags;
use crate::pod_ranges::{ClusterCidrs, NodeSizes};
use davit_controllers::{AutoscalerSettings, ControllerSelection, NodeMonitor};
use jiff::SignedDuration;
use std::path::PathBuf;
use std::time::Duration;

/// Which controllers run, and how: the flags of kube-controller-manager that are about one controller's work.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Controllers")]
pub(crate) struct ControllerFlags {
    /// Which controllers run: `*` all, `NAME` one, `-NAME` not this one (docs/access.md)
    #[arg(
        long,
        value_name = "NAME,...",
        default_value_t,
        allow_hyphen_values = true
    )]
    pub(crate) controllers: ControllerSelection,
    /// How often a node that is not ready is looked at again
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = period)]
    pub(crate) node_monitor_period: Duration,
    /// How long a node may be silent before it is not ready
    #[arg(long, value_name = "DURATION", default_value = "50s", value_parser = period)]
    pub(crate) node_monitor_grace_period: Duration,
    /// The same for a node that has never said that it is ready
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = period)]
    pub(crate) node_startup_grace_period: Duration,
    /// How many pods that have ended may stay before the oldest of them are deleted; with 0 none are
    #[arg(long, value_name = "N", default_value_t = 12500)]
    pub(crate) terminated_pod_gc_threshold: usize,
    /// How often each autoscaler is looked at
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = period)]
    pub(crate) horizontal_pod_autoscaler_sync_period: Duration,
    /// How far from its target a metric may be without leading to a change, as a ratio, where an autoscaler does not say
    #[arg(long, value_name = "RATIO", default_value_t = 0.1, value_parser = tolerance)]
    pub(crate) horizontal_pod_autoscaler_tolerance: f64,
    /// How long recommendations hold the number of pods up, where an autoscaler does not say
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = crate::protection::duration)]
    pub(crate) horizontal_pod_autoscaler_downscale_stabilization: Duration,
    /// How long after its start a pod's use of CPU may be that of its start
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = crate::protection::duration)]
    pub(crate) horizontal_pod_autoscaler_cpu_initialization_period: Duration,
    /// How long after its start a pod that was never ready is taken to be starting
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = crate::protection::duration)]
    pub(crate) horizontal_pod_autoscaler_initial_readiness_delay: Duration,
    #[command(flatten)]
    pub(crate) concurrency: ConcurrencyFlags,
}

impl ControllerFlags {
    pub(crate) fn node_monitor(&self) -> NodeMonitor {
        NodeMonitor {
            period: self.node_monitor_period,
            grace_period: self.node_monitor_grace_period,
            startup_grace_period: self.node_startup_grace_period,
        }
    }

    pub(crate) fn autoscaling(&self) -> AutoscalerSettings {
        let signed = |time| SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX);
        AutoscalerSettings {
            sync_period: self.horizontal_pod_autoscaler_sync_period,
            tolerance: self.horizontal_pod_autoscaler_tolerance,
            downscale_stabilization: self.horizontal_pod_autoscaler_downscale_stabilization,
            cpu_initialization_period: signed(
                self.horizontal_pod_autoscaler_cpu_initialization_period,
            ),
            initial_readiness_delay: signed(self.horizontal_pod_autoscaler_initial_readiness_delay),
        }
    }
}

/// A time after which something is done again: a second or more, so that nothing turns round without pause.
fn period(text: &str) -> Result<Duration, String> {
    let time = crate::protection::duration(text)?;
    let enough = time >= Duration::from_secs(1);
    enough
        .then_some(time)
        .ok_or_else(|| "is less than 1s".to_owned())
}

fn tolerance(text: &str) -> Result<f64, String> {
    let ratio: f64 = text.parse().map_err(|_| "is no number".to_owned())?;
    let is_ratio = (0.0..=1.0).contains(&ratio);
    is_ratio
        .then_some(ratio)
        .ok_or_else(|| "must be from 0 to 1".to_owned())
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Controllers {
    /// How to reach the API server
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    pub(crate) kubeconfig: PathBuf,
    /// The cluster's name, told in /configz: nothing here is named after it
    #[arg(long, value_name = "NAME", default_value = "kubernetes")]
    pub(crate) cluster_name: String,
    /// How many requests a second each controller's client sends, once --kube-api-burst are through; below 0 and by default as many as
    /// there are
    #[arg(long, value_name = "N", default_value_t = -1.0, allow_negative_numbers = true)]
    pub(crate) kube_api_qps: f32,
    /// How many requests go out at once where --kube-api-qps is a limit
    #[arg(
        long,
        value_name = "N",
        default_value_t = 30,
        allow_negative_numbers = true
    )]
    pub(crate) kube_api_burst: i32,
    #[command(flatten)]
    pub(crate) gates: GateFlags,
    #[command(flatten)]
    pub(crate) election: LeaderElectionFlags,
    #[command(flatten)]
    pub(crate) flags: ControllerFlags,
    /// Certificate of the authority that signs certificate requests (pki/ca.crt of the server's data directory)
    #[arg(long, value_name = "FILE", requires = "cluster_signing_key_file")]
    pub(crate) cluster_signing_cert_file: Option<PathBuf>,
    /// Key of the authority that signs certificate requests
    #[arg(long, value_name = "FILE", requires = "cluster_signing_cert_file")]
    pub(crate) cluster_signing_key_file: Option<PathBuf>,
    /// How long certificates are valid that are signed on request, unless they ask for less (`8760h`)
    #[arg(long, value_name = "TIME", default_value = "8760h", value_parser = crate::protection::duration)]
    pub(crate) cluster_signing_duration: Duration,
    /// Authority of the API server, for pods (`kube-root-ca.crt`) [default: that of the kubeconfig]
    #[arg(long, value_name = "FILE")]
    pub(crate) root_ca_file: Option<PathBuf>,
    /// The key that signs service account tokens, to fill Secrets with them (pki/sa.key of the server's data directory)
    #[arg(long, value_name = "FILE")]
    pub(crate) service_account_private_key_file: Option<PathBuf>,
    /// Each controller acts as a service account of its own in kube-system, with the rights of its ClusterRole alone; the
    /// kubeconfig's user makes the accounts and their tokens
    #[arg(long, value_name = "BOOL", default_value_t = false, default_missing_value = "true", num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set)]
    pub(crate) use_service_account_credentials: bool,
    /// Give each node a part of the pods' addresses
    #[arg(long, value_name = "BOOL", default_value_t = true, default_missing_value = "true", num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set)]
    pub(crate) allocate_node_cidrs: bool,
    /// Addresses of all pods of the cluster
    #[arg(long, value_name = "CIDR[,CIDR]", default_value = "10.244.0.0/16")]
    pub(crate) cluster_cidr: ClusterCidrs,
    #[command(flatten)]
    pub(crate) node_sizes: NodeSizes,
    /// Addresses of Services, which no pod gets
    #[arg(long, value_name = "CIDR[,CIDR]", default_value_t)]
    pub(crate) service_cluster_ip_range: davit_apiserver::ServiceRanges,
    /// The storage class that the cluster begins with: `local` makes class `standard`, whose volumes are directories of
    /// nodes, once in the cluster's life
    #[arg(long, value_name = "CLASS", value_enum, default_value_t = DefaultStorageClass::None)]
    pub(crate) default_storage_class: DefaultStorageClass,
    /// Where Services of type LoadBalancer have their addresses from: `node`, those of the nodes that are ready, or `none`,
    /// from another load balancer
    #[arg(long, value_name = "FROM", value_enum, default_value_t = LoadBalancer::None)]
    pub(crate) load_balancer: LoadBalancer,
    #[command(flatten)]
    pub(crate) balancer_range: BalancerRange,
    /// Directory of the executables of FlexVolume drivers that attach volumes
    /// [default: /usr/libexec/kubernetes/kubelet-plugins/volume/exec/]
    #[arg(long, value_name = "DIR")]
    pub(crate) flex_volume_plugin_dir: Option<PathBuf>,
    /// Make the Service kube-dns when nodes answer questions for names
    #[arg(long, value_name = "BOOL", default_value_t = true, default_missing_value = "true", num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set)]
    pub(crate) dns: bool,
    /// Port of /healthz, /livez, /readyz, /metrics and /configz; 0 for none, 10257 is kube-controller-manager's
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10257,
        help_heading = "Serving"
    )]
    pub(crate) secure_port: u16,
    #[command(flatten)]
    pub(crate) serving: crate::component_serving::ComponentServingFlags,
}
