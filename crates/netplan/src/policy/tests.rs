//! Examples, and the decision against a slow reading of the objects themselves.

use super::*;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

mod credible;
mod reference;

use reference::{Cluster, Packet, allows};

fn compiled(cluster: &Cluster) -> PolicyWorld {
    let mut world = PolicyWorld::default();
    for (name, labels) in &cluster.namespaces {
        assert!(world.set_namespace(name, Some(labels.clone())));
    }
    let place = |metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta| {
        let of = |text: &Option<String>| text.clone().unwrap();
        (of(&metadata.namespace), of(&metadata.name))
    };
    for pod in &cluster.pods {
        let (namespace, name) = place(&pod.metadata);
        world.set_pod(&namespace, &name, Some(PolicyPod::new(pod)));
    }
    for policy in &cluster.policies {
        let (namespace, name) = place(&policy.metadata);
        world.set_policy(&namespace, &name, Some(CompiledPolicy::new(policy)));
    }
    world
}

/// What the kernel does with what is compiled.
fn passes(world: &PolicyWorld, cluster: &Cluster, packet: &Packet) -> bool {
    if packet.from == packet.to {
        return true;
    }
    let isolation = |address: IpAddr| {
        let text = address.to_string();
        let has = |pod: &&Pod| pod.status.as_ref().unwrap().pod_ip.as_deref() == Some(&*text);
        let pod = cluster.pods.iter().find(has)?;
        world.isolation(
            pod.metadata.namespace.as_deref().unwrap(),
            pod.metadata.name.as_deref().unwrap(),
        )
    };
    let fits = |allowed: &Option<BTreeSet<Allowance>>, peer: IpAddr| {
        let is_member = |group: &PodGroup, peer: IpAddr| world.members(group).contains(&peer);
        lets_pass(
            allowed.as_ref(),
            peer,
            (packet.protocol as u8, packet.port),
            is_member,
        )
    };
    let egress = isolation(packet.from).is_none_or(|from| fits(&from.egress, packet.to));
    let ingress = isolation(packet.to).is_none_or(|to| fits(&to.ingress, packet.from));
    egress && ingress
}

fn pod(namespace: &str, name: &str, address: &str, more: Value) -> Pod {
    let mut pod = json!({
        "metadata": { "name": name, "namespace": namespace, "labels": { "app": name } },
        "spec": { "containers": [{ "name": "c", "ports": [{ "name": "http", "containerPort": 8080 }] }] },
        "status": { "phase": "Running", "podIP": address, "podIPs": [{ "ip": address }] },
    });
    for (path, value) in more.as_object().unwrap() {
        *pod.pointer_mut(path).unwrap() = value.clone();
    }
    serde_json::from_value(pod).unwrap()
}

fn policy(namespace: &str, name: &str, spec: Value) -> NetworkPolicy {
    let policy = json!({ "metadata": { "name": name, "namespace": namespace }, "spec": spec });
    serde_json::from_value(policy).unwrap()
}

fn cluster(policies: Vec<NetworkPolicy>) -> Cluster {
    let labelled = |name: &str| {
        let labels = [("kubernetes.io/metadata.name".to_owned(), name.to_owned())];
        (name.to_owned(), labels.into())
    };
    Cluster {
        namespaces: ["one", "two", "kube-system"].map(labelled).into(),
        pods: vec![
            pod("one", "a", "10.0.0.2", json!({})),
            pod("one", "b", "10.0.0.3", json!({})),
            pod(
                "two",
                "a",
                "10.0.0.4",
                json!({ "/spec/containers/0/ports/0/containerPort": 9090 }),
            ),
        ],
        policies,
    }
}

/// Whether a TCP connection passes, by what is compiled and by the reference.
fn tcp(cluster: &Cluster, from: &str, to: &str, port: u16) -> bool {
    let packet = Packet {
        from: from.parse().unwrap(),
        to: to.parse().unwrap(),
        protocol: Protocol::Tcp,
        port,
    };
    let answer = passes(&compiled(cluster), cluster, &packet);
    assert_eq!(answer, allows(cluster, &packet), "{packet:?}");
    answer
}

const A: &str = "10.0.0.2";
const B: &str = "10.0.0.3";
const OTHER: &str = "10.0.0.4";

