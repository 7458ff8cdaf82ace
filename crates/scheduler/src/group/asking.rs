//! Extenders and groups: a decision that needs their answers ends with all questions that it comes to, about every pod and in
//! every placement, so that it takes few rounds.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{GroupCycle, GroupDecision, GroupVerdict, Trial};
use crate::extender::{ExtenderAnswers, ExtenderQuestion};
use crate::framework::Status;
use crate::pod::PodInfo;

/// What extenders have said about pods, by the pods' UIDs.
pub type GroupAnswers = HashMap<Arc<str>, ExtenderAnswers>;

/// What extenders have to be asked about a pod of a group.
#[derive(Debug)]
pub struct GroupQuestion {
    /// The pod.
    pub pod: Arc<PodInfo>,
    /// The question.
    pub question: ExtenderQuestion,
    /// Where the search for nodes began, which begins there again.
    pub start: usize,
}

impl GroupQuestion {
    /// Adds what another question about the same pod is about. One about nodes goes first.
    fn join(&mut self, other: ExtenderQuestion) {
        use ExtenderQuestion::{Nodes, Victims};
        match (&mut self.question, other) {
            (Nodes(known), Nodes(more)) => {
                let names: HashSet<Arc<str>> = known.iter().map(|n| n.name.clone()).collect();
                known.extend(more.into_iter().filter(|n| !names.contains(&n.name)));
            }
            (Victims(known), Victims(more)) => {
                let names: HashSet<Arc<str>> = known.iter().map(|v| v.node.name.clone()).collect();
                known.extend(more.into_iter().filter(|v| !names.contains(&v.node.name)));
            }
            (question @ Victims(_), Nodes(nodes)) => *question = Nodes(nodes),
            (Nodes(_), Victims(_)) => {}
        }
    }
}

/// One question a pod.
pub(super) fn joined(questions: Vec<GroupQuestion>) -> Vec<GroupQuestion> {
    let mut of_pod: HashMap<Arc<str>, usize> = HashMap::new();
    let mut list: Vec<GroupQuestion> = Vec::new();
    for asked in questions {
        match of_pod.get(&asked.pod.uid) {
            Some(at) => list[*at].join(asked.question),
            None => {
                of_pod.insert(asked.pod.uid.clone(), list.len());
                list.push(asked);
            }
        }
    }
    list
}

/// Nothing is decided before these are answered.
pub(super) fn undecided(questions: Vec<GroupQuestion>) -> GroupDecision {
    GroupDecision {
        verdict: GroupVerdict::Asks,
        placed: Vec::new(),
        refused: Vec::new(),
        removed: Vec::new(),
        questions: joined(questions),
    }
}

impl GroupCycle<'_> {
    /// The decision waits for answers. What was placed is undone.
    pub(super) fn ask(&mut self, trial: Trial) -> GroupDecision {
        for place in trial.placed {
            drop(self.undo(place, Status::success()));
        }
        undecided(trial.questions)
    }
}
