//! Follows NetworkPolicies, pods and namespaces, and has what they say stand in the table (spec network.md 7).
//!
//! A pod is cut off from the moment its address is in the table, before its link is there, until its policies have been
//! written ([`PodLinks`] waits for that). At a restart what was written before stays until everything is known again.
//!
//! Whom a policy lets through depends on the pods of all nodes, which not every node may see. On one that may not, nobody is
//! isolated, and the log says so.

use crate::follower::all;
use crate::metrics::PolicyMetrics;
use crate::pods::PodLinks;
use crate::ruleset::{Judged, Judgement};
use crate::tables::Tables;
use crate::{Error, failed};
use davit_client::{Change, EventRecorder, Informer, Object, ObjectKey, Subscription};
use davit_net::route::Netlink;
use davit_netplan::{
    CompiledPolicy, Family, Isolation, MAX_COST, PolicyPod, PolicyWorld, RangesByNode,
};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::{Namespace, ObjectReference, Pod};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::Api;
use kube::api::PostParams;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Changes that come within this time are written together.
const PAUSE: Duration = Duration::from_millis(20);
/// After a failure.
const RETRY: Duration = Duration::from_secs(2);
/// How long the API server may take to list everything before that is worth a warning.
const SYNC_WARNING: Duration = Duration::from_secs(30);

/// Until a node that may not see policies asks again.
const ASK_AGAIN: Duration = Duration::from_secs(60);

/// Until connections that a change forbids are looked for, so that many changes are one look.
const SETTLED: Duration = Duration::from_secs(2);

/// What the node follows anyway.
pub(crate) struct Known {
    /// Connections that stand end when a policy forbids them.
    pub(crate) strict: bool,
    /// The name of the node.
    pub(crate) node: String,
    pub(crate) namespaces: Informer<Namespace>,
    pub(crate) resolvers: watch::Receiver<BTreeSet<IpAddr>>,
    /// The ranges of pods of all nodes, once they are known.
    pub(crate) ranges: watch::Receiver<Option<RangesByNode>>,
}

/// Where what is found stands, and for whom.
#[derive(Clone)]
pub(crate) struct Table {
    pub(crate) tables: Arc<Tables>,
    pub(crate) links: PodLinks,
    pub(crate) metrics: PolicyMetrics,
}

/// What is to stand in the table of a family for these pods: address, and namespace and name.
pub(crate) fn judgement(
    world: &PolicyWorld,
    family: Family,
    pods: &[(IpAddr, String)],
) -> Judgement {
    let of = |pod: &str| {
        let (namespace, name) = pod.split_once('/')?;
        world.isolation(namespace, name)
    };
    let pods: BTreeMap<_, _> = pods
        .iter()
        .map(|(address, pod)| (*address, of(pod)))
        .collect();
    let groups = pods.values().flatten().flat_map(Isolation::groups);
    let groups: BTreeSet<_> = groups.cloned().collect();
    let members = groups.into_iter().map(|group| {
        let members = world.members(&group).into_iter();
        let members = members.filter(|address| Family::of(*address) == family);
        let members = members.collect();
        (group, members)
    });
    Judgement {
        groups: members.collect(),
        pods,
    }
}

/// What was said, and what was made of it.
struct Judge {
    table: Table,
    world: Arc<Mutex<PolicyWorld>>,
    /// Kinds of which not everything is known yet, ranges of nodes among them.
    unknown: usize,
    ranges_known: bool,
    /// Something has changed that was not written.
    dirty: bool,
    /// Pods that are cut off, and why; told once.
    cut_off: BTreeMap<String, String>,
    events: EventRecorder,
    node: String,
}

/// Pods that are cut off because of what their policies say, and why.
type CutOff = BTreeMap<String, String>;

struct Changes {
    policies: Subscription<NetworkPolicy>,
    pods: Subscription<Pod>,
    namespaces: Subscription<Namespace>,
    resolvers: watch::Receiver<BTreeSet<IpAddr>>,
    ranges: watch::Receiver<Option<RangesByNode>>,
}

