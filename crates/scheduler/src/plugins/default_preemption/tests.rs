//! Who is removed, and who is spared.

use serde_json::json;

use super::*;
use crate::nominator::Nominated;
use crate::plugins::default_profile;
use crate::plugins::testing::{Bed, labelled};

fn pod(name: &str, priority: i32, cpu: &str) -> Arc<PodInfo> {
    labelled(
        name,
        json!({"app": name}),
        json!({"priority": priority, "containers": [
            {"name": "c", "resources": {"requests": {"cpu": cpu}}}
        ]}),
    )
}

fn bed(nodes: &[&str]) -> Bed {
    let mut bed = Bed::new();
    for name in nodes {
        bed.node(
            name,
            json!({"status": {"allocatable": {"cpu": "2", "pods": "10"}}}),
        );
    }
    bed
}

fn on_node(
    bed: &Bed,
    pod: &Arc<PodInfo>,
    node: &str,
    budgets: &Budgets,
) -> Result<(Vec<String>, usize), Arc<Status>> {
    on_node_with(bed, pod, node, budgets, &PodGroups::default())
}

fn on_node_with(
    bed: &Bed,
    pod: &Arc<PodInfo>,
    node: &str,
    budgets: &Budgets,
    groups: &PodGroups,
) -> Result<(Vec<String>, usize), Arc<Status>> {
    let profile = default_profile(
        "default-scheduler",
        None,
        budgets.clone(),
        &crate::plugins::testing::devices(),
    );
    let nominated = Nominated::default();
    let inputs = Inputs {
        profile: &profile,
        snapshot: &bed.snapshot,
        nominated: &nominated,
        pod,
        within: None,
    };
    let at = bed.snapshot.position(node).unwrap();
    let mut state = CycleState::new();
    assert!(crate::cycle::pre_filter(&inputs, &mut state).0.is_success());
    let budgets = budgets.compiled();
    let removable = Removable::for_pod(pod, groups, &bed.snapshot);
    let (victims, violations) = victims(&inputs, &state, at, &budgets, &removable)?;
    let pods = victims.iter().flat_map(Victim::pods);
    let names = pods.map(|(_, pod)| pod.name.to_string());
    let mut names: Vec<String> = names.collect();
    // Which order the pods of a group have means nothing.
    if groups.have_priorities() {
        names.sort();
    }
    Ok((names, violations))
}

#[test]
fn only_as_many_go_as_must_and_the_least_important_first() {
    let mut bed = bed(&["n"]);
    for (name, priority) in [("a", 1), ("b", 2), ("c", 3), ("d", 4)] {
        bed.place(&pod(name, priority, "500m"), "n");
    }
    let none = Budgets::default();
    let (names, _) = on_node(&bed, &pod("p", 10, "1"), "n", &none).unwrap();
    assert_eq!(names, ["b", "a"]);
    let (names, _) = on_node(&bed, &pod("p", 3, "1"), "n", &none).unwrap();
    assert_eq!(names, ["b", "a"]);
    let refused = on_node(&bed, &pod("p", 1, "1"), "n", &none).unwrap_err();
    assert_eq!(
        *refused,
        Status::unresolvable("No preemption victims found for incoming pod")
    );
    let refused = on_node(&bed, &pod("p", 2, "1"), "n", &none).unwrap_err();
    assert_eq!(refused.reasons, ["Insufficient cpu"]);
}

#[test]
fn pods_under_a_budget_are_spared_where_others_can_go() {
    let mut bed = bed(&["n"]);
    bed.place(&pod("a", 1, "1"), "n");
    bed.place(&pod("b", 2, "1"), "n");
    let budget = serde_json::from_value(json!({
        "metadata": {"name": "keep", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "a"}}},
        "status": {"disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1},
    }))
    .unwrap();
    let budgets = Budgets::default();
    budgets.replace(vec![Arc::new(budget)]);
    let (names, violations) = on_node(&bed, &pod("p", 10, "1"), "n", &budgets).unwrap();
    assert_eq!((names, violations), (vec!["b".to_owned()], 0));
    let (_, violations) = on_node(&bed, &pod("p", 10, "2"), "n", &budgets).unwrap();
    assert_eq!(violations, 1);
}

#[test]
fn the_candidate_that_hurts_least_is_taken() {
    let candidate = |at, violations, priorities: &[i32]| {
        let victims = priorities
            .iter()
            .map(|p| Victim::Pod((at, pod(&format!("v{at}{p}"), *p, "1"))))
            .collect();
        Candidate {
            at,
            victims,
            violations,
        }
    };
    let choose = |list: Vec<Candidate>| best(list).map(|c| c.at);
    assert_eq!(choose(vec![]), None);
    assert_eq!(
        choose(vec![candidate(0, 1, &[1]), candidate(1, 0, &[9])]),
        Some(1)
    );
    assert_eq!(
        choose(vec![candidate(0, 0, &[5]), candidate(1, 0, &[4, 4, 4])]),
        Some(1)
    );
    assert_eq!(
        choose(vec![candidate(0, 0, &[5, 2]), candidate(1, 0, &[5, 1])]),
        Some(1)
    );
    assert_eq!(
        choose(vec![candidate(0, 0, &[-5, -6]), candidate(1, 0, &[-5])]),
        Some(1)
    );
}

