//! The loop that all controllers share: keys from informers, a queue, workers with back-off.

use crate::informers::Informers;
use crate::selection::{ControllerSelection, controller_named};
use async_trait::async_trait;
use davit_client::served_kinds::DiscoverError;
use davit_client::slow_kinds::SlowKindError;
use davit_client::{Change, EventRecorder, IndexValue, Informer, ObjectKey, WorkQueue, message_of};
use davit_task::{Tasks, guard, guard_async};
use kube::runtime::watcher;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The component in names of tasks, and in the count of those that panicked.
pub const COMPONENT: &str = "controllers";
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
    /// It was not done in time.
    #[error("took longer than {0:?}")]
    TimedOut(Duration),
    /// The controller has a defect that this key shows.
    #[error("panicked: {0}")]
    Panicked(String),
}

impl From<DiscoverError> for Error {
    fn from(DiscoverError { what, source }: DiscoverError) -> Self {
        Self::Api { what, source }
    }
}

impl From<SlowKindError> for Error {
    fn from(error: SlowKindError) -> Self {
        match error {
            SlowKindError::TimedOut(patience) => Self::TimedOut(patience),
            SlowKindError::Paused(_) => Self::Invalid(error.to_string()),
        }
    }
}

impl Error {
    /// Something could not be made because its namespace is being deleted.
    fn is_of_ending_namespace(&self) -> bool {
        let Self::Api {
            source: kube::Error::Api(status),
            ..
        } = self
        else {
            return false;
        };
        let details = status.details.as_ref();
        details.is_some_and(|d| d.causes.iter().any(|c| c.reason == "NamespaceTerminating"))
    }
}

/// Adds what was attempted to an API error.
pub trait Context<T> {
    /// The error with `what` was attempted, with the object's name.
    ///
    /// # Errors
    /// When there was an error before.
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
pub fn cause_of(error: &Error) -> String {
    match error {
        Error::Api { source, .. } => message_of(source),
        error => error.to_string(),
    }
}

/// Turns "not found" into `None`: the object has gone meanwhile, which is what was wanted or changes nothing.
///
/// # Errors
/// All others.
pub fn gone_is_none<T>(result: Result<T, kube::Error>) -> Result<Option<T>, kube::Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

/// Turns "already exists" into `None`.
///
/// # Errors
/// All others.
pub fn exists_is_none<T>(result: Result<T, kube::Error>) -> Result<Option<T>, kube::Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(None),
        Err(error) => Err(error),
    }
}

/// What to do after a key was handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Wait for a change.
    Wait,
    /// Look again after this long, or at a change.
    After(Duration),
}

/// One controller: handles one key at a time.
#[async_trait]
pub trait Reconcile: Send + Sync + 'static {
    /// Name in logs.
    const NAME: &'static str;
    /// Keys handled at the same time, unless somebody says otherwise.
    const WORKERS: usize = 2;
    /// Brings the object of the key into its desired state; called again until it succeeds.
    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error>;
}

/// Makes clients whose requests are those of a service account in `kube-system`, by its name.
pub type AccountClients = Arc<dyn Fn(&str) -> kube::Client + Send + Sync>;

/// Starts controllers.
pub struct Spawner<'a> {
    /// Reaches the API server as the controller that is being started.
    pub client: kube::Client,
    /// Reaches it as all controllers together, for lists and watches.
    pub shared: kube::Client,
    /// Where each controller has a service account of its own.
    pub accounts: Option<AccountClients>,
    /// Which of them run.
    pub selection: ControllerSelection,
    /// How many keys each works on at a time, by name as in the selection, where that is not its usual number.
    pub concurrency: Arc<BTreeMap<&'static str, usize>>,
    /// The same of the controller that is being started.
    pub workers: Option<usize>,
    /// What all controllers follow.
    pub informers: Informers,
    /// Where their tasks are kept.
    pub tasks: &'a mut Tasks,
    /// Ends them.
    pub cancel: CancellationToken,
}

