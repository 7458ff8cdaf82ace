//! Which faults a run has and when: decided by its seed alone.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::store::SlowWrite;

/// How often what goes wrong in a run. A seed turns about half of the kinds of faults off, so that what one of them hides
/// is seen without it. Rates are in a thousand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultProfile {
    /// Requests that are answered with an error and not taken.
    pub refused: u32,
    /// Requests that are done, and answered with an error.
    pub unanswered: u32,
    /// Requests that wait.
    pub slow: u32,
    /// How long watches live at most, in seconds.
    pub watch_life: Option<u64>,
    /// Changes that reach a watch of the API late.
    pub late: u32,
    /// Writes that the store takes its time for.
    pub slow_writes: u32,
    /// Writes of which the store does not know whether they were made.
    pub unknown_writes: u32,
    /// Changes of which the API server hears late.
    pub late_changes: u32,
    /// Seconds between compactions of the store, which watches of the past do not survive.
    pub compaction: Option<u64>,
    /// Seconds between crashes of the scheduler.
    pub scheduler: Option<u64>,
    /// Seconds between crashes of the controllers.
    pub controllers: Option<u64>,
    /// Seconds between crashes of the API server.
    pub server: Option<u64>,
    /// Seconds between crashes of a node.
    pub nodes: Option<u64>,
    /// How long a node is away at most, in seconds.
    pub away: u64,
}

impl FaultProfile {
    /// Nothing goes wrong.
    pub const NONE: Self = Self {
        refused: 0,
        unanswered: 0,
        slow: 0,
        watch_life: None,
        late: 0,
        slow_writes: 0,
        unknown_writes: 0,
        late_changes: 0,
        compaction: None,
        scheduler: None,
        controllers: None,
        server: None,
        nodes: None,
        away: 0,
    };

    /// What goes wrong in the run of this seed.
    pub fn of_seed(seed: u64) -> Self {
        let mut rng = stream(seed, 1);
        let mut rate = |most: u32| match rng.random_bool(0.5) {
            true => rng.random_range(1..=most),
            false => 0,
        };
        let (refused, unanswered, slow) = (rate(80), rate(40), rate(100));
        let (late, slow_writes, unknown_writes) = (rate(200), rate(100), rate(10));
        let late_changes = rate(100);
        let mut every = |odds: f64, seconds: std::ops::RangeInclusive<u64>| {
            rng.random_bool(odds).then(|| rng.random_range(seconds))
        };
        Self {
            refused,
            unanswered,
            slow,
            watch_life: every(0.5, 2..=40),
            late,
            slow_writes,
            unknown_writes,
            late_changes,
            compaction: every(0.4, 3..=30),
            scheduler: every(0.4, 5..=60),
            controllers: every(0.4, 5..=60),
            server: every(0.2, 20..=60),
            nodes: every(0.4, 10..=60),
            away: every(0.3, 60..=500).unwrap_or(20),
        }
    }

    /// Whether a writer may not learn that its write was made.
    pub fn leaves_in_doubt(&self) -> bool {
        self.unanswered > 0 || self.unknown_writes > 0 || self.server.is_some()
    }
}

/// The random numbers of one purpose in the run of a seed.
pub fn stream(seed: u64, purpose: u64) -> StdRng {
    StdRng::seed_from_u64(seed.wrapping_mul(1_000_003).wrapping_add(purpose))
}

/// What happens to a request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fate {
    /// How long it is on its way.
    pub before: Duration,
    /// How long its answer is.
    pub after: Duration,
    /// The server goes on with it when whoever asked is gone.
    pub goes_on: bool,
    /// The error that is answered without its being taken.
    pub refused: Option<FaultAnswer>,
    /// The error that is answered although it was done.
    pub unanswered: Option<FaultAnswer>,
}

/// What somebody hears instead of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultAnswer {
    /// A Status of this code.
    Status(u16),
    /// The connection is lost.
    Lost,
}

/// How a watch ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// As one ends whose time is up.
    Closed,
    /// The connection is lost.
    Lost,
    /// Nothing comes for a while; then the connection is lost.
    Stalled(Duration),
    /// It says that the past is gone: 410.
    Gone,
}

/// The faults of a run, one after another.
#[derive(Debug)]
pub struct Faults {
    profile: FaultProfile,
    rng: StdRng,
}

impl Faults {
    /// Those of a seed.
    pub fn new(seed: u64, profile: FaultProfile) -> Self {
        Self {
            profile,
            rng: stream(seed, 2),
        }
    }

