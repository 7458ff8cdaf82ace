//! Objects as the cache holds them, and the filters of lists and watches.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use davit_api::labels::Labels;
use davit_store::KeyValue;

use super::{append_with_resource_version, with_resource_version};

/// Makes a cached object of what the store has. Called once for each revision of
/// each object; see [`CachedObject::new`].
pub type Decode = Arc<dyn Fn(&KeyValue) -> CachedObject + Send + Sync>;

/// A condition on objects: label and field selectors.
pub type Predicate = Arc<dyn Fn(&CachedObject) -> bool + Send + Sync>;

/// What lists and watches select by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Header {
    /// The namespace; empty for a cluster-scoped object.
    pub namespace: Box<str>,
    /// The name.
    pub name: Box<str>,
    /// The unique id.
    pub uid: Box<str>,
    /// The labels; of a [`CachedObject`] in order of their keys, since both they and what asks for them can be a hundred thousand.
    pub labels: Box<[(Box<str>, Box<str>)]>,
    /// The selectable fields beside name and namespace (`status.phase`, ...).
    pub fields: Box<[(Box<str>, Box<str>)]>,
    /// The uids of the owners.
    pub owners: Box<[Box<str>]>,
    /// The object of a custom kind is stored in another version than the one objects are stored in
    /// today.
    pub foreign: bool,
    /// What stands in its place in the store is no object: it is damaged, or encrypted with a key that is not there.
    pub unreadable: bool,
}

impl Header {
    /// The value of a selectable field.
    pub fn field(&self, path: &str) -> Option<&str> {
        match path {
            "metadata.name" => Some(&self.name),
            "metadata.namespace" => Some(&self.namespace),
            _ => self
                .fields
                .iter()
                .find(|(field, _)| **field == *path)
                .map(|(_, value)| &**value),
        }
    }
}

impl Labels for Header {
    fn get_label(&self, key: &str) -> Option<&str> {
        let at = self
            .labels
            .binary_search_by(|(label, _)| (**label).cmp(key));
        at.ok().map(|at| &*self.labels[at].1)
    }
}

/// One revision of an object.
#[derive(Debug)]
pub struct CachedObject {
    pair: KeyValue,
    header: Arc<Header>,
    is_departed: bool,
    protobuf: OnceLock<Kept>,
}

/// How many bytes of protobuf messages are kept, of all objects together. Beyond it they are made each time.
const KEPT_BYTES: usize = 32 << 20;
static KEPT: AtomicUsize = AtomicUsize::new(0);

/// A message that is kept, and counted for as long.
#[derive(Debug)]
struct Kept(Bytes);

impl Kept {
    /// Keeps a message if there is room.
    fn new(bytes: &Bytes, limit: usize) -> Option<Self> {
        let before = KEPT.fetch_add(bytes.len(), Ordering::Relaxed);
        let kept = Self(bytes.clone());
        // What there is no room for is given back by the drop.
        (before + bytes.len() <= limit).then_some(kept)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        KEPT.fetch_sub(self.0.len(), Ordering::Relaxed);
    }
}

impl CachedObject {
    /// An object whose value in the store is its JSON without resourceVersion.
    pub fn new(pair: &KeyValue, mut header: Header) -> Self {
        header.labels.sort_unstable();
        Self {
            pair: pair.clone(),
            header: Arc::new(header),
            is_departed: false,
            protobuf: OnceLock::new(),
        }
    }

    /// The same object as the event of `revision` shows it: a deletion carries the
    /// last state with the resourceVersion of the deletion.
    pub(super) fn at_revision(&self, revision: u64) -> Self {
        Self {
            pair: KeyValue {
                mod_revision: revision,
                ..self.pair.clone()
            },
            header: Arc::clone(&self.header),
            is_departed: true,
            protobuf: OnceLock::new(),
        }
    }

    /// The key in the store.
    pub fn key(&self) -> &Arc<str> {
        &self.pair.key
    }

    /// The resourceVersion.
    pub fn revision(&self) -> u64 {
        self.pair.mod_revision
    }

    /// Whether this is the state before its revision: that of an object which went, or left what was selected, in the event of
    /// that revision. A key and a revision may have both states.
    pub fn is_departed(&self) -> bool {
        self.is_departed
    }

    /// What it can be selected by.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The canonical JSON of the storage version, with resourceVersion. It is made at each call: kept, it would be a second
    /// copy of everything that was ever listed, and making it is little more than copying.
    pub fn json(&self) -> Bytes {
        let stored = &self.pair.value;
        match with_resource_version(stored, self.pair.mod_revision) {
            Some(json) => json.into(),
            None => stored.clone(),
        }
    }

