//! What happened in a run, in order: its fingerprint, and its end for whoever looks for the cause of a failure.

use std::collections::VecDeque;
use std::fmt::Display;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::world;

/// So many lines are kept.
const KEPT: usize = 60_000;

/// The trace of a run.
#[derive(Default)]
pub struct Trace {
    lines: VecDeque<String>,
    hasher: DefaultHasher,
    count: u64,
}

impl std::fmt::Debug for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Trace({} lines)", self.count)
    }
}

impl Trace {
    /// Notes what happened now.
    pub fn note(&mut self, what: impl Display) {
        let line = format!("{:10.3} {what}", world::elapsed().as_secs_f64());
        line.hash(&mut self.hasher);
        self.count += 1;
        if self.lines.len() == KEPT {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// Equal for runs in which the same happened.
    pub fn fingerprint(&self) -> u64 {
        self.hasher.finish()
    }

    /// How many lines there were.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The lines that are kept.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }
}
