//! Addresses and ports of Services (spec network.md).

use std::net::Ipv4Addr;

use serde_json::json;

use crate::cluster::*;

#[tokio::test]
async fn services_get_addresses_and_ports() {
    let c = Cluster::new().await;
    let service =
        |name: &str, spec: serde_json::Value| json!({"metadata": {"name": name}, "spec": spec});
    let services = "/api/v1/namespaces/default/services";
    let made = c
        .post(services, &service("a", json!({"ports": [{"port": 80}]})))
        .await
        .ok(201);
    let ip = made["spec"]["clusterIP"].as_str().unwrap();
    assert!(ip.starts_with("10.96."), "{ip}");
    assert_eq!(made["spec"]["clusterIPs"], json!([ip]));
    let same = service("b", json!({"clusterIP": ip, "ports": [{"port": 80}]}));
    let status = c.post(services, &same).await.error(422, "Invalid");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains("provided IP is already allocated"),
        "{message}"
    );
    c.delete(&format!("{services}/a"), &json!(null))
        .await
        .ok(200);
    c.post(services, &same).await.ok(201);
    let node_port = service("c", json!({"type": "NodePort", "ports": [{"port": 80}]}));
    let made = c.post(services, &node_port).await.ok(201);
    let port = made["spec"]["ports"][0]["nodePort"].as_u64().unwrap();
    assert!((30000..=32767).contains(&port));
    let headless = service("d", json!({"clusterIP": "None", "ports": [{"port": 80}]}));
    let made = c.post(services, &headless).await.ok(201);
    assert_eq!(made["spec"]["clusterIP"], "None");
}

/// Checklist of spec network.md, items 12 and 13.
#[tokio::test]
async fn addresses_of_services_are_of_the_upper_band() {
    let c = Cluster::new().await;
    let services = "/api/v1/namespaces/default/services";
    let service = |name: &str, address: Option<&str>| json!({"metadata": {"name": name}, "spec": {"clusterIP": address, "ports": [{"port": 80}]}});
    let address = |made: &serde_json::Value| -> Ipv4Addr {
        made["spec"]["clusterIP"].as_str().unwrap().parse().unwrap()
    };
    let lowest = Ipv4Addr::new(10, 96, 1, 0);
    for number in 0..300 {
        let made = c
            .post(services, &service(&format!("s{number}"), None))
            .await;
        let given = address(&made.ok(201));
        assert!(given >= lowest, "{given}");
    }
    let fixed = c
        .post(services, &service("fixed", Some("10.96.0.77")))
        .await;
    assert_eq!(address(&fixed.ok(201)), Ipv4Addr::new(10, 96, 0, 77));

    let small = Cluster::with(|options| {
        options.service_ranges = "10.97.0.0/29".parse().unwrap();
    });
    let small = small.await;
    // The network's own address, its broadcast and that of `kubernetes` are nobody's.
    for number in 0..5 {
        let made = small
            .post(services, &service(&format!("s{number}"), None))
            .await;
        made.ok(201);
    }
    let full = small.post(services, &service("late", None)).await;
    let full = full.error(500, "InternalError");
    assert!(full["message"].as_str().unwrap().contains("range is full"));
    for (address, why) in [
        // the Service `kubernetes` may be away for a moment
        (Some("10.97.0.1"), "provided IP is already allocated"),
        (Some("10.97.0.3"), "provided IP is already allocated"),
        (Some("10.98.0.1"), "The range of valid IPs is 10.97.0.0/29"),
        (Some("10.97.0.0"), "not in the valid range"),
    ] {
        let refused = small.post(services, &service("late", address)).await;
        let refused = refused.error(422, "Invalid");
        let message = refused["message"].as_str().unwrap();
        assert!(message.contains(why), "{message}");
    }
    small
        .delete(&format!("{services}/s2"), &json!(null))
        .await
        .ok(200);
    small.post(services, &service("late", None)).await.ok(201);
}

