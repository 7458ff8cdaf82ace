//! What a cluster said about itself.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use serde_json::Value;

use super::probes::Control;

/// What was asked for, or why there is no answer.
pub(super) type Seen<T> = Result<T, String>;

/// Namespaces that Kubernetes makes for itself.
const SYSTEM: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];

/// All that was asked.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub(super) namespaces: Seen<Vec<Namespace>>,
    pub(super) nodes: Seen<Vec<Node>>,
    pub(super) pods: Seen<Vec<Pod>>,
    pub(super) services: Seen<Vec<Service>>,
    pub(super) accounts: Seen<Vec<ServiceAccount>>,
    pub(super) network_policies: Seen<Vec<NetworkPolicy>>,
    pub(super) roles: Seen<Vec<Role>>,
    pub(super) role_bindings: Seen<Vec<RoleBinding>>,
    pub(super) cluster_roles: Seen<Vec<ClusterRole>>,
    pub(super) cluster_role_bindings: Seen<Vec<ClusterRoleBinding>>,
    /// Configurations of node agents, by node.
    pub(super) kubelets: BTreeMap<String, Seen<Value>>,
    /// Namespaces whose pods are the cluster's own.
    pub(super) exempt: BTreeSet<String>,
    /// What was tried.
    pub(super) tried: Tried,
}

/// What was tried, and what came of it.
#[derive(Debug, Clone)]
pub(super) struct Tried {
    /// Groups of whoever checks.
    pub(super) own_groups: Seen<Vec<String>>,
    /// HTTP status of paths of the API server asked for without credentials.
    pub(super) anonymous: Seen<BTreeMap<String, u16>>,
    /// HTTP status of pages of node agents asked for without credentials, by node; `None`: nobody answers there.
    pub(super) kubelet_port: BTreeMap<String, Option<u16>>,
    /// The same of the port without TLS.
    pub(super) kubelet_open_port: BTreeMap<String, Option<u16>>,
    /// Whether namespaces admit pods that a control is about.
    pub(super) admits: BTreeMap<String, Seen<BTreeMap<Control, bool>>>,
    /// HTTP status and body of a dry run, by what it was.
    pub(super) answers: BTreeMap<Attempt, (u16, Value)>,
    /// Why there were no dry runs.
    pub(super) no_dry_run: Option<String>,
    /// Whether the API server is reached with TLS.
    pub(super) tls: bool,
}

/// Requests whose answers tell how a server is configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Attempt {
    /// A pod in the namespace `default`, whose image is to be pulled if it is not there.
    Pod,
    /// A pod in a namespace that does not exist.
    NoNamespace,
    /// A Service with external addresses.
    ExternalAddress,
    /// One node makes another.
    OtherNode,
    /// What somebody unknown may do.
    ReviewOfNobody,
    /// What a node may do with a Secret that no pod of it uses.
    ReviewOfNode,
    /// What the scheduler may do by its role.
    ReviewOfScheduler,
    /// The pages of the profiler.
    Profiler,
}

impl Facts {
    /// Whether a namespace is the cluster's own.
    pub(super) fn is_system(&self, namespace: &str) -> bool {
        SYSTEM.contains(&namespace) || self.exempt.contains(namespace)
    }

    /// Pods that are not the cluster's own and have not ended.
    pub(super) fn workloads(&self) -> Seen<Vec<&Pod>> {
        let pods = self.pods.as_ref().map_err(Clone::clone)?;
        let own = |pod: &&Pod| {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
            !self.is_system(namespace) && !matches!(phase, Some("Succeeded" | "Failed"))
        };
        Ok(pods.iter().filter(own).collect())
    }

    /// Namespaces that are not the cluster's own.
    pub(super) fn user_namespaces(&self) -> Seen<Vec<&Namespace>> {
        let all = self.namespaces.as_ref().map_err(Clone::clone)?;
        let own = |n: &&Namespace| !self.is_system(n.metadata.name.as_deref().unwrap_or_default());
        Ok(all.iter().filter(own).collect())
    }

    pub(super) fn node_names(&self) -> Vec<String> {
        let nodes = self.nodes.iter().flatten();
        nodes.filter_map(|n| n.metadata.name.clone()).collect()
    }
}

/// `NAMESPACE/NAME` of an object.
pub(super) fn named(meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> String {
    let name = meta.name.as_deref().unwrap_or_default();
    match &meta.namespace {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}
