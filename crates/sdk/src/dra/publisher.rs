//! Keeping ResourceSlices as the driver wants them.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{ResourceSlice, ResourceSliceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, watcher as watch_objects};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::Invalid;
use super::devices::Resources;
use super::plan::{self, Accepted, Old};

/// Limit of one request to the API server.
const REQUEST: Duration = Duration::from_secs(30);
/// Pauses between attempts that fail.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(300));
/// Pauses before slices that somebody else changed are put right: whoever does it again and again
/// is answered ever later.
const REPAIR: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// After so long without changes by others the next one is put right soon.
const CALM: Duration = Duration::from_secs(300);

/// Which slices belong to a publisher: those of its driver, and there only those of a node or
/// only those of none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// Devices of one node. Slices are owned by the node object.
    Node {
        /// Name of the node.
        name: String,
        /// Its UID; looked up when it is not given.
        uid: Option<String>,
    },
    /// Devices that can be reached from several nodes. One publisher in the cluster does this.
    Cluster,
}

impl Scope {
    /// The scope of a node.
    pub fn node(name: impl Into<String>) -> Self {
        Self::Node {
            name: name.into(),
            uid: None,
        }
    }
}

/// What stands in the way of publishing. All is tried again but what needs other resources.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The resources are wrong in themselves; nothing is changed until there are others.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The server refuses a slice.
    #[error("slice {slice}: {message}")]
    Refused {
        /// Name of the slice.
        slice: String,
        /// What the server says.
        message: String,
    },
    /// The server did not answer, or not well.
    #[error("{what}: {cause}")]
    Request {
        /// What was asked.
        what: String,
        /// Why.
        cause: String,
    },
    /// Somebody else changed a slice at the same time.
    #[error("slice {0}: changed by somebody else meanwhile")]
    Conflict(String),
}

impl Problem {
    /// Whether the same resources may be published later.
    pub fn is_recoverable(&self) -> bool {
        !matches!(self, Self::Invalid(_))
    }
}

/// How far publishing has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Published {
    /// Not done yet.
    Pending,
    /// The slices are as wanted, or as near to it as the server allows.
    Done {
        /// How many slices there are.
        slices: usize,
        /// Feature gates that are off in the server, so that their fields were dropped, with the
        /// slices concerned. `unknown` stands for changes that no gate explains.
        dropped: BTreeMap<&'static str, Vec<String>>,
    },
    /// The last attempt failed.
    Failed(Problem),
}

/// Publishes devices of a driver. See the [module](super)'s example.
#[derive(Clone)]
#[must_use]
pub struct Publisher {
    client: kube::Client,
    driver: String,
    scope: Scope,
    repair: (Duration, Duration),
}

impl Publisher {
    /// A publisher of the driver's slices in a scope.
    pub fn new(client: kube::Client, driver: impl Into<String>, scope: Scope) -> Self {
        Self {
            client,
            driver: driver.into(),
            scope,
            repair: REPAIR,
        }
    }

    /// How soon slices that somebody else changed or deleted are put right, at first and at
    /// last when it happens again and again. By default 1 s and 30 s.
    pub fn repair(mut self, first: Duration, last: Duration) -> Self {
        self.repair = (first, last.max(first));
        self
    }

    /// Starts publishing in the background.
    ///
    /// # Errors
    /// The resources are wrong in themselves, whatever the server.
    pub fn start(self, resources: Resources) -> Result<Publishing, Invalid> {
        self.check(&resources)?;
        let wanted = watch::Sender::new(resources);
        let state = watch::Sender::new(Published::Pending);
        let cancel = CancellationToken::new();
        let keeper = Keeper {
            publisher: self.clone(),
            node_uid: None,
            accepted: Accepted::new(),
            written: BTreeMap::new(),
            state: state.clone(),
        };
        let task = tokio::spawn(keeper.run(wanted.subscribe(), cancel.clone()));
        Ok(Publishing {
            publisher: self,
            wanted,
            state,
            task: Some(task),
            cancel: Some(cancel.drop_guard()),
        })
    }

    fn check(&self, resources: &Resources) -> Result<(), Invalid> {
        resources.check(matches!(self.scope, Scope::Node { .. }))
    }

