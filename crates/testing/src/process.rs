//! The process of a cluster, which ends with its owner.

use rustix::process::{Pid, Signal, kill_process};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

/// How long a cluster may take to stop: its containers may have to be ended.
const STOP: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(2);

/// A process that is told to stop when this is dropped, and waited for.
#[derive(Debug)]
pub(crate) struct Process(pub(crate) Child);

impl Process {
    /// Tells it to stop. It may have ended by itself.
    fn terminate(&self) {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            let _gone = kill_process(pid, Signal::TERM);
        }
    }

    /// Stops it; how it ended, if it did in time.
    pub(crate) async fn stop(mut self) -> Option<ExitStatus> {
        self.terminate();
        let begun = Instant::now();
        loop {
            match self.0.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if begun.elapsed() < STOP => tokio::time::sleep(LOOK).await,
                _ => return None,
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !matches!(self.0.try_wait(), Ok(None)) {
            return;
        }
        self.terminate();
        let begun = Instant::now();
        while begun.elapsed() < STOP {
            if !matches!(self.0.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(LOOK);
        }
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}
