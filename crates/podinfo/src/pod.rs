//! A pod as the scheduler sees it: everything that plugins need, computed once.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock};

use k8s_openapi::api::core::v1::{
    Container, Pod, PodAffinityTerm, PodSpec, Toleration, TopologySpreadConstraint,
    WeightedPodAffinityTerm,
};
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;

use davit_api::pod_groups::pod_group_of;
use davit_api::selector::{Labels, NodeTerm, Requirement, Selector};
use davit_podrequests::{PodRequests, TakenByClaim, taken_by_claims};
use davit_schedulerconfig::DEFAULT_SCHEDULER_NAME;
use davit_volume::pod::claims_of;

use crate::Signature;

/// A host port a pod occupies.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPort {
    /// Port number on the host.
    pub port: i32,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Address on the host; `0.0.0.0` means all.
    pub ip: String,
}

/// A compiled pod affinity term.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AffinityTerm {
    /// The label whose value makes nodes belong together.
    pub topology_key: String,
    namespaces: BTreeSet<String>,
    /// Namespaces by label; `None` if the term names no selector.
    namespace_selector: Option<Selector>,
    selector: Selector,
}

impl AffinityTerm {
    fn new(term: &PodAffinityTerm, namespace: &str, own: &Labels) -> Self {
        let mut namespaces: BTreeSet<String> = term.namespaces.iter().flatten().cloned().collect();
        if namespaces.is_empty() && term.namespace_selector.is_none() {
            namespaces.insert(namespace.to_owned());
        }
        let mut selector = Selector::new(term.label_selector.as_ref());
        // Label keys copy the pod's own value into the selector.
        for key in term.match_label_keys.iter().flatten() {
            if let Some(value) = own.get(key) {
                selector.and(Requirement::equals(key, value));
            }
        }
        for key in term.mismatch_label_keys.iter().flatten() {
            if let Some(value) = own.get(key) {
                selector.and(Requirement::differs(key, value));
            }
        }
        Self {
            topology_key: term.topology_key.clone(),
            namespaces,
            namespace_selector: term
                .namespace_selector
                .as_ref()
                .map(|s| Selector::new(Some(s))),
            selector,
        }
    }

    /// Whether the term chooses namespaces by label.
    pub fn has_namespace_selector(&self) -> bool {
        self.namespace_selector.is_some()
    }

    /// Whether the term is about `pod`, whose namespace has the labels `namespace`.
    pub fn matches(&self, pod: &PodInfo, namespace: Option<&Labels>) -> bool {
        let in_namespace = self.namespaces.contains(&*pod.namespace)
            || self.namespace_selector.as_ref().is_some_and(|s| {
                s.is_everything() || namespace.is_some_and(|labels| s.matches(labels))
            });
        in_namespace && self.selector.matches(pod.labels())
    }
}

/// A compiled topology spread constraint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpreadConstraint {
    /// How uneven the spread may be.
    pub max_skew: i64,
    /// The label whose values are the domains.
    pub topology_key: String,
    /// Fewer domains than this count as an empty one.
    pub min_domains: i64,
    /// Whether a node that would break the constraint is refused or only scored lower.
    pub hard: bool,
    /// The pods that are counted.
    pub selector: Selector,
    /// Whether nodes that the pod's node affinity rules out are left out of the count.
    pub honor_affinity: bool,
    /// Whether nodes with taints the pod does not tolerate are left out of the count.
    pub honor_taints: bool,
}

impl SpreadConstraint {
    /// Compiles a constraint of a pod with these labels.
    pub fn new(constraint: &TopologySpreadConstraint, labels: &Labels) -> Self {
        let mut selector = Selector::new(constraint.label_selector.as_ref());
        for key in constraint.match_label_keys.iter().flatten() {
            if let Some(value) = labels.get(key) {
                selector.and(Requirement::equals(key, value));
            }
        }
        Self {
            max_skew: i64::from(constraint.max_skew),
            topology_key: constraint.topology_key.clone(),
            min_domains: i64::from(constraint.min_domains.unwrap_or(1)),
            hard: constraint.when_unsatisfiable == "DoNotSchedule",
            selector,
            honor_affinity: constraint.node_affinity_policy.as_deref() != Some("Ignore"),
            honor_taints: constraint.node_taints_policy.as_deref() == Some("Honor"),
        }
    }

