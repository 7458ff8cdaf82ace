use super::*;
use crate::runtime_state::SandboxRecord;
use davit_pods::backoff::RestartDelays;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet, HashMap};

#[derive(Default)]
struct Probes {
    liveness: HashMap<String, ProbeResult>,
    startup: HashMap<String, ProbeResult>,
}

impl ProbeView for Probes {
    fn liveness(&self, id: &str) -> Option<ProbeResult> {
        self.liveness.get(id).copied()
    }
    fn startup(&self, id: &str) -> Option<ProbeResult> {
        self.startup.get(id).copied()
    }
}

fn at(s: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + s).unwrap()
}

fn pod(restart: &str, inits: &[(&str, bool)], mains: &[&str]) -> Pod {
    let init = |(n, sidecar): &(&str, bool)| {
        let mut c = json!({"name": n, "image": "i"});
        if *sidecar {
            c["restartPolicy"] = json!("Always");
        }
        c
    };
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {
            "restartPolicy": restart,
            "initContainers": inits.iter().map(init).collect::<Vec<_>>(),
            "containers": mains.iter().map(|n| json!({"name": n, "image": "i"})).collect::<Vec<_>>(),
        }
    }))
    .unwrap()
}

fn record(pod: &Pod, name: &str, state: State, exit_code: i32) -> ContainerRecord {
    let (_, container) = pod.container(name).unwrap();
    ContainerRecord {
        id: format!("id-{name}"),
        name: name.to_owned(),
        state,
        created: at(0),
        started: Some(at(1)),
        finished: (state == State::Exited).then(|| at(2)),
        exit_code,
        reason: String::new(),
        message: String::new(),
        hash: container_hash(&container),
        restart_count: 0,
        image: "i".into(),
        image_ref: "i".into(),
        log_path: String::new(),
        mounts: Vec::new(),
        user: None,
        annotations: BTreeMap::new(),
    }
}

fn runtime(pod: &Pod, containers: &[(&str, State, i32)]) -> PodRuntime {
    PodRuntime {
        sandboxes: vec![SandboxRecord {
            id: "sb".into(),
            attempt: 0,
            ready: true,
            created: at(0),
            ips: Vec::new(),
            host_network: false,
        }],
        containers: containers
            .iter()
            .map(|(n, s, e)| record(pod, n, *s, *e))
            .collect(),
    }
}

fn make(pod: &Pod, runtime: &PodRuntime, probes: &Probes) -> Plan {
    let backoff = Backoff::container_restarts(RestartDelays::default());
    plan(&Input {
        pod,
        runtime,
        probes,
        backoff: &backoff,
        replaced: &BTreeSet::new(),
        now: at(100),
    })
}

fn starts(plan: &Plan) -> Vec<&str> {
    plan.start.iter().map(|s| s.name.as_str()).collect()
}

#[test]
fn an_instance_that_somebody_removed_counts_as_a_restart_once() {
    let start = |state: serde_json::Value| {
        let mut p = pod("Always", &[], &["a"]);
        let status = json!({"containerStatuses": [
            {"name": "a", "image": "i", "imageID": "i", "ready": false, "restartCount": 2, "state": state},
        ]});
        p.status = Some(serde_json::from_value(status).unwrap());
        make(&p, &runtime(&p, &[]), &Probes::default()).start[0].restart_count
    };
    assert_eq!(start(json!({"running": {}})), 3);
    assert_eq!(start(json!({"terminated": {"exitCode": 1}})), 3);
    assert_eq!(
        start(json!({"waiting": {"reason": "ContainerCreating"}})),
        2
    );
}

const RUN: (State, i32) = (State::Running, 0);
const OK: (State, i32) = (State::Exited, 0);
const BAD: (State, i32) = (State::Exited, 1);

