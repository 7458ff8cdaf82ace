//! Devices that take of their node's own resources (KEP-5517).

use super::*;

impl Bed {
    /// A node with four CPUs, each of so many devices of which takes CPUs.
    fn cores(&self, node: &str, count: usize, each: &str) {
        self.node(node, "0");
        let devices: Vec<Value> = (0..count)
            .map(|i| json!({"name": format!("core-{i}"), "nodeAllocatableResourceMappings": {"cpu": {"allocationMultiplier": each}}}))
            .collect();
        self.slice(node, json!(devices));
    }

    /// A pod whose container asks for CPUs and uses the claims.
    fn takes(&self, name: &str, cpu: &str, claims: &[&str], extra: Value) {
        let list: Vec<Value> = claims.iter().map(|c| json!({"name": c})).collect();
        let container = json!({"name": "c", "image": "x", "resources": {"requests": {"cpu": cpu}, "claims": list}});
        let mut spec = json!({"containers": [container]});
        for (key, value) in extra.as_object().unwrap() {
            spec[key] = value.clone();
        }
        self.user(name, claims, spec);
    }

    fn told(&self, pod: &str, text: &str) -> bool {
        self.message(pod).is_some_and(|m| m.contains(text))
    }

    fn taken(&self, pod: &str) -> Value {
        let pod = self.api.get("pods", "default", pod).unwrap();
        pod["status"]["nodeAllocatableResourceClaimStatuses"].clone()
    }
}

fn start() -> Bed {
    let bed = Bed::start(SchedulerOptions::default());
    bed.class("gpu", json!({}));
    for claim in ["a", "b", "c"] {
        bed.one_gpu(claim);
    }
    bed
}

#[tokio::test(start_paused = true)]
async fn what_devices_take_counts_with_what_containers_ask_for() {
    let bed = start();
    bed.cores("n", 2, "1500m");
    bed.takes("p", "1", &["a"], json!({}));
    bed.until("bound", |b| b.node_of("p").is_some()).await;
    let expected =
        json!([{"resourceClaimName": "a", "containers": ["c"], "resources": {"cpu": "1500m"}}]);
    assert_eq!(bed.taken("p"), expected);
    // 2.5 of 4 are taken, by who has no claim to see as well
    bed.takes("plain", "1600m", &[], json!({}));
    bed.until("no room", |b| b.told("plain", "Insufficient cpu"))
        .await;
    bed.takes("q", "1", &["b"], json!({}));
    bed.until("no room", |b| b.told("q", "Insufficient cpu"))
        .await;
    assert_eq!(bed.device_of("b"), None);
    bed.api.delete("pods", "default", "plain");
    bed.api.delete("pods", "default", "p");
    bed.until("bound", |b| b.node_of("q").is_some()).await;
    assert_eq!(bed.taken("q")[0]["resourceClaimName"], "b");
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_is_refused_with_numbers() {
    let bed = start();
    bed.cores("n", 1, "5");
    bed.takes("p", "1", &["a"], json!({}));
    bed.until("no room", |b| b.told("p", "Insufficient cpu"))
        .await;
    bed.until("event", |b| !b.events("FailedScheduling").is_empty())
        .await;
    let event = bed.events("FailedScheduling").remove(0);
    let record = event["metadata"]["annotations"][VERDICT_ANNOTATION].clone();
    let record: Record = serde_json::from_str(record.as_str().unwrap()).unwrap();
    let short = &record.nodes[0].shortages[0];
    assert_eq!(
        (&*short.resource, short.requested, short.capacity),
        ("cpu", 6000, 4000)
    );
    assert!(record.nodes[0].devices.is_none());
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_for_one_pod_that_has_a_container_for_it() {
    let bed = start();
    bed.cores("n", 3, "1");
    bed.takes("p", "0", &["a"], json!({}));
    bed.until("bound", |b| b.node_of("p").is_some()).await;
    bed.takes("q", "0", &["a"], json!({}));
    bed.until("shared", |b| {
        b.told(
            "q",
            "node allocatable resource claim a is already used by another pod",
        )
    })
    .await;
    // none of its containers names it
    bed.user("r", &["b"], json!({}));
    bed.until("not referenced", |b| {
        b.told(
            "r",
            "claim b: node-allocatable resource claim not referenced by any container",
        )
    })
    .await;
    // what a pod asks for as a whole has to be enough for its devices
    let level = |cpu: &str| json!({"resources": {"requests": {"cpu": cpu}}});
    bed.takes("s", "1", &["c"], level("1500m"));
    bed.until("not covered", |b| {
        b.told("s", "pod level request for cpu is insufficient to cover")
    })
    .await;
    bed.api.delete("pods", "default", "s");
    bed.takes("t", "1", &["c"], level("2"));
    bed.until("bound", |b| b.node_of("t").is_some()).await;
    bed.stop().await;
}

/// What is left of an attempt that failed neither counts nor stays.
#[tokio::test(start_paused = true)]
async fn a_binding_that_fails_leaves_nothing_in_the_status() {
    let bed = start();
    bed.cores("n", 1, "2");
    bed.api.refuse_bindings(1);
    bed.takes("p", "1", &["a"], json!({}));
    bed.until("bound", |b| b.node_of("p").is_some()).await;
    let writes = bed.api.log().into_iter();
    let told: Vec<Value> = writes
        .filter(|l| l.path.ends_with("/pods/p/status"))
        .filter_map(|l| {
            l.body["status"]
                .get("nodeAllocatableResourceClaimStatuses")
                .cloned()
        })
        .collect();
    assert_eq!(told.len(), 3, "{told:?}");
    assert!(told[0].is_array() && told[1].is_null() && told[2].is_array());
    // put on a node past the scheduler
    bed.api.delete("pods", "default", "p");
    let mut freed = bed.api.get("resourceclaims", "default", "a").unwrap();
    freed["status"] = json!({});
    bed.api.put("resourceclaims", freed);
    bed.takes("q", "4", &["a"], json!({"nodeName": "n"}));
    bed.until("recorded", |b| b.taken("q").is_array()).await;
    bed.stop().await;
}
