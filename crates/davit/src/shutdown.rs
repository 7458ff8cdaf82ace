//! Ctrl-C and SIGTERM.

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};

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
}

impl Signals {
    pub(crate) fn new() -> Result<Self> {
        let interrupt = signal(SignalKind::interrupt()).context("SIGINT handler")?;
        let terminate = signal(SignalKind::terminate()).context("SIGTERM handler")?;
        Ok(Self {
            interrupt,
            terminate,
        })
    }

    /// Resolves at the next signal. Cancel-safe.
    pub(crate) async fn recv(&mut self) {
        self.receive().await;
    }

    /// Resolves to the next signal. Cancel-safe.
    pub(crate) async fn receive(&mut self) -> Received {
        tokio::select! {
            _ = self.interrupt.recv() => Received::Interrupt,
            _ = self.terminate.recv() => Received::Terminate,
        }
    }
}
