//! Tasks under supervision: nothing dies unseen.
//!
//! A task has the name of its component and one of its own, which its log lines carry. When it panics or ends before it is
//! told to, that is logged and counted (`davit_task_panics_total`, `davit_task_restarts_total`), and then:
//!
//! - a loop that can be made anew is started again after a back-off ([`Task::keep`], [`Task::retry`]);
//! - one that cannot ends its component with an error ([`Task::vital`], [`Tasks::failed`]);
//! - what does one piece of work is only counted ([`Task::once`]).
//!
//! [`guard`] and [`guard_async`] do the same for a piece of work inside a loop that goes on with the next piece, and
//! [`ProcessGroup`] for programs of others: they end with what they have called when nobody waits for them. What fails again
//! and again is told from what is new by [`RepeatedFailure`].
//!
//! What a task does is boxed where it is handed over, so that supervision and tokio's own part of a task are compiled once.
#![forbid(unsafe_code)]

pub mod clock;
mod metrics;
mod process_group;
mod repeats;

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

pub use metrics::{panics, register_metrics, restarts};
pub use process_group::ProcessGroup;
pub use repeats::RepeatedFailure;

/// The pause before a loop is started again; it doubles each time, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A loop that ran this long begins with the first pause again.
const SOUND: Duration = Duration::from_secs(60);
/// How long the tasks of a component may take to end once they were told to.
const END: Duration = Duration::from_secs(5);

/// A task without which its component cannot go on has ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{component}: task {task} {how}")]
pub struct TaskEnded {
    /// The component.
    pub component: &'static str,
    /// The task's name.
    pub task: &'static str,
    /// How it ended.
    pub how: Ending,
}

/// How a task ended that was to go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Ending {
    /// It returned.
    #[error("ended by itself")]
    Returned,
    /// It panicked, with these words.
    #[error("panicked: {0}")]
    Panicked(String),
}

/// What makes a loop, again and again.
type Make<'a> = Box<dyn FnMut() -> BoxFuture<'a, ()> + Send + 'a>;

/// A task's name, its component's, and what tells it to end.
#[derive(Debug, Clone)]
pub struct Task {
    component: &'static str,
    name: &'static str,
    cancel: CancellationToken,
}

impl Task {
    /// The task `name` of `component`, which ends in order once `cancel` is cancelled.
    pub fn new(component: &'static str, name: &'static str, cancel: CancellationToken) -> Self {
        Self {
            component,
            name,
            cancel,
        }
    }

    /// Runs the loop that `make` makes; when it panics or ends before it is told to, one that is made anew.
    pub fn keep<'a, F, W>(self, mut make: F) -> BoxFuture<'a, ()>
    where
        F: FnMut() -> W + Send + 'a,
        W: Future<Output = ()> + Send + 'a,
    {
        let make = Box::new(move || make().boxed());
        Box::pin(self.repeat(make, true))
    }

    /// As [`Task::keep`], for a loop that returns when what it works on is gone: only one that panics is made anew.
    pub fn retry<'a, F, W>(self, mut make: F) -> BoxFuture<'a, ()>
    where
        F: FnMut() -> W + Send + 'a,
        W: Future<Output = ()> + Send + 'a,
    {
        let make = Box::new(move || make().boxed());
        Box::pin(self.repeat(make, false))
    }

