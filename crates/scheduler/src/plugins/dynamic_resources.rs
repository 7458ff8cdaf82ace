//! Devices by resource claims (KEP-4381): looks for devices on each node, books those of the chosen
//! one, writes them into the claims before the pod is bound, and frees claims that are in the way.

mod adopt;
mod bind;
pub(crate) mod claims;
mod conditions;
mod extended;
mod held;
mod node_resources;
mod points;
mod reserve;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use davit_allocator::{
    Allocation, Allocator, Call, Features, NodeMatcher, NodeView, Picture, Plan, Question, Stop,
};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimConsumerReference};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::config::DynamicResourcesTimeouts;
use crate::devices::{Devices, reserved_for};
use crate::node::NodeInfo;
use crate::pod::PodInfo;
use crate::pod_groups::PodGroups;
use crate::resources::TakenByClaim;
pub(crate) use adopt::Adoption;
use extended::Wanted;
pub(crate) use held::{HeldClaim, held};

/// The plugin's name.
pub(crate) const NAME: &str = "DynamicResources";
/// The finalizer of allocated claims.
pub(crate) const FINALIZER: &str = "resource.kubernetes.io/delete-protection";

/// How many times as long as for one pod it may take to look for the devices of all pods of a group.
const GROUP: u32 = 3;

/// The arguments of the plugin, as in KubeSchedulerConfiguration.
#[derive(Debug, Clone, Copy)]
pub struct DynamicResourcesArgs {
    /// How long looking for devices may take in one attempt; zero: as long as it takes.
    pub filter_timeout: Duration,
    /// How long binding conditions may take.
    pub binding_timeout: Duration,
    /// The feature gates of the allocator.
    pub features: Features,
}

impl Default for DynamicResourcesArgs {
    fn default() -> Self {
        Self {
            filter_timeout: Duration::from_secs(10),
            binding_timeout: Duration::from_secs(600),
            // an API server that does not want lists drops them
            features: Features {
                list_attributes: true,
                ..Features::default()
            },
        }
    }
}

impl From<&DynamicResourcesTimeouts> for DynamicResourcesArgs {
    fn from(timeouts: &DynamicResourcesTimeouts) -> Self {
        Self {
            filter_timeout: timeouts.filter_timeout.unsigned_abs(),
            binding_timeout: timeouts.binding_timeout.unsigned_abs(),
            ..Self::default()
        }
    }
}

/// The plugin `DynamicResources`.
pub struct DynamicResources {
    client: Option<kube::Client>,
    devices: Devices,
    args: DynamicResourcesArgs,
    groups: PodGroups,
}

impl DynamicResources {
    /// A plugin that decides by what `devices` knows. Without a client it writes nothing.
    pub fn new(client: Option<kube::Client>, devices: Devices, args: DynamicResourcesArgs) -> Self {
        Self {
            client,
            devices,
            args,
            groups: PodGroups::default(),
        }
    }

    /// Whether devices may have to be looked for before the pod has a node.
    pub(crate) fn may_search(&self, pod: &PodInfo) -> bool {
        claims::has_claims(pod) || !Wanted::new(&self.devices, pod).0.is_empty()
    }

    /// With the groups whose claims pods share; none by default.
    #[must_use]
    pub fn with_groups(self, groups: PodGroups) -> Self {
        Self { groups, ..self }
    }
}

/// What the plugin remembers between the points of a cycle.
#[derive(Clone)]
struct Data {
    cycle: Arc<Cycle>,
    /// Pods that are imagined away (preemption), by UID, with their claims.
    gone: BTreeMap<String, Vec<Arc<ResourceClaim>>>,
}

/// What is known of a group in an attempt. Plugins find it in the state of a pod that is tried with its group.
#[derive(Debug, Clone)]
pub(crate) struct GroupAllocations {
    /// Claims, by UID, whose allocations were decided for pods of the group in this attempt: the others may use them at once.
    claims: Arc<Mutex<HashSet<String>>>,
    /// When the attempt began: all pods of the group, and all placements that are tried, have a time together.
    began: Instant,
    /// Pods of the group had nodes before the attempt.
    runs: bool,
    /// Pods of others that are imagined away for the group, of those that hold devices.
    gone: Arc<Mutex<Vec<Arc<PodInfo>>>>,
}

impl GroupAllocations {
    /// An attempt, begun then, for a group of which some pods have nodes, or none.
    pub(crate) fn new(runs: bool, began: Instant) -> Self {
        Self {
            claims: Arc::default(),
            began,
            runs,
            gone: Arc::default(),
        }
    }

    /// When looking for devices has to end, if it may take so long for one pod.
    fn deadline(&self, of_one: Duration) -> Instant {
        self.began + of_one.saturating_mul(GROUP)
    }

    /// Takes over which pods of others are imagined away.
    pub(crate) fn set_gone<'a>(&self, pods: impl Iterator<Item = &'a Arc<PodInfo>>) {
        let holding = pods.filter(|pod| claims::may_hold_devices(pod));
        *self.gone.lock() = holding.cloned().collect();
    }
}

