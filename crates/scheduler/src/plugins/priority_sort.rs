//! Orders the queue by priority.

use std::sync::Arc;

use crate::framework::{Plugin, Points, QueueSort};
use crate::pod::PodInfo;
use crate::pod_groups::PodGroups;

/// The plugin `PrioritySort`: higher priority first, then order of arrival. A pod counts as much as its group where that has a
/// higher priority.
#[derive(Debug)]
pub struct PrioritySort {
    groups: PodGroups,
}

impl PrioritySort {
    /// A plugin that knows the priorities of these groups.
    pub fn new(groups: PodGroups) -> Self {
        Self { groups }
    }
}

impl Plugin for PrioritySort {
    fn name(&self) -> &'static str {
        "PrioritySort"
    }

    fn attach(self: Arc<Self>, points: &mut Points) {
        points.queue_sort = Some(self);
    }
}

impl QueueSort for PrioritySort {
    fn rank(&self, pod: &PodInfo) -> i64 {
        i64::from(self.groups.standing(pod))
    }
}