/// Enforces policies until `cancel` is cancelled.
pub(crate) async fn run(
    client: kube::Client,
    known: Known,
    table: Table,
    cancel: CancellationToken,
) {
    let mut tasks = JoinSet::new();
    let (component, node) = ("network-policy", known.node.as_str());
    let events = EventRecorder::spawn(client.clone(), component, node, &mut tasks, cancel.clone());
    let enforcing = async {
        until_permitted(&client, &table, &events, node).await;
        let policies: Informer<NetworkPolicy> = all(&client, &mut tasks, &cancel);
        let pods: Informer<Pod> = all(&client, &mut tasks, &cancel);
        let changes = Changes {
            policies: policies.subscribe(),
            pods: pods.subscribe(),
            namespaces: known.namespaces.subscribe(),
            resolvers: known.resolvers,
            ranges: known.ranges,
        };
        follow(changes, table, events.clone(), (node, known.strict)).await;
    };
    tokio::select! {
        () = cancel.cancelled() => {}
        () = enforcing => {}
    }
    tasks.shutdown().await;
}

/// A node as its events name it: the kubelet's uid is the name.
pub(crate) fn reference(node: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(node.to_owned()),
        uid: Some(node.to_owned()),
        ..ObjectReference::default()
    }
}

/// Keeps pods open as long as this node may not see what policies are about.
async fn until_permitted(client: &kube::Client, table: &Table, events: &EventRecorder, node: &str) {
    let mut told = false;
    loop {
        match is_permitted(client).await {
            Ok(true) => return,
            Ok(false) if !told => {
                told = true;
                let words = "this node enforces no network policies: it may not see the pods of other nodes \
                             (cluster role davit:network-policy)";
                tracing::warn!("{words}");
                events.warning(&reference(node), "NetworkPolicyNotEnforced", words);
            }
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%error, "network policies wait for the API server: new pods are cut off");
                tokio::time::sleep(RETRY).await;
                continue;
            }
        }
        let asking_again = tokio::time::sleep(ASK_AGAIN);
        tokio::pin!(asking_again);
        loop {
            match table.write(open).await {
                Ok(Some(_)) => {}
                // Pods have come or gone meanwhile.
                Ok(None) => continue,
                Err(error) => {
                    tracing::error!(%error, "network policies");
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            }
            tokio::select! {
                () = table.links.changed() => {}
                () = &mut asking_again => break,
            }
        }
    }
}

/// Nobody is isolated.
fn open(_: Family, pods: &[(IpAddr, String)]) -> Judgement {
    let pods = pods.iter().map(|(address, _)| *address);
    Judgement {
        pods: pods
            .map(|address| (address, Some(Isolation::default())))
            .collect(),
        groups: BTreeMap::new(),
    }
}

