//! Ctrl-C and SIGTERM, at whatever moment: while something starts, while it runs, and while it stops.

use crate::owner;
use anyhow::{Context, Result, bail};
use futures::future::BoxFuture;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// How long components may take to stop after a signal.
pub(crate) const STOPPING: Duration = Duration::from_secs(20);

/// The signal that came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// Ctrl-C
    Interrupt,
    /// The machine goes down, or somebody stops the service.
    Terminate,
}

/// Waits for SIGINT or SIGTERM. Made early, so that a signal during start-up is not lost.
pub(crate) struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    /// Resolves when the process that started this one has ended.
    parent: Option<BoxFuture<'static, ()>>,
}

impl Signals {
    pub(crate) fn new() -> Result<Self> {
        let interrupt = signal(SignalKind::interrupt()).context("SIGINT handler")?;
        let terminate = signal(SignalKind::terminate()).context("SIGTERM handler")?;
        Ok(Self {
            interrupt,
            terminate,
            parent: None,
        })
    }

    /// Takes the end of the process that started this one for a signal.
    ///
    /// # Errors
    /// It cannot be watched.
    pub(crate) fn with_parent(mut self) -> Result<Self> {
        self.parent = Some(Box::pin(owner::parent_ended()?));
        Ok(self)
    }

    /// Resolves at the next signal. Cancel-safe.
    pub(crate) async fn recv(&mut self) {
        self.receive().await;
    }

    /// What `start` comes to; none if a signal came first, which gives it up.
    pub(crate) async fn unless_received<T>(
        &mut self,
        start: impl Future<Output = Result<T>>,
    ) -> Result<Option<T>> {
        tokio::select! {
            () = self.recv() => Ok(None),
            started = start => started.map(Some),
        }
    }

    /// What `stop` comes to, if that takes no longer than `limit` and no second signal comes: whoever sends one does not
    /// want to wait.
    pub(crate) async fn stop_within(
        &mut self,
        limit: Duration,
        stop: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        tokio::select! {
            stopped = stop => stopped,
            () = self.recv() => bail!("not everything was stopped: a second signal came"),
            () = tokio::time::sleep(limit) => {
                bail!("not everything stopped within {} s", limit.as_secs())
            }
        }
    }

    /// Resolves to the next signal. Cancel-safe.
    pub(crate) async fn receive(&mut self) -> Received {
        let parent = async {
            match &mut self.parent {
                Some(ended) => {
                    ended.await;
                    // Once is enough: a second signal means impatience.
                    self.parent = None;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => Received::Interrupt,
            _ = self.terminate.recv() => Received::Terminate,
            () = parent => Received::Terminate,
        }
    }
}
