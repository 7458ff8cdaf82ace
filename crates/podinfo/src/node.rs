//! A node as the scheduler sees it: the object and the sums over its pods.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use davit_allocator::NodeView;
use davit_api::selector::Labels;
use davit_podrequests::Resources;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Taint};

use crate::pod::{HostPort, PodInfo};

static NO_LABELS: Labels = Labels::new();

/// Address that stands for all addresses of a host.
const ANY_ADDRESS: &str = "0.0.0.0";

/// A node with what its pods hold.
#[derive(Debug, Clone)]
pub struct NodeInfo {
    /// The node's name.
    pub name: Arc<str>,
    /// The object; `None` while only pods of the node are known.
    pub node: Option<Arc<Node>>,
    /// What the node has for pods.
    pub allocatable: Resources,
    /// What its pods hold, assumed ones included.
    pub requested: Resources,
    /// CPU of its pods with the default for containers that state none, in thousandths.
    pub scored_milli_cpu: i64,
    /// Memory of its pods with the default for containers that state none, in bytes.
    pub scored_memory: i64,
    /// Its pods, assumed ones included.
    pub pods: Vec<Arc<PodInfo>>,
    /// Image names on the node, with sizes in bytes.
    pub images: Arc<HashMap<String, i64>>,
    ports: BTreeMap<HostPort, u32>,
    // Copies of what every filter asks first, so that it need not follow pointers into the object.
    unschedulable: bool,
    tainted: bool,
    /// The lowest of its pods; `i32::MAX` without any.
    lowest_priority: i32,
    with_affinity: usize,
    with_anti_affinity: usize,
    /// How many of its pods use a claim.
    claims: HashMap<Arc<str>, u32>,
    /// How many of its pods have ResourceClaims whose devices take of the node's own resources.
    with_claims_of_node: usize,
    /// Another one after every change in the cache; no two nodes have the same. What is imagined keeps that of its original.
    pub generation: u64,
    /// Where the node stands among those that answer for devices, which is looked up once.
    pub answers_at: OnceLock<usize>,
}

impl NodeInfo {
    /// A node of which nothing but the name is known.
    pub fn new(name: Arc<str>) -> Self {
        Self {
            name,
            node: None,
            allocatable: Resources::default(),
            requested: Resources::default(),
            scored_milli_cpu: 0,
            scored_memory: 0,
            pods: Vec::new(),
            images: Arc::default(),
            ports: BTreeMap::new(),
            unschedulable: false,
            tainted: false,
            lowest_priority: i32::MAX,
            with_affinity: 0,
            with_anti_affinity: 0,
            claims: HashMap::new(),
            with_claims_of_node: 0,
            generation: 0,
            answers_at: OnceLock::new(),
        }
    }

    /// Takes over a new state of the object.
    pub fn set_node(&mut self, node: Arc<Node>) {
        let status = node.status.as_ref();
        self.allocatable = status
            .and_then(|s| s.allocatable.as_ref())
            .map(Resources::from_list)
            .unwrap_or_default();
        let images: HashMap<String, i64> = status
            .and_then(|s| s.images.as_ref())
            .into_iter()
            .flatten()
            .flat_map(|image| {
                let size = image.size_bytes.unwrap_or(0);
                image
                    .names
                    .iter()
                    .flatten()
                    .map(move |name| (name.clone(), size))
            })
            .collect();
        if *self.images != images {
            self.images = Arc::new(images);
        }
        let spec = node.spec.as_ref();
        self.unschedulable = spec.and_then(|s| s.unschedulable).unwrap_or(false);
        self.tainted = spec
            .and_then(|s| s.taints.as_ref())
            .is_some_and(|t| !t.is_empty());
        self.node = Some(node);
    }

    /// The node's labels.
    pub fn labels(&self) -> &Labels {
        self.node
            .as_ref()
            .and_then(|n| n.metadata.labels.as_ref())
            .unwrap_or(&NO_LABELS)
    }

