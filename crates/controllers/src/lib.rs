//! The controllers of a cluster, one file or folder each.
//!
//! A controller observes through informers, is handed one key at a time by a work queue, reads the latest state, plans
//! what is missing and applies it; it is level-triggered and idempotent. All of them run against any Kubernetes API
//! server. What each does is documented upstream under the name of its file. Those of devices and of volumes have crates of
//! their own, and are started here.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::needless_pass_by_value,
        reason = "tests hand over what they write in place"
    )
)]

mod bootstrap_tokens;
mod certificates;
mod cluster_dns;
mod clusterrole_aggregation;
mod cronjob;
mod daemonset;
mod deployment;
mod disruption;
mod endpoint_slices;
mod endpoints;
mod garbage_collector;
mod horizontal;
mod job;
mod load_balancer;
mod namespace;
mod node_fit;
mod node_ipam;
mod node_lifecycle;
mod node_routes;
mod node_ttl;
mod pod_certificates;
mod pod_control;
mod pod_gc;
mod pod_group_protection;
mod policy_status;
mod replicas;
mod replicaset;
mod replication_controller;
mod resource_quota;
mod revisions;
mod root_ca;
#[cfg(test)]
mod served;
mod service_account;
mod service_cidrs;
mod statefulset;
mod storage_version_gc;
mod storage_version_migrator;
mod taint_eviction;
mod token_secrets;
mod trust_bundle;
mod ttl_after_finished;
mod unserved;

use davit_api::features::{
    Features, GENERIC_WORKLOAD, STORAGE_VERSION_MIGRATOR, WORKLOAD_CLAIMS, WORKLOAD_WITH_JOB,
};
use davit_flexvolume::{DEFAULT_PLUGIN_DIR, FlexDrivers};
use davit_reconcile::{COMPONENT, Informers, Spawner};
use davit_task::{TaskEnded, Tasks};
use futures::FutureExt;
use futures::future::BoxFuture;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

pub use certificates::{Authority, AuthorityError};
pub use davit_autoscaling::AutoscalerSettings;
pub use davit_reconcile::{
    AccountClients, ControllerSelection, Error, SelectionError, controller_names,
};
pub use load_balancer::LoadBalancing;
pub use node_ipam::{ClusterRange, NodeRanges};
pub use node_lifecycle::NodeMonitor;
pub use token_secrets::TokenSigner;

/// What the controllers need to know beyond what the API tells them.
#[derive(Debug, Default)]
pub struct Options {
    /// Which controllers run.
    pub selection: ControllerSelection,
    /// How many keys a controller works on at a time, by its name as in the selection, where that is not its usual number.
    pub concurrency: BTreeMap<&'static str, usize>,
    /// How closely nodes are watched.
    pub node_monitor: NodeMonitor,
    /// How many pods that have ended may stay before the oldest of them are deleted; all with 0.
    pub terminated_pods: usize,
    /// What counts for autoscalers that do not say otherwise.
    pub autoscaling: AutoscalerSettings,
    /// The cluster's CA in PEM, published as ConfigMap `kube-root-ca.crt` in each namespace and as ClusterTrustBundle of
    /// `kubernetes.io/kube-apiserver-serving`. Nothing is published without.
    pub root_ca: Option<String>,
    /// Signs approved certificate requests of the built-in signers. Nothing is signed without.
    pub authority: Option<Authority>,
    /// Fills Secrets of type `kubernetes.io/service-account-token`. They are left alone without.
    pub token_signer: Option<TokenSigner>,
    /// Gives nodes ranges of addresses for their pods. They get none without.
    pub node_ranges: Option<NodeRanges>,
    /// The address of the Service `kube-dns`, which is made when nodes answer questions for names. None is made without.
    pub dns_addresses: Vec<IpAddr>,
    /// Where Services of type LoadBalancer have their addresses from.
    pub load_balancing: LoadBalancing,
    /// Makes the class `standard` of davit's own provisioner, the default where there is no other, once in the cluster's
    /// life.
    pub default_storage_class: bool,
    /// Where the executables of FlexVolume drivers are; the kubelet's default directory without.
    pub flex_volume_plugin_dir: Option<PathBuf>,
    /// Feature gates: groups of pods are looked after with `GenericWorkload`, their claims with `DRAWorkloadResourceClaims`; with
    /// `WorkloadWithJob` they are made for jobs. Objects are written anew with `StorageVersionMigrator`.
    pub features: Features,
}

/// All controllers over one set of informers.
pub struct Controllers {
    client: kube::Client,
    accounts: Option<AccountClients>,
    options: Options,
    sync: ControllersSync,
}

/// Whether controllers know their cluster: for who is asked while they run.
#[derive(Debug, Clone, Default)]
pub struct ControllersSync {
    lists: Arc<AtomicBool>,
}

impl ControllersSync {
    /// Whether the controllers have listed everything, or have nothing to list because they do not run: another replica's do.
    pub fn is_idle_or_synced(&self) -> bool {
        !self.lists.load(Ordering::Relaxed)
    }
}

/// How long the informers may take to list everything before that is worth a warning.
const SYNC_WARNING: Duration = Duration::from_secs(30);

impl Controllers {
    /// The controllers of the cluster that `client` reaches.
    pub fn new(client: kube::Client, options: Options) -> Self {
        Self {
            client,
            accounts: None,
            options,
            sync: ControllersSync::default(),
        }
    }

