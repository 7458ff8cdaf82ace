//! CPUs, memory and their alignment with devices.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use davit_containermanager::compute::{ComputeOptions, PinnedContainer, Settings};
use davit_containermanager::{Config, ContainerManager, Rejection, StartError};
use davit_proto::cri::v1::LinuxContainerResources;
use davit_proto::podresources::v1::AllocatableResourcesRequest;
use davit_topology::cpu::CpuOptions;
use davit_topology::memory::{MEMORY, MemoryAmounts};
use davit_topology::{Hardware, Policy, PolicyKind};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::plugin::{Node, Plugin, Pods, R, device, nodes, pod};
use crate::{list, lister};

const GI: u64 = 1 << 30;

/// Two nodes of four CPUs (CPU 0 is reserved) and 4 GiB, half a GiB of the first reserved.
pub(crate) fn machine(policy: PolicyKind) -> impl Fn(&mut Config) + Clone {
    move |config| {
        let kept = MemoryAmounts::from([(MEMORY.to_owned(), GI / 2)]);
        config.plugin_wait = Duration::ZERO;
        config.resources = Settings {
            hardware: Hardware::grid(2, 1, 4, 1, 4 * GI),
            cpu: Some(CpuOptions::default()),
            reserved_cpu_millis: 1000,
            memory: Some(BTreeMap::from([(0, kept.clone())])),
            node_reserved: kept,
            topology: Policy::new(policy),
            ..Settings::default()
        };
    }
}

/// A Guaranteed pod of one container.
pub(crate) fn exclusive(name: &str, cpus: u64, gi: u64, devices: u64) -> Pod {
    let mut limits = vec![("cpu", cpus), ("memory", gi * GI)];
    if devices > 0 {
        limits.push((R, devices));
    }
    pod(name, &limits)
}

fn options(node: &Node, pod: &str, container: &str) -> ComputeOptions {
    node.manager()
        .compute_options(&format!("uid-{pod}"), container)
}

fn cpus(node: &Node, pod: &str) -> String {
    let options = options(node, pod, "main");
    assert!(options.exclusive, "{pod} has no CPUs of its own");
    options.cpus.to_string()
}

fn placed(id: &str, node: i64) -> davit_proto::deviceplugin::v1beta1::Device {
    let mut device = device(id, "Healthy");
    device.topology = Some(nodes(&[node]));
    device
}

async fn plugin(node: &Node, on: &[i64]) -> (Plugin, crate::plugin::Serving) {
    let devices = on.iter().enumerate();
    let devices = devices.map(|(n, node)| placed(&format!("d{n}"), *node));
    let plugin = Plugin::new("p.sock").with(devices.collect());
    let serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, on.len() as u64, on.len() as u64).await;
    (plugin, serving)
}

#[tokio::test]
async fn items_116_117_118_exclusive_cpus_and_the_shared_pool() {
    let node = Node::start_with(machine(PolicyKind::None)).await;
    node.admit(&exclusive("a", 2, 1, 0)).await.unwrap();
    assert_eq!(cpus(&node, "a"), "1-2");
    let mut fraction = exclusive("b", 1, 1, 0);
    let container = &mut fraction.spec.as_mut().unwrap().containers[0];
    let limits = container
        .resources
        .as_mut()
        .unwrap()
        .limits
        .as_mut()
        .unwrap();
    limits.insert("cpu".into(), Quantity("1500m".into()));
    node.admit(&fraction).await.unwrap();
    node.admit(&pod("c", &[("cpu", 1)])).await.unwrap();
    for shared in ["b", "c", "nobody"] {
        let options = options(&node, shared, "main");
        assert!(!options.exclusive);
        assert_eq!(options.cpus.to_string(), "0,3-7", "{shared}");
    }
    let mut resources = LinuxContainerResources {
        cpu_quota: 200_000,
        ..LinuxContainerResources::default()
    };
    options(&node, "a", "main").apply(&mut resources);
    assert_eq!(resources.cpu_quota, -1);
    assert_eq!(
        (&*resources.cpuset_cpus, &*resources.cpuset_mems),
        ("1-2", "0")
    );
    let mut shared = LinuxContainerResources {
        cpu_quota: 200_000,
        ..LinuxContainerResources::default()
    };
    options(&node, "c", "main").apply(&mut shared);
    assert_eq!((shared.cpu_quota, &*shared.cpuset_cpus), (200_000, "0,3-7"));
    node.finish(&exclusive("a", 2, 1, 0), true).await;
    assert_eq!(options(&node, "c", "main").cpus.to_string(), "0-7");
}

