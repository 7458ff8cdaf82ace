//! What the scheduler knows of classic resource claims (`resource.k8s.io/v1alpha1`): claims,
//! classes, what has been negotiated about pods, and reservations that are on their way.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use davit_api::classic::{MOST_RESERVED, PodScheduling, ResourceClaim, ResourceClass};
use parking_lot::Mutex;

/// How long one look for the API may take, and the pause before the next.
const PROBE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(1));

/// Classic claims and what belongs to them, shared by the plugins of all profiles. Cheap to clone.
#[derive(Clone, Default)]
pub struct Classic {
    inner: Arc<Mutex<Inner>>,
}

type Key = (String, String);

#[derive(Default)]
struct Inner {
    /// Claims, classes, negotiations: whether all that exist are known.
    synced: [bool; 3],
    claims: HashMap<Key, Arc<ResourceClaim>>,
    classes: HashMap<String, Arc<ResourceClass>>,
    schedulings: HashMap<Key, Arc<PodScheduling>>,
    /// Pods for which claims are about to be reserved, by the claim's UID.
    assumed: HashMap<String, BTreeSet<String>>,
}

/// What is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Watched {
    Claims,
    Classes,
    Schedulings,
}

impl fmt::Debug for Classic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.inner.lock();
        f.debug_struct("Classic")
            .field("claims", &inner.claims.len())
            .field("negotiations", &inner.schedulings.len())
            .finish_non_exhaustive()
    }
}

