//! Events that are said once of each object, however often it is looked at.

use davit_client::{EventRecorder, ObjectKey, object_ref};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::Mutex;
use std::collections::HashMap;

/// What was said last of which object.
pub struct Notices {
    events: EventRecorder,
    /// By name; the uid and the words.
    said: Mutex<HashMap<ObjectKey, (String, String)>>,
}

/// What kind of event it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// All is well.
    Normal,
    /// Something is missing or failed.
    Warning,
}

impl Notices {
    /// Nothing has been said yet.
    pub fn new(events: EventRecorder) -> Self {
        Self {
            events,
            said: Mutex::default(),
        }
    }

    /// Says it, unless it was what was said of this object last.
    pub fn say<K>(&self, object: &K, tone: Tone, reason: &str, message: &str)
    where
        K: kube::Resource<DynamicType = ()>,
    {
        let meta: &ObjectMeta = object.meta();
        let uid = meta.uid.clone().unwrap_or_default();
        let now = (uid, message.to_owned());
        let before = self.said.lock().insert(ObjectKey::of(object), now.clone());
        if before == Some(now) {
            return;
        }
        let about = object_ref(object);
        match tone {
            Tone::Normal => self.events.normal(&about, reason, message),
            Tone::Warning => self.events.warning(&about, reason, message),
        }
    }

    /// Nothing counts as said of it any more.
    pub fn forget(&self, key: &ObjectKey) {
        self.said.lock().remove(key);
    }

    /// Keeps what was said of these.
    pub fn retain(&self, is_there: impl Fn(&ObjectKey) -> bool) {
        self.said.lock().retain(|key, _| is_there(key));
    }
}
