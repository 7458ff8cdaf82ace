//! Placements that take more pods of a group are better (KEP-5732).

use std::sync::Arc;

use crate::framework::{PlacementScore, Plugin, Points, ProposedPlacement, default_normalize};

/// The plugin `PodGroupPodsCount`.
#[derive(Debug)]
pub struct PodGroupPodsCount;

impl Plugin for PodGroupPodsCount {
    fn name(&self) -> &'static str {
        "PodGroupPodsCount"
    }

    fn attach(self: Arc<Self>, points: &mut Points) {
        points.placement_score.push(self);
    }
}

impl PlacementScore for PodGroupPodsCount {
    fn score_placement(&self, proposed: ProposedPlacement<'_>) -> i64 {
        // with those that had nodes before, so that few more make a small difference
        i64::try_from(proposed.scheduled + proposed.pods.len()).unwrap_or(i64::MAX)
    }

    fn normalize_placements(&self, scores: &mut [i64]) {
        default_normalize(scores, false);
    }
}