/// Without the gate `DisableCPUQuotaWithExclusiveCPUs`.
#[tokio::test]
async fn exclusive_cpus_have_a_quota_where_that_is_wanted() {
    let edit = machine(PolicyKind::None);
    let node = Node::start_with(move |config| {
        edit(config);
        config.resources.throttle_exclusive = true;
    })
    .await;
    node.admit(&exclusive("a", 2, 1, 0)).await.unwrap();
    let mut resources = LinuxContainerResources {
        cpu_quota: 200_000,
        ..LinuxContainerResources::default()
    };
    options(&node, "a", "main").apply(&mut resources);
    assert_eq!(
        (resources.cpu_quota, &*resources.cpuset_cpus),
        (200_000, "1-2")
    );
}

#[tokio::test]
async fn what_was_given_survives_a_restart_and_is_shown() {
    let edit = machine(PolicyKind::BestEffort);
    let node = Node::start_with(edit.clone()).await;
    node.admit(&exclusive("a", 3, 5, 0)).await.unwrap();
    let before = options(&node, "a", "main");
    assert_eq!(before.mems, [0, 1], "five GiB need both nodes");
    let node = node.restart_with(edit).await;
    assert_eq!(options(&node, "a", "main"), before);
    node.admit(&exclusive("a", 3, 5, 0)).await.unwrap();
    assert_eq!(options(&node, "a", "main"), before);
    // Item 130: numbers of exclusive CPUs and blocks of memory.
    node.admit(&pod("b", &[])).await.unwrap();
    let pods = list(&node).await;
    let a = &pods[0].containers[0];
    assert_eq!(a.cpu_ids.len(), 3);
    assert_eq!(a.memory[0].memory_type, "memory");
    assert_eq!(a.memory[0].size, 5 * GI);
    assert_eq!(a.memory[0].topology.as_ref().unwrap().nodes.len(), 2);
    assert!(pods[1].containers[0].cpu_ids.is_empty() && pods[1].containers[0].memory.is_empty());
    // Item 129: reserved CPUs cannot be given out.
    let mut client = lister(&node).await;
    let all = client
        .get_allocatable_resources(AllocatableResourcesRequest {})
        .await;
    let all = all.unwrap().into_inner();
    assert_eq!(all.cpu_ids, (1..8).collect::<Vec<i64>>());
    assert_eq!(
        all.memory.iter().map(|m| m.size).collect::<Vec<_>>(),
        [GI * 7 / 2, 4 * GI]
    );
    let path = node.root().join("cpu_manager_state");
    crate::plugin::until("the state file", || {
        std::fs::read_to_string(&path).is_ok_and(|t| t.contains("uid-a"))
    })
    .await;
}

fn refused(result: Result<(), Rejection>) -> Rejection {
    let rejection = result.unwrap_err();
    assert_eq!(rejection.reason, "TopologyAffinityError");
    assert_eq!(
        rejection.message,
        "Resources cannot be allocated with Topology locality"
    );
    rejection
}

