//! Makes room for a pod, or a group, by removing pods and groups of lower priority.

mod removal;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;

use crate::cache::Snapshot;
use crate::config::DefaultPreemptionArgs;
use crate::cycle::{Inputs, filters_with_nominated, fit_message};
use crate::extender::{Extenders, NodeVictims};
use crate::framework::{
    Action, ClusterEvent, Code, CycleState, EventObject, EventResource, GroupPostFilter, Hint,
    Plugin, Points, PostFilter, PostFilterContext, PostFilterResult, Refusals, Status,
};
use crate::pod::PodInfo;
use crate::pod_groups::{self, PodGroups};
use crate::victims::{
    Budgets, CompiledBudget, PreemptionCost, Removable, Victim, split_by_budgets,
};
use removal::{Removal, Removing};

/// The plugin `DefaultPreemption`.
pub struct DefaultPreemption {
    client: kube::Client,
    budgets: Budgets,
    extenders: Extenders,
    groups: PodGroups,
    removing: Removing,
    /// Share of the nodes on which preemption is tried, in percent.
    candidate_percentage: usize,
    /// How many at least.
    least_candidates: usize,
}

/// What to remove so that one node takes a pod.
#[derive(Debug, Clone)]
struct Candidate {
    at: usize,
    /// Most important first.
    victims: Vec<Victim>,
    violations: usize,
}

impl Candidate {
    fn cost(&self) -> PreemptionCost {
        PreemptionCost::of(&self.victims, self.violations)
    }

    /// The pods that would leave the node itself.
    fn on_node(&self) -> Vec<Arc<PodInfo>> {
        let pods = self.victims.iter().flat_map(Victim::pods);
        let here = pods.filter(|(at, _)| *at == self.at);
        here.map(|(_, pod)| pod.clone()).collect()
    }
}

impl DefaultPreemption {
    /// A plugin that removes pods through this client and spares those under these budgets where
    /// it can.
    pub fn new(client: kube::Client, budgets: Budgets) -> Self {
        let this = Self {
            client,
            budgets,
            extenders: Extenders::default(),
            groups: PodGroups::default(),
            removing: Removing::default(),
            candidate_percentage: 0,
            least_candidates: 0,
        };
        this.with_args(&DefaultPreemptionArgs::default())
    }

    /// The same with these arguments.
    #[must_use]
    pub fn with_args(mut self, args: &DefaultPreemptionArgs) -> Self {
        let number = |n: i32| usize::try_from(n).unwrap_or(0);
        self.candidate_percentage = number(args.min_candidate_nodes_percentage);
        self.least_candidates = number(args.min_candidate_nodes_absolute);
        self
    }

    /// The same with extenders that judge the candidates.
    #[must_use]
    pub(crate) fn with_extenders(mut self, extenders: Extenders) -> Self {
        self.extenders = extenders;
        self
    }

    /// The same with the groups that may go whole, or need room as a whole; none by default.
    #[must_use]
    pub(crate) fn with_groups(mut self, groups: PodGroups) -> Self {
        self.groups = groups;
        self
    }

    /// On how many of these nodes preemption is tried.
    fn wanted(&self, potential: usize) -> usize {
        (potential * self.candidate_percentage / 100)
            .max(self.least_candidates)
            .min(potential)
    }
}

impl Plugin for DefaultPreemption {
    fn name(&self) -> &'static str {
        "DefaultPreemption"
    }

    fn attach(self: Arc<Self>, points: &mut Points) {
        if self.groups.have_priorities() {
            points.group_post_filter = Some(self.clone());
        }
        points.post_filter.push(self);
    }

    fn events(&self) -> Vec<ClusterEvent> {
        vec![ClusterEvent::new(
            EventResource::AssignedPod,
            Action::DELETE,
        )]
    }

    fn hint(&self, _: &ClusterEvent, _: &PodInfo, _: &EventObject) -> Hint {
        Hint::Queue
    }
}