#[test]
fn policies_isolate_and_add_up() {
    let open = cluster(vec![]);
    assert!(tcp(&open, A, B, 80) && tcp(&open, OTHER, A, 80));
    let deny = policy(
        "one",
        "deny",
        json!({ "podSelector": {}, "policyTypes": ["Ingress"] }),
    );
    let denied = cluster(vec![deny.clone()]);
    assert!(!tcp(&denied, A, B, 80), "nobody is let in");
    assert!(tcp(&denied, A, A, 80), "but itself");
    assert!(tcp(&denied, A, OTHER, 80), "egress is open");
    let from_a = policy(
        "one",
        "from-a",
        json!({
            "podSelector": { "matchLabels": { "app": "b" } },
            "ingress": [{ "from": [{ "podSelector": { "matchLabels": { "app": "a" } } }], "ports": [{ "port": "http" }] }],
        }),
    );
    let both = cluster(vec![deny, from_a]);
    assert!(tcp(&both, A, B, 8080));
    assert!(!tcp(&both, A, B, 80), "another port");
    assert!(!tcp(&both, OTHER, B, 8080), "of another namespace");
    assert!(!tcp(&both, B, A, 8080));
}

#[test]
fn names_of_ports_are_the_receivers() {
    let out = policy(
        "one",
        "out",
        json!({
            "podSelector": {}, "policyTypes": ["Egress"],
            "egress": [{ "to": [{ "namespaceSelector": {} }], "ports": [{ "port": "http" }] }],
        }),
    );
    let cluster = cluster(vec![out]);
    assert!(tcp(&cluster, A, B, 8080) && !tcp(&cluster, A, B, 9090));
    assert!(tcp(&cluster, A, OTHER, 9090) && !tcp(&cluster, A, OTHER, 8080));
}

#[test]
fn blocks_have_exceptions() {
    let blocks = policy(
        "one",
        "blocks",
        json!({
            "podSelector": {}, "policyTypes": ["Egress"],
            "egress": [{
                "to": [{ "ipBlock": { "cidr": "192.0.2.0/24", "except": ["192.0.2.128/25"] } }],
                "ports": [{ "port": 8000, "endPort": 8010 }],
            }],
        }),
    );
    let cluster = cluster(vec![blocks]);
    assert!(tcp(&cluster, A, "192.0.2.1", 8000) && tcp(&cluster, A, "192.0.2.1", 8010));
    assert!(!tcp(&cluster, A, "192.0.2.1", 8011));
    assert!(!tcp(&cluster, A, "192.0.2.200", 8000));
}

