//! Watches against one another, against what was acknowledged, and lists against watches.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{Action, Change, Event, History, Objects, Operation, Token, Told, Watched};

/// All changes that any watch has, by revision.
type Changes<'a> = BTreeMap<u64, (&'a str, Change)>;

pub(super) fn check(history: &History, faults: &mut Vec<String>) {
    let mut changes = Changes::new();
    for watch in &history.watches {
        take(watch, &mut changes, faults);
    }
    for operation in &history.operations {
        let (Told::Written(revision), Some(token)) = (operation.told, operation.token()) else {
            continue;
        };
        let covered = history.watches.iter().any(|watch| covers(watch, revision));
        if covered && !changes.contains_key(&revision) {
            faults.push(format!(
                "no watch has write {token} of {}, which was acknowledged with revision {revision}",
                operation.key
            ));
        }
    }
    for watch in &history.watches {
        complete(watch, &changes, faults);
        replay(watch, faults);
    }
    explained(&history.operations, &changes, faults);
    for watch in &history.watches {
        deletions(&history.operations, watch, faults);
    }
    lists(history, faults);
}

/// Whether a change of a revision is one that the watch has to have.
fn covers(watch: &Watched, revision: u64) -> bool {
    revision > watch.from && revision <= watch.reached()
}

/// Revisions rise, and nothing comes after a bookmark that was to be before it.
fn take<'a>(watch: &'a Watched, changes: &mut Changes<'a>, faults: &mut Vec<String>) {
    let mut last = watch.from;
    for (_, event) in &watch.events {
        let revision = event.revision();
        let Event::Changed { key, change, .. } = event else {
            if revision < last {
                faults.push(format!("a bookmark of {revision} comes after {last}"));
            }
            last = last.max(revision);
            continue;
        };
        if revision <= last {
            faults.push(format!(
                "a watch has revision {revision} of {key} after {last}"
            ));
        }
        last = last.max(revision);
        let known = changes.entry(revision).or_insert((key, *change));
        if *known != (key.as_str(), *change) {
            faults.push(format!(
                "one watch has {known:?} at revision {revision}, another {:?}",
                (key, change)
            ));
        }
    }
}

fn complete(watch: &Watched, changes: &Changes<'_>, faults: &mut Vec<String>) {
    let (from, reached) = (watch.from, watch.reached());
    if reached <= from {
        return;
    }
    let mut times: HashMap<u64, usize> = HashMap::new();
    for (_, event) in &watch.events {
        if let Event::Changed { revision, .. } = event {
            *times.entry(*revision).or_default() += 1;
        }
    }
    for (revision, (key, change)) in changes.range(from + 1..=reached) {
        let times = times.get(revision).copied().unwrap_or(0);
        if times != 1 {
            faults.push(format!(
                "a watch from {from} to {reached} has {change:?} of {key} at {revision} {times} times"
            ));
        }
    }
}

/// Each event follows from what was there before.
fn replay(watch: &Watched, faults: &mut Vec<String>) {
    let mut objects = watch.start.clone();
    for (_, event) in &watch.events {
        let Event::Changed {
            revision,
            key,
            change,
        } = event
        else {
            continue;
        };
        let there = objects.contains_key(key);
        let expected = !matches!(change, Change::Added(_));
        if there != expected {
            let was = if there { "there" } else { "not there" };
            faults.push(format!(
                "{change:?} of {key} at {revision}, which was {was}"
            ));
        }
        apply(&mut objects, *revision, key, *change);
    }
}

fn apply(objects: &mut Objects, revision: u64, key: &str, change: Change) {
    match change {
        Change::Added(token) | Change::Modified(token) => {
            objects.insert(key.to_owned(), (token, revision));
        }
        Change::Deleted => {
            objects.remove(key);
        }
    }
}

/// Whatever a watch has was asked for, once, and not refused.
fn explained(operations: &[Operation], changes: &Changes<'_>, faults: &mut Vec<String>) {
    let writes = operations.iter().filter_map(|operation| {
        let token = operation.token()?;
        Some((token, operation))
    });
    let writes: HashMap<Token, &Operation> = writes.collect();
    for (revision, (key, change)) in changes {
        let (Change::Added(token) | Change::Modified(token)) = change else {
            continue;
        };
        let Some(write) = writes.get(token) else {
            faults.push(format!(
                "nobody wrote {token}, which {key} is at {revision}"
            ));
            continue;
        };
        let right = match write.told {
            Told::Unknown => true,
            Told::Written(told) => told == *revision,
            _ => false,
        };
        if !right || write.key != *key {
            faults.push(format!(
                "{key} is {token} at {revision}, and who wrote it was told {:?} of {}",
                write.told, write.key
            ));
        }
    }
}

/// For a watch that has everything: an object goes as often as somebody deletes it.
fn deletions(operations: &[Operation], watch: &Watched, faults: &mut Vec<String>) {
    let written = operations
        .iter()
        .filter_map(|operation| match operation.told {
            Told::Written(revision) | Told::Seen(Some((_, revision))) => Some(revision),
            _ => None,
        });
    // The end of the last deletion is not known by its revision, but by when it was.
    let last = operations.iter().map(|operation| operation.ended).max();
    let end = watch.events.last();
    let whole = end.is_some_and(|(when, _)| Some(*when) >= last)
        && watch.start.is_empty()
        && written.clone().all(|revision| covers(watch, revision));
    if !whole {
        return;
    }
    let mut counts: BTreeMap<&str, (usize, usize, usize)> = BTreeMap::new();
    for operation in operations {
        if let Action::Delete(_) = operation.action {
            let count = counts.entry(&operation.key).or_default();
            match operation.told {
                Told::Deleted => count.0 += 1,
                Told::Unknown => count.1 += 1,
                _ => {}
            }
        }
    }
    for (_, event) in &watch.events {
        if let Event::Changed {
            key,
            change: Change::Deleted,
            ..
        } = event
        {
            counts.entry(key).or_default().2 += 1;
        }
    }
    for (key, (done, perhaps, seen)) in counts {
        if seen < done || seen > done + perhaps {
            faults.push(format!(
                "{key} was deleted {done} times, {perhaps} times perhaps, and seen to go {seen} times"
            ));
        }
    }
}

/// A list is what a watch says there was.
fn lists(history: &History, faults: &mut Vec<String>) {
    let mut queries: Vec<(u64, &Objects)> = history
        .lists
        .iter()
        .filter_map(|list| Some((*list.pages.first()?, &list.objects)))
        .collect();
    queries.sort_by_key(|(revision, _)| *revision);
    for watch in &history.watches {
        let mut objects = watch.start.clone();
        let mut events = watch.events.iter().peekable();
        let own = queries
            .iter()
            .filter(|(revision, _)| *revision >= watch.from && *revision <= watch.reached());
        for (revision, listed) in own {
            while let Some((_, event)) = events.next_if(|(_, event)| event.revision() <= *revision)
            {
                if let Event::Changed {
                    revision,
                    key,
                    change,
                } = event
                {
                    apply(&mut objects, *revision, key, *change);
                }
            }
            if objects != **listed {
                let differ: BTreeSet<&String> = objects
                    .keys()
                    .chain(listed.keys())
                    .filter(|key| objects.get(*key) != listed.get(*key))
                    .collect();
                faults.push(format!(
                    "a list of revision {revision} is not what there was then: {differ:?} differ"
                ));
            }
        }
    }
}
