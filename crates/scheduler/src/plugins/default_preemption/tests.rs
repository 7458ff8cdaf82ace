//! Who is removed, and who is spared.

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
    let budgets = CompiledBudget::all(budgets);
    victims(&inputs, &state, bed.snapshot.node(at), &budgets)
        .map(|(list, n)| (list.iter().map(|v| v.name.to_string()).collect(), n))
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
            .map(|p| pod(&format!("v{at}{p}"), *p, "1"))
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
