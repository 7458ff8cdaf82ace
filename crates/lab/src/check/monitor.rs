//! Playing the node agent to a monitor: a client of podresources.

use std::time::Duration;

use davit_proto::podresources::v1 as pb;
use davit_proto::unix;
use tokio::time::{Instant, sleep, timeout};

use super::kubelet::{Calls, Kubelet, Mood, full, many, pod};
use super::report::{Expectation, Recorder, Report};
use super::subject::{Ended, KubeletDirectory, Life, Subject};

const fn check(id: &'static str, expected: &'static str) -> Expectation {
    Expectation { id, expected }
}

/// The checks of monitors.
pub const MONITOR_CHECKS: &[Expectation] = &[
    check(
        "start",
        "the program starts; it stays, or ends well after it has asked",
    ),
    check("calls", "it asks the node agent"),
    check(
        "api-version",
        "it speaks v1 of the interface; v1alpha1 has only devices and terminal pods among them",
    ),
    check("empty", "it gets on with a node without pods"),
    check("plain-pods", "it gets on with pods that hold nothing"),
    check(
        "full",
        "it gets on with every field: devices on two NUMA nodes, CPUs, memory, claims",
    ),
    check("many-pods", "it gets on with 500 pods of 8 devices each"),
    check(
        "large",
        "it gets on with an answer of 6 MiB: the receive limit is 16 MiB, not the usual 4",
    ),
    check(
        "old-agent",
        "it gets on with an agent that knows v1alpha1 only, or says that it cannot",
    ),
    check(
        "rate-limit",
        "when the agent limits the rate of calls it waits, and goes on afterwards",
    ),
    check(
        "rate-limit-calm",
        "meanwhile it makes at most 20 calls a second",
    ),
    check(
        "agent-restart",
        "it finds the agent again after a restart, which replaces the socket",
    ),
    check("polite", "it makes at most 10 calls a second"),
    check("terminate", "it ends within ten seconds of SIGTERM"),
];

/// How monitors are checked; [`MonitorOptions::default`] gives the usual patience.
#[derive(Debug, Clone)]
pub struct MonitorOptions {
    /// How long is waited for a call: longer than the interval in which the monitor asks.
    pub patience: Duration,
    /// How long the agent limits the rate of calls, and how long it is away.
    pub trouble: Duration,
}

impl Default for MonitorOptions {
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(20),
            trouble: Duration::from_secs(3),
        }
    }
}

const TERMINATE: Duration = Duration::from_secs(10);
/// How long a monitor has to fall over what it was told.
const DIGEST: Duration = Duration::from_millis(300);

/// Checks a monitor.
///
/// # Errors
/// The agent's own socket cannot be made; what the monitor does wrong is in the report.
pub async fn podresources_client(
    subject: &dyn Subject,
    place: &KubeletDirectory,
    options: &MonitorOptions,
) -> Result<Report, unix::Error> {
    let mut run = Run {
        options,
        report: Recorder::new(MONITOR_CHECKS),
        kubelet: Kubelet::new(),
        subject,
        place,
        life: None,
        once: false,
    };
    run.kubelet
        .set(Mood::Answers, vec![pod("first", &["d-0".to_owned()])]);
    run.kubelet.start(place)?;
    if run.first().await {
        run.contents().await;
        run.limited().await;
        run.restarted().await?;
        run.end().await;
    }
    run.kubelet.stop().await;
    Ok(run
        .report
        .report("podresources-client", subject.name(), Vec::new()))
}

struct Run<'a> {
    options: &'a MonitorOptions,
    report: Recorder,
    kubelet: Kubelet,
    subject: &'a dyn Subject,
    place: &'a KubeletDirectory,
    /// A monitor that stays.
    life: Option<Box<dyn Life>>,
    /// It asks and ends; it is started anew for each check.
    once: bool,
}

/// How a monitor took what it was told.
enum Taken {
    Well(String),
    Badly(String),
}

