//! Runs one pod of a template on each node that fits.

use crate::controller::{Context, Error, Next, Reconcile, Spawner, gone_is_none};
use crate::informers::Informers;
use crate::node_fit::{selects, untolerated};
use crate::pod_control::{Owner, is_active, is_terminal, owners_of, until_available};
use crate::revisions::{HASH, History};
use async_trait::async_trait;
use davit_client::{EventRecorder, ObjectKey, object_ref};
use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetSpec, DaemonSetStatus};
use k8s_openapi::api::core::v1::{
    Node, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec,
    Toleration,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Taints that pods of daemon sets tolerate without saying so.
const TOLERATED: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];
const TOLERATED_ON_HOST_NETWORK: (&str, &str) =
    ("node.kubernetes.io/network-unavailable", "NoSchedule");
/// How soon a failed pod is replaced again at the earliest.
const FAILED_POD_PAUSE: Duration = Duration::from_secs(1);

struct DaemonSets {
    client: kube::Client,
    informers: Informers,
    events: EventRecorder,
}

pub(crate) fn spawn(spawner: &mut Spawner<'_>) {
    let informers = spawner.informers.clone();
    let events = spawner.events("daemonset-controller");
    let controller = DaemonSets {
        client: spawner.client.clone(),
        informers: informers.clone(),
        events,
    };
    let queue = spawner.controller(controller);
    spawner.feed(&informers.daemon_sets, &queue, |ds: &DaemonSet| {
        vec![ObjectKey::of(ds)]
    });
    let sets = informers.daemon_sets.clone();
    spawner.feed(&informers.pods, &queue, move |pod: &Pod| {
        owners_of(&pod.metadata, "DaemonSet", &sets, |set| {
            set.spec.as_ref().map(|s| s.selector.clone())
        })
    });
    let sets = informers.daemon_sets.clone();
    spawner.feed_changes(
        &informers.nodes,
        &queue,
        // Heartbeats change nothing about where pods belong.
        |old: &Node, new: &Node| old.metadata.labels != new.metadata.labels || old.spec != new.spec,
        move |_| sets.list().iter().map(|ds| ObjectKey::of(&**ds)).collect(),
    );
}

/// Where the pods of a set are, and where they should be.
#[derive(Debug, Default)]
struct Placement {
    /// Pods by the node they are meant for.
    by_node: BTreeMap<String, Vec<Arc<Pod>>>,
    /// Nodes that should run a pod.
    wanted: Vec<String>,
}

/// What to do now.
#[derive(Debug, Default, PartialEq)]
struct Plan {
    create_on: Vec<String>,
    delete: Vec<Arc<Pod>>,
    /// Some of `delete` had failed: not to be repeated in a tight loop.
    failed: bool,
}

#[async_trait]
impl Reconcile for DaemonSets {
    const NAME: &'static str = "daemonset";

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let Some(set) = self
            .informers
            .daemon_sets
            .get(Some(&key.namespace), &key.name)
        else {
            return Ok(Next::Wait);
        };
        let Some(spec) = set.spec.clone() else {
            return Ok(Next::Wait);
        };
        let owner = Owner::of(&*set, &spec.selector)?;
        if owner.deleting {
            return Ok(Next::Wait);
        }
        owner.claim_pods(&self.client, &self.informers).await?;
        let history = History::sync(&self.client, &owner, &spec.template).await?;
        let nodes = self.informers.nodes.list();
        let now = Timestamp::now();
        let placement = placement(&spec, &nodes, owner.live_pods(&self.client).await?);
        let plan = plan(&spec, &placement, &history.hash(), now);
        self.apply(&set, &owner, &spec, &plan, &history.hash())
            .await?;
        self.update_status(&set, &placement, &history.hash(), now)
            .await?;
        let in_use: Vec<String> = placement
            .pods()
            .filter_map(|p| hash_of(p).map(str::to_owned))
            .collect();
        history
            .truncate(
                &self.client,
                spec.revision_history_limit.unwrap_or(10),
                &in_use,
            )
            .await?;
        if plan.failed {
            return Ok(Next::After(FAILED_POD_PAUSE));
        }
        let min_ready = spec.min_ready_seconds.unwrap_or(0);
        let soon = placement
            .pods()
            .filter_map(|p| until_available(p, min_ready, now))
            .filter(|d| !d.is_zero())
            .min();
        Ok(soon.map_or(Next::Wait, Next::After))
    }
}

impl Placement {
    fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.by_node.values().flatten()
    }

    fn on(&self, node: &str) -> &[Arc<Pod>] {
        self.by_node.get(node).map_or(&[], Vec::as_slice)
    }
}