impl PostFilter for DefaultPreemption {
    fn post_filter(
        &self,
        state: &mut CycleState,
        pod: &Arc<PodInfo>,
        context: &PostFilterContext<'_>,
    ) -> (PostFilterResult, Status) {
        let refuse = |text: String| Status::unschedulable(format!("preemption: {text}"));
        if pod.pod_group.is_some() && self.groups.have_priorities() {
            // Room is made for the group as a whole, once it is known that it cannot go.
            let text = "not eligible due to workload aware preemption enabled".to_owned();
            let nominate = Some(String::new());
            let result = PostFilterResult {
                nominate,
                ..PostFilterResult::default()
            };
            return (result, refuse(text));
        }
        let unknown = self.groups.unknown().map_or(Ok(()), Err);
        if let Err(reason) = unknown.and_then(|()| eligible(pod, context)) {
            return (PostFilterResult::default(), refuse(reason.to_owned()));
        }
        let nodes = context.snapshot.nodes();
        let removable = Removable::for_pod(pod, &self.groups, context.snapshot);
        let (candidates, refused) = match context.judged {
            Some(judged) => (
                judged_candidates(judged, context, &removable),
                Refusals::default(),
            ),
            None => self.candidates(state, pod, context, &removable),
        };
        if context.judged.is_none() && !candidates.is_empty() && self.extenders.preempt_for(pod) {
            let shown = candidates.into_iter().map(|c| NodeVictims {
                node: nodes[c.at].clone(),
                pods: c.on_node(),
                violations: c.violations,
            });
            let result = PostFilterResult {
                ask: Some(shown.collect()),
                ..PostFilterResult::default()
            };
            return (result, Status::success());
        }
        let Some(best) = best(candidates) else {
            let absent = Status::unresolvable("Preemption is not helpful for scheduling");
            let text = fit_message(nodes.len(), None, &refused, Some(&absent), None);
            return (
                PostFilterResult {
                    nominate: Some(String::new()),
                    ..PostFilterResult::default()
                },
                refuse(text),
            );
        };
        let node = nodes[best.at].name.to_string();
        // Pods of lower priority that wait for this node have to look for another.
        let displaced: Vec<Arc<PodInfo>> = context
            .nominated
            .on_node(&node)
            .iter()
            .filter(|p| p.priority < pod.priority && p.uid != pod.uid)
            .cloned()
            .collect();
        let victims = best.victims.iter().map(|victim| victim.pods().len()).sum();
        let removal = Removal {
            client: self.client.clone(),
            preemptor: pod.key(),
            kind: "pod",
            scheduler: pod.scheduler_name().to_owned(),
            victims: best.victims,
            displaced,
        };
        state.defer(removal.carry_out().boxed());
        (
            PostFilterResult {
                nominate: Some(node),
                ask: None,
                victims,
            },
            Status::success(),
        )
    }
}

/// What extenders have left, as far as it is still there.
fn judged_candidates(
    judged: &[NodeVictims],
    context: &PostFilterContext<'_>,
    removable: &Removable,
) -> Vec<Candidate> {
    let candidate = |c: &NodeVictims| {
        let at = context.snapshot.position(&c.node.name)?;
        let within = context.within;
        if within.is_some_and(|placement| !placement.has(at)) {
            return None;
        }
        let chosen = |victim: &Victim| {
            let mut pods = victim.pods().iter();
            pods.any(|(_, pod)| c.pods.iter().any(|named| named.uid == pod.uid))
        };
        let mut victims = removable.on(at, context.snapshot.node(at));
        victims.retain(chosen);
        victims.sort_by_cached_key(Victim::order);
        (!victims.is_empty()).then_some(Candidate {
            at,
            victims,
            violations: c.violations,
        })
    };
    judged.iter().filter_map(candidate).collect()
}

