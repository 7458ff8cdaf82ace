//! List and watch of one kind into an indexed store, with change notification.
//!
//! A subscriber never sees the stream of events but the difference between what it last saw and what is: changes wait in
//! a map by object, later ones folded into earlier ones. So a slow subscriber costs memory for the objects that exist,
//! not for the events that happened, and nothing is ever dropped.

use crate::Error;
use crate::pause::Pause;
use crate::received::lenient;
use davit_task::Task;
use futures::StreamExt;
use kube::runtime::watcher;
use parking_lot::{Mutex, RwLock};
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::fmt::Debug;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

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
    synced: watch::Sender<bool>,
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
            synced: watch::channel(false).0,
        });
        let feed = shared.clone();
        let task = Task::new("client", "informer", cancel.clone());
        // One that is started again lists anew: what it missed meanwhile becomes a difference.
        let watching = task.keep(move || {
            let (feed, cancel) = (feed.clone(), cancel.clone());
            let (api, config) = (api.clone(), config.clone());
            async move {
                let watching = feed.run(api, config, trim);
                // Dropping the watch half-way is safe: the store is only ever changed between awaits.
                tokio::select! { biased; () = cancel.cancelled() => {} () = watching => {} }
            }
        });
        let kind = K::plural(&());
        tasks.spawn(watching.instrument(tracing::error_span!("informer", %kind)));
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
        let mailbox = Arc::new(Mailbox {
            pending: Mutex::new(Pending::default()),
            filled: Notify::new(),
        });
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

impl<K: Object> Shared<K> {
    async fn run(&self, api: kube::Api<K>, config: watcher::Config, trim: Trim<K>) {
        let trimmed = |mut object: K| {
            object.meta_mut().managed_fields = None;
            trim(&mut object);
            object
        };
        let mut events = std::pin::pin!(watcher(lenient(api), config));
        let mut listed: HashSet<ObjectKey> = HashSet::new();
        let mut pause = Pause::default();
        while let Some(event) = events.next().await {
            pause.heed(&event);
            match event {
                Ok(watcher::Event::Init) => listed.clear(),
                // What cannot be read stays as it was seen last.
                Ok(watcher::Event::InitApply(object)) => {
                    listed.insert(ObjectKey::of(&object));
                    if let Some(object) = object.told() {
                        self.apply(trimmed(object));
                    }
                }
                Ok(watcher::Event::InitDone) => self.finish_list(&std::mem::take(&mut listed)),
                Ok(watcher::Event::Apply(object)) => {
                    if let Some(object) = object.told() {
                        self.apply(trimmed(object));
                    }
                }
                Ok(watcher::Event::Delete(object)) => {
                    let key = ObjectKey::of(&object);
                    self.delete(&key, object.told().map(trimmed));
                }
                Err(error) => pause.after(&error, &K::kind(&())).await,
            }
        }
    }

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

struct Mailbox<K> {
    pending: Mutex<Pending<K>>,
    filled: Notify,
}

/// What a subscriber has not seen yet: for each object at most one deletion and one application after it.
struct Pending<K> {
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

    fn apply(&mut self, key: &ObjectKey, old: Option<Arc<K>>, new: Arc<K>) {
        let entry = self.entry(key);
        let first_old = match entry.applied.take() {
            Some((first_old, _)) => first_old,
            None => old,
        };
        entry.applied = Some((first_old, new));
    }

    fn delete(&mut self, key: &ObjectKey, last: Arc<K>) {
        let entry = self.entry(key);
        entry.applied = None;
        entry.deleted = Some(last);
    }

    fn mark_synced(&mut self) {
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
    mailbox: Arc<Mailbox<K>>,
    // Keeps the store alive for as long as somebody listens.
    informer: Arc<Shared<K>>,
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

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;

    fn config_map(name: &str, uid: &str, version: &str) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.name = Some(name.to_owned());
        object.metadata.namespace = Some("ns".to_owned());
        object.metadata.uid = Some(uid.to_owned());
        object.metadata.resource_version = Some(version.to_owned());
        object
    }

    fn informer() -> Informer<ConfigMap> {
        let state = State {
            objects: BTreeMap::new(),
            index: Some(Index {
                value: |map: &ConfigMap| map.metadata.uid.clone(),
                keys: HashMap::new(),
            }),
            departed: Departed::default(),
            subscribers: Vec::new(),
        };
        Informer {
            shared: Arc::new(Shared {
                state: RwLock::new(state),
                synced: watch::channel(false).0,
            }),
        }
    }

    fn describe(change: &Change<ConfigMap>) -> String {
        let version = |o: &Arc<ConfigMap>| o.metadata.resource_version.clone().unwrap_or_default();
        match change {
            Change::Applied { old, new } => {
                format!(
                    "applied {}->{}",
                    old.as_ref().map_or("-".to_owned(), version),
                    version(new)
                )
            }
            Change::Deleted(last) => format!("deleted {}", version(last)),
            Change::Synced => "synced".to_owned(),
        }
    }

