//! What the informers report.

use std::sync::Arc;

use davit_api::classic::{
    PodScheduling, ResourceClaim as ClassicClaim, ResourceClass as ClassicClass,
};
use davit_api::pod_groups::pod_group_of;
use davit_client::{Change, FeedEvent};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;

use super::engine::{Engine, now};
use crate::classic;
use crate::devices::Watched;
use crate::framework::{Action, ClusterEvent, EventObject, EventResource, node_action, pod_action};
use crate::pod::PodInfo;

const NODES: usize = 0;
const PODS: usize = 1;
const NAMESPACES: usize = 2;

impl Engine {
    pub(super) fn node(&mut self, change: Change<Node>) {
        let event = |action| ClusterEvent::new(EventResource::Node, action);
        match change {
            Change::Synced => self.synced[NODES] = true,
            Change::Applied { old: None, new } => {
                self.cache.set_node(new.clone());
                self.know_node(&new, true);
                let object = EventObject::Node {
                    old: None,
                    new: Some(new),
                };
                self.event("NodeAdd", event(Action::ADD), &object);
            }
            Change::Applied {
                old: Some(old),
                new,
            } => {
                self.cache.set_node(new.clone());
                self.know_node(&new, true);
                let action = node_action(&old, &new);
                let object = EventObject::Node {
                    old: Some(old),
                    new: Some(new),
                };
                self.event("NodeUpdate", event(action), &object);
            }
            Change::Deleted(node) => {
                self.cache
                    .remove_node(node.metadata.name.as_deref().unwrap_or_default());
                self.know_node(&node, false);
                let object = EventObject::Node {
                    old: Some(node),
                    new: None,
                };
                self.event("NodeDelete", event(Action::DELETE), &object);
            }
        }
    }

    /// Bindings that wait for volumes look at their nodes.
    fn know_node(&self, node: &Arc<Node>, there: bool) {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        self.volumes.set_node(name, there.then(|| node.clone()));
    }

    pub(super) fn namespace(&mut self, change: Change<Namespace>) {
        let (namespace, labels, action) = match change {
            Change::Synced => {
                self.synced[NAMESPACES] = true;
                return;
            }
            Change::Applied { old, new } => {
                let labels = new.metadata.labels.clone().unwrap_or_default();
                let action = match &old {
                    None => Action::ADD,
                    Some(old) if old.metadata.labels != new.metadata.labels => Action::UPDATE_LABEL,
                    Some(_) => return,
                };
                (new, Some(labels), action)
            }
            Change::Deleted(namespace) => (namespace, None, Action::DELETE),
        };
        let name = namespace.metadata.name.as_deref().unwrap_or_default();
        self.cache.set_namespace(name, labels);
        let event = ClusterEvent::new(EventResource::Namespace, action);
        self.event("NamespaceChange", event, &EventObject::Other);
    }

    /// Some node publishes another topology.
    pub(super) fn topologies(&mut self) {
        let event = ClusterEvent::new(EventResource::NodeResourceTopology, Action::UPDATE_OTHER);
        self.event("NodeResourceTopologyChange", event, &EventObject::Other);
    }

    /// All of a kind that devices are decided by is known: pods that waited for it may go on.
    fn devices_synced(&mut self, what: Watched) {
        self.devices.synced(what);
        self.claims_known();
    }

    /// Pods that waited until all claims are known may go on, if they are.
    fn claims_known(&mut self) {
        self.look_at_strays = true;
        if self.devices.is_synced() {
            let event = ClusterEvent::new(EventResource::ResourceClaim, Action::ADD);
            self.event("ResourceClaimSynced", event, &EventObject::Other);
        }
    }

    pub(super) fn claim(&mut self, change: Change<ResourceClaim>) {
        self.look_at_strays = true;
        let (old, new, action, label) = match change {
            Change::Synced => return self.devices_synced(Watched::Claims),
            Change::Applied { old, new } => {
                self.devices.set_claim(new.clone());
                match old {
                    None => (None, Some(new), Action::ADD, "ResourceClaimAdd"),
                    old => (old, Some(new), Action::UPDATE_OTHER, "ResourceClaimUpdate"),
                }
            }
            Change::Deleted(claim) => {
                self.devices.remove_claim(&claim);
                (Some(claim), None, Action::DELETE, "ResourceClaimDelete")
            }
        };
        let event = ClusterEvent::new(EventResource::ResourceClaim, action);
        self.event(label, event, &EventObject::Claim { old, new });
    }

    /// There is no classic API.
    pub(super) fn no_classic_claims(&mut self) {
        self.devices.classic().set_absent();
        self.claims_known();
    }

    fn classic_synced(&mut self, what: classic::Watched) {
        self.devices.classic().synced(what);
        self.claims_known();
    }

