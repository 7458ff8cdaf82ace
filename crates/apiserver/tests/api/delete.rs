//! Items 109–120: deletion and eviction.

use serde_json::{Value, json};

use crate::cluster::*;

#[tokio::test]
async fn item_109_delete_answers_a_status_or_the_object() {
    let c = Cluster::new().await;
    c.service_account().await;
    let map = c.config_map("x", &json!({})).await;
    let status = c
        .delete(&format!("{CONFIG_MAPS}/x"), &Value::Null)
        .await
        .ok(200);
    assert_eq!(status["kind"], "Status");
    assert_eq!(status["status"], "Success");
    assert_eq!(status["details"]["uid"], map["metadata"]["uid"]);
    assert_eq!(status["details"]["kind"], "configmaps");
    c.pod("p").await;
    let pod = c.delete(&format!("{PODS}/p"), &Value::Null).await.ok(200);
    assert_eq!(pod["kind"], "Pod");
    c.get(&format!("{PODS}/p")).await.error(404, "NotFound");
}

#[tokio::test]
async fn item_110_preconditions_must_hold() {
    let c = Cluster::new().await;
    c.config_map("x", &json!({})).await;
    let url = format!("{CONFIG_MAPS}/x");
    for precondition in [json!({"uid": "other"}), json!({"resourceVersion": "1"})] {
        let options =
            json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": precondition});
        c.delete(&url, &options).await.error(409, "Conflict");
    }
    c.get(&url).await.ok(200);
}

async fn bound_pod(c: &Cluster, name: &str) {
    c.pod(name).await;
    let binding = json!({"target": {"kind": "Node", "name": "n"}, "metadata": {"name": name}});
    c.post(&format!("{PODS}/{name}/binding"), &binding)
        .await
        .ok(201);
}

#[tokio::test]
async fn item_111_and_112_pods_are_deleted_gracefully() {
    let c = Cluster::new().await;
    c.service_account().await;
    bound_pod(&c, "p").await;
    let url = format!("{PODS}/p");
    let marked = c.delete(&url, &Value::Null).await.ok(200);
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 30);
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    let longer = c
        .delete(&url, &json!({"gracePeriodSeconds": 60}))
        .await
        .ok(200);
    assert_eq!(longer["metadata"]["deletionGracePeriodSeconds"], 30);
    let shorter = c
        .delete(&url, &json!({"gracePeriodSeconds": 10}))
        .await
        .ok(200);
    assert_eq!(shorter["metadata"]["deletionGracePeriodSeconds"], 10);
    assert!(
        shorter["metadata"]["deletionTimestamp"].as_str()
            < marked["metadata"]["deletionTimestamp"].as_str()
    );
    c.delete(&url, &json!({"gracePeriodSeconds": 0}))
        .await
        .ok(200);
    c.get(&url).await.error(404, "NotFound");
}

#[tokio::test]
async fn item_114_propagation_sets_the_collectors_finalizers() {
    let c = Cluster::new().await;
    for (policy, finalizer) in [("Foreground", "foregroundDeletion"), ("Orphan", "orphan")] {
        c.config_map("x", &json!({})).await;
        let url = format!("{CONFIG_MAPS}/x");
        let marked = c
            .delete(&url, &json!({"propagationPolicy": policy}))
            .await
            .ok(200);
        assert_eq!(marked["metadata"]["finalizers"], json!([finalizer]));
        assert!(marked["metadata"]["deletionTimestamp"].is_string());
        c.patch(&url, "merge", &json!({"metadata": {"finalizers": null}}))
            .await
            .ok(200);
    }
    let job = json!({
        "metadata": {"name": "j"},
        "spec": {"template": {"spec": {
            "restartPolicy": "Never", "containers": [{"name": "c", "image": "busybox"}],
        }}},
    });
    let jobs = "/apis/batch/v1/namespaces/default/jobs";
    c.post(jobs, &job).await.ok(201);
    let answer = c.delete(&format!("{jobs}/j"), &Value::Null).await;
    assert!(
        answer
            .warnings()
            .iter()
            .any(|w| w.contains("child pods are preserved by default")),
        "{:?}",
        answer.warnings()
    );
    assert_eq!(answer.ok(200)["metadata"]["finalizers"], json!(["orphan"]));
}

#[tokio::test]
async fn a_later_deletion_decides_about_dependents_again() {
    let c = Cluster::new().await;
    let url = format!("{CONFIG_MAPS}/x");
    c.config_map("x", &json!({})).await;
    for (policy, finalizer) in [("Orphan", "orphan"), ("Foreground", "foregroundDeletion")] {
        let options = json!({"propagationPolicy": policy});
        let marked = c.delete(&url, &options).await.ok(200);
        assert_eq!(marked["metadata"]["finalizers"], json!([finalizer]));
    }
    let gone = c
        .delete(&url, &json!({"propagationPolicy": "Background"}))
        .await
        .ok(200);
    assert_eq!(gone["kind"], "Status");
    c.get(&url).await.error(404, "NotFound");
}