#[test]
fn nothing_yet_makes_a_sandbox_and_starts_from_the_beginning() {
    let p = pod("Always", &[], &["a", "b"]);
    let made = make(&p, &PodRuntime::default(), &Probes::default());
    assert_eq!(made.sandbox, Sandbox::Create { attempt: 0 });
    assert_eq!(starts(&made), ["a", "b"]);
    let p = pod("Always", &[("i", false), ("j", false)], &["a"]);
    assert_eq!(
        starts(&make(&p, &PodRuntime::default(), &Probes::default())),
        ["i"]
    );
}

type Row = (
    &'static str,
    &'static [(&'static str, bool)],
    &'static [&'static str],
    &'static [(&'static str, (State, i32))],
    bool,
    &'static [&'static str],
);

/// (restart policy, init containers, app containers, runtime state, kill the pod, what starts)
const TABLE: &[Row] = &[
    // App containers.
    (
        "Always",
        &[],
        &["a", "b"],
        &[("a", RUN), ("b", RUN)],
        false,
        &[],
    ),
    ("Always", &[], &["a", "b"], &[("a", RUN)], false, &["b"]),
    (
        "Always",
        &[],
        &["a", "b"],
        &[("a", RUN), ("b", OK)],
        false,
        &["b"],
    ),
    (
        "OnFailure",
        &[],
        &["a", "b"],
        &[("a", RUN), ("b", OK)],
        false,
        &[],
    ),
    (
        "OnFailure",
        &[],
        &["a", "b"],
        &[("a", OK), ("b", BAD)],
        false,
        &["b"],
    ),
    ("OnFailure", &[], &["a"], &[("a", OK)], true, &[]),
    (
        "Never",
        &[],
        &["a", "b"],
        &[("a", BAD), ("b", RUN)],
        false,
        &[],
    ),
    (
        "Never",
        &[],
        &["a", "b"],
        &[("a", BAD), ("b", OK)],
        true,
        &[],
    ),
    (
        "Never",
        &[],
        &["a"],
        &[("a", (State::Created, 0))],
        false,
        &["a"],
    ),
    // Init containers in order.
    (
        "Always",
        &[("i", false), ("j", false)],
        &["a"],
        &[("i", RUN)],
        false,
        &[],
    ),
    (
        "Always",
        &[("i", false), ("j", false)],
        &["a"],
        &[("i", OK)],
        false,
        &["j"],
    ),
    (
        "Always",
        &[("i", false), ("j", false)],
        &["a"],
        &[("i", OK), ("j", OK)],
        false,
        &["a"],
    ),
    (
        "Always",
        &[("i", false), ("j", false)],
        &["a"],
        &[("j", OK)],
        false,
        &["a"],
    ),
    (
        "Always",
        &[("i", false), ("j", false)],
        &["a"],
        &[("i", BAD)],
        false,
        &["i"],
    ),
    (
        "Never",
        &[("i", false), ("j", false)],
        &["a"],
        &[("i", BAD)],
        true,
        &[],
    ),
    (
        "OnFailure",
        &[("i", false)],
        &["a"],
        &[("i", BAD)],
        false,
        &["i"],
    ),
    (
        "Always",
        &[("i", false)],
        &["a"],
        &[("i", BAD), ("a", RUN)],
        false,
        &[],
    ),
    // Sidecars.
    (
        "Always",
        &[("s", true), ("i", false)],
        &["a"],
        &[("s", RUN)],
        false,
        &["i"],
    ),
    (
        "Always",
        &[("s", true), ("i", false)],
        &["a"],
        &[("s", RUN), ("i", OK)],
        false,
        &["a"],
    ),
    (
        "Always",
        &[("s", true), ("i", false)],
        &["a"],
        &[("s", BAD), ("i", RUN)],
        false,
        &["s"],
    ),
    (
        "Never",
        &[("s", true)],
        &["a"],
        &[("s", BAD), ("a", RUN)],
        false,
        &["s"],
    ),
    (
        "Never",
        &[("s", true)],
        &["a"],
        &[("a", RUN)],
        false,
        &["s"],
    ),
    (
        "Never",
        &[("s", true)],
        &["a"],
        &[("s", RUN), ("a", OK)],
        true,
        &[],
    ),
    (
        "Never",
        &[("s", true)],
        &["a"],
        &[("s", RUN)],
        false,
        &["a"],
    ),
];

