//! Addresses of Services: who writes a Service in one namespace takes none that is another's.

use super::{MERGE, Target};
use serde_json::{Value, json};

const SERVICES: &str = "/api/v1/namespaces/foo/services";

/// Sends a write and goes on, whatever comes of it.
fn attempt(t: &Target, line: &str, body: &Value) {
    let kind = if line.starts_with("PATCH") {
        MERGE
    } else {
        "application/json"
    };
    let headers = [("Content-Type", kind)];
    t.send("ed", line, &headers, &body.to_string());
}

fn service(name: &str, spec: &Value) -> Value {
    let mut service =
        json!({ "metadata": { "name": name }, "spec": { "ports": [{ "port": 443 }] } });
    for (key, value) in spec.as_object().unwrap() {
        service["spec"][key] = value.clone();
    }
    service
}

/// The address of the API server for all pods, by way of a type that has no address, and of its deletion.
pub(super) fn cluster_ips_of_others(t: &Target) {
    let held = t.allowed("root", "/api/v1/namespaces/default/services/kubernetes");
    let (_, body) = held.split_once("\r\n\r\n").unwrap();
    let kubernetes: Value = serde_json::from_str(body).unwrap();
    let address = kubernetes["spec"]["clusterIP"].as_str().unwrap();
    let own = json!({ "type": "ClusterIP", "clusterIP": address });
    let nobodys =
        json!({ "type": "ExternalName", "externalName": "a.example", "clusterIP": address });
    t.refused("ed", &format!("POST {SERVICES}"), &service("direct", &own));
    attempt(t, &format!("POST {SERVICES}"), &service("turned", &nobodys));
    attempt(
        t,
        &format!("PATCH {SERVICES}/turned"),
        &json!({ "spec": { "type": "ClusterIP", "externalName": null } }),
    );
    attempt(t, &format!("POST {SERVICES}"), &service("gone", &nobodys));
    attempt(t, &format!("DELETE {SERVICES}/gone"), &json!({}));
    attempt(t, &format!("POST {SERVICES}"), &service("after", &own));
    let taken = t.allowed("root", SERVICES);
    assert!(!taken.contains(address), "{taken}");
}

/// The same as an external address. Others' are anybody's (CVE-2020-8554), as in Kubernetes.
pub(super) fn external_addresses_that_are_cluster_ips(t: &Target) {
    for address in ["10.96.0.1", "10.96.0.10", "10.96.255.254"] {
        let service = service("external", &json!({ "externalIPs": [address] }));
        t.refused("ed", &format!("POST {SERVICES}"), &service);
    }
    let elsewhere = service("external", &json!({ "externalIPs": ["203.0.113.7"] }));
    attempt(t, &format!("POST {SERVICES}"), &elsewhere);
    t.allowed("ed", &format!("{SERVICES}/external"));
    t.refused(
        "ed",
        &format!("PATCH {SERVICES}/external"),
        &json!({ "spec": { "externalIPs": ["203.0.113.7", "10.96.0.1"] } }),
    );
}

/// Whose status says less than the types of our clients want, a condition without a time. Those who follow Services go on
/// with the others: the new one gets its slice.
pub(super) fn statuses_that_end_watches(t: &Target) {
    let plain = service("timeless", &json!({}));
    t.write(&format!("POST {SERVICES}"), &plain);
    let condition = json!({ "type": "X", "status": "True", "reason": "r", "message": "m" });
    t.write(
        &format!("PATCH {SERVICES}/timeless/status"),
        &json!({ "status": { "conditions": [condition] } }),
    );
    let shown = t.allowed("root", &format!("{SERVICES}/timeless"));
    assert!(shown.contains("conditions"), "{shown}");
    let next = service("next", &json!({ "selector": { "app": "next" } }));
    t.write(&format!("POST {SERVICES}"), &next);
    let slices = "/apis/discovery.k8s.io/v1/namespaces/foo/endpointslices\
                  ?labelSelector=kubernetes.io/service-name=next";
    t.eventually("root", slices, "next-");
}
