//! Sets of completion indexes.

use std::fmt;

/// A set of completion indexes, kept as runs in order: `0-99999` costs as little as `0`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CompletionIndexes(Vec<(i32, i32)>);

impl CompletionIndexes {
    /// What a status or a rule says, as far as it is below `completions`; parts that are no indexes are passed over.
    pub fn parse(text: &str, completions: i32) -> Self {
        let mut set = Self::default();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            if let (Ok(first), Ok(last)) = (first.parse(), last.parse::<i32>()) {
                set.insert_run(first, last.min(completions.saturating_sub(1)));
            }
        }
        set
    }

    /// Adds one.
    pub fn insert(&mut self, index: i32) {
        self.insert_run(index, index);
    }

    fn insert_run(&mut self, first: i32, last: i32) {
        if first > last || first < 0 {
            return;
        }
        // The runs that the new one overlaps or touches become one with it.
        let start = self
            .0
            .partition_point(|run| run.1.saturating_add(1) < first);
        let end = self
            .0
            .partition_point(|run| run.0 <= last.saturating_add(1));
        let touched = self.0.get(start..end).unwrap_or_default();
        let merged = touched.iter().fold((first, last), |all, run| {
            (all.0.min(run.0), all.1.max(run.1))
        });
        self.0.splice(start..end, [merged]);
    }

    /// Adds all of another set.
    pub fn extend(&mut self, other: &Self) {
        for (first, last) in &other.0 {
            self.insert_run(*first, *last);
        }
    }

    /// Whether one is there.
    pub fn contains(&self, index: i32) -> bool {
        let at = self.0.partition_point(|run| run.1 < index);
        self.0.get(at).is_some_and(|run| run.0 <= index)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    pub fn total(&self) -> i32 {
        let sizes = self.0.iter().map(|(first, last)| last - first + 1);
        sizes.fold(0, i32::saturating_add)
    }

    /// How many both sets have.
    pub fn shared(&self, other: &Self) -> i32 {
        let (mut mine, mut theirs) = (self.0.iter().peekable(), other.0.iter().peekable());
        let mut shared = 0i32;
        while let (Some(a), Some(b)) = (mine.peek(), theirs.peek()) {
            shared = shared.saturating_add((a.1.min(b.1) - a.0.max(b.0) + 1).max(0));
            if a.1 < b.1 {
                mine.next();
            } else {
                theirs.next();
            }
        }
        shared
    }

    /// Those below `completions` that are not in the set, in order.
    pub fn missing(&self, completions: i32) -> impl Iterator<Item = i32> {
        let starts = std::iter::once(0).chain(self.0.iter().map(|run| run.1 + 1));
        let ends = self.0.iter().map(|run| run.0).chain([completions]);
        let gaps = starts.zip(ends);
        gaps.flat_map(move |(start, end)| start..end.min(completions))
    }
}

impl FromIterator<i32> for CompletionIndexes {
    fn from_iter<T: IntoIterator<Item = i32>>(indexes: T) -> Self {
        let mut set = Self::default();
        for index in indexes {
            set.insert(index);
        }
        set
    }
}

/// As in a job's status, `0,3-5`: runs of three and more are shortened, pairs are listed.
impl fmt::Display for CompletionIndexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (first, last)) in self.0.iter().enumerate() {
            let comma = if place == 0 { "" } else { "," };
            match last - first {
                0 => write!(f, "{comma}{first}")?,
                1 => write!(f, "{comma}{first},{last}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// The same as a plain set of numbers, whatever the order.
        #[test]
        fn runs_are_a_set(list in proptest::collection::vec(0..60i32, 0..40), other in proptest::collection::vec(0..60i32, 0..40)) {
            let plain: BTreeSet<i32> = list.iter().copied().collect();
            let set: CompletionIndexes = list.iter().copied().collect();
            prop_assert_eq!(set.total() as usize, plain.len());
            prop_assert_eq!(CompletionIndexes::parse(&set.to_string(), 60), set.clone());
            for index in -1..61 {
                prop_assert_eq!(set.contains(index), plain.contains(&index));
            }
            prop_assert_eq!(set.missing(50).collect::<Vec<_>>(), (0..50).filter(|i| !plain.contains(i)).collect::<Vec<_>>());
            let theirs: BTreeSet<i32> = other.iter().copied().collect();
            let other: CompletionIndexes = other.into_iter().collect();
            prop_assert_eq!(set.shared(&other) as usize, plain.intersection(&theirs).count());
            let mut both = set;
            both.extend(&other);
            prop_assert_eq!(both.total() as usize, plain.union(&theirs).count());
        }
    }

    #[test]
    fn what_is_out_of_bounds_or_no_index_is_passed_over() {
        assert_eq!(
            CompletionIndexes::parse("0,x,2-9,12,-3", 5).to_string(),
            "0,2-4"
        );
        assert_eq!(
            CompletionIndexes::parse("", 5),
            CompletionIndexes::default()
        );
        let huge = CompletionIndexes::parse("0-2147483646", i32::MAX);
        assert_eq!(huge.total(), i32::MAX);
        assert_eq!(huge.missing(i32::MAX).next(), None);
    }
}
