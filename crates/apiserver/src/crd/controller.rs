//! Follows CustomResourceDefinitions: names, conditions, rows of the registry, clean-up.
//!
//! One task works through the definitions, so that no two can get the same name. It is level
//! triggered: whatever event it missed, the next look at a definition does what is due.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use davit_api::field::Path;
use davit_api::kinds::{TypeBody, TypeDef, TypeTable};
use davit_api::status::{Reason, Status};
use davit_registry::custom::{Converter, Definition, Served, Versions, View};
use davit_registry::storage::{Storage, StorageError};
use davit_registry::{ResourceInfo, errors, object};
use davit_schema::structural::{SchemaCheck, check_schema};
use davit_strategy::crd::{self, is_true};
use davit_task::guard_async;
use davit_watchcache::{EventType, Filter, Freshness, Watch, WatchItem, WatchOptions, WatchStart};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::{FINALIZER, GROUP, PLURAL, names};
use crate::ownership::Tracking;
use crate::server::ApiServer;
use crate::writes::Author;

const RETRY: Duration = Duration::from_secs(1);
/// The first and the longest pause between looks at what is left of a deleted kind.
const FIRST_LOOK: Duration = Duration::from_millis(20);
const LONGEST_LOOK: Duration = Duration::from_secs(5);
const START: Duration = Duration::from_secs(30);

/// Serves the kinds that are established and starts to follow the definitions; the task that does.
///
/// # Errors
/// When the definitions cannot be read.
pub(crate) async fn follow(server: &Arc<ApiServer>) -> Result<AbortOnDropHandle<()>, Status> {
    let mut state = State::default();
    let resource = definitions(server)?;
    let list = resource
        .storage
        .cache()
        .list(
            Freshness::Latest,
            &Filter::default(),
            Instant::now() + START,
        )
        .await
        .map_err(|error| errors::cache(error, &resource))?;
    for held in &list.items {
        state.put(held.json());
    }
    let names: Vec<String> = state.known.keys().cloned().collect();
    for name in names {
        if is_true(&state.known[&name].object, "Established") {
            state.install(server, &name);
        }
    }
    let cancel = server.shutdown().clone();
    let task = tokio::spawn(run(Arc::downgrade(server), cancel, state));
    Ok(AbortOnDropHandle::new(task))
}

fn definitions(server: &ApiServer) -> Result<Arc<ResourceInfo>, Status> {
    let snapshot = server.registry().snapshot();
    snapshot
        .by_group_resource(GROUP, PLURAL)
        .cloned()
        .ok_or_else(|| Status::internal("definitions of custom kinds are not served"))
}

async fn run(server: Weak<ApiServer>, cancel: CancellationToken, mut state: State) {
    while let Some(strong) = server.upgrade() {
        let opened = open(&strong).await;
        drop(strong);
        match opened {
            Ok(mut watch) => {
                // a panic has been logged, and is tried again as any other end of a watch
                let following = state.follow(&server, &cancel, &mut watch);
                let _ = guard_async("apiserver", "custom-kinds", PLURAL, following).await;
            }
            Err(status) => {
                tracing::warn!(%status, "following definitions of custom kinds");
            }
        }
        if cancel.is_cancelled() {
            return;
        }
        tokio::select! {
            () = cancel.cancelled() => return,
            () = sleep(RETRY) => {}
        }
    }
}

async fn open(server: &ApiServer) -> Result<Watch, Status> {
    let resource = definitions(server)?;
    let options = WatchOptions {
        start: WatchStart::Initial(Freshness::Latest),
        filter: Filter::default(),
        bookmarks: true,
        deadline: None,
    };
    let watch = resource
        .storage
        .cache()
        .watch(options, Instant::now() + START);
    watch.await.map_err(|error| errors::cache(error, &resource))
}

/// A definition as it was seen last.
struct Known {
    object: Value,
    json: Bytes,
    revision: u64,
    installed: Option<Installed>,
    /// The pause before the next look at what is left of it.
    pause: Duration,
}

/// What is served of a definition.
struct Installed {
    /// Tells states of a definition apart that are served differently.
    fingerprint: u64,
    /// The resource of the storage version, served or not.
    storage: Arc<ResourceInfo>,
}

