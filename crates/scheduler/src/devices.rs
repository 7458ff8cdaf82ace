//! What the scheduler knows of devices: slices with the taints of rules, classes, claims, and
//! claims whose allocation is on its way to the API server.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use davit_allocator::{
    Answers, Class, Classes, Inventory, Picture, Selectors, Slice, TaintRule, Usage,
};
use davit_api::resource_claims::ClaimConsumers;
use k8s_openapi::api::resource::v1::{AllocationResult, DeviceClass, ResourceClaim, ResourceSlice};
use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use parking_lot::Mutex;

use crate::classic::Classic;

/// Devices and claims, shared by the plugins of all profiles. Cheap to clone.
#[derive(Clone)]
pub struct Devices {
    inner: Arc<Mutex<Inner>>,
    answers: Arc<Answers>,
    selectors: Arc<Selectors>,
    classic: Classic,
    consumers: ClaimConsumers,
}

impl fmt::Debug for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.inner.lock();
        f.debug_struct("Devices")
            .field("slices", &inner.inventory.len())
            .field("claims", &inner.claims.len())
            .finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Inner {
    /// Slices, classes, claims, rules: whether all that exist are known.
    synced: [bool; 4],
    rules: HashMap<String, TaintRule>,
    inventory: Arc<Inventory>,
    classes: HashMap<String, Class>,
    compiled_classes: Option<Classes>,
    claims: HashMap<(String, String), Arc<ResourceClaim>>,
    /// The keys of `claims` by UID.
    by_uid: HashMap<String, (String, String)>,
    usage: Usage,
    /// What is booked in `usage`, by claim UID.
    booked: HashMap<String, AllocationResult>,
    /// Allocations that are decided and not yet written, by claim UID, and for how many pods each is.
    in_flight: HashMap<String, (AllocationResult, usize)>,
    /// What nodes answered; told of every change of inventory, usage and classes.
    answers: Arc<Answers>,
}

/// The kinds that decisions about devices depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watched {
    /// ResourceSlices.
    Slices,
    /// DeviceClasses.
    Classes,
    /// ResourceClaims.
    Claims,
    /// DeviceTaintRules.
    Rules,
}

/// One state of all devices and of what is in use.
#[derive(Debug, Clone)]
pub(crate) struct View {
    pub(crate) inventory: Arc<Inventory>,
    pub(crate) usage: Usage,
    pub(crate) classes: Classes,
    /// When that was, for what nodes answered.
    pub(crate) picture: Picture,
}

impl Devices {
    /// Nothing yet; selectors are compiled by `selectors`.
    pub fn new(selectors: Arc<Selectors>) -> Self {
        let answers = Arc::<Answers>::default();
        let inner = Inner {
            answers: answers.clone(),
            ..Inner::default()
        };
        Self {
            inner: Arc::new(Mutex::new(inner)),
            answers,
            selectors,
            classic: Classic::default(),
            consumers: ClaimConsumers::default(),
        }
    }

    /// The same where claims are for these consumers; by default they are for pods.
    #[must_use]
    pub fn for_consumers(self, consumers: ClaimConsumers) -> Self {
        Self { consumers, ..self }
    }

    /// For whom claims are made and reserved.
    pub(crate) fn consumers(&self) -> ClaimConsumers {
        self.consumers
    }

    /// What is known of the classic API's claims.
    pub fn classic(&self) -> &Classic {
        &self.classic
    }

    /// What nodes answered to claims, for as long as it holds.
    pub(crate) fn answers(&self) -> &Answers {
        &self.answers
    }

    pub(crate) fn selectors(&self) -> &Arc<Selectors> {
        &self.selectors
    }

    /// Everything of this kind that exists is known now.
    pub fn synced(&self, what: Watched) {
        self.inner.lock().synced[what as usize] = true;
    }

    /// Whether a decision about devices can be made: an unknown claim may hold any of them.
    pub fn is_synced(&self) -> bool {
        self.inner.lock().synced.iter().all(|s| *s) && self.classic.is_synced()
    }

    /// Takes a slice over.
    pub fn set_slice(&self, slice: &ResourceSlice) {
        let mut inner = self.inner.lock();
        let rules: Vec<TaintRule> = inner.rules.values().cloned().collect();
        match Slice::new(slice, &rules) {
            Ok(slice) => inner.put(Arc::new(slice)),
            Err(error) => {
                tracing::warn!(%error, "slice left out");
                inner.take(slice.metadata.name.as_deref().unwrap_or_default());
            }
        }
    }

