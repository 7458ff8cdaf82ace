//! The pods of this node as its workers know them, and what they have reserved.

use crate::podsapi::PodChanges;
use crate::resize::Precedence;
use davit_containermanager::ActivePods;
use davit_pods::host_ports::{PodHostPort, host_ports};
use davit_pods::pod::PodExt;
use davit_pods::resources::{Amounts, pod_holdings};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use tokio::sync::watch;

struct Entry {
    pod: Arc<Pod>,
    /// Its containers have ended and it will not start any more.
    ended: bool,
    /// It is being deleted, or gone from its source.
    ending: bool,
    /// What it has been admitted with.
    reserved: Option<Amounts>,
    /// The ports of the node that it would have.
    ports: Vec<PodHostPort>,
    /// A size that it asks for and has not got.
    awaited: Option<Awaited>,
}

/// A resize that waits for room.
struct Awaited {
    wanted: Arc<Pod>,
    since: Timestamp,
}

/// Pods by UID.
#[derive(Default)]
pub(crate) struct PodTable {
    entries: Mutex<HashMap<String, Entry>>,
    changes: PodChanges,
    room: watch::Sender<()>,
}

/// A resource that does not suffice.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
)]
pub(crate) struct Shortage {
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

/// Why a pod cannot have what it asks for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReserveError {
    /// A resource does not suffice.
    #[error("{0}")]
    Shortage(Shortage),
    /// Another pod has a port of the node.
    #[error(
        "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"
    )]
    Ports {
        /// Only pods that are ending have them: waiting helps.
        will_be_free: bool,
    },
}

impl ReserveError {
    /// `status.reason` of a pod that is refused for it.
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Shortage(shortage) => format!("OutOf{}", shortage.resource),
            Self::Ports { .. } => "NodePorts".to_owned(),
        }
    }

    /// Whether pods that are ending will give back enough.
    pub(crate) fn waiting_helps(&self) -> bool {
        match self {
            Self::Shortage(shortage) => shortage.will_suffice,
            Self::Ports { will_be_free } => *will_be_free,
        }
    }
}

impl PodTable {
    /// Takes a pod in, or its newer version.
    pub(crate) fn set(&self, pod: &Arc<Pod>) {
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
                    ports: host_ports(pod),
                    awaited: None,
                };
                entries.insert(pod.uid().to_owned(), entry);
            }
        }
        drop(entries);
        self.changes.changed(pod.uid());
    }

    /// Tells which pods are new, changed or gone.
    pub(crate) fn changes(&self) -> &PodChanges {
        &self.changes
    }

    /// The pod is gone from its source: what it holds will be free when its containers have ended.
    pub(crate) fn set_ending(&self, uid: &str) {
        if let Some(entry) = self.entries.lock().get_mut(uid) {
            entry.ending = true;
        }
    }

    /// The pod's containers have ended for good; what it reserved is free.
    pub(crate) fn set_ended(&self, uid: &str) {
        if let Some(entry) = self.entries.lock().get_mut(uid) {
            entry.ended = true;
            entry.awaited = None;
            entry.reserved = None;
        }
        self.room.send_replace(());
    }

    /// Forgets a pod.
    pub(crate) fn remove(&self, uid: &str) {
        self.entries.lock().remove(uid);
        self.changes.changed(uid);
        self.room.send_replace(());
    }

    /// Changes when a resize that waited may fit.
    pub(crate) fn room(&self) -> watch::Receiver<()> {
        self.room.subscribe()
    }

    /// One pod.
    pub(crate) fn get(&self, uid: &str) -> Option<Arc<Pod>> {
        self.entries.lock().get(uid).map(|e| e.pod.clone())
    }

    /// A pod by namespace and name, the live one where several have it.
    pub(crate) fn find(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        let entries = self.entries.lock();
        let named = entries
            .values()
            .filter(|e| e.pod.ns() == namespace && e.pod.pod_name() == name);
        named.max_by_key(|e| !e.ended).map(|e| e.pod.clone())
    }

    /// Reserves what a pod asks for and its host ports, or says what is missing, in one step. `available` are the node's allocatable
    /// amounts; resources in `skip` and resources the node does not name are not checked.
    ///
    /// # Errors
    /// The first resource that does not suffice, or that a port is taken.
    pub(crate) fn reserve(
        &self,
        pod: &Pod,
        available: &Amounts,
        skip: &dyn Fn(&str) -> bool,
    ) -> Result<(), ReserveError> {
        let wanted = amounts(pod);
        let mut entries = self.entries.lock();
        if let Some(shortage) = shortage(&entries, pod.uid(), &wanted, available, skip) {
            return Err(ReserveError::Shortage(shortage));
        }
        if let Some(will_be_free) = taken_ports(&entries, pod) {
            return Err(ReserveError::Ports { will_be_free });
        }
        if let Some(entry) = entries.get_mut(pod.uid()) {
            entry.reserved = Some(wanted);
        }
        Ok(())
    }

    /// Reserves the size that a running pod asks for now. All pods that wait for room are served at once, in the order
    /// of [`Precedence`], so that it does not matter whose worker looks first. `since` is when the pod began to wait.
    ///
    /// # Errors
    /// The resource that does not suffice for this pod, which waits from now on.
    pub(crate) fn resize(
        &self,
        wanted: &Arc<Pod>,
        since: Timestamp,
        available: &Amounts,
    ) -> Result<(), Shortage> {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get_mut(wanted.uid()) {
            let known = entry.awaited.as_ref().map(|a| a.since);
            entry.awaited = Some(Awaited {
                wanted: wanted.clone(),
                since: known.unwrap_or(since),
            });
        }
        let mut queue: Vec<(Precedence, Arc<Pod>)> = entries
            .values()
            .filter_map(|entry| {
                let Awaited { wanted, since } = entry.awaited.as_ref()?;
                let now = entry.reserved.clone().unwrap_or_default();
                let order = Precedence::of(wanted, &now, &amounts(wanted), *since);
                Some((order, wanted.clone()))
            })
            .collect();
        queue.sort_by(|(a, _), (b, _)| a.cmp(b));
        // Only cpu and memory can have changed.
        let skip = |name: &str| !matches!(name, "cpu" | "memory");
        let (mut answer, mut others) = (Ok(()), false);
        for (_, pod) in queue {
            let size = amounts(&pod);
            let own = pod.uid() == wanted.uid();
            match shortage(&entries, pod.uid(), &size, available, &skip) {
                Some(shortage) if own => answer = Err(shortage),
                Some(_) => {}
                None => {
                    others |= !own;
                    if let Some(entry) = entries.get_mut(pod.uid()) {
                        entry.reserved = Some(size);
                        entry.awaited = None;
                    }
                }
            }
        }
        drop(entries);
        if others {
            self.room.send_replace(());
        }
        answer
    }

    /// The pod asks for no other size than the one it has.
    pub(crate) fn settle(&self, pod: &Pod) {
        let size = amounts(pod);
        if let Some(entry) = self.entries.lock().get_mut(pod.uid())
            && (entry.awaited.take().is_some() || entry.reserved.as_ref() != Some(&size))
        {
            entry.reserved = Some(size);
        }
    }

    /// Notes what a pod that runs already holds, without any check.
    pub(crate) fn adopt(&self, pod: &Pod) {
        if let Some(entry) = self.entries.lock().get_mut(pod.uid()) {
            entry.reserved = Some(amounts(pod));
        }
    }
}