#[tokio::test]
async fn items_109_110_111_policies_over_devices_cpus_and_memory() {
    let strict = Node::start_with(machine(PolicyKind::SingleNumaNode)).await;
    let _plugin = plugin(&strict, &[0, 1]).await;
    strict.admit(&exclusive("a", 2, 1, 1)).await.unwrap();
    assert_eq!(cpus(&strict, "a"), "1-2");
    assert_eq!(options(&strict, "a", "main").mems, [0]);
    strict.admit(&exclusive("b", 2, 1, 1)).await.unwrap();
    assert_eq!(cpus(&strict, "b"), "4-5", "the other device is on node 1");
    // Item 109: no device is left, and five CPUs never fit on one node.
    let five = refused(strict.admit(&exclusive("c", 5, 1, 0)).await);
    let misfit = five.misfit.unwrap();
    assert!(misfit.options.iter().all(|o| !o.possible));
    let lack = refused(strict.admit(&exclusive("d", 2, 1, 1)).await)
        .misfit
        .unwrap();
    let text = lack.text();
    assert!(text.contains("NUMA node 1: 1 example.com/"), "{text}");
    assert!(text.contains("default/b (main) holds 1"), "{text}");

    let restricted = Node::start_with(machine(PolicyKind::Restricted)).await;
    // Item 110: both need two nodes at least.
    restricted.admit(&exclusive("a", 5, 5, 0)).await.unwrap();
    assert_eq!(options(&restricted, "a", "main").cpus.len(), 5);

    let effort = Node::start_with(machine(PolicyKind::BestEffort)).await;
    let _plugin = plugin(&effort, &[1, 1]).await;
    effort.admit(&exclusive("a", 3, 1, 1)).await.unwrap();
    assert_eq!(cpus(&effort, "a"), "4-6", "where the device is");
    effort.admit(&exclusive("b", 3, 1, 1)).await.unwrap();
    let rest = options(&effort, "b", "main").cpus;
    assert_eq!(rest.len(), 3, "what is left, anywhere: {rest}");
}

#[tokio::test]
async fn items_112_115_pod_scope() {
    let edit = |config: &mut Config| {
        machine(PolicyKind::SingleNumaNode)(config);
        config.resources.pod_scope = true;
    };
    let node = Node::start_with(edit).await;
    let (plugin, _serving) = plugin(&node, &[1, 1]).await;
    let mut two = exclusive("a", 2, 1, 1);
    let spec = two.spec.as_mut().unwrap();
    let mut second = spec.containers[0].clone();
    second.name = "second".into();
    spec.containers.push(second);
    node.admit(&two).await.unwrap();
    assert_eq!(cpus(&node, "a"), "4-5");
    assert_eq!(options(&node, "a", "second").cpus.to_string(), "6-7");
    // Together they do not fit on a node, though each would.
    let mut three = two.clone();
    three.metadata.uid = Some("uid-b".into());
    refused(node.admit(&three).await);
    assert_eq!(plugin.count("allocate"), 2);
    // Resources of the pod as a whole: no CPUs of its own, devices at admission all the same.
    node.finish(&two, true).await;
    let mut level = exclusive("c", 1, 1, 1);
    let resources = level.spec.as_ref().unwrap().containers[0]
        .resources
        .clone()
        .unwrap();
    let whole = resources
        .limits
        .clone()
        .unwrap()
        .into_iter()
        .filter(|(k, _)| k != R)
        .collect();
    level.spec.as_mut().unwrap().resources =
        Some(k8s_openapi::api::core::v1::ResourceRequirements {
            limits: Some(whole),
            ..Default::default()
        });
    node.admit(&level).await.unwrap();
    assert!(!options(&node, "c", "main").exclusive);
    assert_eq!(plugin.count("allocate"), 3);
}

#[tokio::test]
async fn item_119_refusals_by_cores_and_the_full_node() {
    let edit = |config: &mut Config| {
        machine(PolicyKind::None)(config);
        config.resources.hardware = Hardware::grid(1, 1, 4, 2, 8 * GI);
        config.resources.cpu = Some(CpuOptions {
            full_pcpus_only: true,
            ..CpuOptions::default()
        });
    };
    let node = Node::start_with(edit).await;
    let odd = node.admit(&exclusive("odd", 3, 1, 0)).await.unwrap_err();
    assert_eq!(odd.reason, "SMTAlignmentError");
    assert_eq!(
        odd.message,
        "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2"
    );
    node.admit(&exclusive("a", 6, 1, 0)).await.unwrap();
    let full = node.admit(&exclusive("b", 2, 1, 0)).await.unwrap_err();
    assert_eq!(
        full.message,
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 0, requested CPUs = 2, CPUs per core = 2"
    );
    assert!(
        full.misfit
            .unwrap()
            .text()
            .contains("default/a (main) holds 6")
    );
    // Repaired: what has its CPUs is not asked again.
    let node = node.restart_with(edit).await;
    node.admit(&exclusive("a", 6, 1, 0)).await.unwrap();
}

