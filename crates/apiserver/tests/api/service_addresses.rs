//! Claims on the addresses of Services, and the ranges that these come from (spec network.md, items 12 to 18; scale-out.md,
//! items 42, 43 and 45).

use std::collections::BTreeSet;

use davit_apiserver::Options;
use serde_json::{Value, json};

use crate::cluster::Cluster;

const SERVICES: &str = "/api/v1/namespaces/default/services";
const CLAIMS: &str = "/apis/networking.k8s.io/v1/ipaddresses";
const RANGES: &str = "/apis/networking.k8s.io/v1/servicecidrs";

fn service(name: &str, spec: &Value) -> Value {
    let mut service =
        json!({ "metadata": { "name": name }, "spec": { "ports": [{ "port": 80 }] } });
    for (key, value) in spec.as_object().unwrap() {
        service["spec"][key] = value.clone();
    }
    service
}

async fn claims(c: &Cluster) -> BTreeSet<String> {
    let list = c.get(CLAIMS).await.ok(200);
    let names = list["items"].as_array().unwrap().iter();
    names
        .map(|claim| claim["metadata"]["name"].as_str().unwrap().to_owned())
        .collect()
}

/// A cluster with very few addresses: the API server's own may be one of them.
async fn small() -> Cluster {
    Cluster::with(|options: &mut Options| options.service_ranges = "10.5.0.0/29".parse().unwrap())
        .await
}

/// Says for the controller that a range may be used.
async fn make_ready(c: &Cluster, name: &str) {
    let ready = json!({ "status": { "conditions": [{
        "type": "Ready", "status": "True", "reason": "", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }] } });
    c.patch(&format!("{RANGES}/{name}/status"), "merge", &ready)
        .await
        .ok(200);
}

#[tokio::test]
async fn items_012_013_every_address_is_claimed_by_an_object() {
    let c = Cluster::new().await;
    let before = claims(&c).await;
    let made = c.post(SERVICES, &service("a", &json!({}))).await.ok(201);
    let ip = made["spec"]["clusterIP"].as_str().unwrap();
    let claim = c.get(&format!("{CLAIMS}/{ip}")).await.ok(200);
    assert_eq!(
        claim["metadata"]["labels"],
        json!({
            "ipaddress.kubernetes.io/ip-family": "IPv4",
            "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
        })
    );
    let parent = json!({ "resource": "services", "namespace": "default", "name": "a" });
    let mut said = claim["spec"]["parentRef"].clone();
    said.as_object_mut().unwrap().remove("group");
    assert_eq!(said, parent);
    // What does not come to be claims nothing: a name that is taken, a port that is out of range, an attempt.
    let with_claim = claims(&c).await;
    c.post(SERVICES, &service("a", &json!({})))
        .await
        .error(409, "AlreadyExists");
    let port = json!({ "type": "NodePort", "ports": [{ "port": 80, "nodePort": 80 }] });
    c.post(SERVICES, &service("b", &port))
        .await
        .error(422, "Invalid");
    c.post(&format!("{SERVICES}?dryRun=All"), &service("b", &json!({})))
        .await
        .ok(201);
    assert_eq!(claims(&c).await, with_claim);
    // Type ExternalName has no address; another one comes with another type.
    let name = json!({ "spec": { "type": "ExternalName", "externalName": "e", "clusterIP": null, "clusterIPs": null } });
    c.patch(&format!("{SERVICES}/a"), "merge", &name)
        .await
        .ok(200);
    assert_eq!(claims(&c).await, before);
    let back = json!({ "spec": { "type": "ClusterIP", "externalName": null } });
    let made = c
        .patch(&format!("{SERVICES}/a"), "merge", &back)
        .await
        .ok(200);
    let ip = made["spec"]["clusterIP"].as_str().unwrap();
    assert!(claims(&c).await.contains(ip));
    c.delete(&format!("{SERVICES}/a"), &Value::Null)
        .await
        .ok(200);
    assert_eq!(claims(&c).await, before);
}

#[tokio::test]
async fn items_042_043_two_servers_give_no_address_twice() {
    let one = Cluster::new().await;
    let other = one.another().await;
    let all = (0..60).map(|i| {
        let c = if i % 2 == 0 { &one } else { &other };
        let service = service(&format!("s{i}"), &json!({}));
        async move {
            let made = c.post(SERVICES, &service).await.ok(201);
            made["spec"]["clusterIP"].as_str().unwrap().to_owned()
        }
    });
    let all = futures::future::join_all(all).await;
    let distinct: BTreeSet<&String> = all.iter().collect();
    assert_eq!(distinct.len(), 60);
    // the same address at both at once
    let fixed = json!({ "clusterIP": "10.96.0.77" });
    let (here, there) = (service("here", &fixed), service("there", &fixed));
    let (here, there) = tokio::join!(one.post(SERVICES, &here), other.post(SERVICES, &there));
    let (won, lost) = if here.code == 201 {
        (here, there)
    } else {
        (there, here)
    };
    won.ok(201);
    let status = lost.error(422, "Invalid");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains("spec.clusterIPs: Invalid value: [\"10.96.0.77\"]: failed to allocate IP 10.96.0.77: provided IP is already allocated"),
        "{message}"
    );
    // Deleted at the other one: free at once.
    for i in 0..60 {
        other
            .delete(&format!("{SERVICES}/s{i}"), &Value::Null)
            .await
            .ok(200);
    }
    let fixed = json!({ "clusterIP": all[0] });
    one.post(SERVICES, &service("again", &fixed)).await.ok(201);
    let left: Vec<String> = claims(&one).await.into_iter().collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[tokio::test]
