//! What is short, since when, and what to do about it: no clock and no effects.

use super::signals::{Condition, Config, Signal, Threshold};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// What is left of something, and how much there is at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observation {
    /// Left.
    pub available: i64,
    /// At all.
    pub capacity: i64,
}

/// What was measured at one time.
pub(crate) type Observations = BTreeMap<Signal, Observation>;

/// What the past says. Make it anew and feed it each look.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// Since when thresholds (by their place in the configuration) are met without a break.
    since: BTreeMap<usize, Instant>,
    /// Thresholds that were acted upon at the last look: they hold until their minimum is got back.
    acting: BTreeSet<usize>,
    /// When conditions were last seen.
    seen: BTreeMap<Condition, Instant>,
}

/// What a look says.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Outlook {
    /// Conditions that are on.
    pub conditions: Vec<Condition>,
    /// The threshold to act upon first.
    pub reclaim: Option<Threshold>,
}

/// Whether a threshold is met; `reclaiming` takes in what has to be got back beyond it.
#[must_use]
pub(crate) fn is_met(threshold: &Threshold, observations: &Observations, reclaiming: bool) -> bool {
    let Some(seen) = observations.get(&threshold.signal) else {
        return false;
    };
    let mut least = threshold.value.of(seen.capacity);
    if reclaiming && let Some(more) = threshold.min_reclaim {
        least = least.saturating_add(more.of(seen.capacity));
    }
    least > seen.available
}

impl State {
    /// Takes in what was measured.
    pub(crate) fn look(
        &mut self,
        config: &Config,
        observations: &Observations,
        now: Instant,
    ) -> Outlook {
        let met: BTreeSet<usize> = config
            .thresholds
            .iter()
            .enumerate()
            .filter(|(at, t)| {
                is_met(t, observations, false)
                    || (self.acting.contains(at) && is_met(t, observations, true))
            })
            .map(|(at, _)| at)
            .collect();
        self.since.retain(|at, _| met.contains(at));
        for at in &met {
            self.since.entry(*at).or_insert(now);
            self.seen
                .insert(config.thresholds[*at].signal.condition(), now);
        }
        self.seen.retain(|condition, seen| {
            let on = met
                .iter()
                .any(|at| config.thresholds[*at].signal.condition() == *condition);
            on || now.duration_since(*seen) < config.transition
        });
        self.acting = met
            .into_iter()
            .filter(|at| now.duration_since(self.since[at]) >= config.thresholds[*at].grace)
            .collect();
        // Memory first: it is what kills. Of one signal the hard threshold.
        let urgent = self.acting.iter().map(|at| &config.thresholds[*at]);
        let reclaim = urgent
            .min_by_key(|t| (t.signal != Signal::MemoryAvailable, !t.is_hard()))
            .cloned();
        Outlook {
            conditions: self.seen.keys().copied().collect(),
            reclaim,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::signals::Value;
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    fn config(grace: u64, min_reclaim: i64) -> Config {
        Config {
            thresholds: vec![Threshold {
                signal: Signal::NodefsAvailable,
                value: Value::Amount(100),
                grace: Duration::from_secs(grace),
                min_reclaim: (min_reclaim > 0).then_some(Value::Amount(min_reclaim)),
            }],
            max_pod_grace: 0,
            period: Duration::from_secs(10),
            transition: Duration::from_secs(30),
            local_storage: true,
        }
    }

    fn left(available: i64) -> Observations {
        let capacity = 1000;
        [(
            Signal::NodefsAvailable,
            Observation {
                available,
                capacity,
            },
        )]
        .into()
    }

    #[test]
    fn soft_thresholds_wait_and_a_break_starts_anew() {
        let (config, start) = (config(20, 0), Instant::now());
        let mut state = State::default();
        let mut at = |seconds: u64, available: i64| {
            let outlook = state.look(
                &config,
                &left(available),
                start + Duration::from_secs(seconds),
            );
            (outlook.reclaim.is_some(), !outlook.conditions.is_empty())
        };
        assert_eq!(at(0, 50), (false, true));
        assert_eq!(
            at(10, 150),
            (false, true),
            "the condition outlasts the signal"
        );
        assert_eq!(at(20, 50), (false, true));
        assert_eq!(at(39, 50), (false, true));
        assert_eq!(at(40, 50), (true, true));
        assert_eq!(at(50, 100), (false, true));
        assert_eq!(at(69, 100), (false, true));
        assert_eq!(at(70, 100), (false, false));
    }

    #[test]
    fn the_minimum_is_got_back_before_it_ends() {
        let (config, start) = (config(0, 30), Instant::now());
        let mut state = State::default();
        let mut at = |available: i64| {
            state
                .look(&config, &left(available), start)
                .reclaim
                .is_some()
        };
        assert!(!at(129), "not met yet");
        assert!(at(99) && at(129));
        assert!(!at(130) && !at(101));
    }

    #[test]
    fn memory_comes_first() {
        let all = Config::default();
        let none = Observation {
            available: 0,
            capacity: 100,
        };
        let observations = Signal::ALL.into_iter().map(|s| (s, none)).collect();
        let outlook = State::default().look(&all, &observations, Instant::now());
        assert_eq!(outlook.reclaim.unwrap().signal, Signal::MemoryAvailable);
        assert_eq!(outlook.conditions, [Condition::Memory, Condition::Disk]);
    }

    proptest! {
        #[test]
        fn nothing_is_reclaimed_that_is_not_short(
            values in prop::collection::vec(0_i64..300, 1..40),
            grace in 0_u64..40,
            reclaim in 0_i64..80,
        ) {
            let (config, start) = (config(grace, reclaim), Instant::now());
            let (mut state, mut short_since) = (State::default(), None);
            for (i, available) in values.into_iter().enumerate() {
                let seconds = i as u64 * 10;
                let outlook = state.look(&config, &left(available), start + Duration::from_secs(seconds));
                if available >= 100 + reclaim {
                    short_since = None;
                } else if available < 100 {
                    short_since.get_or_insert(seconds);
                }
                if outlook.reclaim.is_some() {
                    prop_assert!(short_since.is_some_and(|since| seconds - since >= grace));
                    prop_assert_eq!(&outlook.conditions, &[Condition::Disk]);
                }
                if available < 100 {
                    prop_assert_eq!(&outlook.conditions, &[Condition::Disk]);
                }
                if grace == 0 && available < 100 {
                    prop_assert!(outlook.reclaim.is_some());
                }
            }
        }
    }
}
