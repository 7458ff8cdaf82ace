//! The flag that names a cluster.

use std::path::PathBuf;

/// Which cluster to ask.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Cluster {
    /// How to reach the API server [default: $KUBECONFIG, the davit cluster of this machine, ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
}
