//! Held pods by the claims that they name: most changes of claims are news for these only.

use crate::pod::PodInfo;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Pods' UIDs by the namespace and the name of a claim.
#[derive(Debug, Default)]
pub(super) struct PodsByClaim(HashMap<(Arc<str>, String), HashSet<Arc<str>>>);

fn keys(pod: &PodInfo) -> impl Iterator<Item = (Arc<str>, String)> {
    let names = pod.claim_names();
    names.map(|name| (pod.namespace.clone(), name.to_owned()))
}

impl PodsByClaim {
    pub(super) fn add(&mut self, pod: &PodInfo) {
        for key in keys(pod) {
            self.0.entry(key).or_default().insert(pod.uid.clone());
        }
    }

    /// Takes a pod out, as it was when it was added.
    pub(super) fn remove(&mut self, pod: &PodInfo) {
        for key in keys(pod) {
            if let Some(pods) = self.0.get_mut(&key) {
                pods.remove(&pod.uid);
                if pods.is_empty() {
                    self.0.remove(&key);
                }
            }
        }
    }

    /// The pods that name this claim.
    pub(super) fn of(&self, namespace: &str, name: &str) -> impl Iterator<Item = &Arc<str>> {
        let key = (Arc::from(namespace), name.to_owned());
        self.0.get(&key).into_iter().flatten()
    }
}
