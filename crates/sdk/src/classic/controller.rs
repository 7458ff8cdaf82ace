//! The controller: watches, queue, workers.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use davit_api::classic::{PodScheduling, ResourceClaim};
use futures::StreamExt;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::cache::{Cache, Key};
use super::events::Events;
use super::queue::Queue;
use super::{ClassicDriver, Failure};

/// How long one object may be worked on.
const DEADLINE: Duration = Duration::from_secs(300);
/// How long one call of the API server may take.
const CALL: Duration = Duration::from_secs(30);

/// Serves a [`ClassicDriver`] to the cluster. See the [module](super)'s example.
#[must_use]
pub struct Controller<D> {
    client: Client,
    name: String,
    driver: D,
    workers: usize,
    reserves: bool,
}

impl<D: ClassicDriver> Controller<D> {
    /// A controller for claims whose class names this driver.
    pub fn new(client: Client, name: impl Into<String>, driver: D) -> Self {
        Self {
            client,
            name: name.into(),
            driver,
            workers: 10,
            reserves: true,
        }
    }

    /// Sets how many claims and pods are worked on at the same time; 10 by default.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers.max(1);
        self
    }

    /// Sets whether a claim that is allocated for a pod is reserved for it in the same write, which
    /// spares the scheduler one; it is by default.
    pub fn reserve_for_pods(mut self, reserves: bool) -> Self {
        self.reserves = reserves;
        self
    }

    /// Starts in the background.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(self) -> Running {
        let cancel = CancellationToken::new();
        let task = tokio::spawn(self.run(cancel.clone()));
        Running {
            task: Some(task),
            cancel: Some(cancel.drop_guard()),
        }
    }

    /// Runs until cancelled. An object that is being worked on then is left as it is, and taken up
    /// again by the next run.
    pub async fn run(self, cancel: CancellationToken) {
        tokio::select! {
            () = cancel.cancelled() => {}
            () = self.work() => {}
        }
    }

    async fn work(self) {
        let finalizer = format!("{}/deletion-protection", self.name);
        let shared = Arc::new(Shared {
            events: Events::new(self.client.clone(), &self.name),
            client: self.client,
            name: self.name,
            finalizer,
            driver: self.driver,
            reserves: self.reserves,
            claims: Cache::default(),
            schedulings: Cache::default(),
            queue: Queue::new(),
        });
        let mut tasks = JoinSet::new();
        let (known, all_known) = tokio::sync::oneshot::channel();
        let following = shared.clone();
        tasks.spawn(async move { following.follow_claims(known).await });
        if all_known.await.is_err() {
            return;
        }
        let own = |c: &Arc<ResourceClaim>| {
            c.status.allocation.is_some() && c.status.driver_name == shared.name
        };
        let allocated = shared.claims.all().into_iter().filter(own);
        let allocated: Vec<ResourceClaim> = allocated.map(|c| (*c).clone()).collect();
        shared.driver.recover(&allocated).await;
        let following = shared.clone();
        tasks.spawn(async move { following.follow_schedulings().await });
        for _ in 0..self.workers {
            let worker = shared.clone();
            tasks.spawn(async move { worker.serve().await });
        }
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, driver = shared.name, "a part of the controller broke off");
                let worker = shared.clone();
                tasks.spawn(async move { worker.serve().await });
            }
        }
    }
}

/// A controller at work. Dropping it stops it without waiting.
pub struct Running {
    task: Option<JoinHandle<()>>,
    cancel: Option<DropGuard>,
}

impl Running {
    /// Stops the controller.
    pub async fn stop(mut self) {
        self.cancel = None;
        if let Some(task) = self.task.take()
            && let Err(error) = task.await
        {
            tracing::error!(%error, "classic controller failed");
        }
    }
}

/// An object to be looked at.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Work {
    Claim(Key),
    Scheduling(Key),
}

/// What is to become of an object that was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing until it changes.
    Wait,
    /// It is to be looked at again after this time, or when it changes.
    After(Duration),
    /// It is to be looked at again soon: something that is needed is not there.
    Soon,
}

