//! The informers that controllers share: one list and watch a kind.

use davit_client::{Informer, Object};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    ConfigMap, Endpoints, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod,
    ReplicationController, Service, ServiceAccount,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::runtime::watcher;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The ConfigMap of each namespace that holds the cluster's authority.
pub const ROOT_CA_MAP: &str = "kube-root-ca.crt";
/// Where the Leases of nodes are.
pub const LEASE_NAMESPACE: &str = "kube-node-lease";

/// What all controllers follow; cheap to clone.
#[derive(Debug, Clone)]
pub struct Informers {
    /// Namespaces.
    pub namespaces: Informer<Namespace>,
    /// Nodes.
    pub nodes: Informer<Node>,
    /// Pods, indexed by the names of their nodes.
    pub pods: Informer<Pod>,
    /// Service accounts.
    pub service_accounts: Informer<ServiceAccount>,
    /// Replica sets.
    pub replica_sets: Informer<ReplicaSet>,
    /// Deployments.
    pub deployments: Informer<Deployment>,
    /// Daemon sets.
    pub daemon_sets: Informer<DaemonSet>,
    /// Jobs.
    pub jobs: Informer<Job>,
    /// Services, indexed by type.
    pub services: Informer<Service>,
    /// Endpoints of Services.
    pub endpoints: Informer<Endpoints>,
    /// Endpoint slices.
    pub endpoint_slices: Informer<EndpointSlice>,
    /// Stateful sets.
    pub stateful_sets: Informer<StatefulSet>,
    /// Cron jobs.
    pub cron_jobs: Informer<CronJob>,
    /// Disruption budgets.
    pub disruption_budgets: Informer<PodDisruptionBudget>,
    /// Replication controllers.
    pub replication_controllers: Informer<ReplicationController>,
    /// Claims of volumes.
    pub claims: Informer<PersistentVolumeClaim>,
    /// Persistent volumes.
    pub volumes: Informer<PersistentVolume>,
    /// Of ConfigMaps only `kube-root-ca.crt` of each namespace.
    pub root_ca_maps: Informer<ConfigMap>,
    /// Of Leases only those of nodes (namespace `kube-node-lease`).
    pub node_leases: Informer<Lease>,
}

/// Follows all objects of a kind.
fn follow<K: Object>(
    client: &kube::Client,
    tasks: &mut JoinSet<()>,
    cancel: &CancellationToken,
) -> Informer<K> {
    let all = watcher::Config::default();
    Informer::spawn(kube::Api::all(client.clone()), all, tasks, cancel.clone())
}

impl Informers {
    /// Begins to list and watch all of them.
    pub fn spawn(
        client: &kube::Client,
        tasks: &mut JoinSet<()>,
        cancel: &CancellationToken,
    ) -> Self {
        let all = watcher::Config::default;
        let root_ca_maps = all().fields(&format!("metadata.name={ROOT_CA_MAP}"));
        let leases = kube::Api::namespaced(client.clone(), LEASE_NAMESPACE);
        Self {
            namespaces: follow(client, tasks, cancel),
            nodes: follow(client, tasks, cancel),
            pods: Informer::spawn_indexed(
                kube::Api::all(client.clone()),
                all(),
                |pod: &Pod| pod.spec.as_ref()?.node_name.clone(),
                tasks,
                cancel.clone(),
            ),
            service_accounts: follow(client, tasks, cancel),
            replica_sets: follow(client, tasks, cancel),
            deployments: follow(client, tasks, cancel),
            daemon_sets: follow(client, tasks, cancel),
            jobs: follow(client, tasks, cancel),
            services: Informer::spawn_indexed(
                kube::Api::all(client.clone()),
                all(),
                |service: &Service| service.spec.as_ref()?.type_.clone(),
                tasks,
                cancel.clone(),
            ),
            endpoints: follow(client, tasks, cancel),
            endpoint_slices: follow(client, tasks, cancel),
            stateful_sets: follow(client, tasks, cancel),
            cron_jobs: follow(client, tasks, cancel),
            disruption_budgets: follow(client, tasks, cancel),
            replication_controllers: follow(client, tasks, cancel),
            claims: follow(client, tasks, cancel),
            volumes: follow(client, tasks, cancel),
            root_ca_maps: Informer::spawn(
                kube::Api::all(client.clone()),
                root_ca_maps,
                tasks,
                cancel.clone(),
            ),
            node_leases: Informer::spawn(leases, all(), tasks, cancel.clone()),
        }
    }

    /// Waits until all have been listed.
    ///
    /// # Errors
    /// When one was not within `deadline`.
    pub async fn wait_synced(&self, deadline: Duration) -> Result<(), davit_client::Error> {
        tokio::try_join!(
            self.namespaces.wait_synced(deadline),
            self.nodes.wait_synced(deadline),
            self.pods.wait_synced(deadline),
            self.service_accounts.wait_synced(deadline),
            self.replica_sets.wait_synced(deadline),
            self.deployments.wait_synced(deadline),
            self.daemon_sets.wait_synced(deadline),
            self.jobs.wait_synced(deadline),
            self.services.wait_synced(deadline),
            self.endpoints.wait_synced(deadline),
            self.endpoint_slices.wait_synced(deadline),
            self.stateful_sets.wait_synced(deadline),
            self.cron_jobs.wait_synced(deadline),
            self.disruption_budgets.wait_synced(deadline),
            self.replication_controllers.wait_synced(deadline),
            self.claims.wait_synced(deadline),
            self.volumes.wait_synced(deadline),
            self.root_ca_maps.wait_synced(deadline),
            self.node_leases.wait_synced(deadline),
        )?;
        Ok(())
    }
}
