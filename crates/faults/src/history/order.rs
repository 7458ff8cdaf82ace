//! Revisions: whose they are, and that they rise.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::{Change, Event, History, Moment, Objects, Token, Told};

/// The revision of each write that anybody saw; a write of two, or two of one, is a fault.
pub(super) fn revisions(history: &History, faults: &mut Vec<String>) -> HashMap<Token, u64> {
    let mut known = Known::default();
    for operation in &history.operations {
        let seen = match operation.told {
            Told::Written(revision) => operation.token().map(|token| (token, revision)),
            Told::Seen(seen) => seen,
            _ => None,
        };
        known.enter(&operation.key, seen, faults);
    }
    for list in &history.lists {
        known.enter_all(&list.objects, faults);
    }
    for watch in &history.watches {
        known.enter_all(&watch.start, faults);
        for (_, event) in &watch.events {
            let Event::Changed {
                revision,
                key,
                change,
            } = event
            else {
                continue;
            };
            match change {
                Change::Added(token) | Change::Modified(token) => {
                    known.enter(key, Some((*token, *revision)), faults);
                }
                Change::Deleted => known.owner(*revision, key, None, faults),
            }
        }
    }
    known.by_token
}

#[derive(Default)]
struct Known {
    by_token: HashMap<Token, u64>,
    /// The object and the write; `None` is a deletion.
    by_revision: HashMap<u64, (String, Option<Token>)>,
}

impl Known {
    fn enter_all(&mut self, objects: &Objects, faults: &mut Vec<String>) {
        for (key, seen) in objects {
            self.enter(key, Some(*seen), faults);
        }
    }

    fn enter(&mut self, key: &str, seen: Option<(Token, u64)>, faults: &mut Vec<String>) {
        let Some((token, revision)) = seen else {
            return;
        };
        let known = *self.by_token.entry(token).or_insert(revision);
        if known != revision {
            faults.push(format!(
                "write {token} of {key} has revision {known}, and revision {revision}"
            ));
        }
        self.owner(revision, key, Some(token), faults);
    }

    fn owner(&mut self, revision: u64, key: &str, token: Option<Token>, faults: &mut Vec<String>) {
        match self.by_revision.entry(revision) {
            Entry::Vacant(entry) => {
                entry.insert((key.to_owned(), token));
            }
            Entry::Occupied(entry) => {
                let (other, was) = entry.get();
                if (other.as_str(), *was) != (key, token) {
                    faults.push(format!(
                        "revision {revision} is {key}'s ({token:?}), and {other}'s ({was:?})"
                    ));
                }
            }
        }
    }
}

/// What somebody knew at a moment: the revision was there.
type Evidence = (Moment, u64);

/// The newest revision that was known before a moment.
struct Bounds(Vec<Evidence>);

impl Bounds {
    fn of(history: &History) -> Self {
        let mut evidence: Vec<Evidence> = Vec::new();
        for operation in &history.operations {
            match operation.told {
                Told::Written(revision) | Told::Seen(Some((_, revision))) => {
                    evidence.push((operation.ended, revision));
                }
                _ => {}
            }
        }
        for list in &history.lists {
            evidence.extend(list.pages.iter().map(|revision| (list.ended, *revision)));
        }
        for watch in &history.watches {
            let events = watch.events.iter();
            evidence.extend(events.map(|(when, event)| (*when, event.revision())));
        }
        evidence.sort_unstable();
        let mut newest = 0;
        for (_, revision) in &mut evidence {
            newest = newest.max(*revision);
            *revision = newest;
        }
        Self(evidence)
    }

    fn before(&self, moment: Moment) -> u64 {
        let count = self.0.partition_point(|(when, _)| *when < moment);
        count.checked_sub(1).map_or(0, |last| self.0[last].1)
    }
}

/// Writes are newer than all that was known when they began, lists not older, and their pages one.
pub(super) fn check(history: &History, faults: &mut Vec<String>) {
    let bounds = Bounds::of(history);
    for operation in &history.operations {
        let Told::Written(revision) = operation.told else {
            continue;
        };
        let known = bounds.before(operation.began);
        if revision <= known {
            faults.push(format!(
                "a write of {} has revision {revision}, and {known} was known before it began",
                operation.key
            ));
        }
    }
    for list in &history.lists {
        let Some(revision) = list.pages.first() else {
            continue;
        };
        if list.pages.iter().any(|page| page != revision) {
            faults.push(format!(
                "the pages of a list are of revisions {:?}",
                list.pages
            ));
        }
        let known = bounds.before(list.began);
        if list.current && *revision < known {
            faults.push(format!(
                "a list is of revision {revision}, and {known} was known before it began"
            ));
        }
        if let Some((key, (_, newer))) = list.objects.iter().find(|(_, seen)| seen.1 > *revision) {
            faults.push(format!(
                "a list of revision {revision} has {key} of {newer}"
            ));
        }
    }
}
