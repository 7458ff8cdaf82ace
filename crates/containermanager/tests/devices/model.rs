//! Random histories: pods come and go, plugins die and return, devices break, the agent
//! restarts. After each step one device has one owner and whoever was given devices has them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;

use davit_topology::{CpuSet, PolicyKind};

use crate::compute::machine;
use crate::plugin::{Node, Plugin, R, Serving, device, pod};

const DEVICES: usize = 5;

#[derive(Debug, Clone)]
enum Step {
    /// Pod, devices, CPUs of its own (0: shared pool).
    Admit(u8, u8, u8),
    /// The agent is killed while the admission of the pod is under way.
    Crash(u8, u8, u8),
    Finish(u8, bool),
    Health([bool; DEVICES]),
    PluginDies,
    PluginReturns,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u8..6, 0u8..4, 0u8..4).prop_map(|(pod, n, cpus)| Step::Admit(pod, n, cpus)),
        1 => (0u8..6, 0u8..4, 0u8..4).prop_map(|(pod, n, cpus)| Step::Crash(pod, n, cpus)),
        3 => (0u8..6, any::<bool>()).prop_map(|(pod, now)| Step::Finish(pod, now)),
        2 => any::<[bool; DEVICES]>().prop_map(Step::Health),
        1 => Just(Step::PluginDies),
        2 => Just(Step::PluginReturns),
        1 => Just(Step::Restart),
    ]
}

/// What each live pod was given.
type Given = BTreeMap<String, BTreeSet<String>>;

fn holdings(node: &Node) -> Given {
    let mut given = Given::new();
    for device in node.manager().devices() {
        let pods: BTreeSet<&str> = device.holders.iter().map(|h| h.pod.as_str()).collect();
        assert!(pods.len() <= 1, "{} is held by {pods:?}", device.id);
        for holder in device.holders {
            assert!(
                given
                    .entry(holder.pod)
                    .or_default()
                    .insert(device.id.clone())
            );
        }
    }
    given
}

/// A pod with devices and, if it is of class Guaranteed, CPUs and memory of its own.
fn asking(name: &str, devices: u8, cpus: u8) -> k8s_openapi::api::core::v1::Pod {
    let mut limits = vec![(R, u64::from(devices))];
    if cpus > 0 {
        limits.extend([("cpu", u64::from(cpus)), ("memory", u64::from(cpus) << 29)]);
    }
    pod(name, &limits)
}

/// CPUs by pod; nobody else has them, and the shared pool has none of them.
fn cpus(node: &Node, names: impl Iterator<Item = String>) -> BTreeMap<String, CpuSet> {
    let shared = node.manager().compute_options("nobody", "main").cpus;
    let mut taken = CpuSet::new();
    let mut found = BTreeMap::new();
    for name in names {
        let options = node
            .manager()
            .compute_options(&format!("uid-{name}"), "main");
        if options.exclusive {
            assert!(taken.is_disjoint(&options.cpus), "two owners of {taken}");
            taken = taken.union(&options.cpus);
            found.insert(name, options.cpus);
        }
    }
    assert!(shared.is_disjoint(&taken), "{shared} and {taken}");
    found
}