#[derive(Default)]
struct State {
    known: BTreeMap<String, Known>,
    due: BTreeMap<String, Instant>,
    /// The definitions the present watch has shown, until it has shown all.
    shown: Option<BTreeSet<String>>,
}

impl State {
    fn put(&mut self, json: Bytes) -> Option<String> {
        let object: Value = serde_json::from_slice(&json).ok()?;
        let revision = object::resource_version(&object).parse().unwrap_or(0);
        let name = object::name(&object).to_owned();
        match self.known.get_mut(&name) {
            // an event about something that this task has changed since
            Some(known) if known.revision > revision => {}
            Some(known) => {
                known.object = object;
                known.json = json;
                known.revision = revision;
            }
            None => {
                let known = Known {
                    object,
                    json,
                    revision,
                    installed: None,
                    pause: FIRST_LOOK,
                };
                self.known.insert(name.clone(), known);
            }
        }
        Some(name)
    }

    /// Works until the watch ends.
    async fn follow(
        &mut self,
        server: &Weak<ApiServer>,
        cancel: &CancellationToken,
        watch: &mut Watch,
    ) {
        self.shown = Some(BTreeSet::new());
        loop {
            let next = self.due.values().min().copied();
            let alarm = async {
                match next {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let item = tokio::select! {
                () = cancel.cancelled() => return,
                item = watch.next() => match item {
                    Some(Ok(item)) => Some(item),
                    Some(Err(_)) | None => return,
                },
                () = alarm => None,
            };
            let Some(server) = server.upgrade() else {
                return;
            };
            if let Some(item) = item {
                self.take(&server, item);
            }
            let now = Instant::now();
            let due: Vec<String> = self
                .due
                .iter()
                .filter(|(_, at)| **at <= now)
                .map(|(name, _)| name.clone())
                .collect();
            for name in due {
                self.due.remove(&name);
                self.reconcile(&server, &name).await;
            }
        }
    }

    fn take(&mut self, server: &ApiServer, item: WatchItem) {
        match item {
            WatchItem::Event(delivery) => {
                let object = delivery.object();
                if delivery.kind() == EventType::Deleted {
                    let name = object.header().name.to_string();
                    self.forget(server, &name);
                } else if let Some(name) = self.put(object.json()) {
                    if let Some(shown) = &mut self.shown {
                        shown.insert(name.clone());
                    }
                    self.due.insert(name, Instant::now());
                }
            }
            WatchItem::Bookmark {
                initial_events_end: true,
                ..
            } => {
                let shown = self.shown.take().unwrap_or_default();
                let gone = self.known.keys().filter(|name| !shown.contains(*name));
                let gone: Vec<String> = gone.cloned().collect();
                for name in gone {
                    self.forget(server, &name);
                }
            }
            WatchItem::Bookmark { .. } => {}
        }
    }

    /// A definition is gone: its names are free.
    fn forget(&mut self, server: &ApiServer, name: &str) {
        self.due.remove(name);
        if let Some(known) = self.known.remove(name) {
            uninstall(server, &known.object);
            self.look_at_group(&known.object["spec"]["group"], name);
        }
    }

    fn look_at_group(&mut self, group: &Value, except: &str) {
        let now = Instant::now();
        for (name, known) in &self.known {
            if name != except && known.object["spec"]["group"] == *group {
                self.due.insert(name.clone(), now);
            }
        }
    }

    async fn reconcile(&mut self, server: &Arc<ApiServer>, name: &str) {
        let Some(known) = self.known.get(name) else {
            return;
        };
        let done = if object::is_deleting(&known.object) {
            self.finalize(server, name).await
        } else {
            self.establish(server, name).await
        };
        if let Err(status) = done {
            if status.reason != Reason::Conflict && status.reason != Reason::NotFound {
                tracing::warn!(%name, %status, "definition of a custom kind");
            }
            self.due.insert(name.to_owned(), Instant::now() + RETRY);
        }
    }

    /// Names, conditions, rows.
    async fn establish(&mut self, server: &Arc<ApiServer>, name: &str) -> Result<(), Status> {
        let Some(known) = self.known.get(name) else {
            return Ok(());
        };
        let group = known.object["spec"]["group"].clone();
        let others = self.known.iter().filter(|(other, known)| {
            other.as_str() != name && known.object["spec"]["group"] == group
        });
        let accepted = names::accept(&known.object, others.map(|(_, known)| &known.object));
        let mut new = known.object.clone();
        if !new["status"].is_object() {
            new["status"] = json!({});
        }
        let released = new["status"]["acceptedNames"] != accepted.names;
        new["status"]["acceptedNames"] = accepted.names;
        match &accepted.conflict {
            None => condition(
                &mut new,
                "NamesAccepted",
                true,
                "NoConflicts",
                "no conflicts found",
            ),
            Some((reason, why)) => condition(&mut new, "NamesAccepted", false, reason, why),
        }
        approval(&mut new);
        structure(&mut new);
        let was = is_true(&new, "Established");
        if !was {
            if accepted.conflict.is_some() {
                let why = "not all names are accepted";
                condition(&mut new, "Established", false, "NotAccepted", why);
            } else if let Some(why) = ca_fault(&new) {
                condition(&mut new, "Established", false, "InvalidCABundle", &why);
            } else {
                let why = "the initial names have been accepted";
                condition(&mut new, "Established", true, "InitialNamesAccepted", why);
            }
        }
        // served before it is said to be, which discovery waits for
        let is = is_true(&new, "Established");
        let establishing = (is && !was).then(|| server.registry().establishing());
        if is {
            if let Some(finalizers) = with_finalizer(&new) {
                object::set_finalizers(&mut new, &finalizers);
            }
            let known = self.known.get_mut(name);
            if let Some(known) = known {
                known.object["status"]["acceptedNames"] = new["status"]["acceptedNames"].clone();
            }
            self.install(server, name);
        }
        self.write(server, name, new).await?;
        drop(establishing);
        if released {
            self.look_at_group(&group, name);
        }
        Ok(())
    }

    /// Deletes what there is of a deleted kind, then lets the definition go.
    async fn finalize(&mut self, server: &Arc<ApiServer>, name: &str) -> Result<(), Status> {
        let Some(known) = self.known.get(name) else {
            return Ok(());
        };
        let mut new = known.object.clone();
        if !object::finalizers(&new).iter().any(|f| f == FINALIZER) {
            return Ok(());
        }
        // One of a built-in kind's name that was established once: the objects are not its own.
        if !is_true(&new, "Established") || names::are_built_in(&new) {
            let why = "resource was never established";
            condition(&mut new, "Terminating", false, "NeverEstablished", why);
            return self.let_go(server, name, new).await;
        }
        // Nothing more is created once the condition is seen.
        self.install(server, name);
        if !is_true(&new, "Terminating") {
            let why = "CustomResource deletion is in progress";
            condition(
                &mut new,
                "Terminating",
                true,
                "InstanceDeletionInProgress",
                why,
            );
            self.write(server, name, new).await?;
        }
        let Some(known) = self.known.get_mut(name) else {
            return Ok(());
        };
        let Some(installed) = &known.installed else {
            return Ok(());
        };
        let left = delete_all(server, &installed.storage).await;
        let mut new = known.object.clone();
        match left {
            Ok(0) => {
                let why = "removed all instances";
                condition(
                    &mut new,
                    "Terminating",
                    false,
                    "InstanceDeletionCompleted",
                    why,
                );
                self.let_go(server, name, new).await
            }
            Ok(_) => {
                let pause = known.pause;
                known.pause = (pause * 2).min(LONGEST_LOOK);
                self.due.insert(name.to_owned(), Instant::now() + pause);
                Ok(())
            }
            Err(status) => {
                let why = format!("could not delete all instances: {}", status.message);
                condition(
                    &mut new,
                    "Terminating",
                    true,
                    "InstanceDeletionFailed",
                    &why,
                );
                self.write(server, name, new).await?;
                self.due
                    .insert(name.to_owned(), Instant::now() + LONGEST_LOOK);
                Ok(())
            }
        }
    }

    async fn let_go(
        &mut self,
        server: &Arc<ApiServer>,
        name: &str,
        mut new: Value,
    ) -> Result<(), Status> {
        let finalizers = object::finalizers(&new);
        let rest: Vec<String> = finalizers.into_iter().filter(|f| f != FINALIZER).collect();
        object::set_finalizers(&mut new, &rest);
        if rest.is_empty() {
            uninstall(server, &new);
            let resource = definitions(server)?;
            let revision = self.known.get(name).map_or(0, |known| known.revision);
            let deleted = resource.storage.delete("", name, revision).await;
            deleted.map_err(|error| errors::storage(error, &resource, name))?;
            return Ok(());
        }
        self.write(server, name, new).await
    }

    /// Writes the definition if it changed.
    async fn write(
        &mut self,
        server: &Arc<ApiServer>,
        name: &str,
        new: Value,
    ) -> Result<(), Status> {
        let Some(known) = self.known.get_mut(name) else {
            return Ok(());
        };
        let stored: Option<Value> = serde_json::from_slice(&known.json).ok();
        if stored.as_ref() == Some(&new) {
            return Ok(());
        }
        let resource = definitions(server)?;
        let written = resource
            .storage
            .update("", name, known.revision, &new)
            .await;
        match written {
            Ok(written) => {
                known.json = Bytes::from(written.value.to_string());
                known.object = written.value;
                known.revision = written.revision;
                Ok(())
            }
            // its event is on the way
            Err(StorageError::Changed(_)) => Ok(()),
            Err(error) => Err(errors::storage(error, &resource, name)),
        }
    }

    /// Serves a definition as it is now.
    fn install(&mut self, server: &Arc<ApiServer>, name: &str) {
        let Some(known) = self.known.get_mut(name) else {
            return;
        };
        if names::are_built_in(&known.object) {
            return;
        }
        let fingerprint = fingerprint(&known.object);
        if known
            .installed
            .as_ref()
            .is_some_and(|installed| installed.fingerprint == fingerprint)
        {
            return;
        }
        let accepted = &known.object["status"]["acceptedNames"];
        let versions = Definition::versions(&known.object, known.json.clone(), accepted);
        let Some(versions) = versions else {
            return;
        };
        let (rows, storage) = rows(server, &versions);
        let (group, plural) = (storage.row.group, storage.row.plural);
        let replaced = server.registry().set_custom(group, plural, &rows);
        for old in replaced {
            old.storage.cache().retire();
        }
        known.installed = Some(Installed {
            fingerprint,
            storage,
        });
    }
}

/// The resources of a definition: those served, and that of the storage version.
fn rows(server: &ApiServer, versions: &Versions) -> (Vec<Arc<ResourceInfo>>, Arc<ResourceInfo>) {
    let stored = &versions.storage;
    let converter = Converter::new(
        Arc::clone(&stored.version.definition),
        Arc::clone(server.webhooks()),
        Arc::clone(&server.metrics().conversions),
    );
    let served = versions.served.iter().map(|served| &served.version);
    let all: Arc<[_]> = served.chain([&stored.version]).cloned().collect();
    let view = |version: &Served| {
        Arc::new(View::new(
            Arc::clone(&version.version),
            Arc::clone(&stored.version),
            Arc::clone(&all),
            converter.clone(),
        ))
    };
    let store = server.store();
    let strategy = Arc::clone(&stored.strategy);
    let cache = Storage::custom_cache(store, &stored.row, strategy, view(stored));
    // the types of built-in kinds have no place here; those who ask find an empty object
    let body = TypeBody::Struct {
        fields: Vec::new(),
        union: false,
    };
    let types = Arc::new(TypeTable::new(vec![TypeDef::new("custom/v1.Object", body)]));
    let info = |served: &Served| {
        let storage = Storage::custom(
            Arc::clone(store),
            &served.row,
            Arc::clone(&types),
            Arc::clone(&served.strategy) as _,
            view(served),
            Arc::clone(&cache),
        );
        Arc::new(ResourceInfo {
            row: served.row.clone(),
            types: Arc::clone(&types),
            strategy: Arc::clone(&served.strategy) as _,
            storage: Arc::new(storage),
            custom: Some(Arc::clone(&served.version)),
        })
    };
    let rows = versions.served.iter().map(info).collect();
    (rows, info(stored))
}

fn uninstall(server: &ApiServer, object: &Value) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let group = text(&object["spec"]["group"]);
    let plural = text(&object["spec"]["names"]["plural"]);
    for old in server.registry().set_custom(&group, &plural, &[]) {
        old.storage.cache().retire();
    }
}

/// Deletes all objects; answers how many are left, held by finalizers.
async fn delete_all(server: &ApiServer, resource: &ResourceInfo) -> Result<usize, Status> {
    let listing = resource
        .storage
        .list(None, davit_store::ListOptions::default())
        .await
        .map_err(|error| errors::storage(error, resource, ""))?;
    let author = Author::apiserver();
    let mut left = 0;
    for pair in &listing.items {
        let rest = pair.key.strip_prefix(resource.storage.prefix());
        let rest = rest.unwrap_or(&pair.key);
        let (namespace, name) = match rest.split_once('/') {
            Some((namespace, name)) if resource.row.namespaced => (namespace, name),
            _ => ("", rest),
        };
        let writer = author.writer(server, resource, namespace, Tracking::Keep);
        match writer.delete_with_definition(name).await {
            Ok(deletion) => left += usize::from(!deletion.gone),
            Err(status) if status.reason == Reason::NotFound => {}
            Err(status) => return Err(status),
        }
    }
    Ok(left)
}

fn with_finalizer(object: &Value) -> Option<Vec<String>> {
    let mut finalizers = object::finalizers(object);
    if finalizers.iter().any(|f| f == FINALIZER) {
        return None;
    }
    finalizers.push(FINALIZER.to_owned());
    Some(finalizers)
}

/// What is served follows from the spec, the names and whether it is being deleted.
fn fingerprint(object: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    object["spec"].to_string().hash(&mut hasher);
    let names = &object["status"]["acceptedNames"];
    names.to_string().hash(&mut hasher);
    object::is_deleting(object).hash(&mut hasher);
    object::uid(object).hash(&mut hasher);
    hasher.finish()
}

/// Sets a condition; its time only moves when its status does.
fn condition(object: &mut Value, kind: &str, status: bool, reason: &str, message: &str) {
    let status = if status { "True" } else { "False" };
    let new = |time: Value| {
        json!({
            "type": kind, "status": status, "lastTransitionTime": time,
            "reason": reason, "message": message,
        })
    };
    let conditions = &mut object["status"]["conditions"];
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Some(list) = conditions.as_array_mut() else {
        return;
    };
    match list.iter_mut().find(|held| held["type"] == kind) {
        Some(held) => {
            let time = if held["status"] == status {
                held["lastTransitionTime"].clone()
            } else {
                json!(object::now())
            };
            *held = new(time);
        }
        None => list.push(new(json!(object::now()))),
    }
}

/// Groups of the Kubernetes project need an approval.
fn approval(object: &mut Value) {
    let group = object["spec"]["group"].as_str().unwrap_or_default();
    if !crd::is_protected(group) {
        return;
    }
    let approval = crd::approval(object);
    condition(
        object,
        "KubernetesAPIApprovalPolicyConformant",
        approval.conforms,
        approval.reason,
        &approval.message,
    );
}

/// Definitions that were stored before schemas had to be structural are said to violate it.
fn structure(object: &mut Value) {
    const KIND: &str = "NonStructuralSchema";
    let at = Path::new("spec").child("versions");
    let versions = object["spec"]["versions"].as_array().into_iter().flatten();
    let mut faults = Vec::new();
    for (index, version) in versions.enumerate() {
        if let Some(schema) = version.pointer("/schema/openAPIV3Schema") {
            let at = at.index(index).child("schema").child("openAPIV3Schema");
            let status = version.pointer("/subresources/status").is_some();
            faults.extend(check_schema(schema, &at, SchemaCheck { status }));
        }
    }
    let mut texts: Vec<String> = faults.iter().map(ToString::to_string).collect();
    texts.dedup();
    match texts.as_slice() {
        [] => {
            if let Some(list) = object["status"]["conditions"].as_array_mut() {
                list.retain(|held| held["type"] != KIND);
            }
        }
        [only] => condition(object, KIND, true, "Violations", only),
        many => {
            let all = format!("[{}]", many.join(", "));
            condition(object, KIND, true, "Violations", &all);
        }
    }
}

/// Why the authorities of a conversion webhook cannot be used.
fn ca_fault(object: &Value) -> Option<String> {
    let conversion = &object["spec"]["conversion"];
    if conversion["strategy"] != "Webhook" {
        return None;
    }
    let bundle = conversion["webhook"]["clientConfig"]["caBundle"].as_str()?;
    crd::ca_bundle_fault(bundle)
        .map(|why| format!("The conversion webhook CABundle is invalid: {why}"))
}
