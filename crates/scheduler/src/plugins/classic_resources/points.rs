//! The plugin at the points of the scheduling cycle.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use davit_allocator::NodeMatcher;
use davit_api::classic::{MOST_NODES, PodSchedulingSpec, ResourceClaim};
use futures::FutureExt;
use k8s_openapi::api::core::v1::NodeSelector;
use parking_lot::Mutex;
use rand::seq::IteratorRandom;

use super::write::{self, PodRef};
use super::{ClassicResources, Cycle, Data, NAME, Notes, Wanted};
use crate::cache::Snapshot;
use crate::framework::{
    Action, ClusterEvent, Code, CycleState, EventObject, EventResource, Filter, Hint, NodeNames,
    Plugin, Points, PostBind, PostFilter, PostFilterContext, PostFilterResult, PreBind, PreFilter,
    PreScore, Reserve, Status,
};
use crate::node::NodeInfo;
use crate::plugins::dynamic_resources::claims::{self, Named};
use crate::pod::PodInfo;

const WAIT_ALLOCATION: &str = "waiting for resource driver to allocate resource";
const WAIT_INFORMATION: &str = "waiting for resource driver to provide information";

impl Plugin for ClassicResources {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attach(self: Arc<Self>, points: &mut Points) {
        points.pre_filter.push(self.clone());
        points.filter.push(self.clone());
        points.post_filter.push(self.clone());
        points.pre_score.push(self.clone());
        points.reserve.push(self.clone());
        points.pre_bind.push(self.clone());
        points.post_bind.push(self);
    }

    fn events(&self) -> Vec<ClusterEvent> {
        let changed = Action::ADD | Action::UPDATE;
        let node = Action::ADD | Action::UPDATE_LABEL;
        vec![
            ClusterEvent::new(EventResource::Node, node),
            ClusterEvent::new(EventResource::ClassicClaim, changed | Action::DELETE),
            ClusterEvent::new(EventResource::PodScheduling, changed),
            ClusterEvent::new(EventResource::ResourceClass, changed),
        ]
    }

    fn hint(&self, _: &ClusterEvent, pod: &PodInfo, object: &EventObject) -> Hint {
        let helps = match object {
            EventObject::ClassicClaim { old, new } => {
                let mine = |c: &Arc<ResourceClaim>| claims::may_name(pod, c);
                let status = |c: &Option<Arc<ResourceClaim>>| c.as_ref().map(|c| c.status.clone());
                let said = status(old) != status(new);
                said && [old, new].into_iter().flatten().any(mine)
            }
            EventObject::PodScheduling { old, new } => {
                let mine = *pod.namespace == *new.metadata.namespace.as_deref().unwrap_or_default()
                    && *pod.name == *new.metadata.name.as_deref().unwrap_or_default();
                let said = old.as_ref().is_none_or(|o| o.status != new.status);
                let selected = &new.spec.selected_node;
                let mut refused = new.status.resource_claims.iter();
                // A driver at work on the selected node is not to be disturbed.
                let on_its_way =
                    !selected.is_empty() && !refused.any(|c| c.unsuitable_nodes.contains(selected));
                mine && said && !on_its_way
            }
            _ => true,
        };
        if helps { Hint::Queue } else { Hint::Skip }
    }
}

fn matcher(selector: Option<&NodeSelector>) -> Result<Option<NodeMatcher>, Status> {
    let matcher = selector.map(NodeMatcher::new).transpose();
    matcher.map_err(|e| Status::error(e.to_string()))
}

impl ClassicResources {
    /// The pod's classic claims by entry.
    pub(super) fn claims_of(
        &self,
        pod: &PodInfo,
    ) -> Result<Vec<(String, Arc<ResourceClaim>)>, String> {
        let all = claims::all_of_pod(&self.devices, pod)?;
        let classic = all.into_iter().filter_map(|(entry, claim)| match claim {
            Named::Classic(claim) => Some((entry.to_owned(), claim)),
            Named::Structured(_) => None,
        });
        Ok(classic.collect())
    }

    /// Looks at the pod's claims. `Err` is the refusal.
    fn cycle(&self, pod: &PodInfo) -> Result<Option<Cycle>, Status> {
        let claims = self.claims_of(pod).map_err(Status::unresolvable)?;
        if claims.is_empty() {
            return Ok(None);
        }
        let classic = self.devices.classic();
        if !classic.is_synced() {
            return Err(Status::unresolvable("resource claims are not known yet"));
        }
        let mut cycle = Cycle {
            claims: Vec::new(),
            scheduling: classic.scheduling(&pod.namespace, &pod.name, &pod.uid),
            notes: Mutex::new(Notes::default()),
        };
        for (entry, claim) in claims {
            let nodes = self.look(&claim, pod)?;
            cycle.claims.push(Wanted {
                entry,
                claim,
                nodes,
            });
        }
        Ok(Some(cycle))
    }