    async fn repeat(self, mut make: Make<'_>, for_ever: bool) {
        let mut pause = FIRST_PAUSE;
        loop {
            let began = Instant::now();
            let Some(how) = self.run(make()).await else {
                return;
            };
            if how == Ending::Returned && !for_ever {
                return;
            }
            if began.elapsed() >= SOUND {
                pause = FIRST_PAUSE;
            }
            self.log(&how, "it is started again");
            tokio::select! {
                biased;
                () = self.cancel.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            metrics::count_restart(self.component, self.name);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Runs a loop that cannot be made anew.
    ///
    /// # Errors
    /// When it panics, or ends before it is told to: its component is to end, too.
    pub async fn vital(self, work: impl Future<Output = ()> + Send) -> Result<(), TaskEnded> {
        let Some(how) = self.run(work.boxed()).await else {
            return Ok(());
        };
        self.log(&how, "its component ends");
        Err(TaskEnded {
            component: self.component,
            task: self.name,
            how,
        })
    }

    /// Runs one piece of work, which ends by itself; none if it panicked.
    pub async fn once<T>(self, work: impl Future<Output = T>) -> Option<T> {
        guard_async(self.component, self.name, "", work).await.ok()
    }

    /// How the work ended, if it was not told to end.
    async fn run(&self, work: BoxFuture<'_, ()>) -> Option<Ending> {
        let span = tracing::error_span!("task", component = self.component, task = self.name);
        let ended = AssertUnwindSafe(work).catch_unwind().instrument(span).await;
        match ended {
            Err(panic) => {
                metrics::count_panic(self.component, self.name);
                Some(Ending::Panicked(words(&*panic)))
            }
            Ok(()) if self.cancel.is_cancelled() => None,
            Ok(()) => Some(Ending::Returned),
        }
    }

    fn log(&self, how: &Ending, then: &str) {
        let (component, task) = (self.component, self.name);
        tracing::error!(component, task, "a task {how}: {then}");
    }
}

/// The tasks of one component. They are aborted when this is dropped.
#[derive(Debug)]
pub struct Tasks {
    component: &'static str,
    cancel: CancellationToken,
    set: JoinSet<()>,
    tell: mpsc::Sender<TaskEnded>,
    told: mpsc::Receiver<TaskEnded>,
}

impl Tasks {
    /// No tasks yet; `cancel` tells them to end.
    pub fn new(component: &'static str, cancel: CancellationToken) -> Self {
        // the first one ends the component, whatever follows
        let (tell, told) = mpsc::channel(1);
        Self {
            component,
            cancel,
            set: JoinSet::new(),
            tell,
            told,
        }
    }

    /// Starts a loop that can be made anew, as [`Task::keep`] says.
    pub fn keep<F, W>(&mut self, name: &'static str, make: F)
    where
        F: FnMut() -> W + Send + 'static,
        W: Future<Output = ()> + Send + 'static,
    {
        let task = self.task(name);
        self.set.spawn(task.keep(make));
    }

    /// Starts a loop without which the component cannot go on; [`Tasks::failed`] tells when it is lost.
    pub fn vital(&mut self, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        let (task, tell, work) = (self.task(name), self.tell.clone(), work.boxed());
        self.set.spawn(async move {
            if let Err(ended) = task.vital(work).await {
                // one that is there already says the same
                let _ = tell.try_send(ended);
            }
        });
    }

    /// Starts one piece of work, which ends by itself.
    pub fn once(&mut self, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        let (task, work) = (self.task(name), work.boxed());
        self.set.spawn(async move {
            task.once(work).await;
        });
    }

    /// Where informers and recorders of events put their tasks, which supervise themselves.
    pub fn set(&mut self) -> &mut JoinSet<()> {
        &mut self.set
    }

    /// Waits until a task is lost without which the component cannot go on. Cancel-safe.
    pub async fn failed(&mut self) -> TaskEnded {
        loop {
            tokio::select! {
                Some(ended) = self.told.recv() => return ended,
                // what has ended is let go
                Some(_) = self.set.join_next() => {}
            }
        }
    }

    /// Waits for all tasks, which have been told to end; aborts those that do not.
    pub async fn end(&mut self) {
        let ended =
            tokio::time::timeout(END, async { while self.set.join_next().await.is_some() {} });
        if ended.await.is_err() {
            self.set.abort_all();
        }
    }

    fn task(&self, name: &'static str) -> Task {
        Task::new(self.component, name, self.cancel.clone())
    }
}

/// Does a piece of work on `key`; a panic is logged with the key and counted for `task`, and its words are the error.
///
/// What the work leaves behind half done is the caller's to put right.
///
/// # Errors
/// What the panic said.
pub fn guard<T>(
    component: &'static str,
    task: &'static str,
    key: &str,
    work: impl FnOnce() -> T,
) -> Result<T, String> {
    let done = std::panic::catch_unwind(AssertUnwindSafe(work));
    done.map_err(|panic| note(component, task, key, &*panic))
}

/// As [`guard`], for work that waits.
///
/// # Errors
/// What the panic said.
pub async fn guard_async<T>(
    component: &'static str,
    task: &'static str,
    key: &str,
    work: impl Future<Output = T>,
) -> Result<T, String> {
    let done = AssertUnwindSafe(work).catch_unwind().await;
    done.map_err(|panic| note(component, task, key, &*panic))
}

fn note(
    component: &'static str,
    task: &'static str,
    key: &str,
    panic: &(dyn Any + Send),
) -> String {
    metrics::count_panic(component, task);
    let words = words(panic);
    tracing::error!(component, task, key, "panicked: {words}");
    words
}

/// What a panic said.
fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
