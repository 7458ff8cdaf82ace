mod balancers;

use super::*;
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use std::net::{Ipv4Addr, SocketAddr};

fn service(spec: Json) -> Service {
    serde_json::from_value(json!({ "metadata": { "name": "web", "namespace": "a" }, "spec": spec }))
        .unwrap()
}

fn cluster_ip(more: Json) -> Service {
    let mut spec = json!({
        "type": "ClusterIP", "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"],
        "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }],
    });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    service(spec)
}

fn slice(endpoints: Json) -> EndpointSlice {
    serde_json::from_value(json!({
        "addressType": "IPv4", "metadata": { "name": "web-1" },
        "ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }],
        "endpoints": endpoints,
    }))
    .unwrap()
}

fn ready(address: &str, node: &str) -> Json {
    json!({ "addresses": [address], "nodeName": node, "conditions": { "ready": true } })
}

fn going(address: &str, node: &str) -> Json {
    let conditions = json!({ "ready": false, "serving": true, "terminating": true });
    json!({ "addresses": [address], "nodeName": node, "conditions": conditions })
}

fn here() -> Node {
    Node {
        name: "n1".to_owned(),
        zone: Some("z1".to_owned()),
        ..Node::default()
    }
}

fn of(service: &Service, endpoints: Json) -> Plan {
    plan(service, &[&slice(endpoints)], &here(), Family::V4)
}

const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 9));

fn at(plan: &Plan, map: Map) -> Option<&Value> {
    plan.entries
        .get(&Key::service(map, ADDRESS, Protocol::Tcp, 80))
}

fn choice(count: u32, offset: u32, masquerade: Masquerade) -> Choice {
    Choice {
        count,
        offset,
        node_port: false,
        masquerade,
        affinity: None,
    }
}

fn endpoints(plan: &Plan, offset: u32) -> Vec<String> {
    let numbers = (offset..).map_while(|number| {
        match plan
            .entries
            .get(&Key::endpoint(ADDRESS, Protocol::Tcp, 80, number))?
        {
            Value::Endpoint(address, port) => Some(format!("{address}:{port}")),
            _ => None,
        }
    });
    numbers.collect()
}

#[test]
fn a_cluster_address_leads_to_ready_endpoints() {
    let plan = of(
        &cluster_ip(json!({})),
        json!([
            ready("10.244.0.2", "n1"),
            ready("10.244.1.2", "n2"),
            { "addresses": ["10.244.1.3"], "conditions": { "ready": false } },
            going("10.244.1.4", "n2"),
            ready("127.0.0.1", "n1"),
            ready("169.254.1.1", "n1"),
        ]),
    );
    let chain = Chain::Choose(choice(2, 0, Masquerade::Others));
    assert_eq!(at(&plan, Map::Services), Some(&Value::Chain(chain)));
    assert_eq!(endpoints(&plan, 0), ["10.244.0.2:8080", "10.244.1.2:8080"]);
    assert_eq!(endpoints(&plan, LOCAL), ["10.244.0.2:8080"]);
    assert!(plan.entries.contains_key(&Key::cluster_address(ADDRESS)));
    let local = Key::hairpin(Ipv4Addr::new(10, 244, 0, 2).into());
    assert!(plan.entries.contains_key(&local));
}

#[test]
fn nobody_is_refused_and_nobody_here_is_dropped() {
    let none = of(&cluster_ip(json!({})), json!([]));
    assert_eq!(at(&none, Map::Refused), Some(&Value::Refuse));
    assert_eq!(at(&none, Map::Services), None);
    let local = cluster_ip(json!({ "internalTrafficPolicy": "Local" }));
    let elsewhere = of(&local, json!([ready("10.244.1.2", "n2")]));
    assert_eq!(at(&elsewhere, Map::Refused), Some(&Value::Drop));
    let here = of(
        &local,
        json!([ready("10.244.1.2", "n2"), ready("10.244.0.2", "n1")]),
    );
    let chain = Chain::Choose(choice(1, LOCAL, Masquerade::Others));
    assert_eq!(at(&here, Map::Services), Some(&Value::Chain(chain)));
}

