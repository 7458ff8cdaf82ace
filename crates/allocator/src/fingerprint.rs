//! Fingerprints: 128 bits that stand for a value where many values are compared.
//!
//! They are made with keys that are drawn when the process starts, so nobody can look for two values with the same one, and
//! by chance that does not happen. They mean nothing outside the process.

use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

static KEYS: LazyLock<[RandomState; 2]> =
    LazyLock::new(|| [RandomState::new(), RandomState::new()]);
/// Odd, so that multiplying by it loses nothing; its bits are those of the golden ratio.
const FACTOR: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;

/// Stands for a value, or for a sequence of such.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Fingerprint(u128);

impl Fingerprint {
    /// Of a value.
    pub(crate) fn of(value: &(impl Hash + ?Sized)) -> Self {
        let [high, low] = KEYS.each_ref().map(|keys| u128::from(keys.hash_one(value)));
        Self(high << 64 | low)
    }

    /// Of the sequence so far with one more member.
    #[must_use]
    pub(crate) fn and(self, next: Self) -> Self {
        Self((self.0 ^ next.0).wrapping_mul(FACTOR).rotate_left(59))
    }

    /// The same for a number, which costs less than its own fingerprint.
    #[must_use]
    pub(crate) fn and_number(self, next: usize) -> Self {
        self.and(Self(next as u128))
    }
}

/// The key under which an attribute is found: of its name with the domain.
pub(crate) fn attribute_key(domain: &str, id: &str) -> u64 {
    KEYS[0].hash_one((domain, id))
}

/// A number that no other state of anything has.
pub(crate) fn revision() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