/// Whether this node may see policies and the pods of all nodes.
async fn is_permitted(client: &kube::Client) -> Result<bool, kube::Error> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    for (group, resource) in [("", "pods"), ("networking.k8s.io", "networkpolicies")] {
        for verb in ["list", "watch"] {
            let review = SelfSubjectAccessReview {
                spec: SelfSubjectAccessReviewSpec {
                    resource_attributes: Some(ResourceAttributes {
                        group: Some(group.to_owned()),
                        resource: Some(resource.to_owned()),
                        verb: Some(verb.to_owned()),
                        ..ResourceAttributes::default()
                    }),
                    ..SelfSubjectAccessReviewSpec::default()
                },
                ..SelfSubjectAccessReview::default()
            };
            let review = reviews.create(&PostParams::default(), &review).await?;
            if !review.status.is_some_and(|status| status.allowed) {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Follows what changes for good.
async fn follow(
    mut changes: Changes,
    table: Table,
    events: EventRecorder,
    (node, strict): (&str, bool),
) {
    changes.resolvers.mark_changed();
    changes.ranges.mark_changed();
    let mut judge = Judge {
        table,
        world: Arc::default(),
        unknown: 4,
        ranges_known: false,
        dirty: true,
        cut_off: CutOff::new(),
        events,
        node: node.to_owned(),
    };
    // When connections are looked through.
    let mut look: Option<Instant> = None;
    loop {
        judge.gather(&mut changes);
        if judge.unknown > 0 {
            if tokio::time::timeout(SYNC_WARNING, judge.wait(&mut changes))
                .await
                .is_err()
            {
                tracing::warn!("network policies wait for the API server: new pods are cut off");
            }
            continue;
        }
        if judge.dirty {
            let began = Instant::now();
            match judge.write().await {
                Ok(None) => {}
                Ok(Some(cut_off)) => {
                    judge.dirty = false;
                    let policies = judge.world.lock().policies();
                    let metrics = &judge.table.metrics;
                    metrics.synced(began.elapsed(), policies, cut_off.len());
                    judge.tell(cut_off);
                    if strict {
                        look.get_or_insert_with(|| Instant::now() + SETTLED);
                    }
                }
                Err(error) => {
                    judge.table.metrics.failed();
                    tracing::error!(%error, "network policies");
                    tokio::time::sleep(RETRY).await;
                }
            }
            // Pods have come or gone meanwhile, or it did not work.
            if judge.dirty {
                continue;
            }
            tokio::time::sleep(PAUSE).await;
        }
        // what the kernel has refused it may take later
        let again = match judge.cut_off.is_empty() {
            true => Duration::MAX,
            false => ASK_AGAIN,
        };
        let changed = tokio::select! {
            changed = tokio::time::timeout(again, judge.wait(&mut changes)) => changed,
            () = until(look) => {
                look = judge.end_forbidden().await.then(|| Instant::now() + SETTLED);
                continue;
            }
        };
        judge.dirty |= changed.is_err();
    }
}

/// Waits until then; without end if there is no such time.
async fn until(then: Option<Instant>) {
    match then {
        Some(then) => tokio::time::sleep_until(then).await,
        None => std::future::pending().await,
    }
}

/// The object of a change as it is, or that it is gone.
fn now<K: Object>(change: Change<K>) -> Option<(ObjectKey, Option<Arc<K>>)> {
    match change {
        Change::Applied { new, .. } => Some((ObjectKey::of(new.as_ref()), Some(new))),
        Change::Deleted(old) => Some((ObjectKey::of(old.as_ref()), None)),
        Change::Synced => None,
    }
}

impl Judge {
    /// Waits for one change.
    async fn wait(&mut self, changes: &mut Changes) {
        tokio::select! {
            change = changes.policies.next() => self.policy(change),
            change = changes.pods.next() => self.pod(change),
            change = changes.namespaces.next() => self.namespace(change),
            () = self.table.links.changed() => self.dirty = true,
            changed = changes.resolvers.changed() => match changed {
                Ok(()) => self.resolvers(&mut changes.resolvers),
                // The network ends, and this with it.
                Err(_) => std::future::pending().await,
            },
            changed = changes.ranges.changed() => match changed {
                Ok(()) => self.ranges(&mut changes.ranges),
                Err(_) => std::future::pending().await,
            },
        }
    }

    /// Takes what has changed meanwhile.
    fn gather(&mut self, changes: &mut Changes) {
        while let Some(change) = changes.policies.try_next() {
            self.policy(Some(change));
        }
        while let Some(change) = changes.pods.try_next() {
            self.pod(Some(change));
        }
        while let Some(change) = changes.namespaces.try_next() {
            self.namespace(Some(change));
        }
        self.resolvers(&mut changes.resolvers);
        if changes.ranges.has_changed().unwrap_or_default() {
            self.ranges(&mut changes.ranges);
        }
    }

    fn enter<K: Object>(
        &mut self,
        change: Option<Change<K>>,
        put: impl FnOnce(&mut PolicyWorld, &ObjectKey, Option<Arc<K>>) -> bool,
    ) {
        let Some(change) = change else { return };
        match now(change) {
            Some((key, object)) => self.dirty |= put(&mut self.world.lock(), &key, object),
            None => self.unknown = self.unknown.saturating_sub(1),
        }
    }

    fn policy(&mut self, change: Option<Change<NetworkPolicy>>) {
        self.enter(change, |world, key, policy| {
            let policy = policy.map(|policy| CompiledPolicy::new(&policy));
            world.set_policy(&key.namespace, &key.name, policy)
        });
    }

    fn pod(&mut self, change: Option<Change<Pod>>) {
        self.enter(change, |world, key, pod| {
            let pod = pod.map(|pod| PolicyPod::new(&pod));
            world.set_pod(&key.namespace, &key.name, pod)
        });
    }

    fn namespace(&mut self, change: Option<Change<Namespace>>) {
        self.enter(change, |world, key, namespace| {
            let labels = namespace.map(|n| n.metadata.labels.clone().unwrap_or_default());
            world.set_namespace(&key.name, labels)
        });
    }

    fn resolvers(&mut self, resolvers: &mut watch::Receiver<BTreeSet<IpAddr>>) {
        let resolvers = resolvers.borrow_and_update().clone();
        self.dirty |= self.world.lock().set_resolvers(resolvers);
    }

    /// What nodes can say of their pods' addresses.
    fn ranges(&mut self, ranges: &mut watch::Receiver<Option<RangesByNode>>) {
        let Some(ranges) = ranges.borrow_and_update().clone() else {
            return;
        };
        if !std::mem::replace(&mut self.ranges_known, true) {
            self.unknown = self.unknown.saturating_sub(1);
        }
        self.dirty |= self.world.lock().set_ranges(ranges);
    }

    /// Says which pods are cut off, in the log and on the node.
    fn tell(&mut self, cut_off: CutOff) {
        for (pod, why) in &cut_off {
            if self.cut_off.get(pod) != Some(why) {
                let words =
                    format!("pod {pod} is cut off where network policies isolate it: {why}");
                tracing::warn!("{words}");
                self.events.warning(
                    &reference(&self.node),
                    "NetworkPolicyNotEnforceable",
                    &words,
                );
            }
        }
        self.cut_off = cut_off;
    }

    /// Ends the connections that policies forbid; whether that is to be tried again.
    async fn end_forbidden(&self) -> bool {
        let world = self.world.clone();
        let find = move |family, pods: &_| judgement(&world.lock(), family, pods);
        match self.table.end_forbidden(find).await {
            Ok(0) => false,
            Ok(ended) => {
                self.table.metrics.ended(ended);
                tracing::info!(ended, "connections that network policies forbid");
                false
            }
            Err(error) => {
                tracing::error!(%error, "connections that network policies forbid");
                true
            }
        }
    }

    /// Brings the table to what is known; the pods that are cut off. `None` when pods have come or gone meanwhile.
    async fn write(&self) -> Result<Option<CutOff>, Error> {
        let world = self.world.clone();
        self.table
            .write(move |family, pods| judgement(&world.lock(), family, pods))
            .await
    }
}

impl Table {
    /// Ends the connections that what is found of the pods here forbids, of each family; how many.
    async fn end_forbidden(
        &self,
        find: impl Fn(Family, &[(IpAddr, String)]) -> Judgement + Send + 'static,
    ) -> Result<usize, Error> {
        let Self { tables, links, .. } = self.clone();
        let work = move || {
            let addresses = Netlink::open().and_then(|mut netlink| netlink.all_addresses());
            let own = addresses?.into_iter().map(|(address, _)| address).collect();
            let mut ended = 0;
            for ruleset in tables.all() {
                let judgement = find(ruleset.family(), &links.pods(ruleset.family())?);
                ended += ruleset.end_forbidden(&judgement, &own)?;
            }
            Ok(ended)
        };
        let done = tokio::task::spawn_blocking(work).await;
        let done = done.map_err(std::io::Error::other).and_then(|done| done);
        done.map_err(failed("connections of pods"))
    }

    /// Writes what is found of the pods here, into the table of each family; those that are cut off. `None` when pods have
    /// come or gone meanwhile.
    async fn write(
        &self,
        find: impl Fn(Family, &[(IpAddr, String)]) -> Judgement + Send + 'static,
    ) -> Result<Option<CutOff>, Error> {
        let Self {
            tables,
            links,
            metrics,
        } = self.clone();
        let work = move || {
            let (mut ingress, mut egress) = (BTreeSet::new(), BTreeSet::new());
            let mut cut_off = Some(CutOff::new());
            for ruleset in tables.all() {
                let (family, as_of) = (ruleset.family(), ruleset.pods_changed());
                let pods = links.pods(family);
                let pods = pods.map_err(failed("records of pods' networks"))?;
                let judgement = find(family, &pods);
                let judged = ruleset.judge(as_of, &judgement);
                let Judged::Written(refused) = judged.map_err(failed("network policies"))? else {
                    cut_off = None;
                    continue;
                };
                links.judged(family, as_of);
                for (address, pod) in &pods {
                    let isolation = judgement.pods.get(address).and_then(Option::as_ref);
                    for (isolated, by_pod) in [
                        (isolation.is_some_and(|i| i.ingress.is_some()), &mut ingress),
                        (isolation.is_some_and(|i| i.egress.is_some()), &mut egress),
                    ] {
                        if isolated {
                            by_pod.insert(pod.clone());
                        }
                    }
                }
                let here = pods.into_iter().filter_map(|(address, pod)| {
                    let isolation = judgement.pods.get(&address)?.as_ref()?;
                    let why = match isolation.too_large {
                        true => format!("they say more than {MAX_COST} things"),
                        false => refused.get(&address)?.clone(),
                    };
                    Some((pod, why))
                });
                if let Some(cut_off) = &mut cut_off {
                    cut_off.extend(here);
                }
            }
            metrics.isolated(ingress.len(), egress.len());
            Ok(cut_off)
        };
        match tokio::task::spawn_blocking(work).await {
            Ok(done) => done,
            Err(error) => Err(failed("network policies")(std::io::Error::other(error))),
        }
    }
}
