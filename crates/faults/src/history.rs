//! Whether all that clients of a server were told can be true at once.
//!
//! Objects are registers with versions: each write has a value that no other write has, and a revision of the whole
//! store. [`judge`] looks at a [`History`]:
//!
//! - operations on an object are linearizable: there is an order of all of them, each between its begin and its end, in
//!   which every answer is right (Wing and Gong's search with memory, [`linear`]). What had no answer may have happened
//!   at any later time, or never;
//! - no revision is two writes', and revisions rise: what was known before an operation began is not newer than what the
//!   operation says, and a write is newer than all that was known ([`order`]);
//! - a watch has every change once and in order, over all its connections, and tells what others are told ([`watches`]);
//! - a list is what there was at its revision, all its pages at one ([`watches`]).

mod linear;
mod order;
#[cfg(test)]
mod tests;
mod watches;

use std::collections::BTreeMap;

/// What a write writes; no two write the same.
pub type Token = u64;

/// Nanoseconds on one clock.
pub type Moment = u64;

/// What a client asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The object, which must not be there.
    Create(Token),
    /// Another content, if the object still is of a revision.
    Update(Token, u64),
    /// Another content of an object that is there.
    Patch(Token),
    /// No object any more; perhaps only if it still is of a revision.
    Delete(Option<u64>),
    /// What there is now.
    Get,
}

/// What it was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// Written, with this revision.
    Written(u64),
    /// Deleted.
    Deleted,
    /// There is this, of a revision, or nothing.
    Seen(Option<(Token, u64)>),
    /// Refused: it is there already.
    Exists,
    /// Refused: it is not there.
    Absent,
    /// Refused: it is of another revision.
    Conflict,
    /// Nothing, or that nobody knows.
    Unknown,
}

/// One request for one object.
#[derive(Debug, Clone)]
pub struct Operation {
    /// The object.
    pub key: String,
    /// When it was sent.
    pub began: Moment,
    /// When the answer was there.
    pub ended: Moment,
    /// What was asked.
    pub action: Action,
    /// What was answered.
    pub told: Told,
}

/// Objects by key: what is in them and their revisions.
pub type Objects = BTreeMap<String, (Token, u64)>;

/// One list, of however many pages.
#[derive(Debug, Clone)]
pub struct Listed {
    /// When its first page was asked for.
    pub began: Moment,
    /// When its last page was there.
    pub ended: Moment,
    /// Whether it must have all that was written before it began; else it may be older.
    pub current: bool,
    /// The revision of each page.
    pub pages: Vec<u64>,
    /// All of it.
    pub objects: Objects,
}

/// What happened, by a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It was not there before.
    Added(Token),
    /// It has another content.
    Modified(Token),
    /// It is gone.
    Deleted,
}

/// An event of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// An object has changed.
    Changed {
        /// Its revision.
        revision: u64,
        /// The object.
        key: String,
        /// How.
        change: Change,
    },
    /// All up to a revision was sent.
    Bookmark(u64),
}

/// A watch, of however many connections, each from the last revision that the one before had.
#[derive(Debug, Clone)]
pub struct Watched {
    /// The revision of the list with which it began.
    pub from: u64,
    /// That list.
    pub start: Objects,
    /// With the times at which they came.
    pub events: Vec<(Moment, Event)>,
}

/// All that clients saw.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// Requests for single objects.
    pub operations: Vec<Operation>,
    /// Lists.
    pub lists: Vec<Listed>,
    /// Watches; one that was told to begin anew counts as two.
    pub watches: Vec<Watched>,
}

impl Event {
    /// Its revision.
    #[must_use]
    pub fn revision(&self) -> u64 {
        match self {
            Self::Changed { revision, .. } | Self::Bookmark(revision) => *revision,
        }
    }
}

impl Watched {
    /// The revision up to which it has everything.
    #[must_use]
    pub fn reached(&self) -> u64 {
        self.events
            .last()
            .map_or(self.from, |(_, event)| event.revision())
    }
}

impl Operation {
    /// What it writes, if it does.
    fn token(&self) -> Option<Token> {
        match self.action {
            Action::Create(token) | Action::Update(token, _) | Action::Patch(token) => Some(token),
            Action::Delete(_) | Action::Get => None,
        }
    }
}

/// Everything that cannot be, a sentence each; nothing if all can be true.
#[must_use]
pub fn judge(history: &History) -> Vec<String> {
    let mut faults = Vec::new();
    let revisions = order::revisions(history, &mut faults);
    order::check(history, &mut faults);
    watches::check(history, &mut faults);
    linear::check(history, &revisions, &mut faults);
    faults
}