#[test]
fn table_of_states() {
    for (i, (restart, inits, mains, states, kill, expected)) in TABLE.iter().enumerate() {
        let p = pod(restart, inits, mains);
        let states: Vec<_> = states.iter().map(|(n, (s, e))| (*n, *s, *e)).collect();
        let made = make(&p, &runtime(&p, &states), &Probes::default());
        assert_eq!(made.kill_pod, *kill, "row {i}: {made:?}");
        assert_eq!(starts(&made), *expected, "row {i}");
        assert_eq!(made.sandbox, Sandbox::Keep("sb".into()), "row {i}");
    }
}

#[test]
fn a_dead_sandbox_is_replaced_unless_the_pod_is_over() {
    let p = pod("Always", &[], &["a"]);
    let mut r = runtime(&p, &[("a", State::Running, 0)]);
    r.sandboxes[0].ready = false;
    let made = make(&p, &r, &Probes::default());
    assert!(made.kill_pod);
    assert_eq!(made.sandbox, Sandbox::Create { attempt: 1 });
    assert_eq!(starts(&made), ["a"]);

    let p = pod("Never", &[], &["a"]);
    let made = make(&p, &r, &Probes::default());
    assert_eq!(made.sandbox, Sandbox::None);

    let p = pod("OnFailure", &[], &["a"]);
    let mut r = runtime(&p, &[("a", State::Exited, 0)]);
    r.sandboxes[0].ready = false;
    let made = make(&p, &r, &Probes::default());
    assert!(made.kill_pod && made.sandbox == Sandbox::None && made.start.is_empty());
}

#[test]
fn failed_probes_kill_and_restart_by_policy() {
    for (policy, restarts) in [("Always", true), ("OnFailure", true), ("Never", false)] {
        let p = pod(policy, &[], &["a", "b"]);
        let r = runtime(&p, &[("a", State::Running, 0), ("b", State::Running, 0)]);
        let mut probes = Probes::default();
        probes.liveness.insert("id-a".into(), ProbeResult::Failure);
        let made = make(&p, &r, &probes);
        assert_eq!(made.kill.len(), 1);
        assert_eq!(made.kill[0].id, "id-a");
        assert_eq!(made.kill[0].reason, KillReason::Liveness);
        assert_eq!(starts(&made) == ["a"], restarts);
        let will = if restarts { ", will be restarted" } else { "" };
        assert_eq!(
            made.kill[0].message,
            format!("Container a failed liveness probe{will}")
        );
    }
}

#[test]
fn a_changed_image_restarts_whatever_the_policy() {
    let p = pod("Never", &[], &["a"]);
    let mut r = runtime(&p, &[("a", State::Running, 0)]);
    r.containers[0].hash = "other".into();
    let made = make(&p, &r, &Probes::default());
    assert_eq!(starts(&made), ["a"]);
    assert_eq!(
        made.kill[0].message,
        "Container a definition changed, will be restarted"
    );
}

#[test]
fn sidecar_with_startup_probe_holds_the_next() {
    let mut p = pod("Always", &[("s", true)], &["a"]);
    p.spec.as_mut().unwrap().init_containers.as_mut().unwrap()[0].startup_probe =
        Some(Default::default());
    let r = runtime(&p, &[("s", State::Running, 0)]);
    let mut probes = Probes::default();
    assert!(make(&p, &r, &probes).start.is_empty());
    probes.startup.insert("id-s".into(), ProbeResult::Success);
    assert_eq!(starts(&make(&p, &r, &probes)), ["a"]);
    probes.startup.insert("id-s".into(), ProbeResult::Failure);
    let made = make(&p, &r, &probes);
    assert_eq!(made.kill.len(), 1);
    assert_eq!(starts(&made), ["s"]);
}