#[test]
fn peers_are_living_pods_of_the_pod_network() {
    let scope = PodGroup::Scope(PodScope {
        namespaces: NamespaceScope::Named("one".to_owned()),
        pods: Selector::everything(),
    });
    let mut world = compiled(&cluster(vec![]));
    let of = |world: &PolicyWorld| {
        world
            .members(&scope)
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    assert_eq!(of(&world), [A, B]);
    let ended = pod("one", "a", A, json!({ "/status/phase": "Succeeded" }));
    world.set_pod("one", "a", Some(PolicyPod::new(&ended)));
    assert_eq!(of(&world), [B]);
    let mut host = pod("one", "a", A, json!({}));
    host.spec.as_mut().unwrap().host_network = Some(true);
    assert!(
        !world.set_pod("one", "a", Some(PolicyPod::new(&host))),
        "as little as an ended one"
    );
    // Two say that they have the address: it is the newer one's, until that goes.
    let newer = PolicyPod {
        created: 7,
        ..PolicyPod::new(&pod("two", "c", B, json!({})))
    };
    world.set_pod("two", "c", Some(newer));
    assert_eq!(of(&world), [""; 0]);
    world.set_pod("two", "c", None);
    assert_eq!(of(&world), [B]);
}

#[test]
fn the_nodes_name_servers_count_as_pods() {
    let egress = |rule: Value| {
        let spec = json!({ "podSelector": {}, "policyTypes": ["Egress"], "egress": [rule] });
        let mut world = compiled(&cluster(vec![policy("one", "dns", spec)]));
        world.set_resolvers(["10.0.0.1".parse().unwrap()].into());
        let allowed = world.isolation("one", "a").unwrap().egress.unwrap();
        let resolvers = allowed
            .into_iter()
            .filter(|a| a.peers == [Peers::Group(PodGroup::Resolvers)].into());
        resolvers
            .map(|a| a.ports.unwrap().first().unwrap().protocol)
            .collect::<Vec<_>>()
    };
    let names = json!([{
        "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "kube-system" } },
        "podSelector": { "matchLabels": { "k8s-app": "kube-dns" } },
    }]);
    let udp = json!([{ "protocol": "UDP", "port": 53 }]);
    assert_eq!(
        egress(json!({ "to": names, "ports": udp })),
        [Protocol::Udp]
    );
    assert_eq!(
        egress(json!({ "to": names })),
        [Protocol::Tcp, Protocol::Udp]
    );
    assert_eq!(
        egress(json!({ "ports": [{ "protocol": "UDP", "port": "dns" }] })),
        [Protocol::Udp]
    );
    assert_eq!(
        egress(json!({ "to": names, "ports": [{ "port": 443 }] })),
        []
    );
    assert_eq!(
        egress(json!({ "to": [{ "podSelector": {} }] })),
        [],
        "of its own namespace"
    );
}

#[test]
fn what_allows_everything_says_it_shortly() {
    let spec = json!({ "podSelector": {}, "ingress": [{ "ports": [{ "port": 80 }] }, {}], "policyTypes": ["Ingress"] });
    let world = compiled(&cluster(vec![policy("one", "all", spec)]));
    let isolation = world.isolation("one", "a").unwrap();
    assert_eq!(isolation.ingress, Some([Allowance::everything()].into()));
    assert_eq!(isolation.egress, None);
    assert_eq!(world.isolation("one", "nobody"), None);
}

/// 50 KB of policy were a million rules for each pod, and the pods of the whole node without any.
#[test]
fn what_a_policy_says_is_not_multiplied_out() {
    let blocks = |count: u32| -> Vec<Value> {
        let block = |n: u32| json!({ "ipBlock": { "cidr": format!("{}/32", Ipv4Addr::from(n)) } });
        (0..count).map(block).collect()
    };
    let ports =
        |count: u16| -> Vec<Value> { (1..=count).map(|port| json!({ "port": port })).collect() };
    let spec = |from: Vec<Value>, ports: Vec<Value>| json!({ "podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{ "from": from, "ports": ports }] });
    let of = |specs: Vec<Value>| {
        let policies = specs.into_iter().zip(0..);
        let policies = policies.map(|(spec, n)| policy("one", &format!("p{n}"), spec));
        let world = compiled(&cluster(policies.collect()));
        world.isolation("one", "a").unwrap()
    };
    let isolation = of(vec![spec(blocks(1000), ports(1000))]);
    let ingress = isolation.ingress.unwrap();
    assert!(!isolation.too_large && ingress.len() == 1);
    let held: Vec<_> = ingress
        .iter()
        .map(|a| (a.peers.len(), a.ports.as_ref().unwrap().len()))
        .collect();
    assert_eq!(held, [(1000, 1000)]);
    // what is too large even so lets nothing through, in the directions that it is about
    let half = || spec(blocks(4_500), ports(1_500));
    let isolation = of(vec![half(), half()]);
    assert!(isolation.too_large);
    assert_eq!(
        (isolation.ingress, isolation.egress),
        (Some(BTreeSet::new()), None)
    );
    // names mean other numbers on each pod
    let selectors =
        (0..20).map(|n| json!({ "podSelector": { "matchLabels": { "n": n.to_string() } } }));
    let names: Vec<_> = (0..20)
        .map(|n| json!({ "port": format!("p{n}") }))
        .collect();
    let named = json!({
        "podSelector": {}, "policyTypes": ["Egress"],
        "egress": [{ "to": selectors.collect::<Vec<_>>(), "ports": names }],
    });
    let isolation = of(vec![named]);
    assert!(isolation.too_large && isolation.ingress.is_none());
}

fn labels() -> impl Strategy<Value = Value> {
    prop::collection::btree_map("[xy]", "[12]", 0..=2).prop_map(|labels| json!(labels))
}

fn selector() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({})),
        prop::collection::btree_map("[xy]", "[12]", 1..=2)
            .prop_map(|labels| json!({ "matchLabels": labels })),
        ("[xy]", prop::sample::select(vec!["Exists", "DoesNotExist"])).prop_map(
            |(key, operator)| json!({ "matchExpressions": [{ "key": key, "operator": operator }] })
        ),
    ]
}

fn peer() -> impl Strategy<Value = Value> {
    let except = prop::sample::select(vec![
        json!([]),
        json!(["10.0.0.2/31"]),
        json!(["10.0.0.5/32", "192.0.2.1/32"]),
    ]);
    let range = prop::sample::select(vec!["10.0.0.0/29", "0.0.0.0/0", "fd00::/8"]);
    prop_oneof![
        selector().prop_map(|pods| json!({ "podSelector": pods })),
        selector().prop_map(|namespaces| json!({ "namespaceSelector": namespaces })),
        (selector(), selector()).prop_map(
            |(namespaces, pods)| json!({ "namespaceSelector": namespaces, "podSelector": pods })
        ),
        (range, except)
            .prop_map(|(cidr, except)| json!({ "ipBlock": { "cidr": cidr, "except": except } })),
    ]
}

fn port() -> impl Strategy<Value = Value> {
    let protocol =
        || prop::sample::select(vec![json!("TCP"), json!("UDP"), json!("SCTP"), Value::Null]);
    prop_oneof![
        protocol().prop_map(|protocol| json!({ "protocol": protocol })),
        (protocol(), 80..84_u16).prop_map(|(protocol, port)| json!({ "protocol": protocol, "port": port })),
        (protocol(), 80..84_u16, 0..4_u16)
            .prop_map(|(protocol, port, more)| json!({ "protocol": protocol, "port": port, "endPort": port + more })),
        (protocol(), "[pq]").prop_map(|(protocol, port)| json!({ "protocol": protocol, "port": port })),
    ]
}