fn key(meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> Key {
    (
        meta.namespace.clone().unwrap_or_default(),
        meta.name.clone().unwrap_or_default(),
    )
}

/// Whether `known` is a later state of the same object than `new`.
fn is_newer<K: kube::Resource>(known: &K, new: &K) -> bool {
    let version = |k: &K| {
        let text = k.meta().resource_version.as_deref();
        text.and_then(|v| v.parse::<u64>().ok())
    };
    known.meta().uid == new.meta().uid
        && matches!((version(known), version(new)), (Some(a), Some(b)) if a > b)
}

impl Classic {
    /// The API server does not have the classic API.
    pub fn set_absent(&self) {
        self.inner.lock().synced = [true; 3];
    }

    /// Everything of this kind that exists is known now.
    pub(crate) fn synced(&self, what: Watched) {
        self.inner.lock().synced[what as usize] = true;
    }

    /// Whether it is known which claims there are.
    pub fn is_synced(&self) -> bool {
        self.inner.lock().synced.iter().all(|s| *s)
    }

    /// Takes a claim over as the API shows it; what is known to be newer stays.
    pub(crate) fn set_claim(&self, claim: Arc<ResourceClaim>) {
        let mut inner = self.inner.lock();
        let key = key(&claim.metadata);
        if !inner
            .claims
            .get(&key)
            .is_some_and(|k| is_newer(&**k, &*claim))
        {
            inner.claims.insert(key, claim);
        }
    }

    /// The claim is gone.
    pub(crate) fn remove_claim(&self, claim: &ResourceClaim) {
        let mut inner = self.inner.lock();
        let key = key(&claim.metadata);
        let same = |c: &Arc<ResourceClaim>| c.metadata.uid == claim.metadata.uid;
        if inner.claims.get(&key).is_some_and(same) {
            inner.claims.remove(&key);
        }
    }

    /// The claim of this name.
    pub fn claim(&self, namespace: &str, name: &str) -> Option<Arc<ResourceClaim>> {
        let key = (namespace.to_owned(), name.to_owned());
        self.inner.lock().claims.get(&key).cloned()
    }

    /// Takes a class over, or its end.
    pub(crate) fn set_class(&self, name: &str, class: Option<Arc<ResourceClass>>) {
        let mut inner = self.inner.lock();
        match class {
            Some(class) => inner.classes.insert(name.to_owned(), class),
            None => inner.classes.remove(name),
        };
    }

    /// The class of this name.
    pub fn class(&self, name: &str) -> Option<Arc<ResourceClass>> {
        self.inner.lock().classes.get(name).cloned()
    }

    /// Takes over what is negotiated about a pod; what is known to be newer stays.
    pub(crate) fn set_scheduling(&self, scheduling: Arc<PodScheduling>) {
        let mut inner = self.inner.lock();
        let key = key(&scheduling.metadata);
        let known = inner.schedulings.get(&key);
        if !known.is_some_and(|k| is_newer(&**k, &*scheduling)) {
            inner.schedulings.insert(key, scheduling);
        }
    }

    /// The negotiation is over.
    pub(crate) fn remove_scheduling(&self, scheduling: &PodScheduling) {
        let mut inner = self.inner.lock();
        let key = key(&scheduling.metadata);
        let same = |s: &Arc<PodScheduling>| s.metadata.uid == scheduling.metadata.uid;
        if inner.schedulings.get(&key).is_some_and(same) {
            inner.schedulings.remove(&key);
        }
    }

    /// What is negotiated about the pod of this name and UID.
    pub fn scheduling(&self, namespace: &str, pod: &str, uid: &str) -> Option<Arc<PodScheduling>> {
        let key = (namespace.to_owned(), pod.to_owned());
        let found = self.inner.lock().schedulings.get(&key).cloned();
        found.filter(|s| is_of_pod(s, uid))
    }

    /// Whether one more pod can use the claim: it is allocated and neither taken nor full, with the
    /// reservations in mind that are on their way.
    pub(crate) fn is_free_for(&self, claim: &ResourceClaim, pod: &str) -> bool {
        let inner = self.inner.lock();
        inner.is_free_for(claim, pod)
    }

    /// Books a reservation that is about to be written. False if there is no room.
    pub(crate) fn assume(&self, claim: &ResourceClaim, pod: &str) -> bool {
        let mut inner = self.inner.lock();
        if !inner.is_free_for(claim, pod) {
            return false;
        }
        let uid = claim.metadata.uid.clone().unwrap_or_default();
        inner.assumed.entry(uid).or_default().insert(pod.to_owned());
        true
    }

    /// A reservation has been written (the claim was taken over before) or given up.
    pub(crate) fn settle(&self, claim: &ResourceClaim, pod: &str) {
        let mut inner = self.inner.lock();
        let uid = claim.metadata.uid.clone().unwrap_or_default();
        if let Some(pods) = inner.assumed.get_mut(&uid) {
            pods.remove(pod);
            if pods.is_empty() {
                inner.assumed.remove(&uid);
            }
        }
    }
}

impl Inner {
    fn is_free_for(&self, claim: &ResourceClaim, pod: &str) -> bool {
        let reserved = &claim.status.reserved_for;
        if reserved.iter().any(|r| r.uid == pod) {
            return true;
        }
        let uid = claim.metadata.uid.as_deref().unwrap_or_default();
        let assumed = self.assumed.get(uid).into_iter().flatten();
        let coming = assumed.filter(|p| *p != pod && !reserved.iter().any(|r| r.uid == **p));
        let users = reserved.len() + coming.count();
        let shareable = claim
            .status
            .allocation
            .as_ref()
            .is_some_and(|a| a.shareable);
        users == 0 || (shareable && users < MOST_RESERVED)
    }
}

/// Whether the negotiation is about the pod of this UID, and not about an earlier one of its name.
pub(crate) fn is_of_pod(scheduling: &PodScheduling, uid: &str) -> bool {
    let owners = scheduling.metadata.owner_references.iter().flatten();
    owners
        .into_iter()
        .any(|o| o.controller == Some(true) && o.uid == uid)
}

/// Whether the API server has the classic API. Asks until there is an answer.
pub(crate) async fn is_served(client: kube::Client) -> bool {
    loop {
        let asked = client.list_api_group_resources(davit_api::classic::API_VERSION);
        match tokio::time::timeout(PROBE.0, asked).await {
            Ok(Ok(_)) => return true,
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 403 | 404) => return false,
            Ok(Err(error)) => tracing::debug!(%error, "classic claims not looked for"),
            Err(_) => {}
        }
        tokio::time::sleep(PROBE.1).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn claim(shareable: bool, users: usize) -> ResourceClaim {
        let users: Vec<_> = (0..users)
            .map(|i| json!({"resource": "pods", "name": format!("p{i}"), "uid": format!("u{i}")}))
            .collect();
        serde_json::from_value(json!({"metadata": {"name": "c", "uid": "c"}, "spec": {},
            "status": {"allocation": {"shareable": shareable}, "reservedFor": users}}))
        .unwrap()
    }

    /// 131
    #[test]
    fn reservations_on_their_way_count() {
        let classic = Classic::default();
        let (alone, shared) = (claim(false, 0), claim(true, 31));
        assert!(classic.assume(&alone, "a"));
        assert!(classic.assume(&alone, "a"), "again for the same pod");
        assert!(!classic.assume(&alone, "b"));
        classic.settle(&alone, "a");
        assert!(classic.assume(&alone, "b"));
        assert!(!classic.is_free_for(&claim(false, 1), "x"));
        assert!(classic.is_free_for(&claim(false, 1), "u0"));
        let other = ResourceClaim {
            metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                uid: Some("shared".into()),
                ..shared.metadata.clone()
            },
            ..shared
        };
        assert!(classic.assume(&other, "x"));
        assert!(!classic.assume(&other, "y"), "32 pods at most");
    }

    #[test]
    fn older_states_do_not_come_back() {
        let classic = Classic::default();
        let state = |version: &str, node: &str| -> Arc<PodScheduling> {
            let value = json!({"metadata": {"name": "p", "namespace": "n", "uid": "s", "resourceVersion": version,
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true}]},
                "spec": {"selectedNode": node}});
            Arc::new(serde_json::from_value(value).unwrap())
        };
        classic.set_scheduling(state("10", "new"));
        classic.set_scheduling(state("9", "old"));
        let found = classic.scheduling("n", "p", "u").unwrap();
        assert_eq!(found.spec.selected_node, "new");
        assert_eq!(classic.scheduling("n", "p", "another pod"), None);
        classic.remove_scheduling(&found);
        assert_eq!(classic.scheduling("n", "p", "u"), None);
    }
}
