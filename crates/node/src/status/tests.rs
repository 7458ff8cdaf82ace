use super::*;
use crate::plan::RUNNING_EPHEMERAL;
use crate::runtime_state::{ContainerRecord, SandboxRecord, State};
use k8s_openapi::api::core::v1::ResourceRequirements;
use serde_json::json;

struct Ready(Option<ProbeResult>);

impl ReadyView for Ready {
    fn readiness(&self, _: &str) -> Option<ProbeResult> {
        self.0
    }
    fn startup(&self, _: &str) -> Option<ProbeResult> {
        self.0
    }
}

fn at(s: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + s).unwrap()
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "reads best with json! in place"
)]
fn pod(spec: serde_json::Value) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u", "generation": 3}, "spec": spec})).unwrap()
}

fn record(name: &str, state: State, exit_code: i32, restarts: u32) -> ContainerRecord {
    ContainerRecord {
        id: format!("{name}-{restarts}"),
        name: name.into(),
        state,
        created: at(restarts.into()),
        started: Some(at(1)),
        finished: (state == State::Exited).then(|| at(2)),
        exit_code,
        reason: String::new(),
        message: String::new(),
        hash: String::new(),
        restart_count: restarts,
        image: "img".into(),
        image_ref: "sha256:1".into(),
        log_path: String::new(),
        mounts: Vec::new(),
        user: None,
        annotations: BTreeMap::new(),
    }
}

fn runtime(containers: Vec<ContainerRecord>) -> PodRuntime {
    let sandbox = SandboxRecord {
        id: "s".into(),
        attempt: 0,
        ready: true,
        created: at(0),
        ips: vec!["10.0.0.5".into()],
        host_network: false,
    };
    PodRuntime {
        sandboxes: vec![sandbox],
        containers,
    }
}

struct Case {
    waiting: BTreeMap<String, Waiting>,
    ready: Ready,
    verdict: Option<NodeDecision>,
    ended: bool,
    ending: bool,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            waiting: BTreeMap::new(),
            ready: Ready(Some(ProbeResult::Success)),
            verdict: None,
            ended: false,
            ending: false,
        }
    }
}

impl Case {
    fn status(&self, pod: &Pod, runtime: &PodRuntime) -> PodStatus {
        generate(&Input {
            pod,
            runtime,
            waiting: &self.waiting,
            ready: &self.ready,
            sizes: &BTreeMap::new(),
            level: None,
            resize: &[],
            devices: &BTreeMap::new(),
            verdict: self.verdict.as_ref(),
            held: None,
            ending: self.ending,
            ended: self.ended,
            recursive_read_only: true,
            runtime_name: "davit",
            host_ips: &["192.168.0.1".into()],
            accepted: at(0),
            now: at(10),
        })
    }
}

fn condition<'a>(status: &'a PodStatus, kind: &str) -> &'a PodCondition {
    status
        .conditions
        .as_ref()
        .unwrap()
        .iter()
        .find(|c| c.type_ == kind)
        .unwrap()
}

#[test]
fn a_new_pod_is_pending_with_container_creating() {
    let p = pod(json!({"containers": [{"name": "a", "image": "img"}]}));
    let s = Case::default().status(&p, &PodRuntime::default());
    assert_eq!(s.phase.as_deref(), Some("Pending"));
    let c = &s.container_statuses.as_ref().unwrap()[0];
    let waiting = c.state.as_ref().unwrap().waiting.as_ref().unwrap();
    assert_eq!(waiting.reason.as_deref(), Some("ContainerCreating"));
    assert_eq!(
        condition(&s, "Ready").message.as_deref(),
        Some("containers with unready status: [a]")
    );
    assert_eq!(condition(&s, "PodReadyToStartContainers").status, "False");
    assert_eq!(condition(&s, "PodScheduled").status, "True");
    assert_eq!(s.observed_generation, Some(3));
}

