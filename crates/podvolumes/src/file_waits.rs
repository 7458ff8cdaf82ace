//! Work on file systems that others serve (FUSE, NFS, a driver of a CSI volume): the other side may never answer, and a
//! thread that waits for it cannot be ended.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long such work may take, or go on without a step.
const LIMIT: Duration = Duration::from_secs(30);
/// Threads that wait at most, on the whole node: more than a node has pods by default, and a quarter of all there are for
/// such work.
const MOST: usize = 128;

/// Runs such work on threads where it holds nobody up, one thread at a time for each key. The key is free again when the
/// thread has ended, not when its time is up: who tries again adds no thread to one that is stuck.
#[derive(Debug, Clone)]
pub(crate) struct FileWaits {
    limit: Duration,
    waiting: Arc<Mutex<BTreeSet<String>>>,
}

impl Default for FileWaits {
    fn default() -> Self {
        Self {
            limit: LIMIT,
            waiting: Arc::default(),
        }
    }
}

/// A key that is taken.
struct TakenKey(Arc<Mutex<BTreeSet<String>>>, String);

impl Drop for TakenKey {
    fn drop(&mut self) {
        self.0.lock().remove(&self.1);
    }
}

impl FileWaits {
    /// Does `work`.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] when it takes too long or earlier work of the same key still does;
    /// [`io::ErrorKind::ResourceBusy`] when too much waits on the node.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        key: String,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        let taken = self.take(key)?;
        let running = tokio::task::spawn_blocking(move || {
            let _taken = taken;
            work()
        });
        match tokio::time::timeout(self.limit, running).await {
            Ok(ended) => ended.map_err(io::Error::other),
            Err(_) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("the file system did not answer within {:?}", self.limit),
            )),
        }
    }

    /// Does `work` of many steps, which it counts, for as long as it makes some. `told` hears now and then how many there were.
    ///
    /// # Errors
    /// As those of [`Self::run`].
    pub(crate) async fn run_steps<T: Send + 'static>(
        &self,
        key: String,
        work: impl FnOnce(&AtomicU64) -> T + Send + 'static,
        mut told: impl FnMut(u64),
    ) -> io::Result<T> {
        let taken = self.take(key)?;
        let steps = Arc::new(AtomicU64::new(0));
        let counted = steps.clone();
        let mut running = tokio::task::spawn_blocking(move || {
            let _taken = taken;
            work(&counted)
        });
        let mut before = 0;
        loop {
            if let Ok(ended) = tokio::time::timeout(self.limit, &mut running).await {
                return ended.map_err(io::Error::other);
            }
            let now = steps.load(Ordering::Relaxed);
            if now == before {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!(
                        "the file system has not answered for {:?}, after {now} files",
                        self.limit
                    ),
                ));
            }
            before = now;
            told(now);
        }
    }

    fn take(&self, key: String) -> io::Result<TakenKey> {
        let mut waiting = self.waiting.lock();
        let why = if waiting.contains(&key) {
            let why = "the file system has not answered an earlier try yet";
            Some((io::ErrorKind::TimedOut, why))
        } else if waiting.len() >= MOST {
            let why = "too much on this node waits for file systems that do not answer";
            Some((io::ErrorKind::ResourceBusy, why))
        } else {
            None
        };
        if let Some((kind, why)) = why {
            return Err(io::Error::new(kind, why));
        }
        waiting.insert(key.clone());
        Ok(TakenKey(self.waiting.clone(), key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_hangs_takes_one_thread_and_holds_nobody_else_up() {
        let waits = FileWaits {
            limit: Duration::from_millis(20),
            ..FileWaits::default()
        };
        let (answer, hangs) = std::sync::mpsc::channel::<()>();
        let (started, is_started) = std::sync::mpsc::channel::<()>();
        let work = move || {
            let _ = started.send(());
            let _ = hangs.recv();
        };
        let error = waits.run("pod".to_owned(), work).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        for _ in 0..3 {
            let again = waits.run("pod".to_owned(), || panic!("a second thread"));
            assert_eq!(again.await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        }
        let long = FileWaits {
            limit: LIMIT,
            ..waits.clone()
        };
        assert_eq!(long.run("other".to_owned(), || 7).await.unwrap(), 7);
        // The thread that was started late is done with as soon as it is answered.
        drop(answer);
        is_started.recv().unwrap();
        while waits.waiting.lock().contains("pod") {
            tokio::task::yield_now().await;
        }
        assert_eq!(long.run("pod".to_owned(), || 8).await.unwrap(), 8);
    }

    #[tokio::test]
    async fn what_takes_its_time_goes_on_and_what_has_stopped_does_not() {
        let waits = FileWaits {
            limit: Duration::from_millis(300),
            ..FileWaits::default()
        };
        let (answer, hangs) = std::sync::mpsc::channel::<()>();
        let walk = move |steps: &AtomicU64| {
            steps.fetch_add(1, Ordering::Relaxed);
            while hangs.recv().is_ok() {
                steps.fetch_add(1, Ordering::Relaxed);
            }
        };
        let mut heard = Vec::new();
        // Three times it is answered before it is looked at again.
        let told = |steps| {
            heard.push(steps);
            if heard.len() <= 3 {
                answer.send(()).unwrap();
            }
        };
        let error = waits
            .run_steps("pod".to_owned(), walk, told)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(error.to_string().ends_with("after 4 files"), "{error}");
        assert_eq!(heard, [1, 2, 3, 4]);
        let again = waits.run_steps("pod".to_owned(), |_| panic!("a second thread"), |_| {});
        assert_eq!(again.await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(answer);
        while waits.waiting.lock().contains("pod") {
            tokio::task::yield_now().await;
        }
        let done = waits.run_steps("pod".to_owned(), |_| 7, |_| {});
        assert_eq!(done.await.unwrap(), 7);
    }

    #[test]
    fn there_is_an_end_to_what_waits() {
        let waits = FileWaits::default();
        let held: Vec<TakenKey> = (0..MOST)
            .map(|n| waits.take(n.to_string()).unwrap())
            .collect();
        let refused = waits.take("more".to_owned()).err().unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy);
        drop(held);
        waits.take("more".to_owned()).unwrap();
    }
}
