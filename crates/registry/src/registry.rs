//! What is served: rows that map a group, version and plural name to a kind.
//!
//! Rows are data. Built-in kinds come from the kinds table; custom kinds add and remove rows of
//! the same form while the server runs. Readers take a snapshot ([`Registry::snapshot`]) and
//! never wait for writers.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use davit_api::kinds::{self, ResourceRow, SubresourceRow, TypeId, TypeTable, compare_versions};
use davit_api::status::Qualified;
use davit_schema::apply::Schema;
use davit_strategy::{Strategy, strategy};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::codec::Shape;
use crate::custom::{CustomVersion, TERMINATING_VERBS};
use crate::storage::Storage;
use crate::stores::Stores;

/// One served resource: its row, its types, its rules and where its objects are kept.
#[derive(Clone)]
pub struct ResourceInfo {
    /// Names, verbs, subresources.
    pub row: ResourceRow,
    /// The types `row.type_id` refers to.
    pub types: Arc<TypeTable>,
    /// The kind's own rules.
    pub strategy: Arc<dyn Strategy>,
    /// Where the objects are; shared by all versions of the resource.
    pub storage: Arc<Storage>,
    /// What the definition of a custom kind says; none for built-in kinds.
    pub custom: Option<Arc<CustomVersion>>,
}

impl std::fmt::Debug for ResourceInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "ResourceInfo({}/{} {})",
            self.row.group, self.row.version, self.row.plural
        )
    }
}

impl ResourceInfo {
    /// `v1` or `group/v1`.
    pub fn api_version(&self) -> String {
        self.row.api_version()
    }

    /// Kind of the stored objects differs from this row's version.
    pub fn is_converted(&self) -> bool {
        self.storage.version() != self.row.version || self.storage.group() != self.row.group
    }

    /// The kind of its lists: a definition may call it something else.
    pub fn list_kind(&self) -> String {
        match &self.custom {
            Some(custom) => custom.definition.list_kind.to_owned(),
            None => format!("{}List", self.row.kind),
        }
    }

    /// The root type.
    pub fn type_id(&self) -> TypeId {
        self.row.type_id
    }

    /// The resource as error messages name it: `pods`, `deployments.apps`.
    pub fn qualified(&self) -> Qualified<'static> {
        Qualified::new(self.row.group, self.row.plural)
    }

    /// The kind as messages about invalid objects name it: events of either group are those of the core group.
    pub fn qualified_kind(&self) -> Qualified<'static> {
        let stored = kinds::builtin().storage_row(&self.row);
        Qualified::new(stored.group, self.row.kind)
    }

    /// The subresource of a name.
    pub fn subresource(&self, name: &str) -> Option<&SubresourceRow> {
        self.row.subresource(name)
    }

    /// What objects look like in this version.
    pub fn shape(&self) -> Shape<'_> {
        match &self.custom {
            Some(custom) => Shape::Custom(custom.schema()),
            None => Shape::Typed(&self.types, self.row.type_id),
        }
    }

    /// How objects of this version merge under server-side apply.
    pub fn apply_schema(&self) -> Schema<'_> {
        match &self.custom {
            Some(custom) => custom.apply_schema(),
            None => Schema::new(&self.types, self.row.type_id),
        }
    }

    /// The verbs discovery tells: of a kind that is going only those that do not add to it.
    pub fn discovered_verbs(&self) -> &[&'static str] {
        match &self.custom {
            Some(custom) if custom.definition.terminating => &TERMINATING_VERBS,
            _ => &self.row.verbs,
        }
    }

    /// Whether the kind is only posted, never stored (reviews, bindings).
    pub fn is_virtual(&self) -> bool {
        !self.row.has_verb("get")
    }

    /// Whether the objects are only read, computed for whoever asks, and never stored (component statuses, what nodes and
    /// pods use).
    pub fn is_computed(&self) -> bool {
        self.custom.is_none() && !self.row.has_verb("create") && self.row.has_verb("get")
    }
}

type Key = (String, String, String);

/// An immutable view of what is served.
#[derive(Debug, Default)]
pub struct Snapshot {
    generation: u64,
    resources: BTreeMap<Key, Arc<ResourceInfo>>,
}