    /// Appends what [`CachedObject::json`] is.
    pub fn append_json(&self, to: &mut Vec<u8>) {
        append_with_resource_version(&self.pair.value, self.pair.mod_revision, to);
    }

    /// How long the text is that [`CachedObject::append_json`] appends, or a little less than this.
    pub fn json_len(&self) -> usize {
        self.pair.value.len() + 64
    }

    /// The protobuf message of the storage version, which `make` makes of the JSON. Made at the first call and shared from
    /// then on, as long as there is room for it.
    pub fn protobuf<E>(&self, make: impl FnOnce(&Bytes) -> Result<Vec<u8>, E>) -> Result<Bytes, E> {
        if let Some(kept) = self.protobuf.get() {
            return Ok(kept.0.clone());
        }
        let bytes = Bytes::from(make(&self.json())?);
        if let Some(kept) = Kept::new(&bytes, KEPT_BYTES) {
            // Another one may have been faster; its message is the same.
            let _ = self.protobuf.set(kept);
        }
        Ok(bytes)
    }

    /// What it weighs in memory, roughly.
    pub(super) fn weight(&self) -> usize {
        self.pair.value.len() + 256
    }
}

/// What a list or a watch shows.
#[derive(Clone, Default)]
pub struct Filter {
    /// Only objects of this namespace.
    pub namespace: Option<String>,
    /// Only objects of this name.
    pub name: Option<String>,
    /// Only objects that satisfy this.
    pub predicate: Option<Predicate>,
}

impl Filter {
    /// Whether an object is shown.
    pub fn matches(&self, object: &CachedObject) -> bool {
        let header = object.header();
        self.namespace
            .as_deref()
            .is_none_or(|namespace| namespace == &*header.namespace)
            && self
                .name
                .as_deref()
                .is_none_or(|name| name == &*header.name)
            && self
                .predicate
                .as_ref()
                .is_none_or(|predicate| predicate(object))
    }

    /// Whether nothing but a namespace is asked for.
    pub fn selects_all(&self) -> bool {
        self.name.is_none() && self.predicate.is_none()
    }

    /// The part of the store in which all matching keys lie.
    pub(super) fn list_prefix(&self, prefix: &str) -> String {
        match &self.namespace {
            Some(namespace) => format!("{prefix}{namespace}/"),
            None => prefix.to_owned(),
        }
    }

    /// The one key that can match, if there is only one. Without a namespace the name
    /// of a cluster-scoped object and a namespace look alike, so none is given.
    pub(super) fn only_key(&self, prefix: &str) -> Option<String> {
        let (namespace, name) = (self.namespace.as_ref()?, self.name.as_ref()?);
        Some(format!("{prefix}{namespace}/{name}"))
    }
}

impl std::fmt::Debug for Filter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Filter")
            .field("namespace", &self.namespace)
            .field("name", &self.name)
            .field("predicate", &self.predicate.is_some())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Somebody labels an object a hundred thousand times, and asks for it by as many conditions as are taken.
    #[test]
    fn many_labels_cost_their_logarithm() {
        let pair = KeyValue {
            key: "/a".into(),
            value: Bytes::from_static(b"{}"),
            mod_revision: 7,
            create_revision: 7,
        };
        let labels = (0..100_000).rev();
        let labels = labels.map(|n| (format!("l{n}").into(), n.to_string().into()));
        let header = Header {
            labels: labels.collect(),
            ..Header::default()
        };
        let object = CachedObject::new(&pair, header);
        let began = std::time::Instant::now();
        for n in 0..100_000 {
            let found = object.header().get_label(&format!("l{n}"));
            assert_eq!(found, Some(&*n.to_string()));
            assert_eq!(object.header().get_label(&format!("m{n}")), None);
        }
        let took = began.elapsed();
        assert!(took < std::time::Duration::from_secs(20), "{took:?}");
    }

    #[test]
    fn messages_are_made_once_and_within_bounds() {
        let pair = KeyValue {
            key: "/a".into(),
            value: Bytes::from_static(b"{}"),
            mod_revision: 7,
            create_revision: 7,
        };
        let object = CachedObject::new(&pair, Header::default());
        let made = |text: &'static [u8]| object.protobuf(|_| Ok::<_, ()>(text.to_vec())).unwrap();
        assert_eq!(made(b"first"), "first");
        assert_eq!(made(b"second"), "first");
        assert!(object.protobuf(|_| Err::<Vec<u8>, _>(())).is_ok());
        // no room, and what is not kept is not counted either
        let large = Bytes::from(vec![0; 1000]);
        for _ in 0..100 {
            assert!(Kept::new(&large, 1000 - 1).is_none());
        }
        assert!(Kept::new(&large, KEPT_BYTES).is_some());
    }
}
