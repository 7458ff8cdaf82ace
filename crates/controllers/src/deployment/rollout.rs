//! How many replicas each set of a deployment should have now: a pure plan.

use super::replica_sets::{DESIRED, MAX, Sets, actual, available, narrow, wanted};
use k8s_openapi::api::apps::v1::{DeploymentSpec, ReplicaSet};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// The strategy in numbers, wide enough to be added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Limits {
    desired: i64,
    surge: i64,
    unavailable: i64,
    recreate: bool,
}

impl Limits {
    fn of(spec: &DeploymentSpec) -> Self {
        let desired = i64::from(spec.replicas.unwrap_or(1));
        let strategy = spec.strategy.as_ref();
        let recreate = strategy.and_then(|s| s.type_.as_deref()) == Some("Recreate");
        let rolling = strategy.and_then(|s| s.rolling_update.as_ref());
        let quarter = IntOrString::String("25%".to_owned());
        let share =
            |value: Option<&IntOrString>, up: bool| resolve(value.unwrap_or(&quarter), desired, up);
        let surge = share(rolling.and_then(|r| r.max_surge.as_ref()), true);
        // No more than can be counted together with what is wanted.
        let surge = surge.min(i64::from(i32::MAX) - desired.max(0));
        let mut unavailable = share(rolling.and_then(|r| r.max_unavailable.as_ref()), false);
        // With both at zero nothing could ever move.
        if surge == 0 && unavailable == 0 {
            unavailable = 1;
        }
        if recreate {
            return Self {
                desired,
                surge: 0,
                unavailable: desired,
                recreate,
            };
        }
        Self {
            desired,
            surge,
            unavailable: unavailable.min(desired),
            recreate,
        }
    }
}

/// A count, or a share of `total` rounded up or down.
fn resolve(value: &IntOrString, total: i64, up: bool) -> i64 {
    match value {
        IntOrString::Int(count) => (*count).into(),
        IntOrString::String(text) => {
            let percent: i64 = text.trim_end_matches('%').parse().unwrap_or(0);
            let exact = percent.saturating_mul(total);
            let share = if up { exact.saturating_add(99) } else { exact };
            share / 100
        }
    }
}

/// How many pods more than desired may exist during a rollout.
pub(super) fn max_surge(spec: Option<&DeploymentSpec>) -> i64 {
    spec.map_or(0, |spec| Limits::of(spec).surge)
}

/// How many pods fewer than desired may be available during a rollout.
pub(super) fn max_unavailable(spec: Option<&DeploymentSpec>) -> i64 {
    spec.map_or(0, |spec| Limits::of(spec).unavailable)
}

/// Size of a set that is being created.
pub(super) fn first_size(spec: &DeploymentSpec, sets: &Sets) -> i32 {
    let limits = Limits::of(spec);
    if limits.recreate {
        return if sets.old.iter().any(|rs| wanted(rs) > 0 || actual(rs) > 0) {
            0
        } else {
            narrow(limits.desired)
        };
    }
    let others = sets.old.iter().map(wanted).sum();
    narrow(grown(0, others, limits))
}

/// The size to which a set of `size` may grow while `others` replicas exist elsewhere.
fn grown(size: i64, others: i64, limits: Limits) -> i64 {
    let room = (limits.desired + limits.surge - size - others).max(0);
    (size + room)
        .min(limits.desired)
        .max(size.min(limits.desired))
}

/// The sets to scale, and to how many replicas.
pub(super) fn plan(spec: &DeploymentSpec, sets: &Sets) -> Vec<(ReplicaSet, i32)> {
    let sizes = sizes(spec, sets).into_iter();
    sizes.map(|(set, size)| (set, narrow(size))).collect()
}

fn sizes(spec: &DeploymentSpec, sets: &Sets) -> Vec<(ReplicaSet, i64)> {
    let limits = Limits::of(spec);
    // Where all old pods go first there is no proportion to keep.
    if spec.paused == Some(true) || (!limits.recreate && is_scaled(sets, limits)) {
        return scale(sets, limits);
    }
    let Some(current) = &sets.current else {
        return Vec::new();
    };
    if limits.recreate {
        recreate(current, sets, limits)
    } else {
        roll(current, sets, limits)
    }
}