    pub(super) fn classic_claim(&mut self, change: Change<ClassicClaim>) {
        self.look_at_strays = true;
        let (old, new, action) = match change {
            Change::Synced => return self.classic_synced(classic::Watched::Claims),
            Change::Applied { old, new } => {
                self.devices.classic().set_claim(new.clone());
                let action = match old {
                    None => Action::ADD,
                    Some(_) => Action::UPDATE_OTHER,
                };
                (old, Some(new), action)
            }
            Change::Deleted(claim) => {
                self.devices.classic().remove_claim(&claim);
                (Some(claim), None, Action::DELETE)
            }
        };
        let event = ClusterEvent::new(EventResource::ClassicClaim, action);
        let object = EventObject::ClassicClaim { old, new };
        self.event("ClassicClaimChange", event, &object);
    }

    pub(super) fn classic_class(&mut self, change: Change<ClassicClass>) {
        let action = match change {
            Change::Synced => return self.classic_synced(classic::Watched::Classes),
            Change::Applied { old, new } => {
                let name = new.metadata.name.clone().unwrap_or_default();
                self.devices.classic().set_class(&name, Some(new));
                if old.is_none() {
                    Action::ADD
                } else {
                    Action::UPDATE_OTHER
                }
            }
            Change::Deleted(class) => {
                let name = class.metadata.name.as_deref().unwrap_or_default();
                return self.devices.classic().set_class(name, None);
            }
        };
        let event = ClusterEvent::new(EventResource::ResourceClass, action);
        self.event("ResourceClassChange", event, &EventObject::Other);
    }

    pub(super) fn pod_scheduling(&mut self, change: Change<PodScheduling>) {
        self.look_at_strays = true;
        match change {
            Change::Synced => self.classic_synced(classic::Watched::Schedulings),
            Change::Deleted(old) => self.devices.classic().remove_scheduling(&old),
            Change::Applied { old, new } => {
                self.devices.classic().set_scheduling(new.clone());
                let action = match old {
                    None => Action::ADD,
                    Some(_) => Action::UPDATE_OTHER,
                };
                let event = ClusterEvent::new(EventResource::PodScheduling, action);
                let object = EventObject::PodScheduling { old, new };
                self.event("PodSchedulingChange", event, &object);
            }
        }
    }

    pub(super) fn slice(&mut self, event: FeedEvent<ResourceSlice>) {
        self.look_at_strays = true;
        let action = match event {
            FeedEvent::Synced => return self.devices_synced(Watched::Slices),
            FeedEvent::Applied { object, first } => {
                self.devices.set_slice(&object);
                if first {
                    Action::ADD
                } else {
                    Action::UPDATE_OTHER
                }
            }
            FeedEvent::Deleted(key) => {
                self.devices.remove_slice(&key.name);
                // What was in the way of "all" or of a newer generation may be gone with it.
                Action::UPDATE_OTHER
            }
        };
        let event = ClusterEvent::new(EventResource::ResourceSlice, action);
        self.event("ResourceSliceChange", event, &EventObject::Other);
    }

    pub(super) fn taint_rule(&mut self, change: Change<DeviceTaintRule>) {
        match change {
            Change::Synced => return self.devices_synced(Watched::Rules),
            Change::Applied { new, .. } => {
                let name = new.metadata.name.as_deref().unwrap_or_default();
                self.devices.set_rule(name, Some(&new));
            }
            Change::Deleted(rule) => {
                let name = rule.metadata.name.as_deref().unwrap_or_default();
                self.devices.set_rule(name, None);
            }
        }
        let event = ClusterEvent::new(EventResource::ResourceSlice, Action::UPDATE_OTHER);
        self.event("DeviceTaintRuleChange", event, &EventObject::Other);
    }

    pub(super) fn device_class(&mut self, change: Change<DeviceClass>) {
        self.look_at_strays = true;
        let action = match change {
            Change::Synced => return self.devices_synced(Watched::Classes),
            Change::Applied { old, new } => {
                let name = new.metadata.name.clone().unwrap_or_default();
                self.devices.set_class(&name, Some(new));
                if old.is_none() {
                    Action::ADD
                } else {
                    Action::UPDATE_OTHER
                }
            }
            Change::Deleted(class) => {
                let name = class.metadata.name.as_deref().unwrap_or_default();
                return self.devices.set_class(name, None);
            }
        };
        let event = ClusterEvent::new(EventResource::DeviceClass, action);
        self.event("DeviceClassChange", event, &EventObject::Other);
    }