#[test]
fn running_and_ready() {
    let p = pod(json!({"containers": [{"name": "a", "image": "img"}]}));
    let s = Case::default().status(&p, &runtime(vec![record("a", State::Running, 0, 0)]));
    assert_eq!(s.phase.as_deref(), Some("Running"));
    assert_eq!(s.pod_ip.as_deref(), Some("10.0.0.5"));
    assert_eq!(s.host_ip.as_deref(), Some("192.168.0.1"));
    assert_eq!(condition(&s, "Ready").status, "True");
    let c = &s.container_statuses.as_ref().unwrap()[0];
    assert!(c.ready && c.started == Some(true));
    assert_eq!(c.container_id.as_deref(), Some("davit://a-0"));
}

#[test]
fn unready_until_the_probe_passes() {
    let p =
        pod(json!({"containers": [{"name": "a", "readinessProbe": {"exec": {"command": ["x"]}}}]}));
    let case = Case {
        ready: Ready(Some(ProbeResult::Failure)),
        ..Case::default()
    };
    let s = case.status(&p, &runtime(vec![record("a", State::Running, 0, 0)]));
    assert_eq!(s.phase.as_deref(), Some("Running"));
    assert_eq!(
        condition(&s, "ContainersReady").reason.as_deref(),
        Some("ContainersNotReady")
    );
}

#[test]
fn phases_of_ended_pods() {
    for (policy, code, ended, phase) in [
        ("Never", 0, true, "Succeeded"),
        ("Never", 1, true, "Failed"),
        ("OnFailure", 0, true, "Succeeded"),
        ("OnFailure", 1, false, "Running"),
        ("Always", 0, false, "Running"),
        ("Always", 1, false, "Running"),
    ] {
        let p = pod(json!({"restartPolicy": policy, "containers": [{"name": "a"}]}));
        let case = Case {
            ended,
            ..Case::default()
        };
        let s = case.status(&p, &runtime(vec![record("a", State::Exited, code, 0)]));
        assert_eq!(s.phase.as_deref(), Some(phase), "{policy} {code}");
    }
}

/// KEP-5307: what a container's rules start again has not failed its pod.
#[test]
fn phases_by_the_rules_of_containers() {
    let rule =
        |action: &str| json!([{"action": action, "exitCodes": {"operator": "In", "values": [42]}}]);
    let one = |rules| json!({"name": "a", "restartPolicy": "Never", "restartPolicyRules": rules});
    for (container, code, phase) in [
        (one(rule("Restart")), 42, "Running"),
        (one(rule("RestartAllContainers")), 42, "Running"),
        (one(rule("Restart")), 1, "Failed"),
        (
            json!({"name": "a", "restartPolicy": "OnFailure"}),
            1,
            "Running",
        ),
        (
            json!({"name": "a", "restartPolicy": "OnFailure"}),
            0,
            "Succeeded",
        ),
    ] {
        let mains = pod(json!({"restartPolicy": "Never", "containers": [container]}));
        let ended = runtime(vec![record("a", State::Exited, code, 0)]);
        let s = Case::default().status(&mains, &ended);
        assert_eq!(s.phase.as_deref(), Some(phase), "{container} {code}");
        // An init container that comes back keeps the pod pending.
        let phase = if phase == "Failed" { phase } else { "Pending" };
        let spec = json!({"restartPolicy": "Never", "initContainers": [container], "containers": [{"name": "b"}]});
        let s = Case::default().status(&pod(spec), &ended);
        assert_eq!(s.phase.as_deref(), Some(phase), "init {container} {code}");
    }
}

#[test]
fn crash_loop_shows_waiting_and_the_last_end() {
    let p = pod(json!({"containers": [{"name": "a"}]}));
    let waiting = Waiting {
        reason: "CrashLoopBackOff".into(),
        message: "back-off 10s".into(),
    };
    let case = Case {
        waiting: BTreeMap::from([("a".to_owned(), waiting)]),
        ..Case::default()
    };
    let s = case.status(
        &p,
        &runtime(vec![
            record("a", State::Exited, 1, 4),
            record("a", State::Exited, 2, 3),
        ]),
    );
    let c = &s.container_statuses.as_ref().unwrap()[0];
    assert_eq!(c.restart_count, 4);
    assert_eq!(
        c.state
            .as_ref()
            .unwrap()
            .waiting
            .as_ref()
            .unwrap()
            .reason
            .as_deref(),
        Some("CrashLoopBackOff")
    );
    let last = c.last_state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!((last.exit_code, last.reason.as_deref()), (1, Some("Error")));
    assert_eq!(s.phase.as_deref(), Some("Running"));
}

