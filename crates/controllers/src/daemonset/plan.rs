//! What a daemon set does next: which pods it makes and deletes, as a value. Pure.

use super::tolerations;
use crate::node_fit::selects;
use crate::pod_control::{ready_since, until_available};
use crate::revisions::HASH;
use davit_api::taint::untolerated;
use davit_reconcile::pods::{is_active, is_terminal};
use k8s_openapi::api::apps::v1::DaemonSetSpec;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use k8s_openapi::jiff::Timestamp;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Where the pods of a set are, and where they should be.
#[derive(Debug, Default)]
pub(super) struct Placement {
    /// Pods by the node they are meant for.
    pub(super) by_node: BTreeMap<String, Vec<Arc<Pod>>>,
    /// Nodes that should run a pod.
    pub(super) wanted: Vec<String>,
}

/// What to do now.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan {
    pub(super) create_on: Vec<String>,
    pub(super) delete: Vec<Arc<Pod>>,
    /// Some of `delete` had failed: not to be repeated in a tight loop.
    pub(super) failed: bool,
}

impl Placement {
    pub(super) fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.by_node.values().flatten()
    }

    pub(super) fn on(&self, node: &str) -> &[Arc<Pod>] {
        self.by_node.get(node).map_or(&[], Vec::as_slice)
    }
}

pub(super) fn hash_of(pod: &Pod) -> Option<&str> {
    pod.metadata.labels.as_ref()?.get(HASH).map(String::as_str)
}

pub(super) fn placement(
    spec: &DaemonSetSpec,
    nodes: &[Arc<Node>],
    pods: Vec<Arc<Pod>>,
) -> Placement {
    let mut placement = Placement::default();
    for pod in pods {
        if let Some(node) = meant_for(&pod) {
            placement.by_node.entry(node).or_default().push(pod);
        }
    }
    let template = spec.template.spec.clone().unwrap_or_default();
    let tolerations = tolerations(&template);
    for node in nodes {
        let Some(name) = node.metadata.name.clone() else {
            continue;
        };
        let taints = node
            .spec
            .as_ref()
            .and_then(|s| s.taints.clone())
            .unwrap_or_default();
        if !selects(&template, node) || untolerated(&taints, &tolerations, &["NoExecute"]).is_some()
        {
            continue;
        }
        // A NoSchedule taint keeps new pods away but lets those that are there stay.
        let schedulable = untolerated(&taints, &tolerations, &["NoSchedule"]).is_none();
        if schedulable || placement.by_node.contains_key(&name) {
            placement.wanted.push(name);
        }
    }
    placement
}

/// The node a pod of a daemon set is on or waits for.
pub(super) fn meant_for(pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    if let Some(node) = spec.node_name.clone().filter(|n| !n.is_empty()) {
        return Some(node);
    }
    let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    let terms = &affinity
        .required_during_scheduling_ignored_during_execution
        .as_ref()?
        .node_selector_terms;
    let field = terms
        .iter()
        .flat_map(|t| t.match_fields.iter().flatten())
        .find(|f| f.key == "metadata.name")?;
    field.values.as_ref()?.first().cloned()
}

/// How many nodes an update may touch at a time.
enum Update {
    /// Old pods are deleted by hand (`OnDelete`).
    ByHand,
    /// A node's old pod goes before its new one comes; this many nodes may be without an available pod.
    Replace { unavailable: usize },
    /// A node's new pod is made beside the old one, which goes once the new one is available; on this many nodes at a
    /// time.
    Surge { nodes: usize },
}

impl Update {
    fn of(spec: &DaemonSetSpec, nodes: usize) -> Self {
        let strategy = spec.update_strategy.as_ref();
        if strategy.and_then(|s| s.type_.as_deref()) == Some("OnDelete") {
            return Update::ByHand;
        }
        let rolling = strategy.and_then(|s| s.rolling_update.as_ref());
        let surge = rolling.and_then(|r| r.max_surge.as_ref());
        match surge.map_or(0, |surge| scaled(surge, nodes)) {
            0 => Update::Replace {
                unavailable: rolling
                    .and_then(|r| r.max_unavailable.as_ref())
                    .map_or(1, |limit| scaled(limit, nodes))
                    .max(1),
            },
            nodes => Update::Surge { nodes },
        }
    }
}