    /// A preference, of no pods yet.
    pub fn soft(topology_key: &str, max_skew: i64) -> Self {
        Self {
            max_skew,
            topology_key: topology_key.to_owned(),
            min_domains: 1,
            hard: false,
            selector: Selector::new(None),
            honor_affinity: true,
            honor_taints: false,
        }
    }
}

/// A pod with what plugins look at.
#[derive(Debug)]
pub struct PodInfo {
    /// The object as it came from the API.
    pub pod: Arc<Pod>,
    /// `metadata.uid`.
    pub uid: Arc<str>,
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
    /// The same for pods of the same namespace with the same labels: what selectors say of one they
    /// say of all.
    pub group: Group,
    /// `spec.schedulingGroup.podGroupName`: the PodGroup, of the pod's namespace, that the pod belongs to.
    pub pod_group: Option<Arc<str>>,
    /// Whether the pod is being deleted.
    pub terminating: bool,
    /// `spec.priority`, 0 if there is none; of a pod that is tried with its group the group's, if that is higher.
    pub priority: i32,
    /// `spec.nodeName` if the pod is bound.
    pub node_name: Option<Arc<str>>,
    /// What the pod asks for.
    pub requests: PodRequests,
    /// Host ports the pod occupies.
    pub host_ports: Vec<HostPort>,
    /// Terms of required node affinity (one of them must match); `None` if there is no such affinity.
    pub node_terms: Option<Vec<NodeTerm>>,
    /// Preferred node affinity with weights.
    pub preferred_node_terms: Vec<(i64, NodeTerm)>,
    /// Required pod affinity.
    pub affinity: Vec<AffinityTerm>,
    /// Required pod anti-affinity.
    pub anti_affinity: Vec<AffinityTerm>,
    /// Preferred pod affinity with weights.
    pub preferred_affinity: Vec<(i64, AffinityTerm)>,
    /// Preferred pod anti-affinity with weights.
    pub preferred_anti_affinity: Vec<(i64, AffinityTerm)>,
    /// The claims that the pod names: namespace and name, joined by a slash. Those of ephemeral volumes are not shared
    /// and not among them.
    pub claims: Vec<Arc<str>>,
    /// Of a pod that has a node: the claims, of its namespace, whose devices take of the node's own resources.
    pub claims_of_node: Vec<Arc<str>>,
    /// Topology spread constraints.
    pub spread: Vec<SpreadConstraint>,
}

/// Keyed by chance, so that nobody can make two groups look like one.
static GROUPS: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// Pods of the same namespace with the same labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Group(u64);

/// Answers that are the same for all pods of a group, kept for one pass over many pods.
#[derive(Debug)]
pub struct ByGroup<T> {
    known: HashMap<Group, T>,
}

impl<T> Default for ByGroup<T> {
    fn default() -> Self {
        Self {
            known: HashMap::new(),
        }
    }
}

impl<T> ByGroup<T> {
    /// The answer for the pod's group, worked out for its first pod.
    pub fn get(&mut self, pod: &PodInfo, answer: impl FnOnce() -> T) -> &T {
        self.known.entry(pod.group).or_insert_with(answer)
    }
}

static NO_LABELS: Labels = Labels::new();
static NO_SPEC: LazyLock<PodSpec> = LazyLock::new(PodSpec::default);

