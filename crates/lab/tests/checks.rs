//! The checks against plugins that are right and plugins that are wrong.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use davit_lab::Say;
use davit_lab::check::{
    self, CheckResult, Ended, KubeletDirectory, Life, MonitorOptions, PluginOptions, Report,
    Subject, Target,
};
use davit_lab::devices::{Inventory, serve};
use davit_sdk::async_trait;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A plugin of the laboratory in this process.
struct Simulated {
    inventory: String,
    /// Ends by itself after this time.
    ends: Option<Duration>,
}

struct Task {
    cancel: CancellationToken,
    task: Option<JoinHandle<()>>,
    ends: Option<tokio::time::Instant>,
}

#[async_trait]
impl Subject for Simulated {
    fn name(&self) -> String {
        "simulated".to_owned()
    }

    async fn start(&self, place: &KubeletDirectory) -> Result<Box<dyn Life>, String> {
        let inventory = Inventory::parse(&self.inventory).unwrap();
        let (dir, cancel) = (place.dir().to_owned(), CancellationToken::new());
        let stop = cancel.clone();
        let say: Say = Arc::new(|_: &str| {});
        let task = tokio::spawn(async move { serve(&inventory, &dir, &say, stop).await.unwrap() });
        let ends = self.ends.map(|after| tokio::time::Instant::now() + after);
        Ok(Box::new(Task {
            cancel,
            task: Some(task),
            ends,
        }))
    }
}

#[async_trait]
impl Life for Task {
    fn ended(&mut self) -> Option<Ended> {
        let over = self
            .ends
            .is_some_and(|at| tokio::time::Instant::now() >= at)
            || self.task.as_ref().is_none_or(JoinHandle::is_finished);
        if over {
            self.cancel.cancel();
        }
        over.then(|| Ended {
            success: true,
            how: "ended".to_owned(),
        })
    }