/// A count, or a percentage of the nodes rounded up.
fn scaled(limit: &IntOrString, nodes: usize) -> usize {
    match limit {
        IntOrString::Int(count) => usize::try_from(*count).unwrap_or(0),
        IntOrString::String(text) => {
            let percent: usize = text.trim_end_matches('%').parse().unwrap_or(0);
            percent.saturating_mul(nodes).div_ceil(100)
        }
    }
}

/// The oldest pods on one node that have neither ended nor are ending.
struct Active<'a> {
    /// Of the set's revision.
    current: Option<&'a Arc<Pod>>,
    /// Of another revision.
    outdated: Option<&'a Arc<Pod>>,
}

pub(super) fn plan(
    spec: &DaemonSetSpec,
    placement: &Placement,
    hash: &str,
    now: Timestamp,
) -> Plan {
    let mut plan = Plan::default();
    for (node, pods) in &placement.by_node {
        if !placement.wanted.contains(node) {
            let stays = |pod: &&Arc<Pod>| pod.metadata.deletion_timestamp.is_none();
            plan.delete.extend(pods.iter().filter(stays).cloned());
        }
    }
    let min_ready = spec.min_ready_seconds.unwrap_or(0);
    let available = |pod: &Pod| until_available(pod, min_ready, now) == Some(Duration::ZERO);
    let update = Update::of(spec, placement.wanted.len());
    let surges = matches!(update, Update::Surge { .. });
    let nodes: Vec<(&String, Active<'_>)> = placement
        .wanted
        .iter()
        .map(|node| {
            let pods = placement.on(node);
            (node, plan.tidy(node, pods, hash, surges, available))
        })
        .collect();
    match update {
        Update::ByHand => {}
        Update::Replace { unavailable } => plan.replace(&nodes, unavailable, available),
        Update::Surge { nodes: limit } => plan.surge(&nodes, limit, available),
    }
    plan
}

impl Plan {
    /// Deletes what has failed or is too much on a node, and makes a pod where there is none. Answers with what stays.
    fn tidy<'a>(
        &mut self,
        node: &str,
        pods: &'a [Arc<Pod>],
        hash: &str,
        surges: bool,
        available: impl Fn(&Pod) -> bool,
    ) -> Active<'a> {
        let ended = |pod: &&Arc<Pod>| is_terminal(pod) && pod.metadata.deletion_timestamp.is_none();
        for failed in pods.iter().filter(ended) {
            self.delete.push(failed.clone());
            self.failed = true;
        }
        let mut active: Vec<&Arc<Pod>> = pods.iter().filter(|p| is_active(p)).collect();
        active.sort_by_key(|p| p.metadata.creation_timestamp.clone());
        // A node whose pods are still ending waits for them, unless two may be there at a time.
        if active.is_empty() && (pods.is_empty() || surges) {
            self.create_on.push(node.to_owned());
        }
        let is_current = |pod: &&&Arc<Pod>| hash_of(pod) == Some(hash);
        let mut stays = if surges {
            Active {
                current: active.iter().find(is_current).copied(),
                outdated: active.iter().find(|pod| !is_current(pod)).copied(),
            }
        } else {
            let oldest = active.first();
            Active {
                current: oldest.filter(is_current).copied(),
                outdated: oldest.filter(|pod| !is_current(pod)).copied(),
            }
        };
        if let (Some(current), Some(outdated)) = (stays.current, stays.outdated)
            && (available(current) || ready_since(outdated).is_none())
        {
            stays.outdated = None;
        }
        let kept = [stays.current, stays.outdated];
        let superfluous = |pod: &&&Arc<Pod>| !kept.iter().flatten().any(|k| Arc::ptr_eq(k, pod));
        self.delete
            .extend(active.iter().filter(superfluous).map(|pod| (*pod).clone()));
        stays
    }

    /// Deletes old pods: those that serve nobody at once, the others as long as no more nodes than the limit are without
    /// an available pod. A node that has no pod, or only pods that end, is without one.
    fn replace(
        &mut self,
        nodes: &[(&String, Active<'_>)],
        limit: usize,
        available: impl Fn(&Pod) -> bool,
    ) {
        let serves = |active: &Active<'_>| {
            let pod = active.current.or(active.outdated);
            pod.is_some_and(|pod| available(pod))
        };
        let unavailable = nodes.iter().filter(|(_, active)| !serves(active)).count();
        let outdated = nodes.iter().filter_map(|(_, active)| active.outdated);
        let (serving, idle): (Vec<_>, Vec<_>) = outdated.partition(|pod| available(pod));
        self.delete.extend(idle.into_iter().cloned());
        let room = limit.saturating_sub(unavailable);
        self.delete.extend(serving.into_iter().take(room).cloned());
    }

    /// Makes new pods beside old ones: at once beside those that serve nobody, beside the others as long as no more
    /// nodes than the limit wait for their new pod.
    fn surge(
        &mut self,
        nodes: &[(&String, Active<'_>)],
        limit: usize,
        available: impl Fn(&Pod) -> bool,
    ) {
        let waiting = |active: &Active<'_>| active.current.is_some() && active.outdated.is_some();
        let surging = nodes.iter().filter(|(_, active)| waiting(active)).count();
        let outdated = nodes.iter().filter_map(|(node, active)| match active {
            Active {
                current: None,
                outdated: Some(pod),
            } => Some((*node, *pod)),
            _ => None,
        });
        let (serving, idle): (Vec<_>, Vec<_>) = outdated.partition(|(_, pod)| available(pod));
        let room = limit.saturating_sub(surging);
        let nodes = idle.into_iter().chain(serving.into_iter().take(room));
        self.create_on.extend(nodes.map(|(node, _)| node.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemonset::pod_for;
    use crate::pod_control::Owner;
    use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetUpdateStrategy, RollingUpdateDaemonSet};
    use k8s_openapi::api::core::v1::{NodeSpec, Taint};

    fn node(name: &str, taint: Option<(&str, &str)>) -> Arc<Node> {
        let mut node = Node::default();
        node.metadata.name = Some(name.to_owned());
        let taint = taint.map(|(key, effect)| Taint {
            key: key.into(),
            effect: effect.into(),
            ..Taint::default()
        });
        node.spec = Some(NodeSpec {
            taints: taint.map(|t| vec![t]),
            ..NodeSpec::default()
        });
        Arc::new(node)
    }

    fn pod(name: &str, node: &str, hash: &str) -> Arc<Pod> {
        let mut pod = Pod::default();
        pod.metadata.name = Some(name.to_owned());
        pod.metadata.labels = Some([(HASH.to_owned(), hash.to_owned())].into());
        pod.spec.get_or_insert_default().node_name = Some(node.to_owned());
        Arc::new(pod)
    }

    #[test]
    fn one_pod_on_each_node_that_fits() {
        let spec = DaemonSetSpec::default();
        let nodes = [
            node("plain", None),
            node(
                "cordoned",
                Some(("node.kubernetes.io/unschedulable", "NoSchedule")),
            ),
            node("reserved", Some(("team", "NoSchedule"))),
            node("has-one", None),
        ];
        let placement = placement(
            &spec,
            &nodes,
            vec![pod("p", "has-one", "h"), pod("q", "gone", "h")],
        );
        let plan = plan(&spec, &placement, "h", Timestamp::now());
        assert_eq!(plan.create_on, ["plain", "cordoned"]);
        let deleted: Vec<_> = plan
            .delete
            .iter()
            .filter_map(|p| p.metadata.name.clone())
            .collect();
        assert_eq!(deleted, ["q"]);
    }

    #[test]
    fn pod_is_meant_for_the_node_of_its_affinity_before_it_is_bound() {
        let mut set = DaemonSet::default();
        set.metadata.name = Some("ds".to_owned());
        set.metadata.uid = Some("u".to_owned());
        let owner = Owner::of(&set, &Default::default()).unwrap();
        let pod = pod_for(&owner, &DaemonSetSpec::default(), "n1", "h");
        assert_eq!(meant_for(&pod).as_deref(), Some("n1"));
    }

    fn ready(pod: &Arc<Pod>) -> Arc<Pod> {
        let mut pod = (**pod).clone();
        let condition = k8s_openapi::api::core::v1::PodCondition {
            type_: "Ready".into(),
            status: "True".into(),
            ..Default::default()
        };
        pod.status.get_or_insert_default().conditions = Some(vec![condition]);
        Arc::new(pod)
    }

    fn rolling(unavailable: Option<i32>, surge: Option<&str>) -> DaemonSetSpec {
        DaemonSetSpec {
            update_strategy: Some(DaemonSetUpdateStrategy {
                type_: Some("RollingUpdate".into()),
                rolling_update: Some(RollingUpdateDaemonSet {
                    max_unavailable: unavailable.map(IntOrString::Int),
                    max_surge: surge.map(|text| IntOrString::String(text.into())),
                }),
            }),
            ..DaemonSetSpec::default()
        }
    }

    /// Nodes on which pods are made, and names of pods that are deleted.
    fn planned(
        spec: &DaemonSetSpec,
        nodes: &[&str],
        pods: Vec<Arc<Pod>>,
    ) -> (Vec<String>, Vec<String>) {
        let nodes: Vec<_> = nodes.iter().map(|name| node(name, None)).collect();
        let plan = plan(
            spec,
            &placement(spec, &nodes, pods),
            "new",
            Timestamp::now(),
        );
        let names = plan.delete.iter().filter_map(|p| p.metadata.name.clone());
        (plan.create_on, names.collect())
    }

    #[test]
    fn outdated_pods_that_serve_go_within_the_budget() {
        let pods = || vec![ready(&pod("p", "a", "old")), ready(&pod("q", "b", "old"))];
        let spec = DaemonSetSpec::default();
        assert_eq!(planned(&spec, &["a", "b"], pods()).1, ["p"]);
        assert_eq!(
            planned(&rolling(Some(2), None), &["a", "b"], pods()).1,
            ["p", "q"]
        );
    }

    #[test]
    fn a_node_without_a_pod_counts_as_unavailable() {
        let spec = DaemonSetSpec::default();
        let (create, delete) = planned(&spec, &["a", "b"], vec![ready(&pod("q", "b", "old"))]);
        assert_eq!((create, delete), (vec!["a".to_owned()], vec![]));
    }

    #[test]
    fn a_surge_makes_the_new_pod_before_the_old_one_goes() {
        let spec = rolling(Some(0), Some("50%"));
        let old = |name, node| ready(&pod(name, node, "old"));
        let (create, delete) = planned(&spec, &["a", "b"], vec![old("p", "a"), old("q", "b")]);
        assert_eq!(
            (create, delete),
            (vec!["a".to_owned()], vec![]),
            "one at a time"
        );
        let coming = vec![old("p", "a"), pod("p2", "a", "new"), old("q", "b")];
        assert_eq!(
            planned(&spec, &["a", "b"], coming),
            (vec![], vec![]),
            "not ready yet"
        );
        let come = vec![old("p", "a"), ready(&pod("p2", "a", "new")), old("q", "b")];
        let (create, delete) = planned(&spec, &["a", "b"], come);
        assert_eq!(
            (create, delete),
            (vec!["b".to_owned()], vec!["p".to_owned()])
        );
    }

    #[test]
    fn a_surge_does_not_wait_for_pods_that_serve_nobody() {
        let spec = rolling(Some(0), Some("1"));
        let dead = |name, node| pod(name, node, "old");
        let (create, delete) = planned(&spec, &["a", "b"], vec![dead("p", "a"), dead("q", "b")]);
        assert_eq!(
            (create, delete),
            (vec!["a".to_owned(), "b".to_owned()], vec![])
        );
        let both = vec![dead("p", "a"), pod("p2", "a", "new")];
        assert_eq!(planned(&spec, &["a"], both), (vec![], vec!["p".to_owned()]));
        let mut ending = (*ready(&pod("p", "a", "old"))).clone();
        ending.metadata.deletion_timestamp = Some(
            k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::now()),
        );
        assert_eq!(planned(&spec, &["a"], vec![Arc::new(ending)]).0, ["a"]);
    }
}