#[tokio::test]
async fn item_124_init_containers_hand_on_sidecars_keep() {
    let node = Node::start_with(machine(PolicyKind::None)).await;
    let mut p = exclusive("a", 2, 1, 0);
    let spec = p.spec.as_mut().unwrap();
    let container = |name: &str, sidecar: bool| k8s_openapi::api::core::v1::Container {
        name: name.into(),
        restart_policy: sidecar.then(|| "Always".to_owned()),
        ..spec.containers[0].clone()
    };
    spec.init_containers = Some(vec![container("side", true), container("init", false)]);
    node.admit(&p).await.unwrap();
    let of = |name: &str| options(&node, "a", name).cpus.to_string();
    assert_eq!(
        (of("side"), of("init"), of("main")),
        ("1-2".into(), "3-4".into(), "3-4".into())
    );
    let pods = list(&node).await;
    let memory: Vec<u64> = pods[0]
        .containers
        .iter()
        .map(|c| c.memory[0].size)
        .collect();
    assert_eq!(memory, [GI, GI]);
}

#[tokio::test]
async fn item_120_another_policy_does_not_start_until_the_files_are_deleted() {
    let node = Node::start_with(machine(PolicyKind::None)).await;
    node.admit(&exclusive("a", 2, 1, 0)).await.unwrap();
    let path = node.root().join("cpu_manager_state");
    crate::plugin::until("the state file", || path.exists()).await;
    let dir = node.into_dir().await;
    let error = ContainerManager::start(Config::new(dir.path()), Arc::new(Pods::default()))
        .await
        .err()
        .unwrap();
    assert!(matches!(error, StartError::State(_)));
    assert!(
        error
            .to_string()
            .contains("configured policy \"none\" differs from state checkpoint policy \"static\"")
    );
    for file in ["cpu_manager_state", "memory_manager_state"] {
        std::fs::remove_file(dir.path().join(file)).unwrap();
    }
    let node = Node::start_in(dir).await;
    assert_eq!(options(&node, "a", "main"), ComputeOptions::default());
}

#[tokio::test]
async fn cpus_are_found_by_what_runs_when_everything_else_is_lost() {
    let node = Node::start_with(machine(PolicyKind::None)).await;
    assert!(node.manager().are_cpus_unknown());
    let running = |name: &str, cpuset: &str, cpu_shares| PinnedContainer {
        pod_uid: format!("uid-{name}"),
        namespace: "default".to_owned(),
        pod: name.to_owned(),
        container: "main".to_owned(),
        cpuset: cpuset.to_owned(),
        cpu_shares,
        cpu_quota: -1,
    };
    let found = [running("a", "1-2", 2048), running("b", "0,3-7", 1024)];
    node.manager().rebuild_cpus(&found).await;
    assert_eq!(cpus(&node, "a"), "1-2");
    node.admit(&exclusive("a", 2, 1, 0)).await.unwrap();
    assert_eq!(cpus(&node, "a"), "1-2");
    node.admit(&exclusive("c", 2, 1, 0)).await.unwrap();
    assert_eq!(
        cpus(&node, "c"),
        "3,4".parse::<davit_topology::CpuSet>().unwrap().to_string()
    );
    let node = node.restart_with(machine(PolicyKind::None)).await;
    assert!(!node.manager().are_cpus_unknown());
    assert_eq!(cpus(&node, "a"), "1-2");
}
