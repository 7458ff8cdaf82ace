//! The extenders' say in an attempt.

use std::sync::Arc;

use super::Inputs;
use crate::extender::{ExtenderAnswers, ExtenderQuestion, Extenders};
use crate::framework::Status;
use crate::node::NodeInfo;

/// The extenders that take part in an attempt, and what they have said so far.
#[derive(Debug, Clone, Copy)]
pub struct Consulted<'a> {
    /// All of them.
    pub extenders: &'a Extenders,
    /// What they have said.
    pub answers: &'a ExtenderAnswers,
}

/// What extenders say of nodes that the plugins let pass.
pub(super) struct Panel<'a> {
    inputs: &'a Inputs<'a>,
    consulted: Consulted<'a>,
    /// Whether they have a say at all.
    filters: bool,
    scores: bool,
    /// The nodes they have not been asked about.
    pub(super) unasked: Vec<usize>,
}

pub(super) enum Judgement {
    Fits,
    Refused(Status),
    Unasked,
}

impl<'a> Panel<'a> {
    pub(super) fn new(inputs: &'a Inputs<'a>, consulted: Consulted<'a>) -> Self {
        Self {
            inputs,
            consulted,
            filters: consulted.extenders.filter_for(inputs.pod),
            scores: consulted.extenders.score_for(inputs.pod),
            unasked: Vec::new(),
        }
    }

    /// Whether extenders filter or score nodes for this pod.
    pub(super) fn has_a_say(&self) -> bool {
        self.filters || self.scores
    }

    pub(super) fn judge(&mut self, at: usize) -> Judgement {
        if !self.has_a_say() {
            return Judgement::Fits;
        }
        let name = &self.inputs.snapshot.node(at).name;
        match self.consulted.answers.of_node(name) {
            Some(None) => Judgement::Fits,
            Some(Some(status)) => Judgement::Refused(status.clone()),
            None => {
                self.unasked.push(at);
                Judgement::Unasked
            }
        }
    }

    pub(super) fn question(self) -> Option<ExtenderQuestion> {
        let nodes = self.inputs.snapshot.nodes();
        let nodes: Vec<Arc<NodeInfo>> = self.unasked.iter().map(|&at| nodes[at].clone()).collect();
        (!nodes.is_empty()).then_some(ExtenderQuestion::Nodes(nodes))
    }
}