    async fn terminate(&mut self, limit: Duration) -> Option<Ended> {
        self.cancel.cancel();
        if let Some(task) = self.task.take() {
            tokio::time::timeout(limit, task).await.ok()?.unwrap();
        }
        Some(Ended {
            success: true,
            how: "ended".to_owned(),
        })
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

fn options() -> PluginOptions {
    PluginOptions {
        patience: Duration::from_secs(4),
        steady: Duration::from_millis(500),
        slow_dial: Duration::from_millis(500),
        ..PluginOptions::default()
    }
}

async fn plugin(inventory: &str) -> Report {
    let dir = tempfile::tempdir().unwrap();
    let subject = Simulated {
        inventory: inventory.to_owned(),
        ends: None,
    };
    let target = Target::Program(
        Box::new(subject),
        KubeletDirectory::new(dir.path()).unwrap(),
    );
    check::device_plugin(target, &options()).await.unwrap()
}

fn failed(report: &Report) -> Vec<&str> {
    let failed = report
        .checks
        .iter()
        .filter(|c| c.verdict == CheckResult::Fail);
    failed.map(|c| c.id.as_str()).collect()
}

fn verdict(report: &Report, id: &str) -> CheckResult {
    report
        .check(id)
        .unwrap_or_else(|| panic!("no check {id}"))
        .verdict
}

#[tokio::test(flavor = "multi_thread")]
async fn a_good_plugin_passes_by_both_routes() {
    for route in ["register", "registry"] {
        let report = plugin(&format!(
            "resources: [{{name: a.example/foo, count: 3, numaNodes: [0], route: {route}, preferred: last, preStart: true}}]"
        ))
        .await;
        assert!(report.passed(), "{route}:\n{}", report.table());
        for id in [
            "agent-restart",
            "slow-dial",
            "register-refused",
            "preferred-must-include",
            "pre-start",
            "terminate-socket",
            "list-reopen",
        ] {
            assert_eq!(
                verdict(&report, id),
                CheckResult::Pass,
                "{route} {id}:\n{}",
                report.table()
            );
        }
        assert_eq!(report.resources, ["a.example/foo"]);
        let notify = if route == "registry" {
            CheckResult::Pass
        } else {
            CheckResult::Skip
        };
        assert_eq!(verdict(&report, "registry-notify"), notify);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_plugin_does_wrong_is_found() {
    let cases = [
        ("faults: {list: oddHealth}", "list-health"),
        ("faults: {list: duplicates}", "list-ids"),
        ("faults: {list: wrongNuma}", "list-numa"),
        ("faults: {allocate: fail}", "allocate"),
        ("faults: {allocate: hang}", "allocate"),
        ("faults: {allocate: empty}", "allocate"),
        ("faults: {allocate: lie}", "allocate-answer"),
        ("gives: {cdi: [\"{id}\"]}", "allocate-answer"),
        ("preferred: first, faults: {preferred: lie}", "preferred"),
        ("preferred: first, faults: {preferred: empty}", "preferred"),
        ("preStart: true, faults: {preStart: fail}", "pre-start"),
        ("faults: {options: fail}", "options"),
        ("script: [{at: 0, flood: 20s}]", "list-steady"),
    ];
    for (fault, id) in cases {
        let report = plugin(&format!(
            "resources: [{{name: a.example/foo, count: 2, {fault}}}]"
        ))
        .await;
        assert!(
            failed(&report).contains(&id),
            "{fault}: {id} did not fail:\n{}",
            report.table()
        );
        assert!(report.table().contains("expected: "));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_does_nothing_or_ends_is_told_from_one_that_registers() {
    let dir = tempfile::tempdir().unwrap();
    let place = KubeletDirectory::new(dir.path()).unwrap();
    let silent = Simulated {
        inventory: "resources: []".to_owned(),
        ends: None,
    };
    let target = Target::Program(Box::new(silent), place.clone());
    let report = check::device_plugin(target, &options()).await.unwrap();
    assert_eq!(failed(&report), ["register"]);
    let ending = Simulated {
        inventory: "resources: []".to_owned(),
        ends: Some(Duration::from_millis(300)),
    };
    let target = Target::Program(Box::new(ending), place);
    let report = check::device_plugin(target, &options()).await.unwrap();
    assert_eq!(failed(&report), ["start", "register"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_runs_is_checked_by_its_socket() {
    let dir = tempfile::tempdir().unwrap();
    let place = KubeletDirectory::new(dir.path()).unwrap();
    let subject = Simulated {
        inventory: "resources: [{name: a.example/foo, count: 2}]".to_owned(),
        ends: None,
    };
    let _life = subject.start(&place).await.unwrap();
    let socket = place.device_plugins().join("a.example-foo.sock");
    for _ in 0..200 {
        if socket.exists() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let report = check::device_plugin(Target::Socket(socket), &options())
        .await
        .unwrap();
    assert!(report.passed(), "{}", report.table());
    assert_eq!(verdict(&report, "register"), CheckResult::Skip);
    assert_eq!(verdict(&report, "allocate-unknown"), CheckResult::Pass);
    let nobody = Target::Socket(PathBuf::from("/nonexistent/x.sock"));
    let options = PluginOptions {
        patience: Duration::from_millis(200),
        ..options()
    };
    assert_eq!(
        failed(&check::device_plugin(nobody, &options).await.unwrap()),
        ["options"]
    );
}

/// What a monitor does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Habit {
    /// Asks every 100 ms and waits longer after a failure.
    Good,
    /// Asks again at once whatever comes.
    Hammers,
    /// Ends at the first failure.
    Fragile,
    /// Takes messages of 4 MiB only, and ends at others.
    Small,
    /// Asks once.
    Once,
}

struct Monitor(Habit);

#[async_trait]
impl Subject for Monitor {
    fn name(&self) -> String {
        format!("{:?}", self.0)
    }

    async fn start(&self, place: &KubeletDirectory) -> Result<Box<dyn Life>, String> {
        let (habit, socket) = (self.0, place.pod_resources_socket());
        let cancel = CancellationToken::new();
        let stop = cancel.clone();
        let task = tokio::spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = ask(habit, socket) => {}
            }
        });
        Ok(Box::new(Task {
            cancel,
            task: Some(task),
            ends: None,
        }))
    }
}

async fn ask(habit: Habit, socket: PathBuf) {
    use davit_proto::podresources::v1::ListPodResourcesRequest;
    use davit_proto::podresources::v1::pod_resources_lister_client::PodResourcesListerClient;
    let limit = if habit == Habit::Small {
        4 << 20
    } else {
        16 << 20
    };
    let channel = davit_proto::unix::connect_lazy(&socket);
    let mut client = PodResourcesListerClient::new(channel).max_decoding_message_size(limit);
    loop {
        let answer = client.list(ListPodResourcesRequest {}).await;
        let pause = match (habit, answer.is_ok()) {
            (Habit::Hammers, _) => 1,
            (Habit::Fragile | Habit::Small, false) | (Habit::Once, _) => return,
            (_, true) => 150,
            (_, false) => 500,
        };
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
}

async fn monitor(habit: Habit) -> Report {
    let dir = tempfile::tempdir().unwrap();
    let place = KubeletDirectory::new(dir.path()).unwrap();
    let options = MonitorOptions {
        patience: Duration::from_secs(4),
        trouble: Duration::from_secs(1),
    };
    check::podresources_client(&Monitor(habit), &place, &options)
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn monitors_are_told_apart() {
    let report = monitor(Habit::Good).await;
    assert!(report.passed(), "{}", report.table());
    assert_eq!(report.summary.skipped, 0, "{}", report.table());
    let report = monitor(Habit::Hammers).await;
    assert_eq!(
        failed(&report),
        ["rate-limit-calm", "polite"],
        "{}",
        report.table()
    );
    let report = monitor(Habit::Fragile).await;
    assert!(
        failed(&report).contains(&"agent-restart"),
        "{}",
        report.table()
    );
    let report = monitor(Habit::Small).await;
    assert!(failed(&report).contains(&"large"), "{}", report.table());
    assert_eq!(
        verdict(&report, "many-pods"),
        CheckResult::Pass,
        "{}",
        report.table()
    );
    let report = monitor(Habit::Once).await;
    assert!(report.passed(), "{}", report.table());
    assert_eq!(verdict(&report, "agent-restart"), CheckResult::Skip);
}
