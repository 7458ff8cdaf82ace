//! Following a resource's watch cache into an index of one's own.
//!
//! Authorization, for one, decides by objects (roles, bindings, pods) and must not read the store for
//! each request. A [`Mirror`] applies every change of a resource to an index, and a reader that must
//! see its own server's writes waits, for a bounded time, until the mirror has caught up with
//! them ([`Mirror::fresh`]).

use std::sync::Arc;
use std::time::Duration;

use davit_task::guard_async;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::{
    Cache, EventType, FRESHNESS_TIMEOUT, Filter, Freshness, WatchItem, WatchOptions, WatchStart,
};

/// How long a reader waits for the mirror to catch up with a write of this server.
const CATCH_UP: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_millis(100);

/// The objects of a resource with what this server writes of them.
pub trait Followed: std::fmt::Debug + Send + Sync {
    /// The objects in memory.
    fn cache(&self) -> &Cache;
    /// The revision of the last write through this server; 0 before the first.
    fn last_written(&self) -> u64;
    /// Under which prefix of the store they are, for logs.
    fn prefix(&self) -> &str;
}

/// What is made of the changes.
pub trait Index: Send + Sync + 'static {
    /// These are all objects there are.
    fn replace(&self, objects: &[Value]);
    /// An object is new or has changed.
    fn put(&self, object: &Value);
    /// An object is gone.
    fn remove(&self, namespace: &str, name: &str);
}

/// A task that follows one resource. Ends when dropped.
pub struct Mirror {
    storage: Arc<dyn Followed>,
    seen: watch::Receiver<u64>,
    task: JoinHandle<()>,
}

impl std::fmt::Debug for Mirror {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mirror({:?})", self.storage)
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Mirror {
    /// Starts following `storage` into `index`.
    pub fn spawn(storage: Arc<dyn Followed>, index: Arc<dyn Index>) -> Self {
        let (tell, seen) = watch::channel(0);
        let task = tokio::spawn(follow(Arc::clone(&storage), index, tell));
        Self {
            storage,
            seen,
            task,
        }
    }

    /// Waits until the mirror has all objects there were at the start and all that this server
    /// wrote since. Answers whether it got there in time; usually it does not wait at all.
    pub async fn fresh(&self) -> bool {
        let wanted = self.storage.last_written().max(1);
        if *self.seen.borrow() >= wanted {
            return true;
        }
        let mut seen = self.seen.clone();
        let reached = seen.wait_for(|seen| *seen >= wanted);
        tokio::time::timeout(CATCH_UP, reached)
            .await
            .is_ok_and(|reached| reached.is_ok())
    }
}

async fn follow(storage: Arc<dyn Followed>, index: Arc<dyn Index>, seen: watch::Sender<u64>) {
    loop {
        // a panic has been logged, and is tried again as any other end of a watch
        let passing = pass(&*storage, &*index, &seen);
        let _ = guard_async("apiserver", "mirror", storage.prefix(), passing).await;
        // what was known stays in force until the objects have been listed again
        tokio::time::sleep(RETRY).await;
    }
}

/// One watch, until it ends.
async fn pass(storage: &dyn Followed, index: &dyn Index, seen: &watch::Sender<u64>) {
    let options = WatchOptions {
        start: WatchStart::Initial(Freshness::Any),
        filter: Filter::default(),
        bookmarks: true,
        deadline: None,
    };
    let deadline = Instant::now() + FRESHNESS_TIMEOUT;
    let mut changes = match storage.cache().watch(options, deadline).await {
        Ok(changes) => changes,
        Err(error) => {
            tracing::warn!(?storage, %error, "cannot be followed, trying again");
            return;
        }
    };
    let mut initial = Some(Vec::new());
    while let Some(item) = changes.next().await {
        match item {
            Ok(WatchItem::Event(delivery)) => {
                let object = delivery.object();
                if delivery.kind() == EventType::Deleted {
                    index.remove(&object.header().namespace, &object.header().name);
                } else if let Ok(value) = serde_json::from_slice::<Value>(&object.json()) {
                    match &mut initial {
                        Some(initial) => initial.push(value),
                        None => index.put(&value),
                    }
                }
                if initial.is_none() {
                    seen.send_replace(delivery.revision());
                }
            }
            Ok(WatchItem::Bookmark { revision, .. }) => {
                if let Some(initial) = initial.take() {
                    index.replace(&initial);
                }
                seen.send_replace(revision.max(1));
            }
            Err(error) => {
                tracing::debug!(?storage, %error, "watch ended, listing again");
                return;
            }
        }
    }
}