impl PodInfo {
    /// Computes what plugins need.
    pub fn new(pod: Arc<Pod>) -> Self {
        let text = |field: &Option<String>| Arc::from(field.as_deref().unwrap_or_default());
        let namespace: Arc<str> = text(&pod.metadata.namespace);
        let labels = pod.metadata.labels.as_ref().unwrap_or(&NO_LABELS);
        let spec = pod.spec.as_ref().unwrap_or(&NO_SPEC);
        let terms = |list: Option<&Vec<PodAffinityTerm>>| -> Vec<AffinityTerm> {
            let compile = |t| AffinityTerm::new(t, &namespace, labels);
            list.into_iter().flatten().map(compile).collect()
        };
        let weighted = |list: Option<&Vec<WeightedPodAffinityTerm>>| -> Vec<(i64, AffinityTerm)> {
            let compile = |t: &WeightedPodAffinityTerm| {
                let term = AffinityTerm::new(&t.pod_affinity_term, &namespace, labels);
                (i64::from(t.weight), term)
            };
            list.into_iter().flatten().map(compile).collect()
        };
        let affinity = spec.affinity.as_ref();
        let node = affinity.and_then(|a| a.node_affinity.as_ref());
        let with = affinity.and_then(|a| a.pod_affinity.as_ref());
        let without = affinity.and_then(|a| a.pod_anti_affinity.as_ref());
        let required = node
            .and_then(|n| {
                n.required_during_scheduling_ignored_during_execution
                    .as_ref()
            })
            .map(|s| {
                s.node_selector_terms
                    .iter()
                    .filter_map(NodeTerm::new)
                    .collect()
            });
        let preferred = node
            .and_then(|n| {
                n.preferred_during_scheduling_ignored_during_execution
                    .as_ref()
            })
            .into_iter()
            .flatten()
            .filter(|p| p.weight != 0)
            .filter_map(|p| Some((i64::from(p.weight), NodeTerm::new(&p.preference)?)))
            .collect();
        Self {
            uid: text(&pod.metadata.uid),
            name: text(&pod.metadata.name),
            group: Group(GROUPS.hash_one((&*namespace, labels))),
            pod_group: pod_group_of(&pod).map(Arc::from),
            terminating: pod.metadata.deletion_timestamp.is_some(),
            priority: spec.priority.unwrap_or(0),
            node_name: spec
                .node_name
                .as_deref()
                .filter(|n| !n.is_empty())
                .map(Arc::from),
            requests: PodRequests::of(&pod),
            host_ports: host_ports(spec),
            node_terms: required,
            preferred_node_terms: preferred,
            affinity: terms(with.and_then(|a| {
                a.required_during_scheduling_ignored_during_execution
                    .as_ref()
            })),
            anti_affinity: terms(without.and_then(|a| {
                a.required_during_scheduling_ignored_during_execution
                    .as_ref()
            })),
            preferred_affinity: weighted(with.and_then(|a| {
                a.preferred_during_scheduling_ignored_during_execution
                    .as_ref()
            })),
            preferred_anti_affinity: weighted(without.and_then(|a| {
                a.preferred_during_scheduling_ignored_during_execution
                    .as_ref()
            })),
            spread: spread(spec, labels),
            claims: claims(&pod, &namespace),
            claims_of_node: claims_of_node(taken_by_claims(&pod)),
            namespace,
            pod,
        }
    }

    /// The pod as it counts on a node of which its devices take this.
    #[must_use]
    pub fn taking(&self, taken: &[TakenByClaim]) -> Self {
        let mut pod = (*self.pod).clone();
        let status = pod.status.get_or_insert_default();
        status.node_allocatable_resource_claim_statuses = Some(taken.to_vec());
        let requests = PodRequests::with(&pod, taken);
        Self {
            requests,
            claims_of_node: claims_of_node(taken),
            priority: self.priority,
            ..Self::new(Arc::new(pod))
        }
    }

    /// The pod where it counts for more or less than it says.
    #[must_use]
    pub fn of_priority(&self, priority: i32) -> Self {
        Self {
            priority,
            ..Self::new(self.pod.clone())
        }
    }

    /// The pod's spec.
    pub fn spec(&self) -> &PodSpec {
        self.pod.spec.as_ref().unwrap_or(&NO_SPEC)
    }

    /// The pod's labels.
    pub fn labels(&self) -> &Labels {
        self.pod.metadata.labels.as_ref().unwrap_or(&NO_LABELS)
    }

    /// The pod's tolerations.
    pub fn tolerations(&self) -> &[Toleration] {
        self.spec().tolerations.as_deref().unwrap_or_default()
    }

    /// Adds the tolerations to a signature, in their order.
    pub fn sign_tolerations(&self, signature: &mut Signature) {
        let tolerations = self.tolerations();
        signature.add(&tolerations.len());
        for t in tolerations {
            signature.add(&(&t.key, &t.operator, &t.value, &t.effect));
        }
    }

    /// Whether the pod names this group.
    pub fn belongs_to(&self, group: &PodGroup) -> bool {
        let meta = &group.metadata;
        meta.namespace.as_deref() == Some(&*self.namespace)
            && meta.name.is_some()
            && meta.name.as_deref() == self.pod_group.as_deref()
    }

