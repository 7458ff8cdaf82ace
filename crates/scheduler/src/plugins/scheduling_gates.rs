//! Holds pods back as long as they have scheduling gates.

use std::sync::Arc;

use crate::framework::{Action, ClusterEvent, EventResource, Plugin, Points, PreEnqueue, Status};
use crate::pod::PodInfo;

/// The plugin `SchedulingGates` (KEP-3521).
#[derive(Debug)]
pub struct SchedulingGates;

impl Plugin for SchedulingGates {
    fn name(&self) -> &'static str {
        "SchedulingGates"
    }

    fn attach(self: Arc<Self>, points: &mut Points) {
        points.pre_enqueue.push(self);
    }

    fn events(&self) -> Vec<ClusterEvent> {
        vec![ClusterEvent::new(
            EventResource::TargetPod,
            Action::UPDATE_GATES,
        )]
    }
}

impl PreEnqueue for SchedulingGates {
    fn pre_enqueue(&self, pod: &PodInfo) -> Status {
        let gates = pod.spec().scheduling_gates.iter().flatten();
        let names: Vec<&str> = gates.map(|g| g.name.as_str()).collect();
        if names.is_empty() {
            return Status::success();
        }
        Status::unresolvable(format!(
            "waiting for scheduling gates: [{}]",
            names.join(" ")
        ))
    }
}