#[test]
fn those_that_end_answer_when_nobody_else_does() {
    let service = cluster_ip(json!({}));
    let plan = of(&service, json!([going("10.244.1.4", "n2")]));
    assert_eq!(endpoints(&plan, 0), ["10.244.1.4:8080"]);
    let plan = of(
        &service,
        json!([going("10.244.1.4", "n2"), ready("10.244.1.5", "n2")]),
    );
    assert_eq!(endpoints(&plan, 0), ["10.244.1.5:8080"]);
    // The same address twice: the one that stays counts.
    let plan = of(
        &service,
        json!([going("10.244.1.4", "n2"), ready("10.244.1.4", "n2")]),
    );
    assert_eq!(endpoints(&plan, 0), ["10.244.1.4:8080"]);
}

#[test]
fn hints_are_obeyed_by_all_or_by_none() {
    let service = cluster_ip(json!({}));
    let hinted = |address: &str, hints: Json| {
        let mut endpoint = ready(address, "n2");
        endpoint["hints"] = hints;
        endpoint
    };
    let zone = |address, zone: &str| hinted(address, json!({ "forZones": [{ "name": zone }] }));
    let both = json!([zone("10.244.1.2", "z1"), zone("10.244.1.3", "z2")]);
    assert_eq!(endpoints(&of(&service, both), 0), ["10.244.1.2:8080"]);
    let without = json!([zone("10.244.1.2", "z1"), ready("10.244.1.3", "n2")]);
    assert_eq!(endpoints(&of(&service, without), 0).len(), 2);
    let elsewhere = json!([zone("10.244.1.2", "z2"), zone("10.244.1.3", "z2")]);
    assert_eq!(endpoints(&of(&service, elsewhere), 0).len(), 2);
    let node = |address, node: &str| {
        let hints = json!({ "forNodes": [{ "name": node }], "forZones": [{ "name": "z1" }] });
        hinted(address, hints)
    };
    let nodes = json!([node("10.244.1.2", "n1"), node("10.244.1.3", "n2")]);
    assert_eq!(endpoints(&of(&service, nodes), 0), ["10.244.1.2:8080"]);
    let nodes = json!([node("10.244.1.2", "n3"), node("10.244.1.3", "n2")]);
    assert_eq!(endpoints(&of(&service, nodes), 0).len(), 2, "the zone's");
}

#[test]
fn policies_of_node_ports() {
    let spec = |policy: &str| {
        cluster_ip(json!({
            "type": "NodePort", "externalTrafficPolicy": policy,
            "ports": [{ "name": "http", "port": 80, "nodePort": 30080 }],
        }))
    };
    let key = |map| Key::node_port(map, Protocol::Tcp, 30080);
    let both = json!([ready("10.244.0.2", "n1"), ready("10.244.1.2", "n2")]);
    let plan = of(&spec("Cluster"), both.clone());
    let always = Choice {
        node_port: true,
        ..choice(2, 0, Masquerade::Always)
    };
    let chain = Value::Chain(Chain::Choose(always));
    assert_eq!(plan.entries.get(&key(Map::NodePorts)), Some(&chain));
    let any = Key::endpoint(Family::V4.unspecified(), Protocol::Tcp, 30080, 1);
    assert!(plan.entries.contains_key(&any));
    let split = |plan: &Plan| match plan.entries.get(&key(Map::NodePorts)) {
        Some(Value::Chain(Chain::Split { inside, outside })) => (*inside, *outside),
        other => panic!("{other:?}"),
    };
    let (inside, outside) = split(&of(&spec("Local"), both));
    assert_eq!(
        inside.map(|c| (c.count, c.masquerade)),
        Some((2, Masquerade::Others))
    );
    assert_eq!(
        outside.map(|c| (c.count, c.masquerade)),
        Some((1, Masquerade::Never))
    );
    let (inside, outside) = split(&of(&spec("Local"), json!([ready("10.244.1.2", "n2")])));
    assert!(inside.is_some() && outside.is_none());
    let none = of(&spec("Local"), json!([]));
    assert_eq!(
        none.entries.get(&key(Map::RefusedNodePorts)),
        Some(&Value::Refuse)
    );
}

/// Checklist 25: a named port is another number on another pod.
#[test]
fn a_name_has_a_number_in_each_slice() {
    let one = slice(json!([ready("10.244.0.2", "n1")]));
    let mut other = slice(json!([ready("10.244.0.3", "n1")]));
    let ports = json!([{ "name": "http", "port": 9090, "protocol": "TCP" }]);
    other.ports = serde_json::from_value(ports).unwrap();
    let plan = plan(&cluster_ip(json!({})), &[&one, &other], &here(), Family::V4);
    assert_eq!(endpoints(&plan, 0), ["10.244.0.2:8080", "10.244.0.3:9090"]);
}

