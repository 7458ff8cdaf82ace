//! Playing the script of a simulated plugin or driver: it is started, changed, killed and started again.

use std::time::Duration;

use davit_sdk::deviceplugin::State;
use davit_sdk::{async_trait, watch};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::Say;
use crate::script::Script;
use crate::span::Span;

/// How long one that a call has killed is away.
const AFTER_CRASH: Duration = Duration::from_secs(1);

/// How long one looks for its node agent before it says so.
const FIND_AGENT: Duration = Duration::from_secs(2);

/// How one leaves by a step of its script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leave {
    /// Killed.
    Crash,
    /// In good order.
    Stop,
}

/// A step of a script.
pub(crate) trait Happens: Clone + Send + Sync {
    /// When, after the start of the script.
    fn at(&self) -> Span;

    /// How it leaves, and for how long.
    fn leaves(&self) -> Option<(Leave, Span)>;
}

/// How `crash` and `stop` of a step are read.
pub(crate) fn leaves(crash: Option<Span>, stop: Option<Span>) -> Option<(Leave, Span)> {
    let crash = crash.map(|away| (Leave::Crash, away));
    crash.or(stop.map(|away| (Leave::Stop, away)))
}

/// What is wrong with the steps of a script: each with its time and the names of devices in it.
pub(crate) fn problem<'a, N>(
    steps: impl IntoIterator<Item = (Span, N)>,
    repeat: Option<Span>,
    is_known: impl Fn(&str) -> bool,
) -> Option<String>
where
    N: IntoIterator<Item = &'a String>,
{
    for (at, names) in steps {
        if let Some(unknown) = names.into_iter().find(|name| !is_known(name)) {
            return Some(format!(
                "the script at {at} names the unknown device {unknown:?}"
            ));
        }
        if repeat.is_some_and(|repeat| at >= repeat) {
            return Some(format!("the script at {at} comes after its repetition"));
        }
    }
    None
}

/// One who says who it is when it says something.
#[derive(Clone)]
pub(crate) struct Voice {
    say: Say,
    name: String,
}

impl Voice {
    pub(crate) fn new(say: Say, name: &str) -> Self {
        Self {
            say,
            name: name.to_owned(),
        }
    }

    pub(crate) fn say(&self, what: &str) {
        (self.say)(&format!("{}: {what}", self.name));
    }

    /// Tells of lists of devices that are not empty.
    pub(crate) fn list(&self, lists: &[(&str, &Vec<String>)]) {
        for (what, names) in lists {
            if !names.is_empty() {
                self.say(&format!("{what}: {}", names.join(", ")));
            }
        }
    }
}

/// A simulated plugin or driver.
#[async_trait]
pub(crate) trait Simulation: Send + Sync {
    /// What its script consists of.
    type Step: Happens;
    /// It, while it runs.
    type Running: Send;
    /// Why it does not run.
    type Error: Send;

    fn voice(&self) -> &Voice;

    /// Notified by a call that is to kill it.
    fn crashes(&self) -> &Notify;

    /// Starts it. The second is what the node agent makes of it.
    fn start(&self) -> Result<(Self::Running, watch::Receiver<State>), Self::Error>;

    async fn leave(running: Self::Running, how: Leave);

    /// What a step changes while it runs.
    async fn change(
        &mut self,
        step: &Self::Step,
        cancel: &CancellationToken,
    ) -> Result<(), Self::Error>;
}

/// What ends the wait for the next step.
enum Wake<S> {
    Step(Box<S>),
    Killed,
    Over,
}

/// Plays until `cancel`.
pub(crate) async fn play<S: Simulation>(
    mut simulation: S,
    steps: Vec<S::Step>,
    repeat: Option<Span>,
    cancel: CancellationToken,
) -> Result<(), S::Error> {
    let mut script = Script::new(steps, repeat, S::Step::at);
    let (mut running, mut _reporter) = started(&simulation)?;
    loop {
        let wake = tokio::select! {
            () = cancel.cancelled() => Wake::Over,
            () = simulation.crashes().notified() => Wake::Killed,
            step = script.next() => Wake::Step(Box::new(step)),
        };
        let (how, away) = match wake {
            Wake::Over => break,
            Wake::Killed => {
                simulation.voice().say("dies in the middle of a call");
                (Leave::Crash, AFTER_CRASH)
            }
            Wake::Step(step) => {
                simulation.change(&step, &cancel).await?;
                let Some((how, away)) = step.leaves() else {
                    continue;
                };
                let word = match how {
                    Leave::Crash => "is killed",
                    Leave::Stop => "stops",
                };
                simulation.voice().say(&format!("{word}, back in {away}"));
                (how, away.0)
            }
        };
        S::leave(running, how).await;
        tokio::select! {
            () = cancel.cancelled() => return Ok(()),
            () = sleep(away) => {}
        }
        (running, _reporter) = started(&simulation)?;
    }
    S::leave(running, Leave::Stop).await;
    Ok(())
}

/// Starts it, with a task that tells what the node agent makes of it.
fn started<S: Simulation>(simulation: &S) -> Result<(S::Running, JoinSet<()>), S::Error> {
    let (running, mut states) = simulation.start()?;
    let voice = simulation.voice().clone();
    let mut reporter = JoinSet::new();
    reporter.spawn(async move {
        // One that finds its agent at once has nothing to tell of waiting.
        let mut change = timeout(FIND_AGENT, states.changed()).await;
        if change.is_err() {
            voice.say("waiting for the node agent");
            change = Ok(states.changed().await);
        }
        while let Ok(Ok(())) = change {
            match &*states.borrow_and_update() {
                State::Waiting => voice.say("waiting for the node agent"),
                State::Registered => voice.say("registered"),
                State::Refused(why) => voice.say(&format!("not registered: {why}")),
            }
            change = Ok(states.changed().await);
        }
    });
    Ok((running, reporter))
}
