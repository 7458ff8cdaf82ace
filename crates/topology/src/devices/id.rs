//! Device IDs, ordered as a human counts.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The ID a plugin gave a device; cheap to clone.
///
/// Ordered naturally: runs of digits compare as numbers (`gpu-9` before `gpu-10`), everything else
/// byte by byte. Different IDs never compare equal.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct DeviceId(Arc<str>);

impl DeviceId {
    /// The ID as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<T: AsRef<str>> From<T> for DeviceId {
    fn from(id: T) -> Self {
        Self(Arc::from(id.as_ref()))
    }
}

impl From<DeviceId> for String {
    fn from(id: DeviceId) -> Self {
        id.as_str().to_owned()
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

impl Ord for DeviceId {
    fn cmp(&self, other: &Self) -> Ordering {
        if Arc::ptr_eq(&self.0, &other.0) {
            return Ordering::Equal;
        }
        natural(self.0.as_bytes(), other.0.as_bytes()).then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for DeviceId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Serialize for DeviceId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for DeviceId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::from(String::deserialize(deserializer)?))
    }
}

/// Natural order; texts that differ only in leading zeros compare equal here.
fn natural(mut a: &[u8], mut b: &[u8]) -> Ordering {
    loop {
        match (a.first(), b.first()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
            (Some(x), Some(y)) if x.is_ascii_digit() && y.is_ascii_digit() => {
                let (m, rest_a) = number(a);
                let (n, rest_b) = number(b);
                match m.len().cmp(&n.len()).then_with(|| m.cmp(n)) {
                    Ordering::Equal => (a, b) = (rest_a, rest_b),
                    unequal => return unequal,
                }
            }
            (Some(x), Some(y)) if x == y => (a, b) = (&a[1..], &b[1..]),
            (Some(x), Some(y)) => return x.cmp(y),
        }
    }
}

/// Splits the leading digits off, without leading zeros.
fn number(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text
        .iter()
        .position(|b| !b.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    let start = digits
        .iter()
        .position(|&b| b != b'0')
        .unwrap_or(digits.len());
    (&digits[start..], rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_inside_ids_count_as_numbers() {
        let sorted = [
            "a",
            "a1b",
            "a2",
            "a9",
            "a10",
            "a10-1",
            "a010-2",
            "b",
            "b99999999999999999999",
        ];
        let mut ids: Vec<DeviceId> = sorted.iter().rev().map(DeviceId::from).collect();
        ids.sort();
        let texts: Vec<&str> = ids.iter().map(DeviceId::as_str).collect();
        assert_eq!(texts, sorted);
    }

    proptest! {
        #[test]
        fn the_order_is_total_and_agrees_with_equality(
            a in "[a0-2]{0,5}", b in "[a0-2]{0,5}", c in "[a0-2]{0,5}",
        ) {
            let (x, y, z) = (DeviceId::from(&a), DeviceId::from(&b), DeviceId::from(&c));
            prop_assert_eq!(x.cmp(&y), y.cmp(&x).reverse());
            prop_assert_eq!(x.cmp(&y) == Ordering::Equal, a == b);
            if x <= y && y <= z {
                prop_assert!(x <= z);
            }
        }
    }
}