impl Spawner<'_> {
    /// Starts the controller of this name (as `--controllers` has it), whose requests are those of its service account where
    /// controllers have accounts of their own; none where it is not to run.
    pub fn start(&mut self, name: &str) -> Option<Spawner<'_>> {
        if !self.selection.has(name) {
            return None;
        }
        let known = controller_named(name);
        debug_assert!(known.is_some(), "{name} cannot be chosen");
        let account = known.and_then(|known| known.account);
        let own = account.zip(self.accounts.as_ref());
        let client = own.map(|(account, client)| client(account));
        Some(Spawner {
            client: client.unwrap_or_else(|| self.client.clone()),
            shared: self.shared.clone(),
            accounts: self.accounts.clone(),
            selection: self.selection.clone(),
            concurrency: self.concurrency.clone(),
            workers: known.and_then(|known| self.concurrency.get(known.name).copied()),
            informers: self.informers.clone(),
            tasks: self.tasks,
            cancel: self.cancel.clone(),
        })
    }

    /// Starts the workers of a controller and returns its queue, to be fed.
    pub fn controller<R: Reconcile>(&mut self, reconciler: R) -> WorkQueue<ObjectKey> {
        let queue = WorkQueue::named(R::NAME, BACKOFF.0, BACKOFF.1);
        let reconciler = Arc::new(reconciler);
        for _ in 0..self.workers.unwrap_or(R::WORKERS) {
            let (reconciler, queue) = (reconciler.clone(), queue.clone());
            self.workers(R::NAME, move || work(reconciler.clone(), queue.clone()));
        }
        queue
    }

    /// Starts a worker, which is made anew when it is lost.
    pub fn workers<W>(&mut self, name: &'static str, make: impl Fn() -> W + Send + 'static)
    where
        W: Future<Output = ()> + Send + 'static,
    {
        let cancel = self.cancel.clone();
        self.tasks.keep(name, move || {
            let (worker, cancel) = (make(), cancel.clone());
            async move {
                // A key abandoned half-way is handled again at the next start: reconcilers are idempotent.
                tokio::select! { biased; () = cancel.cancelled() => {} () = worker => {} }
            }
        });
    }

    /// An informer for all objects of a kind.
    pub fn informer<K: davit_client::Object>(&mut self) -> Informer<K> {
        let api = kube::Api::all(self.shared.clone());
        let cancel = self.cancel.clone();
        Informer::spawn(api, watcher::Config::default(), self.tasks.set(), cancel)
    }

    /// An informer for all objects of a kind, which can be looked up by a value that they have.
    pub fn informer_indexed<K: davit_client::Object>(
        &mut self,
        value: IndexValue<K>,
    ) -> Informer<K> {
        let api = kube::Api::all(self.shared.clone());
        let (all, cancel) = (watcher::Config::default(), self.cancel.clone());
        Informer::spawn_indexed(api, all, value, self.tasks.set(), cancel)
    }

    /// Feeds a queue with the keys that a change of an informer's object concerns.
    pub fn feed<K, F>(&mut self, informer: &Informer<K>, queue: &WorkQueue<ObjectKey>, keys: F)
    where
        K: davit_client::Object,
        F: Fn(&K) -> Vec<ObjectKey> + Send + 'static,
    {
        self.feed_changes(informer, queue, |_, _| true, keys);
    }

    /// Like [`Spawner::feed`], but passes over updates that `matters` says change nothing.
    pub fn feed_changes<K, M, F>(
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
        self.tasks.vital("feed", async move {
            loop {
                let change = tokio::select! {
                    biased;
                    () = cancel.cancelled() => return,
                    change = changes.next() => change,
                };
                let Some(change) = change else { return };
                // An object that breaks this is passed over, and its successors are not.
                let concerned = guard(COMPONENT, "feed", &named(&change), || {
                    concerned(&change, &matters, &keys)
                });
                for key in concerned.into_iter().flatten() {
                    queue.add(key);
                }
            }
        });
    }

    /// A recorder of events whose source is `component`.
    pub fn events(&mut self, component: &str) -> EventRecorder {
        EventRecorder::spawn(
            self.client.clone(),
            component,
            "",
            self.tasks.set(),
            self.cancel.clone(),
        )
    }

    /// Runs a task until the controllers end; they end with it.
    pub fn task(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let cancel = self.cancel.clone();
        self.tasks.vital(name, async move {
            tokio::select! { biased; () = cancel.cancelled() => {} () = task => {} }
        });
    }
}

/// The keys that a change concerns.
fn concerned<K>(
    change: &Change<K>,
    matters: impl Fn(&K, &K) -> bool,
    keys: impl Fn(&K) -> Vec<ObjectKey>,
) -> Vec<ObjectKey> {
    let mut concerned = Vec::new();
    match change {
        Change::Synced => {}
        Change::Deleted(last) => concerned.extend(keys(last)),
        Change::Applied {
            old: Some(old),
            new,
        } if !matters(old, new) => {}
        Change::Applied { old, new } => {
            // What no longer belongs to an owner concerns that owner too.
            concerned.extend(old.iter().flat_map(|old| keys(old.as_ref())));
            concerned.extend(keys(new));
        }
    }
    concerned
}

/// The object of a change, for logs.
fn named<K: davit_client::Object>(change: &Change<K>) -> String {
    match change {
        Change::Synced => String::new(),
        Change::Deleted(object) | Change::Applied { new: object, .. } => {
            ObjectKey::of(&**object).to_string()
        }
    }
}

