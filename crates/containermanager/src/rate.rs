//! The rate limit of sockets on which the node agent answers questions about pods.

use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::Status;

/// How many calls a socket takes; [`Rate::default`] is the kubelet's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Calls per second.
    pub per_second: u32,
    /// Calls at once.
    pub burst: u32,
}

impl Default for Rate {
    fn default() -> Self {
        Self {
            per_second: 100,
            burst: 10,
        }
    }
}

/// A text that is no rate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not of the form RATE:BURST with numbers from 1, such as 100:10")]
pub struct NotARate(String);

impl std::str::FromStr for Rate {
    type Err = NotARate;

    fn from_str(text: &str) -> Result<Self, NotARate> {
        let number = |text: &str| text.parse::<u32>().ok().filter(|n| *n > 0);
        let rate = text.split_once(':').and_then(|(rate, burst)| {
            Some(Self {
                per_second: number(rate)?,
                burst: number(burst)?,
            })
        });
        rate.ok_or_else(|| NotARate(text.to_owned()))
    }
}

/// One token bucket for all callers of a socket, and all versions of what it serves.
#[derive(Debug)]
pub struct Limit {
    rate: Rate,
    bucket: Mutex<(f64, Instant)>,
}

impl Limit {
    /// A full bucket.
    pub fn new(rate: Rate) -> Self {
        Self {
            rate,
            bucket: Mutex::new((f64::from(rate.burst), Instant::now())),
        }
    }

    /// Takes a token.
    ///
    /// # Errors
    /// There is none: ResourceExhausted with the kubelet's text.
    pub fn take(&self) -> Result<(), Status> {
        let mut bucket = self.bucket.lock();
        let now = Instant::now();
        let (tokens, since) = *bucket;
        let (rate, burst) = (f64::from(self.rate.per_second), f64::from(self.rate.burst));
        let tokens = (tokens + now.duration_since(since).as_secs_f64() * rate).min(burst);
        if tokens < 1.0 {
            *bucket = (tokens, now);
            return Err(Status::resource_exhausted("rejected by rate limit"));
        }
        *bucket = (tokens - 1.0, now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn rates_are_read() {
        let rate: Rate = "500:50".parse().unwrap();
        assert_eq!((rate.per_second, rate.burst), (500, 50));
        for bad in ["", "5", "0:1", "1:0", "a:b", "1:2:3"] {
            assert!(bad.parse::<Rate>().is_err(), "{bad:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn item_133_ten_at_once_then_a_hundred_a_second() {
        let limit = Limit::new(Rate::default());
        assert_eq!((0..100).filter(|_| limit.take().is_ok()).count(), 10);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!((0..100).filter(|_| limit.take().is_ok()).count(), 10);
        let mut passed = 0;
        for _ in 0..900 {
            tokio::time::advance(Duration::from_micros(11_112)).await;
            passed += usize::from(limit.take().is_ok());
        }
        assert_eq!(passed, 900);
    }
}
