//! CPUs and memory beside claimed devices.

use crate::driver::{NODE, Node, claim, pod, slice};
use davit_containermanager::Rejection;
use davit_containermanager::compute::Settings;
use davit_topology::claims::{self, Devices, numa_node};
use davit_topology::cpu::CpuOptions;
use davit_topology::memory::{MEMORY, MemoryAmounts};
use davit_topology::pod::{ContainerAsk, asks};
use davit_topology::{Hardware, Policy, PolicyKind};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use parking_lot::Mutex;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

const GI: u64 = 1 << 30;

/// Two nodes of four CPUs (CPU 0 is reserved) and 4 GiB.
fn machine(policy: PolicyKind) -> Settings {
    let kept = MemoryAmounts::from([(MEMORY.to_owned(), GI / 2)]);
    Settings {
        hardware: Hardware::grid(2, 1, 4, 1, 4 * GI),
        cpu: Some(CpuOptions::default()),
        reserved_cpu_millis: 1000,
        memory: Some(BTreeMap::from([(0, kept.clone())])),
        node_reserved: kept,
        topology: Policy::new(policy),
        ..Settings::default()
    }
}

/// A Guaranteed pod with claims.
fn exclusive(name: &str, claims: &[&str], cpus: u64) -> Pod {
    let mut pod = pod(name, claims);
    let container = &mut pod.spec.as_mut().unwrap().containers[0];
    let limits = [("cpu", cpus.to_string()), ("memory", GI.to_string())];
    let limits = limits.map(|(k, v)| (k.to_owned(), Quantity(v)));
    container.resources.get_or_insert_default().limits = Some(limits.into());
    let requests = container.resources.as_ref().unwrap().limits.clone();
    container.resources.as_mut().unwrap().requests = requests;
    pod
}

/// A claim with devices of this node.
fn local(name: &str, pods: &[&str], results: &[&str]) -> ResourceClaim {
    let mut claim = claim(name, pods, results);
    let selector = json!({"nodeSelectorTerms": [{"matchFields": [
        {"key": "metadata.name", "operator": "In", "values": [NODE]}]}]});
    let status = claim.status.as_mut().unwrap();
    let allocation = status.allocation.as_mut().unwrap();
    allocation.node_selector = serde_json::from_value(selector).unwrap();
    claim
}

async fn admit(node: &Node, pod: &Pod) -> Result<Vec<String>, Rejection> {
    node.pods.set(pod);
    let said = Mutex::new(Vec::new());
    let deadline = Instant::now() + Duration::from_secs(30);
    let waiting = |text: &str| said.lock().push(text.to_owned());
    node.manager().admit(pod, deadline, &waiting).await?;
    Ok(said.into_inner())
}

fn place(node: &Node, pod: &str) -> (String, Vec<u32>) {
    let options = node
        .manager()
        .compute_options(&format!("uid-{pod}"), "main");
    assert!(options.exclusive);
    (options.cpus.to_string(), options.mems)
}

#[tokio::test]
async fn cpus_and_memory_are_chosen_beside_claimed_devices() {
    for policy in [
        PolicyKind::BestEffort,
        PolicyKind::Restricted,
        PolicyKind::SingleNumaNode,
    ] {
        let node = Node::start_with(machine(policy)).await;
        *node.api.slices.lock() = vec![slice("a.dev", &[("0", 0), ("1", 1)])];
        node.add(local("far", &["p"], &["r a.dev 1"]));
        node.add(local("near", &["q"], &["r a.dev 0"]));
        let nothing: Vec<String> = Vec::new();
        assert_eq!(
            admit(&node, &exclusive("p", &["far"], 2)).await,
            Ok(nothing.clone())
        );
        assert_eq!(place(&node, "p"), ("4-5".to_owned(), vec![1]), "{policy:?}");
        assert_eq!(
            admit(&node, &exclusive("q", &["near"], 2)).await,
            Ok(nothing)
        );
        assert_eq!(place(&node, "q"), ("1-2".to_owned(), vec![0]), "{policy:?}");
    }
    // Without a policy nobody looks.
    let node = Node::start_with(machine(PolicyKind::None)).await;
    node.add(local("far", &["p"], &["r a.dev 1"]));
    admit(&node, &exclusive("p", &["far"], 2)).await.unwrap();
    assert_eq!(place(&node, "p").0, "1-2");
}