impl Snapshot {
    /// Counts changes; documents made from a snapshot are kept under it.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The resource of a path.
    pub fn get(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<ResourceInfo>> {
        // rows are few; a key of borrowed strings would need a wrapper type for no gain
        self.resources
            .get(&(group.to_owned(), version.to_owned(), plural.to_owned()))
    }

    /// The resource that stores the objects of a group and plural name, in any version.
    pub fn by_group_resource(&self, group: &str, plural: &str) -> Option<&Arc<ResourceInfo>> {
        self.resources
            .values()
            .filter(|info| info.row.group == group && info.row.plural == plural)
            .max_by(|a, b| compare_versions(a.row.version, b.row.version))
    }

    /// Whether the group and version serves anything.
    pub fn has_group_version(&self, group: &str, version: &str) -> bool {
        self.of_group_version(group, version).next().is_some()
    }

    /// The resources of a group and version, by plural name.
    pub fn of_group_version<'a>(
        &'a self,
        group: &'a str,
        version: &'a str,
    ) -> impl Iterator<Item = &'a Arc<ResourceInfo>> {
        self.resources
            .values()
            .filter(move |info| info.row.group == group && info.row.version == version)
    }

    /// All resources.
    pub fn all(&self) -> impl Iterator<Item = &Arc<ResourceInfo>> {
        self.resources.values()
    }

    /// Groups in order of preference, each with its versions in order of preference. The core
    /// group (empty name) comes first.
    pub fn groups(&self) -> Vec<(String, Vec<String>)> {
        let mut groups: HashMap<&str, Vec<&str>> = HashMap::new();
        for info in self.resources.values() {
            let versions = groups.entry(info.row.group).or_default();
            if !versions.contains(&info.row.version) {
                versions.push(info.row.version);
            }
        }
        let mut groups: Vec<(&str, Vec<&str>)> = groups.into_iter().collect();
        groups.sort_by(|a, b| {
            group_priority(b.0)
                .cmp(&group_priority(a.0))
                .then(a.0.cmp(b.0))
        });
        groups
            .into_iter()
            .map(|(group, mut versions)| {
                versions.sort_by(|a, b| compare_versions(b, a));
                (
                    group.to_owned(),
                    versions.into_iter().map(str::to_owned).collect(),
                )
            })
            .collect()
    }
}

/// Order of groups in discovery, highest first.
pub fn group_priority(group: &str) -> i32 {
    const PRIORITIES: &[(&str, i32)] = &[
        ("", 18000),
        ("apps", 17800),
        ("events.k8s.io", 17750),
        ("authentication.k8s.io", 17700),
        ("authorization.k8s.io", 17600),
        ("autoscaling", 17500),
        ("batch", 17400),
        ("certificates.k8s.io", 17300),
        ("networking.k8s.io", 17200),
        ("policy", 17100),
        ("rbac.authorization.k8s.io", 17000),
        ("storage.k8s.io", 16800),
        ("admissionregistration.k8s.io", 16700),
        ("apiextensions.k8s.io", 16700),
        ("scheduling.k8s.io", 16600),
        ("coordination.k8s.io", 16500),
        ("node.k8s.io", 16300),
        ("discovery.k8s.io", 16200),
        ("resource.k8s.io", 16200),
        ("flowcontrol.apiserver.k8s.io", 16100),
        ("internal.apiserver.k8s.io", 16000),
        ("storagemigration.k8s.io", 15800),
        // as metrics-server's APIService
        ("metrics.k8s.io", 100),
        // served by the aggregator's own code upstream, ahead of all groups
        ("apiregistration.k8s.io", 17900),
    ];
    const OTHER: i32 = 1000;
    PRIORITIES
        .iter()
        .find(|(name, _)| *name == group)
        .map_or(OTHER, |(_, priority)| *priority)
}

/// How long those who tell what is served wait for a definition that is being written.
const LONGEST_WRITE: Duration = Duration::from_secs(1);

/// While this is held, a definition is being written that is to say that its kind, which is served already, is established.
#[derive(Debug)]
pub struct Establishing(watch::Sender<usize>);

impl Drop for Establishing {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// The registry: a snapshot that can be replaced.
pub struct Registry {
    current: ArcSwap<Snapshot>,
    stores: Stores,
    storages: Mutex<HashMap<String, Arc<Storage>>>,
    /// Says that rows came or went.
    changed: watch::Sender<()>,
    /// Definitions that are being written to say that their kinds are established.
    establishing: watch::Sender<usize>,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Registry({} resources)", self.snapshot().resources.len())
    }
}