    /// Whether a claim can do for the pod at all, and where.
    fn look(&self, claim: &ResourceClaim, pod: &PodInfo) -> Result<Option<NodeMatcher>, Status> {
        let classic = self.devices.classic();
        let status = &claim.status;
        if status.deallocation_requested {
            return Err(Status::unresolvable("resourceclaim must be reallocated"));
        }
        if let Some(allocation) = &status.allocation {
            if !classic.is_free_for(claim, &pod.uid) {
                return Err(Status::unresolvable("resourceclaim in use"));
            }
            return matcher(allocation.available_on_nodes.as_ref());
        }
        if !claim.is_delayed() {
            return Err(Status::unresolvable("unallocated immediate resourceclaim"));
        }
        let name = &claim.spec.resource_class_name;
        let Some(class) = classic.class(name) else {
            let text = format!("resourceclass.resource.k8s.io \"{name}\" not found");
            return Err(Status::unresolvable(text));
        };
        matcher(class.suitable_nodes.as_ref())
    }

    /// What is to be told to the drivers once the pod has been decided for a node, and whether that
    /// selects the node.
    fn next_offer(cycle: &Cycle, node: &str, propose: Option<Vec<String>>) -> (Offer, bool) {
        let known = cycle.scheduling.as_ref();
        let before = known.map(|s| s.spec.clone()).unwrap_or_default();
        let mut spec = before.clone();
        if let Some(propose) = propose {
            spec.potential_nodes = propose;
        }
        if !spec.potential_nodes.iter().any(|n| n == node) {
            spec.potential_nodes.push(node.to_owned());
            spec.potential_nodes.sort_unstable();
            if spec.potential_nodes.len() > MOST_NODES {
                spec.potential_nodes.retain(|n| n == node);
            }
        }
        let told = |c: &Wanted| known.is_some_and(|s| s.of_claim(&c.entry).is_some());
        let decides = cycle.pending().count() == 1 || cycle.pending().all(told);
        if decides {
            node.clone_into(&mut spec.selected_node);
        }
        (Offer((spec != before).then_some(spec)), decides)
    }
}

/// What the scheduler has to tell the drivers, if it is news.
struct Offer(Option<PodSchedulingSpec>);

impl PreFilter for ClassicResources {
    fn pre_filter(
        &self,
        state: &mut CycleState,
        pod: &PodInfo,
        _: &Snapshot,
    ) -> (Status, NodeNames) {
        match self.cycle(pod) {
            Ok(None) => (Status::skip(), None),
            Ok(Some(cycle)) => {
                state.put(Data(Arc::new(cycle)));
                (Status::success(), None)
            }
            Err(status) => (status, None),
        }
    }
}

impl Filter for ClassicResources {
    fn filter(&self, state: &CycleState, _: &PodInfo, node: &NodeInfo) -> Status {
        let Some(Data(cycle)) = state.get::<Data>() else {
            return Status::success();
        };
        let view = node.view();
        let outside = |c: &Wanted| c.nodes.as_ref().is_some_and(|n| !n.matches(view));
        let indices = 0..cycle.claims.len();
        let unavailable: Vec<usize> = indices
            .filter(|&i| !cycle.claims[i].is_pending() && outside(&cycle.claims[i]))
            .collect();
        if !unavailable.is_empty() {
            cycle.notes.lock().unavailable.extend(unavailable);
            return Status::unresolvable("resourceclaim not available on the node");
        }
        for claim in cycle.pending() {
            if outside(claim) {
                return Status::unresolvable("excluded by resource class node filter");
            }
            let told = cycle.scheduling.as_ref();
            let told = told.and_then(|s| s.of_claim(&claim.entry));
            if told.is_some_and(|t| t.unsuitable_nodes.iter().any(|n| **n == *node.name)) {
                return Status::unresolvable(
                    "resourceclaim cannot be allocated for the node (unsuitable)",
                );
            }
        }
        Status::success()
    }
}

impl PostFilter for ClassicResources {
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
        let (Some(Data(cycle)), Some(client)) = (state.get::<Data>(), self.client.clone()) else {
            return (none(), silent);
        };
        let cycle = cycle.clone();
        let unavailable = cycle.notes.lock().unavailable.clone();
        let can_go = |i: &usize| {
            let claim = &cycle.claims[*i].claim;
            let own = claim.status.reserved_for.iter().all(|r| r.uid == *pod.uid);
            own && claim.is_delayed() && self.devices.classic().is_free_for(claim, &pod.uid)
        };
        // There is no better reason for one than for another.
        let chosen = unavailable
            .into_iter()
            .filter(can_go)
            .choose(&mut rand::rng());
        let Some(chosen) = chosen else {
            return (none(), Status::unschedulable("still not schedulable"));
        };
        let claim = cycle.claims[chosen].claim.clone();
        let classic = self.devices.classic().clone();
        state.defer(write::deallocate(client, classic, claim, pod.uid.to_string()).boxed());
        let text = "deallocation of ResourceClaim completed";
        (none(), Status::unschedulable(text))
    }
}

