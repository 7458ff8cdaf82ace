//! The judge lets pass what can be, and nothing else.

use super::*;
use crate::Dice;

fn operation(key: &str, times: [u64; 2], action: Action, told: Told) -> Operation {
    Operation {
        key: key.to_owned(),
        began: times[0],
        ended: times[1],
        action,
        told,
    }
}

fn changed(revision: u64, key: &str, change: Change) -> (Moment, Event) {
    let key = key.to_owned();
    let event = Event::Changed {
        revision,
        key,
        change,
    };
    // Events come when all is over, so that their times say nothing.
    (1_000_000 + revision, event)
}

fn objects(pairs: &[(&str, Token, u64)]) -> Objects {
    let pairs = pairs.iter();
    pairs
        .map(|(key, token, revision)| ((*key).to_owned(), (*token, *revision)))
        .collect()
}

/// One of everything, one after the other.
fn sound() -> History {
    let operations = vec![
        operation("a", [0, 10], Action::Create(1), Told::Written(5)),
        operation("a", [20, 30], Action::Get, Told::Seen(Some((1, 5)))),
        operation("a", [40, 50], Action::Update(2, 5), Told::Written(6)),
        operation("a", [51, 59], Action::Update(3, 5), Told::Conflict),
        operation("b", [60, 70], Action::Create(4), Told::Written(8)),
        operation("a", [80, 90], Action::Delete(Some(6)), Told::Deleted),
        operation("a", [91, 92], Action::Get, Told::Seen(None)),
        operation("a", [93, 94], Action::Patch(5), Told::Absent),
        operation("b", [95, 96], Action::Create(6), Told::Exists),
        operation("b", [97, 98], Action::Patch(7), Told::Written(11)),
    ];
    let lists = vec![Listed {
        began: 71,
        ended: 75,
        current: true,
        pages: vec![8, 8],
        objects: objects(&[("a", 2, 6), ("b", 4, 8)]),
    }];
    let watch = Watched {
        from: 4,
        start: Objects::new(),
        events: vec![
            changed(5, "a", Change::Added(1)),
            changed(6, "a", Change::Modified(2)),
            changed(8, "b", Change::Added(4)),
            (1_000_008, Event::Bookmark(8)),
            changed(9, "a", Change::Deleted),
            changed(11, "b", Change::Modified(7)),
        ],
    };
    let mut second = watch.clone();
    second.from = 8;
    second.start = objects(&[("a", 2, 6), ("b", 4, 8)]);
    second.events.drain(..4);
    History {
        operations,
        lists,
        watches: vec![watch, second],
    }
}

/// The sound history after a change is refused in these words.
fn refused(words: &str, change: impl FnOnce(&mut History)) {
    let mut history = sound();
    change(&mut history);
    let faults = judge(&history);
    assert!(
        faults.iter().any(|fault| fault.contains(words)),
        "{words:?} is not in {faults:#?}"
    );
}

#[test]
fn a_sound_history_passes() {
    assert_eq!(judge(&sound()), Vec::<String>::new());
    assert_eq!(judge(&History::default()), Vec::<String>::new());
}

#[test]
fn a_stale_read_is_refused() {
    // After the update was acknowledged.
    refused("no order", |history| {
        let read = operation("a", [52, 58], Action::Get, Told::Seen(Some((1, 5))));
        history.operations.push(read);
    });
    // Deleted, and there again.
    refused("no order", |history| {
        history.operations[6].told = Told::Seen(Some((2, 6)));
    });
    refused("no order", |history| {
        history.operations[1].told = Told::Seen(None);
    });
    // One that overlaps the update may be either.
    for seen in [(1, 5), (2, 6)] {
        let mut history = sound();
        let read = operation("a", [35, 45], Action::Get, Told::Seen(Some(seen)));
        history.operations.push(read);
        assert_eq!(judge(&history), Vec::<String>::new());
    }
}

