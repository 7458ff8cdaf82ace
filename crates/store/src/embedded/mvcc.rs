//! The state in memory: every key with its current and its not yet compacted
//! earlier versions, and the log of changes in revision order.
//!
//! Values are held as long as their write is part of the history. Of what is older memory knows only which record of the
//! log has it ([`StoredPair::Record`]).
//!
//! Pure data: no I/O, no locks, no clock.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::{Change, Error, KeyValue, ListOptions, Listing, Result};

/// The revision of an empty store. The first write takes the next one, so that no
/// object ever has revision 0, which means "any" to Kubernetes clients.
pub(super) const FIRST_REVISION: u64 = 1;

/// What a change costs in memory beside the values it holds.
const CHANGE_OVERHEAD: usize = 320;

/// One version of a key.
#[derive(Debug)]
struct Version {
    mod_revision: u64,
    create_revision: u64,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Deleted,
    Held(Bytes),
    /// Only its record on disk has the value.
    Recorded,
}

impl From<Option<Bytes>> for Content {
    fn from(value: Option<Bytes>) -> Self {
        value.map_or(Self::Deleted, Self::Held)
    }
}

impl Version {
    fn is_deleted(&self) -> bool {
        matches!(self.content, Content::Deleted)
    }
}

/// What memory has of a pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StoredPair {
    /// All of it.
    Pair(KeyValue),
    /// Where its value is. The record stays until the pair is superseded and that is compacted.
    Record(RecordId),
}

impl StoredPair {
    /// The pair, for which `read` gets the value of a record.
    pub(super) fn resolve(self, read: impl FnOnce(&RecordId) -> Result<Bytes>) -> Result<KeyValue> {
        match self {
            Self::Pair(pair) => Ok(pair),
            Self::Record(id) => Ok(KeyValue {
                value: read(&id)?,
                key: id.key,
                mod_revision: id.revision,
                create_revision: id.create_revision,
            }),
        }
    }
}

/// The versions of a key. `older` is ascending and older than `head`.
#[derive(Debug)]
struct Slot {
    head: Version,
    older: Vec<Version>,
}

impl Slot {
    fn at(&self, revision: u64) -> Option<&Version> {
        if self.head.mod_revision <= revision {
            return Some(&self.head);
        }
        let newer = self
            .older
            .partition_point(|version| version.mod_revision <= revision);
        newer.checked_sub(1).map(|index| &self.older[index])
    }
}

/// Names one record on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RecordId {
    pub(super) revision: u64,
    pub(super) create_revision: u64,
    pub(super) delete: bool,
    pub(super) key: Arc<str>,
}

impl RecordId {
    fn of(key: &Arc<str>, version: &Version) -> Self {
        Self {
            revision: version.mod_revision,
            create_revision: version.create_revision,
            delete: version.is_deleted(),
            key: Arc::clone(key),
        }
    }
}

struct Logged {
    change: Arc<Change>,
    at: Instant,
    /// Bytes of memory that are free when this and all before it is forgotten: each value counts at the last change that
    /// holds it.
    cost: usize,
}

fn value_len(pair: Option<&KeyValue>) -> usize {
    pair.map_or(0, |pair| pair.value.len())
}

pub(super) struct Mvcc {
    keys: BTreeMap<Arc<str>, Slot>,
    log: VecDeque<Logged>,
    log_cost: usize,
    revision: u64,
    compacted: u64,
}

