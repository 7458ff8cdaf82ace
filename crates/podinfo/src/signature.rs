//! What pods have in common for plugins.

use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::sync::LazyLock;

/// Keyed by chance, so that nobody can make two pods look alike.
static SIGNATURES: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// All that plugins look at of a pod, as a number: pods alike have the same. Good for one process.
#[derive(Debug, Clone)]
pub struct Signature(DefaultHasher);

impl Default for Signature {
    /// That of nothing yet.
    fn default() -> Self {
        Self(SIGNATURES.build_hasher())
    }
}

impl Signature {
    /// Adds something that is looked at.
    pub fn add(&mut self, what: &(impl Hash + ?Sized)) {
        what.hash(&mut self.0);
    }

    /// The number.
    pub fn finish(&self) -> u64 {
        self.0.finish()
    }
}
