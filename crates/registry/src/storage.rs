//! Where the objects of one resource are kept, whatever version they are asked for in.
//!
//! Stored bytes are the JSON of the storage version without resourceVersion, under
//! `/registry/{group or core}/{plural}/[{namespace}/]{name}`. The revision of the store is the
//! object's resourceVersion. In etcd `davit_kubestore` makes kube-apiserver's keys and bytes of it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use davit_access::{ObjectsUnreadable, StoredObjects};
use davit_api::kinds::{ResourceRow, TypeId, TypeTable, builtin};
use davit_api::status::Status;
use davit_store::{Error as StoreError, KeyValue, ListOptions, Listing, Store, Write};
use davit_strategy::Strategy;
use davit_watchcache::{Cache, Decode, Followed, remove_resource_version};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::codec::Shape;
use crate::custom::View;
use crate::object::ordered;
use crate::selection;

/// How many objects of a resource are kept as they were parsed for lookups. The few that each request asks for (its namespace, its
/// service account) are among them.
const PARSED: usize = 64;

/// How long an event stays after it was written, as `--event-ttl` of kube-apiserver has it.
pub const EVENT_TTL: Duration = Duration::from_secs(3600);

/// An object with its revision; `value` carries it as `metadata.resourceVersion`.
#[derive(Debug, Clone)]
pub struct Stored {
    /// The object.
    pub value: Value,
    /// The revision of the store at which it was written.
    pub revision: u64,
    /// The text in the store, without resourceVersion, as long as `value` is that object and no other.
    pub text: Option<Bytes>,
}

/// Why an object could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// A create found the name taken.
    #[error("the object exists")]
    Exists(Box<Option<Stored>>),
    /// A write found another revision, or nothing.
    #[error("the object changed")]
    Changed(Box<Option<Stored>>),
    /// The stored bytes are not an object.
    #[error("stored object {key} cannot be read: {detail}")]
    Unreadable {
        /// The key.
        key: String,
        /// What is wrong.
        detail: String,
    },
    /// Something the object needs could not be had (an address, a port).
    #[error("{0}")]
    Refused(Box<Status>),
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
}

/// The objects of one resource.
pub struct Storage {
    store: Arc<dyn Store>,
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    namespaced: bool,
    prefix: String,
    types: Arc<TypeTable>,
    type_id: TypeId,
    strategy: Arc<dyn Strategy>,
    cache: Arc<Cache>,
    /// For custom kinds: what stands between stored objects and this version.
    view: Option<Arc<View>>,
    last_written: AtomicU64,
    /// Objects that were looked up, by key, with the revision of which they are.
    parsed: Mutex<HashMap<String, (u64, Arc<Value>)>>,
}

fn built_in_prefix(row: &ResourceRow) -> String {
    let group = if row.group.is_empty() {
        "core"
    } else {
        row.group
    };
    // the classic API shares its group's name with today's but nothing else
    let apart = if row.is_classic_dra() {
        "-v1alpha1"
    } else {
        ""
    };
    format!("/registry/{group}{apart}/{}/", row.plural)
}

fn custom_prefix(group: &str, plural: &str) -> String {
    format!("/registry/{group}/{plural}/")
}

/// Whether the objects of a custom kind would be those of a built-in one.
pub fn is_built_in(group: &str, plural: &str) -> bool {
    let prefix = custom_prefix(group, plural);
    let mut rows = builtin().resources.iter();
    rows.any(|row| built_in_prefix(row) == prefix)
}

impl std::fmt::Debug for Storage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Storage({})", self.prefix)
    }
}

impl Storage {
    /// The objects of a built-in kind, which is stored as `row` says.
    pub fn new(
        store: Arc<dyn Store>,
        row: &ResourceRow,
        types: Arc<TypeTable>,
        strategy: Arc<dyn Strategy>,
    ) -> Self {
        let prefix = built_in_prefix(row);
        let (namespaced, cached_prefix) = (row.namespaced, prefix.clone());
        let rules = Arc::clone(&strategy);
        let decode: Decode =
            Arc::new(move |pair| selection::cached(pair, &cached_prefix, namespaced, &*rules));
        Self {
            cache: Arc::new(Cache::new(Arc::clone(&store), prefix.clone(), decode)),
            view: None,
            store,
            group: row.group,
            version: row.version,
            kind: row.kind,
            plural: row.plural,
            namespaced: row.namespaced,
            prefix,
            types,
            type_id: row.type_id,
            strategy,
            last_written: AtomicU64::new(0),
            parsed: Mutex::default(),
        }
    }

