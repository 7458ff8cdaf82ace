//! Events, and what of them a watcher gets.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;

use super::{CachedObject, Filter};

/// The type of a watch event about an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventType {
    /// The object exists, or now matches the selector.
    Added,
    /// The object changed.
    Modified,
    /// The object is gone, or no longer matches the selector.
    Deleted,
}

impl EventType {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

/// One change of one object, shared by all watchers.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) revision: u64,
    current: Option<Arc<CachedObject>>,
    previous: Option<Arc<CachedObject>>,
    /// The previous object with the revision of this event.
    departed: OnceLock<Arc<CachedObject>>,
    /// Nothing once they are kept no more.
    encodings: Mutex<Option<Vec<Encoding>>>,
}

#[derive(Debug)]
struct Encoding {
    kind: EventType,
    format: u32,
    bytes: Bytes,
}

/// The format number of the JSON frames; callers number theirs from 1.
const JSON_FRAME: u32 = 0;

impl Event {
    pub(super) fn new(
        revision: u64,
        current: Option<Arc<CachedObject>>,
        previous: Option<Arc<CachedObject>>,
    ) -> Self {
        Self {
            revision,
            current,
            previous,
            departed: OnceLock::new(),
            encodings: Mutex::new(Some(Vec::new())),
        }
    }

    pub(super) fn weight(&self) -> usize {
        self.previous.as_ref().map_or(0, |object| object.weight()) + 256
    }

    /// What a watcher with this filter gets: nothing, or the event under the type
    /// that fits what the watcher has seen.
    pub(super) fn for_filter(self: &Arc<Self>, filter: &Filter) -> Option<Delivery> {
        let matches = |object: &Option<Arc<CachedObject>>| {
            object.as_ref().is_some_and(|object| filter.matches(object))
        };
        let kind = match (matches(&self.previous), matches(&self.current)) {
            (false, false) => return None,
            (false, true) => EventType::Added,
            (true, true) => EventType::Modified,
            (true, false) => EventType::Deleted,
        };
        let object = match (kind, &self.previous, &self.current) {
            (EventType::Deleted, Some(previous), _) => self.departed(previous),
            (_, _, Some(current)) => Arc::clone(current),
            _ => return None,
        };
        Some(Delivery {
            kind,
            object,
            event: Some(Arc::clone(self)),
        })
    }

    fn departed(&self, previous: &CachedObject) -> Arc<CachedObject> {
        let departed = self
            .departed
            .get_or_init(|| Arc::new(previous.at_revision(self.revision)));
        Arc::clone(departed)
    }

    fn encoded(&self, kind: EventType, format: u32, make: impl FnOnce() -> Bytes) -> Bytes {
        // Held while it is made, so that others wait for it instead of making it too.
        let mut encodings = self.encodings.lock();
        let Some(encodings) = &mut *encodings else {
            return make();
        };
        let made = encodings
            .iter()
            .find(|encoding| encoding.kind == kind && encoding.format == format);
        if let Some(encoding) = made {
            return encoding.bytes.clone();
        }
        let bytes = make();
        encodings.push(Encoding {
            kind,
            format,
            bytes: bytes.clone(),
        });
        bytes
    }

    /// Keeps encodings no more, those that are there and those to come: who watches has got the event, and who resumes is one.
    pub(super) fn forget_encodings(&self) {
        *self.encodings.lock() = None;
    }

    #[cfg(test)]
    pub(super) fn keeps_encodings(&self) -> bool {
        self.encodings.lock().is_some()
    }
}

/// An event as one watcher gets it.
#[derive(Debug, Clone)]
pub struct Delivery {
    kind: EventType,
    object: Arc<CachedObject>,
    /// Missing for the synthetic events of the initial state.
    event: Option<Arc<Event>>,
}

impl Delivery {
    /// The synthetic event that tells that an object exists.
    pub(super) fn initial(object: Arc<CachedObject>) -> Self {
        Self {
            kind: EventType::Added,
            object,
            event: None,
        }
    }

    /// The object before and after the event, as far as the watch's filter lets them pass; the former with the revision
    /// of the event.
    pub fn sides(&self) -> (Option<Arc<CachedObject>>, Option<Arc<CachedObject>>) {
        let object = Arc::clone(&self.object);
        match (self.kind, &self.event) {
            (EventType::Deleted, _) => (Some(object), None),
            (EventType::Modified, Some(event)) => {
                let previous = event.previous.as_deref();
                (
                    previous.map(|previous| event.departed(previous)),
                    Some(object),
                )
            }
            _ => (None, Some(object)),
        }
    }

    /// The event for a watcher that sees only one of its sides, or both.
    pub fn seen(
        self,
        before: Option<Arc<CachedObject>>,
        after: Option<Arc<CachedObject>>,
    ) -> Option<Self> {
        let (kind, object) = match (before, after) {
            (None, None) => return None,
            (None, Some(after)) => (EventType::Added, after),
            (Some(_), Some(after)) => (EventType::Modified, after),
            (Some(before), None) => (EventType::Deleted, before),
        };
        Some(Self {
            kind,
            object,
            ..self
        })
    }

    /// The type of the event.
    pub fn kind(&self) -> EventType {
        self.kind
    }

    /// The object; for a deletion its last state with the revision of the event.
    pub fn object(&self) -> &Arc<CachedObject> {
        &self.object
    }

    /// The revision of the event, which is that of its object.
    pub fn revision(&self) -> u64 {
        self.object.revision()
    }

    /// The event as a line of a JSON watch stream. All watchers share the bytes.
    pub fn json_frame(&self) -> Bytes {
        self.encoded(JSON_FRAME, || json_frame(self.kind, &self.object))
    }

    /// The event in another format, made once for all watchers of the event.
    /// `format` tells formats apart (encoding, version, transformation) and is not 0.
    pub fn encoded(&self, format: u32, make: impl FnOnce() -> Bytes) -> Bytes {
        match &self.event {
            Some(event) => event.encoded(self.kind, format, make),
            None => make(),
        }
    }
}

/// A line of a JSON watch stream.
fn json_frame(kind: EventType, object: &CachedObject) -> Bytes {
    let kind = kind.as_str();
    let mut frame = Vec::with_capacity(object.json_len() + kind.len() + 24);
    frame.extend_from_slice(b"{\"type\":\"");
    frame.extend_from_slice(kind.as_bytes());
    frame.extend_from_slice(b"\",\"object\":");
    object.append_json(&mut frame);
    frame.extend_from_slice(b"}\n");
    frame.into()
}