impl PreScore for ClassicResources {
    fn pre_score(
        &self,
        state: &mut CycleState,
        _: &PodInfo,
        snapshot: &Snapshot,
        nodes: &[usize],
    ) -> Status {
        let Some(Data(cycle)) = state.get::<Data>() else {
            return Status::skip();
        };
        if cycle.pending().next().is_none() {
            return Status::skip();
        }
        let spec = cycle.scheduling.as_ref().map(|s| &s.spec);
        let known: BTreeSet<&str> = spec
            .iter()
            .flat_map(|s| &s.potential_nodes)
            .map(String::as_str)
            .collect();
        let names = || nodes.iter().map(|&n| &*snapshot.node(n).name);
        if names().any(|n| !known.contains(n)) {
            // The selected node must not be lost among the many.
            let selected = spec.map(|s| s.selected_node.as_str());
            let kept = names().find(|n| Some(*n) == selected);
            let room = MOST_NODES - usize::from(kept.is_some());
            let others = names().filter(|n| kept != Some(*n));
            let mut chosen: Vec<String> = others
                .map(str::to_owned)
                .choose_multiple(&mut rand::rng(), room);
            chosen.extend(kept.map(str::to_owned));
            chosen.sort_unstable();
            cycle.notes.lock().propose = Some(chosen);
        }
        // There is nothing to be said for one node more than for another.
        Status::skip()
    }
}

impl Reserve for ClassicResources {
    fn reserve(&self, state: &mut CycleState, pod: &PodInfo, node: &str) -> Status {
        let Some(Data(cycle)) = state.get::<Data>() else {
            return Status::success();
        };
        let cycle = cycle.clone();
        if cycle.pending().next().is_some() {
            let propose = cycle.notes.lock().propose.take();
            let (Offer(spec), decides) = Self::next_offer(&cycle, node, propose);
            if let (Some(spec), Some(client)) = (spec, self.client.clone()) {
                let classic = self.devices.classic().clone();
                let offer = write::publish(client, classic, PodRef::of(pod), spec);
                state.defer(offer.boxed());
            }
            let text = if decides {
                WAIT_ALLOCATION
            } else {
                WAIT_INFORMATION
            };
            return Status::new(Code::Pending, text);
        }
        for wanted in &cycle.claims {
            if !self.devices.classic().assume(&wanted.claim, &pod.uid) {
                return Status::unresolvable("resourceclaim in use");
            }
            cycle.notes.lock().assumed.push(wanted.claim.clone());
        }
        Status::success()
    }

    fn unreserve(&self, state: &mut CycleState, pod: &PodInfo, _: &str) {
        let Some(Data(cycle)) = state.get::<Data>() else {
            return;
        };
        let cycle = cycle.clone();
        let (assumed, written) = {
            let mut notes = cycle.notes.lock();
            let notes = &mut *notes;
            (
                std::mem::take(&mut notes.assumed),
                std::mem::take(&mut notes.written),
            )
        };
        for claim in &assumed {
            self.devices.classic().settle(claim, &pod.uid);
        }
        let Some(client) = self.client.clone() else {
            return;
        };
        // Those the driver reserved while it allocated them go as well: the pod is not coming.
        let reserved = assumed.iter().filter(|c| c.is_reserved_for(&pod.uid));
        let claims: Vec<_> = reserved.chain(&written).cloned().collect();
        for claim in claims {
            let classic = self.devices.classic().clone();
            let effect = write::unreserve(client.clone(), classic, claim, pod.uid.to_string());
            state.defer_undoing(effect.boxed());
        }
    }
}

#[async_trait]
impl PreBind for ClassicResources {
    async fn pre_bind(&self, state: &CycleState, pod: &PodInfo, _: &str) -> Status {
        let (Some(Data(cycle)), Some(client)) = (state.get::<Data>(), &self.client) else {
            return Status::success();
        };
        let classic = self.devices.classic();
        for wanted in &cycle.claims {
            let pod = PodRef::of(pod);
            match write::reserve(client, classic, &wanted.claim, &pod).await {
                Ok(Some(written)) => cycle.notes.lock().written.push(written),
                Ok(None) => {}
                Err(error) => return Status::error(error.to_string()),
            }
            classic.settle(&wanted.claim, &pod.uid);
        }
        Status::success()
    }
}

impl PostBind for ClassicResources {
    fn post_bind(&self, state: &CycleState, pod: &PodInfo, _: &str) {
        let (Some(_), Some(client)) = (state.get::<Data>(), self.client.clone()) else {
            return;
        };
        let classic = self.devices.classic().clone();
        state.defer(write::close(client, classic, PodRef::of(pod)).boxed());
    }
}
