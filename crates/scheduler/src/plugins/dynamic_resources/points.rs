//! The plugin at the points of the scheduling cycle.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use davit_allocator::{
    AllocateError, Allocator, Answer, Call, NodeMatcher, Plan, Question, Refusal, Usage,
};
use futures::FutureExt;
use jiff::Timestamp;
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use parking_lot::Mutex;
use rand::seq::IteratorRandom;
use tokio::time::Instant;

use super::conditions::{self, Readiness};
use super::{
    Cycle, Data, DynamicResources, GroupAllocations, NAME, NodeWithDevices, Notes, Planned,
    Searcher,
};
use super::{bind, claims, extended};
use crate::cache::Snapshot;
use crate::devices::{allocation, reserved_for, uid};
use crate::framework::{
    Action, AffectedPods, ClusterEvent, CycleState, EventObject, EventResource, Filter, Hint,
    NodeNames, Plugin, Points, PostFilter, PostFilterContext, PostFilterResult, PreEnqueue,
    PreFilter, PreScore, Reason, Score, Status, default_normalize,
};
use crate::node::NodeInfo;
use crate::pod::PodInfo;

/// Most alternatives a request can have.
const MOST_ALTERNATIVES: i64 = 8;

impl Plugin for DynamicResources {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attach(self: Arc<Self>, points: &mut Points) {
        points.pre_enqueue.push(self.clone());
        points.pre_filter.push(self.clone());
        points.filter.push(self.clone());
        points.post_filter.push(self.clone());
        points.pre_score.push(self.clone());
        points.score.push(self.clone());
        points.reserve.push(self.clone());
        points.pre_bind.push(self);
    }

    fn events(&self) -> Vec<ClusterEvent> {
        let changed = Action::ADD | Action::UPDATE;
        let node = Action::ADD | Action::UPDATE_LABEL | Action::UPDATE_ALLOCATABLE;
        vec![
            ClusterEvent::new(EventResource::Node, node),
            // Its claims may have been on their way only, and its node has more again.
            ClusterEvent::new(
                EventResource::AssignedPod,
                Action::DELETE | Action::UPDATE_SCALE_DOWN,
            ),
            ClusterEvent::new(EventResource::ResourceClaim, changed | Action::DELETE),
            ClusterEvent::new(EventResource::ClassicClaim, changed | Action::DELETE),
            ClusterEvent::new(EventResource::TargetPod, Action::UPDATE_CLAIMS),
            ClusterEvent::new(EventResource::DeviceClass, changed),
            ClusterEvent::new(EventResource::ResourceSlice, changed),
            ClusterEvent::new(EventResource::PodGroup, Action::ADD),
        ]
    }

    fn hint(&self, event: &ClusterEvent, pod: &PodInfo, object: &EventObject) -> Hint {
        if let EventObject::ClassicClaim { old, new } = object {
            let mut states = [old, new].into_iter().flatten();
            return if states.any(|c| claims::may_name(pod, c)) {
                Hint::Queue
            } else {
                Hint::Skip
            };
        }
        if let EventObject::PodGroup {
            new: Some(group), ..
        } = object
        {
            return if pod.belongs_to(group) {
                Hint::Queue
            } else {
                Hint::Skip
            };
        }
        if event.resource != EventResource::ResourceClaim {
            return Hint::Queue;
        }
        let EventObject::Claim { old, new } = object else {
            return Hint::Queue;
        };
        let frees = frees(old.as_deref(), new.as_deref());
        let Some(new) = new else {
            return if frees { Hint::Queue } else { Hint::Skip };
        };
        if !frees && !claims::names(pod, new) {
            return Hint::Skip;
        }
        let Ok(mine) = claims::of_pod(&self.devices, pod) else {
            return Hint::Skip;
        };
        if frees {
            return Hint::Queue;
        }
        let uses = mine.iter().any(|c| c.metadata.uid == new.metadata.uid);
        match old {
            Some(old) if uses && old.status == new.status => Hint::Skip,
            _ if uses => Hint::Queue,
            _ => Hint::Skip,
        }
    }