#[test]
fn init_containers_hold_the_pod() {
    let p = pod(json!({"initContainers": [{"name": "i"}], "containers": [{"name": "a"}]}));
    let s = Case::default().status(&p, &runtime(vec![record("i", State::Running, 0, 0)]));
    assert_eq!(s.phase.as_deref(), Some("Pending"));
    let initialized = condition(&s, "Initialized");
    assert_eq!(
        initialized.message.as_deref(),
        Some("containers with incomplete status: [i]")
    );
    let a = &s.container_statuses.as_ref().unwrap()[0];
    assert_eq!(
        a.state
            .as_ref()
            .unwrap()
            .waiting
            .as_ref()
            .unwrap()
            .reason
            .as_deref(),
        Some("PodInitializing")
    );
    let s = Case::default().status(
        &p,
        &runtime(vec![
            record("a", State::Running, 0, 0),
            record("i", State::Exited, 0, 0),
        ]),
    );
    assert_eq!(s.phase.as_deref(), Some("Running"));
    assert_eq!(condition(&s, "Initialized").status, "True");
    let p = pod(
        json!({"restartPolicy": "Never", "initContainers": [{"name": "i"}], "containers": [{"name": "a"}]}),
    );
    let s = Case::default().status(&p, &runtime(vec![record("i", State::Exited, 1, 0)]));
    assert_eq!(s.phase.as_deref(), Some("Failed"));
}

/// One more than run at a time says for what it waits.
#[test]
fn an_ephemeral_container_without_room_says_so() {
    let names: Vec<String> = (0..=RUNNING_EPHEMERAL)
        .map(|n| format!("dbg-{n}"))
        .collect();
    let spec: Vec<_> = names
        .iter()
        .map(|n| json!({"name": n, "image": "i"}))
        .collect();
    let pod = pod(json!({"containers": [{"name": "a"}], "ephemeralContainers": spec}));
    let waits = |running: usize| {
        let all = names[..running].iter();
        let all = all.map(|name| record(name, State::Running, 0, 0)).collect();
        let status = Case::default().status(&pod, &runtime(all));
        let last = status.ephemeral_container_statuses.unwrap().pop().unwrap();
        last.state.unwrap().waiting.unwrap().message
    };
    assert_eq!(waits(RUNNING_EPHEMERAL - 1), None);
    assert!(waits(RUNNING_EPHEMERAL).unwrap().contains("32 others"));
}

#[test]
fn refused_pods_have_no_containers() {
    let p = pod(json!({"containers": [{"name": "a"}]}));
    let verdict = NodeDecision {
        reason: "OutOfcpu".into(),
        message: "Pod was rejected: x".into(),
        disruption: false,
    };
    let s = Case {
        verdict: Some(verdict),
        ..Case::default()
    }
    .status(&p, &PodRuntime::default());
    assert_eq!(s.phase.as_deref(), Some("Failed"));
    assert_eq!(s.reason.as_deref(), Some("OutOfcpu"));
    assert!(s.container_statuses.is_none());
}

#[test]
fn the_same_input_gives_the_same_status() {
    let mut p = pod(json!({"containers": [{"name": "a"}]}));
    let r = runtime(vec![record("a", State::Running, 0, 0)]);
    let first = Case::default().status(&p, &r);
    p.status = Some(first.clone());
    assert_eq!(Case::default().status(&p, &r), first);
}