#[tokio::test]
async fn a_refusal_says_what_could_not_be_aligned() {
    let node = Node::start_with(machine(PolicyKind::SingleNumaNode)).await;
    *node.api.slices.lock() = vec![slice("a.dev", &[("0", 0), ("1", 1)])];
    node.add(local("both", &["p"], &["r a.dev 0", "r a.dev 1"]));
    node.add(local("far", &["q"], &["r a.dev 1"]));
    node.add(local("again", &["r"], &["r a.dev 1"]));
    let refused = admit(&node, &exclusive("p", &["both"], 1))
        .await
        .unwrap_err();
    assert_eq!(refused.reason, "TopologyAffinityError");
    assert_eq!(
        refused.message,
        "Resources cannot be allocated with Topology locality: \
         claim both holds a.dev/n1/0 on NUMA node 0, a.dev/n1/1 on NUMA node 1"
    );
    // The CPUs beside the device are given away.
    admit(&node, &exclusive("q", &["far"], 3)).await.unwrap();
    let refused = admit(&node, &exclusive("r", &["again"], 2))
        .await
        .unwrap_err();
    assert_eq!(
        refused.message,
        "Resources cannot be allocated with Topology locality: claim again holds a.dev/n1/1 on NUMA node 1"
    );
    let text = refused.misfit.unwrap().text();
    assert!(
        text.contains(
            "NUMA node 1: 2 cpu asked for, 1 free, 1 would have to be freed: ns/q (main) holds 3"
        ),
        "{text}"
    );
    assert!(
        text.contains("NUMA node 0: claim again holds a.dev/n1/1 on NUMA node 1"),
        "{text}"
    );
}

#[tokio::test]
async fn an_admission_waits_for_slices_but_not_for_ever() {
    let node = Node::start_with(machine(PolicyKind::SingleNumaNode)).await;
    node.add(local("far", &["p", "q"], &["r a.dev 1"]));
    let pod = exclusive("p", &["far"], 2);
    let late = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        *node.api.slices.lock() = vec![slice("a.dev", &[("1", 1)])];
    };
    let (admitted, ()) = tokio::join!(admit(&node, &pod), late);
    admitted.unwrap();
    assert_eq!(place(&node, "p").0, "4-5");
    // A driver that does not publish: the pod goes on without alignment, and the claim speaks for itself later.
    node.api.slices.lock().clear();
    let began = std::time::Instant::now();
    admit(&node, &exclusive("q", &["far"], 2)).await.unwrap();
    assert!(began.elapsed() >= Duration::from_secs(2));
    assert_eq!(place(&node, "q").0, "1-2");
}

/// What one container of a random pod asks for: CPUs, and a claim of the pod or one request of it.
#[derive(Debug, Clone)]
struct Wish {
    cpus: u64,
    /// Index of the pod's claim, and whether only its request `a`.
    claim: Option<(usize, bool)>,
}

/// The claims, as devices for the requests `a` and `b`, and the containers.
type Pods = Vec<(Vec<[Vec<usize>; 2]>, Vec<Wish>)>;

fn pods() -> impl Strategy<Value = Pods> {
    let devices = || prop::collection::vec(0..5_usize, 0..3);
    let claim = (devices(), devices()).prop_map(|(a, b)| [a, b]);
    let wish = (0..4_u64, prop::option::of((0..2_usize, any::<bool>())));
    let wish = wish.prop_map(|(cpus, claim)| Wish { cpus, claim });
    let pod = (
        prop::collection::vec(claim, 2),
        prop::collection::vec(wish, 1..3),
    );
    prop::collection::vec(pod, 1..5)
}

