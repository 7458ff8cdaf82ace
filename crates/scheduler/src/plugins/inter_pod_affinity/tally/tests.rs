//! What is kept from attempt to attempt is what counting everything anew gives.

use super::super::matches_all;
use super::*;
use crate::plugins::testing::Bed;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;

type Sums = BTreeMap<(String, String), i64>;

const HARD: i64 = 3;

fn flat(domains: &Domains) -> Sums {
    let all = domains.0.iter().flat_map(|(key, values)| {
        let values = values.iter();
        values.map(|(value, count)| ((key.to_string(), value.to_string()), *count))
    });
    all.collect()
}

/// The counts by looking at every pod of every node.
fn anew(pod: &PodInfo, snapshot: &Snapshot) -> [Sums; 4] {
    let mut sums: [Sums; 4] = Default::default();
    let mut add = |of: usize, node: &NodeInfo, term: &AffinityTerm, amount: i64| {
        if let Some(value) = node.label(&term.topology_key) {
            let key = (term.topology_key.clone(), value.to_owned());
            *sums[of].entry(key).or_default() += amount;
        }
    };
    let ours = snapshot.namespace(&pod.namespace);
    for node in snapshot.nodes() {
        for other in &node.pods {
            let theirs = snapshot.namespace(&other.namespace);
            for term in other.anti_affinity.iter().filter(|t| t.matches(pod, ours)) {
                add(0, node, term, 1);
            }
            if !pod.affinity.is_empty() && matches_all(&pod.affinity, other, theirs) {
                pod.affinity.iter().for_each(|term| add(1, node, term, 1));
            }
            for term in pod
                .anti_affinity
                .iter()
                .filter(|t| t.matches(other, theirs))
            {
                add(2, node, term, 1);
            }
            for term in other.affinity.iter().filter(|t| t.matches(pod, ours)) {
                add(3, node, term, HARD);
            }
            for (sign, mine, others) in [
                (1, &pod.preferred_affinity, &other.preferred_affinity),
                (
                    -1,
                    &pod.preferred_anti_affinity,
                    &other.preferred_anti_affinity,
                ),
            ] {
                for (weight, term) in mine.iter().filter(|(_, t)| t.matches(other, theirs)) {
                    add(3, node, term, sign * weight);
                }
                for (weight, term) in others.iter().filter(|(_, t)| t.matches(pod, ours)) {
                    add(3, node, term, sign * weight);
                }
            }
        }
    }
    sums.map(|sums| sums.into_iter().filter(|(_, sum)| *sum != 0).collect())
}

#[derive(Debug, Clone)]
struct Term {
    app: u8,
    key: u8,
    everywhere: bool,
}

#[derive(Debug, Clone)]
struct Wish {
    app: u8,
    namespace: u8,
    /// Required and preferred, to and from.
    terms: [Vec<Term>; 4],
}

#[derive(Debug, Clone)]
enum Step {
    Place { uid: u8, node: u8, wish: Wish },
    Remove(u8),
    Label { node: u8, zone: u8 },
    NoNode(u8),
    Namespace { name: u8, team: u8 },
    Ask(usize),
}

fn terms() -> impl Strategy<Value = Vec<Term>> {
    let term = (0_u8..2, 0_u8..2, any::<bool>());
    let term = term.prop_map(|(app, key, everywhere)| Term {
        app,
        key,
        everywhere,
    });
    proptest::collection::vec(term, 0..2)
}

fn wish() -> impl Strategy<Value = Wish> {
    (0_u8..2, 0_u8..2, [terms(), terms(), terms(), terms()]).prop_map(|(app, namespace, terms)| {
        Wish {
            app,
            namespace,
            terms,
        }
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0_u8..6, 0_u8..4, wish()).prop_map(|(uid, node, wish)| Step::Place { uid, node, wish }),
        1 => (0_u8..6).prop_map(Step::Remove),
        1 => (0_u8..4, 0_u8..3).prop_map(|(node, zone)| Step::Label { node, zone }),
        1 => (0_u8..4).prop_map(Step::NoNode),
        1 => (0_u8..2, 0_u8..2).prop_map(|(name, team)| Step::Namespace { name, team }),
        6 => (0_usize..3).prop_map(Step::Ask),
    ]
}

fn pod(uid: &str, wish: &Wish) -> Arc<PodInfo> {
    let term = |term: &Term| {
        let key = if term.key == 0 { "zone" } else { "host" };
        let mut json = json!({"labelSelector": {"matchLabels": {"app": format!("a{}", term.app)}},
            "topologyKey": key});
        if term.everywhere {
            json["namespaceSelector"] = json!({"matchLabels": {"team": "t0"}});
        }
        json
    };
    let required = |of: usize| wish.terms[of].iter().map(term).collect::<Vec<Value>>();
    let preferred = |of: usize| {
        let terms = wish.terms[of].iter().enumerate();
        let terms = terms.map(|(at, t)| json!({"weight": at + 1, "podAffinityTerm": term(t)}));
        terms.collect::<Vec<Value>>()
    };
    let rules = |required: Vec<Value>, preferred: Vec<Value>| {
        json!({"requiredDuringSchedulingIgnoredDuringExecution": required,
            "preferredDuringSchedulingIgnoredDuringExecution": preferred})
    };
    let pod = json!({
        "metadata": {"name": uid, "uid": uid, "namespace": format!("n{}", wish.namespace),
            "labels": {"app": format!("a{}", wish.app)}},
        "spec": {"containers": [], "affinity": {
            "podAffinity": rules(required(0), preferred(2)),
            "podAntiAffinity": rules(required(1), preferred(3))}}});
    Arc::new(PodInfo::new(Arc::new(serde_json::from_value(pod).unwrap())))
}

fn node(bed: &mut Bed, name: u8, zone: u8) {
    let name = format!("node{name}");
    // a node in zone 2 is in none
    let labels = match zone {
        2 => json!({"host": name}),
        _ => json!({"host": name, "zone": format!("z{zone}")}),
    };
    bed.node(&name, json!({"metadata": {"labels": labels}}));
}

proptest! {
    #[test]
    fn counts_that_are_kept_are_those_of_counting_anew(
        asked in [wish(), wish(), wish()],
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let mut bed = Bed::new();
        (0..4).for_each(|name| node(&mut bed, name, name % 2));
        let mut tallies = AffinityTally::default();
        for step in &steps {
            match step {
                Step::Place { uid, node, wish } => {
                    let uid = format!("p{uid}");
                    bed.cache.remove_pod(&uid);
                    bed.place(&pod(&uid, wish), &format!("node{node}"));
                }
                Step::Remove(uid) => _ = bed.cache.remove_pod(&format!("p{uid}")),
                Step::Label { node: name, zone } => node(&mut bed, *name, *zone),
                Step::NoNode(name) => bed.cache.remove_node(&format!("node{name}")),
                Step::Namespace { name, team } => {
                    let labels = [("team".to_owned(), format!("t{team}"))];
                    bed.cache.set_namespace(&format!("n{name}"), Some(labels.into()));
                }
                Step::Ask(wish) => {
                    bed.cache.update(&mut bed.snapshot);
                    let asked = pod("asked", &asked[*wish]);
                    let kept = tallies.counts(&asked, &bed.snapshot, HARD);
                    let kept = [&kept.against, &kept.wanted, &kept.unwanted, &kept.preferred];
                    prop_assert_eq!(kept.map(|domains| flat(domains)), anew(&asked, &bed.snapshot));
                }
            }
        }
    }
}