    /// The slice is gone.
    pub(crate) fn remove_slice(&self, name: &str) {
        self.inner.lock().take(name);
    }

    /// Takes a taint rule over, or its end.
    pub(crate) fn set_rule(&self, name: &str, rule: Option<&DeviceTaintRule>) {
        let mut inner = self.inner.lock();
        let new = rule.and_then(TaintRule::new);
        let old = match &new {
            Some(rule) => inner.rules.insert(name.to_owned(), rule.clone()),
            None => inner.rules.remove(name),
        };
        let concerned = |s: &&Arc<Slice>| {
            let mut rules = old.iter().chain(&new);
            rules.any(|r| r.covers_pool(&s.pool.driver, &s.pool.pool))
        };
        let slices = inner.inventory.slices().filter(concerned);
        let slices: Vec<Arc<Slice>> = slices.cloned().collect();
        let rules: Vec<TaintRule> = inner.rules.values().cloned().collect();
        for slice in slices {
            inner.put(Arc::new(slice.under(&rules)));
        }
    }

    /// Takes a class over, or its end.
    pub fn set_class(&self, name: &str, class: Option<Arc<DeviceClass>>) {
        let mut inner = self.inner.lock();
        inner.compiled_classes = None;
        inner.answers.all_changed();
        match class {
            Some(class) => inner.classes.insert(name.to_owned(), class),
            None => inner.classes.remove(name),
        };
    }

    /// Takes a claim over as the API shows it; what is known to be newer stays.
    pub fn set_claim(&self, claim: Arc<ResourceClaim>) {
        let mut inner = self.inner.lock();
        let key = key(&claim);
        let version = |c: &ResourceClaim| {
            let text = c.metadata.resource_version.as_deref();
            text.and_then(|v| v.parse::<u64>().ok())
        };
        let older = inner.claims.get(&key).is_some_and(|known| {
            known.metadata.uid == claim.metadata.uid
                && matches!((version(known), version(&claim)), (Some(a), Some(b)) if a > b)
        });
        if older {
            return;
        }
        let uid = uid(&claim);
        inner.by_uid.insert(uid.clone(), key.clone());
        let before = inner.claims.insert(key, claim);
        if let Some(before) = before.map(|b| self::uid(&b)).filter(|b| *b != uid) {
            inner.by_uid.remove(&before);
            inner.book(&before);
        }
        inner.book(&uid);
    }

    /// The claim is gone.
    pub(crate) fn remove_claim(&self, claim: &ResourceClaim) {
        let mut inner = self.inner.lock();
        let key = key(claim);
        let same = |c: &Arc<ResourceClaim>| c.metadata.uid == claim.metadata.uid;
        if inner.claims.get(&key).is_some_and(same) {
            inner.claims.remove(&key);
        }
        inner.by_uid.remove(&uid(claim));
        inner.book(&uid(claim));
    }

    /// The claim of this name.
    pub fn claim(&self, namespace: &str, name: &str) -> Option<Arc<ResourceClaim>> {
        let key = (namespace.to_owned(), name.to_owned());
        self.inner.lock().claims.get(&key).cloned()
    }

    /// The class of this name.
    pub fn class(&self, name: &str) -> Option<Class> {
        self.inner.lock().classes.get(name).cloned()
    }

    /// The class that stands for an extended resource.
    pub fn class_of_resource(&self, resource: &str) -> Option<Class> {
        self.inner.lock().classes().of_resource(resource).cloned()
    }

    /// The slices of a node's own devices.
    pub(crate) fn slices_of(&self, node: &str) -> Vec<Arc<Slice>> {
        let inner = self.inner.lock();
        inner.inventory.local(node).cloned().collect()
    }

    /// Whether some device takes of its node's resources.
    pub(crate) fn maps_node_resources(&self) -> bool {
        self.inner.lock().inventory.maps_node_resources()
    }

    /// The slices as they are now.
    pub(crate) fn inventory(&self) -> Arc<Inventory> {
        self.inner.lock().inventory.clone()
    }

    /// The allocation of a claim, written or about to be.
    pub(crate) fn allocation_of(&self, claim: &ResourceClaim) -> Option<AllocationResult> {
        self.inner.lock().booked.get(&uid(claim)).cloned()
    }