/// Whether the pod may preempt at all.
fn eligible(pod: &PodInfo, context: &PostFilterContext<'_>) -> Result<(), &'static str> {
    if pod.spec().preemption_policy.as_deref() == Some("Never") {
        return Err(NEVER);
    }
    let nominated = pod
        .nominated_node()
        .or_else(|| context.nominated.node_of(&pod.uid));
    let Some(at) = nominated.and_then(|name| context.snapshot.position(name)) else {
        return Ok(());
    };
    let lost = context
        .refused
        .iter()
        .any(|(other, s)| other == at && s.code == Code::UnschedulableAndUnresolvable);
    let mut lower = context.snapshot.node(at).pods_below(pod.priority);
    if !lost && lower.any(|p| p.is_terminating()) {
        return Err("not eligible due to a terminating pod on the nominated node.");
    }
    Ok(())
}

impl DefaultPreemption {
    /// Nodes on which removing pods helps, and the reasons of those where it does not.
    fn candidates(
        &self,
        state: &CycleState,
        pod: &Arc<PodInfo>,
        context: &PostFilterContext<'_>,
        removable: &Removable,
    ) -> (Vec<Candidate>, Refusals) {
        let total = context.snapshot.nodes().len();
        let resolvable = |s: &Status| s.code == Code::Unschedulable;
        let mut potential: Vec<usize> = if context.absent.is_some_and(resolvable) {
            let known: BTreeMap<usize, &Status> = context.refused.iter().collect();
            (0..total)
                .filter(|at| known.get(at).is_none_or(|s| resolvable(s)))
                .collect()
        } else {
            let helped = context.refused.iter().filter(|(_, s)| resolvable(s));
            helped.map(|(at, _)| at).collect()
        };
        let within = context.within;
        potential.retain(|at| within.is_none_or(|placement| placement.has(*at)));
        if potential.is_empty() {
            return (Vec::new(), Refusals::default());
        }
        let wanted = self.wanted(potential.len());
        let offset = rand::Rng::random_range(&mut rand::rng(), 0..potential.len());
        let budgets = self.budgets.compiled();
        let inputs = Inputs {
            profile: context.profile,
            snapshot: context.snapshot,
            nominated: context.nominated,
            pod,
            within: context.within,
        };
        let (mut candidates, mut refused) = (Vec::new(), Refusals::default());
        for i in 0..potential.len() {
            let at = potential[(offset + i) % potential.len()];
            match victims(&inputs, state, at, &budgets, removable) {
                Ok((victims, violations)) => candidates.push(Candidate {
                    at,
                    victims,
                    violations,
                }),
                Err(status) => refused.push_shared(at, status),
            }
            // A candidate that breaks no budget is worth stopping for.
            let clean = candidates.iter().any(|c| c.violations == 0);
            if candidates.len() >= wanted && clean {
                break;
            }
        }
        (candidates, refused)
    }
}

/// Why a pod or group that must not preempt does not.
const NEVER: &str = "not eligible due to preemptionPolicy=Never.";

/// One value for all nodes, which are many.
static NO_VICTIMS: LazyLock<Arc<Status>> = LazyLock::new(|| {
    Arc::new(Status::unresolvable(
        "No preemption victims found for incoming pod",
    ))
});

/// What of lower priority must go for the pod to fit on a node, most important first, and how much
/// of it breaks a budget.
fn victims(
    inputs: &Inputs<'_>,
    state: &CycleState,
    at: usize,
    budgets: &[CompiledBudget],
    removable: &Removable,
) -> Result<(Vec<Victim>, usize), Arc<Status>> {
    let pod = inputs.pod;
    let Inputs {
        profile, snapshot, ..
    } = *inputs;
    let world = (profile, snapshot);
    let node = snapshot.node(at);
    let mut lower = removable.on(at, node);
    if lower.is_empty() {
        return Err(NO_VICTIMS.clone());
    }
    let mut state = state.imagine();
    let mut node = node.clone();
    for other in &lower {
        other.set_there(false, world, &mut state, pod, (at, &mut node));
    }
    let status = filters_with_nominated(inputs, &state, &node);
    if !status.is_success() {
        return Err(Arc::new(status));
    }
    // Put back as many as can stay, the most important ones first.
    lower.sort_by_cached_key(Victim::order);
    let (violating, sparing) = split_by_budgets(&lower, budgets);
    let mut victims = Vec::new();
    let mut violations = 0;
    for (other, violates) in violating
        .iter()
        .map(|p| (p, true))
        .chain(sparing.iter().map(|p| (p, false)))
    {
        other.set_there(true, world, &mut state, pod, (at, &mut node));
        if filters_with_nominated(inputs, &state, &node).is_success() {
            continue;
        }
        other.set_there(false, world, &mut state, pod, (at, &mut node));
        victims.push(other.clone());
        violations += usize::from(violates);
    }
    victims.sort_by_cached_key(Victim::order);
    if victims.is_empty() {
        return Err(NO_VICTIMS.clone());
    }
    Ok((victims, violations))
}

/// The candidate that hurts least: fewest budgets broken, then the least important victim, the
/// smallest sum of priorities, the fewest victims, the youngest victims.
fn best(candidates: Vec<Candidate>) -> Option<Candidate> {
    candidates.into_iter().min_by_key(Candidate::cost)
}

impl GroupPostFilter for DefaultPreemption {
    fn removable(
        &self,
        group: &PodGroup,
        members: &[Arc<PodInfo>],
        snapshot: &Snapshot,
    ) -> Result<Removable, String> {
        if let Some(why) = self.groups.unknown() {
            return Err(why.to_owned());
        }
        let never = |pod: &Arc<PodInfo>| pod.spec().preemption_policy.as_deref() == Some("Never");
        if members.iter().any(never) {
            return Err(NEVER.to_owned());
        }
        let member = members.first().ok_or("no pods to make room for")?;
        let priority = pod_groups::priority(group);
        let removing = self.removing.pods();
        let removable = Removable::for_group(member, priority, &self.groups, removing, snapshot);
        Ok(removable)
    }

    fn room(
        &self,
        state: &CycleState,
        pod: &Arc<PodInfo>,
        context: &PostFilterContext<'_>,
        removable: &Removable,
    ) -> Option<Vec<Victim>> {
        let (candidates, _) = self.candidates(state, pod, context, removable);
        best(candidates).map(|best| best.victims)
    }

    fn by_importance(&self, mut victims: Vec<Victim>) -> (Vec<Victim>, usize) {
        victims.sort_by_cached_key(Victim::order);
        let (mut violating, sparing) = split_by_budgets(&victims, &self.budgets.compiled());
        let violations = violating.len();
        violating.extend(sparing);
        (violating, violations)
    }

    fn remove(
        &self,
        group: &PodGroup,
        scheduler: &str,
        victims: Vec<Victim>,
        displaced: Vec<Arc<PodInfo>>,
    ) -> BoxFuture<'static, ()> {
        let meta = &group.metadata;
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let removal = Removal {
            client: self.client.clone(),
            preemptor: format!("{}/{}", text(&meta.namespace), text(&meta.name)),
            kind: "podgroup",
            scheduler: scheduler.to_owned(),
            victims,
            displaced,
        };
        let entered = self.removing.enter(&removal.victims);
        let carry_out = async move {
            removal.carry_out().await;
            drop(entered);
        };
        carry_out.boxed()
    }
}

#[cfg(test)]
mod tests;
