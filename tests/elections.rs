//! Coordinated leader election (KEP-4355): schedulers stand for a Lease, and the API server decides which of them holds it.

use crate::harness::{Cluster, DAVIT, any_kubectl, eventually, output, part, run, tests_dir};
use k8s_openapi::jiff::Timestamp;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const GATE: &str = "CoordinatedLeaderElection=true";
const STEP: Duration = Duration::from_secs(60);

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}

impl Running {
    fn start(command: &mut Command, log: &Path) -> Self {
        let log = std::fs::File::create(log).unwrap();
        let command = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap());
        Self(command.stderr(log).spawn().unwrap())
    }

    fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }
}

struct Election {
    cluster: Cluster,
    kubectl: std::path::PathBuf,
}

impl Election {
    /// A cluster without a scheduler of its own, whose API server decides who leads.
    fn begin() -> Option<Self> {
        let kubectl = any_kubectl()?;
        let flags = ["--no-node", "--no-scheduler", "--feature-gates", GATE];
        let cluster = Cluster::up(&flags);
        Some(Self { cluster, kubectl })
    }

    fn kubectl(&self, args: &[&str]) -> String {
        let mut command = self.cluster.kubectl(&self.kubectl);
        run(command.args(["-n", "kube-system"]).args(args))
    }

    fn kubeconfig(&self) -> String {
        let data = self.cluster.dir.path().join("data");
        data.join("scheduler.kubeconfig").display().to_string()
    }

    fn davit(&self, log: &str) -> Running {
        let mut command = Command::new(DAVIT);
        command.args(["scheduler", "--kubeconfig", &self.kubeconfig()]);
        command.args(["--secure-port", "0", "--feature-gates", GATE]);
        Running::start(&mut command, &self.cluster.dir.path().join(log))
    }

    /// Of the Lease for which the schedulers stand.
    fn lease(&self, field: &str) -> String {
        let path = format!("jsonpath={{.spec.{field}}}");
        let mut command = self.cluster.kubectl(&self.kubectl);
        let lease = ["-n", "kube-system", "get", "lease", "kube-scheduler", "-o"];
        let out = output(command.args(lease).arg(path));
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    fn candidates(&self) -> Vec<String> {
        let path = "jsonpath={range .items[*]}{.metadata.name}{\"\\n\"}{end}";
        let text = self.kubectl(&["get", "leasecandidates", "-o", path]);
        text.lines().map(str::to_owned).collect()
    }

    /// Waits until somebody holds the lease that is none of these, and renews it.
    fn led_by_another_than(&self, others: &[&str]) -> String {
        let mut holder = String::new();
        eventually("another one leads", STEP, || {
            holder = self.lease("holderIdentity");
            // who has just been entered has its time from the API server
            let renews = self.lease("leaseDurationSeconds") == "15";
            !holder.is_empty() && renews && !others.contains(&holder.as_str())
        });
        holder
    }
}

/// As the API has times of Leases.
fn now() -> String {
    Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%S.%6fZ")
        .to_string()
}

#[test]
fn the_api_server_decides_which_scheduler_leads() {
    let Some(election) = Election::begin() else {
        return;
    };
    let decider = "jsonpath={.spec.holderIdentity}";
    let decider = ["get", "lease", "leader-election-controller", "-o", decider];
    assert!(!election.kubectl(&decider).is_empty());
    let mut first = election.davit("first.log");
    let leads = election.led_by_another_than(&[]);
    assert_eq!(election.lease("strategy"), "OldestEmulationVersion");
    assert_eq!(election.candidates(), [leads.as_str()]);
    let second = election.davit("second.log");
    eventually("both stand", STEP, || election.candidates().len() == 2);
    assert_eq!(election.lease("holderIdentity"), leads);

    // One that emulates an older version comes, and answers when it is asked.
    let older = format!(
        "apiVersion: coordination.k8s.io/v1beta1\nkind: LeaseCandidate\nmetadata: {{name: older, namespace: kube-system}}\n\
         spec: {{leaseName: kube-scheduler, binaryVersion: 1.36.0, emulationVersion: 1.35.0, strategy: OldestEmulationVersion, \
         renewTime: \"{}\"}}\n",
        now()
    );
    // Between these two a quarter of a second may pass: each change is written down.
    let changes = election.cluster.dir.path().join("changes");
    let each = "jsonpath={.spec.holderIdentity} {.spec.preferredHolder}{\"\\n\"}";
    let mut watch = election.cluster.kubectl(&election.kubectl);
    watch.args(["-n", "kube-system", "get", "lease", "kube-scheduler"]);
    let _watch = Running::start(watch.args(["--watch", "-o", each]), &changes);
    let written = |line: &str| {
        let text = std::fs::read_to_string(&changes).unwrap();
        text.lines().any(|one| one.trim() == line)
    };
    eventually("the lease is watched", STEP, || written(&leads));
    crate::harness::kubectl_stdin(
        &election.cluster,
        &election.kubectl,
        &["create", "-f", "-"],
        &older,
    );
    eventually("the older one holds the lease", STEP, || {
        let renew = format!("{{\"spec\": {{\"renewTime\": \"{}\"}}}}", now());
        let patch = ["patch", "leasecandidate", "older", "--type", "merge", "-p"];
        election.kubectl(&[&patch[..], &[&renew]].concat());
        election.lease("holderIdentity") == "older"
    });
    eventually("that the holder was told first", STEP, || {
        written(&format!("{leads} older"))
    });
    eventually("who led has ended", STEP, || first.has_ended());
    // It does not renew what it holds, and does not answer any more.
    election.led_by_another_than(&["older", &leads]);
    drop(second);
}

/// The binary, built from tests/peers/kube-apiserver.
fn kube_scheduler() -> Option<std::path::PathBuf> {
    let path = tests_dir().join(".cache/kube-scheduler");
    part("kube-scheduler", path.is_file().then_some(path))
}

#[test]
fn the_real_kube_scheduler_is_a_candidate_among_others() {
    let Some(binary) = kube_scheduler() else {
        return;
    };
    let Some(election) = Election::begin() else {
        return;
    };
    let real = |log: &str, flags: &[&str]| {
        let mut command = Command::new(&binary);
        let kubeconfig = election.kubeconfig();
        for flag in [
            "kubeconfig",
            "authentication-kubeconfig",
            "authorization-kubeconfig",
        ] {
            command.args([format!("--{flag}"), kubeconfig.clone()]);
        }
        command.args(["--secure-port", "0", "--feature-gates", GATE]);
        Running::start(command.args(flags), &election.cluster.dir.path().join(log))
    };
    let mut ours = election.davit("ours.log");
    let leads = election.led_by_another_than(&[]);
    // It is as new: nothing changes.
    let twin = real("twin.log", &[]);
    eventually("both stand", STEP, || election.candidates().len() == 2);
    std::thread::sleep(Duration::from_secs(8));
    assert_eq!(election.lease("holderIdentity"), leads);
    let known = election.candidates();
    drop(twin);
    // One that emulates an older version leads.
    let mut older = real("older.log", &["--emulated-version", "1.35"]);
    let others: Vec<&str> = known.iter().map(String::as_str).collect();
    let elected = election.led_by_another_than(&others);
    eventually("davit's has given way", STEP, || ours.has_ended());
    // And the other way: when it is killed, davit's next one leads.
    let _next = election.davit("next.log");
    eventually("davit's next one stands", STEP, || {
        election.candidates().len() == 4
    });
    older.0.kill().unwrap();
    let others = [&others[..], &[&elected]].concat();
    election.led_by_another_than(&others);
}
