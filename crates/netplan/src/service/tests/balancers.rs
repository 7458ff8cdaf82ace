//! Load balancers, and what else is reached from outside.

use super::*;

#[test]
fn addresses_of_load_balancers() {
    let mut service = cluster_ip(json!({
        "type": "LoadBalancer", "loadBalancerSourceRanges": [" 192.0.2.0/24"],
        "externalIPs": ["203.0.113.250", "fd00::1"],
    }));
    service.status = serde_json::from_value(json!({ "loadBalancer": { "ingress": [
        { "ip": "203.0.113.1" }, { "ip": "203.0.113.2", "ipMode": "Proxy" }, { "hostname": "x" },
    ] } }))
    .unwrap();
    let plan = of(&service, json!([ready("10.244.0.2", "n1")]));
    let at = |last| {
        let key = Key::service(
            Map::Services,
            Ipv4Addr::new(203, 0, 113, last).into(),
            Protocol::Tcp,
            80,
        );
        plan.entries.get(&key)
    };
    let chosen = Chain::Choose(choice(1, 0, Masquerade::Always));
    assert_eq!(at(250), Some(&Value::Chain(chosen.clone())));
    let guarded = Chain::Guard {
        sources: vec!["192.0.2.0/24".parse().unwrap()],
        then: Box::new(chosen),
    };
    assert_eq!(at(1), Some(&Value::Chain(guarded)));
    assert_eq!(at(2), None);
}

#[test]
fn addresses_that_a_router_translates() {
    let [outside, inside] =
        ["198.51.100.7", "192.0.2.1"].map(|text| text.parse::<IpAddr>().unwrap());
    let mut service = cluster_ip(json!({ "type": "LoadBalancer" }));
    service.status = serde_json::from_value(json!({
        "loadBalancer": { "ingress": [{ "ip": outside }] },
    }))
    .unwrap();
    let slice = slice(json!([ready("10.244.0.2", "n1")]));
    let reached = |internal: &[IpAddr], external: &[IpAddr]| {
        let node = Node {
            internal: internal.iter().copied().collect(),
            external: external.iter().copied().collect(),
            ..here()
        };
        let plan = plan(&service, &[&slice], &node, Family::V4);
        [outside, inside].map(|address| {
            let key = Key::service(Map::Services, address, Protocol::Tcp, 80);
            plan.entries.contains_key(&key)
        })
    };
    assert_eq!(reached(&[inside], &[outside]), [true, true]);
    assert_eq!(reached(&[inside], &[]), [true, false], "another node's");
}

#[test]
fn ranges_of_another_family_let_nobody_in() {
    let mut service = cluster_ip(json!({
        "type": "LoadBalancer", "loadBalancerSourceRanges": ["fd00::/8"],
    }));
    let ingress = json!({ "loadBalancer": { "ingress": [{ "ip": "10.96.0.9" }] } });
    service.status = serde_json::from_value(ingress).unwrap();
    let plan = of(&service, json!([ready("10.244.0.2", "n1")]));
    let Some(Value::Chain(Chain::Guard { sources, .. })) = at(&plan, Map::Services) else {
        panic!("{plan:?}");
    };
    assert!(sources.is_empty());
}

#[test]
fn load_balancers_ask_where_endpoints_are() {
    let spec = |policy: &str| {
        cluster_ip(json!({
            "type": "LoadBalancer", "externalTrafficPolicy": policy, "healthCheckNodePort": 30100,
            "ports": [{ "name": "http", "port": 80 }, { "name": "other", "port": 81 }],
        }))
    };
    let endpoints = json!([
        ready("10.244.0.2", "n1"),
        ready("10.244.0.3", "n1"),
        going("10.244.0.4", "n1"),
        ready("10.244.1.2", "n2"),
    ]);
    let asked = |plan: &Plan| plan.health.as_ref().map(|h| (h.port, h.endpoints));
    let local = of(&spec("Local"), endpoints);
    assert_eq!(asked(&local), Some((30100, 2)));
    let elsewhere = of(
        &spec("Local"),
        json!([ready("10.244.1.2", "n2"), going("10.244.0.4", "n1")]),
    );
    assert_eq!(
        asked(&elsewhere),
        Some((30100, 0)),
        "who ends does not count"
    );
    assert_eq!(asked(&of(&spec("Cluster"), json!([]))), None);
}

#[test]
fn ports_that_lead_nowhere_here_are_counted() {
    let policies = json!({
        "type": "NodePort", "internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local",
    });
    let count = |endpoints: Json| {
        let nowhere = of(&cluster_ip(policies.clone()), endpoints).nowhere;
        (nowhere.internal, nowhere.external)
    };
    assert_eq!(count(json!([ready("10.244.1.2", "n2")])), (1, 1));
    assert_eq!(count(json!([ready("10.244.0.2", "n1")])), (0, 0));
    assert_eq!(count(json!([])), (0, 0), "there is nobody anywhere");
}
