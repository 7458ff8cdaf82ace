//! Failures that repeat themselves, said without filling the log.

/// What failed last in one piece of work that is tried again and again, and how often it did so in a row.
#[derive(Debug, Default)]
pub struct RepeatedFailure {
    failure: String,
    times: u32,
}

impl RepeatedFailure {
    /// Whether a failure is worth a line in the log: each new one, and one that repeats itself the second time, the fourth,
    /// the eighth and so on. `failure` says what failed and why.
    pub fn is_news(&mut self, failure: &str) -> bool {
        if self.failure == failure {
            self.times = self.times.saturating_add(1);
        } else {
            failure.clone_into(&mut self.failure);
            self.times = 1;
        }
        self.times.is_power_of_two()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_repeats_itself_is_said_less_and_less() {
        let mut failure = RepeatedFailure::default();
        let said =
            |failure: &mut RepeatedFailure| (1..=100).filter(|_| failure.is_news("gone")).count();
        assert_eq!(said(&mut failure), 7);
        assert!(failure.is_news("another") && failure.is_news("gone"));
    }
}
