//! Sets of logical CPUs in the kernel's list format (`0-3,8`).

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Highest CPU number a set can hold; far above what Linux can be configured for.
pub const MAX_CPU: u32 = 65_535;

const WORD: u32 = 64;

/// A set of logical CPU numbers.
///
/// Reads and prints the list format of `/sys/devices/system/cpu/online`, of `cpuset.cpus` and of
/// the CPU manager state file: numbers and ranges, separated by commas; the empty set is the empty
/// text.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CpuSet {
    /// Bit `n % 64` of word `n / 64` stands for CPU `n`. The last word is never 0, so that equal
    /// sets have equal words.
    words: Vec<u64>,
}

/// Why a text is not a CPU list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CpuSetError {
    /// A part is neither a number nor a range of two numbers.
    #[error("cpu list {list:?}: {part:?} is not a number or a range")]
    Part {
        /// The whole text.
        list: String,
        /// The part that does not parse.
        part: String,
    },
    /// A range whose end lies below its start.
    #[error("cpu list {list:?}: invalid range {start}-{end} (end below start)")]
    Reversed {
        /// The whole text.
        list: String,
        /// First number of the range.
        start: u32,
        /// Last number of the range.
        end: u32,
    },
    /// A number above [`MAX_CPU`].
    #[error("cpu list {list:?}: {cpu} is above the largest cpu number {MAX_CPU}")]
    TooLarge {
        /// The whole text.
        list: String,
        /// The number.
        cpu: u32,
    },
}

impl CpuSet {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of CPUs in the set.
    pub fn len(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// Whether the set holds no CPU.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Whether `cpu` is in the set.
    pub fn contains(&self, cpu: u32) -> bool {
        self.words
            .get((cpu / WORD) as usize)
            .is_some_and(|w| w & (1 << (cpu % WORD)) != 0)
    }

    /// Adds `cpu`; numbers above [`MAX_CPU`] are ignored. Returns whether the set changed.
    pub fn insert(&mut self, cpu: u32) -> bool {
        if cpu > MAX_CPU || self.contains(cpu) {
            return false;
        }
        let word = (cpu / WORD) as usize;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (cpu % WORD);
        true
    }

    /// Removes `cpu`. Returns whether it was there.
    pub fn remove(&mut self, cpu: u32) -> bool {
        if !self.contains(cpu) {
            return false;
        }
        self.words[(cpu / WORD) as usize] &= !(1 << (cpu % WORD));
        self.trim();
        true
    }

    /// The CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0u32..).zip(&self.words).flat_map(|(i, &word)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                if rest == 0 {
                    return None;
                }
                let bit = rest.trailing_zeros();
                rest &= rest - 1;
                Some(i * WORD + bit)
            })
        })
    }

    /// The smallest CPU number.
    pub fn first(&self) -> Option<u32> {
        self.iter().next()
    }

    /// CPUs in either set.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let (long, short) = if self.words.len() >= other.words.len() {
            (self, other)
        } else {
            (other, self)
        };
        let mut words = long.words.clone();
        for (w, o) in words.iter_mut().zip(&short.words) {
            *w |= o;
        }
        Self { words }
    }

    /// CPUs in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self::trimmed(
            self.words
                .iter()
                .zip(&other.words)
                .map(|(a, b)| a & b)
                .collect(),
        )
    }

    /// CPUs of this set that are not in `other`.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let others = other.words.iter().copied().chain(std::iter::repeat(0));
        Self::trimmed(self.words.iter().zip(others).map(|(a, b)| a & !b).collect())
    }

    /// Whether every CPU of this set is in `other`.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.difference(other).is_empty()
    }

    /// Whether no CPU is in both sets.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        self.intersection(other).is_empty()
    }

    fn trimmed(words: Vec<u64>) -> Self {
        let mut set = Self { words };
        set.trim();
        set
    }

    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }

    fn ranges(&self) -> Vec<RangeInclusive<u32>> {
        let mut ranges: Vec<RangeInclusive<u32>> = Vec::new();
        for cpu in self.iter() {
            match ranges.last_mut() {
                Some(last) if *last.end() + 1 == cpu => *last = *last.start()..=cpu,
                _ => ranges.push(cpu..=cpu),
            }
        }
        ranges
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, range) in self.ranges().into_iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            if range.start() == range.end() {
                write!(f, "{comma}{}", range.start())?;
            } else {
                write!(f, "{comma}{}-{}", range.start(), range.end())?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuSet({self})")
    }
}

