//! The cluster of a run: a store, a network, and components that can be crashed and started again.

use std::sync::Arc;

use async_trait::async_trait;
use davit_apiserver::{ApiServer, Options};
use davit_controllers::Controllers;
use davit_scheduler::{Scheduler, SchedulerOptions};
use davit_store::{
    Committed, Error, KeyValue, ListOptions, Listing, Result, Store, WatchStream, Write,
};
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::caller::JsonClient;
use crate::checks::Checks;
use crate::faults::Faults;
use crate::store::{MemoryStore, SlowWrite, StoreFaults};
use crate::trace::Trace;
use crate::transport::{FaultyNetwork, RunningApiServer};
use crate::watch_check::WATCHED;

/// A change of an object as a watcher sees it: its revision and its key.
pub type Seen = (u64, String);

/// What runs.
#[derive(Debug)]
struct Process {
    task: JoinHandle<()>,
    cut: CancellationToken,
}

impl Process {
    fn crash(self) {
        self.cut.cancel();
        self.task.abort();
    }
}

/// A component that can crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Component {
    /// kube-scheduler.
    Scheduler,
    /// kube-controller-manager.
    Controllers,
}

/// The cluster.
pub struct SimulatedCluster {
    /// Where its objects are.
    pub store: Arc<MemoryStore>,
    /// How they are reached.
    pub network: Arc<FaultyNetwork>,
    /// What goes wrong.
    pub faults: Arc<Mutex<Faults>>,
    /// What happened.
    pub trace: Arc<Mutex<Trace>>,
    /// What must hold.
    pub checks: Arc<Mutex<Checks>>,
    /// The changes that watchers must see.
    pub written: Arc<Mutex<Vec<Seen>>>,
    scheduler: Mutex<Option<Process>>,
    controllers: Mutex<Option<Process>>,
}

impl std::fmt::Debug for SimulatedCluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Cluster")
    }
}

/// The store of one server: what has crashed writes no more.
struct OfServer {
    store: Arc<MemoryStore>,
    cut: CancellationToken,
}

