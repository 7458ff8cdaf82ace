//! How far a server is in its life.

use std::sync::atomic::{AtomicU8, Ordering};

use tokio_util::sync::CancellationToken;

/// It starts, serves, takes its leave and ends; never back.
#[derive(Debug)]
pub(crate) struct Lifecycle {
    stage: AtomicU8,
    /// Cancelled at the last stage: watches and loops end.
    ended: CancellationToken,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
enum Stage {
    /// What every cluster has is being made.
    Starting,
    /// Requests are answered.
    Serving,
    /// They still are, and `/readyz` fails, so that load balancers send nobody any more (`--shutdown-delay-duration`).
    Leaving,
    /// Nothing new is taken, and watches end.
    Ended,
}

impl Lifecycle {
    pub(crate) fn new() -> Self {
        Self {
            stage: AtomicU8::new(Stage::Starting as u8),
            ended: CancellationToken::new(),
        }
    }

    /// Everything is there that every cluster has.
    pub(crate) fn serve(&self) {
        self.reach(Stage::Serving);
    }

    /// A shutdown begins.
    pub(crate) fn leave(&self) {
        self.reach(Stage::Leaving);
    }

    pub(crate) fn end(&self) {
        self.reach(Stage::Ended);
        self.ended.cancel();
    }

    fn reach(&self, stage: Stage) {
        self.stage.fetch_max(stage as u8, Ordering::AcqRel);
    }

    fn is_at(&self, stage: Stage) -> bool {
        self.stage.load(Ordering::Acquire) == stage as u8
    }

    pub(crate) fn is_answering(&self) -> bool {
        self.is_at(Stage::Serving) || self.is_at(Stage::Leaving)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.is_at(Stage::Leaving) || self.is_at(Stage::Ended)
    }

    pub(crate) fn ended(&self) -> &CancellationToken {
        &self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_answers_while_it_takes_its_leave_and_not_after() {
        let life = Lifecycle::new();
        assert!(!life.is_answering() && !life.is_stopping());
        life.serve();
        assert!(life.is_answering() && !life.is_stopping());
        life.leave();
        assert!(life.is_answering() && life.is_stopping());
        assert!(!life.ended().is_cancelled());
        life.end();
        assert!(!life.is_answering() && life.is_stopping());
        assert!(life.ended().is_cancelled());
    }

    #[test]
    fn a_server_that_was_ended_while_it_started_does_not_serve() {
        let life = Lifecycle::new();
        life.end();
        life.serve();
        assert!(!life.is_answering());
    }
}
