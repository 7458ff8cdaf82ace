//! Held pods by the claims that they name: most changes of claims are news for these only.

use crate::pod::PodInfo;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
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

    /// The pods that name the claim with this metadata.
    pub(super) fn of(&self, claim: &ObjectMeta) -> impl Iterator<Item = &Arc<str>> {
        let namespace = Arc::from(claim.namespace.as_deref().unwrap_or_default());
        let key = (namespace, claim.name.clone().unwrap_or_default());
        self.0.get(&key).into_iter().flatten()
    }
}

#[cfg(test)]
mod tests;