    /// Most pods that wait are told of the claims of others.
    fn affected(&self, event: &ClusterEvent, object: &EventObject) -> AffectedPods {
        let EventObject::Claim { old, new } = object else {
            return AffectedPods::All;
        };
        match event.resource {
            EventResource::ResourceClaim if !frees(old.as_deref(), new.as_deref()) => {
                AffectedPods::NamingClaim
            }
            _ => AffectedPods::All,
        }
    }
}

/// Whether a claim lets go of devices: an allocated claim that is gone leaves its.
fn frees(old: Option<&ResourceClaim>, new: Option<&ResourceClaim>) -> bool {
    let holds = |claim: Option<&ResourceClaim>| claim.and_then(allocation).is_some();
    holds(old) && !holds(new)
}

impl PreEnqueue for DynamicResources {
    fn pre_enqueue(&self, pod: &PodInfo) -> Status {
        if !claims::has_claims(pod) {
            return Status::success();
        }
        if !self.devices.is_synced() {
            return Status::unresolvable("resource claims are not known yet");
        }
        match claims::of_pod(&self.devices, pod) {
            Ok(_) => Status::success(),
            Err(why) => Status::unresolvable(why),
        }
    }
}

impl DynamicResources {
    /// Looks at the pod's claims. `Err` is the refusal.
    pub(super) fn cycle(
        &self,
        pod: &PodInfo,
        group: Option<&GroupAllocations>,
    ) -> Result<Option<Cycle>, Status> {
        let claims = claims::of_pod(&self.devices, pod).map_err(Status::unresolvable)?;
        let wanted = extended::Wanted::new(&self.devices, pod);
        if claims.is_empty() && wanted.0.is_empty() {
            return Ok(None);
        }
        if !self.devices.is_synced() {
            return Err(Status::unresolvable("resource claims are not known yet"));
        }
        let pods_group = self.group_of(pod)?;
        let consumers = claims::consumers(&self.devices, pod, pods_group.as_deref(), &claims);
        let mut cycle = Cycle {
            consumers,
            pending: Vec::new(),
            shared: Vec::new(),
            nodes: Vec::new(),
            failed: Vec::new(),
            search: Mutex::new(None),
            leftover: claims::for_extended(&self.devices, pod),
            notes: Mutex::new(Notes::default()),
            claims,
            wanted,
        };
        let now = Timestamp::now();
        for (i, claim) in cycle.claims.iter().enumerate() {
            let decided = group.and_then(|g| g.claims.lock().get(&uid(claim)).cloned());
            let decided = decided.and_then(|_| self.devices.allocation_of(claim));
            if allocation(claim).is_none() && decided.is_some() {
                cycle.shared.push(i);
            }
            let Some(allocation) = allocation(claim).or(decided.as_ref()) else {
                self.check_pending(claim)?;
                cycle.pending.push(i);
                cycle.nodes.push(None);
                cycle.failed.push(false);
                continue;
            };
            let nodes = allocation.node_selector.as_ref().map(NodeMatcher::new);
            let nodes = nodes
                .transpose()
                .map_err(|e| Status::error(e.to_string()))?;
            cycle.nodes.push(nodes);
            let readiness = conditions::readiness(claim, now, self.args.binding_timeout);
            cycle.failed.push(matches!(readiness, Readiness::Failed(_)));
        }
        if !cycle.pending.is_empty() || !cycle.wanted.0.is_empty() {
            let view = self.devices.view();
            let timeout = self.args.filter_timeout;
            let deadline = (!timeout.is_zero()).then(|| {
                let own = Instant::now() + timeout;
                group.map_or(own, |group| own.min(group.deadline(timeout)))
            });
            let search = Arc::new(Searcher {
                allocator: Allocator::new(
                    self.args.features,
                    view.inventory,
                    view.usage,
                    self.devices.selectors().clone(),
                ),
                picture: view.picture,
                plans: Mutex::new(BTreeMap::new()),
                deadline,
            });
            // What is wrong with the claims is known before any node is looked at.
            self.planned(&cycle, &search, pod, Vec::new())
                .map_err(|e| Status::error(e.to_string()))?;
            cycle.search = Mutex::new(Some(search));
        }
        Ok(Some(cycle))
    }

