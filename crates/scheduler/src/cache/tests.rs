//! The cache against its laws: sums are those of the pods, snapshots are those of a fresh start.

use super::*;
use proptest::prelude::*;
use serde_json::json;

fn node(name: &str, zone: &str) -> Arc<Node> {
    let node = json!({
        "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}},
        "status": {"allocatable": {"cpu": "4", "example.com/foo": "2"}},
    });
    Arc::new(serde_json::from_value(node).unwrap())
}

fn pod(uid: &str, node: Option<&str>) -> Arc<PodInfo> {
    let pod = json!({
        "metadata": {"name": uid, "namespace": "default", "uid": uid},
        "spec": {"nodeName": node, "containers": [
            {"name": "c", "resources": {"requests": {"cpu": "1", "example.com/foo": "1"}},
             "ports": [{"containerPort": 80, "hostPort": 80}]}
        ]},
    });
    Arc::new(PodInfo::new(Arc::new(serde_json::from_value(pod).unwrap())))
}

fn names(snapshot: &Snapshot) -> Vec<&str> {
    snapshot.nodes().iter().map(|n| &*n.name).collect()
}

#[test]
fn nodes_alternate_between_zones() {
    let mut cache = Cache::new();
    for (name, zone) in [
        ("a1", "a"),
        ("a2", "a"),
        ("a3", "a"),
        ("b1", "b"),
        ("c1", "c"),
    ] {
        cache.set_node(node(name, zone));
    }
    let mut snapshot = Snapshot::default();
    cache.update(&mut snapshot);
    assert_eq!(names(&snapshot), ["a1", "b1", "c1", "a2", "a3"]);
    cache.remove_node("b1");
    cache.update(&mut snapshot);
    assert_eq!(names(&snapshot), ["a1", "c1", "a2", "a3"]);
    assert_eq!(snapshot.position("a2"), Some(2));
    assert_eq!(snapshot.position("b1"), None);
}

#[test]
fn only_changed_nodes_are_replaced() {
    let mut cache = Cache::new();
    for name in ["a", "b"] {
        cache.set_node(node(name, ""));
    }
    let mut snapshot = Snapshot::default();
    cache.update(&mut snapshot);
    let before: Vec<_> = snapshot.nodes().to_vec();
    cache.assume(pod("p", None), "b").unwrap();
    cache.update(&mut snapshot);
    assert!(Arc::ptr_eq(&before[0], &snapshot.nodes()[0]));
    assert_eq!(
        before[1].requested.milli_cpu, 0,
        "an old snapshot does not change"
    );
    assert_eq!(snapshot.node(1).requested.milli_cpu, 1000);
    assert_eq!(snapshot.node(1).requested.scalar("example.com/foo"), 1);
}

#[test]
fn assumed_pods_are_confirmed_forgotten_or_expire() {
    let mut cache = Cache::new();
    cache.set_node(node("a", ""));
    cache.assume(pod("p", None), "a").unwrap();
    assert!(cache.assume(pod("p", None), "a").is_err());
    cache.set_pod(pod("p", Some("a")));
    assert!(!cache.is_assumed("p"));
    assert!(!cache.forget("p"), "a confirmed pod is not forgotten");
    assert_eq!(cache.pod_count(), 1);

    cache.assume(pod("q", None), "a").unwrap();
    assert!(cache.forget("q"));
    assert_eq!(cache.pod_count(), 1);

    let now = Instant::now();
    cache.assume(pod("r", None), "a").unwrap();
    assert!(
        cache.expire(now + ASSUMED_FOR * 2).is_empty(),
        "the binding is still being written"
    );
    cache.finish_binding("r", now);
    assert!(cache.expire(now).is_empty());
    assert_eq!(cache.expire(now + ASSUMED_FOR).len(), 1);
    assert_eq!(cache.pod_count(), 1);
}

#[test]
fn a_pod_confirmed_on_another_node_moves() {
    let mut cache = Cache::new();
    cache.set_node(node("a", ""));
    cache.set_node(node("b", ""));
    cache.assume(pod("p", None), "a").unwrap();
    cache.set_pod(pod("p", Some("b")));
    let mut snapshot = Snapshot::default();
    cache.update(&mut snapshot);
    assert!(snapshot.node(0).pods.is_empty());
    assert_eq!(snapshot.node(1).pods.len(), 1);
}

#[test]
fn pods_may_come_before_their_node() {
    let mut cache = Cache::new();
    let mut snapshot = Snapshot::default();
    cache.set_pod(pod("p", Some("late")));
    cache.update(&mut snapshot);
    assert!(snapshot.nodes().is_empty());
    cache.set_node(node("late", ""));
    cache.update(&mut snapshot);
    assert_eq!(snapshot.node(0).pods.len(), 1);
    cache.remove_node("late");
    cache.remove_pod("p");
    assert!(cache.nodes.is_empty());
}

