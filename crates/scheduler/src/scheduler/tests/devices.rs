//! Pods with resource claims; the numbers are those of the DRA checklist.

use super::*;

impl Bed {
    /// A node with so many devices of driver `gpu.example.com`.
    pub(super) fn gpus(&self, node: &str, count: usize) {
        self.node(node, "0");
        let devices: Vec<Value> = (0..count)
            .map(|i| json!({"name": format!("gpu-{i}")}))
            .collect();
        self.slice(node, json!(devices));
    }

    pub(super) fn slice(&self, node: &str, devices: Value) {
        self.api.put(
            "resourceslices",
            json!({"metadata": {"name": format!("{node}-gpus"), "uid": node}, "spec": {
            "driver": "gpu.example.com", "nodeName": node, "devices": devices,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}}),
        );
    }

    pub(super) fn class(&self, name: &str, members: Value) {
        let mut spec =
            json!({"selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}]});
        for (key, value) in members.as_object().unwrap() {
            spec[key] = value.clone();
        }
        self.api.put(
            "deviceclasses",
            json!({"metadata": {"name": name, "uid": name}, "spec": spec}),
        );
    }

    fn claim(&self, name: &str, requests: Value) {
        self.claim_of(name, json!({"requests": requests}));
    }

    /// A claim for these `spec.devices`.
    fn claim_of(&self, name: &str, devices: Value) {
        self.api.put(
            "resourceclaims",
            json!({
            "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}")},
            "spec": {"devices": devices}}),
        );
    }

    pub(super) fn one_gpu(&self, name: &str) {
        self.claim(name, json!([{"name": "r", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}}]));
    }

    /// A pod that uses these claims.
    pub(super) fn user(&self, name: &str, claims: &[&str], mut extra: Value) {
        let list: Vec<Value> = claims
            .iter()
            .map(|c| json!({"name": c, "resourceClaimName": c}))
            .collect();
        extra["resourceClaims"] = json!(list);
        self.pod(name, "0", extra);
    }

    fn status(&self, claim: &str) -> Value {
        self.api.get("resourceclaims", "default", claim).unwrap()["status"].clone()
    }

    pub(super) fn device_of(&self, claim: &str) -> Option<String> {
        let status = self.status(claim);
        let result = &status["allocation"]["devices"]["results"][0];
        Some(format!(
            "{}/{}",
            result["pool"].as_str()?,
            result["device"].as_str()?
        ))
    }

    pub(super) fn users_of(&self, claim: &str) -> Vec<String> {
        let status = self.status(claim);
        let users = status["reservedFor"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        users
            .iter()
            .map(|u| u["name"].as_str().unwrap().to_owned())
            .collect()
    }
}

fn start() -> Bed {
    let bed = Bed::start(SchedulerOptions::default());
    bed.class("gpu", json!({}));
    bed
}

/// 76, 68
#[tokio::test(start_paused = true)]
async fn a_claim_is_allocated_and_reserved_before_the_pod_is_bound() {
    let bed = start();
    bed.node("plain", "0");
    bed.gpus("n", 1);
    bed.one_gpu("c");
    bed.user("p", &["c"], json!({}));
    bed.until("bound", |b| b.node_of("p").as_deref() == Some("n"))
        .await;
    assert_eq!(bed.device_of("c").as_deref(), Some("n/gpu-0"));
    assert_eq!(bed.users_of("c"), ["p"]);
    let writes: Vec<_> = bed
        .api
        .log()
        .into_iter()
        .filter(|l| l.path.contains("resourceclaims/c") || l.path.ends_with("/binding"))
        .collect();
    assert!(
        writes[0].path.ends_with("/c")
            && writes[0].body["metadata"]["finalizers"]
                == json!(["resource.kubernetes.io/delete-protection"])
    );
    assert!(
        writes[1].path.ends_with("/status")
            && writes[1].body["status"]["allocation"].is_object()
            && writes[1].body["status"]["reservedFor"].is_array()
    );
    assert!(writes[2].path.ends_with("/binding"));
    bed.stop().await;
}

/// 71, 72
#[tokio::test(start_paused = true)]
async fn a_pod_waits_for_its_claim_and_class() {
    let bed = Bed::start(SchedulerOptions::default());
    bed.gpus("n", 1);
    bed.user("p", &["c"], json!({}));
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(bed.node_of("p"), None);
    bed.one_gpu("c");
    bed.until("says which class", |b| {
        b.message("p")
            .is_some_and(|m| m.contains("request r: device class gpu does not exist"))
    })
    .await;
    bed.class("gpu", json!({}));
    bed.until("bound", |b| b.node_of("p").is_some()).await;
    bed.stop().await;
}

