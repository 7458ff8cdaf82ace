//! Pods of pod groups, against the API; the numbers are those of the scheduler's checklist.

use davit_api::features::Features;

use super::*;

const GATES: &str = "GenericWorkload=true,GangScheduling=true";
const CLAIMS: &str = "GenericWorkload=true,GangScheduling=true,DRAWorkloadResourceClaims=true";

/// A scheduler with the gates on, and a configuration with this after its kind.
fn grouping(rest: &str) -> Bed {
    with_gates(GATES, rest)
}

fn with_gates(gates: &str, rest: &str) -> Bed {
    let header = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";
    let features: Features = gates.parse().unwrap();
    let text = format!("{header}{rest}");
    let configuration = KubeSchedulerConfiguration::parse_with(&text, &features).unwrap();
    Bed::start(SchedulerOptions {
        configuration,
        features,
        ..SchedulerOptions::default()
    })
}

impl Bed {
    fn gang(&self, name: &str, count: usize) {
        self.api.put(
            "podgroups",
            json!({"metadata": {"name": name, "namespace": "default", "uid": name, "generation": 1},
                "spec": {"schedulingPolicy": {"gang": {"minCount": count}}}}),
        );
    }

    /// A gang that lists these claims.
    fn gang_with(&self, name: &str, count: usize, claims: &[&str]) {
        let listed = |claim: &&str| json!({"name": claim, "resourceClaimName": claim});
        let claims: Vec<Value> = claims.iter().map(listed).collect();
        self.api.put(
            "podgroups",
            json!({"metadata": {"name": name, "namespace": "default", "uid": name, "generation": 1},
                "spec": {"schedulingPolicy": {"gang": {"minCount": count}}, "resourceClaims": claims}}),
        );
    }

    /// Status, reason and message of the group's condition.
    fn group_condition(&self, name: &str) -> Option<[String; 3]> {
        let group = self.api.get("podgroups", "default", name)?;
        let condition = group["status"]["conditions"].as_array()?.first()?.clone();
        assert_eq!(condition["type"], "PodGroupScheduled");
        let text = |key: &str| condition[key].as_str().unwrap_or_default().to_owned();
        Some([text("status"), text("reason"), text("message")])
    }

    fn member(&self, name: &str, group: &str, foo: &str, mut extra: Value) {
        extra["schedulingGroup"] = json!({"podGroupName": group});
        self.pod(name, foo, extra);
    }
}

fn condition(status: &str, reason: &str, message: &str) -> Option<[String; 3]> {
    Some([status, reason, message].map(str::to_owned))
}

