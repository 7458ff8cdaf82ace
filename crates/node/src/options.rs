//! How a node agent works.

use crate::access::AccessOptions;
use crate::dns::ClusterDns;
use crate::eviction;
use crate::eviction::images::Policy as ImagePolicy;
use crate::host_rules::HostRules;
use crate::network_abilities::NetworkAbilities;
use crate::reporting::Reporting;
use crate::served::ServedPaths;
use crate::shutdown::Shutdown;
use crate::sysctls::Allowlist;
use davit_api::features::Features;
use davit_client::RequestRate;
use davit_containermanager::Rate;
use davit_containermanager::compute::Settings;
use davit_containermanager::devices::UnhealthyPolicies;
use davit_listen::TlsPolicy;
use davit_listen::addresses::default_address;
use davit_machine::{CgroupDriver, CgroupOptions};
use davit_nodelogs::LogRotation;
use davit_oci::runtime::Runtime;
use davit_podimages::credentials::CredentialOptions;
use davit_podimages::{PullLimits, Verification};
use davit_pods::backoff::RestartDelays;
use davit_pods::resources::Amounts;
use k8s_openapi::api::core::v1::Taint;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// `streamingConnectionIdleTimeout` unless it is configured, as the kubelet's.
pub(crate) const DEFAULT_SESSION_IDLE: Duration = Duration::from_secs(4 * 3600);

/// How often the directory of static pods is read at least: the kubelet is told of changes there at once, whatever its
/// `fileCheckFrequency`.
pub(crate) const MANIFEST_CHECK: Duration = Duration::from_secs(2);

/// How a node agent works. [`NodeOptions::new`] gives the defaults.
#[derive(Clone)]
pub struct NodeOptions {
    /// Name of the Node object.
    pub node_name: String,
    /// The agent's directory, the equivalent of `/var/lib/kubelet`.
    pub root_dir: PathBuf,
    /// Where pod logs go, the equivalent of `/var/log/pods`.
    pub log_dir: PathBuf,
    /// The container runtime.
    pub runtime: Arc<dyn Runtime>,
    /// What the network of this node's pods does beyond connecting them.
    pub network: NetworkAbilities,
    /// Whether the runtime labels processes and files for SELinux, as others than davit's own do.
    pub se_linux: bool,
    /// Directory of static pods.
    pub static_pod_dir: Option<PathBuf>,
    /// Address the node server binds to.
    pub address: IpAddr,
    /// Its port; 0 takes any free one.
    pub port: u16,
    /// Addresses of the node; found out when empty.
    pub node_ips: Vec<IpAddr>,
    /// Families of which the machine's own addresses are followed, each by the address that stands for all; none where `node_ips`
    /// are for good.
    pub ip_families: Vec<IpAddr>,
    /// Certificates (PEM) of the CA that signs clients of the node server; without it only bearer tokens are taken.
    pub client_ca: Option<Vec<u8>>,
    /// Who the callers of the node server are, and who decides what they may.
    pub access: AccessOptions,
    /// Which paths are answered, and whether there is a server at all.
    pub served: ServedPaths,
    /// Where health is asked without TLS, as by kubeadm.
    pub healthz: Option<SocketAddr>,
    /// Certificate chain and key (PEM) of the node server; a self-signed one is made when not given.
    pub serving_certificate: Option<(Vec<u8>, Vec<u8>)>,
    /// Which versions and suites of TLS the server offers (`tlsMinVersion`, `tlsCipherSuites`).
    pub tls: TlsPolicy,
    /// The files it and its key were read from, where a configuration names them.
    pub serving_files: Option<[PathBuf; 2]>,
    /// Ask for the certificate of the node server by CertificateSigningRequest (`serverTLSBootstrap`).
    pub server_tls_bootstrap: bool,
    /// More labels of the node.
    pub labels: BTreeMap<String, String>,
    /// More annotations of the node.
    pub annotations: BTreeMap<String, String>,
    /// Taints that the node is registered with.
    pub taints: Vec<Taint>,
    /// Whether logs of services can be asked for by query (`enableSystemLogQuery`).
    pub system_log_query: bool,
    /// How the Node object and its lease are made and kept.
    pub reporting: Reporting,
    /// `status.capacity.pods`.
    pub max_pods: u32,
    /// Most pods for each CPU of the machine; `max_pods` alone counts without (`podsPerCore`).
    pub pods_per_core: Option<u32>,
    /// The sysctls that pods may set.
    pub sysctls: Allowlist,
    /// The cluster's DNS service.
    pub cluster_dns: ClusterDns,
    /// The host's resolver configuration.
    pub resolv_conf: PathBuf,
    /// Prefix of the pods' cgroups, empty for the root.
    pub cgroup_root: String,
    /// How cgroups are named, if the runtime does not say.
    pub cgroup_driver: CgroupDriver,
    /// What is asked of the machine and of this process.
    pub host: HostRules,
    /// The cgroups above containers; the agent leaves them alone without (they need root).
    pub cgroups: Option<CgroupOptions>,
    /// Whether the agent may mount (needs root).
    pub mounts: bool,
    /// Where the executables of FlexVolume drivers are.
    pub volume_plugin_dir: PathBuf,
    /// Where the volumes of davit's own provisioner are kept; the node keeps none without.
    pub local_volumes: Option<PathBuf>,
    /// How often the volumes of pods are measured (`volumeStatsAggPeriod`); they are not without.
    pub volume_stats_period: Option<Duration>,
    /// How long nothing may come or go on a connection of exec, attach or port-forward (`streamingConnectionIdleTimeout`).
    pub session_idle: Duration,
    /// Containers that name no seccomp profile get the runtime's (`seccompDefault`).
    pub seccomp_default: bool,
    /// When logs are rotated.
    pub log_rotation: LogRotation,
    /// How many images are pulled.
    pub pulls: PullLimits,
    /// How many events go out; as many as there are without.
    pub event_rate: Option<RequestRate>,
    /// How many requests go to the API server, events and what shows that the node lives apart; as many as there are without.
    pub request_rate: Option<RequestRate>,
    /// How long containers that end wait until they are started again.
    pub restarts: RestartDelays,
    /// How often the directory of static pods is read.
    pub manifest_check: Duration,
    /// How long admission waits for a device plugin that is coming back.
    pub plugin_wait: Duration,
    /// How long the end of a pod waits for a DRA driver that is gone and has to undo the pod's claims.
    pub driver_patience: Duration,
    /// What happens to pods whose devices become unhealthy.
    pub unhealthy_devices: UnhealthyPolicies,
    /// How many calls the podresources socket takes.
    pub podresources_rate: Rate,
    /// The CPU, memory and topology managers. Without a description of the machine the one at hand is read.
    pub resources: Settings,
    /// Credential provider plugins.
    pub credentials: CredentialOptions,
    /// When pods are evicted because the node runs short of something.
    pub eviction: eviction::Config,
    /// How that is found out.
    pub measure: Arc<dyn eviction::Measure>,
    /// When images are removed.
    pub image_gc: ImagePolicy,
    /// Which pods have to show that they may have an image that is there.
    pub image_verification: Verification,
    /// How long pods have when the machine goes down.
    pub shutdown: Shutdown,
    /// Cancelled when the machine goes down. The agent ends by itself then, if `shutdown` gives pods any time.
    pub going_down: CancellationToken,
    /// Has the node's status computed now, because something outside the agent has changed: pods can be connected.
    pub look: Arc<Notify>,
    /// What is kept for the system and the agent, by resource name (`kubeReserved`, `systemReserved`, eviction).
    pub reserved: Amounts,
    /// Which feature gates are on.
    pub features: Features,
}

