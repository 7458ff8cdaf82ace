//! The allocator against a plain exhaustive search: the same first solution, or none.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::bed::*;

#[derive(Debug, Clone)]
struct Thing {
    root: Option<u8>,
    large: bool,
    held: bool,
    tainted: bool,
}

#[derive(Debug, Clone)]
struct Ask {
    count: usize,
    large_only: bool,
    tolerant: bool,
}

#[derive(Debug, Clone)]
struct Problem {
    things: Vec<Thing>,
    claims: Vec<(Vec<Ask>, Option<bool>)>,
}

fn thing() -> impl Strategy<Value = Thing> {
    (
        proptest::option::of(0..3u8),
        any::<bool>(),
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.2),
    )
        .prop_map(|(root, large, held, tainted)| Thing {
            root,
            large,
            held,
            tainted,
        })
}

fn ask() -> impl Strategy<Value = Ask> {
    (1..4usize, prop::bool::weighted(0.3), any::<bool>()).prop_map(
        |(count, large_only, tolerant)| Ask {
            count,
            large_only,
            tolerant,
        },
    )
}

fn problem() -> impl Strategy<Value = Problem> {
    // Some(false): equal roots, Some(true): different ones.
    let claim = (
        prop::collection::vec(ask(), 1..3),
        proptest::option::of(any::<bool>()),
    );
    (
        prop::collection::vec(thing(), 0..8),
        prop::collection::vec(claim, 1..3),
    )
        .prop_map(|(things, claims)| Problem { things, claims })
}

impl Problem {
    fn case(&self) -> Case {
        let device = |(i, t): (usize, &Thing)| {
            let mut attributes = json!({"large": {"bool": t.large}});
            if let Some(root) = t.root {
                attributes["root"] = json!({"int": root});
            }
            let taints = if t.tainted {
                json!([{"key": "k", "effect": "NoSchedule"}])
            } else {
                json!([])
            };
            json!({"name": format!("d{i}"), "attributes": attributes, "taints": taints})
        };
        let devices: Vec<Value> = self.things.iter().enumerate().map(device).collect();
        // Two pools, so that their order counts as well.
        let (first, second) = devices.split_at(devices.len() / 2);
        let mut case = Case::new()
            .slice(slice("s1", "p1", "driver-a", json!(first)))
            .slice(slice("s2", "p2", "driver-a", json!(second)));
        for (i, t) in self.things.iter().enumerate() {
            if t.held {
                let pool = if i < first.len() { "p1" } else { "p2" };
                case = case.allocated("driver-a", pool, &format!("d{i}"));
            }
        }
        for (asks, constraint) in &self.claims {
            let requests: Vec<Value> = asks
                .iter()
                .enumerate()
                .map(|(r, ask)| {
                    let mut members = json!({});
                    if ask.large_only {
                        members["selectors"] =
                            cel(&["device.attributes[\"driver-a\"].large == true"]);
                    }
                    if ask.tolerant {
                        members["tolerations"] = json!([{"operator": "Exists"}]);
                    }
                    also(
                        request(
                            &format!("r{r}"),
                            "class-a",
                            i64::try_from(ask.count).unwrap(),
                        ),
                        members,
                    )
                })
                .collect();
            case = case.claim(json!(requests));
            case = match constraint {
                None => case,
                Some(false) => {
                    case.with("constraints", json!([{"matchAttribute": "driver-a/root"}]))
                }
                Some(true) => case.with(
                    "constraints",
                    json!([{"distinctAttribute": "driver-a/root"}]),
                ),
            };
        }
        case
    }

    /// The first solution in the order of the search, found without any shortcut.
    fn solve(&self) -> Option<Vec<Vec<usize>>> {
        let mut slots = Vec::new();
        for (c, (asks, _)) in self.claims.iter().enumerate() {
            for (r, ask) in asks.iter().enumerate() {
                slots.extend((0..ask.count).map(|_| (c, r)));
            }
        }
        let mut chosen = Vec::new();
        self.fill(&slots, &mut chosen).then(|| {
            let mut out = vec![Vec::new(); self.claims.len()];
            for ((c, _), d) in slots.iter().zip(&chosen) {
                out[*c].push(*d);
            }
            out
        })
    }

    fn fill(&self, slots: &[(usize, usize)], chosen: &mut Vec<usize>) -> bool {
        let Some(&(c, r)) = slots.get(chosen.len()) else {
            return true;
        };
        // Devices of one request come in their order.
        let previous = chosen.len().checked_sub(1).filter(|&p| slots[p] == (c, r));
        let start = previous.map_or(0, |p| chosen[p] + 1);
        for d in start..self.things.len() {
            if self.fits(slots, chosen, d) {
                chosen.push(d);
                if self.fill(slots, chosen) {
                    return true;
                }
                chosen.pop();
            }
        }
        false
    }

    fn fits(&self, slots: &[(usize, usize)], chosen: &[usize], d: usize) -> bool {
        let (c, r) = slots[chosen.len()];
        let (thing, ask) = (&self.things[d], &self.claims[c].0[r]);
        if thing.held
            || chosen.contains(&d)
            || (ask.large_only && !thing.large)
            || (thing.tainted && !ask.tolerant)
        {
            return false;
        }
        let Some(distinct) = self.claims[c].1 else {
            return true;
        };
        let others = slots.iter().zip(chosen).filter(|((oc, _), _)| *oc == c);
        let mut others = others.map(|(_, o)| self.things[*o].root);
        thing.root.is_some() && others.all(|root| (root == thing.root) != distinct)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_first_solution_is_that_of_an_exhaustive_search(problem in problem()) {
        let found = problem.case().run().unwrap();
        let found = found.map(|a| devices(&a).into_iter().map(|claim| {
            let index = |text: String| text.rsplit_once("/d").unwrap().1.parse().unwrap();
            claim.into_iter().map(index).collect::<Vec<usize>>()
        }).collect::<Vec<_>>());
        prop_assert_eq!(found, problem.solve());
    }
}
