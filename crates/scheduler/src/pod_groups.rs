//! The pod groups of the Workload API (`scheduling.k8s.io/v1alpha2`): which there are, and which pods belong to them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use parking_lot::RwLock;

use crate::pod::PodInfo;

/// Groups with their pods. Cheap to clone; clones share what is known.
#[derive(Debug, Clone, Default)]
pub struct PodGroups {
    groups: Arc<RwLock<HashMap<PodGroupKey, Members>>>,
    /// Whether groups have priorities, and go whole where they say so (gate `WorkloadAwarePreemption`).
    have_priorities: bool,
    /// Whether all groups that exist are known.
    known: Arc<AtomicBool>,
}

/// Namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct PodGroupKey {
    pub(crate) namespace: Arc<str>,
    pub(crate) name: Arc<str>,
}

/// How important a group is: 0 where it does not say.
pub(crate) fn priority(group: &PodGroup) -> i32 {
    group.spec.priority.unwrap_or(0)
}

impl PodGroupKey {
    fn new(namespace: Option<&str>, name: &str) -> Self {
        Self {
            namespace: Arc::from(namespace.unwrap_or_default()),
            name: Arc::from(name),
        }
    }

    /// That of the group which a pod names.
    pub(crate) fn of(pod: &PodInfo) -> Option<Self> {
        Some(Self {
            namespace: pod.namespace.clone(),
            name: pod.pod_group.clone()?,
        })
    }

    fn of_group(group: &PodGroup) -> Self {
        let name = group.metadata.name.as_deref().unwrap_or_default();
        Self::new(group.metadata.namespace.as_deref(), name)
    }
}

#[derive(Debug, Default)]
struct Members {
    object: Option<Arc<PodGroup>>,
    /// By UID, whether the pod has a node: it is bound, or about to be.
    pods: HashMap<Arc<str>, bool>,
}

/// How many pods of a group there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupSize {
    /// All that exist and have not ended.
    pub pods: usize,
    /// Those of them that have a node.
    pub scheduled: usize,
}

impl PodGroups {
    /// None yet; whether they have priorities of their own (KEP-5710).
    #[must_use]
    pub fn with_priorities(have_priorities: bool) -> Self {
        Self {
            have_priorities,
            ..Self::default()
        }
    }

    /// Whether groups have priorities of their own.
    pub(crate) fn have_priorities(&self) -> bool {
        self.have_priorities
    }

    /// All groups that exist have been taken over.
    pub(crate) fn synced(&self) {
        self.known.store(true, Ordering::Relaxed);
    }

    /// Why nobody may be removed yet: who goes whole, and what of, is only known when all groups are.
    pub(crate) fn unknown(&self) -> Option<&'static str> {
        let unknown = self.have_priorities && !self.known.load(Ordering::Relaxed);
        unknown.then_some("pod groups are not known yet")
    }

    /// How important a pod is that waits for a node: as its group where that is more important. What is removed for a group
    /// must not be taken by those for whom nothing would have been removed.
    pub(crate) fn standing(&self, pod: &PodInfo) -> i32 {
        let group = self.have_priorities.then(|| self.of(pod)).flatten();
        group.map_or(pod.priority, |group| pod.priority.max(priority(&group)))
    }

    /// The pod as important as it is with its group.
    pub(crate) fn raised(&self, pod: Arc<PodInfo>) -> Arc<PodInfo> {
        let standing = self.standing(&pod);
        if standing == pod.priority {
            return pod;
        }
        Arc::new(pod.of_priority(standing))
    }

    /// The groups that go whole, with their priorities.
    pub(crate) fn going_whole(&self) -> HashMap<PodGroupKey, i32> {
        if !self.have_priorities {
            return HashMap::new();
        }
        let groups = self.groups.read();
        let objects = groups.iter().filter_map(|(key, known)| {
            let group = known.object.as_ref()?;
            let whole = group.spec.disruption_mode.as_deref() == Some("PodGroup");
            whole.then(|| (key.clone(), priority(group)))
        });
        objects.collect()
    }

    /// Takes a group over.
    pub fn set(&self, group: Arc<PodGroup>) {
        let key = PodGroupKey::of_group(&group);
        self.groups.write().entry(key).or_default().object = Some(group);
    }

    /// The group is gone. Its pods are known further, for it may come again.
    pub fn remove(&self, group: &PodGroup) {
        self.change(&PodGroupKey::of_group(group), |members| {
            members.object = None;
        });
    }

    /// Takes over that a pod exists, and whether it has a node.
    pub fn set_pod(&self, pod: &PodInfo, scheduled: bool) {
        if let Some(key) = PodGroupKey::of(pod) {
            let mut groups = self.groups.write();
            let pods = &mut groups.entry(key).or_default().pods;
            pods.insert(pod.uid.clone(), scheduled);
        }
    }

    /// Takes over whether a pod has a node, if it still exists.
    pub(crate) fn set_scheduled(&self, pod: &PodInfo, scheduled: bool) {
        if let Some(key) = PodGroupKey::of(pod) {
            self.change(&key, |members| {
                if let Some(known) = members.pods.get_mut(&pod.uid) {
                    *known = scheduled;
                }
            });
        }
    }

    /// The pod of this namespace and UID, which names this group, is gone.
    pub fn remove_pod(&self, namespace: Option<&str>, group: &str, uid: &str) {
        self.change(&PodGroupKey::new(namespace, group), |members| {
            members.pods.remove(uid);
        });
    }

    /// The group of a pod, if it exists.
    pub fn of(&self, pod: &PodInfo) -> Option<Arc<PodGroup>> {
        let key = PodGroupKey::of(pod)?;
        self.groups.read().get(&key)?.object.clone()
    }

    /// How large the pod's group is.
    pub fn size(&self, pod: &PodInfo) -> GroupSize {
        let groups = self.groups.read();
        let members = PodGroupKey::of(pod).and_then(|key| groups.get(&key));
        members.map_or(GroupSize::default(), |members| GroupSize {
            pods: members.pods.len(),
            scheduled: members.pods.values().filter(|s| **s).count(),
        })
    }

    /// The UIDs of the pods without a node in the group of a pod.
    pub(crate) fn unscheduled(&self, pod: &PodInfo) -> Vec<Arc<str>> {
        self.members(pod, false)
    }

    /// The UIDs of the pods with a node in the group of a pod.
    pub(crate) fn scheduled(&self, pod: &PodInfo) -> Vec<Arc<str>> {
        self.members(pod, true)
    }

    fn members(&self, pod: &PodInfo, with_node: bool) -> Vec<Arc<str>> {
        let groups = self.groups.read();
        let members = PodGroupKey::of(pod).and_then(|key| groups.get(&key));
        let pods = members.into_iter().flat_map(|members| &members.pods);
        let meant = pods.filter(|(_, scheduled)| **scheduled == with_node);
        meant.map(|(uid, _)| uid.clone()).collect()
    }

    fn change(&self, key: &PodGroupKey, change: impl FnOnce(&mut Members)) {
        let mut groups = self.groups.write();
        let Some(members) = groups.get_mut(key) else {
            return;
        };
        change(members);
        if members.object.is_none() && members.pods.is_empty() {
            groups.remove(key);
        }
    }
}