/// Checklist 26: one number, two protocols; one of them may go.
#[test]
fn protocols_are_apart() {
    let port =
        |name: &str, protocol: &str| json!({ "name": name, "port": 80, "protocol": protocol });
    let mut both = slice(json!([ready("10.244.0.2", "n1")]));
    both.ports = serde_json::from_value(json!([port("t", "TCP"), port("u", "UDP")])).unwrap();
    let found = |ports: Json| {
        let plan = plan(
            &cluster_ip(json!({ "ports": ports })),
            &[&both],
            &here(),
            Family::V4,
        );
        [Protocol::Tcp, Protocol::Udp].map(|protocol| {
            let key = Key::service(Map::Services, ADDRESS, protocol, 80);
            plan.entries.contains_key(&key)
        })
    };
    assert_eq!(
        found(json!([port("t", "TCP"), port("u", "UDP")])),
        [true, true]
    );
    assert_eq!(found(json!([port("u", "UDP")])), [false, true]);
}

#[test]
fn what_a_proxy_passes_over() {
    let endpoints = json!([ready("10.244.0.2", "n1")]);
    for service in [
        cluster_ip(json!({ "clusterIP": "None", "clusterIPs": ["None"] })),
        service(json!({ "type": "ExternalName", "externalName": "example.org" })),
        service(json!({ "ports": [{ "port": 80 }] })),
    ] {
        assert_eq!(of(&service, endpoints.clone()), Plan::nothing(Family::V4));
    }
    for label in [PROXY_NAME, HEADLESS] {
        let mut other = cluster_ip(json!({}));
        let labels = [(label.to_owned(), String::new())];
        other.metadata.labels = Some(labels.into());
        assert_eq!(of(&other, endpoints.clone()), Plan::nothing(Family::V4));
    }
    let mut headless = slice(endpoints.clone());
    headless.metadata.labels = Some([(HEADLESS.to_owned(), String::new())].into());
    let service = cluster_ip(json!({}));
    let with = |slices: &[&EndpointSlice]| plan(&service, slices, &here(), Family::V4);
    assert_eq!(with(&[&headless]), with(&[]));
    assert_eq!(
        with(&[&headless, &slice(endpoints.clone())]),
        with(&[&slice(endpoints)])
    );
}

