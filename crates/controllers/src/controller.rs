//! The loop that all controllers share: keys from informers, a queue, workers with back-off.

use crate::informers::Informers;
use async_trait::async_trait;
use davit_client::{Change, EventRecorder, Informer, ObjectKey, WorkQueue};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How long one key may be worked on.
const SYNC_DEADLINE: Duration = Duration::from_secs(60);
/// Back-off of a key that fails, as client-go's default rate limiter.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1000));

/// Why a key could not be brought into its desired state; it is tried again after a back-off.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call to the API server failed.
    #[error("cannot {what}")]
    Api {
        /// What was attempted, with the object's name.
        what: String,
        /// What the API server said.
        #[source]
        source: kube::Error,
    },
    /// The object says something that cannot be acted on.
    #[error("{0}")]
    Invalid(String),
}

/// Adds what was attempted to an API error.
pub(crate) trait Context<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T> Context<T> for Result<T, kube::Error> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|source| Error::Api {
            what: what(),
            source,
        })
    }
}

/// What the API server said, or the error itself: the words that events carry.
pub(crate) fn cause_of(error: &Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// Turns "not found" into `None`: the object has gone meanwhile, which is what was wanted or changes nothing.
pub(crate) fn gone_is_none<T>(result: Result<T, kube::Error>) -> Result<Option<T>, kube::Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

/// Turns "already exists" into `None`.
pub(crate) fn exists_is_none<T>(result: Result<T, kube::Error>) -> Result<Option<T>, kube::Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(None),
        Err(error) => Err(error),
    }
}

/// What to do after a key was handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Wait for a change.
    Wait,
    /// Look again after this long, or at a change.
    After(Duration),
}

/// One controller: handles one key at a time.
#[async_trait]
pub(crate) trait Reconcile: Send + Sync + 'static {
    /// Name in logs.
    const NAME: &'static str;
    /// Keys handled at the same time.
    const WORKERS: usize = 2;
    /// Brings the object of the key into its desired state; called again until it succeeds.
    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error>;
}

/// What controllers are started with.
pub(crate) struct Spawner<'a> {
    pub(crate) client: kube::Client,
    pub(crate) informers: Informers,
    pub(crate) tasks: &'a mut JoinSet<()>,
    pub(crate) cancel: CancellationToken,
}

impl Spawner<'_> {
    /// Starts the workers of a controller and returns its queue, to be fed.
    pub(crate) fn controller<R: Reconcile>(&mut self, reconciler: R) -> WorkQueue<ObjectKey> {
        let queue = WorkQueue::new(BACKOFF.0, BACKOFF.1);
        let reconciler = Arc::new(reconciler);
        for _ in 0..R::WORKERS {
            let worker = work(reconciler.clone(), queue.clone());
            let cancel = self.cancel.clone();
            self.tasks.spawn(async move {
                // A key abandoned half-way is handled again at the next start: reconcilers are idempotent.
                tokio::select! { biased; () = cancel.cancelled() => {} () = worker => {} }
            });
        }
        queue
    }

    /// Feeds a queue with the keys that a change of an informer's object concerns.
    pub(crate) fn feed<K, F>(
        &mut self,
        informer: &Informer<K>,
        queue: &WorkQueue<ObjectKey>,
        keys: F,
    ) where
        K: davit_client::Object,
        F: Fn(&K) -> Vec<ObjectKey> + Send + 'static,
    {
        self.feed_changes(informer, queue, |_, _| true, keys);
    }

    /// Like [`Spawner::feed`], but passes over updates that `matters` says change nothing.
    pub(crate) fn feed_changes<K, M, F>(
        &mut self,
        informer: &Informer<K>,
        queue: &WorkQueue<ObjectKey>,
        matters: M,
        keys: F,
    ) where
        K: davit_client::Object,
        M: Fn(&K, &K) -> bool + Send + 'static,
        F: Fn(&K) -> Vec<ObjectKey> + Send + 'static,
    {
        let (mut changes, queue, cancel) =
            (informer.subscribe(), queue.clone(), self.cancel.clone());
        self.tasks.spawn(async move {
            loop {
                let change = tokio::select! {
                    biased;
                    () = cancel.cancelled() => return,
                    change = changes.next() => change,
                };
                let mut concerned = Vec::new();
                match change {
                    None => return,
                    Some(Change::Synced) => {}
                    Some(Change::Deleted(last)) => concerned.extend(keys(&last)),
                    Some(Change::Applied {
                        old: Some(old),
                        new,
                    }) if !matters(&old, &new) => {}
                    Some(Change::Applied { old, new }) => {
                        // What no longer belongs to an owner concerns that owner too.
                        concerned.extend(old.iter().flat_map(|old| keys(old.as_ref())));
                        concerned.extend(keys(&new));
                    }
                }
                concerned.into_iter().for_each(|key| queue.add(key));
            }
        });
    }

    /// A recorder of events whose source is `component`.
    pub(crate) fn events(&mut self, component: &str) -> EventRecorder {
        EventRecorder::spawn(
            self.client.clone(),
            component,
            "",
            self.tasks,
            self.cancel.clone(),
        )
    }

    /// Runs a task until the controllers end.
    pub(crate) fn task(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        let cancel = self.cancel.clone();
        self.tasks.spawn(async move {
            tokio::select! { biased; () = cancel.cancelled() => {} () = task => {} }
        });
    }
}

async fn work<R: Reconcile>(reconciler: Arc<R>, queue: WorkQueue<ObjectKey>) {
    while let Some(key) = queue.get().await {
        match tokio::time::timeout(SYNC_DEADLINE, reconciler.sync(&key)).await {
            Ok(Ok(next)) => {
                queue.forget(&key);
                if let Next::After(delay) = next {
                    queue.add_after(key.clone(), delay);
                }
            }
            Ok(Err(error)) => {
                log_failure(R::NAME, &key, &error);
                queue.add_rate_limited(key.clone());
            }
            Err(_) => {
                tracing::warn!(controller = R::NAME, %key, "took longer than {SYNC_DEADLINE:?}, trying again");
                queue.add_rate_limited(key.clone());
            }
        }
        queue.done(&key);
    }
}

fn log_failure(controller: &str, key: &ObjectKey, error: &Error) {
    let conflict =
        matches!(error, Error::Api { source: kube::Error::Api(status), .. } if status.code == 409);
    let cause = std::error::Error::source(error)
        .map(ToString::to_string)
        .unwrap_or_default();
    if conflict {
        tracing::debug!(controller, %key, %error, cause, "trying again");
    } else {
        tracing::warn!(controller, %key, %error, cause, "trying again");
    }
}

/// The key of a cluster-scoped object.
pub(crate) fn cluster_key(name: &str) -> ObjectKey {
    ObjectKey {
        namespace: String::new(),
        name: name.to_owned(),
    }
}
