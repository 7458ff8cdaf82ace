//! What a subscriber of an informer has not seen yet.

use super::{ObjectKey, Shared};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::fmt::Debug;
use std::sync::Arc;
use tokio::sync::Notify;

/// One difference between what a subscriber last saw and what is.
#[derive(Debug, Clone)]
pub enum Change<K> {
    /// The object is there; `old` is what the subscriber saw before, if anything.
    Applied {
        /// What the subscriber last saw under this key.
        old: Option<Arc<K>>,
        /// The object now.
        new: Arc<K>,
    },
    /// The object is gone; its last known state.
    Deleted(Arc<K>),
    /// All objects that existed when the subscription began, or when the informer first listed, have been delivered.
    Synced,
}

pub(super) struct Mailbox<K> {
    pub(super) pending: Mutex<Pending<K>>,
    pub(super) filled: Notify,
}

impl<K> Default for Mailbox<K> {
    fn default() -> Self {
        Self {
            pending: Mutex::default(),
            filled: Notify::default(),
        }
    }
}

/// What a subscriber has not seen yet: for each object at most one deletion and one application after it.
pub(super) struct Pending<K> {
    order: VecDeque<Step>,
    by_key: HashMap<ObjectKey, Unseen<K>>,
}

enum Step {
    Object(ObjectKey),
    Synced,
}

struct Unseen<K> {
    deleted: Option<Arc<K>>,
    applied: Option<(Option<Arc<K>>, Arc<K>)>,
}

impl<K> Default for Pending<K> {
    fn default() -> Self {
        Self {
            order: VecDeque::new(),
            by_key: HashMap::new(),
        }
    }
}

impl<K> Pending<K> {
    fn entry(&mut self, key: &ObjectKey) -> &mut Unseen<K> {
        let order = &mut self.order;
        self.by_key.entry(key.clone()).or_insert_with(|| {
            order.push_back(Step::Object(key.clone()));
            Unseen {
                deleted: None,
                applied: None,
            }
        })
    }

    pub(super) fn apply(&mut self, key: &ObjectKey, old: Option<Arc<K>>, new: Arc<K>) {
        let entry = self.entry(key);
        let first_old = match entry.applied.take() {
            Some((first_old, _)) => first_old,
            None => old,
        };
        entry.applied = Some((first_old, new));
    }

    pub(super) fn delete(&mut self, key: &ObjectKey, last: Arc<K>) {
        let entry = self.entry(key);
        entry.applied = None;
        entry.deleted = Some(last);
    }

    pub(super) fn mark_synced(&mut self) {
        self.order.push_back(Step::Synced);
    }

    fn pop(&mut self) -> Option<Change<K>> {
        match self.order.pop_front()? {
            Step::Synced => Some(Change::Synced),
            Step::Object(key) => {
                let mut unseen = self.by_key.remove(&key)?;
                if let Some(last) = unseen.deleted.take() {
                    if unseen.applied.is_some() {
                        self.order.push_front(Step::Object(key.clone()));
                        self.by_key.insert(key, unseen);
                    }
                    return Some(Change::Deleted(last));
                }
                unseen
                    .applied
                    .map(|(old, new)| Change::Applied { old, new })
            }
        }
    }
}

/// A subscriber's end: differences between what it saw and what is.
pub struct Subscription<K> {
    pub(super) mailbox: Arc<Mailbox<K>>,
    // Keeps the store alive for as long as somebody listens.
    pub(super) informer: Arc<Shared<K>>,
}

impl<K> Debug for Subscription<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subscription")
            .field("pending", &self.mailbox.pending.lock().order.len())
            .finish()
    }
}

impl<K> Subscription<K> {
    /// The next difference; waits for one. Cancel-safe.
    pub async fn next(&mut self) -> Option<Change<K>> {
        loop {
            if let Some(change) = self.try_next() {
                return Some(change);
            }
            self.mailbox.filled.notified().await;
        }
    }

    /// The next difference if there is one now.
    pub fn try_next(&mut self) -> Option<Change<K>> {
        self.mailbox.pending.lock().pop()
    }

    /// Whether the informer behind it has listed its objects once.
    pub fn is_synced(&self) -> bool {
        *self.informer.synced.borrow()
    }
}