    fn drain(subscription: &mut Subscription<ConfigMap>) -> Vec<String> {
        std::iter::from_fn(|| subscription.try_next())
            .map(|c| describe(&c))
            .collect()
    }

    #[test]
    fn what_went_is_remembered_for_a_while() {
        let informer = informer();
        let gone = |uid| informer.has_gone(Some("ns"), "a", uid);
        informer.shared.apply(config_map("a", "u1", "1"));
        assert!(!gone("u1"));
        informer.shared.apply(config_map("a", "u2", "2"));
        assert!(gone("u1") && !gone("u2"), "another has its name");
        let key = ObjectKey::of(&config_map("a", "u2", "2"));
        informer.shared.delete(&key, None);
        assert!(gone("u2") && !gone("u3"));
        informer.shared.apply(config_map("a", "u2", "3"));
        assert!(!gone("u2"), "it is back");
        for n in 0..REMEMBERED {
            let name = format!("b{n}");
            let other = config_map(&name, &name, "4");
            let key = ObjectKey::of(&other);
            informer.shared.apply(other);
            informer.shared.delete(&key, None);
        }
        assert!(!gone("u1"));
        let state = informer.shared.state.read();
        assert_eq!(state.departed.uids.len(), state.departed.order.len());
        assert!(state.departed.order.len() <= REMEMBERED);
    }

    #[test]
    fn later_changes_fold_into_unseen_earlier_ones() {
        let informer = informer();
        let mut subscription = informer.subscribe();
        informer.shared.apply(config_map("a", "u1", "1"));
        informer.shared.apply(config_map("a", "u1", "2"));
        assert_eq!(drain(&mut subscription), ["applied -->2"]);
        informer.shared.apply(config_map("a", "u1", "3"));
        informer.shared.apply(config_map("a", "u1", "4"));
        assert_eq!(drain(&mut subscription), ["applied 2->4"]);
    }

    #[test]
    fn recreated_object_is_seen_as_deleted_then_applied() {
        let informer = informer();
        let mut subscription = informer.subscribe();
        informer.shared.apply(config_map("a", "u1", "1"));
        assert_eq!(drain(&mut subscription), ["applied -->1"]);
        informer.shared.apply(config_map("a", "u2", "5"));
        assert_eq!(drain(&mut subscription), ["deleted 1", "applied -->5"]);
    }

    #[test]
    fn the_index_follows_the_objects() {
        let informer = informer();
        let found = |value: &str| -> Vec<String> {
            let found = informer.list_indexed(value).into_iter();
            found.filter_map(|o| o.metadata.name.clone()).collect()
        };
        informer.shared.apply(config_map("b", "u1", "1"));
        informer.shared.apply(config_map("a", "u1", "2"));
        assert_eq!(found("u1"), ["a", "b"]);
        informer.shared.apply(config_map("b", "u2", "3"));
        assert_eq!(
            (found("u1"), found("u2")),
            (vec!["a".into()], vec!["b".into()])
        );
        let a = ObjectKey::of(&config_map("a", "u1", "2"));
        informer.shared.delete(&a, None);
        assert!(found("u1").is_empty());
        let state = informer.shared.state.read();
        assert_eq!(state.index.as_ref().map(|i| i.keys.len()), Some(1));
    }

    #[test]
    fn relist_deletes_what_vanished_and_says_synced_once() {
        let informer = informer();
        let mut subscription = informer.subscribe();
        informer.shared.apply(config_map("a", "u1", "1"));
        informer.shared.apply(config_map("b", "u2", "2"));
        let only_b = HashSet::from([ObjectKey {
            namespace: "ns".into(),
            name: "b".into(),
        }]);
        let mut both = only_b.clone();
        both.insert(ObjectKey {
            namespace: "ns".into(),
            name: "a".into(),
        });
        informer.shared.finish_list(&both);
        informer.shared.finish_list(&only_b);
        assert_eq!(
            drain(&mut subscription),
            ["deleted 1", "applied -->2", "synced"]
        );
        assert_eq!(informer.list_namespace("ns").len(), 1);
    }

    #[test]
    fn late_subscriber_begins_with_what_is_there() {
        let informer = informer();
        informer.shared.apply(config_map("a", "u1", "1"));
        informer.shared.finish_list(&HashSet::from([ObjectKey {
            namespace: "ns".into(),
            name: "a".into(),
        }]));
        let mut subscription = informer.subscribe();
        assert_eq!(drain(&mut subscription), ["applied -->1", "synced"]);
        informer.shared.apply(config_map("a", "u1", "1"));
        assert!(
            drain(&mut subscription).is_empty(),
            "the same version again is no change"
        );
    }
}