    /// The same, each as a service account of its own in `kube-system` as far as Kubernetes has one for it: what these clients
    /// are asked for is what it has rights to. Lists and watches, and what only davit's controllers do, stay with all of them.
    #[must_use]
    pub fn with_accounts(mut self, accounts: AccountClients) -> Self {
        self.accounts = Some(accounts);
        self
    }

    /// Whether they know their cluster, also while they run.
    pub fn sync(&self) -> ControllersSync {
        self.sync.clone()
    }

    /// Runs all controllers until `cancel` is cancelled.
    ///
    /// # Errors
    /// When a task ended without which they cannot go on; they can be run again.
    pub fn run(self, cancel: CancellationToken) -> BoxFuture<'static, Result<(), TaskEnded>> {
        self.run_until(cancel).boxed()
    }

    async fn run_until(self, cancel: CancellationToken) -> Result<(), TaskEnded> {
        // Whatever ends the run ends its tasks.
        let cancel = cancel.child_token();
        let _guard = cancel.clone().drop_guard();
        let mut tasks = Tasks::new(COMPONENT, cancel.clone());
        self.sync.lists.store(true, Ordering::Relaxed);
        let informers = Informers::spawn(&self.client, tasks.set(), &cancel);
        loop {
            let synced = tokio::select! {
                () = cancel.cancelled() => return Ok(()),
                synced = informers.wait_synced(SYNC_WARNING) => synced,
            };
            let Err(error) = synced else { break };
            tracing::warn!(%error, "controllers wait for the API server");
        }
        self.sync.lists.store(false, Ordering::Relaxed);
        let mut spawner = Spawner {
            shared: self.client.clone(),
            client: self.client,
            accounts: self.accounts,
            selection: self.options.selection,
            concurrency: Arc::new(self.options.concurrency),
            workers: None,
            informers,
            tasks: &mut tasks,
            cancel: cancel.clone(),
        };
        namespace::spawn(&mut spawner);
        service_account::spawn(&mut spawner);
        let signer = self.options.token_signer;
        token_secrets::spawn(&mut spawner, signer, self.options.root_ca.clone());
        if let Some(ca) = self.options.root_ca {
            root_ca::spawn(&mut spawner, ca.clone());
            trust_bundle::spawn(&mut spawner, ca);
        }
        bootstrap_tokens::spawn(&mut spawner);
        certificates::spawn(&mut spawner, self.options.authority);
        pod_certificates::spawn(&mut spawner);
        clusterrole_aggregation::spawn(&mut spawner);
        node_lifecycle::spawn(&mut spawner, self.options.node_monitor);
        taint_eviction::spawn(&mut spawner);
        node_ttl::spawn(&mut spawner);
        node_routes::spawn(&mut spawner);
        if let Some(ranges) = self.options.node_ranges {
            node_ipam::spawn(&mut spawner, ranges);
        }
        pod_gc::spawn(&mut spawner, self.options.terminated_pods);
        let features = &self.options.features;
        let groups = features.is_on(GENERIC_WORKLOAD);
        let groups = groups.then(|| spawner.informer_indexed(job::gang::workload_of));
        if let Some(groups) = &groups {
            pod_group_protection::spawn(&mut spawner, groups);
        }
        if features.is_on(STORAGE_VERSION_MIGRATOR) {
            storage_version_migrator::spawn(&mut spawner);
        }
        storage_version_gc::spawn(&mut spawner);
        policy_status::spawn(&mut spawner);
        replicaset::spawn(&mut spawner);
        deployment::spawn(&mut spawner);
        daemonset::spawn(&mut spawner);
        let of_jobs = groups.clone().filter(|_| features.is_on(WORKLOAD_WITH_JOB));
        job::spawn(&mut spawner, of_jobs);
        ttl_after_finished::spawn(&mut spawner);
        cronjob::spawn(&mut spawner);
        statefulset::spawn(&mut spawner);
        replication_controller::spawn(&mut spawner);
        disruption::spawn(&mut spawner);
        horizontal::spawn(&mut spawner, self.options.autoscaling);
        let flex_drivers = self.options.flex_volume_plugin_dir;
        let flex_drivers = flex_drivers.unwrap_or_else(|| DEFAULT_PLUGIN_DIR.into());
        davit_volumecontrollers::spawn(
            &mut spawner,
            self.options.default_storage_class,
            FlexDrivers::new(flex_drivers),
        );
        service_cidrs::spawn(&mut spawner);
        endpoints::spawn(&mut spawner);
        endpoint_slices::spawn(&mut spawner);
        endpoint_slices::mirroring::spawn(&mut spawner);
        load_balancer::spawn(&mut spawner, self.options.load_balancing);
        unserved::spawn(&mut spawner);
        let with_claims = groups.as_ref().filter(|_| features.is_on(WORKLOAD_CLAIMS));
        let claims = davit_devicecontrollers::spawn(&mut spawner, with_claims);
        resource_quota::spawn(&mut spawner, &claims);
        if !self.options.dns_addresses.is_empty() {
            cluster_dns::spawn(&mut spawner, self.options.dns_addresses);
        }
        garbage_collector::spawn(&mut spawner);
        tokio::select! {
            () = cancel.cancelled() => Ok(()),
            ended = tasks.failed() => Err(ended),
        }
    }
}