#[test]
fn a_lost_container_is_named_unknown() {
    let mut p = pod(json!({"restartPolicy": "Never", "containers": [{"name": "a"}]}));
    p.status = Some(Case::default().status(&p, &runtime(vec![record("a", State::Running, 0, 0)])));
    let case = Case {
        ended: true,
        ..Case::default()
    };
    let s = case.status(&p, &PodRuntime::default());
    let c = &s.container_statuses.as_ref().unwrap()[0];
    let end = c.state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!(end.reason.as_deref(), Some("ContainerStatusUnknown"));
    assert_eq!(s.phase.as_deref(), Some("Failed"));
}

/// As in Kubernetes since in-place resizing: `test/e2e` reads it without looking whether it is there.
#[test]
fn resources_are_told_of_containers_that_ask_for_none() {
    let p = pod(
        json!({"containers": [{"name": "a"}, {"name": "b", "resources": {"requests": {"memory": "1Mi"}}}]}),
    );
    let s = Case::default().status(&p, &runtime(vec![record("a", State::Running, 0, 0)]));
    let of = |name: &str| {
        let all = s.container_statuses.iter().flatten();
        all.filter(|c| c.name == name)
            .map(|c| c.resources.clone())
            .next()
            .unwrap()
    };
    assert_eq!(of("a"), Some(ResourceRequirements::default()));
    assert_eq!(of("b"), None, "there is no container yet");
}

/// KEP-3329 and its test in `test/e2e_node`: what waits for the end of a pod, a Job that counts it for one, is to see it.
#[test]
fn a_pod_that_is_over_before_it_began_has_failed() {
    let case = Case {
        ended: true,
        ending: true,
        ..Case::default()
    };
    let mut p = pod(json!({"containers": [{"name": "a"}]}));
    let waits = Case::default().status(&p, &PodRuntime::default());
    assert_eq!(waits.phase.as_deref(), Some("Pending"));
    p.status = Some(waits);
    let s = case.status(&p, &PodRuntime::default());
    assert_eq!(s.phase.as_deref(), Some("Failed"));
    let c = &s.container_statuses.as_ref().unwrap()[0];
    let end = c.state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!(
        (end.exit_code, end.reason.as_deref()),
        (137, Some("ContainerStatusUnknown"))
    );
    // Where init containers had not ended, the others were not to begin.
    let mut p = pod(json!({"initContainers": [{"name": "i"}], "containers": [{"name": "a"}]}));
    p.status = Some(Case::default().status(&p, &PodRuntime::default()));
    let s = case.status(&p, &PodRuntime::default());
    assert_eq!(s.phase.as_deref(), Some("Failed"));
    let c = &s.container_statuses.as_ref().unwrap()[0];
    assert!(c.state.as_ref().unwrap().waiting.is_some());
    // The kubelet gives static pods no last phase.
    let mut p = pod(json!({"containers": [{"name": "a"}]}));
    let source = [("kubernetes.io/config.source".to_owned(), "file".to_owned())];
    p.metadata.annotations = Some(source.into());
    assert_eq!(
        case.status(&p, &PodRuntime::default()).phase.as_deref(),
        Some("Pending")
    );
}

/// Checklist of spec network.md, item 74.
#[test]
fn addresses_of_pods_are_in_the_order_of_the_node() {
    let texts = |all: &[&str]| -> Vec<String> { all.iter().map(|ip| (*ip).to_owned()).collect() };
    let order = |ips: &[&str], host: &[&str]| in_order_of_node(&texts(ips), &texts(host));
    let (four, six) = ("10.244.0.2", "fd00:10:244::2");
    assert_eq!(order(&[four, six], &["192.0.2.1"]), [four, six]);
    assert_eq!(
        order(&[four, six], &["2001:db8::1", "192.0.2.1"]),
        [six, four]
    );
    assert_eq!(order(&[six, four, "10.244.0.3"], &[]), [six, four]);
    assert_eq!(order(&[six], &["192.0.2.1"]), [six]);
    assert_eq!(order(&[], &["192.0.2.1"]), [""; 0]);
}
