//! The scheduling queue: which pod is tried next, and when a pod that was refused is tried again.
//!
//! A pod is in exactly one place: *active* (tried next, by rank, then by arrival), *backing off*
//! (tried when its time has come), *unschedulable* (tried when a change in the cluster may help it,
//! or after five minutes), *gated* (held back by a PreEnqueue plugin) or *in flight* (being tried or
//! bound). The queue has no clock and no tasks of its own: callers pass the time in and ask when to
//! come back.

mod by_claim;
mod turns;

use by_claim::PodsByClaim;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use turns::Turns;

use crate::framework::Code;
use crate::framework::{
    Action, AffectedPods, ClusterEvent, EventObject, EventResource, Hint, Status,
};
use crate::pod::PodInfo;

/// What the queue asks of the plugins.
pub trait Rules {
    /// The pod's rank: higher goes first.
    fn rank(&self, pod: &PodInfo) -> i64;
    /// Why the pod may not be queued, if it may not.
    fn gate(&self, pod: &PodInfo) -> Option<Status>;
    /// Whether a change can help a pod that `plugin` refused.
    fn hint(&self, plugin: &str, event: &ClusterEvent, pod: &PodInfo, object: &EventObject)
    -> Hint;
    /// Which of the pods of a profile that `plugin` refused a change can help at all: [`hint`](Rules::hint) is asked about
    /// these only.
    fn affected(
        &self,
        _plugin: &str,
        _profile: &str,
        _event: &ClusterEvent,
        _object: &EventObject,
    ) -> AffectedPods {
        AffectedPods::All
    }
}

/// Times of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueOptions {
    /// Back-off after the first failure; doubles with each further one.
    pub initial_backoff: Duration,
    /// Longest back-off.
    pub max_backoff: Duration,
    /// How long a pod stays unschedulable at most before it is tried again without a reason.
    pub flush_after: Duration,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self {
            initial_backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(10),
            flush_after: Duration::from_secs(300),
        }
    }
}

/// A pod taken out for an attempt.
#[derive(Debug, Clone)]
pub struct Taken {
    /// The pod.
    pub pod: Arc<PodInfo>,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// When the first attempt began.
    pub first_attempt: Instant,
}

/// How an attempt failed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Failure {
    /// Plugins that refused the pod; it is tried again when a change may help one of them. Without
    /// any (an error, no node at all) every change may help.
    pub plugins: BTreeSet<&'static str>,
    /// Plugins that wait for something they have set in motion; their change puts the pod in front
    /// without back-off.
    pub pending: BTreeSet<&'static str>,
    /// Something went wrong rather than the pod being refused: it is tried again after its back-off.
    pub error: bool,
}

/// How many pods are where.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "the names of the fields are the names of the places"
)]
pub struct Counts {
    pub active: usize,
    pub backoff: usize,
    pub unschedulable: usize,
    pub gated: usize,
    pub in_flight: usize,
}

