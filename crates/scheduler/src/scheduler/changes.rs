//! What the informers report.

use std::sync::Arc;

use davit_client::Change;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};

use super::engine::{Engine, now};
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
                let object = EventObject::Node {
                    old: Some(node),
                    new: None,
                };
                self.event("NodeDelete", event(Action::DELETE), &object);
            }
        }
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
        self.verdicts.remove(uid);
        self.waiting.reject(uid, "", "pod was deleted");
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
        self.cache.set_pod(pod.clone());
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
            self.nominated.set(&pod, after.as_deref());
        }
        self.queue.set(pod, &*self.profiles.clone(), now());
    }
}