/// Why an object could not be brought forward; it is tried again.
#[derive(Debug, thiserror::Error)]
pub(super) enum SyncError {
    #[error("{what}: {error}")]
    Driver { what: &'static str, error: Failure },
    #[error("{what}: {error}")]
    Api {
        what: &'static str,
        error: kube::Error,
    },
    #[error("{what}: not answered within {CALL:?}")]
    Deadline { what: &'static str },
    #[error("{0}")]
    Object(String),
}

impl SyncError {
    /// Whether it is only that somebody else was faster.
    fn is_conflict(&self) -> bool {
        let Self::Api {
            error: kube::Error::Api(status),
            ..
        } = self
        else {
            return false;
        };
        status.code == 409 || status.code == 404
    }
}

/// One call of the API server.
pub(super) async fn call<T>(
    what: &'static str,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, SyncError> {
    match tokio::time::timeout(CALL, call).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(SyncError::Api { what, error }),
        Err(_) => Err(SyncError::Deadline { what }),
    }
}

/// Adds what the driver was asked to do.
pub(super) trait Asked<T> {
    fn asked(self, what: &'static str) -> Result<T, SyncError>;
}

impl<T> Asked<T> for Result<T, Failure> {
    fn asked(self, what: &'static str) -> Result<T, SyncError> {
        self.map_err(|error| SyncError::Driver { what, error })
    }
}

/// What all workers use.
pub(super) struct Shared<D> {
    pub(super) client: Client,
    pub(super) name: String,
    pub(super) finalizer: String,
    pub(super) driver: D,
    pub(super) reserves: bool,
    pub(super) claims: Cache<ResourceClaim>,
    pub(super) schedulings: Cache<PodScheduling>,
    queue: Queue<Work>,
    events: Events,
}

impl<D: ClassicDriver> Shared<D> {
    async fn follow_claims(&self, known: tokio::sync::oneshot::Sender<()>) {
        let api: Api<ResourceClaim> = Api::all(self.client.clone());
        let events = watcher(api, watcher::Config::default()).default_backoff();
        let mut events = std::pin::pin!(events);
        let (mut listed, mut known) = (HashSet::new(), Some(known));
        while let Some(event) = events.next().await {
            let event = match event {
                Ok(event) => event,
                Err(error) => {
                    tracing::warn!(%error, driver = self.name, "claims are not watched");
                    continue;
                }
            };
            let complete = matches!(event, watcher::Event::InitDone);
            for key in self.claims.apply(event, &mut listed) {
                self.wake_negotiations(&key);
                self.queue.add(Work::Claim(key));
            }
            if let Some(known) = known.take_if(|_| complete) {
                // The receiver only goes away with the controller.
                let _gone = known.send(());
            }
        }
    }

    /// A claim that has lost its allocation may be what is negotiated about.
    fn wake_negotiations(&self, key: &Key) {
        let pending = self.claims.get(key);
        if pending.is_none_or(|c| c.status.allocation.is_some() || !c.is_delayed()) {
            return;
        }
        for scheduling in self.schedulings.all() {
            let other = super::cache::key_of(&*scheduling);
            if other.0 == key.0 {
                self.queue.add(Work::Scheduling(other));
            }
        }
    }

    pub(super) fn wake_all_negotiations(&self) {
        for scheduling in self.schedulings.all() {
            let key = super::cache::key_of(&*scheduling);
            self.queue.add(Work::Scheduling(key));
        }
    }

    async fn follow_schedulings(&self) {
        let api: Api<PodScheduling> = Api::all(self.client.clone());
        let events = watcher(api, watcher::Config::default()).default_backoff();
        let mut events = std::pin::pin!(events);
        let mut listed = HashSet::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    for key in self.schedulings.apply(event, &mut listed) {
                        self.queue.add(Work::Scheduling(key));
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, driver = self.name, "negotiations are not watched");
                }
            }
        }
    }

    async fn serve(&self) {
        loop {
            let work = self.queue.next().await;
            match tokio::time::timeout(DEADLINE, self.sync(&work)).await {
                Ok(Ok(Next::Wait)) => self.queue.done(&work),
                Ok(Ok(Next::After(pause))) => {
                    self.queue.done(&work);
                    self.queue.add_after(work, pause);
                }
                Ok(Ok(Next::Soon)) => self.queue.failed(&work),
                Ok(Err(error)) => {
                    self.report(&work, &error).await;
                    self.queue.failed(&work);
                }
                Err(_) => {
                    tracing::warn!(?work, driver = self.name, "took longer than {DEADLINE:?}");
                    self.queue.failed(&work);
                }
            }
        }
    }

    async fn sync(&self, work: &Work) -> Result<Next, SyncError> {
        match work {
            Work::Claim(key) => match self.claims.get(key) {
                Some(claim) => self.sync_claim(&claim).await,
                None => Ok(Next::Wait),
            },
            Work::Scheduling(key) => match self.schedulings.get(key) {
                Some(scheduling) => self.sync_scheduling(&scheduling).await,
                None => Ok(Next::Wait),
            },
        }
    }

    async fn report(&self, work: &Work, error: &SyncError) {
        if error.is_conflict() {
            tracing::debug!(?work, %error, driver = self.name, "trying again");
            return;
        }
        tracing::warn!(?work, %error, driver = self.name, "trying again");
        let text = error.to_string();
        match work {
            Work::Claim(key) => {
                if let Some(claim) = self.claims.get(key) {
                    self.events.failed(&*claim, &text).await;
                }
            }
            Work::Scheduling(key) => {
                if let Some(scheduling) = self.schedulings.get(key) {
                    self.events.failed(&*scheduling, &text).await;
                }
            }
        }
    }
}