#[test]
fn clients_that_stay() {
    let spec = json!({ "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 30 } } });
    for (spec, seconds) in [
        (spec, 30),
        (json!({ "sessionAffinity": "ClientIP" }), AFFINITY),
    ] {
        let plan = of(&cluster_ip(spec), json!([ready("10.244.0.2", "n1")]));
        let Some(Value::Chain(Chain::Choose(choice))) = at(&plan, Map::Services) else {
            panic!("{plan:?}");
        };
        assert_eq!(choice.affinity, Some(seconds));
    }
}

proptest! {
    /// Whatever the slices say: a chain that chooses out of `n` finds exactly `n` endpoints, and none leads nowhere.
    #[test]
    fn every_number_has_an_endpoint(
        states in prop::collection::vec((0_u8..4, any::<bool>(), 0_u8..3), 0..40),
        internal in any::<bool>(), external in any::<bool>(),
    ) {
        let policy = |local| if local { "Local" } else { "Cluster" };
        let service = cluster_ip(json!({
            "type": "NodePort", "internalTrafficPolicy": policy(internal),
            "externalTrafficPolicy": policy(external),
            "ports": [{ "name": "http", "port": 80, "nodePort": 30080 }],
        }));
        let all: Vec<Json> = states.iter().enumerate().map(|(i, (state, here, hint))| {
            let node = if *here { "n1" } else { "n2" };
            let mut endpoint = ready(&format!("10.244.7.{i}"), node);
            endpoint["conditions"] = json!({
                "ready": *state == 0, "serving": *state < 2, "terminating": *state == 1,
            });
            if *hint > 0 {
                endpoint["hints"] = json!({ "forZones": [{ "name": format!("z{hint}") }] });
            }
            endpoint
        }).collect();
        let plan = of(&service, json!(all));
        let mut chains = Vec::new();
        for (key, value) in &plan.entries {
            if let Value::Chain(chain) = value {
                let node_port = key.map == Map::NodePorts;
                chains.extend(chain.leads_to().into_iter().map(|c| (node_port, c)));
                chains.push((node_port, chain.clone()));
            }
        }
        for (node_port, chain) in chains {
            let Chain::Choose(choice) = chain else { continue };
            prop_assert_eq!(choice.node_port, node_port);
            let (address, port) = if node_port { (Family::V4.unspecified(), 30080) } else { (ADDRESS, 80) };
            let entry = |number| {
                let key = Key::endpoint(address, Protocol::Tcp, port, number);
                plan.entries.contains_key(&key)
            };
            for number in 0..choice.count {
                prop_assert!(entry(choice.offset + number));
            }
            prop_assert!(!entry(choice.offset + choice.count));
        }
    }
}

/// Checklist of spec network.md, item 54.
#[test]
fn each_family_has_its_own_plan() {
    let both = cluster_ip(json!({
        "type": "NodePort", "clusterIPs": ["10.96.0.9", "fd00:10:96::9"], "ipFamilies": ["IPv4", "IPv6"],
        "externalIPs": ["203.0.113.1", "2001:db8::1"],
        "ports": [{ "name": "http", "port": 80, "nodePort": 30080, "protocol": "TCP" }],
    }));
    let four = slice(json!([ready("10.244.0.2", "n1")]));
    let mut six = slice(json!([
        ready("fd00:10:244::2", "n1"),
        ready("fe80::1", "n1")
    ]));
    six.address_type = "IPv6".to_owned();
    let slices = [&four, &six];
    let plan_of = |service: &Service, family| plan(service, &slices, &here(), family);
    let plans = Family::ALL.map(|family| plan_of(&both, family));
    let led_to = |plan: &Plan| -> BTreeSet<String> {
        let values = plan.entries.values();
        values
            .filter_map(|value| match value {
                Value::Endpoint(address, port) => {
                    Some(SocketAddr::new(*address, *port).to_string())
                }
                _ => None,
            })
            .collect()
    };
    assert_eq!(led_to(&plans[0]), ["10.244.0.2:8080".to_owned()].into());
    let six = ["[fd00:10:244::2]:8080".to_owned()];
    assert_eq!(led_to(&plans[1]), six.into(), "no link-local one");
    let lengths = |plan: &Plan, map| -> Vec<usize> {
        let keys = plan.entries.keys().filter(|key| key.map == map);
        keys.map(|key| key.bytes.len()).collect()
    };
    assert_eq!(lengths(&plans[0], Map::Services), [12, 12]);
    assert_eq!(lengths(&plans[1], Map::Services), [24, 24]);
    assert_eq!(lengths(&plans[1], Map::ClusterAddresses), [16]);
    assert_eq!(
        plans[1].own_addresses(),
        ["fd00:10:96::9".parse().unwrap()].into()
    );
    for plan in &plans {
        assert_eq!(lengths(plan, Map::NodePorts).len(), 1);
    }
    // a Service of one family has no port of the nodes in the other
    let one = cluster_ip(json!({
        "type": "NodePort",
        "ports": [{ "name": "http", "port": 80, "nodePort": 30080, "protocol": "TCP" }],
    }));
    assert!(
        plan_of(&one, Family::V6)
            .entries
            .keys()
            .all(|key| key.map == Map::Hairpin)
    );
}

#[test]
fn many_addresses_with_many_endpoints_are_not_multiplied_out() {
    let ports: Vec<Json> = (0..10)
        .map(|port| json!({ "name": "http", "port": 80 + port, "protocol": "TCP", "nodePort": 30080 + port }))
        .collect();
    let external: Vec<String> = (0..99).map(|last| format!("203.0.113.{last}")).collect();
    let exposed =
        cluster_ip(json!({ "type": "NodePort", "ports": ports, "externalIPs": external }));
    let all: Vec<Json> = (0..1000)
        .map(|number: u16| ready(&format!("10.244.{}.{}", number >> 8, number & 255), "n1"))
        .collect();
    let plan = of(&exposed, Json::from(all.clone()));
    let entries = plan.entries.len();
    // of the cluster, and those here again
    assert!(entries < 2 * MOST_ENDPOINTS + 5000, "{entries}");
    assert_eq!(endpoints(&plan, 0).len(), MOST_ENDPOINTS / 1010);
    assert_eq!(
        endpoints(&of(&cluster_ip(json!({})), Json::from(all)), 0).len(),
        512
    );
}