impl NodeOptions {
    /// The defaults for a node with this name, directory and runtime.
    pub fn new(
        node_name: impl Into<String>,
        root_dir: impl Into<PathBuf>,
        runtime: Arc<dyn Runtime>,
    ) -> Self {
        let root_dir = root_dir.into();
        let is_root = rustix::process::geteuid().is_root();
        Self {
            node_name: node_name.into(),
            root_dir: root_dir.clone(),
            log_dir: PathBuf::from("/var/log/pods"),
            runtime,
            network: NetworkAbilities::ALL,
            se_linux: true,
            static_pod_dir: None,
            address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            port: 0,
            node_ips: Vec::new(),
            ip_families: Vec::new(),
            client_ca: None,
            access: AccessOptions::default(),
            served: ServedPaths::default(),
            healthz: None,
            serving_certificate: None,
            tls: TlsPolicy::default(),
            serving_files: None,
            server_tls_bootstrap: false,
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            taints: Vec::new(),
            system_log_query: false,
            reporting: Reporting::default(),
            max_pods: 110,
            pods_per_core: None,
            sysctls: Allowlist::default(),
            cluster_dns: ClusterDns {
                servers: Vec::new(),
                domain: "cluster.local".to_owned(),
            },
            resolv_conf: PathBuf::from("/etc/resolv.conf"),
            cgroup_root: String::new(),
            cgroup_driver: CgroupDriver::default(),
            host: HostRules::default(),
            cgroups: is_root.then(CgroupOptions::default),
            mounts: is_root,
            volume_plugin_dir: PathBuf::from(davit_flexvolume::DEFAULT_PLUGIN_DIR),
            local_volumes: None,
            volume_stats_period: Some(Duration::from_secs(60)),
            session_idle: DEFAULT_SESSION_IDLE,
            seccomp_default: false,
            log_rotation: LogRotation::default(),
            pulls: PullLimits::default(),
            event_rate: None,
            request_rate: None,
            restarts: RestartDelays::default(),
            manifest_check: MANIFEST_CHECK,
            plugin_wait: Duration::from_secs(5 * 60),
            driver_patience: Duration::from_secs(60),
            unhealthy_devices: UnhealthyPolicies::default(),
            podresources_rate: Rate::default(),
            resources: Settings::default(),
            credentials: CredentialOptions::default(),
            eviction: eviction::Config::default(),
            measure: Arc::new(eviction::SystemMeasure::new(root_dir.clone())),
            image_gc: ImagePolicy::default(),
            image_verification: Verification::default(),
            shutdown: Shutdown::default(),
            going_down: CancellationToken::new(),
            look: Arc::default(),
            reserved: Amounts::new(),
            features: Features::default(),
        }
    }
    /// The addresses given, or the one bound to, or the one that packets to other networks leave from.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        if !self.node_ips.is_empty() {
            return self.node_ips.clone();
        }
        if !self.address.is_unspecified() {
            return vec![self.address];
        }
        vec![default_address()]
    }

    /// The names by which the node's server is called, for its certificate.
    #[must_use]
    pub fn serving_names(&self) -> Vec<String> {
        let mut names = vec![
            self.node_name.clone(),
            "localhost".to_owned(),
            "127.0.0.1".to_owned(),
        ];
        names.extend(self.addresses().iter().map(ToString::to_string));
        names.sort();
        names.dedup();
        names
    }
}