/// What has been found out about the pod's claims in this cycle.
struct Cycle {
    /// The pod's claims, each once, in the order of the pod's list.
    claims: Vec<Arc<ResourceClaim>>,
    /// By claim: whom it is to be reserved for.
    consumers: Vec<ResourceClaimConsumerReference>,
    /// Those without allocation, by index.
    pending: Vec<usize>,
    /// Those whose allocation was decided for another pod of the group, by index.
    shared: Vec<usize>,
    /// By claim: the nodes from which its allocation can be used; `None`: all, or no allocation.
    nodes: Vec<Option<NodeMatcher>>,
    /// By claim: its allocation has failed and is only waiting to be taken back.
    failed: Vec<bool>,
    /// `None` as well from Reserve on: booking would have to copy what somebody still holds.
    search: Mutex<Option<Arc<Searcher>>>,
    /// Extended resources of the pod that classes stand for.
    wanted: Wanted,
    /// An extended-resource claim of an earlier attempt.
    leftover: Option<Arc<ResourceClaim>>,
    notes: Mutex<Notes>,
}

/// The allocator with the claims made ready for it.
struct Searcher {
    allocator: Allocator,
    /// When what the allocator works on was read.
    picture: Picture,
    /// By the extended resources that are to come from devices.
    plans: Mutex<BTreeMap<Vec<String>, Arc<Planned>>>,
    deadline: Option<Instant>,
}

impl Searcher {
    /// Whether there is no time left to look for devices.
    fn is_over(&self) -> bool {
        self.deadline.is_some_and(|d| Instant::now() >= d)
    }
}

/// Claims to be allocated together.
struct Planned {
    plan: Plan,
    /// Under which answers of nodes are kept.
    question: Option<Question>,
    /// The claim for extended resources, as it would be created; last in the plan.
    extended: Option<extended::Claim>,
    /// The nodes that are known to have too few devices, by their place among those that answer. Made when there is one:
    /// then there are often thousands.
    missing: OnceLock<Vec<bool>>,
}

/// What the points of a cycle tell each other.
#[derive(Default)]
struct Notes {
    found: HashMap<Arc<str>, NodeWithDevices>,
    /// By node: what the devices found for the pod take of the node's own resources. From Reserve on only of the chosen one.
    taken: HashMap<Arc<str>, Arc<[TakenByClaim]>>,
    /// Whether that may stand in the pod's status.
    recorded: bool,
    /// Allocated claims that ruled out a node.
    unavailable: BTreeSet<usize>,
    /// What Reserve has decided: by claim UID.
    reserved: Vec<Reserved>,
    /// Claims that PreBind has written, as they are now.
    written: Vec<Arc<ResourceClaim>>,
    /// The extended-resource claim PreBind has created.
    created: Option<Arc<ResourceClaim>>,
    /// Claims of which nobody knows whether what was decided is written, by the UID under which it is booked.
    doubtful: Vec<(String, Arc<ResourceClaim>)>,
}

/// A node on which there are devices.
#[derive(Clone)]
struct NodeWithDevices {
    planned: Arc<Planned>,
    /// For each request with alternatives the index of the one that is taken.
    chosen: Arc<[usize]>,
    node: Option<Arc<Node>>,
    /// Which devices. A node that answered before is asked again only if somebody wants to know.
    allocation: Option<Allocation>,
}

impl Cycle {
    /// Whether a claim is reserved as it is to be, by index.
    fn is_reserved(&self, at: usize) -> bool {
        let consumer = &self.consumers[at];
        reserved_for(&self.claims[at]).any(|user| user == consumer.uid)
    }

    /// Allocated claims that cannot be used from a node.
    fn unavailable_on(&self, node: &NodeInfo) -> impl Iterator<Item = usize> {
        (0..self.claims.len()).filter(move |&i| {
            let elsewhere = |n: &NodeMatcher| !n.matches(node.view());
            self.failed[i] || self.nodes[i].as_ref().is_some_and(elsewhere)
        })
    }

    fn searcher(&self) -> Option<Arc<Searcher>> {
        self.search.lock().clone()
    }

    /// Whether a node was found to have devices for the pod.
    fn is_found_on(&self, node: &str) -> bool {
        self.notes.lock().found.contains_key(node)
    }

    /// Which devices a node has for the pod; `None` if it was not found to have any, or if it has to be stopped before it is known.
    fn allocation_on(&self, name: &str, stop: Stop<'_>) -> Option<(Allocation, Arc<Planned>)> {
        let found = self.notes.lock().found.get(name).cloned()?;
        if let Some(known) = found.allocation {
            return Some((known, found.planned));
        }
        let none = BTreeMap::new();
        let labels = found.node.as_ref().and_then(|n| n.metadata.labels.as_ref());
        let call = Call {
            node: NodeView {
                name,
                labels: labels.unwrap_or(&none),
            },
            released: None,
            stop,
            share_id: &points::uuid,
        };
        let search = self.searcher()?;
        let answer = search.allocator.allocate(&found.planned.plan, call);
        // What it found before it finds again, for it looks at the same.
        let allocation = answer.ok().flatten()?;
        if let Some(found) = self.notes.lock().found.get_mut(name) {
            found.allocation = Some(allocation.clone());
        }
        Some((allocation, found.planned))
    }
}

/// A decided allocation.
#[derive(Clone)]
struct Reserved {
    /// The claim's UID, or a made-up one while an extended-resource claim does not exist.
    key: String,
    /// `None`: the claim for extended resources.
    claim: Option<usize>,
    allocation: k8s_openapi::api::resource::v1::AllocationResult,
    /// `None`: the allocation was decided for another pod of the group.
    planned: Option<Arc<Planned>>,
}