#[tokio::test(start_paused = true)]
async fn items_59_and_60_the_group_says_whether_it_goes() {
    let bed = grouping("");
    bed.node("n", "3");
    bed.gang("g", 4);
    for i in 0..5 {
        bed.member(&format!("p{i}"), "g", "1", json!({}));
    }
    let waits = "pod group is unschedulable, waiting for minCount pods from a gang to be scheduled";
    bed.until("three are told that the group waits", |b| {
        let told = |i: &i32| b.message(&format!("p{i}")).as_deref() == Some(waits);
        (0..5).filter(told).count() == 3
    })
    .await;
    let unschedulable = condition("False", "Unschedulable", "pod group is unschedulable");
    bed.until("the group says so", |b| {
        b.group_condition("g") == unschedulable
    })
    .await;
    assert!((0..5).all(|i| bed.node_of(&format!("p{i}")).is_none()));
    let told = bed.events("FailedScheduling");
    let record = told.iter().find(|e| e["message"] == waits).unwrap();
    let record = record["metadata"]["annotations"][VERDICT_ANNOTATION].as_str();
    let record: Record = serde_json::from_str(record.unwrap()).unwrap();
    assert_eq!(record.group.as_deref(), Some(waits));

    bed.node("n", "4");
    let bound = |b: &Bed| {
        let has_node = |i: &i32| b.node_of(&format!("p{i}")).is_some();
        (0..5).filter(has_node).count()
    };
    bed.until("four go", |b| bound(b) == 4).await;
    bed.until("the group says so", |b| {
        b.group_condition("g") == condition("True", "Scheduled", "")
    })
    .await;
    bed.until("the fifth is told why it stays", |b| {
        (0..5).any(|i| {
            let text = b.message(&format!("p{i}"));
            text.is_some_and(|t| t.contains("Insufficient")) && bound(b) == 4
        })
    })
    .await;
    // The condition stays when the fifth is tried again.
    bed.node("other", "0");
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(bed.group_condition("g"), condition("True", "Scheduled", ""));
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn item_62_one_group_has_one_scheduler() {
    let bed = grouping("profiles: [{schedulerName: one}, {schedulerName: two}]\n");
    bed.node("n", "9");
    bed.member("a", "g", "1", json!({"schedulerName": "one"}));
    bed.member("b", "g", "1", json!({"schedulerName": "two"}));
    bed.gang("g", 2);
    let start =
        "all pods in a single pod group should have the same .spec.schedulerName set, got: ";
    let told = |b: &Bed, pod: &str| b.message(pod).is_some_and(|m| m.starts_with(start));
    bed.until("both are told", |b| told(b, "a") && told(b, "b"))
        .await;
    let text = bed.message("a").unwrap();
    assert!(
        text.contains("\"one\"") && text.contains("\"two\""),
        "{text}"
    );
    assert_eq!((bed.node_of("a"), bed.node_of("b")), (None, None));
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn item_63_claims_of_a_group_are_decided_together() {
    let bed = grouping("");
    bed.class("gpu", json!({}));
    bed.gpus("n", 1);
    for claim in ["c0", "c1"] {
        bed.one_gpu(claim);
    }
    bed.gang("g", 2);
    let group = json!({"schedulingGroup": {"podGroupName": "g"}});
    bed.user("p0", &["c0"], group.clone());
    bed.user("p1", &["c1"], group);
    bed.until("the group waits", |b| {
        b.group_condition("g").is_some_and(|c| c[0] == "False")
    })
    .await;
    // What was thought of for the first is free again: a pod without a group gets it.
    assert_eq!((bed.device_of("c0"), bed.device_of("c1")), (None, None));
    bed.one_gpu("single");
    bed.user("alone", &["single"], json!({}));
    bed.until("another pod has the device", |b| {
        b.node_of("alone").is_some()
    })
    .await;
    bed.gpus("m", 2);
    bed.until("both go", |b| {
        b.node_of("p0").is_some() && b.node_of("p1").is_some()
    })
    .await;
    let devices = [bed.device_of("c0").unwrap(), bed.device_of("c1").unwrap()];
    assert_ne!(devices[0], devices[1]);
    assert!(devices.iter().all(|d| d.starts_with("m/")), "{devices:?}");
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn item_63_pods_of_a_group_share_a_claim_at_once() {
    let bed = grouping("");
    bed.class("gpu", json!({}));
    bed.gpus("n", 1);
    bed.gpus("m", 1);
    bed.one_gpu("shared");
    bed.gang("g", 3);
    for name in ["p0", "p1", "p2"] {
        let group = json!({"schedulingGroup": {"podGroupName": "g"}});
        bed.user(name, &["shared"], group);
    }
    bed.until("all go", |b| {
        ["p0", "p1", "p2"].iter().all(|p| b.node_of(p).is_some())
    })
    .await;
    let node = bed.node_of("p0");
    assert_eq!((bed.node_of("p1"), bed.node_of("p2")), (node.clone(), node));
    assert_eq!(bed.users_of("shared").len(), 3);
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pods_are_removed_for_a_group_only_if_it_then_goes() {
    let bed = grouping("");
    bed.node("n", "1");
    bed.node("m", "1");
    for (name, node) in [("low0", "n"), ("low1", "m")] {
        let bound = json!({"priority": 1, "nodeName": node});
        bed.pod(name, "1", bound);
    }
    bed.gang("large", 3);
    for i in 0..3 {
        bed.member(&format!("l{i}"), "large", "1", json!({"priority": 10}));
    }
    bed.until("the large group waits", |b| {
        b.group_condition("large").is_some_and(|c| c[0] == "False")
    })
    .await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(bed.api.get("pods", "default", "low0").is_some());
    assert!(bed.api.get("pods", "default", "low1").is_some());
    let nominated = |name: &str| {
        bed.api.get("pods", "default", name).unwrap()["status"]["nominatedNodeName"].is_string()
    };
    assert!((0..3).all(|i| !nominated(&format!("l{i}"))));

    bed.gang("small", 2);
    for i in 0..2 {
        bed.member(&format!("s{i}"), "small", "1", json!({"priority": 20}));
    }
    bed.until("the small one goes", |b| {
        b.node_of("s0").is_some() && b.node_of("s1").is_some()
    })
    .await;
    assert!(bed.api.get("pods", "default", "low0").is_none());
    assert!(bed.api.get("pods", "default", "low1").is_none());
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn item_58_without_the_gate_groups_mean_nothing() {
    let bed = Bed::start(SchedulerOptions::default());
    bed.node("n", "1");
    bed.gang("g", 2);
    bed.member("p", "g", "1", json!({}));
    bed.until("bound", |b| b.node_of("p").is_some()).await;
    assert_eq!(bed.group_condition("g"), None);
    bed.stop().await;
}

/// What a pod of the group holds from before is given back with the group's refusal, and the pod waits until that is done: else
/// it would be bound by a claim that is about to be free.
#[tokio::test(start_paused = true)]
async fn a_pod_of_a_group_waits_until_its_claims_are_given_back() {
    let bed = grouping("");
    bed.class("gpu", json!({}));
    bed.gpus("n", 1);
    bed.node("n", "1");
    bed.one_gpu("c");
    let mut claim = bed.api.get("resourceclaims", "default", "c").unwrap();
    claim["status"] = json!({
        "allocation": {"devices": {"results": [{"request": "r", "driver": "gpu.example.com", "pool": "n", "device": "gpu-0"}]}},
        "reservedFor": [{"resource": "pods", "name": "p0", "uid": "uid-p0"}]});
    bed.api.put("resourceclaims", claim);
    bed.api.delay_returns(Duration::from_secs(15));
    bed.gang("g", 2);
    let claims = json!([{"name": "c", "resourceClaimName": "c"}]);
    bed.member("p0", "g", "1", json!({"resourceClaims": claims}));
    bed.member("p1", "g", "1", json!({}));
    bed.until("the group waits", |b| {
        b.group_condition("g").is_some_and(|c| c[0] == "False")
    })
    .await;
    bed.node("n", "2");
    bed.until("both go", |b| {
        b.node_of("p0").is_some() && b.node_of("p1").is_some()
    })
    .await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(bed.users_of("c"), ["p0"]);
    assert_eq!(bed.device_of("c").as_deref(), Some("n/gpu-0"));
    bed.stop().await;
}

/// KEP-5729: what the group lists is reserved for it, what its pods list beside that for them.
#[tokio::test(start_paused = true)]
async fn claims_of_a_group_are_reserved_for_it() {
    let bed = with_gates(CLAIMS, "");
    bed.class("gpu", json!({}));
    bed.gpus("n", 2);
    for claim in ["shared", "own"] {
        bed.one_gpu(claim);
    }
    bed.gang_with("g", 2, &["shared"]);
    let member = |name: &str| {
        let group = json!({"schedulingGroup": {"podGroupName": "g"}});
        bed.user(name, &["shared", "own"], group);
    };
    member("p0");
    member("p1");
    let has_nodes = |b: &Bed, pods: &[&str]| pods.iter().all(|p| b.node_of(p).is_some());
    bed.until("both go", |b| has_nodes(b, &["p0", "p1"])).await;
    member("late");
    bed.until("the late one goes", |b| has_nodes(b, &["late"]))
        .await;
    let claim = bed.api.get("resourceclaims", "default", "shared").unwrap();
    assert_eq!(
        claim["status"]["reservedFor"],
        json!([{"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "g"}])
    );
    let mut own = bed.users_of("own");
    own.sort();
    assert_eq!(own, ["late", "p0", "p1"]);
    // The first two may both have tried; the third has nothing to write.
    let log = bed.api.log();
    let writes = log
        .iter()
        .filter(|l| l.path.ends_with("resourceclaims/shared/status"));
    assert!(writes.count() <= 4);
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_the_gate_claims_of_a_group_are_its_pods() {
    let bed = grouping("");
    bed.class("gpu", json!({}));
    bed.gpus("n", 1);
    bed.one_gpu("shared");
    bed.gang_with("g", 2, &["shared"]);
    for name in ["p0", "p1"] {
        let group = json!({"schedulingGroup": {"podGroupName": "g"}});
        bed.user(name, &["shared"], group);
    }
    bed.until("both go", |b| {
        b.node_of("p0").is_some() && b.node_of("p1").is_some()
    })
    .await;
    let mut users = bed.users_of("shared");
    users.sort();
    assert_eq!(users, ["p0", "p1"]);
    bed.stop().await;
}

/// What an earlier attempt has left for the group is given back where its pods find no room beside it.
#[tokio::test(start_paused = true)]
async fn a_group_without_pods_on_nodes_gives_its_claims_back() {
    let bed = with_gates(CLAIMS, "");
    bed.class("gpu", json!({}));
    bed.gpus("small", 1);
    bed.gpus("large", 1);
    bed.node("large", "2");
    bed.one_gpu("shared");
    let mut claim = bed.api.get("resourceclaims", "default", "shared").unwrap();
    let only = json!({"nodeSelectorTerms": [{"matchFields": [
        {"key": "metadata.name", "operator": "In", "values": ["small"]}]}]});
    claim["status"] = json!({
        "allocation": {"nodeSelector": only, "devices": {"results": [
            {"request": "r", "driver": "gpu.example.com", "pool": "small", "device": "gpu-0"}]}},
        "reservedFor": [{"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "g"}]});
    bed.api.put("resourceclaims", claim);
    bed.gang_with("g", 2, &["shared"]);
    for name in ["p0", "p1"] {
        let entry = json!([{"name": "shared", "resourceClaimName": "shared"}]);
        bed.member(name, "g", "1", json!({ "resourceClaims": entry }));
    }
    bed.until("both go", |b| {
        b.node_of("p0").as_deref() == Some("large") && b.node_of("p1").as_deref() == Some("large")
    })
    .await;
    assert_eq!(bed.device_of("shared").as_deref(), Some("large/gpu-0"));
    assert_eq!(bed.users_of("shared"), ["g"]);
    // One that comes when there is no room takes nothing from those that run.
    let entry = json!([{"name": "shared", "resourceClaimName": "shared"}]);
    bed.member("late", "g", "1", json!({ "resourceClaims": entry }));
    bed.until("it is told", |b| b.message("late").is_some())
        .await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(bed.device_of("shared").as_deref(), Some("large/gpu-0"));
    bed.stop().await;
}

const PREEMPTION: &str = "GenericWorkload=true,GangScheduling=true,WorkloadAwarePreemption=true";

impl Bed {
    /// A group of this priority; `mode` says how it can be disrupted.
    fn group_of(&self, name: &str, policy: Value, priority: i32, mode: &str) {
        let spec =
            json!({"schedulingPolicy": policy, "priority": priority, "disruptionMode": mode});
        self.api.put(
            "podgroups",
            json!({"metadata": {"name": name, "namespace": "default", "uid": name, "generation": 1}, "spec": spec}),
        );
    }

    fn exists(&self, pod: &str) -> bool {
        self.api.get("pods", "default", pod).is_some()
    }

    /// What the records of these pods say of who is removed for them.
    fn told_of_preemption(&self, pods: &[&str]) -> Vec<String> {
        let mut events = self.events("FailedScheduling");
        events.retain(|event| {
            let name = event["involvedObject"]["name"].as_str();
            name.is_some_and(|name| pods.contains(&name))
        });
        let record = |event: &Value| -> Option<Record> {
            let record = event["metadata"]["annotations"][VERDICT_ANNOTATION].as_str()?;
            serde_json::from_str(record).ok()
        };
        let records = events.iter().filter_map(record);
        records.filter_map(|record| record.post_filter).collect()
    }
}

/// KEP-5710: the group's priority counts, what goes whole goes whole, and all of them are told.
#[tokio::test(start_paused = true)]
async fn a_whole_group_goes_for_a_more_important_one() {
    let bed = with_gates(PREEMPTION, "");
    for node in ["n", "m", "o"] {
        bed.node(node, "1");
    }
    bed.group_of("batch", json!({"basic": {}}), 1, "PodGroup");
    for (name, node) in [("b0", "n"), ("b1", "m")] {
        bed.member(
            name,
            "batch",
            "1",
            json!({"priority": 100, "nodeName": node}),
        );
    }
    bed.pod("kept", "1", json!({"priority": 7, "nodeName": "o"}));
    bed.group_of("g", json!({"gang": {"minCount": 2}}), 5, "Pod");
    for name in ["g0", "g1"] {
        bed.member(name, "g", "1", json!({}));
    }
    bed.until("the gang goes", |b| {
        b.node_of("g0").is_some() && b.node_of("g1").is_some()
    })
    .await;
    assert!(!bed.exists("b0") && !bed.exists("b1") && bed.exists("kept"));
    let told = bed.told_of_preemption(&["g0", "g1"]);
    let names_both = |told: &String| {
        told.starts_with("preemption: removed for the group: ")
            && told.contains("default/b0")
            && told.contains("default/b1")
    };
    assert!(told.iter().any(names_both), "{told:?}");
    let batch = bed.api.get("podgroups", "default", "batch").unwrap();
    let condition = &batch["status"]["conditions"][0];
    assert_eq!(
        (
            &condition["type"],
            &condition["status"],
            &condition["reason"]
        ),
        (
            &json!("DisruptionTarget"),
            &json!("True"),
            &json!("PreemptionByScheduler")
        )
    );
    let message = "default-scheduler: preempting to accommodate a higher priority podgroup";
    assert_eq!(condition["message"], message);
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_group_that_cannot_be_helped_says_why_and_harms_nobody() {
    let bed = with_gates(PREEMPTION, "");
    bed.node("n", "2");
    bed.pod("low", "1", json!({"priority": 1, "nodeName": "n"}));
    bed.group_of("g", json!({"gang": {"minCount": 3}}), 5, "Pod");
    for name in ["g0", "g1", "g2"] {
        bed.member(name, "g", "1", json!({"priority": 50}));
    }
    let why = "pod group is unschedulable, removing pods of lower priority does not help";
    bed.until("the group says why", |b| {
        b.group_condition("g") == condition("False", "Unschedulable", why)
    })
    .await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(bed.exists("low"));
    let told = bed.told_of_preemption(&["g0", "g1", "g2"]);
    let why = "preemption: removing pods of lower priority does not help.";
    assert!(told.iter().any(|told| told == why), "{told:?}");
    bed.stop().await;
}

/// A pod alone does not break up what goes whole, and takes all of it if it must.
#[tokio::test(start_paused = true)]
async fn a_pod_alone_takes_a_group_whole() {
    let bed = with_gates(PREEMPTION, "");
    bed.node("n", "1");
    bed.node("m", "1");
    bed.group_of("batch", json!({"basic": {}}), 1, "PodGroup");
    for (name, node) in [("b0", "n"), ("b1", "m")] {
        bed.member(name, "batch", "1", json!({"nodeName": node}));
    }
    bed.pod("high", "1", json!({"priority": 5}));
    bed.until("it goes", |b| b.node_of("high").is_some()).await;
    bed.until("the whole group is gone", |b| {
        !b.exists("b0") && !b.exists("b1")
    })
    .await;
    bed.stop().await;
}

/// Devices of those that are removed are free once, not once for each pod of the group.
#[tokio::test(start_paused = true)]
async fn devices_are_made_free_for_as_many_as_need_them() {
    let bed = with_gates(PREEMPTION, "");
    bed.class("gpu", json!({}));
    for node in ["n", "m", "o"] {
        bed.gpus(node, 1);
    }
    for (i, node) in ["n", "m", "o"].iter().enumerate() {
        let (claim, holder) = (format!("held{i}"), format!("low{i}"));
        bed.one_gpu(&claim);
        let mut held = bed.api.get("resourceclaims", "default", &claim).unwrap();
        let only = json!({"nodeSelectorTerms": [{"matchFields": [
            {"key": "metadata.name", "operator": "In", "values": [node]}]}]});
        held["status"] = json!({
            "allocation": {"nodeSelector": only, "devices": {"results": [
                {"request": "r", "driver": "gpu.example.com", "pool": node, "device": "gpu-0"}]}},
            "reservedFor": [{"resource": "pods", "name": holder, "uid": format!("uid-{holder}")}]});
        bed.api.put("resourceclaims", held);
        let claims = json!([{"name": claim, "resourceClaimName": claim}]);
        bed.pod(
            &holder,
            "0",
            json!({"priority": i, "nodeName": node, "resourceClaims": claims}),
        );
    }
    bed.group_of("g", json!({"gang": {"minCount": 2}}), 5, "Pod");
    for name in ["p0", "p1"] {
        let claim = format!("of-{name}");
        bed.one_gpu(&claim);
        let claims = json!([{"name": claim, "resourceClaimName": claim}]);
        bed.member(name, "g", "0", json!({ "resourceClaims": claims }));
    }
    bed.until("the least important are removed", |b| {
        !b.exists("low0") && !b.exists("low1")
    })
    .await;
    assert!(bed.exists("low2"));
    // Who gives claims back is not here: it is done by hand.
    for claim in ["held0", "held1"] {
        let mut held = bed.api.get("resourceclaims", "default", claim).unwrap();
        held["status"] = json!({});
        bed.api.put("resourceclaims", held);
    }
    bed.until("both go", |b| {
        b.node_of("p0").is_some() && b.node_of("p1").is_some()
    })
    .await;
    assert!(bed.exists("low2"));
    bed.stop().await;
}
