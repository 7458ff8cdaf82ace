//! Random histories: pods come and go, plugins die and return, devices break, the agent
//! restarts. After each step one device has one owner and whoever was given devices has them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;

use crate::plugin::{Node, Plugin, R, Serving, device, pod};

const DEVICES: usize = 5;

#[derive(Debug, Clone)]
enum Step {
    Admit(u8, u8),
    Finish(u8, bool),
    Health([bool; DEVICES]),
    PluginDies,
    PluginReturns,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u8..6, 0u8..4).prop_map(|(pod, n)| Step::Admit(pod, n)),
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

async fn run(steps: Vec<Step>) {
    let wait = |c: &mut davit_node::containermanager::Config| c.plugin_wait = Duration::ZERO;
    let mut node = Node::start_with(wait).await;
    let plugin = Plugin::new("p.sock").with(
        (0..DEVICES)
            .map(|n| device(&format!("d{n}"), "Healthy"))
            .collect(),
    );
    let mut serving: Option<Serving> = None;
    let mut given = Given::new();
    let mut requests: BTreeMap<u8, u8> = BTreeMap::new();
    // A pod that comes again is another pod.
    let mut lives: BTreeMap<u8, u32> = BTreeMap::new();
    let name_of = |lives: &BTreeMap<u8, u32>, n: u8| {
        format!("{n}-{}", lives.get(&n).copied().unwrap_or_default())
    };
    for step in steps {
        match step {
            Step::Admit(n, count) => {
                let count = *requests.entry(n).or_insert(count);
                let name = name_of(&lives, n);
                let pod = pod(&name, &[(R, u64::from(count))]);
                let admitted = node.admit(&pod).await.is_ok();
                let now = holdings(&node);
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
                serving = Some(new);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Step::PluginReturns => {}
            Step::Restart => {
                // The socket is removed by the agent's start; the plugin is gone with it.
                if let Some(old) = serving.take() {
                    old.stop().await;
                }
                node = node.restart_with(wait).await;
            }
        }
        let now = holdings(&node);
        for (name, devices) in &given {
            assert_eq!(now.get(name), Some(devices), "pod {name}");
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