impl Mvcc {
    /// An empty state whose history begins at `compacted`.
    pub(super) fn new(compacted: u64) -> Self {
        Self {
            keys: BTreeMap::new(),
            log: VecDeque::new(),
            log_cost: 0,
            revision: compacted,
            compacted,
        }
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// The oldest revision that can be read or resumed from.
    pub(super) fn oldest(&self) -> u64 {
        self.compacted
    }

    pub(super) fn check_revision(&self, revision: u64) -> Result<()> {
        if revision < self.compacted {
            return Err(Error::Compacted {
                requested: revision,
                oldest: self.compacted,
            });
        }
        if revision > self.revision {
            return Err(Error::FutureRevision {
                requested: revision,
                current: self.revision,
            });
        }
        Ok(())
    }

    pub(super) fn get(&self, key: &str) -> Option<StoredPair> {
        let (key, slot) = self.keys.get_key_value(key)?;
        found(key, &slot.head)
    }

    pub(super) fn get_at(&self, key: &str, revision: u64) -> Option<StoredPair> {
        let (key, slot) = self.keys.get_key_value(key)?;
        found(key, slot.at(revision)?)
    }

    /// The shared form of a key the state already knows.
    pub(super) fn shared_key(&self, key: &str) -> Option<Arc<str>> {
        self.keys.get_key_value(key).map(|(key, _)| Arc::clone(key))
    }

    /// Takes the next change. Its revision must be greater than all before.
    pub(super) fn apply(&mut self, change: Arc<Change>, at: Instant) {
        debug_assert!(change.revision > self.revision, "revisions only grow");
        self.revision = change.revision;
        let version = Version {
            mod_revision: change.revision,
            create_revision: change
                .current
                .as_ref()
                .map_or(0, |pair| pair.create_revision),
            content: change
                .current
                .as_ref()
                .map(|pair| pair.value.clone())
                .into(),
        };
        match self.keys.entry(Arc::clone(&change.key)) {
            Entry::Vacant(entry) => {
                entry.insert(Slot {
                    head: version,
                    older: Vec::new(),
                });
            }
            Entry::Occupied(mut entry) => {
                let slot = entry.get_mut();
                slot.older.push(std::mem::replace(&mut slot.head, version));
            }
        }
        self.log_change(change, at);
    }

    fn log_change(&mut self, change: Arc<Change>, at: Instant) {
        let superseded = value_len(change.previous.as_ref());
        if let Some(writer) = self.logged_mut(change.previous.as_ref()) {
            writer.cost -= superseded;
            self.log_cost -= superseded;
        }
        let cost = CHANGE_OVERHEAD + superseded + value_len(change.current.as_ref());
        self.log_cost += cost;
        self.log.push_back(Logged { change, at, cost });
    }

    /// The logged change that wrote `pair`, if the history reaches back to it.
    fn logged_mut(&mut self, pair: Option<&KeyValue>) -> Option<&mut Logged> {
        let revision = pair?.mod_revision;
        let index = self
            .log
            .partition_point(|logged| logged.change.revision < revision);
        let logged = self.log.get_mut(index)?;
        (logged.change.revision == revision).then_some(logged)
    }

    /// Takes in the record of a write that is older than the history, at start.
    pub(super) fn restore(&mut self, id: RecordId) {
        if id.delete {
            self.keys.remove(&id.key);
            return;
        }
        let head = Version {
            mod_revision: id.revision,
            create_revision: id.create_revision,
            content: Content::Recorded,
        };
        let older = Vec::new();
        self.keys.insert(id.key, Slot { head, older });
    }

    /// The record that holds the current version of `key`, at start.
    pub(super) fn record_of(&self, key: &str) -> Option<RecordId> {
        self.keys
            .get_key_value(key)
            .map(|(key, slot)| RecordId::of(key, &slot.head))
    }

    /// The changes under `prefix` after a revision, oldest first.
    pub(super) fn changes_after(&self, prefix: &str, after: u64) -> Result<VecDeque<Arc<Change>>> {
        if after < self.compacted {
            return Err(Error::Compacted {
                requested: after,
                oldest: self.compacted,
            });
        }
        let first = self
            .log
            .partition_point(|logged| logged.change.revision <= after);
        Ok(self
            .log
            .range(first..)
            .filter(|logged| logged.change.key.starts_with(prefix))
            .map(|logged| Arc::clone(&logged.change))
            .collect())
    }

    /// Continues a page with at most `piece` keys. Returns whether it is complete.
    pub(super) fn fill(&self, page: &mut Page, revision: u64, piece: usize) -> bool {
        let from = match &page.cursor {
            Cursor::From(key) => Bound::Included(key.as_str()),
            Cursor::After(key) => Bound::Excluded(&**key),
        };
        let mut left = piece;
        let mut last = None;
        for (key, slot) in self.keys.range::<str, _>((from, Bound::Unbounded)) {
            if !key.starts_with(&page.prefix) {
                return true;
            }
            if left == 0 {
                break;
            }
            left -= 1;
            last = Some(key);
            if let Some(found) = slot.at(revision).and_then(|version| found(key, version)) {
                page.push(found);
            }
        }
        match last {
            Some(key) if left == 0 => {
                page.cursor = Cursor::After(Arc::clone(key));
                false
            }
            _ => true,
        }
    }

    /// The newest revision that the limits of the history allow to forget, if any.
    pub(super) fn compactable(
        &self,
        now: Instant,
        retention: Duration,
        entries: usize,
        cost: usize,
    ) -> Option<u64> {
        let mut remaining = self.log.len();
        let mut remaining_cost = self.log_cost;
        let mut revision = None;
        for logged in &self.log {
            let expired = now.saturating_duration_since(logged.at) >= retention;
            if !expired && remaining <= entries && remaining_cost <= cost {
                break;
            }
            revision = Some(logged.change.revision);
            remaining -= 1;
            remaining_cost -= logged.cost;
        }
        revision
    }

    /// Whether there is any history.
    pub(super) fn has_history(&self) -> bool {
        !self.log.is_empty()
    }

    /// The records that compacting at `revision` makes superfluous.
    pub(super) fn garbage(&self, revision: u64) -> Vec<RecordId> {
        let mut garbage = Vec::new();
        for logged in &self.log {
            let change = &logged.change;
            if change.revision > revision {
                break;
            }
            if let Some(previous) = &change.previous {
                garbage.push(RecordId {
                    revision: previous.mod_revision,
                    create_revision: previous.create_revision,
                    delete: false,
                    key: Arc::clone(&change.key),
                });
            }
            if change.current.is_none() {
                garbage.push(RecordId {
                    revision: change.revision,
                    create_revision: 0,
                    delete: true,
                    key: Arc::clone(&change.key),
                });
            }
        }
        garbage
    }

    /// Forgets the history up to and including `revision`, and with it the values written in it, which the disk has.
    pub(super) fn compact(&mut self, revision: u64) {
        while let Some(logged) = self.log.front()
            && logged.change.revision <= revision
        {
            self.log_cost -= logged.cost;
            let key = Arc::clone(&logged.change.key);
            self.log.pop_front();
            self.prune(&key, revision);
        }
        self.compacted = self.compacted.max(revision);
    }

    /// Drops the versions of a key that nobody can read at or after `revision`, and the value of one that was written
    /// before it.
    fn prune(&mut self, key: &str, revision: u64) {
        let Some(slot) = self.keys.get_mut(key) else {
            return;
        };
        if slot.head.mod_revision <= revision {
            if slot.head.is_deleted() {
                self.keys.remove(key);
            } else {
                slot.head.content = Content::Recorded;
                slot.older = Vec::new();
            }
            return;
        }
        let visible = slot
            .older
            .partition_point(|version| version.mod_revision <= revision);
        if let Some(last) = visible.checked_sub(1) {
            let keep_from = if slot.older[last].is_deleted() {
                visible
            } else {
                slot.older[last].content = Content::Recorded;
                last
            };
            slot.older.drain(..keep_from);
        }
    }
}

fn found(key: &Arc<str>, version: &Version) -> Option<StoredPair> {
    match &version.content {
        Content::Deleted => None,
        Content::Held(value) => Some(StoredPair::Pair(KeyValue {
            key: Arc::clone(key),
            value: value.clone(),
            mod_revision: version.mod_revision,
            create_revision: version.create_revision,
        })),
        Content::Recorded => Some(StoredPair::Record(RecordId::of(key, version))),
    }
}

enum Cursor {
    From(String),
    After(Arc<str>),
}

/// A list that is being taken.
pub(super) struct Page {
    prefix: String,
    cursor: Cursor,
    limit: usize,
    items: Vec<StoredPair>,
    remaining: usize,
}

impl Page {
    pub(super) fn new(prefix: &str, opts: &ListOptions) -> Self {
        let start = opts
            .start
            .as_deref()
            .filter(|start| *start > prefix)
            .unwrap_or(prefix);
        Self {
            prefix: prefix.to_owned(),
            cursor: Cursor::From(start.to_owned()),
            limit: opts.limit.unwrap_or(usize::MAX),
            items: Vec::new(),
            remaining: 0,
        }
    }