/// What a pod takes of the node.
fn amounts(pod: &Pod) -> Amounts {
    let mut wanted = pod_holdings(pod);
    wanted.insert("pods".to_owned(), 1);
    wanted
}

/// Whether another pod has a port that the pod asks for; if so, whether only pods that are ending do.
fn taken_ports(entries: &HashMap<String, Entry>, pod: &Pod) -> Option<bool> {
    let wanted = host_ports(pod);
    let mut will_be_free = None;
    for (uid, entry) in entries {
        let holds = uid != pod.uid() && entry.reserved.is_some();
        let conflicts = |port: &PodHostPort| wanted.iter().any(|w| w.conflicts(port));
        if holds && entry.ports.iter().any(conflicts) {
            will_be_free = Some(entry.ending && will_be_free != Some(false));
        }
    }
    will_be_free
}

/// The first resource that does not suffice for a pod beside all others.
fn shortage(
    entries: &HashMap<String, Entry>,
    uid: &str,
    wanted: &Amounts,
    available: &Amounts,
    skip: &dyn Fn(&str) -> bool,
) -> Option<Shortage> {
    let (mut used, mut ending) = (BTreeMap::new(), BTreeMap::new());
    for (_, entry) in entries.iter().filter(|(other, _)| *other != uid) {
        for (name, n) in entry.reserved.iter().flatten() {
            *used.entry(name.as_str()).or_insert(0_i64) += n;
            if entry.ending {
                *ending.entry(name.as_str()).or_insert(0_i64) += n;
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
    names.into_iter().find_map(|name| {
        let capacity = *available.get(name)?;
        let of = |list: &BTreeMap<&str, i64>| list.get(name.as_str()).copied().unwrap_or(0);
        let (requested, used) = (wanted[name], of(&used));
        let short = requested > 0 && !skip(name) && requested + used > capacity;
        short.then(|| Shortage {
            resource: name.clone(),
            requested,
            used,
            capacity,
            will_suffice: requested + used - of(&ending) <= capacity,
        })
    })
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
            ReserveError::Shortage(Shortage {
                resource: "cpu".into(),
                requested: 600,
                used: 600,
                capacity: 1000,
                will_suffice: false,
            })
        );
        table.set_ending("a");
        let refused = table.reserve(&b, &available, &never).unwrap_err();
        assert!(refused.waiting_helps());
        let c = pod("c", "100m");
        table.set(&c);
        assert_eq!(
            table.reserve(&c, &available, &never).unwrap_err().reason(),
            "OutOfexample.com/foo"
        );
        table
            .reserve(&c, &available, &|r| r == "example.com/foo")
            .unwrap();
        table.set_ended("a");
        table.set_ended("c");
        table.reserve(&b, &available, &never).unwrap();
    }

    #[test]
    fn host_ports_are_given_out_once() {
        let pod = |uid: &str, port: i32| -> Arc<Pod> {
            let value = json!({"metadata": {"name": uid, "uid": uid}, "spec": {"containers": [
                {"name": "c", "ports": [{"containerPort": 80, "hostPort": port}]}]}});
            Arc::new(serde_json::from_value(value).unwrap())
        };
        let table = PodTable::default();
        let available = Amounts::from([("pods".into(), 110)]);
        let reserve = |pod: &Pod| table.reserve(pod, &available, &|_| false);
        let (a, b, c) = (pod("a", 80), pod("b", 80), pod("c", 81));
        for pod in [&a, &b, &c] {
            table.set(pod);
        }
        reserve(&a).unwrap();
        reserve(&a).unwrap();
        reserve(&c).unwrap();
        let refused = reserve(&b).unwrap_err();
        assert_eq!(refused.reason(), "NodePorts");
        assert!(!refused.waiting_helps());
        table.set_ending("a");
        assert!(reserve(&b).unwrap_err().waiting_helps());
        table.set_ended("a");
        reserve(&b).unwrap();
    }

    fn waiting(uid: &str, priority: i32, class: &str, cpu: &str) -> Arc<Pod> {
        let value = json!({"metadata": {"name": uid, "uid": uid},
            "spec": {"priority": priority, "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]},
            "status": {"qosClass": class}});
        Arc::new(serde_json::from_value(value).unwrap())
    }

    #[test]
    fn resizes_are_served_by_priority_class_and_time_whoever_asks() {
        let at = |s: i64| Timestamp::from_second(s).unwrap();
        // In the order in which they are to be served; the last began to wait first.
        let pods = [
            ("first", 10, "Burstable", 5),
            ("second", 0, "Guaranteed", 4),
            ("third", 0, "Burstable", 2),
            ("fourth", 0, "Burstable", 3),
            ("fifth", -1, "Guaranteed", 1),
        ];
        for asking in 0..pods.len() {
            let table = PodTable::default();
            let holder = pod("holder", "1500m");
            table.set(&holder);
            table.adopt(&holder);
            for (uid, priority, class, _) in pods {
                let small = waiting(uid, priority, class, "100m");
                table.set(&small);
                table.adopt(&small);
            }
            let available = Amounts::from([("cpu".into(), 2000), ("pods".into(), 110)]);
            let ask = |n: usize| {
                let (uid, priority, class, since) = pods[n];
                table.resize(
                    &waiting(uid, priority, class, "600m"),
                    at(since),
                    &available,
                )
            };
            for n in 0..pods.len() {
                assert_eq!(ask(n).unwrap_err().used, 1900);
            }
            let mut room = table.room();
            table.set_ended("holder");
            assert!(room.has_changed().unwrap());
            room.mark_unchanged();
            // 1500m are free and each needs 500m more.
            assert_eq!(ask(asking).is_ok(), asking < 3);
            let reserved = |uid: &str| table.entries.lock()[uid].reserved.as_ref().unwrap()["cpu"];
            assert_eq!(
                pods.map(|(uid, ..)| reserved(uid)),
                [600, 600, 600, 100, 100]
            );
            // Those who were served and have not asked are told.
            assert!(room.has_changed().unwrap());
        }
    }

    #[test]
    fn room_for_one_goes_to_the_first_in_order_and_smaller_sizes_go_before_all() {
        let table = PodTable::default();
        let available = Amounts::from([("cpu".into(), 1000), ("pods".into(), 110)]);
        let now = Timestamp::UNIX_EPOCH;
        for (uid, priority, cpu) in [("low", 0, "500m"), ("high", 9, "300m"), ("late", 5, "200m")] {
            let pod = waiting(uid, priority, "Burstable", cpu);
            table.set(&pod);
            table.adopt(&pod);
        }
        let ask = |uid: &str, priority: i32, cpu: &str| {
            table.resize(&waiting(uid, priority, "Burstable", cpu), now, &available)
        };
        ask("late", 5, "400m").unwrap_err();
        ask("high", 9, "600m").unwrap_err();
        // It asks for less: that always fits, and the room is for the one of the highest priority.
        ask("low", 0, "200m").unwrap();
        let reserved = |uid: &str| table.entries.lock()[uid].reserved.as_ref().unwrap()["cpu"];
        assert_eq!(
            [reserved("low"), reserved("high"), reserved("late")],
            [200, 600, 200]
        );
        // It does not wait any more when it asks for what it has.
        table.settle(&waiting("late", 5, "Burstable", "200m"));
        table.set_ended("high");
        ask("low", 0, "700m").unwrap();
        assert_eq!(reserved("late"), 200);
    }
}
