//! The search for an order of the operations on an object, as Wing and Gong do it, with memory of where it has been.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{Action, History, Operation, Token, Told};

/// An object at a moment of the search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    /// The write that is in it.
    token: Option<Token>,
    /// The newest revision it had.
    newest: u64,
}

/// Steps after which the search is given up; that is a fault, too: the test must be smaller.
const STEPS: usize = 20_000_000;

pub(super) fn check(history: &History, revisions: &HashMap<Token, u64>, faults: &mut Vec<String>) {
    let mut by_key: BTreeMap<&str, Vec<&Operation>> = BTreeMap::new();
    for operation in &history.operations {
        by_key.entry(&operation.key).or_default().push(operation);
    }
    for (key, operations) in by_key {
        let mut search = Search::new(&operations, revisions);
        match search.run() {
            Outcome::Found => {}
            Outcome::None => faults.push(format!(
                "no order of the {} operations on {key} explains the answers: {}",
                operations.len(),
                search.furthest()
            )),
            Outcome::Lost => {
                faults.push(format!("the search for an order on {key} takes too long"));
            }
        }
    }
}

enum Outcome {
    Found,
    None,
    Lost,
}

/// Where an operation begins or ends, in a list from which operations are taken out and into which they are put back.
#[derive(Debug, Clone, Copy)]
struct Entry {
    operation: usize,
    ends: bool,
    next: usize,
    previous: usize,
}

struct Search<'a> {
    operations: &'a [&'a Operation],
    revisions: &'a HashMap<Token, u64>,
    /// Entry 0 is before the first and after the last.
    entries: Vec<Entry>,
    /// The entries of an operation: its begin, and its end if it has one.
    of: Vec<(usize, Option<usize>)>,
    /// The end at which the search had to turn back with the most operations behind it.
    stuck: Option<(usize, usize, State)>,
}

