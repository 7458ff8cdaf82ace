//! List and watch of one kind into an indexed store, with change notification.
//!
//! A subscriber never sees the stream of events but the difference between what it last saw and what is: changes wait in
//! a map by object, later ones folded into earlier ones. So a slow subscriber costs memory for the objects that exist,
//! not for the events that happened, and nothing is ever dropped.

mod subscription;
mod watch;

pub use subscription::{Change, Subscription};

use crate::Error;
use crate::received::{Received, untyped};
use kube::runtime::watcher;
use parking_lot::RwLock;
use serde::de::DeserializeOwned;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::fmt::Debug;
use std::sync::{Arc, Weak};
use std::time::Duration;
use subscription::{Mailbox, Pending};
use tokio::sync::watch::{Sender, channel};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use watch::{WatchTarget, keep_watching};

/// What an informer can hold.
pub trait Object:
    kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static
{
}
impl<K> Object for K where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static
{
}

/// Namespace (empty for cluster-scoped objects) and name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl ObjectKey {
    /// The key of an object.
    pub fn of<K: kube::Resource>(object: &K) -> Self {
        let meta = object.meta();
        Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
        }
    }
}

impl std::fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

/// List and watch of `K` into a store by namespace and name. Cheap to clone; all clones share one watch.
///
/// Objects come without `managedFields`, which may be larger than all the rest; the server takes a write without them as
/// one that does not change them.
pub struct Informer<K> {
    shared: Arc<Shared<K>>,
}

impl<K> Clone for Informer<K> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
        }
    }
}

impl<K> Debug for Informer<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Informer")
            .field("objects", &self.shared.state.read().objects.len())
            .finish()
    }
}

struct Shared<K> {
    state: RwLock<State<K>>,
    synced: Sender<bool>,
}

struct State<K> {
    objects: BTreeMap<ObjectKey, Arc<K>>,
    index: Option<Index<K>>,
    departed: Departed,
    subscribers: Vec<Weak<Mailbox<K>>>,
}

/// Of how many objects that went last it is remembered that they did.
const REMEMBERED: usize = 1024;

/// The UIDs of objects that were seen to go last.
#[derive(Debug, Default)]
struct Departed {
    uids: HashSet<String>,
    order: VecDeque<String>,
}

impl Departed {
    fn insert(&mut self, uid: &str) {
        if !self.uids.insert(uid.to_owned()) {
            return;
        }
        self.order.push_back(uid.to_owned());
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.uids.remove(&oldest);
        }
    }
}

/// Takes from an object what nobody who reads it here wants to know.
pub type Trim<K> = fn(&mut K);

/// The value that an object is found by, if it has one.
pub type IndexValue<K> = fn(&K) -> Option<String>;

struct Index<K> {
    value: IndexValue<K>,
    keys: HashMap<String, BTreeSet<ObjectKey>>,
}

impl<K> Index<K> {
    /// The object of a key is another now, or gone.
    fn replace(&mut self, key: &ObjectKey, old: Option<&K>, new: Option<&K>) {
        let (old, new) = (old.and_then(self.value), new.and_then(self.value));
        if old == new {
            return;
        }
        if let Some(old) = old
            && let Some(keys) = self.keys.get_mut(&old)
        {
            keys.remove(key);
            if keys.is_empty() {
                self.keys.remove(&old);
            }
        }
        if let Some(new) = new {
            self.keys.entry(new).or_default().insert(key.clone());
        }
    }
}

impl<K: Object> Informer<K> {
    /// Starts listing and watching in a task of `tasks`; it ends when `cancel` is cancelled.
    pub fn spawn(
        api: kube::Api<K>,
        config: watcher::Config,
        tasks: &mut JoinSet<()>,
        cancel: CancellationToken,
    ) -> Self {
        Self::start(api, config, None, |_| {}, tasks, cancel)
    }

    /// As [`Informer::spawn`]; objects are [trimmed](Trim) before they are kept or told of.
    pub fn spawn_trimmed(
        api: kube::Api<K>,
        config: watcher::Config,
        trim: Trim<K>,
        tasks: &mut JoinSet<()>,
        cancel: CancellationToken,
    ) -> Self {
        Self::start(api, config, None, trim, tasks, cancel)
    }