    /// The objects of a custom kind in the version of `row`. All versions share `cache`, which
    /// [`Storage::custom_cache`] makes.
    pub fn custom(
        store: Arc<dyn Store>,
        row: &ResourceRow,
        types: Arc<TypeTable>,
        strategy: Arc<dyn Strategy>,
        view: Arc<View>,
        cache: Arc<Cache>,
    ) -> Self {
        Self {
            store,
            group: row.group,
            version: row.version,
            kind: row.kind,
            plural: row.plural,
            namespaced: row.namespaced,
            prefix: custom_prefix(row.group, row.plural),
            types,
            type_id: row.type_id,
            strategy,
            cache,
            view: Some(view),
            last_written: AtomicU64::new(0),
            parsed: Mutex::default(),
        }
    }

    /// The watch cache of a custom kind: objects of the storage version, as far as they can be
    /// brought into it without asking anybody.
    pub fn custom_cache(
        store: &Arc<dyn Store>,
        row: &ResourceRow,
        strategy: Arc<dyn Strategy>,
        view: Arc<View>,
    ) -> Arc<Cache> {
        let prefix = custom_prefix(row.group, row.plural);
        let (namespaced, cached_prefix) = (row.namespaced, prefix.clone());
        let decode: Decode = Arc::new(move |pair| {
            selection::cached_custom(pair, &cached_prefix, namespaced, &*strategy, &view)
        });
        Arc::new(Cache::new(Arc::clone(store), prefix, decode))
    }

    /// Where the objects are.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Whether `other` shows the same objects, be it in another version.
    pub fn same_objects(&self, other: &Self) -> bool {
        self.prefix == other.prefix
    }

    /// For custom kinds: what stands between stored objects and this version.
    pub fn view(&self) -> Option<&Arc<View>> {
        self.view.as_ref()
    }