async fn run(steps: Vec<Step>) {
    // Two NUMA nodes of four CPUs; devices, CPUs and memory are aligned where that is possible.
    let wait = machine(PolicyKind::BestEffort);
    let mut node = Node::start_with(wait.clone()).await;
    let plugin = Plugin::new("p.sock").with(
        (0..DEVICES)
            .map(|n| device(&format!("d{n}"), "Healthy"))
            .collect(),
    );
    let mut serving: Option<Serving> = None;
    let mut known = false;
    let mut given = Given::new();
    let mut requests: BTreeMap<u8, (u8, u8)> = BTreeMap::new();
    let mut pinned: BTreeMap<String, CpuSet> = BTreeMap::new();
    // A pod that comes again is another pod.
    let mut lives: BTreeMap<u8, u32> = BTreeMap::new();
    let name_of = |lives: &BTreeMap<u8, u32>, n: u8| {
        format!("{n}-{}", lives.get(&n).copied().unwrap_or_default())
    };
    for step in steps {
        match step {
            Step::Crash(n, count, own) => {
                let (count, own) = *requests.entry(n).or_insert((count, own));
                let name = name_of(&lives, n);
                let pod = asking(&name, count, own);
                let has = |node: &Node| {
                    let devices = holdings(node).get(&name).cloned();
                    (devices, cpus(node, [name.clone()].into_iter()))
                };
                let before = has(&node);
                // Polled a few times, then gone with the agent.
                let half = tokio::time::timeout(Duration::from_micros(300), node.admit(&pod)).await;
                if let Some(old) = serving.take() {
                    old.stop().await;
                }
                node = node.restart_with(wait.clone()).await;
                // Either all of it counts, or what it had before (a pod may have been admitted when
                // no plugin was known).
                let now = holdings(&node);
                let own_now = cpus(&node, [name.clone()].into_iter());
                // A resource no plugin ever registered for is not this node's business.
                let devices = if known { usize::from(count) } else { 0 };
                let whole = now.get(&name).map_or(0, BTreeSet::len) == devices
                    && own_now.get(&name).map_or(0, CpuSet::len) == usize::from(own);
                assert!(whole || has(&node) == before, "{before:?}: {half:?}");
                if let Some(devices) = now.get(&name) {
                    given.insert(name.clone(), devices.clone());
                }
                pinned.extend(own_now);
            }
            Step::Admit(n, count, own) => {
                let (count, own) = *requests.entry(n).or_insert((count, own));
                let name = name_of(&lives, n);
                let pod = asking(&name, count, own);
                let admitted = node.admit(&pod).await.is_ok();
                let now = holdings(&node);
                if admitted {
                    let has = cpus(&node, [name.clone()].into_iter());
                    assert_eq!(has.get(&name).map_or(0, CpuSet::len), usize::from(own));
                    pinned.extend(has);
                }
                match given.get(&name) {
                    // Refused or admitted again: what it has stays as it was.
                    Some(before) => assert_eq!(now.get(&name), Some(before)),
                    None if admitted && now.contains_key(&name) => {
                        assert_eq!(now[&name].len(), usize::from(count));
                        given.insert(name.clone(), now[&name].clone());
                    }
                    None => assert!(!now.contains_key(&name)),
                }
            }
            Step::Finish(n, now) => {
                let name = name_of(&lives, n);
                node.finish(&pod(&name, &[]), now).await;
                given.remove(&name);
                pinned.remove(&name);
                requests.remove(&n);
                *lives.entry(n).or_default() += 1;
            }
            Step::Health(healthy) => {
                let word = |h: bool| if h { "Healthy" } else { "Unhealthy" };
                plugin.list(
                    healthy
                        .iter()
                        .enumerate()
                        .map(|(n, h)| device(&format!("d{n}"), word(*h)))
                        .collect(),
                );
            }
            Step::PluginDies => {
                if let Some(old) = serving.take() {
                    old.stop().await;
                }
            }
            Step::PluginReturns if serving.is_none() => {
                let new = plugin.serve(node.root()).await;
                new.register(R).await.unwrap();
                known = true;
                serving = Some(new);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Step::PluginReturns => {}
            Step::Restart => {
                // The socket is removed by the agent's start; the plugin is gone with it.
                if let Some(old) = serving.take() {
                    old.stop().await;
                }
                node = node.restart_with(wait.clone()).await;
            }
        }
        let now = holdings(&node);
        for (name, devices) in &given {
            assert_eq!(now.get(name), Some(devices), "pod {name}");
        }
        let everybody = (0..6u8).flat_map(|n| {
            let last = lives.get(&n).copied().unwrap_or_default();
            (0..=last).map(move |life| format!("{n}-{life}"))
        });
        let has = cpus(&node, everybody.collect::<Vec<_>>().into_iter());
        let shared = node.manager().compute_options("nobody", "main").cpus;
        let taken: usize = has.values().map(CpuSet::len).sum();
        assert_eq!(shared.len() + taken, 8, "no CPU is lost");
        for (name, own) in &pinned {
            assert_eq!(has.get(name), Some(own), "cpus of pod {name}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, max_shrink_iters: 40, ..ProptestConfig::default() })]
    #[test]
    fn histories(steps in prop::collection::vec(step(), 5..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(steps));
    }
}