/// Whether the deployment's replicas have changed since its sets were last scaled.
fn is_scaled(sets: &Sets, limits: Limits) -> bool {
    let desired = |rs: &ReplicaSet| annotation(rs, DESIRED);
    sets.all()
        .filter(|rs| wanted(rs) > 0)
        .any(|rs| desired(rs).is_some_and(|n| n != limits.desired))
}

/// The sets follow the replicas of the deployment: the only one as a whole, several in proportion to their sizes, so
/// that a rollout that is under way risks no more than before.
fn scale(sets: &Sets, limits: Limits) -> Vec<(ReplicaSet, i64)> {
    let mut active: Vec<&ReplicaSet> = sets.all().filter(|rs| wanted(rs) > 0).collect();
    if let [] | [_] = active[..] {
        let only = active.first().copied().or_else(|| sets.all().last());
        return only
            .map(|rs| (rs.clone(), limits.desired))
            .into_iter()
            .collect();
    }
    let is_done = |rs: &ReplicaSet| {
        wanted(rs) == limits.desired
            && annotation(rs, DESIRED) == Some(limits.desired)
            && available(rs) == limits.desired
    };
    if sets.current.as_ref().is_some_and(is_done) {
        let old = sets.old.iter().filter(|rs| wanted(rs) > 0);
        return old.map(|rs| (rs.clone(), 0)).collect();
    }
    if limits.recreate {
        return Vec::new();
    }
    let allowed = match limits.desired {
        0 => 0,
        desired => desired + limits.surge,
    };
    let total: i64 = active.iter().map(|rs| wanted(rs)).sum();
    let to_add = allowed - total;
    let age = |rs: &ReplicaSet| rs.metadata.creation_timestamp.as_ref().map(|t| t.0);
    // The largest first; among equals the newer grows first and the older shrinks first.
    active.sort_by(|a, b| {
        let by_age = age(a).cmp(&age(b));
        let by_age = if to_add > 0 { by_age.reverse() } else { by_age };
        wanted(b).cmp(&wanted(a)).then(by_age)
    });
    let mut left = to_add;
    let mut plan: Vec<(ReplicaSet, i64)> = Vec::new();
    for set in active {
        let share = share_of(set, allowed, total, limits);
        let share = if to_add > 0 {
            share.min(left)
        } else {
            share.max(left)
        };
        left -= share;
        plan.push((set.clone(), wanted(set) + share));
    }
    // What rounding leaves over is the largest's.
    if let Some((_, size)) = plan.first_mut() {
        *size = (*size + left).max(0);
    }
    plan
}

/// By how many replicas a set changes so that it is the same part of the whole as before.
fn share_of(set: &ReplicaSet, allowed: i64, total: i64, limits: Limits) -> i64 {
    let size = wanted(set);
    if limits.desired == 0 {
        return -size;
    }
    let before = annotation(set, MAX).filter(|max| *max > 0).unwrap_or(total);
    // To the nearest; halves go up. An annotation that says less than there is does not make a set larger than it can be.
    let part = (2 * size).saturating_mul(allowed).saturating_add(before) / (2 * before);
    part.min(i32::MAX.into()) - size
}

fn annotation(set: &ReplicaSet, name: &str) -> Option<i64> {
    let text = set.metadata.annotations.as_ref()?.get(name)?;
    text.parse::<i32>().ok().map(i64::from)
}

fn recreate(current: &ReplicaSet, sets: &Sets, limits: Limits) -> Vec<(ReplicaSet, i64)> {
    let down: Vec<(ReplicaSet, i64)> = sets
        .old
        .iter()
        .filter(|rs| wanted(rs) > 0)
        .map(|rs| (rs.clone(), 0))
        .collect();
    let still_there = sets.old.iter().any(|rs| actual(rs) > 0);
    if down.is_empty() && !still_there {
        vec![(current.clone(), limits.desired)]
    } else {
        down
    }
}

