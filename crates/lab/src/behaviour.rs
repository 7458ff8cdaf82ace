//! How simulated plugins and drivers behave in calls: how long they take and what goes wrong.

use std::collections::BTreeMap;
use std::time::Duration;

use davit_sdk::deviceplugin::Refusal;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::devices::{CallFault, Manner};

/// Latencies `L` and faults `F` that a script may change while calls come.
#[derive(Debug)]
pub(crate) struct Behaviour<L, F> {
    /// Who it is, for the texts of errors.
    name: String,
    state: Mutex<State<L, F>>,
    /// A call that is to kill the process has come.
    pub(crate) crash: Notify,
}

#[derive(Debug)]
struct State<L, F> {
    latency: L,
    faults: F,
    /// How many calls a fault has concerned, by call.
    hits: BTreeMap<&'static str, u32>,
}

/// What a call is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    Go,
    Empty,
    Lie,
}

impl<L, F> Behaviour<L, F> {
    pub(crate) fn new(name: &str, latency: L, faults: F) -> Self {
        Self {
            name: name.to_owned(),
            state: Mutex::new(State {
                latency,
                faults,
                hits: BTreeMap::new(),
            }),
            crash: Notify::new(),
        }
    }

    /// Other faults from now on; what was counted of the old ones is forgotten.
    pub(crate) fn set_faults(&self, faults: F) {
        let mut state = self.state.lock();
        state.faults = faults;
        state.hits.clear();
    }

    pub(crate) fn set_latency(&self, latency: L) {
        self.state.lock().latency = latency;
    }

    /// Reads the faults.
    pub(crate) fn faults<T>(&self, read: impl Fn(&F) -> T) -> T {
        read(&self.state.lock().faults)
    }

    /// Takes the time that the call takes and says how it goes on; a refusal is its answer. A call that hangs or kills
    /// never comes back.
    pub(crate) async fn turn(
        &self,
        call: &'static str,
        time: impl Fn(&L) -> Duration,
        fault: impl Fn(&F) -> CallFault,
    ) -> Result<Turn, Refusal> {
        let (time, manner, text) = {
            let mut state = self.state.lock();
            let time = time(&state.latency);
            let (manner, times, text) = fault(&state.faults).parts();
            let hits = state.hits.entry(call).or_default();
            if manner == Manner::None || times.is_some_and(|times| *hits >= times) {
                (time, Manner::None, None)
            } else {
                *hits += 1;
                (time, manner, text)
            }
        };
        tokio::time::sleep(time).await;
        match manner {
            Manner::None => Ok(Turn::Go),
            Manner::Empty => Ok(Turn::Empty),
            Manner::Lie => Ok(Turn::Lie),
            Manner::Fail => {
                Err(Refusal::new(text.unwrap_or_else(|| {
                    format!("simulated fault of {} in {call}", self.name)
                })))
            }
            Manner::Crash => {
                self.crash.notify_one();
                std::future::pending().await
            }
            Manner::Hang => std::future::pending().await,
        }
    }
}

/// A name as part of an environment variable's: `gpu.vendor` is `GPU_VENDOR`.
pub(crate) fn variable(name: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_uppercase()
        } else {
            '_'
        }
    };
    name.chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::Fault;

    #[tokio::test(start_paused = true)]
    async fn calls_take_their_time_and_faults_their_turns() {
        let fault = CallFault::In(Fault {
            manner: Manner::Fail,
            times: Some(1),
            text: None,
        });
        let behaviour = Behaviour::new("x", Duration::from_secs(3), fault);
        let call = || behaviour.turn("Do", |time| *time, CallFault::clone);
        let begun = tokio::time::Instant::now();
        let refused = call().await.unwrap_err();
        assert_eq!(refused.0, "simulated fault of x in Do");
        assert_eq!(begun.elapsed(), Duration::from_secs(3));
        assert_eq!(call().await.unwrap(), Turn::Go);
        behaviour.set_faults(CallFault::Always(Manner::Crash));
        behaviour.set_latency(Duration::ZERO);
        tokio::select! {
            _ = call() => panic!("a call that kills has no answer"),
            () = behaviour.crash.notified() => {}
        }
        assert_eq!(variable("gpu-0.vendor"), "GPU_0_VENDOR");
    }
}