    fn node(&self) -> Option<&str> {
        match &self.scope {
            Scope::Node { name, .. } => Some(name),
            Scope::Cluster => None,
        }
    }

    /// A selector of the slices; for nodes without others it is also what they may ask for.
    fn fields(&self) -> String {
        let node = self.node().unwrap_or_default();
        format!("spec.nodeName={node},spec.driver={}", self.driver)
    }
}

/// A publisher at work. Dropping it ends the work without waiting; slices stay.
#[derive(Debug)]
pub struct Publishing {
    publisher: Publisher,
    wanted: watch::Sender<Resources>,
    state: watch::Sender<Published>,
    task: Option<JoinHandle<()>>,
    cancel: Option<DropGuard>,
}

impl std::fmt::Debug for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Publisher")
            .field("driver", &self.driver)
            .field("scope", &self.scope)
            .finish_non_exhaustive()
    }
}

impl Publishing {
    /// Publishes other resources. Quick successions are published as one.
    ///
    /// # Errors
    /// They are wrong in themselves; what was published before stays.
    pub fn publish(&self, resources: Resources) -> Result<(), Invalid> {
        self.publisher.check(&resources)?;
        self.wanted.send_if_modified(|now| {
            let differs = *now != resources;
            if differs {
                // Whoever waits for the state now waits for these.
                self.state.send_replace(Published::Pending);
                *now = resources;
            }
            differs
        });
        Ok(())
    }

    /// Watches how far it has come.
    pub fn state(&self) -> watch::Receiver<Published> {
        self.state.subscribe()
    }

    /// Ends the work. Slices stay, for an instance that takes over; the node agent deletes them
    /// when none does.
    pub async fn stop(mut self) {
        self.cancel = None;
        if let Some(task) = self.task.take()
            && let Err(e) = task.await
        {
            tracing::error!(error = %e, "publisher task failed");
        }
    }
}

/// Does the work.
struct Keeper {
    publisher: Publisher,
    node_uid: Option<String>,
    accepted: Accepted,
    /// The versions of the slices as they were written or found in order, by name.
    written: BTreeMap<String, String>,
    state: watch::Sender<Published>,
}

type Events = std::pin::Pin<Box<dyn Stream<Item = watcher::Result<Event<ResourceSlice>>> + Send>>;

/// When to look again, because of others and because of failures.
struct Pace {
    due: Option<Instant>,
    retry: Duration,
    repair: Duration,
    disturbed: Option<Instant>,
}

