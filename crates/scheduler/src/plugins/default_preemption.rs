//! Makes room for a pod by removing pods of lower priority.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use futures::FutureExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use parking_lot::RwLock;
use serde_json::json;

use crate::config::DefaultPreemptionArgs;
use crate::cycle::{Inputs, add_pod, filters_with_nominated, fit_message, remove_pod};
use crate::extender::{Extenders, NodeVictims};
use crate::framework::{
    Action, ClusterEvent, Code, CycleState, EventObject, EventResource, Hint, Plugin, Points,
    PostFilter, PostFilterContext, PostFilterResult, Refusals, Status,
};
use crate::node::NodeInfo;
use crate::pod::PodInfo;
use crate::selector::Selector;

/// How long removing one victim may take.
const DEADLINE: Duration = Duration::from_secs(30);

/// The disruption budgets of the cluster, as far as they are known. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Budgets {
    list: Arc<RwLock<Vec<Arc<PodDisruptionBudget>>>>,
}

impl Budgets {
    /// Takes over the budgets as they are now.
    pub fn replace(&self, budgets: Vec<Arc<PodDisruptionBudget>>) {
        *self.list.write() = budgets;
    }
}

/// The plugin `DefaultPreemption`.
pub struct DefaultPreemption {
    client: kube::Client,
    budgets: Budgets,
    extenders: Extenders,
    /// Share of the nodes on which preemption is tried, in percent.
    candidate_percentage: usize,
    /// How many at least.
    least_candidates: usize,
}

/// The pods to remove from one node.
#[derive(Debug, Clone)]
struct Candidate {
    at: usize,
    /// Most important first.
    victims: Vec<Arc<PodInfo>>,
    violations: usize,
}