    /// The group with which the pod may share claims. `Err`: it is not there.
    fn group_of(&self, pod: &PodInfo) -> Result<Option<Arc<PodGroup>>, Status> {
        let Some(name) = self.devices.consumers().group_of(&pod.pod) else {
            return Ok(None);
        };
        let group = self.groups.of(pod);
        let text = || format!("podgroup.scheduling.k8s.io {name:?} not found");
        group.map(Some).ok_or_else(|| Status::unresolvable(text()))
    }

    /// The claims that nobody needs to be where they are, once a pod of a group that has no node yet found none: those that
    /// are reserved for the group.
    fn unused_of_group(
        &self,
        state: &CycleState,
        pod: &PodInfo,
    ) -> Vec<(Arc<ResourceClaim>, String)> {
        let Ok(Some(group)) = self.group_of(pod) else {
            return Vec::new();
        };
        let known = state.get::<GroupAllocations>().map(|attempt| attempt.runs);
        if known.unwrap_or_else(|| self.groups.size(pod).scheduled > 0) {
            return Vec::new();
        }
        let uid = group.metadata.uid.clone().unwrap_or_default();
        let claims = claims::reserved_for_group(&self.devices, &group);
        claims
            .into_iter()
            .map(|claim| (claim, uid.clone()))
            .collect()
    }

    /// Whether an unallocated claim can be looked at now.
    fn check_pending(&self, claim: &ResourceClaim) -> Result<(), Status> {
        let label = || {
            let meta = &claim.metadata;
            let namespace = meta.namespace.as_deref().unwrap_or_default();
            format!("{namespace}/{}", meta.name.as_deref().unwrap_or_default())
        };
        if self.devices.is_in_flight(&uid(claim)) {
            return Err(Status::unresolvable(format!(
                "resource claim {} is in the process of being allocated",
                label()
            )));
        }
        let class = |request: &str, class: &str| {
            if class.is_empty() {
                return Err(Status::error(format!(
                    "request {request}: unsupported request type"
                )));
            }
            if self.devices.class(class).is_none() {
                return Err(Status::unresolvable(format!(
                    "request {request}: device class {class} does not exist"
                )));
            }
            Ok(())
        };
        let features = self.args.features;
        let requests = claim.spec.devices.iter().flat_map(|d| &d.requests);
        for request in requests.flatten() {
            let subs = request.first_available.iter().flatten();
            let mut subs = subs.peekable();
            if subs.peek().is_some() && !features.prioritized_list {
                return Err(Status::unresolvable(format!(
                    "resource claim {}, request {}: has subrequests, but the DRAPrioritizedList feature is disabled",
                    label(),
                    request.name
                )));
            }
            for sub in subs {
                let name = format!("{}/{}", request.name, sub.name);
                class(&name, &sub.device_class_name)?;
            }
            if let Some(exactly) = &request.exactly {
                if exactly.admin_access == Some(true) && !features.admin_access {
                    return Err(Status::unresolvable(format!(
                        "resource claim {}, request {}: admin access is requested, but the DRAAdminAccess feature is disabled",
                        label(),
                        request.name
                    )));
                }
                class(&request.name, &exactly.device_class_name)?;
            }
        }
        Ok(())
    }

    /// The pending claims, with one for these extended resources, made ready.
    fn planned(
        &self,
        cycle: &Cycle,
        search: &Searcher,
        pod: &PodInfo,
        resources: Vec<String>,
    ) -> Result<Arc<Planned>, AllocateError> {
        if let Some(known) = search.plans.lock().get(&resources) {
            return Ok(known.clone());
        }
        let pending = cycle.pending.iter();
        let mut list: Vec<Arc<ResourceClaim>> = pending.map(|&i| cycle.claims[i].clone()).collect();
        let extended =
            (!resources.is_empty()).then(|| extended::claim(pod, &cycle.wanted, &resources));
        list.extend(extended.iter().map(|e| e.claim.clone()));
        let classes = self.devices.view().classes;
        let selectors = self.devices.selectors();
        let plan = Plan::new(&list, self.args.features, &classes, selectors)?;
        let planned = Arc::new(Planned {
            plan,
            question: Question::new(&list, self.args.features),
            extended,
            missing: OnceLock::new(),
        });
        search.plans.lock().insert(resources, planned.clone());
        Ok(planned)
    }

