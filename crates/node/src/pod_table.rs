//! The pods of this node as its workers know them, and what they have reserved.

use crate::containermanager::ActivePods;
use crate::pod::PodExt;
use crate::podsapi::PodChanges;
use crate::resources::{Amounts, pod_requests};
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

struct Entry {
    pod: Arc<Pod>,
    /// Its containers have ended and it will not start any more.
    ended: bool,
    /// It is being deleted, or gone from its source.
    ending: bool,
    /// What it has been admitted with.
    reserved: Option<Amounts>,
}

/// Pods by UID.
#[derive(Default)]
pub struct PodTable {
    entries: Mutex<HashMap<String, Entry>>,
    changes: PodChanges,
}

/// A resource that does not suffice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    /// The resource.
    pub resource: String,
    /// What the pod asks for.
    pub requested: i64,
    /// What others hold.
    pub used: i64,
    /// What there is.
    pub capacity: i64,
    /// Pods that are ending hold enough of it: waiting for them helps.
    pub will_suffice: bool,
}

impl PodTable {
    /// Takes a pod in, or its newer version.
    pub fn set(&self, pod: &Arc<Pod>) {
        let mut entries = self.entries.lock();
        match entries.get_mut(pod.uid()) {
            Some(entry) => {
                if Arc::ptr_eq(&entry.pod, pod) {
                    return;
                }
                entry.pod = pod.clone();
                entry.ending |= pod.is_deleting();
            }
            None => {
                let entry = Entry {
                    pod: pod.clone(),
                    ended: false,
                    ending: pod.is_deleting(),
                    reserved: None,
                };
                entries.insert(pod.uid().to_owned(), entry);
            }
        }
        drop(entries);
        self.changes.changed(pod.uid());
    }

    /// Tells which pods are new, changed or gone.
    pub fn changes(&self) -> &PodChanges {
        &self.changes
    }

    /// The pod is gone from its source: what it holds will be free when its containers have ended.
    pub fn set_ending(&self, uid: &str) {
        if let Some(entry) = self.entries.lock().get_mut(uid) {
            entry.ending = true;
        }
    }

    /// The pod's containers have ended for good; what it reserved is free.
    pub fn set_ended(&self, uid: &str) {
        if let Some(entry) = self.entries.lock().get_mut(uid) {
            entry.ended = true;
            entry.reserved = None;
        }
    }

    /// Forgets a pod.
    pub fn remove(&self, uid: &str) {
        self.entries.lock().remove(uid);
        self.changes.changed(uid);
    }

    /// One pod.
    pub fn get(&self, uid: &str) -> Option<Arc<Pod>> {
        self.entries.lock().get(uid).map(|e| e.pod.clone())
    }

    /// A pod by namespace and name, the live one where several have it.
    pub fn find(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        let entries = self.entries.lock();
        let named = entries
            .values()
            .filter(|e| e.pod.ns() == namespace && e.pod.pod_name() == name);
        named.max_by_key(|e| !e.ended).map(|e| e.pod.clone())
    }