    /// The version objects are stored in, which for custom kinds need not be the one this storage
    /// shows.
    pub fn stored_version(&self) -> &'static str {
        self.view
            .as_ref()
            .map_or(self.version, |view| view.storage_version())
    }

    /// What objects look like.
    pub fn shape(&self) -> Shape<'_> {
        match &self.view {
            Some(view) => Shape::Custom(view.version().schema()),
            None => Shape::Typed(&self.types, self.type_id),
        }
    }

    /// A stored object as this version shows it.
    async fn shown(&self, stored: Option<Stored>) -> Result<Option<Stored>, StorageError> {
        let (Some(view), Some(stored)) = (&self.view, &stored) else {
            return Ok(stored);
        };
        let value = view.read_one(stored.value.clone()).await;
        let value = value.map_err(|status| StorageError::Refused(Box::new(status)))?;
        Ok(Some(Stored {
            value,
            revision: stored.revision,
            text: None,
        }))
    }

    /// The bytes of an object of this version.
    async fn bytes(&self, value: &Value) -> Result<Bytes, StorageError> {
        match &self.view {
            None => Ok(encode(value)),
            Some(view) => {
                let value = view.write(value).await;
                let value = value.map_err(|status| StorageError::Refused(Box::new(status)))?;
                Ok(encode(&value))
            }
        }
    }

    /// How long an object stays after it was written.
    fn ttl(&self) -> Option<Duration> {
        (self.group.is_empty() && self.plural == "events").then_some(EVENT_TTL)
    }

    /// The revision of the last write through this server; 0 before the first.
    pub fn last_written(&self) -> u64 {
        self.last_written.load(Ordering::Acquire)
    }

    fn wrote(&self, revision: u64) {
        self.last_written.fetch_max(revision, Ordering::AcqRel);
    }

    /// The group they are stored under.
    pub fn group(&self) -> &'static str {
        self.group
    }

    /// The version that this storage shows.
    pub fn version(&self) -> &'static str {
        self.version
    }

    /// The kind they are stored as.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// The plural name they are stored under.
    pub fn plural(&self) -> &'static str {
        self.plural
    }

    /// What all their keys begin with.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The rules of the kind.
    pub fn strategy(&self) -> &dyn Strategy {
        &*self.strategy
    }

    /// The objects in memory, for lists and watches.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// `v1` or `group/v1` of the stored objects.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// The key of an object; names never hold a slash (path parsing and validation see to it).
    pub fn key(&self, namespace: &str, name: &str) -> String {
        if self.namespaced {
            format!("{}{namespace}/{name}", self.prefix)
        } else {
            format!("{}{name}", self.prefix)
        }
    }

    /// The prefix of a namespace's objects, or of all.
    pub(crate) fn list_prefix(&self, namespace: Option<&str>) -> String {
        match namespace {
            Some(namespace) if self.namespaced => format!("{}{namespace}/", self.prefix),
            _ => self.prefix.clone(),
        }
    }

    /// The current object.
    pub async fn get(&self, namespace: &str, name: &str) -> Result<Option<Stored>, StorageError> {
        let found = self
            .store
            .get(&self.key(namespace, name))
            .await
            .map_err(StorageError::Store)?;
        let found = found.as_ref().map(decode).transpose()?;
        self.shown(found).await
    }

    /// The revision of a stored object that cannot be read; `None` if it can be, or there is none.
    ///
    /// # Errors
    /// The store fails.
    pub async fn unreadable(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<u64>, StorageError> {
        match self.store.get(&self.key(namespace, name)).await {
            Ok(found) => {
                let found = found.filter(|pair| decode(pair).is_err());
                Ok(found.map(|pair| pair.mod_revision))
            }
            Err(StoreError::Unreadable { found, .. }) => {
                Ok(found.first().map(|value| value.revision))
            }
            Err(error) => Err(StorageError::Store(error)),
        }
    }

    /// Whether an object of a custom kind is stored in another version than it would be today.
    pub async fn is_of_old_version(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<bool, StorageError> {
        let Some(view) = &self.view else {
            return Ok(false);
        };
        let found = self.store.get(&self.key(namespace, name)).await;
        let Some(pair) = found.map_err(StorageError::Store)? else {
            return Ok(false);
        };
        let stored = decode(&pair)?.value;
        Ok(!view.is_of_storage_version(&stored))
    }

    /// The current object, to be looked at. It is read from the store as by [`Storage::get`], but parsed once for each revision.
    pub async fn lookup(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<Value>>, StorageError> {
        if self.view.is_some() {
            let found = self.get(namespace, name).await?;
            return Ok(found.map(|stored| Arc::new(stored.value)));
        }
        let key = self.key(namespace, name);
        let found = self.store.get(&key).await.map_err(StorageError::Store)?;
        let Some(pair) = found else {
            self.parsed.lock().remove(&key);
            return Ok(None);
        };
        let parsed = self.parsed.lock().get(&key).cloned();
        if let Some((revision, value)) = parsed
            && revision == pair.mod_revision
        {
            return Ok(Some(value));
        }
        let value = Arc::new(decode(&pair)?.value);
        let mut parsed = self.parsed.lock();
        if parsed.len() >= PARSED && !parsed.contains_key(&key) {
            parsed.clear();
        }
        parsed.insert(key, (pair.mod_revision, value.clone()));
        Ok(Some(value))
    }

    /// All objects of a namespace, or of all, as this version shows them.
    pub async fn all(&self, namespace: Option<&str>) -> Result<Vec<Value>, StorageError> {
        let listing = self.list(namespace, ListOptions::default()).await?;
        let values = listing
            .items
            .iter()
            .map(|pair| decode(pair).map(|stored| stored.value))
            .collect::<Result<Vec<_>, _>>()?;
        match &self.view {
            None => Ok(values),
            Some(view) => view
                .read(values)
                .await
                .map_err(|status| StorageError::Refused(Box::new(status))),
        }
    }

    /// Stores a new object.
    pub async fn create(
        &self,
        namespace: &str,
        name: &str,
        value: &Value,
    ) -> Result<Stored, StorageError> {
        let bytes = self.bytes(value).await?;
        let write = Write::create(self.key(namespace, name), bytes.clone()).lasting(self.ttl());
        match self.store.commit(write).await {
            Ok(committed) => {
                self.wrote(committed.revision);
                self.written(value, &bytes, committed.revision).await
            }
            Err(StoreError::Conflict { current, .. }) => {
                let current = current.as_deref().map(decode).transpose()?;
                Err(StorageError::Exists(Box::new(current)))
            }
            Err(error) => Err(StorageError::Store(error)),
        }
    }

    /// Replaces the object last written at `revision`.
    pub async fn update(
        &self,
        namespace: &str,
        name: &str,
        revision: u64,
        value: &Value,
    ) -> Result<Stored, StorageError> {
        let bytes = self.bytes(value).await?;
        let write = Write::update(self.key(namespace, name), revision, bytes.clone());
        let write = write.lasting(self.ttl());
        let revision = self.replace(write).await?;
        self.written(value, &bytes, revision).await
    }

    /// What was written, as this version shows it: what the stored version does not know is lost.
    async fn written(
        &self,
        value: &Value,
        bytes: &Bytes,
        revision: u64,
    ) -> Result<Stored, StorageError> {
        if self.view.is_none() {
            return Ok(Stored {
                text: Some(bytes.clone()),
                ..with_revision(value.clone(), revision)
            });
        }
        let converted = self.view.as_ref().filter(|view| !view.shows_stored());
        let stored = converted.and_then(|_| serde_json::from_slice(bytes).ok());
        let plain = with_revision(stored.unwrap_or_else(|| value.clone()), revision);
        let shown = self
            .shown(converted.is_some().then(|| plain.clone()))
            .await?;
        Ok(shown.unwrap_or(plain))
    }

    /// Deletes the object last written at `revision`; answers the revision of the deletion.
    pub async fn delete(
        &self,
        namespace: &str,
        name: &str,
        revision: u64,
    ) -> Result<u64, StorageError> {
        self.replace(Write::delete(self.key(namespace, name), revision))
            .await
    }

    async fn replace(&self, write: Write) -> Result<u64, StorageError> {
        match self.store.commit(write).await {
            Ok(committed) => {
                self.wrote(committed.revision);
                Ok(committed.revision)
            }
            Err(StoreError::Conflict { current, .. }) => {
                let current = current.as_deref().map(decode).transpose()?;
                Err(StorageError::Changed(Box::new(current)))
            }
            Err(StoreError::NotFound { .. }) => Err(StorageError::Changed(Box::new(None))),
            Err(error) => Err(StorageError::Store(error)),
        }
    }

    /// A page of keys and bytes.
    pub async fn list(
        &self,
        namespace: Option<&str>,
        options: ListOptions,
    ) -> Result<Listing, StorageError> {
        let prefix = self.list_prefix(namespace);
        self.store
            .list(&prefix, options)
            .await
            .map_err(StorageError::Store)
    }
}

impl Followed for Storage {
    fn cache(&self) -> &Cache {
        Self::cache(self)
    }

    fn last_written(&self) -> u64 {
        Self::last_written(self)
    }

    fn prefix(&self) -> &str {
        Self::prefix(self)
    }
}

#[async_trait]
impl StoredObjects for Storage {
    async fn get(&self, namespace: &str, name: &str) -> Result<Option<Value>, ObjectsUnreadable> {
        let found = Self::get(self, namespace, name).await;
        let found = found.map_err(|error| ObjectsUnreadable(error.to_string()))?;
        Ok(found.map(|stored| stored.value))
    }

    async fn all(&self) -> Result<Vec<Bytes>, ObjectsUnreadable> {
        let found = self.list(None, ListOptions::default()).await;
        let found = found.map_err(|error| ObjectsUnreadable(error.to_string()))?;
        Ok(found.items.into_iter().map(|pair| pair.value).collect())
    }
}

/// The stored bytes of an object: its JSON as clients get it, without resourceVersion.
pub fn encode(value: &Value) -> Bytes {
    let mut json = ordered(value).to_json();
    remove_resource_version(&mut json);
    // Text that grows has room for more, which would be kept as long as the object.
    Bytes::from(json.into_boxed_str().into_boxed_bytes())
}

/// The object of stored bytes, with its resourceVersion.
pub fn decode(pair: &KeyValue) -> Result<Stored, StorageError> {
    let value: Value =
        serde_json::from_slice(&pair.value).map_err(|error| StorageError::Unreadable {
            key: pair.key.to_string(),
            detail: error.to_string(),
        })?;
    if !value.is_object() {
        let detail = "it is not an object".to_owned();
        return Err(StorageError::Unreadable {
            key: pair.key.to_string(),
            detail,
        });
    }
    Ok(Stored {
        text: Some(pair.value.clone()),
        ..with_revision(value, pair.mod_revision)
    })
}

/// An object of a revision, which it carries from now on.
pub fn with_revision(mut value: Value, revision: u64) -> Stored {
    set_resource_version(&mut value, revision);
    Stored {
        value,
        revision,
        text: None,
    }
}

/// Writes a revision into an object's metadata.
pub(crate) fn set_resource_version(value: &mut Value, revision: u64) {
    if let Some(object) = value.as_object_mut() {
        let metadata = object.entry("metadata").or_insert_with(|| json!({}));
        if let Some(metadata) = metadata.as_object_mut() {
            metadata.insert("resourceVersion".to_owned(), json!(revision.to_string()));
        }
    }
}
