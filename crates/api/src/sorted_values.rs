//! The values of a condition, which is asked for object after object whether one is among them.

/// Texts without repetition and in order, so that looking for one costs the logarithm of their number: a selector has room for a
/// hundred thousand.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SortedValues(Vec<String>);

impl SortedValues {
    /// Sorts them.
    pub fn new(mut values: Vec<String>) -> Self {
        values.sort_unstable();
        values.dedup();
        Self(values)
    }

    /// Whether a text is among them.
    pub fn contains(&self, text: &str) -> bool {
        let found = self.0.binary_search_by(|value| value.as_str().cmp(text));
        found.is_ok()
    }

    /// All of them, in order.
    pub fn as_slice(&self) -> &[String] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_there_is_found(values: Vec<String>, other: String) {
            let sorted = SortedValues::new(values.clone());
            prop_assert!(values.iter().all(|value| sorted.contains(value)));
            prop_assert_eq!(sorted.contains(&other), values.contains(&other));
        }
    }
}
