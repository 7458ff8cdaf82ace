//! Gangs (KEP-4671): the pods of a group that asks for it get their nodes together, so many at least, or none does.

use std::sync::Arc;
use std::time::Duration;

use crate::framework::{
    Action, ClusterEvent, Code, CycleState, EventObject, EventResource, Hint, Permit, Plugin,
    Points, PreEnqueue, Status,
};
use crate::pod::PodInfo;
use crate::pod_groups::PodGroups;

/// How long pods wait for the rest of their gang, where they wait one by one.
const PATIENCE: Duration = Duration::from_secs(300);

/// The plugin `GangScheduling`.
#[derive(Debug)]
pub struct GangScheduling {
    groups: PodGroups,
}

impl GangScheduling {
    /// A plugin that decides by these groups.
    pub fn new(groups: PodGroups) -> Self {
        Self { groups }
    }
}

impl Plugin for GangScheduling {
    fn name(&self) -> &'static str {
        "GangScheduling"
    }

    fn attach(self: Arc<Self>, points: &mut Points) {
        points.pre_enqueue.push(self.clone());
        points.permit.push(self);
    }

    fn events(&self) -> Vec<ClusterEvent> {
        let added = |resource| ClusterEvent::new(resource, Action::ADD);
        vec![
            added(EventResource::UnscheduledPod),
            added(EventResource::AssignedPod),
            added(EventResource::PodGroup),
        ]
    }

    fn hint(&self, _: &ClusterEvent, pod: &PodInfo, object: &EventObject) -> Hint {
        let Some(group) = &pod.pod_group else {
            return Hint::Skip;
        };
        let mine = match object {
            EventObject::Pod { new: Some(new), .. } => {
                new.namespace == pod.namespace && new.pod_group.as_ref() == Some(group)
            }
            EventObject::PodGroup { new: Some(new), .. } => pod.belongs_to(new),
            _ => true,
        };
        if mine { Hint::Queue } else { Hint::Skip }
    }
}

/// How many pods of a gang have to get nodes together.
fn wanted(count: i32) -> usize {
    usize::try_from(count).unwrap_or(0)
}

impl PreEnqueue for GangScheduling {
    fn pre_enqueue(&self, pod: &PodInfo) -> Status {
        let Some(name) = &pod.pod_group else {
            return Status::success();
        };
        let Some(group) = self.groups.of(pod) else {
            return Status::unresolvable(format!(
                "waiting for pods's pod group {name:?} to appear in scheduling queue"
            ));
        };
        let gang = group.spec.scheduling_policy.gang.as_ref();
        if gang.is_some_and(|gang| self.groups.size(pod).pods < wanted(gang.min_count)) {
            return Status::unresolvable(
                "waiting for minCount pods from a gang to appear in scheduling queue",
            );
        }
        Status::success()
    }
}

impl Permit for GangScheduling {
    fn permit(&self, _: &mut CycleState, pod: &PodInfo, _: &str) -> (Status, Duration) {
        let go = (Status::success(), Duration::ZERO);
        let Some(name) = &pod.pod_group else {
            return go;
        };
        let Some(group) = self.groups.of(pod) else {
            let namespace = &pod.namespace;
            let text = format!(
                "failed to get podGroup {namespace}/{name}: podgroup.scheduling.k8s.io {name:?} not found"
            );
            return (Status::error(text), Duration::ZERO);
        };
        let gang = group.spec.scheduling_policy.gang.as_ref();
        if gang.is_some_and(|gang| self.groups.size(pod).scheduled < wanted(gang.min_count)) {
            let text = "waiting for minCount pods from a gang to be scheduled";
            return (Status::new(Code::Wait, text), PATIENCE);
        }
        go
    }

    fn may_pass_with(&self, pod: &PodInfo, more: usize) -> bool {
        let group = self.groups.of(pod);
        let gang = group
            .as_ref()
            .and_then(|group| group.spec.scheduling_policy.gang.as_ref());
        gang.is_none_or(|gang| self.groups.size(pod).scheduled + more >= wanted(gang.min_count))
    }
}