#[test]
fn a_lost_update_is_refused() {
    // Two updates of the same revision, both acknowledged.
    refused("no order", |history| {
        let other = operation("a", [41, 51], Action::Update(20, 5), Told::Written(7));
        history.operations.push(other);
        for watch in &mut history.watches[..1] {
            watch
                .events
                .insert(2, changed(7, "a", Change::Modified(20)));
        }
    });
    // A patch that was acknowledged, and later reads do not know of.
    refused("no watch has write 30", |history| {
        let lost = operation("b", [99, 100], Action::Patch(30), Told::Written(10));
        history.operations.push(lost);
    });
}

#[test]
fn a_wrong_refusal_is_refused() {
    refused("no order", |history| {
        history.operations[3].action = Action::Update(3, 6);
    });
    refused("no order", |history| {
        history.operations[7].told = Told::Exists;
    });
    refused("no order", |history| {
        history.operations[0].told = Told::Exists;
    });
}

#[test]
fn a_missed_event_is_refused() {
    refused("at 9 0 times", |history| {
        history.watches[0].events.remove(4);
    });
    refused("no watch has write 2", |history| {
        history.watches.pop();
        history.watches[0].events.remove(1);
    });
    // Both have lost the deletion.
    refused("seen to go 0 times", |history| {
        for watch in &mut history.watches {
            watch.events.retain(|(_, event)| event.revision() != 9);
        }
    });
}

#[test]
fn a_doubled_event_is_refused() {
    refused("at 6 2 times", |history| {
        let again = history.watches[0].events[1].clone();
        history.watches[0].events.insert(2, again);
    });
    refused("after 6", |history| history.watches[0].events.swap(0, 1));
    refused("at revision 9, another", |history| {
        history.watches[1].events[0] = changed(9, "b", Change::Deleted);
    });
    refused("has revision 8 of b after 8", |history| {
        history.watches[0].events.swap(2, 3);
    });
}

#[test]
fn an_event_that_nobody_asked_for_is_refused() {
    refused("nobody wrote 99", |history| {
        history.watches[0]
            .events
            .push(changed(12, "b", Change::Modified(99)));
    });
    refused("was told Conflict", |history| {
        history.watches[0]
            .events
            .insert(2, changed(7, "a", Change::Modified(3)));
    });
    refused("which was not there", |history| {
        history.watches[0]
            .events
            .push(changed(12, "c", Change::Deleted));
    });
}

#[test]
fn a_revision_twice_or_going_back_is_refused() {
    refused("revision 6 is", |history| {
        history.operations[4].told = Told::Written(6);
    });
    refused("write 4 of b has revision 8, and revision 12", |history| {
        let read = operation("b", [71, 72], Action::Get, Told::Seen(Some((4, 12))));
        history.operations.push(read);
    });
    refused("6 was known before it began", |history| {
        let late = operation("c", [60, 61], Action::Create(40), Told::Written(3));
        history.operations.push(late);
    });
}

#[test]
fn a_list_of_another_moment_is_refused() {
    refused("pages of a list are of revisions [8, 9]", |history| {
        history.lists[0].pages = vec![8, 9];
    });
    refused("and 8 was known before it began", |history| {
        history.lists[0].pages = vec![6, 6];
        history.lists[0].objects.remove("b");
    });
    refused("is not what there was then: {\"a\"}", |history| {
        history.lists[0].objects.remove("a");
    });
    refused("has b of 8", |history| history.lists[0].pages = vec![7, 7]);
    // One from memory may be older, but is what there was.
    let mut history = sound();
    history.lists[0].current = false;
    history.lists[0].pages = vec![6];
    history.lists[0].objects.remove("b");
    assert_eq!(judge(&history), Vec::<String>::new());
}

#[test]
fn what_had_no_answer_may_happen_later_or_never() {
    let with = |action, seen: &[(Moment, Option<(Token, u64)>)]| {
        let mut operations = vec![
            operation("a", [0, 1], Action::Create(1), Told::Written(5)),
            operation("a", [2, 3], action, Told::Unknown),
        ];
        for (when, seen) in seen {
            operations.push(operation(
                "a",
                [*when, *when + 1],
                Action::Get,
                Told::Seen(*seen),
            ));
        }
        judge(&History {
            operations,
            ..History::default()
        })
    };
    let (old, new) = (Some((1, 5)), Some((2, 9)));
    assert!(with(Action::Patch(2), &[(10, old), (20, old)]).is_empty());
    assert!(with(Action::Patch(2), &[(10, old), (20, new), (30, new)]).is_empty());
    assert!(with(Action::Delete(None), &[(10, old), (20, None)]).is_empty());
    // But it does not come and go.
    assert!(!with(Action::Patch(2), &[(10, new), (20, old)]).is_empty());
    assert!(!with(Action::Delete(None), &[(10, None), (20, old)]).is_empty());
    assert!(!with(Action::Update(2, 4), &[(10, new)]).is_empty());
}

