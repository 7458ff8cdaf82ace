//! How fast processor time was used, from two looks at the counter. Nobody measures by himself: those who ask are the
//! clock.

use parking_lot::Mutex;
use std::collections::HashMap;

const SECOND: i64 = 1_000_000_000;
/// Looks that are closer than this see the rate of the one before.
const SHORTEST: i64 = 5 * SECOND;
/// What nobody has asked about for so long is forgotten.
const LONGEST: i64 = 600 * SECOND;

/// The last look that counted.
#[derive(Debug, Clone, Copy)]
struct Look {
    /// Nanoseconds since the epoch.
    time: i64,
    /// Core-nanoseconds.
    used: u64,
    /// Core-nanoseconds a second, up to this look.
    rate: Option<u64>,
}

/// The last looks at counters, by name.
#[derive(Debug, Default)]
pub struct CpuRates(Mutex<HashMap<String, Look>>);

impl CpuRates {
    /// Core-nanoseconds a second since the look before, which was some seconds ago; `None` at the first one and after a
    /// counter has begun anew.
    pub fn at(&self, name: &str, time: i64, used: u64) -> Option<u64> {
        let mut looks = self.0.lock();
        let before = looks.get(name).copied();
        let before = before.filter(|b| b.used <= used && time - b.time <= LONGEST);
        let rate = match before {
            Some(before) if time - before.time < SHORTEST => return before.rate,
            Some(before) => rate(used - before.used, time - before.time),
            None => None,
        };
        looks.retain(|_, look| time - look.time <= LONGEST);
        looks.insert(name.to_owned(), Look { time, used, rate });
        rate
    }
}

fn rate(used: u64, nanos: i64) -> Option<u64> {
    let rate = u128::from(used) * SECOND.unsigned_abs() as u128 / u128::from(nanos.unsigned_abs());
    u64::try_from(rate).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_between_looks() {
        let rates = CpuRates::default();
        assert_eq!(rates.at("a", 0, 100), None);
        assert_eq!(rates.at("a", SECOND, 200), None, "too soon");
        assert_eq!(rates.at("a", 10 * SECOND, 2_000_000_100), Some(200_000_000));
        assert_eq!(rates.at("a", 11 * SECOND, 9_000_000_000), Some(200_000_000));
        assert_eq!(rates.at("b", 11 * SECOND, 1), None, "another counter");
        assert_eq!(rates.at("a", 20 * SECOND, 5), None, "begun anew");
        assert_eq!(rates.at("a", 30 * SECOND, 5), Some(0));
        assert_eq!(
            rates.at("a", 30 * SECOND + 2 * LONGEST, 5),
            None,
            "long ago"
        );
        assert_eq!(rates.0.lock().len(), 1, "what nobody asks about goes");
    }
}