/// Groups with priorities, of which these go whole.
fn whole(groups: &[(&str, i32)]) -> PodGroups {
    let known = PodGroups::with_priorities(true);
    for (name, priority) in groups {
        let group = json!({"metadata": {"name": name, "namespace": "default"}, "spec": {
            "schedulingPolicy": {"basic": {}}, "disruptionMode": "PodGroup", "priority": priority}});
        known.set(Arc::new(serde_json::from_value(group).unwrap()));
    }
    known
}

fn member(name: &str, group: &str, priority: i32, cpu: &str) -> Arc<PodInfo> {
    labelled(
        name,
        json!({"app": name}),
        json!({"priority": priority, "schedulingGroup": {"podGroupName": group}, "containers": [
            {"name": "c", "resources": {"requests": {"cpu": cpu}}}
        ]}),
    )
}

/// KEP-5710, also where the one that needs room is a pod alone.
#[test]
fn a_group_that_goes_whole_leaves_no_pod_behind() {
    let mut bed = bed(&["n", "m"]);
    bed.place(&member("g0", "g", 1, "1"), "n");
    bed.place(&member("g1", "g", 1, "1"), "m");
    bed.place(&pod("single", 1, "1"), "n");
    let none = Budgets::default();
    let on = |pod: &Arc<PodInfo>, groups: &PodGroups| on_node_with(&bed, pod, "n", &none, groups);
    // Of equal priority a pod goes before a group.
    let (names, _) = on(&pod("p", 5, "1"), &whole(&[("g", 1)])).unwrap();
    assert_eq!(names, ["single"]);
    let (names, _) = on(&pod("p", 5, "2"), &whole(&[("g", 1)])).unwrap();
    assert_eq!(names, ["g0", "g1", "single"]);
    // What counts is the priority of the group, not those of its pods.
    let (names, _) = on(&pod("p", 5, "1"), &whole(&[("g", 0)])).unwrap();
    assert_eq!(names, ["g0", "g1"]);
    let refused = on(&pod("p", 5, "2"), &whole(&[("g", 5)])).unwrap_err();
    assert_eq!(refused.reasons, ["Insufficient cpu"]);
    // Without the gate its pods are pods.
    let (names, _) = on(&pod("p", 5, "2"), &PodGroups::default()).unwrap();
    assert_eq!(names.len(), 2);
}

#[test]
fn a_group_breaks_a_budget_if_one_of_its_pods_does() {
    let mut bed = bed(&["n", "m"]);
    bed.place(&member("g0", "g", 1, "1"), "n");
    bed.place(&member("g1", "g", 1, "1"), "m");
    bed.place(&pod("single", 3, "1"), "n");
    let budget = json!({
        "metadata": {"name": "keep", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "g1"}}},
        "status": {"disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1},
    });
    let budgets = Budgets::default();
    budgets.replace(vec![Arc::new(serde_json::from_value(budget).unwrap())]);
    let groups = whole(&[("g", 1)]);
    let on = |cpu: &str| on_node_with(&bed, &pod("p", 5, cpu), "n", &budgets, &groups).unwrap();
    assert_eq!(on("1"), (vec!["single".to_owned()], 0));
    assert_eq!(on("2").1, 1);
}

#[test]
fn the_more_important_is_spared_first() {
    let one = |name: &str, priority| Victim::Pod((0, pod(name, priority, "1")));
    let mut bed = bed(&["n"]);
    for (name, group) in [("a0", "a"), ("b0", "b"), ("b1", "b")] {
        bed.place(&member(name, group, 0, "100m"), "n");
    }
    let groups = whole(&[("a", 4), ("b", 4)]);
    let removable = Removable::for_pod(&pod("p", 9, "1"), &groups, &bed.snapshot);
    let mut all = removable.on(0, bed.snapshot.node(0));
    all.extend([one("low", 3), one("same", 4), one("high", 5)]);
    all.sort_by_cached_key(Victim::order);
    let names = all.iter().map(|v| v.pods()[0].1.name.to_string());
    let names: Vec<String> = names
        .map(|name| name.trim_end_matches(['0', '1']).to_owned())
        .collect();
    assert_eq!(names, ["high", "b", "a", "same", "low"]);
}

#[tokio::test]
async fn arguments_say_on_how_many_nodes_it_is_tried() {
    let never = tower::service_fn(|_: http::Request<kube::client::Body>| {
        std::future::pending::<Result<http::Response<kube::client::Body>, std::io::Error>>()
    });
    let client = davit_client::in_process(never, "default");
    let plugin = DefaultPreemption::new(client, Budgets::default());
    assert_eq!([50, 1000, 5000].map(|n| plugin.wanted(n)), [50, 100, 500]);
    let plugin = plugin.with_args(&DefaultPreemptionArgs {
        min_candidate_nodes_percentage: 50,
        min_candidate_nodes_absolute: 0,
    });
    assert_eq!([3, 1000].map(|n| plugin.wanted(n)), [1, 500]);
}
