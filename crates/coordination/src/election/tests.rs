use super::*;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use proptest::prelude::*;

const NOW: i64 = 1_000_000;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(NOW + seconds).unwrap()
}

fn micro(seconds: i64) -> Option<MicroTime> {
    Some(MicroTime(at(seconds)))
}

/// A candidate made and renewed so long ago (negative seconds).
fn candidate(name: &str, binary: &str, emulates: &str, renewed: i64) -> LeaseCandidate {
    LeaseCandidate {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some("kube-system".to_owned()),
            creation_timestamp: Some(Time(at(-100))),
            ..ObjectMeta::default()
        },
        spec: LeaseCandidateSpec {
            lease_name: "l".to_owned(),
            binary_version: binary.to_owned(),
            emulation_version: Some(emulates.to_owned()),
            strategy: OLDEST.to_owned(),
            renew_time: micro(renewed),
            ping_time: None,
        },
    }
}

fn pinged(mut candidate: LeaseCandidate, seconds: i64) -> LeaseCandidate {
    candidate.spec.ping_time = micro(seconds);
    candidate
}

fn asks_for(mut candidate: LeaseCandidate, strategy: &str) -> LeaseCandidate {
    candidate.spec.strategy = strategy.to_owned();
    candidate
}

fn held(by: &str, renewed: i64) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(by.to_owned()),
        lease_duration_seconds: Some(15),
        renew_time: micro(renewed),
        strategy: Some(OLDEST.to_owned()),
        ..LeaseSpec::default()
    }
}

fn step_of(candidates: Vec<LeaseCandidate>, lease: Option<&LeaseSpec>) -> Step {
    let candidates: Vec<_> = candidates.into_iter().map(Arc::new).collect();
    step(&candidates, lease, at(0)).unwrap()
}

fn elect(holder: &str) -> Step {
    Step::Elect(Choice {
        strategy: OLDEST.to_owned(),
        holder: Some(holder.to_owned()),
    })
}

fn ping(names: &[&str]) -> Step {
    Step::Ping(names.iter().map(|name| (*name).to_owned()).collect())
}

#[test]
fn the_oldest_emulated_version_leads_then_the_oldest_binary_then_the_oldest_object() {
    let new = || candidate("new", "1.36.0", "1.36.0", -1);
    let emulates = || candidate("emulates", "1.36.0", "1.35.0", -1);
    let old = || candidate("old", "1.35.0", "1.35.0", -1);
    assert_eq!(step_of(vec![new(), emulates()], None), elect("emulates"));
    assert_eq!(step_of(vec![new(), emulates(), old()], None), elect("old"));
    let mut first = candidate("z", "1.35.0", "1.35.0", -1);
    first.metadata.creation_timestamp = Some(Time(at(-200)));
    assert_eq!(step_of(vec![old(), first], None), elect("z"));
}

#[test]
fn who_has_not_been_heard_of_is_asked_and_waited_for() {
    let heard = || candidate("a", "1.36.0", "1.36.0", -1);
    let silent = || candidate("b", "1.35.0", "1.35.0", -60);
    assert_eq!(step_of(vec![heard(), silent()], None), ping(&["b"]));
    assert_eq!(
        step_of(vec![heard(), pinged(silent(), -1)], None),
        Step::Wait
    );
    // it has not answered in time, and is not asked again
    assert_eq!(
        step_of(vec![heard(), pinged(silent(), -6)], None),
        elect("a")
    );
    let answered = pinged(candidate("b", "1.35.0", "1.35.0", -1), -2);
    assert_eq!(step_of(vec![heard(), answered], None), elect("b"));
    // one that answered long ago is
    let earlier = pinged(candidate("b", "1.35.0", "1.35.0", -59), -60);
    assert_eq!(step_of(vec![heard(), earlier], None), ping(&["b"]));
}

#[test]
fn a_lease_in_the_best_hands_is_left_alone() {
    let both = || {
        let old = candidate("old", "1.35.0", "1.35.0", -60);
        vec![candidate("new", "1.36.0", "1.36.0", -60), old]
    };
    assert_eq!(step_of(both(), Some(&held("old", -3))), Step::Wait);
    let asked = ping(&["new", "old"]);
    for lease in [held("new", -3), held("old", -16), held("", -3)] {
        assert_eq!(step_of(both(), Some(&lease)), asked, "{lease:?}");
    }
    assert_eq!(step_of(Vec::new(), Some(&held("old", -16))), Step::Rest);
    // Half of the time after which they count for nothing they are asked whether they are still there.
    let quiet = candidate("old", "1.35.0", "1.35.0", -16 * 60);
    assert_eq!(step_of(vec![quiet], Some(&held("old", -3))), ping(&["old"]));
    let gone = candidate("old", "1.35.0", "1.35.0", -31 * 60);
    assert_eq!(step_of(vec![gone], None), Step::Rest);
}

