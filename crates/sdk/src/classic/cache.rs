//! Objects as the API server shows them, and as this controller has just written them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::runtime::watcher::Event;

/// Namespace and name.
pub(super) type Key = (String, String);

pub(super) fn key_of<K: kube::Resource>(object: &K) -> Key {
    let meta = object.meta();
    (
        meta.namespace.clone().unwrap_or_default(),
        meta.name.clone().unwrap_or_default(),
    )
}

/// All objects of a kind. A state that is known to be older than another does not replace it, so that
/// a write is never followed by decisions about what was before.
pub(super) struct Cache<K> {
    objects: Mutex<HashMap<Key, Arc<K>>>,
}

impl<K> Default for Cache<K> {
    fn default() -> Self {
        Self {
            objects: Mutex::default(),
        }
    }
}

fn version<K: kube::Resource>(object: &K) -> Option<u64> {
    object.meta().resource_version.as_deref()?.parse().ok()
}

impl<K: kube::Resource + Clone> Cache<K> {
    fn objects(&self) -> MutexGuard<'_, HashMap<Key, Arc<K>>> {
        // Each change is one call on the map.
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.objects().get(key).cloned()
    }

    pub(super) fn all(&self) -> Vec<Arc<K>> {
        self.objects().values().cloned().collect()
    }

    /// Takes an object over as it was read or written.
    pub(super) fn set(&self, object: K) -> Key {
        let key = key_of(&object);
        let mut objects = self.objects();
        let newer = objects.get(&key).is_some_and(|known| {
            known.meta().uid == object.meta().uid
                && matches!((version(&**known), version(&object)), (Some(a), Some(b)) if a > b)
        });
        if !newer {
            objects.insert(key.clone(), Arc::new(object));
        }
        key
    }

    fn remove(&self, object: &K) -> Key {
        let key = key_of(object);
        let mut objects = self.objects();
        if objects
            .get(&key)
            .is_some_and(|k| k.meta().uid == object.meta().uid)
        {
            objects.remove(&key);
        }
        key
    }

    /// Takes an event of a watch over; the keys it concerns. `listed` is kept between calls.
    pub(super) fn apply(&self, event: Event<K>, listed: &mut HashSet<Key>) -> Vec<Key> {
        match event {
            Event::Init => {
                listed.clear();
                Vec::new()
            }
            Event::InitApply(object) => {
                let key = self.set(object);
                listed.insert(key.clone());
                vec![key]
            }
            Event::InitDone => {
                let mut objects = self.objects();
                let gone: Vec<Key> = objects
                    .keys()
                    .filter(|k| !listed.contains(*k))
                    .cloned()
                    .collect();
                for key in &gone {
                    objects.remove(key);
                }
                gone
            }
            Event::Apply(object) => vec![self.set(object)],
            Event::Delete(object) => vec![self.remove(&object)],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use davit_api::classic::ResourceClaim;

    fn claim(name: &str, version: &str) -> ResourceClaim {
        let value = serde_json::json!({"metadata": {"name": name, "namespace": "n", "uid": name, "resourceVersion": version}});
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn what_was_written_is_not_undone_by_old_news() {
        let cache = Cache::default();
        let key = cache.set(claim("a", "5"));
        let mut listed = HashSet::new();
        cache.apply(Event::Apply(claim("a", "4")), &mut listed);
        assert_eq!(version(&*cache.get(&key).unwrap()), Some(5));
        cache.apply(Event::Init, &mut listed);
        cache.apply(Event::InitApply(claim("b", "9")), &mut listed);
        assert_eq!(
            cache.apply(Event::InitDone, &mut listed),
            std::slice::from_ref(&key)
        );
        assert!(cache.get(&key).is_none() && cache.all().len() == 1);
    }
}