fn hash_of(pod: &Pod) -> Option<&str> {
    pod.metadata.labels.as_ref()?.get(HASH).map(String::as_str)
}

fn placement(spec: &DaemonSetSpec, nodes: &[Arc<Node>], pods: Vec<Arc<Pod>>) -> Placement {
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
fn meant_for(pod: &Pod) -> Option<String> {
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

fn plan(spec: &DaemonSetSpec, placement: &Placement, hash: &str, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    for (node, pods) in &placement.by_node {
        if !placement.wanted.contains(node) {
            plan.delete.extend(
                pods.iter()
                    .filter(|p| p.metadata.deletion_timestamp.is_none())
                    .cloned(),
            );
        }
    }
    let mut outdated = Vec::new();
    let mut unavailable = 0;
    let min_ready = spec.min_ready_seconds.unwrap_or(0);
    for node in &placement.wanted {
        let pods = placement.on(node);
        for failed in pods
            .iter()
            .filter(|p| is_terminal(p) && p.metadata.deletion_timestamp.is_none())
        {
            plan.delete.push(failed.clone());
            plan.failed = true;
        }
        let mut active: Vec<&Arc<Pod>> = pods.iter().filter(|p| is_active(p)).collect();
        active.sort_by_key(|p| p.metadata.creation_timestamp.clone());
        // The oldest stays when there are several.
        plan.delete
            .extend(active.iter().skip(1).map(|p| (*p).clone()));
        match active.first() {
            None if pods.is_empty() => plan.create_on.push(node.clone()),
            None => unavailable += 1,
            Some(pod) => {
                let available = until_available(pod, min_ready, now) == Some(Duration::ZERO);
                if hash_of(pod) != Some(hash) {
                    outdated.push(((*pod).clone(), available));
                }
                unavailable += usize::from(!available);
            }
        }
    }
    if spec
        .update_strategy
        .as_ref()
        .and_then(|s| s.type_.as_deref())
        != Some("OnDelete")
    {
        let budget = max_unavailable(spec, placement.wanted.len());
        // Those that serve nobody go at once, the others within the budget.
        let (serving, idle): (Vec<_>, Vec<_>) =
            outdated.into_iter().partition(|(_, available)| *available);
        plan.delete.extend(idle.into_iter().map(|(pod, _)| pod));
        plan.delete.extend(
            serving
                .into_iter()
                .take(budget.saturating_sub(unavailable))
                .map(|(pod, _)| pod),
        );
    }
    plan
}

fn max_unavailable(spec: &DaemonSetSpec, nodes: usize) -> usize {
    let rolling = spec
        .update_strategy
        .as_ref()
        .and_then(|s| s.rolling_update.as_ref());
    match rolling.and_then(|r| r.max_unavailable.as_ref()) {
        None => 1,
        Some(IntOrString::Int(count)) => usize::try_from(*count).unwrap_or(0),
        Some(IntOrString::String(text)) => {
            let percent: usize = text.trim_end_matches('%').parse().unwrap_or(0);
            (percent * nodes).div_ceil(100)
        }
    }
}

fn tolerations(template: &PodSpec) -> Vec<Toleration> {
    let automatic = |(key, effect): &(&str, &str)| Toleration {
        key: Some((*key).to_owned()),
        operator: Some("Exists".to_owned()),
        effect: Some((*effect).to_owned()),
        ..Toleration::default()
    };
    let mut all = template.tolerations.clone().unwrap_or_default();
    all.extend(TOLERATED.iter().map(automatic));
    if template.host_network == Some(true) {
        all.push(automatic(&TOLERATED_ON_HOST_NETWORK));
    }
    all
}

/// The set's pod for one node: bound there by affinity, so that the scheduler checks resources.
fn pod_for(owner: &Owner, spec: &DaemonSetSpec, node: &str, hash: &str) -> Pod {
    let mut pod = owner.pod(&spec.template, None);
    pod.metadata
        .labels
        .get_or_insert_default()
        .insert(HASH.to_owned(), hash.to_owned());
    let pod_spec = pod.spec.get_or_insert_default();
    pod_spec.tolerations = Some(tolerations(pod_spec));
    let this_node = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let affinity: &mut NodeAffinity = pod_spec
        .affinity
        .get_or_insert_default()
        .node_affinity
        .get_or_insert_default();
    let terms = match affinity
        .required_during_scheduling_ignored_during_execution
        .take()
    {
        Some(selector) => selector.node_selector_terms,
        None => vec![NodeSelectorTerm::default()],
    };
    let on_this_node = |term: NodeSelectorTerm| NodeSelectorTerm {
        match_fields: Some(vec![this_node.clone()]),
        ..term
    };
    affinity.required_during_scheduling_ignored_during_execution = Some(NodeSelector {
        node_selector_terms: terms.into_iter().map(on_this_node).collect(),
    });
    pod
}

impl DaemonSets {
    async fn apply(
        &self,
        set: &DaemonSet,
        owner: &Owner,
        spec: &DaemonSetSpec,
        plan: &Plan,
        hash: &str,
    ) -> Result<(), Error> {
        for pod in &plan.delete {
            owner.delete(&self.client, pod).await?;
            let name = pod.metadata.name.clone().unwrap_or_default();
            self.events.normal(
                &object_ref(set),
                "SuccessfulDelete",
                format!("Deleted pod: {name}"),
            );
        }
        for node in &plan.create_on {
            match owner
                .create(&self.client, &pod_for(owner, spec, node, hash))
                .await
            {
                Ok(pod) => {
                    let name = pod.metadata.name.unwrap_or_default();
                    self.events.normal(
                        &object_ref(set),
                        "SuccessfulCreate",
                        format!("Created pod: {name}"),
                    );
                }
                Err(error) => {
                    let cause = std::error::Error::source(&error)
                        .map(ToString::to_string)
                        .unwrap_or_default();
                    self.events.warning(
                        &object_ref(set),
                        "FailedCreate",
                        format!("Error creating: {cause}"),
                    );
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    async fn update_status(
        &self,
        set: &DaemonSet,
        placement: &Placement,
        hash: &str,
        now: Timestamp,
    ) -> Result<(), Error> {
        let status = status_of(set, placement, hash, now);
        if set.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let key = ObjectKey::of(set);
        let changed = DaemonSet {
            status: Some(status),
            ..set.clone()
        };
        let api: kube::Api<DaemonSet> = kube::Api::namespaced(self.client.clone(), &key.namespace);
        gone_is_none(
            api.replace_status(&key.name, &PostParams::default(), &changed)
                .await,
        )
        .context(|| format!("update status of daemon set {key}"))?;
        Ok(())
    }
}

fn status_of(
    set: &DaemonSet,
    placement: &Placement,
    hash: &str,
    now: Timestamp,
) -> DaemonSetStatus {
    let min_ready = set
        .spec
        .as_ref()
        .and_then(|s| s.min_ready_seconds)
        .unwrap_or(0);
    let count = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let or_none = |n: usize| (n > 0).then(|| count(n));
    let of_node = |node: &String| placement.on(node).iter().find(|p| is_active(p));
    let scheduled: Vec<&Arc<Pod>> = placement.wanted.iter().filter_map(of_node).collect();
    let available = scheduled
        .iter()
        .filter(|p| until_available(p, min_ready, now) == Some(Duration::ZERO))
        .count();
    let misscheduled = placement
        .by_node
        .keys()
        .filter(|node| !placement.wanted.contains(node))
        .count();
    let old = set.status.clone().unwrap_or_default();
    DaemonSetStatus {
        desired_number_scheduled: count(placement.wanted.len()),
        current_number_scheduled: count(scheduled.len()),
        number_misscheduled: count(misscheduled),
        number_ready: count(
            scheduled
                .iter()
                .filter(|p| crate::pod_control::ready_since(p).is_some())
                .count(),
        ),
        updated_number_scheduled: or_none(
            scheduled
                .iter()
                .filter(|p| hash_of(p) == Some(hash))
                .count(),
        ),
        number_available: or_none(available),
        number_unavailable: or_none(placement.wanted.len() - available),
        observed_generation: set.metadata.generation,
        collision_count: old.collision_count,
        conditions: old.conditions,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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

    #[test]
    fn outdated_pods_that_serve_go_within_the_budget() {
        let spec = DaemonSetSpec::default();
        let ready = |name: &str, node: &str| {
            let mut pod = (*pod(name, node, "old")).clone();
            let condition = k8s_openapi::api::core::v1::PodCondition {
                type_: "Ready".into(),
                status: "True".into(),
                ..Default::default()
            };
            pod.status.get_or_insert_default().conditions = Some(vec![condition]);
            Arc::new(pod)
        };
        let nodes = [node("a", None), node("b", None)];
        let placement = placement(&spec, &nodes, vec![ready("p", "a"), ready("q", "b")]);
        assert_eq!(
            plan(&spec, &placement, "new", Timestamp::now())
                .delete
                .len(),
            1
        );
    }
}