    /// As [`Informer::spawn`]; objects can be looked up by a value they have
    /// ([`Informer::list_indexed`]).
    pub fn spawn_indexed(
        api: kube::Api<K>,
        config: watcher::Config,
        value: IndexValue<K>,
        tasks: &mut JoinSet<()>,
        cancel: CancellationToken,
    ) -> Self {
        Self::start(api, config, Some(value), |_| {}, tasks, cancel)
    }

    fn start(
        api: kube::Api<K>,
        config: watcher::Config,
        value: Option<IndexValue<K>>,
        trim: Trim<K>,
        tasks: &mut JoinSet<()>,
        cancel: CancellationToken,
    ) -> Self {
        let state = State {
            objects: BTreeMap::new(),
            index: value.map(|value| Index {
                value,
                keys: HashMap::new(),
            }),
            departed: Departed::default(),
            subscribers: Vec::new(),
        };
        let shared = Arc::new(Shared {
            state: RwLock::new(state),
            synced: channel(false).0,
        });
        let target = Arc::new(Target {
            shared: shared.clone(),
            trim,
        });
        tasks.spawn(keep_watching(untyped(api), config, target, cancel));
        Self { shared }
    }

    /// Waits until the objects have been listed once.
    ///
    /// # Errors
    /// [`Error::NotSynced`] when that takes longer than `deadline`.
    pub async fn wait_synced(&self, deadline: Duration) -> Result<(), Error> {
        let mut synced = self.shared.synced.subscribe();
        let listed = matches!(
            tokio::time::timeout(deadline, synced.wait_for(|s| *s)).await,
            Ok(Ok(_))
        );
        if listed {
            Ok(())
        } else {
            Err(Error::NotSynced {
                kind: K::plural(&()).into_owned(),
                after: deadline,
            })
        }
    }

    /// Whether the objects have been listed once.
    pub fn is_synced(&self) -> bool {
        *self.shared.synced.borrow()
    }

    /// The object of that name, if the informer has seen it.
    pub fn get(&self, namespace: Option<&str>, name: &str) -> Option<Arc<K>> {
        let key = ObjectKey {
            namespace: namespace.unwrap_or_default().to_owned(),
            name: name.to_owned(),
        };
        self.shared.state.read().objects.get(&key).cloned()
    }

    /// Whether the object of a name, with this UID, was seen to go not long ago and has not come back (as from a backup that
    /// was restored). `false` says nothing.
    pub fn has_gone(&self, namespace: Option<&str>, name: &str, uid: &str) -> bool {
        let is_back = self.get(namespace, name);
        let is_back = is_back.is_some_and(|found| found.meta().uid.as_deref() == Some(uid));
        !is_back && self.shared.state.read().departed.uids.contains(uid)
    }

    /// All objects, ordered by namespace and name.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.shared.state.read().objects.values().cloned().collect()
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.shared.state.read().objects.len()
    }

    /// Whether there is no object.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The objects of one namespace, ordered by name.
    pub fn list_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        let from = ObjectKey {
            namespace: namespace.to_owned(),
            name: String::new(),
        };
        let state = self.shared.state.read();
        state
            .objects
            .range(from..)
            .take_while(|(k, _)| k.namespace == namespace)
            .map(|(_, v)| v.clone())
            .collect()
    }

    /// The objects with this value of the index, ordered by namespace and name; none if the
    /// informer was made without an index.
    pub fn list_indexed(&self, value: &str) -> Vec<Arc<K>> {
        let state = self.shared.state.read();
        let keys = state.index.as_ref().and_then(|index| index.keys.get(value));
        keys.into_iter()
            .flatten()
            .filter_map(|key| state.objects.get(key).cloned())
            .collect()
    }

    /// Differences from now on, beginning with one `Applied` for each object that is there, then `Synced`.
    pub fn subscribe(&self) -> Subscription<K> {
        let mailbox = Arc::new(Mailbox::default());
        let mut state = self.shared.state.write();
        {
            let mut pending = mailbox.pending.lock();
            for (key, object) in &state.objects {
                pending.apply(key, None, object.clone());
            }
            if *self.shared.synced.borrow() {
                pending.mark_synced();
            }
        }
        state.subscribers.push(Arc::downgrade(&mailbox));
        Subscription {
            mailbox,
            informer: self.shared.clone(),
        }
    }
}

