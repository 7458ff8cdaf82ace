//! The differences that are known: `known.txt` has a pattern and a reason in each line.

use std::cell::Cell;

pub(crate) struct Known {
    entries: Vec<Entry>,
}

struct Entry {
    pattern: &'static str,
    seen: Cell<usize>,
}

impl Known {
    pub(crate) fn read() -> Self {
        let lines = include_str!("known.txt").lines();
        let entry = |line: &'static str| {
            let (pattern, reason) = line.rsplit_once(" ## ").unwrap_or((line, ""));
            assert!(
                !reason.trim().is_empty(),
                "known.txt: no reason in {line:?}"
            );
            Entry {
                pattern: pattern.trim_end(),
                seen: Cell::new(0),
            }
        };
        let lines = lines.filter(|line| !line.starts_with('#') && !line.trim().is_empty());
        Self {
            entries: lines.map(entry).collect(),
        }
    }

    /// Whether a difference is known.
    pub(crate) fn has(&self, difference: &str) -> bool {
        let entry = self
            .entries
            .iter()
            .find(|entry| is_like(entry.pattern, difference));
        entry
            .inspect(|entry| entry.seen.set(entry.seen.get() + 1))
            .is_some()
    }

    /// Patterns that nothing was like.
    pub(crate) fn unseen(&self) -> impl Iterator<Item = &'static str> {
        let unseen = self.entries.iter().filter(|entry| entry.seen.get() == 0);
        unseen.map(|entry| entry.pattern)
    }
}

/// Whether a text is like a pattern, in which `*` stands for any text.
fn is_like(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else {
        return rest.is_empty();
    };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[test]
fn patterns_stand_for_whole_texts() {
    assert!(is_like("a*c*", "abbc") && is_like("*", "") && is_like("a", "a"));
    assert!(!is_like("a*c", "abcd") && !is_like("a", "ab") && !is_like("*ab*b", "ab"));
}