    /// The claims of a pod, with its UID.
    fn held_by(&self, pod: &PodInfo) -> (String, Vec<Arc<ResourceClaim>>) {
        let mut held = claims::of_pod(&self.devices, pod).unwrap_or_default();
        held.extend(claims::for_extended(&self.devices, pod));
        (pod.uid.to_string(), held)
    }

    /// What the claims of pods that are imagined away hold.
    fn released(data: &Data) -> Option<Usage> {
        if data.gone.is_empty() {
            return None;
        }
        let mut usage = Usage::default();
        let mut seen = Vec::new();
        for claim in data.gone.values().flatten() {
            let uid = uid(claim);
            let mut users = reserved_for(claim).peekable();
            let free = users.peek().is_some() && users.all(|u| data.gone.contains_key(u));
            if free && !seen.contains(&uid) {
                if let Some(held) = allocation(claim) {
                    usage.add(held);
                }
                seen.push(uid);
            }
        }
        Some(usage)
    }

    /// Looks for devices on a node.
    fn look(&self, data: &Data, pod: &PodInfo, node: &NodeInfo) -> Status {
        let cycle = &data.cycle;
        let Some(search) = cycle.searcher() else {
            return Status::success();
        };
        let resources = cycle.wanted.on(node);
        if cycle.pending.is_empty() && resources.is_empty() {
            return Status::success();
        }
        let planned = match self.planned(cycle, &search, pod, resources) {
            Ok(planned) => planned,
            Err(error) => return Status::error(error.to_string()),
        };
        // A claim made for this pod before may still fit: then it is among what is allocated.
        let released = Self::released(data);
        match self.answer(&search, &planned, released.as_ref(), node) {
            Ok(Some(found)) => {
                cycle.notes.lock().found.insert(node.name.clone(), found);
                Status::success()
            }
            Ok(None) => refuse(pod, node, "cannot allocate all claims"),
            Err(AllocateError::Node(text)) => refuse(pod, node, text),
            Err(error) => Status::error(error.to_string()),
        }
    }

    /// What a node has for the plan; `None`: not enough. A node that has answered this, or is like one that has, is not
    /// searched, and which devices it has is not known then.
    fn answer(
        &self,
        search: &Searcher,
        planned: &Arc<Planned>,
        released: Option<&Usage>,
        node: &NodeInfo,
    ) -> Result<Option<NodeWithDevices>, AllocateError> {
        let with_devices = |chosen, allocation| NodeWithDevices {
            planned: planned.clone(),
            chosen,
            node: node.node.clone(),
            allocation,
        };
        let (answers, picture) = (self.devices.answers(), &search.picture);
        // What is imagined is not kept.
        let question = planned.question.as_ref().filter(|_| released.is_none());
        let mut signature = None;
        if let Some(question) = question {
            let place = *node.answers_at.get_or_init(|| answers.place(&node.name));
            let is_missing = |missing: &Vec<bool>| missing.get(place) == Some(&true);
            if planned.missing.get().is_some_and(is_missing) {
                return Ok(None);
            }
            let mut known = answers.get_at(place, question, || node.labels(), picture);
            if known.is_none() {
                let own = search.allocator.signature(&planned.plan, node.view());
                known = answers.by_signature(question, node.view(), picture, own);
                signature = Some((question, own));
            }
            match known {
                Some(Answer::Found(chosen)) => return Ok(Some(with_devices(chosen, None))),
                Some(Answer::Missing) => {
                    let missing = || answers.missing(question, picture);
                    planned.missing.get_or_init(missing);
                    return Ok(None);
                }
                None => {}
            }
        }
        let call = Call {
            node: node.view(),
            released,
            stop: &|| search.is_over(),
            share_id: &uuid,
        };
        let found = search.allocator.allocate(&planned.plan, call)?;
        let found = found.map(|a| with_devices(a.chosen.as_slice().into(), Some(a)));
        if let Some((question, signature)) = signature {
            let chosen = found.as_ref().map(|found| found.chosen.clone());
            let answer = chosen.map_or(Answer::Missing, Answer::Found);
            answers.keep(question, node.view(), picture, signature, answer);
        }
        Ok(found)
    }

