//! For tests: faults that are hard to have, and proofs that nothing came of them.
//!
//! [`disk`] records what a program does to its files and tells what of it may be on the disk after a power cut at any
//! moment. [`history`] judges what clients of a server were answered: whether all of it can be true at once.

#![forbid(unsafe_code)]

pub mod disk;
pub mod history;

/// Numbers for tests: the same for a seed, so that what was found can be had again.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// Those of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // Spread out, and never nought, from which there is no way on.
        let mut state = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self((state ^ (state >> 31)) | 1)
    }

    /// A number below `limit`; nought if there is none.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % (limit as u64).max(1)) as usize
    }

    /// Whether one of `in_how_many` cases is this one.
    pub fn once(&mut self, in_how_many: usize) -> bool {
        self.below(in_how_many) == 0
    }
}

/// A number that the environment may give in the place of `usual`.
///
/// # Panics
/// What it gives is no number.
#[must_use]
pub fn asked(variable: &str, usual: usize) -> usize {
    std::env::var(variable).map_or(usual, |text| match text.parse() {
        Ok(number) => number,
        Err(_) => panic!("{variable}={text:?} is no number"),
    })
}