impl Run<'_> {
    /// Starts the monitor and finds out of which sort it is.
    async fn first(&mut self) -> bool {
        let mut life = match self.subject.start(self.place).await {
            Ok(life) => life,
            Err(e) => {
                self.report.fail("start", e);
                return false;
            }
        };
        let called = wait(
            &self.kubelet,
            Calls::default(),
            life.as_mut(),
            self.options.patience,
        )
        .await;
        let ended = self.ended_soon(life.as_mut()).await;
        let calls = self.kubelet.calls();
        match (&ended, called) {
            (Some(Ended { success: true, .. }), true) => {
                self.once = true;
                self.report.pass("start", "it asks and ends");
            }
            (Some(ended), _) => self
                .report
                .fail("start", format!("it ended: {}", ended.how)),
            (None, _) => self.report.pass("start", "it stays"),
        }
        if !called {
            let seen = match &ended {
                Some(_) => "it ended without a call".to_owned(),
                None => format!("nothing in {} s", self.options.patience.as_secs()),
            };
            self.report.fail("calls", seen);
            return false;
        }
        self.report.pass("calls", describe(calls));
        let speaks_new = calls.list + calls.get + calls.allocatable > 0;
        self.report.verdict(
            "api-version",
            if speaks_new {
                Ok("v1".to_owned())
            } else {
                Err("v1alpha1 only".to_owned())
            },
        );
        let fine = self.once || ended.is_none();
        self.life = Some(life).filter(|_| !self.once);
        fine
    }

    async fn ended_soon(&self, life: &mut dyn Life) -> Option<Ended> {
        let until = Instant::now() + DIGEST * 4;
        while Instant::now() < until {
            if let Some(ended) = life.ended() {
                return Some(ended);
            }
            sleep(Duration::from_millis(50)).await;
        }
        None
    }

    /// Answers of all sorts.
    async fn contents(&mut self) {
        let plain = |n: usize| pod(&format!("plain-{n}"), &[]);
        let contents: [(&str, Vec<pb::PodResources>); 5] = [
            ("empty", Vec::new()),
            ("plain-pods", (0..3).map(plain).collect()),
            ("full", vec![full()]),
            ("many-pods", many(500, 8, 12)),
            // IDs of 1 KiB make the answer large with few pods.
            ("large", many(100, 60, 1024)),
        ];
        for (id, pods) in contents {
            let seen = match self.ask(Mood::Answers, pods).await {
                Taken::Well(seen) => Ok(seen),
                Taken::Badly(seen) => Err(seen),
            };
            self.report.verdict(id, seen);
            self.revive().await;
        }
        if self.once {
            // How often it asks is up to who starts it.
            self.report.skip("polite", "it asks and ends");
        } else {
            let rate =
                self.kubelet.calls().all() as f64 / self.kubelet.age().as_secs_f64().max(1.0);
            let seen = format!("{rate:.1} calls a second");
            self.report
                .verdict("polite", if rate <= 10.0 { Ok(seen) } else { Err(seen) });
        }

        let before = self.kubelet.calls();
        let taken = self
            .ask(Mood::Old, vec![pod("first", &["d-0".to_owned()])])
            .await;
        let fell_back = self.kubelet.calls().old_list > before.old_list;
        match taken {
            Taken::Well(_) if fell_back => self.report.pass("old-agent", "it asked by v1alpha1"),
            Taken::Well(_) => self.report.pass("old-agent", "it goes on asking by v1"),
            // To end with an error is an answer.
            Taken::Badly(seen) if self.once => self.report.pass("old-agent", seen),
            Taken::Badly(seen) => self.report.fail("old-agent", seen),
        }
        self.revive().await;
    }

    /// Changes what is answered and sees what becomes of the monitor.
    async fn ask(&mut self, mood: Mood, pods: Vec<pb::PodResources>) -> Taken {
        self.kubelet.set(mood, pods);
        let before = self.kubelet.calls();
        if self.once {
            return self.run_once().await;
        }
        let Some(life) = self.life.as_deref_mut() else {
            return Taken::Badly("it does not run any more".to_owned());
        };
        let called = wait(&self.kubelet, before, life, self.options.patience).await;
        sleep(DIGEST).await;
        match life.ended() {
            Some(ended) => Taken::Badly(format!("it ended: {}", ended.how)),
            None if called => Taken::Well("it asked and went on".to_owned()),
            None => Taken::Badly(format!(
                "it did not ask for {} s",
                self.options.patience.as_secs()
            )),
        }
    }

    async fn run_once(&mut self) -> Taken {
        let mut life = match self.subject.start(self.place).await {
            Ok(life) => life,
            Err(e) => return Taken::Badly(e),
        };
        let until = Instant::now() + self.options.patience;
        while Instant::now() < until {
            match life.ended() {
                Some(ended) if ended.success => return Taken::Well(ended.how),
                Some(ended) => return Taken::Badly(format!("it ended: {}", ended.how)),
                None => sleep(Duration::from_millis(50)).await,
            }
        }
        Taken::Badly(format!(
            "it did not end in {} s",
            self.options.patience.as_secs()
        ))
    }

    /// A monitor that has fallen is started again, so that the other checks can be made.
    async fn revive(&mut self) {
        let fallen = self
            .life
            .as_mut()
            .is_some_and(|life| life.ended().is_some());
        if fallen {
            self.life = self.subject.start(self.place).await.ok();
        }
    }

    async fn limited(&mut self) {
        let trouble = self.options.trouble;
        let pods = vec![pod("first", &["d-0".to_owned()])];
        if self.once {
            // It has to be tried again before it gives up, or to say that it gave up.
            let before = self.kubelet.calls().all();
            self.kubelet.set(Mood::Limits, Vec::new());
            let subject = self.subject.start(self.place).await;
            sleep(trouble).await;
            let made = self.kubelet.calls().all() - before;
            self.calm(made, trouble);
            self.kubelet.set(Mood::Answers, pods);
            let Ok(mut life) = subject else { return };
            let ended = match life.ended() {
                None => self.ended_in_time(life.as_mut()).await,
                ended => ended,
            };
            let seen = match ended {
                Some(ended) if ended.success => Ok(format!("{made} calls, then {}", ended.how)),
                Some(ended) => Ok(format!("it gave up and said so: {}", ended.how)),
                None => Err("it neither went on nor ended".to_owned()),
            };
            self.report.verdict("rate-limit", seen);
            return;
        }
        self.kubelet.set(Mood::Limits, Vec::new());
        let before = self.kubelet.calls();
        let Some(life) = self.life.as_deref_mut() else {
            return;
        };
        // So that its trouble begins within the time that is looked at.
        let called = wait(&self.kubelet, before, life, self.options.patience).await;
        let begun = self.kubelet.calls().all();
        sleep(trouble).await;
        let made = self.kubelet.calls().all() - begun;
        self.calm(made, trouble);
        let seen = match self.ask(Mood::Answers, pods).await {
            Taken::Well(_) if called => Ok("it went on".to_owned()),
            Taken::Well(_) => Err("it did not ask while the rate was limited".to_owned()),
            Taken::Badly(seen) => Err(seen),
        };
        self.report.verdict("rate-limit", seen);
        self.revive().await;
    }

    async fn ended_in_time(&self, life: &mut dyn Life) -> Option<Ended> {
        let until = Instant::now() + self.options.patience;
        while Instant::now() < until {
            if let Some(ended) = life.ended() {
                return Some(ended);
            }
            sleep(Duration::from_millis(50)).await;
        }
        None
    }

    fn calm(&mut self, calls: usize, time: Duration) {
        let rate = calls as f64 / time.as_secs_f64().max(0.1);
        let seen = format!("{rate:.1} calls a second");
        self.report.verdict(
            "rate-limit-calm",
            if rate <= 20.0 { Ok(seen) } else { Err(seen) },
        );
    }

    async fn restarted(&mut self) -> Result<(), unix::Error> {
        self.kubelet.stop().await;
        let absent = Instant::now();
        if self.once {
            self.report.skip("agent-restart", "it asks and ends");
            return self.kubelet.start(self.place);
        }
        sleep(self.options.trouble).await;
        let fallen = self.life.as_mut().and_then(|life| life.ended());
        self.kubelet.start(self.place)?;
        if let Some(ended) = fallen {
            self.report.fail(
                "agent-restart",
                format!("while the agent was away it ended: {}", ended.how),
            );
            self.revive().await;
            return Ok(());
        }
        let pods = vec![pod("first", &["d-0".to_owned()])];
        let seen = match self.ask(Mood::Answers, pods).await {
            Taken::Well(_) => Ok(format!(
                "it was back {} ms after the agent went",
                absent.elapsed().as_millis()
            )),
            Taken::Badly(seen) => Err(seen),
        };
        self.report.verdict("agent-restart", seen);
        Ok(())
    }

    async fn end(&mut self) {
        let Some(mut life) = self.life.take() else {
            self.report.skip("terminate", "it asks and ends");
            return;
        };
        let seen = match life.terminate(TERMINATE).await {
            Some(ended) => Ok(ended.how),
            None => Err(format!("it runs on after {} s", TERMINATE.as_secs())),
        };
        self.report.verdict("terminate", seen);
    }
}

/// Waits for a call after `before`; false when there is none in time or the program has ended.
async fn wait(kubelet: &Kubelet, before: Calls, life: &mut dyn Life, patience: Duration) -> bool {
    let mut calls = kubelet.watch();
    let until = Instant::now() + patience;
    while Instant::now() < until {
        let short = Duration::from_millis(200);
        let called = calls.wait_for(|now| now.all() > before.all());
        if timeout(short, called)
            .await
            .is_ok_and(|called| called.is_ok())
        {
            return true;
        }
        if life.ended().is_some() {
            return kubelet.calls().all() > before.all();
        }
    }
    false
}

fn describe(calls: Calls) -> String {
    let named = [
        (calls.list, "List"),
        (calls.get, "Get"),
        (calls.allocatable, "GetAllocatableResources"),
        (calls.old_list, "List of v1alpha1"),
    ];
    let made: Vec<&str> = named
        .iter()
        .filter(|(n, _)| *n > 0)
        .map(|(_, name)| *name)
        .collect();
    made.join(", ")
}