#[test]
fn the_newest_binary_says_by_which_strategy() {
    let other = "example.com/mine";
    let old = candidate("old", "1.35.0", "1.35.0", -1);
    let new = asks_for(candidate("new", "1.36.0", "1.36.0", -1), other);
    let choice = Choice {
        strategy: other.to_owned(),
        holder: None,
    };
    let both = vec![old, new.clone()];
    assert_eq!(step_of(both.clone(), None), Step::Elect(choice.clone()));
    assert_eq!(step_of(both, Some(&held("whoever", -1))), Step::Wait);
    assert_eq!(first_lease(&choice, at(0)).holder_identity, None);
    let twin = candidate("twin", "1.36.0", "1.36.0", -1);
    let candidates = [Arc::new(new), Arc::new(twin)];
    let fault = step(&candidates, None, at(0)).unwrap_err();
    assert!(matches!(fault, ElectionError::Strategies(..)), "{fault}");
}

#[test]
fn a_holder_is_asked_to_give_way_and_an_ended_lease_is_given_away() {
    let choice = Choice {
        strategy: OLDEST.to_owned(),
        holder: Some("old".to_owned()),
    };
    let mut lease = held("new", -3);
    assert!(enter(&choice, &mut lease, at(0)));
    let (holder, preferred) = (&lease.holder_identity, &lease.preferred_holder);
    assert_eq!(holder.as_deref(), Some("new"));
    assert_eq!(preferred.as_deref(), Some("old"));
    assert!(!enter(&choice, &mut lease, at(0)), "said once");

    assert!(enter(&choice, &mut lease, at(13)), "it has ended");
    assert_eq!(lease.holder_identity.as_deref(), Some("old"));
    assert_eq!(lease.preferred_holder, None);
    assert_eq!(lease.lease_duration_seconds, Some(TERM_SECONDS));
    assert_eq!(lease.renew_time, micro(13));
}

fn any_candidate() -> impl Strategy<Value = (u64, u64, i64, Option<i64>)> {
    let seconds = prop_oneof![-10_i64..0, -2000_i64..0];
    let minor = 34_u64..37;
    (
        minor,
        0_u64..3,
        seconds.clone(),
        proptest::option::of(seconds),
    )
}

proptest! {
    /// Whoever is elected has answered, and nobody who has emulates an older version; who leads in time is never displaced.
    #[test]
    fn elections_are_right(
        made in proptest::collection::vec(any_candidate(), 0..6),
        holder in proptest::option::of((0_usize..7, -20_i64..0)),
    ) {
        let candidates: Vec<_> = made.iter().enumerate().map(|(i, (emulates, newer, renewed, ping))| {
            let binary = format!("1.{}.0", emulates + newer);
            let made = candidate(&format!("c{i}"), &binary, &format!("1.{emulates}.0"), *renewed);
            Arc::new(match ping { Some(ping) => pinged(made, *ping), None => made })
        }).collect();
        let lease = holder.map(|(i, renewed)| held(&format!("c{i}"), renewed));
        let Ok(step) = step(&candidates, lease.as_ref(), at(0)) else { return Ok(()) };
        let is_there = |i: usize| made[i].2 > -5;
        match step {
            Step::Elect(Choice { holder: Some(chosen), strategy }) => {
                let i: usize = chosen[1..].parse().unwrap();
                prop_assert!(is_there(i));
                let older = (0..made.len()).filter(|j| is_there(*j)).all(|j| made[i].0 <= made[j].0);
                prop_assert!(older);
                let mut lease = lease.unwrap_or_default();
                let before = lease.clone();
                enter(&Choice { holder: Some(chosen.clone()), strategy }, &mut lease, at(0));
                let displaced = lease.holder_identity != before.holder_identity;
                prop_assert!(!displaced || has_ended(&before, at(0)) || before.holder_identity.is_none());
                let named = [&lease.holder_identity, &lease.preferred_holder];
                prop_assert!(named.contains(&&Some(chosen)));
            }
            Step::Ping(names) => for name in names {
                let i: usize = name[1..].parse().unwrap();
                prop_assert!(!is_there(i));
                prop_assert!(made[i].3.is_none_or(|ping| ping < -5 && made[i].2 >= ping));
            },
            Step::Elect(_) | Step::Rest | Step::Wait => {}
        }
    }
}