    /// Which scheduler the pod is for.
    pub fn scheduler_name(&self) -> &str {
        self.spec()
            .scheduler_name
            .as_deref()
            .filter(|n| !n.is_empty())
            .unwrap_or(DEFAULT_SCHEDULER_NAME)
    }

    /// The claims of its namespace that its entries, or what its status says of them, name.
    pub fn claim_names(&self) -> impl Iterator<Item = &str> {
        let entries = self.spec().resource_claims.iter().flatten();
        let statuses = self.pod.status.iter();
        let made = statuses.flat_map(|s| &s.resource_claim_statuses).flatten();
        let named = entries.filter_map(|entry| entry.resource_claim_name.as_deref());
        named.chain(made.filter_map(|status| status.resource_claim_name.as_deref()))
    }

    /// All containers, init containers first.
    pub fn containers(&self) -> impl Iterator<Item = &Container> {
        let spec = self.spec();
        spec.init_containers
            .iter()
            .flatten()
            .chain(&spec.containers)
    }

    /// Whether the pod is being deleted.
    pub fn is_terminating(&self) -> bool {
        self.terminating
    }

    /// Whether the pod has ended and holds nothing any more.
    pub fn is_terminal(&self) -> bool {
        let phase = self.pod.status.as_ref().and_then(|s| s.phase.as_deref());
        matches!(phase, Some("Succeeded" | "Failed"))
    }

    /// The node a preemption was made for, from the pod's status.
    pub fn nominated_node(&self) -> Option<&str> {
        let status = self.pod.status.as_ref()?;
        status
            .nominated_node_name
            .as_deref()
            .filter(|n| !n.is_empty())
    }

    /// When the pod started, or the latest time there is if it has not: the order in which
    /// preemption looks at pods of equal priority.
    pub fn start_time(&self) -> jiff::Timestamp {
        let started = self.pod.status.as_ref().and_then(|s| s.start_time.as_ref());
        started.map_or(jiff::Timestamp::MAX, |t| t.0)
    }

    /// Whether the pod has any pod affinity or anti-affinity.
    pub fn has_affinity(&self) -> bool {
        !(self.affinity.is_empty()
            && self.anti_affinity.is_empty()
            && self.preferred_affinity.is_empty()
            && self.preferred_anti_affinity.is_empty())
    }

    /// `namespace/name`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

fn claims_of_node(taken: &[TakenByClaim]) -> Vec<Arc<str>> {
    let names = taken
        .iter()
        .map(|t| Arc::from(t.resource_claim_name.as_str()));
    names.collect()
}

/// The shared claims of a pod, each once.
fn claims(pod: &Pod, namespace: &str) -> Vec<Arc<str>> {
    let shared = claims_of(pod).filter(|claim| !claim.ephemeral);
    let mut claims: Vec<Arc<str>> = shared
        .map(|claim| Arc::from(format!("{namespace}/{}", claim.claim)))
        .collect();
    claims.sort_unstable();
    claims.dedup();
    claims
}

fn host_ports(spec: &PodSpec) -> Vec<HostPort> {
    let sidecars = spec
        .init_containers
        .iter()
        .flatten()
        .filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let mut ports: Vec<HostPort> = sidecars
        .chain(&spec.containers)
        .flat_map(|c| c.ports.iter().flatten())
        .filter_map(|p| {
            let port = p.host_port.filter(|&n| n > 0)?;
            let protocol = p
                .protocol
                .as_deref()
                .filter(|t| !t.is_empty())
                .unwrap_or("TCP");
            let ip = p
                .host_ip
                .as_deref()
                .filter(|t| !t.is_empty())
                .unwrap_or("0.0.0.0");
            Some(HostPort {
                port,
                protocol: protocol.to_owned(),
                ip: ip.to_owned(),
            })
        })
        .collect();
    ports.sort();
    ports.dedup();
    ports
}

fn spread(spec: &PodSpec, labels: &Labels) -> Vec<SpreadConstraint> {
    let constraints = spec.topology_spread_constraints.iter().flatten();
    constraints
        .map(|c| SpreadConstraint::new(c, labels))
        .collect()
}