fn rules(peers: &'static str) -> impl Strategy<Value = Value> {
    let lists = (
        prop::collection::vec(peer(), 0..3),
        prop::collection::vec(port(), 0..3),
    );
    let rule = lists.prop_map(move |(given, ports)| json!({ peers: given, "ports": ports }));
    prop::collection::vec(rule, 0..3).prop_map(|rules| json!(rules))
}

fn any_policy() -> impl Strategy<Value = (String, Value)> {
    let types = prop::sample::select(vec![
        json!(["Ingress"]),
        json!(["Egress"]),
        json!(["Ingress", "Egress"]),
        json!([]),
    ]);
    ("[mn]", selector(), types, rules("from"), rules("to")).prop_map(|(namespace, pods, types, ingress, egress)| {
        let spec = json!({ "podSelector": pods, "policyTypes": types, "ingress": ingress, "egress": egress });
        (namespace, spec)
    })
}

fn any_pod() -> impl Strategy<Value = (String, Value, Value, bool, bool)> {
    let protocol = prop::sample::select(vec!["TCP", "UDP"]);
    let port = ("[pq]", protocol, 80..84_u16)
        .prop_map(|(name, protocol, port)| json!({ "name": name, "protocol": protocol, "containerPort": port }));
    let rarely = || prop::bool::weighted(0.1);
    let ports = prop::collection::vec(port, 0..3).prop_map(|ports| json!(ports));
    (
        "[mn]".prop_map(String::from),
        labels(),
        ports,
        rarely(),
        rarely(),
    )
}

fn any_cluster() -> impl Strategy<Value = Cluster> {
    let namespaces = (labels(), labels());
    let pods = prop::collection::vec(any_pod(), 1..6);
    let policies = prop::collection::vec(any_policy(), 0..5);
    (namespaces, pods, policies).prop_map(|((m, n), pods, policies)| {
        let read = |labels: Value| serde_json::from_value::<BTreeMap<String, String>>(labels).unwrap();
        let pods = pods.into_iter().zip(2..).map(|((namespace, labels, ports, ended, host), number)| {
            let address = format!("10.0.0.{number}");
            serde_json::from_value(json!({
                "metadata": { "name": format!("pod-{number}"), "namespace": namespace, "labels": labels },
                "spec": { "hostNetwork": host, "containers": [{ "name": "c", "ports": ports }] },
                "status": { "phase": if ended { "Failed" } else { "Running" }, "podIP": address, "podIPs": [{ "ip": address }] },
            }))
            .unwrap()
        });
        let policies = policies.into_iter().zip(0..);
        Cluster {
            namespaces: [("m".to_owned(), read(m)), ("n".to_owned(), read(n))].into(),
            pods: pods.collect(),
            policies: policies.map(|((namespace, spec), number)| policy(&namespace, &format!("p{number}"), spec)).collect(),
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn compiled_policies_decide_as_the_objects_say(cluster in any_cluster()) {
        let world = compiled(&cluster);
        // the pods, one address that is nobody's, two outside
        let mut places: Vec<IpAddr> = (2..8).map(|last| Ipv4Addr::new(10, 0, 0, last).into()).collect();
        places.extend(["192.0.2.1", "192.0.2.2"].map(|text| text.parse::<IpAddr>().unwrap()));
        for from in &places {
            for to in &places {
                for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
                    for port in 79..86 {
                        let packet = Packet { from: *from, to: *to, protocol, port };
                        if cluster.judges(&packet) {
                            prop_assert_eq!(passes(&world, &cluster, &packet), allows(&cluster, &packet), "{:?}", packet);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn pods_that_come_and_go_leave_nothing(cluster in any_cluster()) {
        let mut world = compiled(&cluster);
        for pod in &cluster.pods {
            let (namespace, name) = (pod.metadata.namespace.as_deref(), pod.metadata.name.as_deref());
            world.set_pod(namespace.unwrap(), name.unwrap(), None);
        }
        let everywhere = PodGroup::Scope(PodScope {
            namespaces: NamespaceScope::Labelled(Selector::everything()),
            pods: Selector::everything(),
        });
        prop_assert!(world.members(&everywhere).is_empty());
        let again = compiled(&cluster);
        let living = cluster.pods.iter().filter(|pod| !PolicyPod::new(pod).addresses.is_empty()).count();
        prop_assert_eq!(again.members(&everywhere).len(), living);
    }
}