impl Keeper {
    async fn run(mut self, mut wanted: watch::Receiver<Resources>, cancel: CancellationToken) {
        let repair = self.publisher.repair;
        let mut pace = Pace {
            due: Some(Instant::now()),
            retry: RETRY.0,
            repair: repair.0,
            disturbed: None,
        };
        let mut events = self.events();
        let mut listed = Vec::new();
        let mut open = true;
        loop {
            let due = async {
                match pace.due {
                    Some(due) => sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = cancel.cancelled() => return,
                changed = wanted.changed(), if open => {
                    open = changed.is_ok();
                    if open {
                        (pace.due, pace.retry) = (Some(Instant::now()), RETRY.0);
                    }
                }
                event = events.next() => {
                    if self.is_foreign(event, &mut listed) {
                        pace.disturb(repair);
                    }
                }
                () = due => {
                    let resources = wanted.borrow_and_update().clone();
                    let result = tokio::select! {
                        () = cancel.cancelled() => return,
                        result = self.sync(&resources) => result,
                    };
                    pace.after(result.is_ok());
                    self.report(result);
                }
            }
        }
    }

    fn report(&self, result: Result<Published, Problem>) {
        let driver = &self.publisher.driver;
        let now = result.unwrap_or_else(Published::Failed);
        let is_news = *self.state.borrow() != now;
        match &now {
            Published::Done { slices, dropped } if is_news => {
                tracing::info!(driver, slices, "devices published");
                for (gate, slices) in dropped {
                    tracing::warn!(driver, gate, ?slices, "the API server dropped fields");
                }
            }
            Published::Failed(problem) => {
                tracing::warn!(driver, error = %problem, "devices not published");
            }
            _ => {}
        }
        self.state.send_if_modified(|state| {
            *state = now;
            is_news
        });
    }

    fn api(&self) -> Api<ResourceSlice> {
        Api::all(self.publisher.client.clone())
    }

    fn events(&self) -> Events {
        let config = watcher::Config::default().fields(&self.publisher.fields());
        Box::pin(watch_objects(self.api(), config).default_backoff())
    }

    /// Whether an event is about what this publisher has not done itself.
    fn is_foreign(
        &self,
        event: Option<watcher::Result<Event<ResourceSlice>>>,
        listed: &mut Vec<String>,
    ) -> bool {
        let name = |slice: &ResourceSlice| slice.metadata.name.clone().unwrap_or_default();
        let is_other = |slice: &ResourceSlice| {
            self.written.get(&name(slice)) != slice.metadata.resource_version.as_ref()
        };
        match event {
            Some(Ok(Event::Apply(slice))) => is_other(&slice),
            Some(Ok(Event::Delete(slice))) => self.written.contains_key(&name(&slice)),
            Some(Ok(Event::Init)) => {
                listed.clear();
                false
            }
            Some(Ok(Event::InitApply(slice))) => {
                listed.push(name(&slice));
                is_other(&slice)
            }
            Some(Ok(Event::InitDone)) => self.written.keys().any(|n| !listed.contains(n)),
            Some(Err(error)) => {
                tracing::debug!(driver = self.publisher.driver, %error, "watch of slices");
                false
            }
            None => false,
        }
    }

    /// Makes the slices what they should be.
    async fn sync(&mut self, wanted: &Resources) -> Result<Published, Problem> {
        let owner = self.owner().await?;
        let listed = self.list().await?;
        let publisher = plan::Publisher {
            driver: &self.publisher.driver,
            node: self.publisher.node(),
        };
        let plan = plan::plan(
            &publisher,
            wanted,
            &listed,
            &self.accepted,
            Timestamp::now(),
        );
        self.written = listed
            .iter()
            .filter_map(|s| {
                Some((
                    s.metadata.name.clone()?,
                    s.metadata.resource_version.clone()?,
                ))
            })
            .collect();
        if !plan.is_empty() {
            tracing::debug!(
                driver = self.publisher.driver,
                delete = plan.delete.len(),
                update = plan.update.len(),
                create = plan.create.len(),
                "writing slices"
            );
        }
        for old in plan.delete {
            self.delete(&old).await?;
        }
        for (old, spec) in plan.update {
            let slice = listed
                .iter()
                .find(|s| s.metadata.name.as_ref() == Some(&old.name));
            let mut metadata = slice.map(|s| s.metadata.clone()).unwrap_or_default();
            metadata.managed_fields = None;
            self.write(metadata, spec, true).await?;
        }
        for (name, spec) in plan.create {
            let metadata = ObjectMeta {
                name: Some(name),
                owner_references: owner.clone().map(|o| vec![o]),
                ..ObjectMeta::default()
            };
            self.write(metadata, spec, false).await?;
        }
        self.accepted
            .retain(|name, _| self.written.contains_key(name));
        let mut dropped: BTreeMap<&'static str, Vec<String>> = BTreeMap::new();
        for (name, (sent, stored)) in &self.accepted {
            for gate in plan::dropped(sent, stored) {
                dropped.entry(gate).or_default().push(name.clone());
            }
        }
        Ok(Published::Done {
            slices: self.written.len(),
            dropped,
        })
    }

    /// The node that owns the slices, in the scope of one.
    async fn owner(&mut self) -> Result<Option<OwnerReference>, Problem> {
        let Scope::Node { name, uid } = &self.publisher.scope else {
            return Ok(None);
        };
        if self.node_uid.is_none() {
            self.node_uid.clone_from(uid);
        }
        if self.node_uid.is_none() {
            let nodes: Api<Node> = Api::all(self.publisher.client.clone());
            let node = request(&format!("get node {name}"), nodes.get(name)).await?;
            self.node_uid = node.metadata.uid;
        }
        Ok(self.node_uid.clone().map(|uid| OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: name.clone(),
            uid,
            controller: Some(true),
            block_owner_deletion: None,
        }))
    }

