//! Extenders and pods of groups.

use super::*;

const GATES: &str = "GenericWorkload=true,GangScheduling=true";

/// A scheduler with these gates and extenders.
fn grouping(gates: &str, extenders: &str) -> Bed {
    let header = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";
    let features: Features = gates.parse().unwrap();
    let text = format!("{header}extenders: [{extenders}]");
    Bed::start(SchedulerOptions {
        configuration: KubeSchedulerConfiguration::parse_with(&text, &features).unwrap(),
        features,
        ..SchedulerOptions::default()
    })
}

fn gang(bed: &Bed, count: usize, pods: usize, extra: &Value) {
    let meta = json!({"name": "g", "namespace": "default", "uid": "g", "generation": 1});
    let mut spec = json!({"schedulingPolicy": {"gang": {"minCount": count}}});
    for (key, value) in extra.as_object().unwrap() {
        spec[key] = value.clone();
    }
    bed.api
        .put("podgroups", json!({"metadata": meta, "spec": spec}));
    for i in 0..pods {
        let group = json!({"schedulingGroup": {"podGroupName": "g"}});
        bed.pod(&format!("g{i}"), "1", group);
    }
}

fn group_message(bed: &Bed) -> Option<String> {
    let group = bed.api.get("podgroups", "default", "g")?;
    let message = group["status"]["conditions"][0]["message"].as_str();
    message.map(str::to_owned)
}

#[tokio::test]
async fn nodes_of_a_gang_are_filtered_and_scored_pod_by_pod() {
    let server = Server::start(|verb, body| match verb {
        "filter" => (200, without(body, &[("a", "a is taken")]), NOW),
        _ => (200, json!([{"Host": "c", "Score": 10}]), NOW),
    })
    .await;
    let fields =
        "filterVerb: filter, prioritizeVerb: prioritize, weight: 9, nodeCacheCapable: true";
    let bed = grouping(GATES, &server.extender(fields));
    for node in ["a", "b", "c"] {
        bed.node(node, "3");
    }
    gang(&bed, 3, 3, &json!({}));
    bed.until("all go where the extender wants them", |b| {
        (0..3).all(|i| b.node_of(&format!("g{i}")).as_deref() == Some("c"))
    })
    .await;
    let filtered = server.calls("filter");
    let mut asked: Vec<&str> = filtered
        .iter()
        .map(|call| call["Pod"]["metadata"]["name"].as_str().unwrap())
        .collect();
    asked.sort_unstable();
    asked.dedup();
    assert_eq!(asked, ["g0", "g1", "g2"]);
    bed.stop().await;
}

#[tokio::test]
async fn a_gang_whose_nodes_an_extender_refuses_stays() {
    let server = Server::start(|_, body| (200, without(body, &[("a", "no power")]), NOW)).await;
    let fields = "filterVerb: filter, nodeCacheCapable: true";
    let bed = grouping(GATES, &server.extender(fields));
    bed.node("a", "9");
    bed.node("b", "1");
    gang(&bed, 2, 2, &json!({}));
    bed.until("the group waits", |b| {
        group_message(b).as_deref() == Some("pod group is unschedulable")
    })
    .await;
    bed.until("a pod is told by whom", |b| {
        let told = |i: &i32| b.message(&format!("g{i}"));
        (0..2)
            .filter_map(|i| told(&i))
            .any(|m| m.contains("1 no power"))
    })
    .await;
    assert!((0..2).all(|i| bed.node_of(&format!("g{i}")).is_none()));
    bed.node("b", "2");
    bed.until("both go", |b| {
        (0..2).all(|i| b.node_of(&format!("g{i}")).as_deref() == Some("b"))
    })
    .await;
    bed.stop().await;
}