    /// Nothing goes wrong any more.
    pub fn stop(&mut self) {
        self.profile = FaultProfile::NONE;
    }

    /// How often what goes wrong now.
    pub fn profile(&self) -> &FaultProfile {
        &self.profile
    }

    fn happens(&mut self, rate: u32) -> bool {
        rate > 0 && self.rng.random_range(0..1000) < rate
    }

    fn pause(&mut self, most: u64) -> Duration {
        Duration::from_millis(self.rng.random_range(1..=most))
    }

    /// What happens to the next request.
    pub fn request(&mut self) -> Fate {
        let mut fate = Fate {
            goes_on: self.profile != FaultProfile::NONE && self.coin(),
            ..Fate::default()
        };
        if self.happens(self.profile.slow) {
            fate.before = self.slowness();
        }
        if self.happens(self.profile.slow) {
            fate.after = self.slowness();
        }
        if self.happens(self.profile.refused) {
            fate.refused = Some(self.refusal());
        } else if self.happens(self.profile.unanswered) {
            fate.unanswered = Some(self.refusal());
        }
        fate
    }

    /// Mostly short; now and then longer than anybody waits.
    fn slowness(&mut self) -> Duration {
        match self.happens(50) {
            true => self.pause(60_000),
            false => self.pause(3000),
        }
    }

    fn refusal(&mut self) -> FaultAnswer {
        const CODES: [u16; 4] = [429, 500, 503, 504];
        match self.rng.random_range(0..=CODES.len()) {
            at if at < CODES.len() => FaultAnswer::Status(CODES[at]),
            _ => FaultAnswer::Lost,
        }
    }

    /// After which time the next watch ends, and how, if it does not end by itself.
    pub fn watch(&mut self) -> Option<(Duration, End)> {
        let most = self.profile.watch_life?;
        let life = self.pause(most * 1000);
        let end = match self.rng.random_range(0..4) {
            0 => End::Closed,
            1 => End::Lost,
            2 => End::Gone,
            _ => End::Stalled(self.pause(20_000)),
        };
        Some((life, end))
    }

    /// How late the next piece of a watch comes.
    pub fn late(&mut self) -> Duration {
        match self.happens(self.profile.late) {
            true => self.pause(5000),
            false => Duration::ZERO,
        }
    }

    /// How late the API server hears of the next change.
    pub fn late_change(&mut self) -> Duration {
        match self.happens(self.profile.late_changes) {
            true => self.pause(500),
            false => Duration::ZERO,
        }
    }

    /// What happens to the next write of the store.
    pub fn write(&mut self) -> SlowWrite {
        let mut write = SlowWrite::default();
        if self.happens(self.profile.slow_writes) {
            write.before = self.pause(400);
        }
        if self.happens(self.profile.slow_writes) {
            write.after = self.pause(400);
        }
        write.unknown = self.happens(self.profile.unknown_writes);
        write
    }

    /// How long until the next crash of what crashes so often.
    pub fn until_crash(&mut self, every: u64) -> Duration {
        self.pause(every * 2000)
    }

    /// How long what has crashed is away.
    pub fn away(&mut self, most: u64) -> Duration {
        self.pause(most.max(1) * 1000)
    }

    /// Whether one of two things happens.
    pub fn coin(&mut self) -> bool {
        self.rng.random_bool(0.5)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_has_its_faults() {
        let mut all: Vec<Vec<Fate>> = Vec::new();
        for seed in [1, 1, 2] {
            let mut faults = Faults::new(seed, FaultProfile::of_seed(seed));
            all.push((0..500).map(|_| faults.request()).collect());
        }
        assert_eq!(all[0], all[1]);
        assert_ne!(all[0], all[2]);
    }

    #[test]
    fn faults_that_have_stopped_do_not_happen() {
        let mut faults = Faults::new(7, FaultProfile::of_seed(7));
        faults.stop();
        assert!((0..500).all(|_| faults.request() == Fate::default()));
        assert_eq!(faults.watch(), None);
    }

    #[test]
    fn each_kind_of_fault_is_in_some_seeds_and_not_in_others() {
        let profiles: Vec<FaultProfile> = (0..64).map(FaultProfile::of_seed).collect();
        let has: [fn(&FaultProfile) -> bool; 6] = [
            |p| p.refused > 0,
            |p| p.unanswered > 0,
            |p| p.watch_life.is_some(),
            |p| p.scheduler.is_some(),
            |p| p.server.is_some(),
            FaultProfile::leaves_in_doubt,
        ];
        for has in has {
            assert!(profiles.iter().any(has) && !profiles.iter().all(has));
        }
    }
}