    pub(super) fn pod(&mut self, change: Change<Pod>) {
        match change {
            Change::Synced => self.synced[PODS] = true,
            Change::Deleted(pod) => self.pod_gone(&pod),
            Change::Applied { old, new } => {
                let pod = Arc::new(PodInfo::new(new.clone()));
                if pod.is_terminal() {
                    self.pod_gone(&new);
                } else if pod.node_name.is_some() {
                    self.bound_pod(pod);
                } else {
                    self.waiting_pod(old.as_deref(), pod);
                }
            }
        }
    }

    fn pod_gone(&mut self, pod: &Pod) {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let was_nominated = self.nominated.node_of(uid).is_some();
        self.nominated.remove(uid);
        self.queue.remove(uid);
        self.reporter.retract(uid);
        self.waiting.reject(uid, "", "pod was deleted");
        self.volumes.end_binding(uid);
        if let Some(group) = pod_group_of(pod) {
            let namespace = pod.metadata.namespace.as_deref();
            self.pod_groups.remove_pod(namespace, group, uid);
        }
        let held = self.cache.remove_pod(uid);
        // A nomination holds room as well.
        if held.is_some() || was_nominated {
            self.pod_left(held);
        }
    }

    fn bound_pod(&mut self, pod: Arc<PodInfo>) {
        let uid = pod.uid.clone();
        self.nominated.remove(&uid);
        self.queue.remove(&uid);
        self.reporter.retract(&uid);
        let assumed = self.cache.is_assumed(&uid);
        let old = self.cache.pod(&uid).cloned().filter(|_| !assumed);
        let claims = pod.spec().resource_claims.as_ref();
        if claims.is_some_and(|c| !c.is_empty()) && !pod.is_terminating() {
            self.strays.insert(uid.clone());
            self.look_at_strays = true;
        }
        self.cache.set_pod(pod.clone());
        self.pod_groups.set_pod(&pod, true);
        let (label, action) = match &old {
            None => ("AssignedPodAdd", Action::ADD),
            Some(old) => ("AssignedPodUpdate", pod_action(old, &pod)),
        };
        let event = ClusterEvent::new(EventResource::AssignedPod, action);
        self.event(
            label,
            event,
            &EventObject::Pod {
                old,
                new: Some(pod),
            },
        );
    }

    fn waiting_pod(&mut self, old: Option<&Pod>, pod: Arc<PodInfo>) {
        let uid = pod.uid.clone();
        // Those of other schedulers count as well.
        let placed = self.cache.pod(&uid).is_some();
        self.pod_groups.set_pod(&pod, placed);
        if self.profiles.of(&pod).is_none() {
            // Another scheduler's.
            return;
        }
        if pod.is_terminating() {
            self.nominated.remove(&uid);
            return self.queue.remove(&uid);
        }
        if self.cache.pod(&uid).is_some() && !self.queue.contains(&uid) {
            // Bound already; this is news from before.
            return;
        }
        let nominated = |pod: &Pod| {
            let node = pod
                .status
                .as_ref()
                .and_then(|s| s.nominated_node_name.clone());
            node.filter(|n| !n.is_empty())
        };
        let (before, after) = (old.and_then(nominated), nominated(&pod.pod));
        // Our own nomination is known here before the status says it.
        if before != after || self.nominated.node_of(&uid).is_none() {
            let raised = self.pod_groups.raised(pod.clone());
            self.nominated.set(&raised, after.as_deref());
        }
        self.queue.set(pod.clone(), &*self.profiles.clone(), now());
        if self.groups_pods && old.is_none() && pod.pod_group.is_some() {
            // It may be the one that its group has waited for.
            let event = ClusterEvent::new(EventResource::UnscheduledPod, Action::ADD);
            let object = EventObject::Pod {
                old: None,
                new: Some(pod),
            };
            self.event("UnscheduledPodAdd", event, &object);
        }
    }

    pub(super) fn pod_group(&mut self, change: Change<PodGroup>) {
        let (old, new, action, label) = match change {
            Change::Synced => return self.pod_groups.synced(),
            Change::Applied { old: None, new } => (None, Some(new), Action::ADD, "PodGroupAdd"),
            Change::Applied { old, new } => {
                (old, Some(new), Action::UPDATE_OTHER, "PodGroupUpdate")
            }
            Change::Deleted(old) => (Some(old), None, Action::DELETE, "PodGroupDelete"),
        };
        match (&old, &new) {
            (_, Some(new)) => self.pod_groups.set(new.clone()),
            (Some(old), None) => self.pod_groups.remove(old),
            (None, None) => {}
        }
        if action == Action::UPDATE_OTHER {
            // What is asked for never changes: it is the status, most often our own.
            return;
        }
        let event = ClusterEvent::new(EventResource::PodGroup, action);
        self.event(label, event, &EventObject::PodGroup { old, new });
    }
}