async fn items_014_015_045_ranges_that_are_added_give_addresses() {
    let c = small().await;
    let mut given = BTreeSet::new();
    for i in 0..5 {
        let made = c
            .post(SERVICES, &service(&format!("s{i}"), &json!({})))
            .await
            .ok(201);
        given.insert(made["spec"]["clusterIP"].as_str().unwrap().to_owned());
    }
    // the first one is that of `kubernetes`
    let wanted: BTreeSet<String> = (2..=6).map(|i| format!("10.5.0.{i}")).collect();
    assert_eq!(given, wanted);
    let more = service("more", &json!({}));
    let status = c.post(SERVICES, &more).await.error(500, "InternalError");
    assert_eq!(
        status["message"],
        "Internal error occurred: failed to allocate a serviceIP for Service \"more\": range is full"
    );
    let fixed = service("fixed", &json!({ "clusterIP": "203.0.113.5" }));
    let range = json!({ "metadata": { "name": "added" }, "spec": { "cidrs": ["203.0.113.0/28"] } });
    c.post(RANGES, &range).await.ok(201);
    let status = c.post(SERVICES, &fixed).await.error(422, "Invalid");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains("the provided IP (203.0.113.5) is not in the valid range. The range of valid IPs is 10.5.0.0/29"),
        "a range that is not ready: {message}"
    );
    make_ready(&c, "added").await;
    c.post(SERVICES, &fixed).await.ok(201);
    let made = c.post(SERVICES, &more).await.ok(201);
    let ip = made["spec"]["clusterIP"].as_str().unwrap();
    assert!(ip.starts_with("203.0.113."), "{ip}");
    // What users write as external addresses may be in neither.
    let external = service("external", &json!({ "externalIPs": ["203.0.113.9"] }));
    c.post(SERVICES, &external).await.error(422, "Invalid");
    // One that is going gives none any more.
    let finalizer = json!({ "metadata": { "finalizers": ["example.com/stays"] } });
    c.patch(&format!("{RANGES}/added"), "merge", &finalizer)
        .await
        .ok(200);
    c.delete(&format!("{RANGES}/added"), &Value::Null).await;
    c.post(SERVICES, &service("late", &json!({})))
        .await
        .error(500, "InternalError");
}

#[tokio::test]
async fn services_that_are_older_than_claims_keep_their_addresses() {
    let c = Cluster::new().await;
    let made = c.post(SERVICES, &service("old", &json!({}))).await.ok(201);
    let ip = made["spec"]["clusterIP"].as_str().unwrap();
    c.delete(&format!("{CLAIMS}/{ip}"), &Value::Null)
        .await
        .ok(200);
    let later = c.another().await;
    let claim = later.get(&format!("{CLAIMS}/{ip}")).await.ok(200);
    assert_eq!(claim["spec"]["parentRef"]["name"], "old");
    let same = service("new", &json!({ "clusterIP": ip }));
    later.post(SERVICES, &same).await.error(422, "Invalid");
}

#[tokio::test]
async fn item_044_node_ports_are_claimed_across_servers() {
    let few = |options: &mut Options| options.node_ports = "30000-30001".parse().unwrap();
    let one = Cluster::with(few).await;
    let other = one.another_with(few).await;
    let wide = |name: &str, port: &Value| {
        let ports = json!([{ "port": 80, "nodePort": port }]);
        service(name, &json!({ "type": "NodePort", "ports": ports }))
    };
    one.post(SERVICES, &wide("a", &json!(30001))).await.ok(201);
    let status = other
        .post(SERVICES, &wide("b", &json!(30001)))
        .await
        .error(422, "Invalid");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains(
            "spec.ports[0].nodePort: Invalid value: 30001: provided port is already allocated"
        ),
        "{message}"
    );
    let made = other.post(SERVICES, &wide("c", &json!(null))).await.ok(201);
    assert_eq!(made["spec"]["ports"][0]["nodePort"], 30000);
    let status = one
        .post(SERVICES, &wide("d", &json!(null)))
        .await
        .error(422, "Invalid");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains("failed to allocate a nodePort: range is full"),
        "{message}"
    );
    // What was claimed for a Service that did not come to be is free: its address could not be had.
    let both = json!({ "type": "NodePort", "clusterIP": "10.1.1.1", "ports": [{ "port": 80 }] });
    other
        .delete(&format!("{SERVICES}/c"), &Value::Null)
        .await
        .ok(200);
    one.post(SERVICES, &service("e", &both))
        .await
        .error(422, "Invalid");
    // One that was deleted at the other server, too.
    one.delete(&format!("{SERVICES}/a"), &Value::Null)
        .await
        .ok(200);
    for name in ["f", "g"] {
        other
            .post(SERVICES, &wide(name, &json!(null)))
            .await
            .ok(201);
    }
}