async fn work<R: Reconcile>(reconciler: Arc<R>, queue: WorkQueue<ObjectKey>) {
    while let Some(key) = queue.get().await {
        match attempt(SYNC_DEADLINE, R::NAME, &key, reconciler.sync(&key)).await {
            Ok(next) => {
                queue.forget(&key);
                if let Next::After(delay) = next {
                    queue.add_after(key.clone(), delay);
                }
            }
            Err(error) if error.is_of_ending_namespace() => {
                // nothing can be made there any more, and that its objects go is news by itself
                tracing::debug!(controller = R::NAME, %key, %error, "the namespace is ending");
                queue.forget(&key);
            }
            Err(error) => {
                log_failure(R::NAME, &key, &error);
                queue.add_rate_limited(key.clone());
            }
        }
        queue.done(&key);
    }
}

/// One attempt at a key, which ends within `limit`. A panic is a failure of that key alone, logged with it and counted for
/// `task`: its worker goes on with others and comes back to it after the back-off.
///
/// # Errors
/// Those of the work, and when it took too long or panicked.
pub async fn attempt<T>(
    limit: Duration,
    task: &'static str,
    key: &(impl Display + Sync),
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    // Safe to go on after: reconcilers are idempotent and read the state of the cluster at every attempt.
    let key = key.to_string();
    let work = guard_async(COMPONENT, task, &key, work);
    match tokio::time::timeout(limit, work).await {
        Ok(Ok(result)) => result,
        Ok(Err(words)) => Err(Error::Panicked(words)),
        Err(_) => Err(Error::TimedOut(limit)),
    }
}

fn log_failure(controller: &str, key: &ObjectKey, error: &Error) {
    let conflict =
        matches!(error, Error::Api { source: kube::Error::Api(status), .. } if status.code == 409);
    let cause = match error {
        Error::Api { source, .. } => message_of(source),
        _ => String::new(),
    };
    if conflict || matches!(error, Error::Panicked(_)) {
        // a panic has been logged when it was seen
        tracing::debug!(controller, %key, %error, cause, "trying again");
    } else {
        tracing::warn!(controller, %key, %error, cause, "trying again");
    }
}

/// The key of a cluster-scoped object.
pub fn cluster_key(name: &str) -> ObjectKey {
    ObjectKey {
        namespace: String::new(),
        name: name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Panics or hangs at its first two attempts at a key.
    #[derive(Default)]
    struct Defective {
        attempts: AtomicU32,
        done: tokio::sync::Notify,
    }

    #[async_trait]
    impl Reconcile for Arc<Defective> {
        const NAME: &'static str = "defective";
        const WORKERS: usize = 1;

        async fn sync(&self, _: &ObjectKey) -> Result<Next, Error> {
            match self.attempts.fetch_add(1, Ordering::Relaxed) {
                0 => panic!("a defect"),
                1 => std::future::pending().await,
                _ => {
                    self.done.notify_one();
                    Ok(Next::Wait)
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_panics_or_hangs_is_tried_again() {
        let defective = Arc::new(Defective::default());
        let queue = WorkQueue::new(BACKOFF.0, BACKOFF.1);
        let worker = tokio::spawn(work(Arc::new(defective.clone()), queue.clone()));
        queue.add(cluster_key("a"));
        let done = tokio::time::timeout(2 * SYNC_DEADLINE, defective.done.notified());
        done.await.unwrap();
        tokio::task::yield_now().await;
        assert_eq!(queue.num_failures(&cluster_key("a")), 0);
        assert_eq!(davit_task::panics(COMPONENT, "defective"), 1);
        queue.shut_down();
        worker.await.unwrap();
    }

    /// Wants to make something: for key `ends` in a namespace that ends, for others where it may not.
    struct Refused(tokio::sync::mpsc::UnboundedSender<String>);

    #[async_trait]
    impl Reconcile for Refused {
        const NAME: &'static str = "refused";

        async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
            self.0.send(key.name.clone()).unwrap();
            let cause = match key.name.as_str() {
                "ends" => serde_json::json!([{ "reason": "NamespaceTerminating" }]),
                _ => serde_json::json!([]),
            };
            let status = serde_json::json!({
                "status": "Failure", "code": 403, "reason": "Forbidden", "message": "no", "details": { "causes": cause },
            });
            let status = Box::new(serde_json::from_value(status).unwrap());
            Err(kube::Error::Api(status)).context(|| "make it".to_owned())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_made_in_an_ending_namespace_is_left() {
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let queue = WorkQueue::new(BACKOFF.0, BACKOFF.1);
        let worker = tokio::spawn(work(Arc::new(Refused(tell)), queue.clone()));
        queue.add(cluster_key("ends"));
        queue.add(cluster_key("denied"));
        let mut seen = Vec::new();
        for _ in 0..4 {
            seen.push(told.recv().await.unwrap());
        }
        assert_eq!(seen, ["ends", "denied", "denied", "denied"]);
        queue.shut_down();
        worker.await.unwrap();
    }

    #[tokio::test]
    async fn panics_say_their_words() {
        let work = async { panic!("no {} left", "key") };
        let ended: Result<(), Error> = attempt(Duration::from_secs(1), "words", &"a", work).await;
        assert_eq!(ended.unwrap_err().to_string(), "panicked: no key left");
    }
}
