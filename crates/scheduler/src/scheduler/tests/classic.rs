//! Pods with claims of the classic API; the test plays the driver. The numbers are those of the DRA
//! checklist.

use super::*;

impl Bed {
    fn classic(nodes: &[&str]) -> Self {
        let api = Fake::new();
        api.serve_classic();
        let bed = Self::start_on(api, SchedulerOptions::default());
        bed.resource_class("k", json!({}));
        for node in nodes {
            bed.node(node, "0");
        }
        bed
    }

    fn resource_class(&self, name: &str, members: Value) {
        let mut class =
            json!({"metadata": {"name": name, "uid": name}, "driverName": "d.example.com"});
        for (key, value) in members.as_object().unwrap() {
            class[key] = value.clone();
        }
        self.api.put("resourceclasses", class);
    }

    fn classic_claim(&self, name: &str, mode: &str) {
        self.api.put(
            "classicclaims",
            json!({
            "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}")},
            "spec": {"resourceClassName": "k", "allocationMode": mode}}),
        );
    }

    fn classic_status(&self, claim: &str) -> Value {
        let claim = self.api.get("classicclaims", "default", claim).unwrap();
        claim["status"].clone()
    }

    fn set_status(&self, plural: &str, name: &str, status: Value) {
        let mut object = self.api.get(plural, "default", name).unwrap();
        object["status"] = status;
        self.api.put(plural, object);
    }

    /// What the driver does when it allocates.
    fn allocate(&self, claim: &str, node: &str, shareable: bool, users: &[&str]) {
        let users: Vec<Value> = users
            .iter()
            .map(|u| json!({"resource": "pods", "name": u, "uid": format!("uid-{u}")}))
            .collect();
        let at = json!({"nodeSelectorTerms": [{"matchFields": [
            {"key": "metadata.name", "operator": "In", "values": [node]}]}]});
        let status = json!({"driverName": "d.example.com", "reservedFor": users, "allocation":
            {"resourceHandle": "h", "availableOnNodes": at, "shareable": shareable}});
        self.set_status("classicclaims", claim, status);
    }

    fn negotiation(&self, pod: &str) -> Value {
        let found = self.api.get("podschedulings", "default", pod);
        found.unwrap_or(Value::Null)
    }

    fn selected(&self, pod: &str) -> Option<String> {
        let spec = &self.negotiation(pod)["spec"];
        spec["selectedNode"].as_str().map(str::to_owned)
    }

    fn unsuitable(&self, pod: &str, claims: &[(&str, &[&str])]) {
        let claims: Vec<Value> = claims
            .iter()
            .map(|(name, nodes)| json!({"name": name, "unsuitableNodes": nodes}))
            .collect();
        self.set_status("podschedulings", pod, json!({"resourceClaims": claims}));
    }

    fn classic_users(&self, claim: &str) -> Vec<String> {
        let status = self.classic_status(claim);
        let users = status["reservedFor"].as_array().cloned();
        let name = |u: &Value| u["name"].as_str().unwrap().to_owned();
        users.unwrap_or_default().iter().map(name).collect()
    }

    fn consumer(&self, name: &str, claims: &[&str], mut extra: Value) {
        let entry = |c: &&str| json!({"name": c, "resourceClaimName": c});
        extra["resourceClaims"] = claims.iter().map(entry).collect();
        self.pod(name, "0", extra);
    }

    async fn says(&self, pod: &str, text: &str) {
        let says = |b: &Self| b.message(pod).is_some_and(|m| m.contains(text));
        self.until(text, says).await;
    }
}

const WAITS: &str = "WaitForFirstConsumer";

/// 128, 129
#[tokio::test(start_paused = true)]
async fn a_claim_is_allocated_for_the_selected_node_and_the_pod_bound_there() {
    let bed = Bed::classic(&["a", "b"]);
    bed.classic_claim("cat", WAITS);
    bed.consumer("p", &["cat"], json!({}));
    bed.until("selected", |b| b.selected("p").is_some()).await;
    let offer = bed.negotiation("p");
    assert_eq!(offer["spec"]["potentialNodes"], json!(["a", "b"]));
    let owner = &offer["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["kind"], &owner["uid"], &owner["controller"]),
        (&json!("Pod"), &json!("uid-p"), &json!(true))
    );
    bed.says("p", "waiting for resource driver to allocate resource")
        .await;
    assert_eq!(bed.node_of("p"), None);
    let node = bed.selected("p").unwrap();
    bed.allocate("cat", &node, false, &["p"]);
    bed.until("bound", |b| b.node_of("p") == Some(node.clone()))
        .await;
    bed.until("closed", |b| b.negotiation("p").is_null()).await;
    assert_eq!(bed.classic_users("cat"), ["p"]);
    bed.stop().await;
}