impl<'a> Search<'a> {
    fn new(operations: &'a [&'a Operation], revisions: &'a HashMap<Token, u64>) -> Self {
        let mut moments = Vec::new();
        for (index, operation) in operations.iter().enumerate() {
            moments.push((operation.began, false, index));
            if operation.told != Told::Unknown {
                moments.push((operation.ended, true, index));
            }
        }
        // Of the same moment, begins go first: more orders are allowed then.
        moments.sort_unstable();
        let count = moments.len();
        let mut entries = vec![Entry {
            operation: usize::MAX,
            ends: true,
            next: 1 % (count + 1),
            previous: count,
        }];
        let mut of = vec![(0, None); operations.len()];
        for (at, (_, ends, operation)) in moments.into_iter().enumerate() {
            let at = at + 1;
            entries.push(Entry {
                operation,
                ends,
                next: (at + 1) % (count + 1),
                previous: at - 1,
            });
            if ends {
                of[operation].1 = Some(at);
            } else {
                of[operation].0 = at;
            }
        }
        Self {
            operations,
            revisions,
            entries,
            of,
            stuck: None,
        }
    }

    fn run(&mut self) -> Outcome {
        let mut left = self.of.iter().filter(|(_, end)| end.is_some()).count();
        let mut state = State {
            token: None,
            newest: 0,
        };
        let mut done = vec![0_u64; self.operations.len().div_ceil(64)];
        let mut been: HashSet<(Vec<u64>, State)> = HashSet::new();
        let mut path: Vec<(usize, State)> = Vec::new();
        let mut at = self.entries[0].next;
        for _ in 0..STEPS {
            if left == 0 {
                return Outcome::Found;
            }
            let entry = self.entries[at];
            if !entry.ends {
                if let Some(after) = self.step(state, entry.operation) {
                    set(&mut done, entry.operation, true);
                    if been.insert((done.clone(), after)) {
                        path.push((entry.operation, state));
                        state = after;
                        left -= usize::from(self.of[entry.operation].1.is_some());
                        self.take_out(entry.operation);
                        at = self.entries[0].next;
                        continue;
                    }
                    set(&mut done, entry.operation, false);
                }
                at = entry.next;
                continue;
            }
            // An operation ends that found no place, so that an earlier one has another.
            if at != 0 && self.stuck.is_none_or(|(most, ..)| path.len() > most) {
                self.stuck = Some((path.len(), entry.operation, state));
            }
            let Some((operation, before)) = path.pop() else {
                return Outcome::None;
            };
            state = before;
            set(&mut done, operation, false);
            left += usize::from(self.of[operation].1.is_some());
            self.put_back(operation);
            at = self.entries[self.of[operation].0].next;
        }
        Outcome::Lost
    }

    fn take_out(&mut self, operation: usize) {
        let (begin, end) = self.of[operation];
        for at in [Some(begin), end].into_iter().flatten() {
            let Entry { next, previous, .. } = self.entries[at];
            self.entries[previous].next = next;
            self.entries[next].previous = previous;
        }
    }

    fn put_back(&mut self, operation: usize) {
        let (begin, end) = self.of[operation];
        for at in [end, Some(begin)].into_iter().flatten() {
            let Entry { next, previous, .. } = self.entries[at];
            self.entries[previous].next = at;
            self.entries[next].previous = at;
        }
    }

    /// The object after an operation, if the operation's answer is right now; one without an answer has an effect now.
    fn step(&self, state: State, operation: usize) -> Option<State> {
        let operation = self.operations[operation];
        let revision = state.token.map(|token| self.revision(token));
        match (operation.action, operation.told) {
            (Action::Get, Told::Seen(seen)) => {
                let there = state.token.zip(revision);
                (there == seen).then_some(state)
            }
            (Action::Get, _) => None,
            (_, Told::Exists) => state.token.is_some().then_some(state),
            (_, Told::Absent) => state.token.is_none().then_some(state),
            (Action::Update(_, expected) | Action::Delete(Some(expected)), Told::Conflict) => {
                revision.is_some_and(|is| is != expected).then_some(state)
            }
            // Tried several times, and each time somebody was faster.
            (_, Told::Conflict) => state.token.is_some().then_some(state),
            (_, Told::Seen(_)) => None,
            (action, Told::Written(_) | Told::Deleted | Told::Unknown) => {
                let allowed = match action {
                    Action::Create(_) => revision.is_none(),
                    Action::Patch(_) | Action::Delete(None) => revision.is_some(),
                    Action::Update(_, expected) | Action::Delete(Some(expected)) => {
                        revision == Some(expected)
                    }
                    Action::Get => false,
                };
                allowed.then(|| self.after(state, operation)).flatten()
            }
        }
    }

    fn after(&self, state: State, operation: &Operation) -> Option<State> {
        let Some(token) = operation.token() else {
            return Some(State {
                token: None,
                newest: state.newest,
            });
        };
        // A write that nobody saw has none.
        let Some(revision) = self.revisions.get(&token) else {
            return Some(State {
                token: Some(token),
                newest: state.newest,
            });
        };
        (*revision > state.newest).then_some(State {
            token: Some(token),
            newest: *revision,
        })
    }

    fn revision(&self, token: Token) -> u64 {
        self.revisions.get(&token).copied().unwrap_or(0)
    }

    /// What the search could not explain, for people.
    fn furthest(&self) -> String {
        let Some((placed, operation, state)) = self.stuck else {
            return "none fits at all".to_owned();
        };
        let Operation { action, told, .. } = self.operations[operation];
        let there = state.token.map(|token| (token, self.revision(token)));
        format!(
            "after {placed} of them, with {there:?} there, {action:?} was answered with {told:?}"
        )
    }
}

fn set(bits: &mut [u64], index: usize, value: bool) {
    let bit = 1 << (index % 64);
    if value {
        bits[index / 64] |= bit;
    } else {
        bits[index / 64] &= !bit;
    }
}