type ActiveKey = (Reverse<i64>, Instant, u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QueueState {
    Active(ActiveKey),
    Backoff(Instant, u64),
    Unschedulable,
    Gated(&'static str),
    InFlight,
}

#[derive(Debug)]
struct Entry {
    pod: Arc<PodInfo>,
    place: QueueState,
    /// Order of arrival among pods of equal rank; kept over attempts of one pod.
    arrived: Instant,
    seq: u64,
    attempt: u32,
    first_attempt: Option<Instant>,
    failures: u32,
    failure: Failure,
    failed_at: Instant,
    /// Number of changes seen when the attempt began; a failed attempt that missed one is repeated.
    changes_seen: u64,
}

impl Entry {
    /// The plugins for which a pod is held in this place.
    fn refused_by(&self, place: QueueState) -> Vec<&'static str> {
        match place {
            QueueState::Gated(plugin) => vec![plugin],
            QueueState::Unschedulable => {
                let failure = &self.failure;
                failure.plugins.union(&failure.pending).copied().collect()
            }
            QueueState::Active(_) | QueueState::Backoff(..) | QueueState::InFlight => Vec::new(),
        }
    }
}

/// The queue. All methods are quick and none waits.
#[derive(Debug)]
pub struct Queue {
    options: QueueOptions,
    entries: HashMap<Arc<str>, Entry>,
    active: BTreeMap<ActiveKey, Arc<str>>,
    /// Active pods that let others go first.
    turns: Turns,
    backoff: BTreeMap<(Instant, u64), Arc<str>>,
    /// Unschedulable and gated pods: those that a change may help.
    held: HashSet<Arc<str>>,
    gated: usize,
    /// The same by the claims that they name.
    by_claim: PodsByClaim,
    /// How many of those each plugin refuses or holds back, by profile.
    refusing: HashMap<(&'static str, String), usize>,
    /// How many of those no plugin has refused, so that any change may help.
    unexplained: usize,
    next_seq: u64,
    changes: u64,
}

impl Queue {
    /// An empty queue.
    pub fn new(options: QueueOptions) -> Self {
        Self {
            options,
            entries: HashMap::new(),
            active: BTreeMap::new(),
            turns: Turns::default(),
            backoff: BTreeMap::new(),
            held: HashSet::new(),
            gated: 0,
            by_claim: PodsByClaim::default(),
            refusing: HashMap::new(),
            unexplained: 0,
            next_seq: 0,
            changes: 0,
        }
    }

    /// Adds a pod that waits to be scheduled, or takes over its new state.
    pub fn set(&mut self, pod: Arc<PodInfo>, rules: &impl Rules, now: Instant) {
        let uid = pod.uid.clone();
        let Some(entry) = self.entries.get_mut(&uid) else {
            self.next_seq += 1;
            let entry = Entry {
                pod,
                place: QueueState::InFlight,
                arrived: now,
                seq: self.next_seq,
                attempt: 0,
                first_attempt: None,
                failures: 0,
                failure: Failure::default(),
                failed_at: now,
                changes_seen: 0,
            };
            self.entries.insert(uid.clone(), entry);
            return self.activate(&uid, rules);
        };
        let old = std::mem::replace(&mut entry.pod, pod.clone());
        if matches!(
            entry.place,
            QueueState::Gated(_) | QueueState::Unschedulable
        ) {
            self.by_claim.remove(&old);
            self.by_claim.add(&pod);
        }
        let action = crate::framework::pod_action(&old, &pod);
        match entry.place {
            QueueState::Active(_) => self.activate(&uid, rules),
            QueueState::Gated(_) => self.activate(&uid, rules),
            QueueState::InFlight => {
                if !action.is_none() {
                    // Whatever the attempt finds out, it was about another pod.
                    entry.changes_seen = u64::MAX;
                }
            }
            QueueState::Backoff(..) => {}
            QueueState::Unschedulable => {
                let event = ClusterEvent::new(EventResource::TargetPod, action);
                let object = EventObject::Pod {
                    old: Some(old),
                    new: Some(pod),
                };
                let helps = action.intersects(Action::UPDATE_OTHER)
                    || (!action.is_none() && wakes(entry, rules, &event, &object).is_some());
                if helps {
                    self.wake(&uid, rules, now, false);
                }
            }
        }
    }

    /// Removes a pod: it is gone, or bound.
    pub fn remove(&mut self, uid: &str) {
        if let Some(uid) = self.entries.get(uid).map(|e| e.pod.uid.clone()) {
            self.place(&uid, QueueState::InFlight);
            self.entries.remove(&uid);
        }
    }

    /// Whether the pod is in the queue or in flight.
    pub fn contains(&self, uid: &str) -> bool {
        self.entries.contains_key(uid)
    }

    /// The newest state of a pod in the queue or in flight.
    pub fn pod(&self, uid: &str) -> Option<&Arc<PodInfo>> {
        self.entries.get(uid).map(|e| &e.pod)
    }

    /// Takes the next pod out for an attempt. When nothing is active, a pod that only waits for the
    /// end of its back-off goes early, except after an error.
    pub fn pop(&mut self, rules: &impl Rules, now: Instant) -> Option<Taken> {
        self.flush_backoff(rules, now);
        self.take_turns(now);
        if self.active.is_empty() && self.turns.first().is_none() {
            let early = self
                .backoff
                .values()
                .find(|uid| self.entries.get(*uid).is_some_and(|e| !e.failure.error));
            if let Some(uid) = early.cloned() {
                self.activate(&uid, rules);
            }
        }
        let first = self.active.values().next();
        let uid = first.or_else(|| self.turns.first())?.clone();
        self.start(&uid, now)
    }

    /// A decision about pods of a namespace, whose claims had to be looked at, took so long: for a while others go first,
    /// whatever their rank. Nobody holds the scheduler by claims that are hard to fulfil.
    pub fn charge(&mut self, namespace: &Arc<str>, took: Duration, now: Instant) {
        self.turns.charge(namespace, took, now);
    }

    /// Puts aside what would be next and lets others go first, and takes back what has waited long enough.
    fn take_turns(&mut self, now: Instant) {
        self.active.extend(self.turns.over(now));
        while let Some(first) = self.active.first_entry() {
            let pod = self.entries.get(first.get()).map(|entry| &entry.pod);
            let Some(pod) = pod.filter(|pod| self.turns.waits(&pod.namespace)) else {
                return;
            };
            let namespace = pod.namespace.clone();
            let (key, uid) = first.remove_entry();
            self.turns.put(&namespace, key, uid);
        }
    }

    /// Takes a certain pod out for an attempt, wherever it waits. One that a plugin holds back, or that is in flight, stays.
    pub fn take(&mut self, uid: &Arc<str>, rules: &impl Rules, now: Instant) -> Option<Taken> {
        if self.entries.get(uid)?.place == QueueState::InFlight {
            return None;
        }
        self.activate(uid, rules);
        let active = matches!(self.entries.get(uid)?.place, QueueState::Active(_));
        active.then(|| self.start(uid, now)).flatten()
    }

    /// The attempt for a pod begins.
    fn start(&mut self, uid: &Arc<str>, now: Instant) -> Option<Taken> {
        self.place(uid, QueueState::InFlight);
        let changes = self.changes;
        let entry = self.entries.get_mut(uid)?;
        entry.attempt += 1;
        entry.changes_seen = changes;
        let first_attempt = *entry.first_attempt.get_or_insert(now);
        Some(Taken {
            pod: entry.pod.clone(),
            attempt: entry.attempt,
            first_attempt,
        })
    }

    /// The attempt failed: the pod waits for its back-off after an error, else for a change that may
    /// help. Nothing happens if the pod has been removed meanwhile.
    pub fn fail(&mut self, uid: &str, failure: Failure, rules: &impl Rules, now: Instant) {
        let changes = self.changes;
        let Some(entry) = self.entries.get_mut(uid) else {
            return;
        };
        if entry.place != QueueState::InFlight {
            return;
        }
        entry.failures = entry.failures.saturating_add(1);
        entry.failed_at = now;
        let again = failure.error || entry.changes_seen != changes;
        entry.failure = failure;
        let uid = entry.pod.uid.clone();
        self.place(&uid, QueueState::Unschedulable);
        if again {
            self.wake(&uid, rules, now, false);
        }
    }

    /// A change in the cluster: wakes the pods it may help. Returns how many.
    pub fn on_event(
        &mut self,
        event: &ClusterEvent,
        object: &EventObject,
        rules: &impl Rules,
        now: Instant,
    ) -> usize {
        self.changes += 1;
        let woken = |uid: &Arc<str>| {
            let entry = self.entries.get(uid)?;
            let at_once = match entry.place {
                QueueState::Gated(plugin) => {
                    let hint = rules.hint(plugin, event, &entry.pod, object);
                    (hint == Hint::Queue).then_some(true)
                }
                _ => wakes(entry, rules, event, object),
            };
            at_once.map(|at_once| (uid.clone(), at_once))
        };
        let waiting: Vec<(Arc<str>, bool)> = match (self.affected(event, object, rules), object) {
            (AffectedPods::Nobody, _) => Vec::new(),
            (AffectedPods::NamingClaim, EventObject::Claim { old, new }) => {
                let claim = new.as_ref().or(old.as_ref());
                let naming = claim.map(|claim| self.by_claim.of(&claim.metadata));
                naming.into_iter().flatten().filter_map(woken).collect()
            }
            _ => self.held.iter().filter_map(woken).collect(),
        };
        for (uid, at_once) in &waiting {
            self.wake(uid, rules, now, *at_once);
        }
        waiting.len()
    }

    /// Which of the pods that are held a change can help.
    fn affected(
        &self,
        event: &ClusterEvent,
        object: &EventObject,
        rules: &impl Rules,
    ) -> AffectedPods {
        if self.unexplained > 0 {
            return AffectedPods::All;
        }
        let refusing = self.refusing();
        let refusing = refusing.filter(|(_, _, pods)| *pods > 0);
        let affected =
            refusing.map(|(plugin, profile, _)| rules.affected(plugin, profile, event, object));
        affected.max().unwrap_or(AffectedPods::Nobody)
    }

    /// Moves pods whose time has come: ends of back-off, and those that have been unschedulable for
    /// too long.
    pub fn flush(&mut self, rules: &impl Rules, now: Instant) {
        self.flush_backoff(rules, now);
        let limit = self.options.flush_after;
        let stale = |e: &Entry| {
            e.place == QueueState::Unschedulable
                && now.saturating_duration_since(e.failed_at) >= limit
        };
        let held = self.held.iter();
        let uids: Vec<Arc<str>> = held
            .filter(|uid| self.entries.get(*uid).is_some_and(stale))
            .cloned()
            .collect();
        for uid in uids {
            self.wake(&uid, rules, now, false);
        }
    }

    /// When there is something to do next: at once if a pod is active.
    pub fn next_wake(&self) -> Option<Instant> {
        self.backoff.keys().next().map(|(until, _)| *until)
    }

    /// Whether a pod can be taken out now.
    pub fn is_ready(&self, now: Instant) -> bool {
        !self.active.is_empty()
            || self.turns.first().is_some()
            || self.backoff.iter().any(|((until, _), uid)| {
                *until <= now || self.entries.get(uid).is_some_and(|e| !e.failure.error)
            })
    }

    /// How many pods are where.
    pub fn counts(&self) -> Counts {
        let active = self.active.len() + self.turns.len();
        let backoff = self.backoff.len();
        let unschedulable = self.held.len() - self.gated;
        Counts {
            active,
            backoff,
            unschedulable,
            gated: self.gated,
            in_flight: self.entries.len() - active - backoff - self.held.len(),
        }
    }

    /// Plugin, profile, and how many waiting pods of it that plugin refuses or holds back, none included.
    pub fn refusing(&self) -> impl Iterator<Item = (&'static str, &str, usize)> {
        let refusing = self.refusing.iter();
        refusing.map(|((plugin, profile), pods)| (*plugin, profile.as_str(), *pods))
    }

    /// How long a pod with this many failures backs off.
    pub fn backoff_of(&self, failures: u32) -> Duration {
        let doubled = 1u32
            .checked_shl(failures.saturating_sub(1))
            .unwrap_or(u32::MAX);
        self.options
            .initial_backoff
            .saturating_mul(doubled)
            .min(self.options.max_backoff)
    }

    fn flush_backoff(&mut self, rules: &impl Rules, now: Instant) {
        while let Some(((until, _), uid)) = self.backoff.first_key_value() {
            if *until > now {
                return;
            }
            let uid = uid.clone();
            self.activate(&uid, rules);
        }
    }

    /// Lets a waiting pod go: to the active pods, or to back off if its time has not come yet.
    fn wake(&mut self, uid: &Arc<str>, rules: &impl Rules, now: Instant, at_once: bool) {
        let Some(entry) = self.entries.get(uid) else {
            return;
        };
        let until = entry.failed_at + self.backoff_of(entry.failures);
        if at_once || until <= now || entry.failures == 0 {
            return self.activate(uid, rules);
        }
        let place = QueueState::Backoff(until, entry.seq);
        self.place(uid, place);
    }

    /// Makes a pod active unless a plugin holds it back.
    fn activate(&mut self, uid: &Arc<str>, rules: &impl Rules) {
        let Some(entry) = self.entries.get(uid) else {
            return;
        };
        let place = match rules.gate(&entry.pod) {
            Some(status) => QueueState::Gated(status.plugin),
            None => {
                let rank = Reverse(rules.rank(&entry.pod));
                QueueState::Active((rank, entry.arrived, entry.seq))
            }
        };
        self.place(uid, place);
    }

    /// Moves a pod from where it is to another place.
    fn place(&mut self, uid: &Arc<str>, place: QueueState) {
        let Some(entry) = self.entries.get_mut(uid) else {
            return;
        };
        let old = std::mem::replace(&mut entry.place, place);
        let (before, after) = (entry.refused_by(old), entry.refused_by(place));
        self.unexplained -= usize::from(old == QueueState::Unschedulable && before.is_empty());
        self.unexplained += usize::from(place == QueueState::Unschedulable && after.is_empty());
        for plugin in before {
            let key = (plugin, entry.pod.scheduler_name().to_owned());
            let pods = self.refusing.entry(key).or_default();
            *pods = pods.saturating_sub(1);
        }
        for plugin in after {
            let key = (plugin, entry.pod.scheduler_name().to_owned());
            *self.refusing.entry(key).or_default() += 1;
        }
        match old {
            QueueState::Active(key) => {
                if self.active.remove(&key).is_none() {
                    self.turns.remove(&entry.pod.namespace, &key);
                }
            }
            QueueState::Backoff(until, seq) => {
                self.backoff.remove(&(until, seq));
            }
            QueueState::Unschedulable => {
                self.held.remove(uid);
                self.by_claim.remove(&entry.pod);
            }
            QueueState::Gated(_) => {
                self.held.remove(uid);
                self.by_claim.remove(&entry.pod);
                self.gated -= 1;
            }
            QueueState::InFlight => {}
        }
        match place {
            QueueState::Active(key) => {
                self.active.insert(key, uid.clone());
            }
            QueueState::Backoff(until, seq) => {
                self.backoff.insert((until, seq), uid.clone());
            }
            QueueState::Unschedulable => {
                self.held.insert(uid.clone());
                self.by_claim.add(&entry.pod);
            }
            QueueState::Gated(_) => {
                self.held.insert(uid.clone());
                self.by_claim.add(&entry.pod);
                self.gated += 1;
            }
            QueueState::InFlight => {}
        }
    }
}

/// Whether a change may help a refused pod, and if so whether it goes without back-off.
fn wakes(
    entry: &Entry,
    rules: &impl Rules,
    event: &ClusterEvent,
    object: &EventObject,
) -> Option<bool> {
    let helps =
        |plugin: &&'static str| rules.hint(plugin, event, &entry.pod, object) == Hint::Queue;
    let failure = &entry.failure;
    if failure.pending.iter().any(helps) {
        return Some(true);
    }
    let anything = failure.plugins.is_empty() && failure.pending.is_empty();
    (anything || failure.plugins.iter().any(helps)).then_some(false)
}

/// The failure that a refusal or an error means.
impl From<&Status> for Failure {
    fn from(status: &Status) -> Self {
        let mut failure = Self {
            error: !status.is_rejected(),
            ..Self::default()
        };
        if !failure.error && !status.plugin.is_empty() {
            let plugins = if status.code == Code::Pending {
                &mut failure.pending
            } else {
                &mut failure.plugins
            };
            plugins.insert(status.plugin);
        }
        failure
    }
}

#[cfg(test)]
mod tests;
