//! Flags of `davit explain`.

use crate::cluster_flag::Cluster;
use crate::live::{self, Live};
use crate::output::Output;
use clap::Subcommand;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Explain {
    #[command(subcommand)]
    pub(crate) what: ExplainWhat,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum ExplainWhat {
    /// A pod
    #[command(visible_aliases = ["pods", "po"])]
    Pod(ExplainedPod),
    /// A resource claim
    #[command(visible_aliases = ["claims", "resourceclaim", "resourceclaims"])]
    Claim(ExplainedClaim),
    /// A node: how it is, and its devices, CPUs and memory drawn by NUMA node
    #[command(visible_aliases = ["nodes", "no"])]
    Node(ExplainedNode),
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ExplainedPod {
    /// Name of the pod
    #[arg(add = live::names(Live::Pods))]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) how: ExplainedHow,
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ExplainedClaim {
    /// Name of the claim
    #[arg(add = live::names(Live::Claims))]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) how: ExplainedHow,
}

/// Which cluster and namespace an object is in, and how it is shown.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ExplainedHow {
    /// Namespace of the object [default: the kubeconfig's]
    #[arg(short, long, add = live::names(Live::Namespaces))]
    pub(crate) namespace: Option<String>,
    /// `json` for programs
    #[arg(short, long, value_enum)]
    pub(crate) output: Option<Output>,
    #[command(flatten)]
    pub(crate) cluster: Cluster,
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ExplainedNode {
    /// Name of the node
    #[arg(add = live::names(Live::Nodes))]
    pub(crate) name: String,
    /// `json` for programs
    #[arg(short, long, value_enum)]
    pub(crate) output: Option<Output>,
    #[command(flatten)]
    pub(crate) cluster: Cluster,
}