    fn push(&mut self, found: StoredPair) {
        if self.items.len() < self.limit {
            self.items.push(found);
        } else {
            self.remaining += 1;
        }
    }

    /// Whether all values are at hand.
    pub(super) fn is_held(&self) -> bool {
        self.items
            .iter()
            .all(|found| matches!(found, StoredPair::Pair(_)))
    }

    /// The listing, for which `read` gets the values of records.
    pub(super) fn finish(
        self,
        revision: u64,
        mut read: impl FnMut(&RecordId) -> Result<Bytes>,
    ) -> Result<Listing> {
        let resolve = |found: StoredPair| found.resolve(&mut read);
        Ok(Listing {
            items: self.items.into_iter().map(resolve).collect::<Result<_>>()?,
            revision,
            more: self.remaining > 0,
            remaining: self.remaining,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// The cost of the history, taken from what it holds.
    fn held(state: &Mvcc) -> usize {
        let values: HashMap<_, _> = state
            .log
            .iter()
            .flat_map(|logged| [&logged.change.previous, &logged.change.current])
            .flatten()
            .map(|pair| ((&pair.key, pair.mod_revision), pair.value.len()))
            .collect();
        state.log.len() * CHANGE_OVERHEAD + values.values().sum::<usize>()
    }

    #[test]
    fn each_value_of_the_history_counts_once() {
        let mut state = Mvcc::new(FIRST_REVISION);
        let mut current: HashMap<Arc<str>, KeyValue> = HashMap::new();
        let mut random = 7_u64;
        let mut next = |below: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 33) % below
        };
        for revision in FIRST_REVISION + 1..500 {
            let key: Arc<str> = Arc::from(format!("k{}", next(8)));
            let previous = current.remove(&key);
            if previous.is_none() || next(4) > 0 {
                let pair = KeyValue {
                    key: Arc::clone(&key),
                    value: Bytes::from(vec![0; 100 + next(1000) as usize]),
                    mod_revision: revision,
                    create_revision: previous.as_ref().map_or(revision, |p| p.create_revision),
                };
                current.insert(Arc::clone(&key), pair);
            }
            let change = Change {
                revision,
                current: current.get(&key).cloned(),
                previous,
                key,
            };
            state.apply(Arc::new(change), Instant::now());
            if next(10) == 0 {
                let compacted = state.oldest() + next(revision - state.oldest() + 1);
                state.compact(compacted);
            }
            assert_eq!(state.log_cost, held(&state));
        }
    }
}
