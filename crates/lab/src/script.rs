//! Scripts: steps in the order of time, again and again when the script repeats.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::span::Span;

pub(crate) struct Script<S> {
    steps: Vec<S>,
    at: fn(&S) -> Span,
    repeat: Option<Duration>,
    begun: Instant,
    next: usize,
}

impl<S: Clone> Script<S> {
    /// A script that begins now.
    pub(crate) fn new(mut steps: Vec<S>, repeat: Option<Span>, at: fn(&S) -> Span) -> Self {
        steps.sort_by_key(at);
        Self {
            steps,
            at,
            repeat: repeat.map(|r| r.0).filter(|r| !r.is_zero()),
            begun: Instant::now(),
            next: 0,
        }
    }

    /// Waits for the next step; for ever when there is none. Cancel-safe.
    pub(crate) async fn next(&mut self) -> S {
        if self.next == self.steps.len() {
            match self.repeat {
                Some(repeat) if !self.steps.is_empty() => {
                    sleep_until(self.begun + repeat).await;
                    self.begun += repeat;
                    self.next = 0;
                }
                _ => std::future::pending().await,
            }
        }
        let step = &self.steps[self.next];
        sleep_until(self.begun + (self.at)(step).0).await;
        self.next += 1;
        self.steps[self.next - 1].clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn steps_come_in_time_and_again() {
        let span = |s: u64| Span(Duration::from_secs(s));
        let mut script = Script::new(vec![span(5), span(2)], Some(span(10)), |s| *s);
        let begun = Instant::now();
        let mut times = Vec::new();
        for _ in 0..5 {
            script.next().await;
            times.push(begun.elapsed().as_secs());
        }
        assert_eq!(times, [2, 5, 12, 15, 22]);
    }
}
