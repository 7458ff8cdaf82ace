//! Orders the queue by priority.

use std::sync::Arc;

use crate::framework::{Plugin, Points, QueueSort};
use crate::pod::PodInfo;

/// The plugin `PrioritySort`: higher priority first, then order of arrival.
#[derive(Debug)]
pub struct PrioritySort;

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
        i64::from(pod.priority)
    }
}
