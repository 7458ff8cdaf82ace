//! Ctrl-C and SIGTERM.

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};

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
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
