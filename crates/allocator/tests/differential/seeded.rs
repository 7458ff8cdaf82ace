//! Numbers that a seed decides (SplitMix64).

pub(crate) struct Seeded(u64);

impl Seeded {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).unwrap()
    }

    /// Whether a thing happens that happens `n` times of a hundred.
    pub(crate) fn percent(&mut self, n: usize) -> bool {
        self.below(100) < n
    }

    pub(crate) fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }
}

/// The first seed and how many cases there are: what the environment says, or these.
pub(crate) fn range(cases: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().unwrap());
    let first = number("DAVIT_DIFFERENTIAL_SEED").unwrap_or(1);
    first..first + number("DAVIT_DIFFERENTIAL_CASES").unwrap_or(cases)
}