/// 129: what the driver cannot serve is not asked for again.
#[tokio::test(start_paused = true)]
async fn unsuitable_nodes_move_the_pod_to_another_node() {
    let bed = Bed::classic(&["a", "b", "c"]);
    bed.classic_claim("cat", WAITS);
    bed.consumer("p", &["cat"], json!({}));
    bed.until("selected", |b| b.selected("p").is_some()).await;
    let first = bed.selected("p").unwrap();
    let others: Vec<&str> = ["a", "b", "c"]
        .into_iter()
        .filter(|n| *n != first)
        .collect();
    bed.unsuitable("p", &[("cat", &[&first, others[0]])]);
    let wanted = others[1].to_owned();
    bed.until("another", |b| b.selected("p").as_ref() == Some(&wanted))
        .await;
    bed.unsuitable("p", &[("cat", &["a", "b", "c"])]);
    bed.says(
        "p",
        "3 resourceclaim cannot be allocated for the node (unsuitable)",
    )
    .await;
    // Room comes up.
    bed.unsuitable("p", &[("cat", &["b", "c"])]);
    bed.until("a", |b| b.selected("p").as_deref() == Some("a"))
        .await;
    bed.stop().await;
}

/// Several claims: no node is selected before all drivers have spoken.
#[tokio::test(start_paused = true)]
async fn two_drivers_have_to_agree() {
    let bed = Bed::classic(&["a"]);
    bed.resource_class("other", json!({"driverName": "e.example.com"}));
    bed.classic_claim("cat", WAITS);
    bed.classic_claim("dog", WAITS);
    bed.consumer("p", &["cat", "dog"], json!({}));
    bed.says("p", "waiting for resource driver to provide information")
        .await;
    assert_eq!(bed.selected("p"), None);
    assert_eq!(bed.negotiation("p")["spec"]["potentialNodes"], json!(["a"]));
    bed.unsuitable("p", &[("cat", &[])]);
    bed.says("p", "waiting for resource driver to provide information")
        .await;
    bed.unsuitable("p", &[("cat", &[]), ("dog", &[])]);
    bed.until("selected", |b| b.selected("p").as_deref() == Some("a"))
        .await;
    bed.allocate("cat", "a", false, &["p"]);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(bed.node_of("p"), None);
    bed.allocate("dog", "a", true, &["p"]);
    bed.until("bound", |b| b.node_of("p").is_some()).await;
    bed.stop().await;
}

/// 128
#[tokio::test(start_paused = true)]
async fn immediate_claims_are_waited_for_and_then_only_reserved() {
    let bed = Bed::classic(&["a", "b"]);
    bed.classic_claim("cat", "Immediate");
    bed.consumer("p", &["cat"], json!({}));
    bed.says("p", "unallocated immediate resourceclaim").await;
    assert!(bed.negotiation("p").is_null());
    bed.allocate("cat", "b", false, &[]);
    bed.until("bound", |b| b.node_of("p").as_deref() == Some("b"))
        .await;
    assert_eq!(bed.classic_users("cat"), ["p"]);
    bed.stop().await;
}

/// 131
#[tokio::test(start_paused = true)]
async fn a_claim_in_use_is_waited_for_and_a_shareable_one_is_shared() {
    let bed = Bed::classic(&["a"]);
    for name in ["cat", "dog"] {
        bed.classic_claim(name, WAITS);
        bed.allocate(name, "a", name == "dog", &[]);
    }
    bed.consumer("first", &["cat", "dog"], json!({}));
    bed.until("bound", |b| b.node_of("first").is_some()).await;
    bed.consumer("second", &["cat"], json!({}));
    bed.consumer("third", &["dog"], json!({}));
    bed.until("shared", |b| b.node_of("third").is_some()).await;
    bed.says("second", "resourceclaim in use").await;
    assert_eq!(bed.classic_users("dog"), ["first", "third"]);
    bed.allocate("cat", "a", false, &[]);
    bed.until("bound", |b| b.node_of("second").is_some()).await;
    bed.stop().await;
}