fn roll(current: &ReplicaSet, sets: &Sets, limits: Limits) -> Vec<(ReplicaSet, i64)> {
    let others: i64 = sets.old.iter().map(wanted).sum();
    let size = wanted(current);
    let target = if size > limits.desired {
        limits.desired
    } else {
        grown(size, others, limits)
    };
    let mut plan = vec![(current.clone(), target)];
    if target != size || others == 0 {
        // One direction at a time: the next look sees what this one did.
        return plan;
    }
    let min_available = limits.desired - limits.unavailable;
    let new_unavailable = size - available(current);
    let mut removable = others + size - min_available - new_unavailable;
    // Replicas that are not available may always go; they serve nobody.
    for set in &sets.old {
        let unavailable = (wanted(set) - available(set)).min(removable).max(0);
        if unavailable > 0 {
            plan.push((set.clone(), wanted(set) - unavailable));
            removable -= unavailable;
        }
    }
    let total_available: i64 = sets.all().map(available).sum();
    let mut surplus = (total_available - min_available).max(0).min(removable);
    for set in &sets.old {
        let planned = plan
            .iter()
            .position(|(rs, _)| rs.metadata.name == set.metadata.name);
        let now = planned.map_or_else(|| wanted(set), |at| plan[at].1);
        let down = now.min(surplus);
        if down > 0 {
            surplus -= down;
            match planned {
                Some(at) => plan[at].1 -= down,
                None => plan.push((set.clone(), now - down)),
            }
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::apps::v1::{DeploymentStrategy, RollingUpdateDeployment};
    use proptest::prelude::*;

    fn set(name: &str, size: i32, ready: i32) -> ReplicaSet {
        let mut set = ReplicaSet::default();
        set.metadata.name = Some(name.to_owned());
        set.spec.get_or_insert_default().replicas = Some(size);
        let status = set.status.get_or_insert_default();
        (status.replicas, status.available_replicas) = (size, Some(ready));
        set
    }

    fn spec(replicas: i32, surge: i32, unavailable: i32) -> DeploymentSpec {
        let rolling = RollingUpdateDeployment {
            max_surge: Some(IntOrString::Int(surge)),
            max_unavailable: Some(IntOrString::Int(unavailable)),
        };
        let strategy = DeploymentStrategy {
            type_: Some("RollingUpdate".into()),
            rolling_update: Some(rolling),
        };
        DeploymentSpec {
            replicas: Some(replicas),
            strategy: Some(strategy),
            ..DeploymentSpec::default()
        }
    }

    #[test]
    fn shares_round_surge_up_and_unavailability_down() {
        let quarter = IntOrString::String("25%".into());
        assert_eq!(
            (resolve(&quarter, 3, true), resolve(&quarter, 3, false)),
            (1, 0)
        );
    }

    #[test]
    fn recreate_waits_until_the_old_pods_are_gone() {
        let mut spec = spec(3, 0, 0);
        spec.strategy = Some(DeploymentStrategy {
            type_: Some("Recreate".into()),
            rolling_update: None,
        });
        let mut sets = Sets {
            current: Some(set("new", 0, 0)),
            old: vec![set("old", 3, 3)],
        };
        let names = |plan: Vec<(ReplicaSet, i32)>| -> Vec<(String, i32)> {
            plan.into_iter()
                .map(|(rs, n)| (rs.metadata.name.unwrap(), n))
                .collect()
        };
        assert_eq!(names(plan(&spec, &sets)), [("old".to_owned(), 0)]);
        sets.old[0].spec.as_mut().unwrap().replicas = Some(0);
        assert!(
            plan(&spec, &sets).is_empty(),
            "pods of the old set still exist"
        );
        sets.old[0].status.as_mut().unwrap().replicas = 0;
        assert_eq!(names(plan(&spec, &sets)), [("new".to_owned(), 3)]);
    }

    #[test]
    fn sets_are_scaled_in_proportion() {
        let annotated = |name: &str, size: i32, ready: i32, desired: i32| {
            let mut set = set(name, size, ready);
            let values = [(DESIRED, desired), (MAX, desired + 3)];
            let values = values.map(|(key, value)| (key.to_owned(), value.to_string()));
            set.metadata.annotations = Some(values.into());
            set
        };
        // a rollout of ten that is stuck, as in the end-to-end test of Kubernetes
        let sets = Sets {
            current: Some(annotated("new", 5, 0, 10)),
            old: vec![annotated("old", 8, 8, 10)],
        };
        let sizes = |replicas: i32| -> Vec<i32> {
            let plan = plan(&spec(replicas, 3, 2), &sets);
            plan.into_iter().map(|(_, size)| size).collect()
        };
        assert_eq!(sizes(30), [20, 13]);
        assert_eq!(sizes(5), [5, 3]);
        assert_eq!(sizes(0), [0, 0]);
        let done = Sets {
            current: Some(annotated("new", 10, 10, 10)),
            old: vec![annotated("old", 1, 1, 9)],
        };
        let plan = plan(&spec(10, 3, 2), &done);
        assert_eq!(plan.len(), 1);
        assert_eq!(
            (plan[0].0.metadata.name.as_deref(), plan[0].1),
            (Some("old"), 0)
        );
    }

    #[test]
    fn the_largest_numbers_are_added_up() {
        let most = i32::MAX;
        let all = |size: i32| {
            let mut set = set(&format!("old-{size}"), size, size);
            let values = [(DESIRED, 1), (MAX, 1)].map(|(k, v)| (k.to_owned(), v.to_string()));
            set.metadata.annotations = Some(values.into());
            set
        };
        for current in [0, 1, most] {
            let sets = Sets {
                current: Some(set("new", current, 0)),
                old: vec![all(most), all(most - 1), all(1)],
            };
            for (surge, unavailable) in [(0, most), (most, 0), (most, most), (1, 0)] {
                for replicas in [0, 1, most] {
                    let mut spec = spec(replicas, surge, unavailable);
                    assert!((0..=replicas).contains(&first_size(&spec, &sets)));
                    for paused in [true, false] {
                        spec.paused = Some(paused);
                        let plan = plan(&spec, &sets);
                        assert!(plan.iter().all(|(_, size)| *size >= 0), "{plan:?}");
                    }
                }
            }
        }
        let share = IntOrString::String(format!("{}%", i64::MAX));
        assert!(resolve(&share, i64::from(most), true) > 0);
    }

    proptest! {
        /// Every rollout whose pods become ready ends with the new set alone, never leaving the limits on the way.
        #[test]
        fn rollouts_end_and_keep_their_limits(replicas in 0..12i32, surge in 0..4i32, unavailable in 0..4i32) {
            let spec = spec(replicas, surge, unavailable);
            let limits = Limits::of(&spec);
            let mut sets = Sets { current: None, old: vec![set("old", replicas, replicas)] };
            sets.current = Some(set("new", first_size(&spec, &sets), 0));
            for _ in 0..200 {
                for (planned, size) in plan(&spec, &sets) {
                    for rs in sets.old.iter_mut().chain(&mut sets.current) {
                        if rs.metadata.name == planned.metadata.name {
                            let ready = narrow(available(rs)).min(size);
                            *rs = set(rs.metadata.name.as_deref().unwrap(), size, ready);
                        }
                    }
                }
                let total: i64 = sets.all().map(wanted).sum();
                prop_assert!(total <= limits.desired + limits.surge);
                let serving: i64 = sets.all().map(available).sum();
                prop_assert!(serving >= limits.desired - limits.unavailable, "{serving} serve");
                // One pod of the new set becomes ready.
                let current = sets.current.as_mut().unwrap();
                let (size, ready) = (narrow(wanted(current)), narrow(available(current)));
                *current = set("new", size, (ready + 1).min(size));
            }
            prop_assert_eq!(sets.current.as_ref().map(wanted), Some(replicas.into()));
            prop_assert_eq!(sets.old.iter().map(wanted).sum::<i64>(), 0);
        }
    }
}