impl OfServer {
    fn alive(&self) -> Result<()> {
        match self.cut.is_cancelled() {
            true => Err(Error::Closed),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl Store for OfServer {
    fn revision(&self) -> u64 {
        self.store.revision()
    }
    async fn current_revision(&self) -> Result<u64> {
        self.alive()?;
        self.store.current_revision().await
    }
    async fn oldest_revision(&self) -> Result<u64> {
        self.store.oldest_revision().await
    }
    async fn get(&self, key: &str) -> Result<Option<KeyValue>> {
        self.alive()?;
        self.store.get(key).await
    }
    async fn get_at(&self, key: &str, revision: u64) -> Result<Option<KeyValue>> {
        self.alive()?;
        self.store.get_at(key, revision).await
    }
    async fn list(&self, prefix: &str, opts: ListOptions) -> Result<Listing> {
        self.alive()?;
        self.store.list(prefix, opts).await
    }
    async fn commit(&self, write: Write) -> Result<Committed> {
        self.alive()?;
        tokio::select! {
            biased;
            () = self.cut.cancelled() => Err(Error::Closed),
            committed = self.store.commit(write) => committed,
        }
    }
    async fn watch(&self, prefix: &str, after: u64) -> Result<WatchStream> {
        self.alive()?;
        self.store.watch(prefix, after).await
    }
    async fn compact(&self, revision: u64) -> Result<()> {
        self.alive()?;
        self.store.compact(revision).await
    }
    async fn close(&self) {}
}

/// The faults of a run, as its store meets them.
struct StoreFaultsOfRun(Arc<Mutex<Faults>>);

impl StoreFaults for StoreFaultsOfRun {
    fn of_write(&self) -> SlowWrite {
        self.0.lock().write()
    }
    fn of_watch(&self) -> std::time::Duration {
        self.0.lock().late_change()
    }
}

impl SimulatedCluster {
    /// A cluster in which nothing runs yet.
    pub fn new(faults: Faults) -> Self {
        let faults = Arc::new(Mutex::new(faults));
        Self {
            store: Arc::default(),
            network: Arc::new(FaultyNetwork::new(Arc::clone(&faults))),
            faults,
            trace: Arc::default(),
            checks: Arc::default(),
            written: Arc::default(),
            scheduler: Mutex::default(),
            controllers: Mutex::default(),
        }
    }

    /// From now on changes are checked and noted, and the store has the faults of the run.
    pub fn attend(&self) {
        let (trace, checks) = (Arc::clone(&self.trace), Arc::clone(&self.checks));
        let written = Arc::clone(&self.written);
        checks.lock().begin(&self.store.everything());
        self.store.on_change(Box::new(move |change| {
            if WATCHED
                .iter()
                .any(|(prefix, _)| change.key.starts_with(prefix))
            {
                written
                    .lock()
                    .push((change.revision, change.key.to_string()));
            }
            let violations = checks.lock().take(change);
            let checks = checks.lock();
            let mut trace = trace.lock();
            let what = match (&change.current, &change.previous) {
                (Some(_), None) => "+",
                (Some(_), Some(_)) => "=",
                (None, _) => "-",
            };
            let about = checks.summary();
            trace.note(format_args!(
                "{} {what} {} {about}",
                change.revision, change.key
            ));
            for violation in violations {
                trace.note(format_args!("VIOLATION {violation}"));
            }
        }));
        self.store
            .set_faults(Arc::new(StoreFaultsOfRun(Arc::clone(&self.faults))));
    }

    /// Notes what happens.
    pub fn note(&self, what: impl std::fmt::Display) {
        self.trace.lock().note(what);
    }

    /// Starts the API server.
    ///
    /// # Errors
    /// When it does not start: the store has failed.
    pub async fn start_server(&self) -> std::result::Result<(), davit_apiserver::Error> {
        let cut = CancellationToken::new();
        let store = OfServer {
            store: Arc::clone(&self.store),
            cut: cut.clone(),
        };
        let server = ApiServer::new(Options::new(Arc::new(store))).await?;
        self.network.serve(Some(RunningApiServer { server, cut }));
        Ok(())
    }

    /// Kills the API server.
    pub fn crash_server(&self) {
        if let Some(running) = self.network.serve(None) {
            running.cut.cancel();
            running.server.shut_down();
        }
    }

    /// A caller of all rights that works until `cut`.
    pub fn admin(&self, cut: &CancellationToken) -> JsonClient {
        JsonClient::new(self.network.client("admin", &["system:masters"], cut))
    }

    fn place(&self, component: Component) -> &Mutex<Option<Process>> {
        match component {
            Component::Scheduler => &self.scheduler,
            Component::Controllers => &self.controllers,
        }
    }

    /// Starts a component, once more if it ends by itself.
    pub fn start(&self, component: Component) {
        let cut = CancellationToken::new();
        let user = match component {
            Component::Scheduler => "system:kube-scheduler",
            Component::Controllers => "system:kube-controller-manager",
        };
        let client = self.network.client(user, &[], &cut);
        let (checks, stop) = (Arc::clone(&self.checks), cut.clone());
        let task = tokio::spawn(async move {
            let ended = match component {
                Component::Scheduler => {
                    let made = Scheduler::new(client, SchedulerOptions::default());
                    match made {
                        Ok(scheduler) => scheduler.run(stop).await.map_err(|e| e.to_string()),
                        Err(error) => Err(error.to_string()),
                    }
                }
                Component::Controllers => {
                    let controllers =
                        Controllers::new(client, davit_controllers::Options::default());
                    controllers.run(stop).await.map_err(|e| e.to_string())
                }
            };
            if let Err(error) = ended {
                checks
                    .lock()
                    .report(format!("{component:?} ended: {error}"));
            }
        });
        *self.place(component).lock() = Some(Process { task, cut });
    }

    /// Whether a component has been started and not killed.
    pub fn runs(&self, component: Component) -> bool {
        self.place(component).lock().is_some()
    }

    /// Kills a component.
    pub fn crash(&self, component: Component) {
        if let Some(process) = self.place(component).lock().take() {
            process.crash();
        }
    }
}