    async fn list(&self) -> Result<Vec<ResourceSlice>, Problem> {
        let api = self.api();
        let params = ListParams::default().fields(&self.publisher.fields());
        let list = request("list slices", api.list(&params)).await?;
        Ok(list.items)
    }

    async fn delete(&mut self, old: &Old) -> Result<(), Problem> {
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: old.uid.clone(),
                resource_version: old.version.clone(),
            }),
            ..DeleteParams::default()
        };
        self.written.remove(&old.name);
        let api = self.api();
        let done = timeout(REQUEST, api.delete(&old.name, &params)).await;
        match told(&old.name, done) {
            // Gone already is as good.
            Err(None) | Ok(_) => Ok(()),
            Err(Some(problem)) => Err(problem),
        }
    }

    async fn write(
        &mut self,
        metadata: ObjectMeta,
        spec: ResourceSliceSpec,
        there: bool,
    ) -> Result<(), Problem> {
        let name = metadata.name.clone().unwrap_or_default();
        let slice = ResourceSlice { metadata, spec };
        let (api, params) = (self.api(), PostParams::default());
        let done = if there {
            timeout(REQUEST, api.replace(&name, &params, &slice)).await
        } else {
            timeout(REQUEST, api.create(&params, &slice)).await
        };
        let stored =
            told(&name, done).map_err(|p| p.unwrap_or_else(|| Problem::Conflict(name.clone())))?;
        let version = stored.metadata.resource_version.clone();
        self.written
            .insert(name.clone(), version.unwrap_or_default());
        if plan::comparable(&slice.spec) == plan::comparable(&stored.spec) {
            self.accepted.remove(&name);
        } else {
            self.accepted.insert(name, (slice.spec, stored.spec));
        }
        Ok(())
    }
}

impl Pace {
    /// Somebody else changed something.
    fn disturb(&mut self, repair: (Duration, Duration)) {
        let now = Instant::now();
        if self.disturbed.is_none_or(|at| now - at > CALM) {
            self.repair = repair.0;
        }
        let at = now + self.repair;
        if self.due.is_none_or(|due| due > at) {
            self.due = Some(at);
        }
        self.disturbed = Some(now);
    }

    fn after(&mut self, ok: bool) {
        let now = Instant::now();
        if ok {
            (self.due, self.retry) = (None, RETRY.0);
            if self.disturbed.is_some_and(|at| now - at < CALM) {
                self.repair = (self.repair * 2).min(REPAIR.1.max(self.repair));
            }
        } else {
            // Many nodes that failed together shall not come back together.
            self.due = Some(now + self.retry.mul_f64(rand::random_range(0.8..1.2)));
            self.retry = (self.retry * 2).min(RETRY.1);
        }
    }
}

async fn request<T>(
    what: &str,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Problem> {
    let failed = |cause: String| Problem::Request {
        what: what.to_owned(),
        cause,
    };
    let answer = timeout(REQUEST, call).await;
    let answer = answer.map_err(|_| failed("no answer in time".to_owned()))?;
    answer.map_err(|e| failed(e.to_string()))
}

/// The result of a write; `Err(None)` when the slice is not there.
fn told<T>(
    slice: &str,
    answer: Result<Result<T, kube::Error>, tokio::time::error::Elapsed>,
) -> Result<T, Option<Problem>> {
    let failed = |cause: String| {
        Some(Problem::Request {
            what: format!("write slice {slice}"),
            cause,
        })
    };
    match answer.map_err(|_| failed("no answer in time".to_owned()))? {
        Ok(value) => Ok(value),
        Err(kube::Error::Api(status)) => Err(match status.code {
            404 => None,
            409 => Some(Problem::Conflict(slice.to_owned())),
            400..=499 if status.code != 401 && status.code != 429 => Some(Problem::Refused {
                slice: slice.to_owned(),
                message: status.message,
            }),
            _ => failed(status.message),
        }),
        Err(e) => Err(failed(e.to_string())),
    }
}
