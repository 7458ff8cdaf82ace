//! What filters said of nodes, kept for pods alike.
//!
//! Pods from one template ask the same of nodes of which between two of them one or two change. What a filter says that
//! [signs](crate::framework::Filter::sign_pod) what it looks at is kept until the node changes; the others are asked each time.

use super::{Inputs, filters_with_nominated};
use crate::framework::{Code, CycleState, Profile, SharedRefusals, Signature, Status};
use crate::pod::PodInfo;
use std::sync::Arc;

/// For how many kinds of pods answers are kept; those asked for least recently go first. A kind takes 24 bytes a node.
const MOST_CLASSES: usize = 16;

/// Answers of filters about the nodes of one cache, for pods alike.
#[derive(Debug, Default)]
pub(super) struct EquivalenceCache {
    /// Those used last come last.
    classes: Vec<EquivalenceClass>,
}

/// Pods of which filters say the same, and what they said.
#[derive(Debug)]
pub(super) struct EquivalenceClass {
    signature: u64,
    /// The filters whose answers are kept, by place in the profile.
    kept: Vec<usize>,
    /// Those that are asked each time.
    asked: Vec<usize>,
    /// By place of the node.
    nodes: Vec<Kept>,
    refusals: SharedRefusals,
}

/// What the filters said whose answers are kept.
#[derive(Debug, Clone, Default)]
struct Kept {
    /// Of which state of which node; none has 0.
    generation: u64,
    refusal: Option<Refused>,
}

/// The first refusal.
#[derive(Debug, Clone)]
struct Refused {
    /// The filter's place in the profile.
    filter: usize,
    status: Arc<Status>,
}

impl EquivalenceCache {
    /// The class of a pod for which these filters are skipped.
    pub(super) fn class(
        &mut self,
        profile: &Profile,
        pod: &PodInfo,
        skipped: u64,
    ) -> &mut EquivalenceClass {
        let (mut kept, mut asked) = (Vec::new(), Vec::new());
        let mut signature = Signature::default();
        signature.add(profile.name());
        for (i, filter) in profile.points.filter.iter().enumerate() {
            if skipped & (1 << i) == 0 {
                let signs = filter.sign_pod(pod, &mut signature);
                if signs { &mut kept } else { &mut asked }.push(i);
            }
        }
        signature.add(&kept);
        let signature = signature.finish();
        let known = self.classes.iter().position(|c| c.signature == signature);
        let mut class = match known {
            Some(at) => self.classes.remove(at),
            None => EquivalenceClass {
                signature,
                kept,
                asked: Vec::new(),
                nodes: Vec::new(),
                refusals: SharedRefusals::default(),
            },
        };
        class.asked = asked;
        if self.classes.len() >= MOST_CLASSES {
            self.classes.remove(0);
        }
        self.classes.push(class);
        let last = self.classes.len() - 1;
        &mut self.classes[last]
    }
}

impl EquivalenceClass {
    /// What [`filters_with_nominated`] would say of the node at this place; `None` if they let it pass.
    pub(super) fn filters(
        &mut self,
        inputs: &Inputs<'_>,
        state: &CycleState,
        at: usize,
    ) -> Option<Arc<Status>> {
        let Inputs {
            profile,
            snapshot,
            nominated,
            pod,
            within: _,
        } = *inputs;
        // With pods in mind that wait for it, the node is another.
        let is_awaited = |name: &str| !nominated.on_node(name).is_empty();
        if !nominated.is_empty() && is_awaited(&snapshot.node(at).name) {
            let status = filters_with_nominated(inputs, state, snapshot.node(at));
            return (!status.is_success()).then(|| self.refusals.share(status));
        }
        let generation = snapshot.generation(at);
        if self.nodes.len() <= at {
            self.nodes.resize(snapshot.nodes().len(), Kept::default());
        }
        let Self {
            kept,
            asked,
            nodes,
            refusals,
            ..
        } = self;
        let mut ask = |i: usize| {
            let filter = &profile.points.filter[i];
            let status = filter.filter(state, pod, snapshot.node(at));
            (!status.is_success()).then(|| refusals.share(status.by(filter.name())))
        };
        let known = &mut nodes[at];
        if known.generation != generation {
            let refusal = kept.iter().find_map(|&filter| {
                let status = ask(filter)?;
                Some(Refused { filter, status })
            });
            if let Some(error) = refusal.as_ref().filter(|r| r.status.code == Code::Error) {
                return Some(error.status.clone());
            }
            *known = Kept {
                generation,
                refusal,
            };
        }
        // The first that refuses in the profile's order has the word.
        let before = |i: &&usize| known.refusal.as_ref().is_none_or(|r| **i < r.filter);
        let asked = asked.iter().take_while(before).find_map(|&i| ask(i));
        asked.or_else(|| known.refusal.as_ref().map(|r| r.status.clone()))
    }
}

#[cfg(test)]
mod tests;
