use super::*;
use crate::plugins::testing::{Bed, labelled};
use proptest::prelude::*;
use serde_json::{Value, json};

type ByDomain = BTreeMap<String, i64>;

/// The counts by looking at every pod of every node.
fn anew(
    pod: &PodInfo,
    snapshot: &Snapshot,
    constraints: &[SpreadConstraint],
    all_labels: bool,
) -> Vec<ByDomain> {
    let mut counts = vec![ByDomain::new(); constraints.len()];
    for node in snapshot.nodes() {
        if all_labels && !has_all_labels(constraints, node) {
            continue;
        }
        for (constraint, counts) in constraints.iter().zip(&mut counts) {
            let Some(value) = node.label(&constraint.topology_key) else {
                continue;
            };
            if counts_for(constraint, pod, node) {
                let of_ours =
                    |other: &&Arc<PodInfo>| !other.terminating && selected(constraint, pod, other);
                let pods = node.pods.iter().filter(of_ours).count();
                *counts.entry(value.to_owned()).or_default() += i64::try_from(pods).unwrap();
            }
        }
    }
    counts
}

#[derive(Debug, Clone)]
struct Asked {
    app: u8,
    constraints: Vec<(u8, bool)>,
    all_labels: bool,
    tolerates: bool,
    only: Option<u8>,
}

#[derive(Debug, Clone)]
enum Step {
    Place {
        uid: u8,
        node: u8,
        app: u8,
        terminating: bool,
    },
    Remove(u8),
    Node {
        node: u8,
        zone: u8,
        tainted: bool,
    },
    NoNode(u8),
    Ask(usize),
}

fn asked() -> impl Strategy<Value = Asked> {
    let constraints = proptest::collection::vec((0_u8..2, any::<bool>()), 1..3);
    let only = proptest::option::of(0_u8..3);
    (0_u8..2, constraints, any::<bool>(), any::<bool>(), only).prop_map(
        |(app, constraints, all_labels, tolerates, only)| Asked {
            app,
            constraints,
            all_labels,
            tolerates,
            only,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let place = (0_u8..6, 0_u8..4, 0_u8..2, any::<bool>());
    let node = (0_u8..4, 0_u8..3, any::<bool>());
    prop_oneof![
        4 => place.prop_map(|(uid, node, app, terminating)| Step::Place { uid, node, app, terminating }),
        1 => (0_u8..6).prop_map(Step::Remove),
        1 => node.prop_map(|(node, zone, tainted)| Step::Node { node, zone, tainted }),
        1 => (0_u8..4).prop_map(Step::NoNode),
        6 => (0_usize..3).prop_map(Step::Ask),
    ]
}

fn asking(asked: &Asked) -> Arc<PodInfo> {
    let constraint = |(key, honor_taints): &(u8, bool)| {
        json!({"maxSkew": 1, "topologyKey": if *key == 0 { "zone" } else { "host" }, "whenUnsatisfiable": "DoNotSchedule",
            "nodeTaintsPolicy": if *honor_taints { "Honor" } else { "Ignore" },
            "labelSelector": {"matchLabels": {"app": format!("a{}", asked.app)}}})
    };
    let mut spec = json!({"topologySpreadConstraints": asked.constraints.iter().map(constraint).collect::<Vec<Value>>()});
    if asked.tolerates {
        spec["tolerations"] = json!([{"operator": "Exists"}]);
    }
    if let Some(zone) = asked.only {
        spec["nodeSelector"] = json!({"zone": format!("z{zone}")});
    }
    labelled("asked", json!({}), spec)
}

fn running(uid: &str, app: u8, terminating: bool) -> Arc<PodInfo> {
    let mut pod = json!({"metadata": {"name": uid, "uid": uid, "namespace": "default", "labels": {"app": format!("a{app}")}},
        "spec": {"containers": []}});
    if terminating {
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    Arc::new(PodInfo::new(Arc::new(serde_json::from_value(pod).unwrap())))
}

fn set_node(bed: &mut Bed, name: u8, zone: u8, tainted: bool) {
    let name = format!("node{name}");
    // a node in zone 2 is in none
    let labels = match zone {
        2 => json!({"host": name}),
        _ => json!({"host": name, "zone": format!("z{zone}")}),
    };
    let taints = match tainted {
        true => json!([{"key": "t", "effect": "NoSchedule"}]),
        false => json!([]),
    };
    bed.node(
        &name,
        json!({"metadata": {"labels": labels}, "spec": {"taints": taints}}),
    );
}

proptest! {
    #[test]
    fn domains_that_are_kept_are_those_of_counting_anew(
        asked in [asked(), asked(), asked()],
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let mut bed = Bed::new();
        (0..4).for_each(|name| set_node(&mut bed, name, name % 2, false));
        let mut tally = SpreadTally::default();
        for step in &steps {
            match step {
                Step::Place { uid, node, app, terminating } => {
                    let uid = format!("p{uid}");
                    bed.cache.remove_pod(&uid);
                    bed.place(&running(&uid, *app, *terminating), &format!("node{node}"));
                }
                Step::Remove(uid) => _ = bed.cache.remove_pod(&format!("p{uid}")),
                Step::Node { node, zone, tainted } => set_node(&mut bed, *node, *zone, *tainted),
                Step::NoNode(name) => bed.cache.remove_node(&format!("node{name}")),
                Step::Ask(at) => {
                    bed.cache.update(&mut bed.snapshot);
                    let (pod, all_labels) = (asking(&asked[*at]), asked[*at].all_labels);
                    let constraints: Arc<[SpreadConstraint]> = pod.spread.clone().into();
                    let (kind, counts) = tally.counts(&pod, &bed.snapshot, &constraints, all_labels);
                    let anew = anew(&pod, &bed.snapshot, &constraints, all_labels);
                    prop_assert_eq!(kind.with(&counts).count(), anew.len());
                    for ((_, kept), anew) in kind.with(&counts).zip(&anew) {
                        prop_assert_eq!(kept.len(), anew.len());
                        prop_assert_eq!(kept.least(), anew.values().copied().min().unwrap_or(0));
                        for (value, pods) in anew {
                            prop_assert_eq!(kept.pods(value), *pods);
                        }
                    }
                }
            }
        }
    }
}