#[tokio::test]
async fn events_have_no_dependents() {
    let c = Cluster::new().await;
    let events = "/api/v1/namespaces/default/events";
    for policy in ["Orphan", "Foreground"] {
        let event = json!({"metadata": {"name": "e"}, "involvedObject": {"namespace": "default"}});
        c.post(events, &event).await.ok(201);
        let url = format!("{events}/e");
        let options = json!({"propagationPolicy": policy});
        let gone = c.delete(&url, &options).await.ok(200);
        assert_eq!(gone["status"], "Success", "{policy}");
        c.get(&url).await.error(404, "NotFound");
    }
}

#[tokio::test]
async fn item_116_collections_are_deleted_by_selector() {
    let c = Cluster::new().await;
    for (name, on) in [("a", "yes"), ("b", "no"), ("c", "yes")] {
        let mut map = config_map(name, &json!({}));
        map["metadata"]["labels"] = json!({"on": on});
        c.post(CONFIG_MAPS, &map).await.ok(201);
    }
    let gone = c
        .delete(
            &format!("{CONFIG_MAPS}?labelSelector=on%3Dyes"),
            &Value::Null,
        )
        .await
        .ok(200);
    assert_eq!(gone["kind"], "ConfigMapList");
    assert_eq!(gone["items"].as_array().unwrap().len(), 2);
    let left = c.get(CONFIG_MAPS).await.ok(200);
    assert_eq!(left["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn item_117_a_namespace_goes_when_it_is_finalized() {
    let c = Cluster::new().await;
    c.post("/api/v1/namespaces", &json!({"metadata": {"name": "n"}}))
        .await
        .ok(201);
    let marked = c.delete("/api/v1/namespaces/n", &Value::Null).await.ok(200);
    assert_eq!(marked["status"]["phase"], "Terminating");
    let grace = marked["metadata"].get("deletionGracePeriodSeconds");
    assert_eq!(grace, None);
    let mut final_ = marked.clone();
    final_["spec"]["finalizers"] = json!([]);
    c.put("/api/v1/namespaces/n/finalize", &final_)
        .await
        .ok(200);
    c.get("/api/v1/namespaces/n").await.error(404, "NotFound");
}

#[tokio::test]
async fn item_118_evictions_obey_budgets() {
    let c = Cluster::new().await;
    c.service_account().await;
    bound_pod(&c, "p").await;
    c.patch(
        &format!("{PODS}/p/status"),
        "merge",
        &json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}),
    )
    .await
    .ok(200);
    budget(&c).await;
    let status = |allowed: i64| {
        json!({"status": {
            "observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": 1,
            "desiredHealthy": 1, "expectedPods": 1,
        }})
    };
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"},
    });
    let url = format!("{PODS}/p/eviction");
    let stale = c.post(&url, &eviction).await.error(429, "TooManyRequests");
    assert_eq!(stale["details"]["retryAfterSeconds"], 10);
    c.patch(&format!("{BUDGETS}/b/status"), "merge", &status(0))
        .await
        .ok(200);
    let refused = c.post(&url, &eviction).await.error(429, "TooManyRequests");
    assert_eq!(
        refused["message"],
        "Cannot evict pod as it would violate the pod's disruption budget."
    );
    assert_eq!(
        refused["details"]["causes"][0]["reason"],
        "DisruptionBudget"
    );
    assert_eq!(
        refused["details"]["causes"][0]["message"],
        "The disruption budget b needs 1 healthy pods and has 1 currently"
    );
    c.patch(&format!("{BUDGETS}/b/status"), "merge", &status(1))
        .await
        .ok(200);
    let done = c.post(&url, &eviction).await.ok(201);
    assert_eq!(done["status"], "Success");
    let budget = c.get(&format!("{BUDGETS}/b")).await.ok(200);
    assert_eq!(
        budget["status"]["disruptionsAllowed"].as_i64().unwrap_or(0),
        0
    );
    assert!(budget["status"]["disruptedPods"]["p"].is_string());
    let pod = c.get(&format!("{PODS}/p")).await.ok(200);
    assert!(pod["metadata"]["deletionTimestamp"].is_string());
    // Why, for the failure policies of jobs.
    let conditions = pod["status"]["conditions"].as_array().unwrap();
    let target = conditions.iter().find(|c| c["type"] == "DisruptionTarget");
    assert_eq!(target.unwrap()["reason"], "EvictionByEvictionAPI");
}

const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";

/// The budget `b`, of which one pod with label `app: p` must be left.
async fn budget(c: &Cluster) {
    let budget = json!({
        "metadata": {"name": "b"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "p"}}},
    });
    c.post(BUDGETS, &budget).await.ok(201);
}