    /// What rules out a node's devices, one by one.
    fn why_not(&self, data: &Data, pod: &PodInfo, node: &NodeInfo) -> Option<Refusal> {
        let cycle = &data.cycle;
        let search = cycle.searcher()?;
        let planned = self
            .planned(cycle, &search, pod, cycle.wanted.on(node))
            .ok()?;
        let call = Call {
            node: node.view(),
            released: None,
            stop: &|| search.is_over(),
            share_id: &uuid,
        };
        Some(search.allocator.explain(&planned.plan, call))
    }
}

/// A refusal; removing pods of lower priority that have claims of their own may help (ours: see
/// docs/differences.md).
fn refuse(pod: &PodInfo, node: &NodeInfo, text: impl Into<Reason>) -> Status {
    if node
        .pods_below(pod.priority)
        .any(|p| claims::may_hold_devices(p))
    {
        Status::unschedulable(text)
    } else {
        Status::unresolvable(text)
    }
}

/// A random UUID (version 4).
pub(super) fn uuid() -> String {
    let bytes: u128 = rand::random();
    let bytes = (bytes & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{bytes:032x}");
    let part = |from, to| &hex[from..to];
    format!(
        "{}-{}-{}-{}-{}",
        part(0, 8),
        part(8, 12),
        part(12, 16),
        part(16, 20),
        part(20, 32)
    )
}

impl PreFilter for DynamicResources {
    fn pre_filter(
        &self,
        state: &mut CycleState,
        pod: &PodInfo,
        _: &Snapshot,
    ) -> (Status, NodeNames) {
        match self.cycle(pod, state.get()) {
            Ok(None) => (Status::skip(), None),
            Ok(Some(Cycle {
                leftover: Some(claim),
                ..
            })) => {
                // Made in an attempt that came to nothing; what it holds may be just what is needed.
                if let Some(client) = self.client.clone() {
                    state.defer(bind::discard(client, claim).boxed());
                }
                let text = "an earlier ResourceClaim for extended resources is being deleted";
                (Status::unresolvable(text), None)
            }
            Ok(Some(cycle)) => {
                let group = state.get::<GroupAllocations>();
                let gone = group.map(|group| group.gone.lock().clone());
                let gone = gone.into_iter().flatten();
                let data = Data {
                    cycle: Arc::new(cycle),
                    gone: gone.map(|pod| self.held_by(&pod)).collect(),
                };
                state.put(data);
                (Status::success(), None)
            }
            Err(status) => (status, None),
        }
    }

    fn add_pod(
        &self,
        state: &mut CycleState,
        _: &PodInfo,
        added: &PodInfo,
        _: &NodeInfo,
        _: &Snapshot,
    ) {
        if let Some(data) = state.get_mut::<Data>() {
            data.gone.remove(&*added.uid);
        }
    }

    fn remove_pod(
        &self,
        state: &mut CycleState,
        _: &PodInfo,
        removed: &PodInfo,
        _: &NodeInfo,
        _: &Snapshot,
    ) {
        let Some(data) = state.get_mut::<Data>() else {
            return;
        };
        data.gone.extend([self.held_by(removed)]);
    }
}

impl Filter for DynamicResources {
    fn filter(&self, state: &CycleState, pod: &PodInfo, node: &NodeInfo) -> Status {
        let Some(data) = state.get::<Data>() else {
            return Status::success();
        };
        let cycle = &data.cycle;
        let unavailable: Vec<usize> = cycle.unavailable_on(node).collect();
        if !unavailable.is_empty() {
            cycle.notes.lock().unavailable.extend(unavailable);
            return Status::unresolvable("resourceclaim not available on the node");
        }
        match self.look(data, pod, node) {
            found if found.is_success() => self.look_at_node(cycle, pod, node),
            refusal => refusal,
        }
    }

    fn explain(&self, state: &CycleState, pod: &PodInfo, node: &NodeInfo, refusal: &mut Status) {
        let Some(data) = state.get::<Data>() else {
            return;
        };
        // Where an allocated claim is in the way, devices are not.
        if data.cycle.unavailable_on(node).next().is_some() {
            return;
        }
        if self.look(data, pod, node).is_success() {
            self.explain_node(&data.cycle, pod, node, refusal);
        } else {
            refusal.devices = self.why_not(data, pod, node).map(Box::new);
        }
    }
}

impl PostFilter for DynamicResources {
    fn post_filter(
        &self,
        state: &mut CycleState,
        pod: &Arc<PodInfo>,
        _: &PostFilterContext<'_>,
    ) -> (PostFilterResult, Status) {
        let none = PostFilterResult::default;
        let silent = Status {
            reasons: Vec::new(),
            ..Status::unschedulable("")
        };
        let Some(data) = state.get::<Data>() else {
            return (none(), silent);
        };
        let cycle = data.cycle.clone();
        let Some(client) = self.client.clone() else {
            return (none(), silent);
        };
        if cycle.claims.is_empty() {
            return (none(), silent);
        }
        let unavailable = cycle.notes.lock().unavailable.clone();
        let free = |i: &usize| {
            let mut users = reserved_for(&cycle.claims[*i]);
            let first = users.next();
            first.is_none() || (first == Some(&*pod.uid) && users.next().is_none())
        };
        // There is no better reason for one than for another.
        let chosen = unavailable
            .into_iter()
            .filter(free)
            .choose(&mut rand::rng());
        let Some(chosen) = chosen else {
            let unused = self.unused_of_group(state, pod);
            let text = if unused.is_empty() {
                "still not schedulable"
            } else {
                "ResourceClaim unreserved for PodGroup"
            };
            for (claim, group) in unused {
                let devices = self.devices.clone();
                let unreserve = bind::unreserve(client.clone(), devices, claim, group);
                state.defer_undoing(unreserve.boxed());
            }
            return (none(), Status::unschedulable(text));
        };
        let effect = bind::deallocate(client, cycle.claims[chosen].clone());
        state.defer(effect.boxed());
        let text = "deallocation of ResourceClaim completed";
        (none(), Status::unschedulable(text))
    }
}

impl PreScore for DynamicResources {
    fn pre_score(&self, state: &mut CycleState, _: &PodInfo, _: &Snapshot, _: &[usize]) -> Status {
        let alternatives = state.get::<Data>().is_some_and(|data| {
            let notes = data.cycle.notes.lock();
            let mut found = notes.found.values();
            found.any(|found| found.planned.plan.has_alternatives())
        });
        if alternatives {
            Status::success()
        } else {
            Status::skip()
        }
    }
}

impl Score for DynamicResources {
    fn score(&self, state: &CycleState, _: &PodInfo, node: &NodeInfo, _: &Snapshot) -> i64 {
        let Some(data) = state.get::<Data>() else {
            return 0;
        };
        let notes = data.cycle.notes.lock();
        let found = notes.found.get(&node.name);
        let chosen = found.into_iter().flat_map(|f| &*f.chosen);
        let scores = chosen.map(|&i| MOST_ALTERNATIVES - i64::try_from(i).unwrap_or(0));
        scores.sum()
    }

    fn normalize(
        &self,
        _: &CycleState,
        _: &PodInfo,
        _: &Snapshot,
        _: &[usize],
        scores: &mut [i64],
    ) {
        default_normalize(scores, false);
    }
}