    /// Everything as it is now.
    pub(crate) fn view(&self) -> View {
        let mut inner = self.inner.lock();
        View {
            inventory: inner.inventory.clone(),
            usage: inner.usage.clone(),
            classes: inner.classes(),
            picture: Picture {
                at: inner.answers.now(),
                selects_nodes: inner.inventory.selects_nodes(),
            },
        }
    }

    /// Whether the claim's allocation is on its way to the API server.
    pub(crate) fn is_in_flight(&self, uid: &str) -> bool {
        self.inner.lock().in_flight.contains_key(uid)
    }

    /// An allocation has been decided. False, with nothing changed, if there is one already.
    pub(crate) fn start(&self, uid: &str, allocation: AllocationResult) -> bool {
        let mut inner = self.inner.lock();
        if inner.booked.contains_key(uid) {
            return false;
        }
        inner.in_flight.insert(uid.to_owned(), (allocation, 1));
        inner.book(uid);
        true
    }

    /// A decided allocation is for one more pod, of the same group.
    pub(crate) fn join(&self, uid: &str) -> Option<AllocationResult> {
        let mut inner = self.inner.lock();
        let (allocation, pods) = inner.in_flight.get_mut(uid)?;
        *pods += 1;
        Some(allocation.clone())
    }

    /// The allocation has been written (the claim was taken over before) or given up, for one of its pods.
    pub(crate) fn finish(&self, uid: &str) -> bool {
        let mut inner = self.inner.lock();
        let known = match inner.in_flight.get_mut(uid) {
            Some((_, pods)) if *pods > 1 => {
                *pods -= 1;
                return true;
            }
            known => known.is_some(),
        };
        inner.in_flight.remove(uid);
        inner.book(uid);
        known
    }
}

impl Inner {
    fn classes(&mut self) -> Classes {
        let classes = &self.classes;
        let compile = || Classes::new(classes.values().cloned());
        self.compiled_classes.get_or_insert_with(compile).clone()
    }

    fn put(&mut self, slice: Arc<Slice>) {
        let name = slice.name.clone();
        self.change_inventory(&name, |inventory| inventory.set(slice));
    }

    fn take(&mut self, name: &str) {
        self.change_inventory(name, |inventory| inventory.remove(name));
    }

    /// Changes what there is of a slice: nodes that saw its pool, or see it now, answer anew.
    fn change_inventory(&mut self, slice: &str, change: impl FnOnce(&mut Inventory)) {
        if let Some(before) = self.inventory.pool_of(slice) {
            self.answers.pool_changed(&self.inventory, before);
        }
        change(Arc::make_mut(&mut self.inventory));
        if let Some(after) = self.inventory.pool_of(slice) {
            self.answers.pool_changed(&self.inventory, after);
        }
    }

    /// Brings the usage up to date with what is known of a claim.
    fn book(&mut self, uid: &str) {
        let known = self.by_uid.get(uid).and_then(|key| self.claims.get(key));
        let written = known.and_then(|c| allocation(c));
        let decided = self.in_flight.get(uid).map(|(allocation, _)| allocation);
        let wanted = written.or(decided).cloned();
        if self.booked.get(uid) == wanted.as_ref() {
            return;
        }
        if let Some(old) = self.booked.remove(uid) {
            self.usage.remove(&old);
            self.answers.allocation_changed(&self.inventory, &old);
        }
        if let Some(new) = wanted {
            self.usage.add(&new);
            self.answers.allocation_changed(&self.inventory, &new);
            self.booked.insert(uid.to_owned(), new);
        }
    }
}

/// The claim's allocation.
pub(crate) fn allocation(claim: &ResourceClaim) -> Option<&AllocationResult> {
    claim.status.as_ref()?.allocation.as_ref()
}

/// The UIDs for which the claim is reserved.
pub(crate) fn reserved_for(claim: &ResourceClaim) -> impl Iterator<Item = &str> {
    let status = claim.status.iter();
    let reserved = status.flat_map(|s| &s.reserved_for).flatten();
    reserved.map(|r| r.uid.as_str())
}

pub(crate) fn uid(claim: &ResourceClaim) -> String {
    claim.metadata.uid.clone().unwrap_or_default()
}

fn key(claim: &ResourceClaim) -> (String, String) {
    let meta = &claim.metadata;
    (
        meta.namespace.clone().unwrap_or_default(),
        meta.name.clone().unwrap_or_default(),
    )
}
