//! Several profiles in one scheduler.

use super::*;

#[tokio::test(start_paused = true)]
async fn pods_are_placed_by_the_profile_they_name() {
    let options = options(
        "profiles:\n- schedulerName: spread\n- schedulerName: pack\n  pluginConfig:\n  - name: NodeResourcesFit\n    args:\n      \
         scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 100}]}\n  \
         plugins: {multiPoint: {disabled: [{name: NodeResourcesBalancedAllocation}]}}\n",
    );
    let cpu = json!({"containers": [{"name": "c", "image": "x", "resources": {"requests": {"cpu": "1"}}}]});
    let with = |scheduler: &str, node: Option<&str>| {
        let mut extra = cpu.clone();
        extra["schedulerName"] = json!(scheduler);
        extra["nodeName"] = json!(node);
        extra
    };
    let api = Fake::new();
    for name in ["full", "empty"] {
        api.put(
            "nodes",
            json!({
                "metadata": {"name": name, "uid": name},
                "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "20"}},
            }),
        );
    }
    api.put("pods", pod("first", "0", with("spread", Some("full"))));
    let bed = Bed::start_on(api, options);
    bed.pod("packed", "0", with("pack", None));
    bed.until("bound", |b| b.node_of("packed").is_some()).await;
    bed.pod("spread", "0", with("spread", None));
    bed.pod("nobody's", "0", with("other", None));
    bed.until("bound", |b| b.node_of("spread").is_some()).await;
    assert_eq!(bed.node_of("packed").as_deref(), Some("full"));
    assert_eq!(bed.node_of("spread").as_deref(), Some("empty"));
    let mut too_large = with("pack", None);
    too_large["containers"][0]["resources"]["requests"]["cpu"] = json!("99");
    bed.pod("large", "0", too_large);
    bed.until("events", |b| {
        b.events("Scheduled").len() == 2 && !b.events("FailedScheduling").is_empty()
    })
    .await;
    let speaker = |event: &Value| {
        let pod = event["involvedObject"]["name"].as_str().unwrap().to_owned();
        assert_eq!(event["source"]["component"], event["reportingComponent"]);
        (
            pod,
            event["reportingComponent"].as_str().unwrap().to_owned(),
        )
    };
    let said: std::collections::BTreeMap<String, String> =
        bed.api.all("events").iter().map(speaker).collect();
    assert_eq!(said["packed"], "pack");
    assert_eq!(said["spread"], "spread");
    assert_eq!(said["large"], "pack");
    assert_eq!(
        (bed.node_of("nobody's"), bed.message("nobody's")),
        (None, None)
    );
    bed.stop().await;
}

#[test]
fn pauses_are_those_of_the_configuration() {
    let options = options("podInitialBackoffSeconds: 2\npodMaxBackoffSeconds: 5");
    let queue = crate::queue::Queue::new(options.queue());
    let pauses = [1, 2, 3, 4].map(|failures| queue.backoff_of(failures).as_secs());
    assert_eq!(pauses, [2, 4, 5, 5]);
}

/// Without scores the first node that takes the pod is as good as any.
#[tokio::test]
async fn without_scores_the_search_ends_at_the_first_node() {
    use crate::cycle::{Inputs, NodeSearch, Outcome, attempt};
    use crate::plugins::testing::Bed as Nodes;
    let text = "profiles: [{plugins: {score: {disabled: [{name: '*'}]}}}]";
    let scheduler = Scheduler::new(Fake::new().client(), options(text)).unwrap();
    let mut nodes = Nodes::new();
    for name in ["a", "b", "c"] {
        nodes.node(name, json!({"status": {"allocatable": {"pods": "5"}}}));
    }
    let pod = crate::plugins::testing::pod("p", json!({}));
    let inputs = Inputs {
        profile: scheduler.profiles.of(&pod).unwrap(),
        snapshot: &nodes.snapshot,
        nominated: &crate::nominator::Nominated::default(),
        pod: &pod,
        within: None,
    };
    let mut search = NodeSearch::default();
    for at in [0, 1, 2, 0] {
        assert_eq!(attempt(&inputs, &mut search).outcome, Outcome::Node(at));
    }
}