impl Registry {
    /// The built-in kinds that are to be served, over `stores`.
    pub fn built_in(stores: Stores, served: impl Fn(&ResourceRow) -> bool) -> Self {
        let registry = Self {
            current: ArcSwap::from_pointee(Snapshot::default()),
            stores,
            storages: Mutex::new(HashMap::new()),
            changed: watch::channel(()).0,
            establishing: watch::channel(0).0,
        };
        let table = kinds::builtin();
        let rows = table.resources.iter().filter(|row| served(row)).map(|row| {
            let storage_row = table.storage_row(row);
            // events of the newer group are stored in the form of core/v1, under rules of their own
            let rules = match row.group {
                "events.k8s.io" => row,
                _ => storage_row,
            };
            let strategy = strategy(rules.group, rules.version, rules.kind);
            (row.clone(), storage_row.clone(), strategy)
        });
        registry.add(rows.collect(), &table.types);
        registry
    }

    /// What is served now.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// Serves further rows, each with the row its objects are stored as. A row of the same group,
    /// version and plural name is replaced.
    pub fn add(
        &self,
        rows: Vec<(ResourceRow, ResourceRow, Arc<dyn Strategy>)>,
        types: &Arc<TypeTable>,
    ) {
        let infos: Vec<Arc<ResourceInfo>> = rows
            .into_iter()
            .map(|(row, storage_row, strategy)| {
                let storage = self.storage(&storage_row, types, Arc::clone(&strategy));
                Arc::new(ResourceInfo {
                    row,
                    types: Arc::clone(types),
                    strategy,
                    storage,
                    custom: None,
                })
            })
            .collect();
        self.change(|resources| {
            for info in &infos {
                resources.insert(key(&info.row), Arc::clone(info));
            }
        });
    }

    /// Stops serving the resource of a group, version and plural name.
    pub fn remove(&self, group: &str, version: &str, plural: &str) {
        let key = (group.to_owned(), version.to_owned(), plural.to_owned());
        self.change(|resources| {
            resources.remove(&key);
        });
    }

    /// Serves these rows as the custom resource `plural` of a group, and no others. Rows of
    /// built-in kinds stay what they are. Answers the rows that were replaced.
    pub fn set_custom(
        &self,
        group: &str,
        plural: &str,
        rows: &[Arc<ResourceInfo>],
    ) -> Vec<Arc<ResourceInfo>> {
        let is_old = |info: &ResourceInfo| {
            info.custom.is_some() && info.row.group == group && info.row.plural == plural
        };
        let snapshot = self.snapshot();
        let old: Vec<_> = snapshot
            .all()
            .filter(|info| is_old(info))
            .cloned()
            .collect();
        if old.is_empty() && rows.is_empty() {
            return old;
        }
        self.change(|resources| {
            resources.retain(|_, info| !is_old(info));
            for info in rows {
                resources
                    .entry(key(&info.row))
                    .or_insert_with(|| Arc::clone(info));
            }
        });
        old
    }

    /// Begins to serve a kind whose definition says so only when it is written next.
    pub fn establishing(&self) -> Establishing {
        self.establishing.send_modify(|count| *count += 1);
        Establishing(self.establishing.clone())
    }

    /// Waits until no definition is behind what is served, a second at most: who sees a kind in discovery may read its
    /// definition, change it and write it back.
    pub async fn established(&self) {
        let mut establishing = self.establishing.subscribe();
        // late is no fault: the definition is written again, which those who have read it are told as a conflict
        let _ = timeout(LONGEST_WRITE, establishing.wait_for(|count| *count == 0)).await;
    }

    /// Where objects are kept.
    pub fn stores(&self) -> &Stores {
        &self.stores
    }

    fn change(&self, edit: impl Fn(&mut BTreeMap<Key, Arc<ResourceInfo>>)) {
        self.current.rcu(|current| {
            let mut resources = current.resources.clone();
            edit(&mut resources);
            Snapshot {
                generation: current.generation + 1,
                resources,
            }
        });
        self.changed.send_replace(());
    }

    /// Tells when rows come or go.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    fn storage(
        &self,
        row: &ResourceRow,
        types: &Arc<TypeTable>,
        strategy: Arc<dyn Strategy>,
    ) -> Arc<Storage> {
        let store = Arc::clone(self.stores.of(row));
        let storage = Storage::new(store, row, Arc::clone(types), strategy);
        let mut storages = self.storages.lock();
        Arc::clone(
            storages
                .entry(storage.prefix().to_owned())
                .or_insert_with(|| Arc::new(storage)),
        )
    }
}

fn key(row: &ResourceRow) -> Key {
    (
        row.group.to_owned(),
        row.version.to_owned(),
        row.plural.to_owned(),
    )
}