/// A server that works one by one, asked by several clients whose questions overlap.
fn simulated(seed: u64) -> History {
    let mut dice = Dice::new(seed);
    let mut there = Objects::new();
    let (mut revision, mut token) = (10, 0);
    let mut history = History::default();
    let mut events = Vec::new();
    for step in 0..150_u64 {
        let now = step * 100;
        let key = format!("k{}", dice.below(3));
        let found = there.get(&key).copied();
        token += 1;
        let guess = found.map_or(1, |(_, is)| if dice.once(3) { is - 1 } else { is });
        let action = match dice.below(6) {
            0 | 1 => Action::Create(token),
            2 => Action::Update(token, guess),
            3 => Action::Patch(token),
            4 => Action::Delete(dice.once(2).then_some(guess)),
            _ => Action::Get,
        };
        let expected = match action {
            Action::Update(_, expected) | Action::Delete(Some(expected)) => Some(expected),
            _ => None,
        };
        let told = match (action, found) {
            (Action::Get, found) => Told::Seen(found),
            (Action::Create(_), Some(_)) => Told::Exists,
            (Action::Create(_), None) => Told::Written(revision + 1),
            (_, None) => Told::Absent,
            (_, Some((_, is))) if expected.is_some_and(|expected| expected != is) => Told::Conflict,
            (Action::Delete(_), Some(_)) => Told::Deleted,
            (_, Some(_)) => Told::Written(revision + 1),
        };
        let done = matches!(told, Told::Written(_) | Told::Deleted);
        if done {
            revision += 1;
            let change = match (action, found) {
                (Action::Delete(_), _) => Change::Deleted,
                (_, None) => Change::Added(token),
                (_, Some(_)) => Change::Modified(token),
            };
            if change == Change::Deleted {
                there.remove(&key);
            } else {
                there.insert(key.clone(), (token, revision));
            }
            events.push(changed(revision, &key, change));
        }
        // The moment itself lies between begin and end.
        let times = [
            now.saturating_sub(dice.below(400) as u64),
            now + dice.below(400) as u64,
        ];
        let told = if done && dice.once(8) {
            Told::Unknown
        } else {
            told
        };
        history
            .operations
            .push(operation(&key, times, action, told));
        if dice.once(10) {
            let list = Listed {
                began: now,
                ended: now + 50,
                current: true,
                pages: vec![revision],
                objects: there.clone(),
            };
            history.lists.push(list);
        }
    }
    history.watches.push(Watched {
        from: 10,
        start: Objects::new(),
        events,
    });
    history
}

#[test]
fn what_a_right_server_answers_passes_and_one_wrong_answer_does_not() {
    let mut caught = 0;
    for seed in 0..60 {
        let history = simulated(seed);
        assert_eq!(judge(&history), Vec::<String>::new(), "seed {seed}");
        // A read that answers with what was there two writes before.
        let mut wrong = history.clone();
        let key = "k0";
        let mut old = None;
        let mut writes = 0;
        let mut changed = false;
        for operation in wrong
            .operations
            .iter_mut()
            .filter(|operation| operation.key == key)
        {
            match operation.told {
                Told::Written(revision) => {
                    writes += 1;
                    old = old.or(operation.token().map(|token| (token, revision)));
                }
                Told::Seen(Some(seen)) if writes > 8 && old.is_some_and(|old| old != seen) => {
                    operation.told = Told::Seen(old);
                    changed = true;
                    break;
                }
                _ => {}
            }
        }
        if changed {
            assert!(!judge(&wrong).is_empty(), "seed {seed}");
            caught += 1;
        }
    }
    assert!(caught > 10, "{caught}");
}