#[test]
fn host_ports_conflict_by_address() {
    let mut cache = Cache::new();
    cache.set_pod(pod("p", Some("a")));
    cache.set_node(node("a", ""));
    let mut snapshot = Snapshot::default();
    cache.update(&mut snapshot);
    let port = |port, protocol: &str, ip: &str| crate::pod::HostPort {
        port,
        protocol: protocol.to_owned(),
        ip: ip.to_owned(),
    };
    let node = snapshot.node(0);
    assert!(node.port_conflicts(&port(80, "TCP", "0.0.0.0")));
    assert!(node.port_conflicts(&port(80, "TCP", "10.0.0.1")));
    assert!(!node.port_conflicts(&port(80, "UDP", "10.0.0.1")));
    assert!(!node.port_conflicts(&port(81, "TCP", "0.0.0.0")));
}

#[derive(Debug, Clone)]
enum Op {
    Node(u8),
    DropNode(u8),
    Assume(u8, u8),
    Confirm(u8, u8),
    Forget(u8),
    Remove(u8),
    Snapshot,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        (0u8..4).prop_map(Op::Node),
        (0u8..4).prop_map(Op::DropNode),
        (0u8..8, 0u8..4).prop_map(|(p, n)| Op::Assume(p, n)),
        (0u8..8, 0u8..4).prop_map(|(p, n)| Op::Confirm(p, n)),
        (0u8..8).prop_map(Op::Forget),
        (0u8..8).prop_map(Op::Remove),
        Just(Op::Snapshot),
    ];
    proptest::collection::vec(op, 0..60)
}

proptest! {
    #[test]
    fn the_sums_are_those_of_the_pods(ops in ops()) {
        let mut cache = Cache::new();
        let mut snapshot = Snapshot::default();
        for op in ops {
            match op {
                Op::Node(n) => cache.set_node(node(&format!("n{n}"), &format!("z{}", n % 2))),
                Op::DropNode(n) => cache.remove_node(&format!("n{n}")),
                Op::Assume(p, n) => {
                    let _ = cache.assume(pod(&format!("p{p}"), None), &format!("n{n}"));
                }
                Op::Confirm(p, n) => cache.set_pod(pod(&format!("p{p}"), Some(&format!("n{n}")))),
                Op::Forget(p) => { cache.forget(&format!("p{p}")); }
                Op::Remove(p) => { cache.remove_pod(&format!("p{p}")); }
                Op::Snapshot => cache.update(&mut snapshot),
            }
        }
        cache.update(&mut snapshot);
        prop_assert_eq!(snapshot.nodes().len(), cache.node_count());
        let assumed = cache.pods.values().filter(|p| p.assumed).count();
        prop_assert_eq!(assumed, cache.assumed_count());
        for (at, info) in snapshot.nodes().iter().enumerate() {
            prop_assert_eq!(snapshot.position(&info.name), Some(at));
            let mut sum = crate::resources::Resources::default();
            for pod in &info.pods {
                sum.add(&pod.requests.requests);
                prop_assert_eq!(cache.node_of(&pod.uid), Some(&*info.name));
            }
            prop_assert_eq!(info.requested.milli_cpu, sum.milli_cpu);
            prop_assert_eq!(info.requested.scalar("example.com/foo"), sum.scalar("example.com/foo"));
        }
        let on_nodes: usize = cache.nodes.values().map(|s| s.info.pods.len()).sum();
        prop_assert_eq!(on_nodes, cache.pod_count());
    }
}

#[test]
fn the_lowest_of_the_pods_is_known_when_it_goes() {
    let pod = |uid: &str, priority: i32| {
        let pod = json!({"metadata": {"name": uid, "namespace": "default", "uid": uid},
            "spec": {"priority": priority, "containers": []}});
        Arc::new(PodInfo::new(Arc::new(serde_json::from_value(pod).unwrap())))
    };
    let mut info = NodeInfo::new("n".into());
    let below = |info: &NodeInfo, priority| -> Vec<String> {
        let pods = info.pods_below(priority).map(|p| p.uid.to_string());
        let mut uids: Vec<String> = pods.collect();
        uids.sort();
        uids
    };
    for (uid, priority) in [("a", 5), ("b", -1), ("c", 7), ("d", -1)] {
        info.add_pod(pod(uid, priority));
    }
    assert_eq!(below(&info, -1), [""; 0]);
    assert_eq!(below(&info, 0), ["b", "d"]);
    assert_eq!(below(&info, 7), ["a", "b", "d"]);
    info.remove_pod("b");
    assert_eq!(below(&info, 0), ["d"]);
    info.remove_pod("d");
    assert_eq!(below(&info, 5), [""; 0]);
    assert_eq!(below(&info, 6), ["a"]);
    info.remove_pod("a");
    info.remove_pod("c");
    assert_eq!(below(&info, i32::MAX), [""; 0]);
}