/// 132: an allocation where the pod cannot run is given back, and asked for anew.
#[tokio::test(start_paused = true)]
async fn a_claim_in_the_way_is_deallocated() {
    let bed = Bed::classic(&["a", "b"]);
    bed.classic_claim("cat", WAITS);
    bed.allocate("cat", "a", false, &["p"]);
    bed.consumer(
        "p",
        &["cat"],
        json!({"nodeName": null, "affinity": {"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [
            {"key": "metadata.name", "operator": "In", "values": ["b"]}]}]}}}}),
    );
    bed.until("asked for", |b| {
        b.classic_status("cat")["deallocationRequested"] == json!(true)
    })
    .await;
    assert_eq!(bed.classic_users("cat"), Vec::<String>::new());
    bed.says("p", "resourceclaim must be reallocated").await;
    bed.set_status("classicclaims", "cat", json!({}));
    bed.until("selected", |b| b.selected("p").as_deref() == Some("b"))
        .await;
    bed.stop().await;
}

/// The class narrows down the nodes; without it nothing goes on.
#[tokio::test(start_paused = true)]
async fn classes_are_needed_and_rule_out_nodes() {
    let bed = Bed::classic(&["a", "b"]);
    bed.api.put(
        "classicclaims",
        json!({
        "metadata": {"name": "cat", "namespace": "default", "uid": "uid-cat"},
        "spec": {"resourceClassName": "later"}}),
    );
    bed.consumer("p", &["cat"], json!({}));
    bed.says("p", "resourceclass.resource.k8s.io \"later\" not found")
        .await;
    let only = json!({"suitableNodes": {"nodeSelectorTerms": [{"matchFields": [
        {"key": "metadata.name", "operator": "In", "values": ["b"]}]}]}});
    bed.resource_class("later", only);
    bed.until("selected", |b| b.selected("p").as_deref() == Some("b"))
        .await;
    assert_eq!(bed.negotiation("p")["spec"]["potentialNodes"], json!(["b"]));
    bed.stop().await;
}

/// A generated claim has the name that follows from the pod's, and must be the pod's own.
#[tokio::test(start_paused = true)]
async fn generated_claims_are_found_without_the_status() {
    let bed = Bed::classic(&["a"]);
    let claims = json!({"resourceClaims": [{"name": "cat", "resourceClaimTemplateName": "t"}]});
    bed.pod("p", "0", claims);
    bed.classic_claim("p-cat", WAITS);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(bed.negotiation("p").is_null(), "somebody else's claim");
    let mut claim = bed.api.get("classicclaims", "default", "p-cat").unwrap();
    claim["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-p", "controller": true}]);
    bed.api.put("classicclaims", claim);
    bed.until("selected", |b| b.selected("p").as_deref() == Some("a"))
        .await;
    bed.stop().await;
}

/// 133, as davit has it: the claims of a pod that is on a node are allocated and reserved for it.
#[tokio::test(start_paused = true)]
async fn pods_on_nodes_get_their_claims() {
    let bed = Bed::classic(&["a", "b"]);
    bed.classic_claim("cat", WAITS);
    bed.classic_claim("dog", "Immediate");
    bed.allocate("dog", "b", true, &[]);
    bed.consumer("p", &["cat", "dog"], json!({"nodeName": "b"}));
    bed.until("selected", |b| b.selected("p").as_deref() == Some("b"))
        .await;
    bed.until("reserved", |b| b.classic_users("dog") == ["p"])
        .await;
    bed.allocate("cat", "b", false, &["p"]);
    bed.until("closed", |b| b.negotiation("p").is_null()).await;
    bed.stop().await;
}

/// A pod that could not be bound gives its reservations back, and gets them again.
#[tokio::test(start_paused = true)]
async fn reservations_go_with_a_binding_that_fails() {
    let bed = Bed::classic(&["a"]);
    bed.classic_claim("cat", WAITS);
    bed.allocate("cat", "a", false, &[]);
    bed.api.refuse_bindings(1);
    bed.consumer("p", &["cat"], json!({}));
    bed.until("bound", |b| b.node_of("p").is_some()).await;
    assert_eq!(bed.classic_users("cat"), ["p"]);
    let log = bed.api.log();
    let writes = log
        .iter()
        .filter(|l| l.path.contains("classicclaims/cat/status"));
    let users: Vec<usize> = writes
        .map(|w| {
            w.body["status"]["reservedFor"]
                .as_array()
                .map_or(0, Vec::len)
        })
        .collect();
    assert_eq!(users, [1, 0, 1]);
    bed.stop().await;
}