struct Target<K> {
    shared: Arc<Shared<K>>,
    trim: Trim<K>,
}

impl<K: Object> Target<K> {
    fn read(&self, object: &Received) -> Option<K> {
        let mut object: K = object.read()?;
        object.meta_mut().managed_fields = None;
        (self.trim)(&mut object);
        Some(object)
    }
}

impl<K: Object> WatchTarget for Target<K> {
    fn kind(&self) -> Cow<'static, str> {
        K::kind(&())
    }

    fn resource(&self) -> Cow<'static, str> {
        K::plural(&())
    }

    fn apply(&self, object: &Received) {
        if let Some(object) = self.read(object) {
            self.shared.apply(object);
        }
    }

    fn delete(&self, object: &Received) {
        let last = self.read(object);
        self.shared.delete(&ObjectKey::of(object), last);
    }

    fn finish_list(&self, listed: &HashSet<ObjectKey>) {
        self.shared.finish_list(listed);
    }
}

impl<K: Object> Shared<K> {
    fn apply(&self, object: K) {
        let (key, new) = (ObjectKey::of(&object), Arc::new(object));
        let mut state = self.state.write();
        let old = state.objects.insert(key.clone(), new.clone());
        if let Some(index) = &mut state.index {
            index.replace(&key, old.as_deref(), Some(&new));
        }
        if old.as_ref().is_some_and(|o| is_same_version(&**o, &*new)) {
            return;
        }
        // Another UID under the same name is another object: its predecessor was deleted.
        let replaced = old
            .as_ref()
            .filter(|o| o.meta().uid != new.meta().uid)
            .cloned();
        state.gone(replaced.as_deref());
        state.each_subscriber(|pending| match &replaced {
            Some(gone) => {
                pending.delete(&key, gone.clone());
                pending.apply(&key, None, new.clone());
            }
            None => pending.apply(&key, old.clone(), new.clone()),
        });
    }

    fn delete(&self, key: &ObjectKey, last: Option<K>) {
        let mut state = self.state.write();
        let Some(known) = state.objects.remove(key) else {
            return;
        };
        if let Some(index) = &mut state.index {
            index.replace(key, Some(&known), None);
        }
        state.gone(Some(&known));
        let last = last.map_or(known, Arc::new);
        state.each_subscriber(|pending| pending.delete(key, last.clone()));
    }

    fn finish_list(&self, listed: &HashSet<ObjectKey>) {
        let vanished: Vec<ObjectKey> = self
            .state
            .read()
            .objects
            .keys()
            .filter(|k| !listed.contains(*k))
            .cloned()
            .collect();
        for key in vanished {
            self.delete(&key, None);
        }
        if !self.synced.send_replace(true) {
            self.state.write().each_subscriber(Pending::mark_synced);
        }
    }
}

fn is_same_version<K: kube::Resource>(a: &K, b: &K) -> bool {
    let (a, b) = (a.meta(), b.meta());
    a.uid == b.uid && a.resource_version.is_some() && a.resource_version == b.resource_version
}

impl<K: Object> State<K> {
    /// Remembers that an object is gone.
    fn gone(&mut self, object: Option<&K>) {
        if let Some(uid) = object.and_then(|object| object.meta().uid.as_deref()) {
            self.departed.insert(uid);
        }
    }
}

impl<K> State<K> {
    fn each_subscriber(&mut self, mut change: impl FnMut(&mut Pending<K>)) {
        self.subscribers.retain(|subscriber| {
            let Some(mailbox) = subscriber.upgrade() else {
                return false;
            };
            change(&mut mailbox.pending.lock());
            mailbox.filled.notify_one();
            true
        });
    }
}

#[cfg(test)]
mod tests;
