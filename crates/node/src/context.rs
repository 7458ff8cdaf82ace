//! What all parts of the node share.

use crate::addresses::HostAddresses;
use crate::csi::Registrar;
use crate::eviction::Condition;
use crate::eviction::images::Collector;
use crate::metrics::Metrics;
use crate::options::NodeOptions;
use crate::pod_table::PodTable;
use crate::probes::Results;
use crate::status_manager::StatusManager;
use crate::users::UserRanges;
use davit_cadvisor::CpuRates;
use davit_client::{EventRecorder, Informer};
use davit_containermanager::{ActivePods, ContainerManager};
use davit_machine::{MachineFacts, PodCgroups};
use davit_oci::runtime::Runtime;
use davit_podimages::ImageManager;
use davit_pods::env::NodeFacts;
use davit_pods::objects::ObjectSource;
use davit_pods::paths::Paths;
use davit_pods::pod::PodExt;
use davit_pods::resources::{LimitRules, Qos};
use davit_podvolumes::Volumes;
use davit_proto::cri::v1 as cri;
use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod, Service};
use kube::Api;
use std::sync::Arc;
use tokio::sync::watch;

/// Shared by the pod workers, the node server and the status loop.
pub(crate) struct Context {
    /// The options the agent was made with.
    pub options: NodeOptions,
    /// Client of the API server.
    pub client: kube::Client,
    /// The same without a limit of requests, for what shows that the node lives.
    pub heartbeats: kube::Client,
    /// The container runtime.
    pub runtime: Arc<dyn Runtime>,
    /// The runtime's name, the scheme of container IDs.
    pub runtime_name: String,
    /// Whether all of its handlers make mounts read-only with what is mounted below them.
    pub recursive_mounts: bool,
    /// Directories.
    pub paths: Paths,
    /// The machine.
    pub machine: MachineFacts,
    /// Addresses of the node.
    pub addresses: HostAddresses,
    /// The host's name resolution.
    pub host_dns: cri::DnsConfig,
    /// The cgroups above containers, where the agent keeps them.
    pub cgroups: Option<PodCgroups>,
    /// Devices.
    pub devices: ContainerManager,
    /// The pods.
    pub pods: Arc<PodTable>,
    /// Statuses on their way to the API.
    pub status: StatusManager,
    /// Volumes.
    pub volumes: Volumes,
    /// CSI drivers of this node.
    pub registrar: Arc<Registrar>,
    /// Users of pods that are not the host's.
    pub users: UserRanges,
    /// Images.
    pub images: ImageManager,
    /// What removes them.
    pub image_collector: Collector,
    /// What runs short on the node.
    pub pressure: watch::Sender<Vec<Condition>>,
    /// ConfigMaps, Secrets, tokens.
    pub objects: Arc<dyn ObjectSource>,
    /// Probe results.
    pub probes: Arc<Results>,
    /// Events.
    pub recorder: EventRecorder,
    /// Services, for environment variables.
    pub services: Informer<Service>,
    /// This node's object.
    pub node: Informer<Node>,
    /// Metrics.
    pub metrics: Metrics,
    /// How fast processor time was used between looks at it.
    pub cpu_rates: CpuRates,
}

impl Context {
    /// All services that are known.
    pub(crate) fn services(&self) -> Vec<Arc<Service>> {
        self.services.list()
    }

    /// How many pods the node takes.
    pub(crate) fn max_pods(&self) -> u32 {
        let options = &self.options;
        let by_cpus = options.pods_per_core.map(|each| {
            let cpus = u32::try_from(self.machine.cpus).unwrap_or(u32::MAX);
            each.saturating_mul(cpus)
        });
        by_cpus.map_or(options.max_pods, |most| most.min(options.max_pods))
    }

    /// The cgroup of a pod's containers.
    pub(crate) fn pod_cgroup(&self, pod: &Pod) -> String {
        let options = &self.options;
        options.cgroup_driver.pod_cgroup(&options.cgroup_root, pod)
    }

    /// Brings the weights and limits of a pod's cgroup to what the pod has now, and those of its class to what all pods
    /// of it have.
    ///
    /// # Errors
    /// The cgroup that cannot be made or limited.
    pub(crate) fn limit_pod(&self, pod: &Pod) -> Result<(), davit_oci::cgroup::Error> {
        let Some(groups) = &self.cgroups else {
            return Ok(());
        };
        if Qos::of(pod) == Qos::Burstable || groups.keeps_memory() {
            groups.weigh(self.pods.active_pods().iter().map(|pod| &**pod))?;
        }
        groups.ensure(pod, self.is_unthrottled(pod))
    }

    /// What limits of containers follow from, beside the pod.
    pub(crate) fn limit_rules(&self) -> LimitRules {
        let (machine, host) = (&self.machine, &self.options.host);
        LimitRules {
            memory: machine.memory,
            swap: machine.swap,
            swapping: machine.counts_swap.then_some(host.swap),
            hugepage_sizes: machine.hugepage_sizes(),
            unified: machine.unified_cgroup,
            single_kill: host.single_process_oom_kill.unwrap_or(false),
            quotas: host.quotas,
        }
    }

    /// Whether a container of the pod has CPUs to itself, and therefore no quota.
    pub(crate) fn is_unthrottled(&self, pod: &Pod) -> bool {
        let holds = |name: &str| self.devices.compute_options(pod.uid(), name).unthrottled;
        pod.all_containers()
            .iter()
            .any(|(_, container)| holds(&container.name))
    }

    /// This node as its watch has it; `None` also before the watch has begun.
    pub(crate) fn node_object(&self) -> Option<Arc<Node>> {
        self.node.get(None, &self.options.node_name)
    }

    /// This node as the API has it, `None` when it is not registered. It is read where its watch has not begun, which
    /// may take long: a watch that fails is tried ever later.
    ///
    /// # Errors
    ///
    /// The API server cannot be reached or refuses.
    pub(crate) async fn registered_node(&self) -> Result<Option<Arc<Node>>, kube::Error> {
        if let Some(node) = self.node_object() {
            return Ok(Some(node));
        }
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = nodes.get_opt(&self.options.node_name).await?;
        Ok(node.map(Arc::new))
    }

    /// What events about this node refer to. The kubelet puts the node's name in the place of its UID.
    pub(crate) fn node_reference(&self) -> ObjectReference {
        node_reference(&self.options.node_name)
    }

    /// What the downward API may show to a pod with these addresses.
    pub(crate) fn facts(&self, pod: &Pod, pod_ips: &[String]) -> NodeFacts {
        let node = self.node_object();
        let status = node.as_ref().and_then(|n| n.status.as_ref());
        let allocatable = status.and_then(|s| s.allocatable.clone());
        let labels = node.as_ref().and_then(|n| n.metadata.labels.clone());
        let pod_ips = if pod.host_network() {
            self.addresses.texts()
        } else {
            pod_ips.to_vec()
        };
        NodeFacts {
            host_ips: self.addresses.texts(),
            pod_ips,
            allocatable: allocatable.unwrap_or_default(),
            labels: labels.unwrap_or_default(),
        }
    }
}

/// What events about the node of this name refer to.
pub(crate) fn node_reference(name: &str) -> ObjectReference {
    let name = Some(name.to_owned());
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        uid: name.clone(),
        name,
        ..ObjectReference::default()
    }
}
