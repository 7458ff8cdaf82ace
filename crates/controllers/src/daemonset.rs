//! Runs one pod of a template on each node that fits.

mod plan;

use crate::pod_control::{Owner, owners_of, until_available};
use crate::revisions::{HASH, History};
use async_trait::async_trait;
use davit_client::{EventRecorder, ObjectKey, object_ref};
use davit_reconcile::pods::is_active;
use davit_reconcile::{Error, Informers, Next, Reconcile, Spawner, cause_of, write_status};
use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetSpec, DaemonSetStatus};
use k8s_openapi::api::core::v1::{
    Node, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec,
    Toleration,
};
use k8s_openapi::jiff::Timestamp;
use plan::{Placement, Plan, hash_of, placement, plan};
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
    let Some(spawner) = &mut spawner.start("daemonset-controller") else {
        return;
    };
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
        let history = History::sync(
            &self.client,
            &owner,
            set.metadata.annotations.as_ref(),
            &spec.template,
        )
        .await?;
        let nodes = self.informers.nodes.list();
        let now = Timestamp::now();
        let placement = placement(&spec, &nodes, owner.live_pods(&self.client).await?);
        let plan = plan(&spec, &placement, &history.hash(), now);
        if !plan.create_on.is_empty() && !owner.is_there::<DaemonSet>(&self.client).await? {
            return Ok(Next::Wait);
        }
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
                    let cause = cause_of(&error);
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
        let changed = DaemonSet {
            status: Some(status),
            ..set.clone()
        };
        write_status(&self.client, &changed).await?;
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
    // The oldest pod of a node is the one that counts, also while a newer one is made beside it.
    let of_node = |node: &String| {
        let active = placement.on(node).iter().filter(|p| is_active(p));
        active.min_by_key(|p| p.metadata.creation_timestamp.clone())
    };
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