impl DefaultPreemption {
    /// A plugin that removes pods through this client and spares those under these budgets where
    /// it can.
    pub fn new(client: kube::Client, budgets: Budgets) -> Self {
        let this = Self {
            client,
            budgets,
            extenders: Extenders::default(),
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
        if let Err(reason) = eligible(pod, context) {
            return (PostFilterResult::default(), refuse(reason.to_owned()));
        }
        let nodes = context.snapshot.nodes();
        let (candidates, refused) = match context.judged {
            Some(judged) => (judged_candidates(judged, context), Refusals::default()),
            None => self.candidates(state, pod, context),
        };
        if context.judged.is_none() && !candidates.is_empty() && self.extenders.preempt_for(pod) {
            let shown = candidates.into_iter().map(|c| NodeVictims {
                node: nodes[c.at].clone(),
                pods: c.victims,
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
                    ask: None,
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
        let effect = remove_victims(self.client.clone(), pod.clone(), best.victims, displaced);
        state.defer(effect.boxed());
        (
            PostFilterResult {
                nominate: Some(node),
                ask: None,
            },
            Status::success(),
        )
    }
}

/// What extenders have left, as far as it is still there.
fn judged_candidates(judged: &[NodeVictims], context: &PostFilterContext<'_>) -> Vec<Candidate> {
    let candidate = |c: &NodeVictims| {
        let at = context.snapshot.position(&c.node.name)?;
        let there = &context.snapshot.node(at).pods;
        let victims = c
            .pods
            .iter()
            .filter(|p| there.iter().any(|o| o.uid == p.uid));
        let victims: Vec<Arc<PodInfo>> = victims.cloned().collect();
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
        return Err("not eligible due to preemptionPolicy=Never.");
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
        let budgets = CompiledBudget::all(&self.budgets);
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
            let node = context.snapshot.node(at);
            match victims(&inputs, state, node, &budgets) {
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

/// One value for all nodes, which are many.
static NO_VICTIMS: LazyLock<Arc<Status>> = LazyLock::new(|| {
    Arc::new(Status::unresolvable(
        "No preemption victims found for incoming pod",
    ))
});

/// The pods of lower priority that must go for the pod to fit, most important first, and how many
/// of them break a budget.
fn victims(
    inputs: &Inputs<'_>,
    state: &CycleState,
    node: &NodeInfo,
    budgets: &[CompiledBudget],
) -> Result<(Vec<Arc<PodInfo>>, usize), Arc<Status>> {
    let pod = inputs.pod;
    let Inputs {
        profile, snapshot, ..
    } = *inputs;
    let mut lower: Vec<Arc<PodInfo>> = node.pods_below(pod.priority).cloned().collect();
    if lower.is_empty() {
        return Err(NO_VICTIMS.clone());
    }
    let mut state = state.imagine();
    let mut node = node.clone();
    for other in &lower {
        remove_pod(profile, &mut state, pod, other, &mut node, snapshot);
    }
    let status = filters_with_nominated(inputs, &state, &node);
    if !status.is_success() {
        return Err(Arc::new(status));
    }
    // Put back as many as can stay, the most important ones first.
    lower.sort_by_key(|p| (std::cmp::Reverse(p.priority), p.start_time()));
    let (violating, sparing) = split_by_budgets(&lower, budgets);
    let mut victims = Vec::new();
    let mut violations = 0;
    for (other, violates) in violating
        .iter()
        .map(|p| (p, true))
        .chain(sparing.iter().map(|p| (p, false)))
    {
        add_pod(profile, &mut state, pod, other, &mut node, snapshot);
        if filters_with_nominated(inputs, &state, &node).is_success() {
            continue;
        }
        remove_pod(profile, &mut state, pod, other, &mut node, snapshot);
        victims.push(other.clone());
        violations += usize::from(violates);
    }
    victims.sort_by_key(|p| (std::cmp::Reverse(p.priority), p.start_time()));
    if victims.is_empty() {
        return Err(NO_VICTIMS.clone());
    }
    Ok((victims, violations))
}

struct CompiledBudget {
    namespace: String,
    selector: Selector,
    allowed: i32,
    disrupted: Vec<String>,
}

impl CompiledBudget {
    fn all(budgets: &Budgets) -> Vec<Self> {
        let compile = |budget: &Arc<PodDisruptionBudget>| {
            let status = budget.status.as_ref();
            let selector = budget.spec.as_ref().and_then(|s| s.selector.as_ref());
            Self {
                namespace: budget.metadata.namespace.clone().unwrap_or_default(),
                selector: Selector::new(selector),
                allowed: status.and_then(|s| s.disruptions_allowed).unwrap_or(0),
                disrupted: status
                    .and_then(|s| s.disrupted_pods.as_ref())
                    .map(|pods| pods.keys().cloned().collect())
                    .unwrap_or_default(),
            }
        };
        budgets.list.read().iter().map(compile).collect()
    }
}

/// Pods whose removal would break a budget, if the others go first; and those others.
fn split_by_budgets(
    pods: &[Arc<PodInfo>],
    budgets: &[CompiledBudget],
) -> (Vec<Arc<PodInfo>>, Vec<Arc<PodInfo>>) {
    let mut allowed: Vec<i32> = budgets.iter().map(|b| b.allowed).collect();
    let mut violates = |pod: &Arc<PodInfo>| {
        let mut violates = false;
        for (budget, allowed) in budgets.iter().zip(&mut allowed) {
            let covers = *budget.namespace == *pod.namespace
                && !pod.labels().is_empty()
                && budget.selector.matches(pod.labels());
            if covers && !budget.disrupted.iter().any(|name| **name == *pod.name) {
                *allowed -= 1;
                violates |= *allowed < 0;
            }
        }
        violates
    };
    pods.iter().cloned().partition(|pod| violates(pod))
}

/// The candidate that hurts least: fewest budgets broken, then the least important victim, the
/// smallest sum of priorities, the fewest victims, the youngest victims.
fn best(candidates: Vec<Candidate>) -> Option<Candidate> {
    candidates.into_iter().min_by_key(|c| {
        let highest = c.victims.first().map_or(i32::MIN, |v| v.priority);
        // Shifted so that more victims of negative priority do not look better.
        let sum: i64 = c
            .victims
            .iter()
            .map(|v| i64::from(v.priority) + i64::from(i32::MAX) + 1)
            .sum();
        let oldest = c
            .victims
            .iter()
            .filter(|v| v.priority == highest)
            .map(|v| v.start_time())
            .min()
            .unwrap_or(Timestamp::MAX);
        (
            c.violations,
            highest,
            sum,
            c.victims.len(),
            std::cmp::Reverse(oldest),
        )
    })
}

/// Removes the victims and takes back the nominations of pods that lost the node.
async fn remove_victims(
    client: kube::Client,
    pod: Arc<PodInfo>,
    victims: Vec<Arc<PodInfo>>,
    displaced: Vec<Arc<PodInfo>>,
) {
    for other in displaced {
        let api: Api<Pod> = Api::namespaced(client.clone(), &other.namespace);
        let patch =
            json!({"metadata": {"uid": &*other.uid}, "status": {"nominatedNodeName": null}});
        let (params, patch) = (PatchParams::default(), Patch::Strategic(patch));
        let write = api.patch_status(&other.name, &params, &patch);
        if let Ok(Err(error)) = tokio::time::timeout(DEADLINE, write).await {
            tracing::warn!(
                pod = other.key(),
                error = davit_client::message_of(&error),
                "nomination could not be taken back"
            );
        }
    }
    for victim in victims.into_iter().filter(|v| !v.is_terminating()) {
        match tokio::time::timeout(DEADLINE, remove_victim(&client, &pod, &victim)).await {
            Ok(Ok(())) => tracing::info!(pod = pod.key(), victim = victim.key(), "preempted"),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => {}
            Ok(Err(error)) => {
                tracing::warn!(
                    pod = pod.key(),
                    victim = victim.key(),
                    error = davit_client::message_of(&error),
                    "victim stays"
                );
            }
            Err(_) => tracing::warn!(
                pod = pod.key(),
                victim = victim.key(),
                "removal took too long"
            ),
        }
    }
}

async fn remove_victim(
    client: &kube::Client,
    pod: &PodInfo,
    victim: &PodInfo,
) -> Result<(), kube::Error> {
    let api: Api<Pod> = Api::namespaced(client.clone(), &victim.namespace);
    let message = format!(
        "{}: preempting to accommodate a higher priority pod",
        pod.scheduler_name()
    );
    let condition = json!({
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": message,
        "lastTransitionTime": k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::now()),
    });
    let patch = json!({"metadata": {"uid": &*victim.uid}, "status": {"conditions": [condition]}});
    api.patch_status(
        &victim.name,
        &PatchParams::default(),
        &Patch::Strategic(patch),
    )
    .await?;
    let preconditions = Preconditions {
        uid: Some(victim.uid.to_string()),
        ..Preconditions::default()
    };
    let params = DeleteParams {
        preconditions: Some(preconditions),
        ..DeleteParams::default()
    };
    api.delete(&victim.name, &params).await?;
    Ok(())
}

#[cfg(test)]
mod tests;