#[test]
fn restarts_wait_for_the_back_off() {
    let p = pod("Always", &[], &["a"]);
    let r = runtime(&p, &[("a", State::Exited, 1)]);
    let mut backoff = Backoff::container_restarts(RestartDelays::default());
    let key = backoff_key(&p.pod_spec().containers[0]);
    let input = |backoff: &Backoff, now| {
        plan(&Input {
            pod: &p,
            runtime: &r,
            probes: &Probes::default(),
            backoff,
            replaced: &BTreeSet::new(),
            now,
        })
        .start
        .remove(0)
    };
    let first = input(&backoff, at(3));
    assert_eq!((first.wait, first.restart_count), (None, 1));
    backoff.next(&key, at(2), at(2));
    let waiting = input(&backoff, at(3)).wait.unwrap();
    assert_eq!((waiting.left.as_secs(), waiting.of.as_secs()), (9, 10));
    assert_eq!(input(&backoff, at(12)).wait, None);
}

#[test]
fn restart_rules_override_the_policy() {
    let mut p = pod("Never", &[], &["a"]);
    p.spec.as_mut().unwrap().containers[0].restart_policy_rules = serde_json::from_value(
        json!([{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]),
    )
    .unwrap();
    assert_eq!(
        starts(&make(
            &p,
            &runtime(&p, &[("a", State::Exited, 42)]),
            &Probes::default()
        )),
        ["a"]
    );
    assert!(
        make(
            &p,
            &runtime(&p, &[("a", State::Exited, 1)]),
            &Probes::default()
        )
        .kill_pod
    );
}

#[test]
fn ephemeral_containers_start_once() {
    let mut p = pod("Always", &[], &["a"]);
    p.spec.as_mut().unwrap().ephemeral_containers =
        serde_json::from_value(json!([{"name": "dbg", "image": "i"}])).unwrap();
    let r = runtime(&p, &[("a", State::Running, 0)]);
    assert_eq!(starts(&make(&p, &r, &Probes::default())), ["dbg"]);
    let r = runtime(&p, &[("a", State::Running, 0), ("dbg", State::Exited, 0)]);
    assert!(make(&p, &r, &Probes::default()).start.is_empty());
}

#[test]
fn what_was_ended_to_be_replaced_starts_again_whatever_the_policy() {
    let p = pod("OnFailure", &[], &["a"]);
    let r = runtime(&p, &[("a", State::Exited, 0)]);
    let (probes, backoff) = (
        Probes::default(),
        Backoff::container_restarts(RestartDelays::default()),
    );
    let with = |replaced: BTreeSet<String>| {
        plan(&Input {
            pod: &p,
            runtime: &r,
            probes: &probes,
            backoff: &backoff,
            replaced: &replaced,
            now: at(3),
        })
    };
    assert!(with(BTreeSet::new()).kill_pod);
    let again = with(["id-a".to_owned()].into());
    assert!(!again.kill_pod);
    assert_eq!(starts(&again), ["a"]);
}

#[test]
fn not_all_ephemeral_containers_run_at_a_time() {
    let mut p = pod("Always", &[], &["a"]);
    let names: Vec<String> = (0..100).map(|n| format!("dbg-{n}")).collect();
    let spec = names.iter().map(|n| json!({ "name": n, "image": "i" }));
    p.spec.as_mut().unwrap().ephemeral_containers = serde_json::from_value(spec.collect()).unwrap();
    let known = |count: usize, state: State| {
        let known = names[..count].iter().map(|n| (n.as_str(), state, 0));
        let all: Vec<_> = std::iter::once(("a", State::Running, 0))
            .chain(known)
            .collect();
        let plan = make(&p, &runtime(&p, &all), &Probes::default());
        starts(&plan)
            .into_iter()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(known(0, State::Running), names[..RUNNING_EPHEMERAL]);
    assert_eq!(known(30, State::Running), names[30..RUNNING_EPHEMERAL]);
    assert!(known(40, State::Running).is_empty());
    assert_eq!(known(40, State::Exited), names[40..][..RUNNING_EPHEMERAL]);
}