/// A pod with these containers, and its claims.
fn random(name: &str, claims: &[[Vec<usize>; 2]], wishes: &[Wish]) -> (Pod, Vec<ResourceClaim>) {
    let made = claims.iter().enumerate().map(|(i, requests)| {
        let results = ["a", "b"].iter().zip(requests);
        let results: Vec<String> = results
            .flat_map(|(request, devices)| {
                devices.iter().map(move |d| format!("{request} a.dev {d}"))
            })
            .collect();
        let results: Vec<&str> = results.iter().map(String::as_str).collect();
        local(&format!("{name}-{i}"), &[name], &results)
    });
    let made: Vec<ResourceClaim> = made.collect();
    let entries: Vec<Value> = (0..claims.len())
        .map(|i| json!({"name": format!("e{i}"), "resourceClaimName": format!("{name}-{i}")}))
        .collect();
    let containers: Vec<Value> = wishes
        .iter()
        .enumerate()
        .map(|(i, wish)| {
            let mut resources = json!({});
            if wish.cpus > 0 {
                let list = json!({"cpu": wish.cpus.to_string(), "memory": (GI / 2).to_string()});
                resources = json!({"limits": list, "requests": list});
            }
            if let Some((claim, one)) = wish.claim {
                let mut used = json!({"name": format!("e{claim}")});
                if one {
                    used["request"] = json!("a");
                }
                resources["claims"] = json!([used]);
            }
            json!({"name": format!("c{i}"), "resources": resources})
        })
        .collect();
    let pod = json!({"metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}")},
        "spec": {"resourceClaims": entries, "containers": containers}});
    (serde_json::from_value(pod).unwrap(), made)
}

/// What a scheduler asks for in the name of a pod: by the rules that both share, from what it sees.
fn asked(node: &Node, wishes: &[Wish], pod: &Pod, made: &[ResourceClaim]) -> Vec<ContainerAsk> {
    let slices = node.api.slices.lock().clone();
    let devices = Devices::new(slices.iter().map(|s| &s.spec));
    let state = node.manager().published();
    let place = |device: &_, driver: &str| {
        let node = numa_node(device, driver, &state.pcie_roots)?;
        state.nodes.contains(&node).then_some(node)
    };
    let mut all = asks(pod);
    for (ask, wish) in all.iter_mut().zip(wishes) {
        let Some((claim, one)) = wish.claim else {
            continue;
        };
        let claim = &made[claim];
        let allocation = claim.status.as_ref().unwrap().allocation.as_ref().unwrap();
        let name = claim.metadata.name.as_deref().unwrap();
        let (found, _) = claims::place(name, one.then_some("a"), allocation, &devices, &place);
        if !found.devices.is_empty() {
            ask.claims.insert(name.to_owned(), found.nodes());
        }
    }
    all
}

/// Whether the node takes each pod, told beforehand from what it publishes.
async fn predictions_hold(policy: PolicyKind, pod_scope: bool, pods: &Pods) {
    let settings = Settings {
        pod_scope,
        ..machine(policy)
    };
    let node = Node::start_with(settings).await;
    // Device 4 is near everywhere.
    *node.api.slices.lock() = vec![slice(
        "a.dev",
        &[("0", 0), ("1", 0), ("2", 1), ("3", 1), ("4", 9)],
    )];
    for (i, (claims, wishes)) in pods.iter().enumerate() {
        let (pod, made) = random(&format!("p{i}"), claims, wishes);
        made.iter().for_each(|claim| node.add(claim.clone()));
        let wanted = asked(&node, wishes, &pod, &made);
        let told = node.manager().published().place(&wanted);
        let taken = admit(&node, &pod).await;
        assert_eq!(
            told.is_ok(),
            taken.is_ok(),
            "{policy:?}, pod {i}: told {told:?}, then {taken:?}; {wanted:#?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// The scheduler's NodeResourceTopologyMatch decides by what the node publishes and the code both share.
    #[test]
    fn a_node_takes_what_it_publishes_that_it_takes(
        policy in prop::sample::select(vec![PolicyKind::Restricted, PolicyKind::SingleNumaNode]),
        pod_scope: bool,
        pods in pods(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(predictions_hold(policy, pod_scope, &pods));
    }
}