impl FromStr for CpuSet {
    type Err = CpuSetError;

    fn from_str(list: &str) -> Result<Self, Self::Err> {
        let mut set = Self::new();
        // Kernel files end with a newline.
        let text = list.trim_end_matches('\n');
        if text.is_empty() {
            return Ok(set);
        }
        let number = |part: &str, text: &str| {
            text.parse::<u32>().map_err(|_| CpuSetError::Part {
                list: list.to_owned(),
                part: part.to_owned(),
            })
        };
        for part in text.split(',') {
            let (start, end) = match part.split_once('-') {
                Some((a, b)) => (number(part, a)?, number(part, b)?),
                None => {
                    let n = number(part, part)?;
                    (n, n)
                }
            };
            if end < start {
                return Err(CpuSetError::Reversed {
                    list: list.to_owned(),
                    start,
                    end,
                });
            }
            if end > MAX_CPU {
                return Err(CpuSetError::TooLarge {
                    list: list.to_owned(),
                    cpu: end,
                });
            }
            for cpu in start..=end {
                set.insert(cpu);
            }
        }
        Ok(set)
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        let mut set = Self::new();
        for cpu in cpus {
            set.insert(cpu);
        }
        set
    }
}

impl Serialize for CpuSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CpuSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn reads_and_prints_the_list_format() {
        for (text, printed) in [
            ("", ""),
            ("0", "0"),
            ("0-3,8", "0-3,8"),
            ("8,3,2,1,0", "0-3,8"),
            ("0-1,2-3", "0-3"),
            ("64,63,128", "63-64,128"),
            ("0-3\n", "0-3"),
        ] {
            assert_eq!(
                text.parse::<CpuSet>().unwrap().to_string(),
                printed,
                "{text:?}"
            );
        }
    }

    #[test]
    fn refuses_what_is_no_list() {
        for text in [",", "1,", "a", "1-", "-1", "1-2-3", "0x1", " 1", "1 ,2"] {
            assert!(
                matches!(text.parse::<CpuSet>(), Err(CpuSetError::Part { .. })),
                "{text:?}"
            );
        }
        assert!(matches!(
            "3-1".parse::<CpuSet>(),
            Err(CpuSetError::Reversed { .. })
        ));
        assert!(matches!(
            "0-70000".parse::<CpuSet>(),
            Err(CpuSetError::TooLarge { .. })
        ));
    }

    #[test]
    fn json_form_is_the_list_text() {
        let set: CpuSet = "0-1,7".parse().unwrap();
        let json = serde_json::to_string(&set).unwrap();
        assert_eq!(json, "\"0-1,7\"");
        assert_eq!(serde_json::from_str::<CpuSet>(&json).unwrap(), set);
    }

    fn sets() -> impl Strategy<Value = BTreeSet<u32>> {
        proptest::collection::btree_set(0u32..300, 0..40)
    }

    proptest! {
        #[test]
        fn behaves_like_a_plain_set(a in sets(), b in sets()) {
            let (x, y): (CpuSet, CpuSet) = (a.iter().copied().collect(), b.iter().copied().collect());
            prop_assert_eq!(x.to_string().parse::<CpuSet>().unwrap(), x.clone());
            prop_assert_eq!(x.len(), a.len());
            prop_assert_eq!(x.iter().collect::<BTreeSet<_>>(), a.clone());
            prop_assert_eq!(x.union(&y), a.union(&b).copied().collect::<CpuSet>());
            prop_assert_eq!(x.intersection(&y), a.intersection(&b).copied().collect::<CpuSet>());
            prop_assert_eq!(x.difference(&y), a.difference(&b).copied().collect::<CpuSet>());
            prop_assert_eq!(x.is_subset(&y), a.is_subset(&b));
            prop_assert_eq!(x.is_disjoint(&y), a.is_disjoint(&b));
        }

        #[test]
        fn removing_what_was_added_leaves_the_empty_set(a in sets()) {
            let mut set: CpuSet = a.iter().copied().collect();
            for cpu in &a {
                prop_assert!(set.remove(*cpu));
            }
            prop_assert_eq!(set, CpuSet::new());
        }
    }
}