    /// Reserves what a pod asks for, or says what is missing, in one step. `available` are the node's allocatable
    /// amounts; resources in `skip` and resources the node does not name are not checked.
    ///
    /// # Errors
    /// The first resource that does not suffice.
    pub fn reserve(
        &self,
        pod: &Pod,
        available: &Amounts,
        skip: &dyn Fn(&str) -> bool,
    ) -> Result<(), Shortage> {
        let mut wanted = pod_requests(pod);
        wanted.insert("pods".to_owned(), 1);
        let mut entries = self.entries.lock();
        let (mut used, mut ending) = (BTreeMap::new(), BTreeMap::new());
        for (uid, entry) in entries.iter() {
            if uid != pod.uid() {
                for (name, n) in entry.reserved.iter().flatten() {
                    *used.entry(name.as_str()).or_insert(0_i64) += n;
                    if entry.ending {
                        *ending.entry(name.as_str()).or_insert(0_i64) += n;
                    }
                }
            }
        }
        // The order of upstream's check, so that the same resource is named.
        let rank = |name: &str| match name {
            "pods" => 0,
            "cpu" => 1,
            "memory" => 2,
            "ephemeral-storage" => 3,
            _ => 4,
        };
        let mut names: Vec<&String> = wanted.keys().collect();
        names.sort_by_key(|n| (rank(n), (*n).clone()));
        for name in names {
            let Some(&capacity) = available.get(name) else {
                continue;
            };
            let (requested, used) = (wanted[name], used.get(name.as_str()).copied().unwrap_or(0));
            if requested > 0 && !skip(name) && requested + used > capacity {
                return Err(Shortage {
                    resource: name.clone(),
                    requested,
                    used,
                    capacity,
                    will_suffice: requested + used
                        - ending.get(name.as_str()).copied().unwrap_or(0)
                        <= capacity,
                });
            }
        }
        if let Some(entry) = entries.get_mut(pod.uid()) {
            entry.reserved = Some(wanted);
        }
        Ok(())
    }

    /// Notes what a pod that runs already holds, without any check.
    pub fn adopt(&self, pod: &Pod) {
        let mut wanted = pod_requests(pod);
        wanted.insert("pods".to_owned(), 1);
        if let Some(entry) = self.entries.lock().get_mut(pod.uid()) {
            entry.reserved = Some(wanted);
        }
    }

    /// Gives back what a pod reserved.
    pub fn unreserve(&self, uid: &str) {
        if let Some(entry) = self.entries.lock().get_mut(uid) {
            entry.reserved = None;
        }
    }
}

impl ActivePods for PodTable {
    fn active_pods(&self) -> Vec<Arc<Pod>> {
        self.entries
            .lock()
            .values()
            .filter(|e| !e.ended)
            .map(|e| e.pod.clone())
            .collect()
    }

    fn ending_pods(&self) -> BTreeSet<String> {
        let entries = self.entries.lock();
        let ending = entries.iter().filter(|(_, e)| e.ending && !e.ended);
        ending.map(|(uid, _)| uid.clone()).collect()
    }

    fn all_pods(&self) -> Vec<Arc<Pod>> {
        self.entries
            .lock()
            .values()
            .map(|e| e.pod.clone())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(uid: &str, cpu: &str) -> Arc<Pod> {
        let value = json!({"metadata": {"name": uid, "uid": uid}, "spec": {"containers": [
            {"name": "c", "resources": {"requests": {"cpu": cpu, "example.com/foo": "1", "other.com/bar": "3"}}}]}});
        Arc::new(serde_json::from_value(value).unwrap())
    }

    #[test]
    fn reservations_do_not_overlap() {
        let table = PodTable::default();
        let available = Amounts::from([
            ("cpu".into(), 1000),
            ("pods".into(), 2),
            ("example.com/foo".into(), 1),
        ]);
        let (a, b) = (pod("a", "600m"), pod("b", "600m"));
        table.set(&a);
        table.set(&b);
        let never = |_: &str| false;
        table.reserve(&a, &available, &never).unwrap();
        table.reserve(&a, &available, &never).unwrap();
        let shortage = table.reserve(&b, &available, &never).unwrap_err();
        assert_eq!(
            shortage,
            Shortage {
                resource: "cpu".into(),
                requested: 600,
                used: 600,
                capacity: 1000,
                will_suffice: false,
            }
        );
        table.set_ending("a");
        assert!(
            table
                .reserve(&b, &available, &never)
                .unwrap_err()
                .will_suffice
        );
        let c = pod("c", "100m");
        table.set(&c);
        assert_eq!(
            table.reserve(&c, &available, &never).unwrap_err().resource,
            "example.com/foo"
        );
        table
            .reserve(&c, &available, &|r| r == "example.com/foo")
            .unwrap();
        table.set_ended("a");
        table.set_ended("c");
        table.reserve(&b, &available, &never).unwrap();
    }
}