/// 73, 74, 75, 70
#[tokio::test(start_paused = true)]
async fn devices_are_shared_by_claim_and_never_given_twice() {
    let bed = start();
    bed.gpus("a", 1);
    bed.gpus("b", 1);
    bed.one_gpu("shared");
    for i in 0..5 {
        bed.user(&format!("s{i}"), &["shared"], json!({}));
    }
    bed.until("all bound", |b| {
        (0..5).all(|i| b.node_of(&format!("s{i}")).is_some())
    })
    .await;
    assert_eq!(bed.users_of("shared").len(), 5);
    let node = bed.node_of("s0");
    assert!((1..5).all(|i| bed.node_of(&format!("s{i}")) == node));
    // Two more for the one device that is left.
    bed.one_gpu("x");
    bed.one_gpu("y");
    bed.user("px", &["x"], json!({}));
    bed.user("py", &["y"], json!({}));
    bed.until("one bound, one refused", |b| {
        let bound = [b.node_of("px"), b.node_of("py")].iter().flatten().count();
        let refused = [b.message("px"), b.message("py")];
        bound == 1
            && refused
                .iter()
                .flatten()
                .any(|m| m.contains("2 cannot allocate all claims"))
    })
    .await;
    let winner = if bed.node_of("px").is_some() {
        "x"
    } else {
        "y"
    };
    let mut freed = bed.api.get("resourceclaims", "default", winner).unwrap();
    freed["status"] = json!({});
    bed.api.put("resourceclaims", freed);
    bed.until("the other is bound as well", |b| {
        b.node_of("px").is_some() && b.node_of("py").is_some()
    })
    .await;
    bed.stop().await;
}

/// 77
#[tokio::test(start_paused = true)]
async fn a_failed_binding_gives_claim_and_reservation_back() {
    let bed = start();
    bed.gpus("n", 1);
    bed.one_gpu("c");
    bed.api.refuse_bindings(1);
    bed.user("p", &["c"], json!({}));
    bed.until("bound after all", |b| b.node_of("p").is_some())
        .await;
    bed.until("reserved again", |b| b.users_of("c") == ["p"])
        .await;
    let log = bed.api.log();
    let written = log
        .iter()
        .filter(|l| l.path.ends_with("resourceclaims/c/status"));
    let written: Vec<_> = written
        .map(|l| {
            let status = &l.body["status"];
            (
                status["allocation"].is_object(),
                status["reservedFor"].is_array(),
            )
        })
        .collect();
    assert_eq!(written, [(true, true), (false, false), (true, true)]);
    bed.stop().await;
}

/// A pod that could not be bound is tried again when its claim has been given back: the attempt would find the claim reserved, and
/// the pod would be bound before its devices are taken away.
#[tokio::test(start_paused = true)]
async fn a_pod_is_not_tried_again_while_its_claim_is_given_back() {
    let bed = start();
    bed.gpus("n", 1);
    bed.one_gpu("c");
    bed.api.refuse_bindings(1);
    bed.api.delay_returns(Duration::from_secs(20));
    bed.user("p", &["c"], json!({}));
    bed.until("bound after all", |b| b.node_of("p").is_some())
        .await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(bed.users_of("c"), ["p"]);
    assert!(bed.device_of("c").is_some());
    bed.stop().await;
}