/// Checklist of spec network.md, items 19 and 21.
#[tokio::test]
async fn ports_of_services_on_nodes() {
    let c = Cluster::new().await;
    let services = "/api/v1/namespaces/default/services";
    let local = |name: &str, asked: Option<u16>| {
        json!({"metadata": {"name": name}, "spec": {
            "type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": asked,
            "ports": [{"port": 53, "name": "u", "protocol": "UDP"}, {"port": 53, "name": "t"}]}})
    };
    let made = c.post(services, &local("a", None)).await.ok(201);
    let port = |of: &serde_json::Value, index: usize| {
        of["spec"]["ports"][index]["nodePort"].as_u64().unwrap()
    };
    assert!((30086..=32767).contains(&port(&made, 0)), "{made}");
    assert_eq!(port(&made, 0), port(&made, 1), "one number, two protocols");
    let health = made["spec"]["healthCheckNodePort"].as_u64().unwrap();
    assert!((30086..=32767).contains(&health) && health != port(&made, 0));

    // Somebody else's port, and one out of range.
    let taken = u16::try_from(health).unwrap();
    for (asked, why) in [(taken, "already allocated"), (80, "not in the valid range")] {
        let refused = c.post(services, &local("b", Some(asked))).await;
        let refused = refused.error(422, "Invalid");
        let message = refused["message"].as_str().unwrap();
        assert!(
            message.contains("failed to allocate requested HealthCheck NodePort"),
            "{message}"
        );
        assert!(message.contains(why), "{message}");
    }
    // It may not be changed, is not lost, and goes with the policy.
    let put = async |spec: serde_json::Value| {
        let mut next = c.get(&format!("{services}/a")).await.ok(200);
        for (key, value) in spec.as_object().unwrap() {
            next["spec"][key] = value.clone();
        }
        c.put(&format!("{services}/a"), &next).await
    };
    put(json!({"healthCheckNodePort": 30001}))
        .await
        .error(422, "Invalid");
    let kept = put(json!({"healthCheckNodePort": null})).await.ok(200);
    assert_eq!(kept["spec"]["healthCheckNodePort"], health);
    let wide = put(json!({"externalTrafficPolicy": "Cluster"}))
        .await
        .ok(200);
    assert!(wide["spec"]["healthCheckNodePort"].is_null(), "{wide}");
    c.post(services, &local("b", Some(taken))).await.ok(201);
    let refused = put(json!({"healthCheckNodePort": 30001})).await;
    let refused = refused.error(422, "Invalid");
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.contains("may only be set when `type` is 'LoadBalancer'"),
        "{message}"
    );
}

/// What a new type cannot have goes when only the type was changed; addresses and ports come back
/// with a type that has them.
#[tokio::test]
async fn services_change_their_type() {
    let c = Cluster::new().await;
    let services = "/api/v1/namespaces/default/services";
    let wide = json!({"metadata": {"name": "s"}, "spec": {
        "type": "LoadBalancer", "ports": [{"port": 80}]}});
    let made = c.post(services, &wide).await.ok(201);
    let address = made["spec"]["clusterIP"].clone();
    let port = made["spec"]["ports"][0]["nodePort"].clone();
    assert!(address.is_string() && port.is_number(), "{made}");
    let change = async |change: serde_json::Value, base: &serde_json::Value| {
        let mut next = base.clone();
        for (key, value) in change.as_object().unwrap() {
            next["spec"][key] = value.clone();
        }
        c.put(&format!("{services}/s"), &next).await.ok(200)
    };
    let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}});
    let given = c
        .patch(&format!("{services}/s/status"), "merge", &status)
        .await
        .ok(200);
    let point = json!([{"ip": "192.0.2.1", "ipMode": "VIP"}]);
    assert_eq!(given["status"]["loadBalancer"]["ingress"], point);
    let plain = change(json!({"type": "ClusterIP"}), &given).await;
    assert_eq!(
        plain["status"],
        json!({"loadBalancer": {}}),
        "in force no more"
    );
    assert_eq!(plain["spec"]["clusterIP"], address);
    assert!(plain["spec"]["ports"][0]["nodePort"].is_null(), "{plain}");
    assert!(plain["spec"]["externalTrafficPolicy"].is_null(), "{plain}");
    assert!(
        plain["spec"]["allocateLoadBalancerNodePorts"].is_null(),
        "{plain}"
    );
    let named = json!({"type": "ExternalName", "externalName": "example.com"});
    let named = change(named, &plain).await;
    for key in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        assert!(named["spec"][key].is_null(), "{key}: {named}");
    }
    let again = change(json!({"type": "NodePort", "externalName": null}), &named).await;
    assert!(again["spec"]["clusterIP"].is_string(), "{again}");
    assert!(again["spec"]["ports"][0]["nodePort"].is_number(), "{again}");
    assert_eq!(again["spec"]["externalTrafficPolicy"], "Cluster");
    // both were given back: another Service may have them
    let other = json!({"metadata": {"name": "t"}, "spec": {"type": "NodePort",
        "clusterIP": address, "ports": [{"port": 80, "nodePort": port}]}});
    if again["spec"]["clusterIP"] != address && again["spec"]["ports"][0]["nodePort"] != port {
        c.post(services, &other).await.ok(201);
    }
}