#[tokio::test]
async fn an_extender_that_fails_fails_the_gang() {
    let server = Server::start(|_, _| (500, json!("out of order"), NOW)).await;
    let bed = grouping(GATES, &server.extender("filterVerb: filter"));
    bed.node("a", "9");
    gang(&bed, 2, 2, &json!({}));
    bed.until("the group says so", |b| {
        let told = group_message(b);
        told.is_some_and(|m| m.starts_with("failed to schedule other pod from a pod group: "))
    })
    .await;
    assert!((0..2).all(|i| bed.node_of(&format!("g{i}")).is_none()));
    let others = (0..2).filter_map(|i| bed.message(&format!("g{i}")));
    let others = others
        .filter(|m| m.starts_with("failed to schedule other pod"))
        .count();
    assert!(others <= 1, "the one that was asked about is told why");
    bed.stop().await;
}

/// A slow extender holds up the pods that it is asked about, and no others.
#[tokio::test]
async fn others_are_scheduled_while_a_gang_is_asked_about() {
    let server =
        Server::start(|_, body| (200, without(body, &[]), Duration::from_millis(600))).await;
    let fields =
        "filterVerb: filter, nodeCacheCapable: true, managedResources: [{name: example.com/foo}]";
    let bed = grouping(GATES, &server.extender(fields));
    bed.node("a", "9");
    gang(&bed, 2, 2, &json!({}));
    bed.until("it is asked", |_| !server.calls("filter").is_empty())
        .await;
    bed.api.put(
        "pods",
        json!({"metadata": {"name": "other", "namespace": "default", "uid": "uid-other"},
            "spec": {"containers": [{"name": "c", "image": "x"}]}}),
    );
    bed.until("the other goes first", |b| b.node_of("other").is_some())
        .await;
    assert!((0..2).all(|i| bed.node_of(&format!("g{i}")).is_none()));
    bed.until("the gang goes as well", |b| {
        (0..2).all(|i| b.node_of(&format!("g{i}")).is_some())
    })
    .await;
    bed.stop().await;
}

/// In all racks at once, so that it takes one round.
#[tokio::test]
async fn a_gang_in_one_rack_is_asked_about_in_all_of_them() {
    let server =
        Server::start(|_, body| (200, without(body, &[("a0", "no"), ("b0", "no")]), NOW)).await;
    let gates = format!("{GATES},TopologyAwareWorkloadScheduling=true");
    let fields = "filterVerb: filter, nodeCacheCapable: true";
    let bed = grouping(&gates, &server.extender(fields));
    for rack in ["a", "b", "c", "d", "e"] {
        let name = format!("{rack}0");
        bed.api.put("nodes", json!({
            "metadata": {"name": name, "uid": name, "labels": {"rack": rack}},
            "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "20", "example.com/foo": "2"}},
        }));
    }
    let constraints = json!({"schedulingConstraints": {"topology": [{"key": "rack"}]}});
    gang(&bed, 2, 2, &constraints);
    bed.until("both go", |b| {
        (0..2).all(|i| b.node_of(&format!("g{i}")).is_some())
    })
    .await;
    let nodes: Vec<String> = (0..2)
        .filter_map(|i| bed.node_of(&format!("g{i}")))
        .collect();
    assert!(
        nodes[0] == nodes[1] && !["a0", "b0"].contains(&nodes[0].as_str()),
        "{nodes:?}"
    );
    bed.stop().await;
}

#[tokio::test]
async fn nobody_is_removed_for_a_gang_about_which_extenders_are_asked() {
    let server = Server::start(|_, body| (200, without(body, &[]), NOW)).await;
    let gates = format!("{GATES},WorkloadAwarePreemption=true");
    let fields = "filterVerb: filter, nodeCacheCapable: true";
    let bed = grouping(&gates, &server.extender(fields));
    bed.node("a", "1");
    bed.pod("low", "1", json!({"nodeName": "a"}));
    gang(&bed, 1, 1, &json!({"priority": 5}));
    let why = "pod group is unschedulable, extenders are asked about pods of the group";
    bed.until("the group says why", |b| {
        group_message(b).as_deref() == Some(why)
    })
    .await;
    assert!(bed.api.get("pods", "default", "low").is_some());
    bed.stop().await;
}
