//! Whose turn it is: a namespace whose pods have held the scheduler for long lets those of others go first for a while.

use super::ActiveKey;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Decisions that take less count for nothing.
const LEAST: Duration = Duration::from_millis(20);
/// How many times as long as a decision took others go first.
const OTHERS: u32 = 3;
/// How long others go first at most.
const MOST: Duration = Duration::from_secs(60);

/// Namespaces that let others go first.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Until when.
    until: HashMap<Arc<str>, Instant>,
    /// Their active pods, as far as they would have been next.
    aside: HashMap<Arc<str>, BTreeMap<ActiveKey, Arc<str>>>,
}

impl Turns {
    /// A decision about a pod of a namespace took so long.
    pub(super) fn charge(&mut self, namespace: &Arc<str>, took: Duration, now: Instant) {
        if took < LEAST {
            return;
        }
        let until = self.until.entry(namespace.clone()).or_insert(now);
        *until = (*until).max(now) + took.saturating_mul(OTHERS).min(MOST);
        *until = (*until).min(now + MOST);
    }

    /// Whether a namespace lets others go first.
    pub(super) fn waits(&self, namespace: &str) -> bool {
        self.until.contains_key(namespace)
    }

    /// Puts an active pod aside.
    pub(super) fn put(&mut self, namespace: &Arc<str>, key: ActiveKey, uid: Arc<str>) {
        let aside = self.aside.entry(namespace.clone()).or_default();
        aside.insert(key, uid);
    }

    /// Takes a pod out, if it is aside.
    pub(super) fn remove(&mut self, namespace: &str, key: &ActiveKey) {
        if let Some(aside) = self.aside.get_mut(namespace) {
            aside.remove(key);
            if aside.is_empty() {
                self.aside.remove(namespace);
            }
        }
    }

    /// The pods of namespaces that need not wait any more.
    pub(super) fn over(&mut self, now: Instant) -> Vec<(ActiveKey, Arc<str>)> {
        let mut over = Vec::new();
        self.until.retain(|namespace, until| {
            let waits = *until > now;
            if !waits {
                over.extend(self.aside.remove(namespace).unwrap_or_default());
            }
            waits
        });
        over
    }

    /// The first of those aside: where nobody else waits there is nobody to let go.
    pub(super) fn first(&self) -> Option<&Arc<str>> {
        let firsts = self
            .aside
            .values()
            .filter_map(|pods| pods.first_key_value());
        firsts.min_by_key(|(key, _)| **key).map(|(_, uid)| uid)
    }

    /// Whether a pod is aside.
    #[cfg(test)]
    pub(super) fn has(&self, namespace: &str, key: &ActiveKey) -> bool {
        let aside = self.aside.get(namespace);
        aside.is_some_and(|aside| aside.contains_key(key))
    }

    /// How many are aside.
    pub(super) fn len(&self) -> usize {
        self.aside.values().map(BTreeMap::len).sum()
    }
}