/// What the controller has found of it: how many may go, are healthy, and are expected.
async fn budget_has(c: &Cluster, allowed: i64, healthy: i64, expected: i64) {
    let status = json!({"status": {
        "observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": healthy,
        "desiredHealthy": 1, "expectedPods": expected,
    }});
    c.patch(&format!("{BUDGETS}/b/status"), "merge", &status)
        .await
        .ok(200);
}

/// Who may evict pods names one that is not there any more, again and again: nothing goes, and no budget either.
#[tokio::test]
async fn an_eviction_of_a_pod_that_is_not_meant_costs_no_budget() {
    let c = Cluster::new().await;
    c.service_account().await;
    bound_pod(&c, "p").await;
    let running = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    c.patch(&format!("{PODS}/p/status"), "merge", &running)
        .await
        .ok(200);
    budget(&c).await;
    budget_has(&c, 1, 2, 2).await;
    for precondition in [json!({"uid": "another"}), json!({"resourceVersion": "1"})] {
        let eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"},
            "deleteOptions": {"preconditions": precondition},
        });
        let refused = c.post(&format!("{PODS}/p/eviction"), &eviction).await;
        let refused = refused.error(409, "Conflict");
        // In the words of any deletion.
        let told = refused["message"].as_str().unwrap();
        assert!(told.contains("in the precondition"), "{told}");
        assert_eq!(refused["details"]["kind"], "Pod");
        let budget = c.get(&format!("{BUDGETS}/b")).await.ok(200);
        assert_eq!(budget["status"]["disruptionsAllowed"], 1, "{precondition}");
        assert!(budget["status"]["disruptedPods"].is_null(), "{budget}");
    }
}

/// Pods that have not begun do not count. One that begins while it is evicted does.
#[tokio::test]
async fn a_pod_that_begins_while_it_is_evicted_counts() {
    let c = Cluster::new().await;
    c.service_account().await;
    budget(&c).await;
    budget_has(&c, 0, 1, 1).await;
    let url = format!("{PODS}/p");
    let evictions = format!("{url}/eviction");
    let eviction =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}});
    let mut begun = 0;
    for round in 0..60 {
        bound_pod(&c, "p").await;
        let mut pod = c.get(&url).await.ok(200);
        pod["status"] =
            json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
        let begins = async {
            for _ in 0..round {
                tokio::task::yield_now().await;
            }
            c.put(&format!("{url}/status"), &pod).await
        };
        let evicts = c.post(&evictions, &eviction);
        let (begins, evicted) = tokio::join!(begins, evicts);
        if begins.code == 200 {
            begun += 1;
            evicted.error(429, "TooManyRequests");
        } else {
            begins.error(409, "Conflict");
            evicted.ok(201);
        }
        let now = json!({"gracePeriodSeconds": 0});
        c.delete(&url, &now).await.ok(200);
    }
    assert!(begun < 60, "none was evicted before it began");
}

/// What is not ready does not keep an application up: it may go while the others are enough, or whenever the budget says so.
#[tokio::test]
async fn unhealthy_pods_are_evicted_without_being_counted() {
    let c = Cluster::new().await;
    c.service_account().await;
    budget(&c).await;
    let evict = async || {
        bound_pod(&c, "p").await;
        let running = json!({"status": {"phase": "Running"}});
        c.patch(&format!("{PODS}/p/status"), "merge", &running)
            .await
            .ok(200);
        let eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"},
            "deleteOptions": {"gracePeriodSeconds": 0},
        });
        c.post(&format!("{PODS}/p/eviction"), &eviction).await
    };
    budget_has(&c, 0, 1, 2).await;
    evict().await.ok(201);
    budget_has(&c, 0, 0, 2).await;
    evict().await.error(429, "TooManyRequests");
    let options = json!({"gracePeriodSeconds": 0});
    c.delete(&format!("{PODS}/p"), &options).await.ok(200);
    let policy = json!({"spec": {"unhealthyPodEvictionPolicy": "AlwaysAllow"}});
    c.patch(&format!("{BUDGETS}/b"), "merge", &policy)
        .await
        .ok(200);
    evict().await.ok(201);
    let budget = c.get(&format!("{BUDGETS}/b")).await.ok(200);
    assert!(budget["status"]["disruptedPods"].is_null(), "{budget}");
}

#[tokio::test]
async fn item_120_policy_and_orphan_dependents_exclude_each_other() {
    let c = Cluster::new().await;
    c.config_map("x", &json!({})).await;
    let options = json!({"propagationPolicy": "Orphan", "orphanDependents": true});
    c.delete(&format!("{CONFIG_MAPS}/x"), &options)
        .await
        .error(422, "Invalid");
    let options = json!({"propagationPolicy": "Odd"});
    c.delete(&format!("{CONFIG_MAPS}/x"), &options)
        .await
        .error(422, "Invalid");
}