    /// The node as the allocator of devices looks at it.
    pub fn view(&self) -> NodeView<'_> {
        NodeView {
            name: &self.name,
            labels: self.labels(),
        }
    }

    /// The value of one label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels().get(key).map(String::as_str)
    }

    /// The node's taints.
    pub fn taints(&self) -> &[Taint] {
        if !self.tainted {
            return &[];
        }
        let spec = self.node.as_ref().and_then(|n| n.spec.as_ref());
        spec.and_then(|s| s.taints.as_deref()).unwrap_or_default()
    }

    /// The node's conditions.
    pub fn conditions(&self) -> &[NodeCondition] {
        let status = self.node.as_ref().and_then(|n| n.status.as_ref());
        status
            .and_then(|s| s.conditions.as_deref())
            .unwrap_or_default()
    }

    /// Whether the node is marked unschedulable.
    pub fn is_unschedulable(&self) -> bool {
        self.unschedulable
    }

    /// Region and zone, by which the order of nodes is spread.
    pub fn zone(&self) -> (&str, &str) {
        let label = |key| self.label(key).unwrap_or_default();
        (
            label("topology.kubernetes.io/region"),
            label("topology.kubernetes.io/zone"),
        )
    }

    /// Whether a pod of the node has pod affinity or anti-affinity, required or preferred.
    pub fn has_affinity(&self) -> bool {
        self.with_affinity > 0
    }

    /// Whether a pod of the node has required anti-affinity.
    pub fn has_anti_affinity(&self) -> bool {
        self.with_anti_affinity > 0
    }

    /// The pods of a lower priority than this.
    pub fn pods_below(&self, priority: i32) -> impl Iterator<Item = &Arc<PodInfo>> {
        // Most often there are none, and who asks asks every node.
        let some = self.lowest_priority < priority;
        let pods = if some { self.pods.as_slice() } else { &[] };
        pods.iter().filter(move |p| p.priority < priority)
    }

    /// Whether a pod of the node uses a claim.
    pub fn has_claims(&self) -> bool {
        !self.claims.is_empty()
    }

    /// How many of the node's pods use this claim.
    pub fn claim_users(&self, claim: &str) -> u32 {
        self.claims.get(claim).copied().unwrap_or(0)
    }

    /// The pods of the node that have a ResourceClaim whose devices take of the node's own resources.
    pub fn takers_of_claim(
        &self,
        namespace: &str,
        claim: &str,
    ) -> impl Iterator<Item = &Arc<PodInfo>> {
        // Most nodes have none at all.
        let some = self.with_claims_of_node > 0;
        let pods = if some { self.pods.as_slice() } else { &[] };
        pods.iter().filter(move |pod| {
            *pod.namespace == *namespace && pod.claims_of_node.iter().any(|c| **c == *claim)
        })
    }

    /// Adds a pod.
    pub fn add_pod(&mut self, pod: Arc<PodInfo>) {
        self.requested.add(&pod.requests.requests);
        self.scored_milli_cpu += pod.requests.scored_milli_cpu;
        self.scored_memory += pod.requests.scored_memory;
        for port in &pod.host_ports {
            *self.ports.entry(port.clone()).or_default() += 1;
        }
        for claim in &pod.claims {
            *self.claims.entry(claim.clone()).or_default() += 1;
        }
        self.with_affinity += usize::from(pod.has_affinity());
        self.with_anti_affinity += usize::from(!pod.anti_affinity.is_empty());
        self.with_claims_of_node += usize::from(!pod.claims_of_node.is_empty());
        self.lowest_priority = self.lowest_priority.min(pod.priority);
        self.pods.push(pod);
    }

    /// Removes the pod of this UID; whether it was there.
    pub fn remove_pod(&mut self, uid: &str) -> bool {
        let Some(at) = self.pods.iter().position(|p| &*p.uid == uid) else {
            return false;
        };
        let pod = self.pods.swap_remove(at);
        self.requested.sub(&pod.requests.requests);
        self.scored_milli_cpu -= pod.requests.scored_milli_cpu;
        self.scored_memory -= pod.requests.scored_memory;
        for port in &pod.host_ports {
            if let Some(users) = self.ports.get_mut(port) {
                *users -= 1;
                if *users == 0 {
                    self.ports.remove(port);
                }
            }
        }
        for claim in &pod.claims {
            if let Some(users) = self.claims.get_mut(claim) {
                *users -= 1;
                if *users == 0 {
                    self.claims.remove(claim);
                }
            }
        }
        self.with_affinity -= usize::from(pod.has_affinity());
        self.with_anti_affinity -= usize::from(!pod.anti_affinity.is_empty());
        self.with_claims_of_node -= usize::from(!pod.claims_of_node.is_empty());
        if pod.priority == self.lowest_priority {
            let lowest = self.pods.iter().map(|p| p.priority).min();
            self.lowest_priority = lowest.unwrap_or(i32::MAX);
        }
        true
    }

    /// Whether a host port is taken: the same port and protocol on the same address, or on all.
    pub fn port_conflicts(&self, port: &HostPort) -> bool {
        let from = HostPort {
            protocol: String::new(),
            ip: String::new(),
            ..port.clone()
        };
        self.ports
            .range(from..)
            .take_while(|(used, _)| used.port == port.port)
            .any(|(used, _)| {
                used.protocol == port.protocol
                    && (used.ip == port.ip || used.ip == ANY_ADDRESS || port.ip == ANY_ADDRESS)
            })
    }
}