/// What others have reserved stays theirs when a pod with the same claim cannot be bound.
#[tokio::test(start_paused = true)]
async fn a_failed_binding_frees_no_claim_of_others() {
    let bed = start();
    bed.gpus("n", 1);
    bed.one_gpu("c");
    bed.user("first", &["c"], json!({}));
    bed.until("reserved", |b| b.users_of("c") == ["first"])
        .await;
    bed.until("bound", |b| b.node_of("first").is_some()).await;
    bed.api.refuse_bindings(1);
    bed.user("second", &["c"], json!({}));
    bed.until("bound after all", |b| b.node_of("second").is_some())
        .await;
    assert_eq!(bed.users_of("c"), ["first", "second"]);
    let log = bed.api.log();
    let mut written = log
        .iter()
        .filter(|l| l.path.ends_with("resourceclaims/c/status"));
    assert!(written.all(|l| l.body["status"]["allocation"].is_object()));
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_allocation_that_was_written_and_not_acknowledged_is_the_pods() {
    let bed = start();
    bed.gpus("n", 1);
    bed.one_gpu("c");
    bed.api.lose_claims(2);
    bed.user("p", &["c"], json!({}));
    bed.until("bound", |b| b.node_of("p").is_some()).await;
    assert_eq!(bed.users_of("c"), ["p"]);
    let refused = |l: &fake::Entry| l.path.ends_with("/pods/p/status");
    assert!(!bed.api.log().iter().any(refused), "at the first attempt");
    bed.stop().await;
}

/// 78
#[tokio::test(start_paused = true)]
async fn an_unused_allocation_in_the_way_is_taken_back() {
    let bed = start();
    bed.gpus("full", 1);
    bed.one_gpu("c");
    let mut claim = bed.api.get("resourceclaims", "default", "c").unwrap();
    claim["status"] = json!({"allocation": {"devices": {"results": [{"request": "r", "driver": "gpu.example.com", "pool": "gone", "device": "gpu-0"}]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gone"]}]}]}}});
    bed.api.put("resourceclaims", claim);
    bed.user("p", &["c"], json!({}));
    bed.until("bound", |b| b.node_of("p").as_deref() == Some("full"))
        .await;
    assert_eq!(bed.device_of("c").as_deref(), Some("full/gpu-0"));
    bed.stop().await;
}

/// 49
#[tokio::test(start_paused = true)]
async fn a_failing_selector_keeps_the_pod_pending() {
    let bed = start();
    bed.gpus("n", 1);
    bed.claim("c", json!([{"name": "r", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1,
        "selectors": [{"cel": {"expression": "device.attributes['x.com'].fast"}}]}}]));
    bed.user("p", &["c"], json!({}));
    bed.until("says so", |b| {
        b.message("p")
            .is_some_and(|m| m.contains("CEL runtime error: no such key: fast"))
    })
    .await;
    assert_eq!(bed.node_of("p"), None);
    bed.stop().await;
}

/// 80
#[tokio::test(start_paused = true)]
async fn binding_conditions_hold_the_pod_back() {
    let bed = start();
    bed.node("n", "0");
    bed.slice("n", json!([{"name": "gpu-0", "bindingConditions": ["ready"], "bindingFailureConditions": ["broken"]}]));
    bed.one_gpu("c");
    bed.user("p", &["c"], json!({}));
    bed.until("allocated", |b| b.device_of("c").is_some()).await;
    bed.until("announced", |b| {
        !b.events("BindingConditionsPending").is_empty()
    })
    .await;
    let event = bed.events("BindingConditionsPending").remove(0);
    let name = event["metadata"]["name"].as_str().unwrap();
    assert!(
        davit_api::names::check_dns1123_subdomain(name).is_empty(),
        "{name}"
    );
    assert!(event["metadata"]["generateName"].is_null());
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(bed.node_of("p"), None);
    let mut claim = bed.api.get("resourceclaims", "default", "c").unwrap();
    claim["status"]["devices"] = json!([{"driver": "gpu.example.com", "pool": "n", "device": "gpu-0",
        "conditions": [{"type": "ready", "status": "True", "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}]);
    bed.api.put("resourceclaims", claim);
    bed.until("bound", |b| b.node_of("p").is_some()).await;
    bed.stop().await;
}

/// 79: the real clock, since searching does not wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_search_without_end_is_broken_off_and_tried_again() {
    let bed = Bed::configured(
        "profiles: [{pluginConfig: [{name: DynamicResources, args: {filterTimeout: 1s}}]}]",
    );
    bed.class("gpu", json!({}));
    bed.node("n", "0");
    let devices = |values: usize| {
        let device = |i: usize| json!({"name": format!("gpu-{i}"), "attributes": {"slot": {"int": i % values}}});
        json!((0..30).map(device).collect::<Vec<_>>())
    };
    bed.slice("n", devices(15));
    // Sixteen different requests for fifteen different slots.
    let request = |i: usize| {
        json!({"name": format!("r{i}"), "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1,
            "selectors": [{"cel": {"expression": format!("device.attributes['gpu.example.com'].slot + {i} >= 0")}}]}})
    };
    let requests: Vec<Value> = (0..16).map(request).collect();
    let constraints = json!([{"distinctAttribute": "gpu.example.com/slot"}]);
    bed.claim_of(
        "c",
        json!({"requests": requests, "constraints": constraints}),
    );
    bed.user("p", &["c"], json!({}));
    bed.until("broken off", |b| {
        b.message("p")
            .is_some_and(|m| m.contains("took longer than the filter timeout"))
    })
    .await;
    assert_eq!(bed.node_of("p"), None);
    bed.slice("n", devices(16));
    bed.until("bound", |b| b.node_of("p").is_some()).await;
    bed.stop().await;
}

/// 80: the two ways in which it ends badly.
#[tokio::test(start_paused = true)]
async fn a_pod_whose_devices_do_not_become_ready_goes_elsewhere() {
    let bed = start();
    let conditional = json!([{"name": "gpu-0", "bindingConditions": ["ready"], "bindingFailureConditions": ["broken"]}]);
    bed.node("a", "0");
    bed.slice("a", conditional);
    bed.one_gpu("c");
    bed.user("p", &["c"], json!({}));
    bed.until("allocated", |b| b.device_of("c").is_some()).await;
    // Another place turns up, and the device is said to be broken; its driver does not offer it again.
    bed.gpus("b", 1);
    bed.slice("a", json!([]));
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(bed.node_of("p"), None);
    let mut claim = bed.api.get("resourceclaims", "default", "c").unwrap();
    claim["status"]["devices"] = json!([{"driver": "gpu.example.com", "pool": "a", "device": "gpu-0",
        "conditions": [{"type": "broken", "status": "True", "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}]);
    bed.api.put("resourceclaims", claim);
    bed.until("bound elsewhere", |b| {
        b.node_of("p").as_deref() == Some("b")
    })
    .await;
    assert_eq!(bed.device_of("c").as_deref(), Some("b/gpu-0"));
    // Nothing is ever said of a second one: what was allocated long ago has failed.
    bed.claim("d", json!([{"name": "r", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}}]));
    let mut claim = bed.api.get("resourceclaims", "default", "d").unwrap();
    let result = json!({"request": "r", "driver": "gpu.example.com", "pool": "a", "device": "gpu-0",
        "bindingConditions": ["ready"], "bindingFailureConditions": ["broken"]});
    claim["status"] = json!({"allocation": {"allocationTimestamp": "2026-01-01T00:00:00Z", "devices": {"results": [result]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}]}}});
    bed.api.put("resourceclaims", claim);
    bed.gpus("e", 1);
    bed.user("q", &["d"], json!({}));
    bed.until("taken back and bound elsewhere", |b| {
        b.node_of("q").as_deref() == Some("e")
    })
    .await;
    bed.stop().await;
}

/// 84, 85: plugin and driver take turns, nothing asked for is nothing claimed, and all of ten.
#[tokio::test(start_paused = true)]
async fn amounts_of_extended_resources_and_a_plugin_that_leaves() {
    let bed = Bed::start(SchedulerOptions::default());
    bed.class("gpu", json!({"extendedResourceName": "example.com/gpu"}));
    let asks = |amount: &str| {
        json!({"containers": [{"name": "c", "image": "x",
        "resources": {"requests": {"example.com/gpu": amount}, "limits": {"example.com/gpu": amount}}}]})
    };
    let devices: Vec<Value> = (0..10)
        .map(|i| json!({"name": format!("gpu-{i}")}))
        .collect();
    bed.slice("n", json!(devices));
    let node = |amount: &str| {
        json!({"metadata": {"name": "n", "uid": "n"},
            "status": {"allocatable": {"cpu": "4", "pods": "20", "example.com/gpu": amount}}})
    };
    bed.api.put("nodes", node("10"));
    bed.pod("by-plugin", "0", asks("10"));
    bed.until("bound", |b| b.node_of("by-plugin").is_some())
        .await;
    assert!(bed.api.all("resourceclaims").is_empty());
    bed.api.put("nodes", node("0"));
    bed.pod("none", "0", asks("0"));
    bed.pod("all", "0", asks("10"));
    bed.until("both bound", |b| {
        b.node_of("none").is_some() && b.node_of("all").is_some()
    })
    .await;
    let claims = bed.api.all("resourceclaims");
    assert_eq!(claims.len(), 1);
    assert_eq!(
        claims[0]["spec"]["devices"]["requests"][0]["exactly"]["count"],
        10
    );
    let results = claims[0]["status"]["allocation"]["devices"]["results"].as_array();
    assert_eq!(results.map(Vec::len), Some(10));
    bed.pod("more", "0", asks("1"));
    bed.until("waits", |b| {
        b.message("more")
            .is_some_and(|m| m.contains("cannot allocate all claims"))
    })
    .await;
    let mut freed = claims[0].clone();
    freed["status"] = json!({});
    bed.api.put("resourceclaims", freed);
    bed.until("bound after the release", |b| b.node_of("more").is_some())
        .await;
    bed.stop().await;
}

/// 81
#[tokio::test(start_paused = true)]
async fn the_better_alternative_decides_between_nodes() {
    let bed = start();
    for (node, model) in [("a", "small"), ("b", "large"), ("c", "small")] {
        bed.node(node, "0");
        bed.slice(
            node,
            json!([{"name": "gpu-0", "attributes": {"model": {"string": model}}}]),
        );
    }
    let sub = |name: &str| {
        json!({"name": name, "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1,
        "selectors": [{"cel": {"expression": format!("device.attributes['gpu.example.com'].model == '{name}'")}}]})
    };
    bed.claim(
        "c",
        json!([{"name": "r", "firstAvailable": [sub("large"), sub("small")]}]),
    );
    bed.user("p", &["c"], json!({}));
    bed.until("bound", |b| b.node_of("p").as_deref() == Some("b"))
        .await;
    assert_eq!(
        bed.status("c")["allocation"]["devices"]["results"][0]["request"],
        "r/large"
    );
    bed.stop().await;
}

/// 82, 83, 84, 85, 87
#[tokio::test(start_paused = true)]
async fn extended_resources_come_from_devices_where_a_class_stands_for_them() {
    let bed = Bed::start(SchedulerOptions::default());
    bed.gpus("n", 1);
    let asks = |name: &str| {
        json!({"containers": [{"name": "c", "image": "x",
        "resources": {"requests": {"cpu": "1", "example.com/gpu": "1"}, "limits": {"example.com/gpu": "1"}}}], "schedulerName": name})
    };
    bed.pod("p", "0", asks("default-scheduler"));
    bed.until("refused", |b| {
        b.message("p")
            .is_some_and(|m| m.contains("1 Insufficient example.com/gpu"))
    })
    .await;
    bed.class("gpu", json!({"extendedResourceName": "example.com/gpu"}));
    bed.until("bound", |b| b.node_of("p").is_some()).await;
    let claim = bed.api.all("resourceclaims").remove(0);
    assert!(
        claim["metadata"]["name"]
            .as_str()
            .unwrap()
            .starts_with("p-extended-resources-")
    );
    assert_eq!(
        claim["metadata"]["annotations"]["resource.kubernetes.io/extended-resource-claim"],
        "true"
    );
    assert_eq!(claim["metadata"]["ownerReferences"][0]["uid"], "uid-p");
    assert_eq!(
        claim["spec"]["devices"]["requests"][0]["name"],
        "container-0-request-1"
    );
    assert_eq!(claim["status"]["reservedFor"][0]["name"], "p");
    let status =
        bed.api.get("pods", "default", "p").unwrap()["status"]["extendedResourceClaimStatus"]
            .clone();
    assert_eq!(
        status["requestMappings"],
        json!([{"containerName": "c", "resourceName": "example.com/gpu", "requestName": "container-0-request-1"}])
    );
    // The only device is taken.
    bed.pod("q", "0", asks("default-scheduler"));
    bed.until("second waits", |b| {
        b.message("q")
            .is_some_and(|m| m.contains("cannot allocate all claims"))
    })
    .await;
    // A node that has the resource itself needs no claim.
    bed.api.put(
        "nodes",
        json!({"metadata": {"name": "plugin", "uid": "plugin"},
        "status": {"allocatable": {"cpu": "4", "pods": "20", "example.com/gpu": "1"}}}),
    );
    bed.until("second bound", |b| {
        b.node_of("q").as_deref() == Some("plugin")
    })
    .await;
    assert_eq!(bed.api.all("resourceclaims").len(), 1);
    bed.stop().await;
}

/// Ours: devices of pods of lower priority count in preemption.
#[tokio::test(start_paused = true)]
async fn devices_of_lesser_pods_are_counted_in_preemption() {
    let bed = start();
    bed.gpus("n", 1);
    bed.one_gpu("low");
    bed.user("lesser", &["low"], json!({"priority": 1}));
    bed.until("bound", |b| b.node_of("lesser").is_some()).await;
    bed.one_gpu("high");
    bed.user("greater", &["high"], json!({"priority": 100}));
    bed.until("lesser is gone", |b| b.node_of("lesser").is_none())
        .await;
    // What the claim controller does then.
    let mut freed = bed.api.get("resourceclaims", "default", "low").unwrap();
    freed["status"] = json!({});
    bed.api.put("resourceclaims", freed);
    bed.until("greater is bound", |b| b.node_of("greater").is_some())
        .await;
    bed.stop().await;
}

/// Ours, beyond 96: a pod that was put on a node past the scheduler gets its claim there.
#[tokio::test(start_paused = true)]
async fn claims_of_pods_put_on_nodes_by_hand() {
    let bed = start();
    bed.gpus("a", 1);
    bed.gpus("b", 1);
    bed.one_gpu("c");
    bed.user("p", &["c"], json!({"nodeName": "b"}));
    bed.until("reserved", |b| b.users_of("c") == ["p"]).await;
    assert_eq!(bed.device_of("c").as_deref(), Some("b/gpu-0"));
    bed.one_gpu("d");
    bed.user("q", &["d"], json!({"nodeName": "b"}));
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert_eq!(bed.device_of("d"), None, "the only device is taken");
    bed.stop().await;
}

/// The record of a refusal names devices.
#[tokio::test(start_paused = true)]
async fn verdicts_name_devices() {
    let bed = start();
    bed.node("n", "0");
    bed.slice(
        "n",
        json!([{"name": "gpu-0", "taints": [{"key": "broken", "effect": "NoSchedule"}]}]),
    );
    bed.one_gpu("c");
    bed.user("p", &["c"], json!({}));
    bed.until("refused", |b| b.message("p").is_some()).await;
    bed.until("event", |b| !b.events("FailedScheduling").is_empty())
        .await;
    let event = bed.events("FailedScheduling").remove(0);
    let record: Record = serde_json::from_str(
        event["metadata"]["annotations"][VERDICT_ANNOTATION]
            .as_str()
            .unwrap(),
    )
    .unwrap();
    let devices = record.nodes[0].devices.as_ref().unwrap();
    assert_eq!(
        devices.requests[0].devices[0].device,
        "gpu.example.com/n/gpu-0"
    );
    assert_eq!(
        devices.requests[0].devices[0].cause.to_string(),
        "taint broken:NoSchedule is not tolerated"
    );
    bed.stop().await;
}

impl Bed {
    /// Devices of which so many and no more are distinct, each unlike all others: nobody sees at once that there is not one more.
    fn puzzle(&self, distinct: usize) {
        self.class("gpu", json!({}));
        self.node("n", "5");
        let device = |i: usize| {
            let attributes = json!({"gpu.example.com/kind": {"int": i % distinct}, "gpu.example.com/serial": {"int": i}});
            json!({"name": format!("gpu-{i}"), "attributes": attributes})
        };
        self.slice("n", (0..6 * distinct).map(device).collect());
    }

    /// A pod that wants so many of them, and asks for them in words of its own.
    fn puzzled(&self, namespace: &str, name: &str, count: usize, extra: Value) {
        let selector = json!({"cel": {"expression": format!("device.driver != '{name}'")}});
        let request = json!({"name": "r", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount",
            "count": count, "selectors": [selector]}});
        let constraint = json!({"distinctAttribute": "gpu.example.com/kind"});
        self.api.put(
            "resourceclaims",
            json!({"metadata": {"name": name, "namespace": namespace, "uid": format!("uid-{namespace}-{name}-claim")},
                "spec": {"devices": {"requests": [request], "constraints": [constraint]}}}),
        );
        let mut pod = pod(name, "0", extra);
        pod["metadata"]["namespace"] = json!(namespace);
        pod["metadata"]["uid"] = json!(format!("uid-{namespace}-{name}"));
        pod["spec"]["resourceClaims"] = json!([{"name": "c", "resourceClaimName": name}]);
        self.api.put("pods", pod);
    }
}

/// How long an attempt may look for devices in these tests.
const HALF_A_SECOND: &str = "profiles:
- pluginConfig:
  - name: DynamicResources
    args:
      filterTimeout: 500ms
";

/// Twenty pods whose claims take all the time that they get, and whose turn it is before that of a pod that came later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_of_strangers_hold_nobody_up() {
    let bed = Bed::configured(HALF_A_SECOND);
    bed.puzzle(11);
    for n in 0..20 {
        bed.puzzled("hostile", &format!("h{n}"), 12, json!({"priority": 1000}));
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let begin = std::time::Instant::now();
    bed.pod("innocent", "1", json!({}));
    bed.until("bound", |b| b.node_of("innocent").is_some())
        .await;
    let waited = begin.elapsed();
    assert!(waited < Duration::from_secs(3), "{waited:?}");
    bed.stop().await;
}
