//! Pods that wait for a node on which preemption made room for them.

use std::collections::HashMap;
use std::sync::Arc;

use crate::pod::PodInfo;

/// Nominated pods by node. Other pods of the same or lower priority must leave them their place.
#[derive(Debug, Default, Clone)]
pub struct Nominated {
    by_node: HashMap<String, Vec<Arc<PodInfo>>>,
    by_pod: HashMap<Arc<str>, String>,
}

impl Nominated {
    /// Nominates a pod for a node, or takes its nomination back with `None`.
    pub fn set(&mut self, pod: &Arc<PodInfo>, node: Option<&str>) {
        self.remove(&pod.uid);
        if let Some(node) = node.filter(|n| !n.is_empty()) {
            self.by_node
                .entry(node.to_owned())
                .or_default()
                .push(pod.clone());
            self.by_pod.insert(pod.uid.clone(), node.to_owned());
        }
    }

    /// Forgets a pod.
    pub fn remove(&mut self, uid: &str) {
        let Some(node) = self.by_pod.remove(uid) else {
            return;
        };
        if let Some(pods) = self.by_node.get_mut(&node) {
            pods.retain(|p| &*p.uid != uid);
            if pods.is_empty() {
                self.by_node.remove(&node);
            }
        }
    }

    /// The node a pod is nominated for.
    pub fn node_of(&self, uid: &str) -> Option<&str> {
        self.by_pod.get(uid).map(String::as_str)
    }

    /// The pods nominated for a node.
    pub fn on_node(&self, node: &str) -> &[Arc<PodInfo>] {
        self.by_node
            .get(node)
            .map(Vec::as_slice)
            .unwrap_or_default()
    }

    /// Whether nobody is nominated.
    pub fn is_empty(&self) -> bool {
        self.by_pod.is_empty()
    }
}
