//! Flags of the controllers, and of all that runs against an API server elsewhere.

use super::{BalancerRange, DefaultStorageClass, LoadBalancer};
use crate::features::GateFlags;
use crate::pod_ranges::{ClusterCidrs, NodeSizes};
use std::path::PathBuf;

/// A component that runs against an API server elsewhere.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Attached {
    /// How to reach the API server
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    pub(crate) kubeconfig: PathBuf,
    /// Take part in leader election, so that of several replicas one works at a time
    #[arg(long)]
    pub(crate) leader_elect: bool,
    #[command(flatten)]
    pub(crate) gates: GateFlags,
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Controllers {
    #[command(flatten)]
    pub(crate) attached: Attached,
    /// Certificate of the authority that signs certificate requests (pki/ca.crt of the server's data directory)
    #[arg(long, value_name = "FILE", requires = "cluster_signing_key_file")]
    pub(crate) cluster_signing_cert_file: Option<PathBuf>,
    /// Key of the authority that signs certificate requests
    #[arg(long, value_name = "FILE", requires = "cluster_signing_cert_file")]
    pub(crate) cluster_signing_key_file: Option<PathBuf>,
    /// How long certificates are valid that are signed on request, unless they ask for less (`8760h`)
    #[arg(long, value_name = "TIME", default_value = "8760h", value_parser = crate::protection::duration)]
    pub(crate) cluster_signing_duration: std::time::Duration,
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
