//! How many requests a second go out, as client-go's QPS and burst have it.

use http::Request;
use kube::client::Body;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How many requests go out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestRate {
    /// Requests a second, one at least.
    pub per_second: u32,
    /// Requests at once, one at least.
    pub burst: u32,
}

impl RequestRate {
    /// As the QPS and burst of client-go have it: none with a QPS below 0, which is no limit. A QPS below 1 counts as 1.
    pub fn of_client(qps: f32, burst: i32) -> Option<Self> {
        // Limits that large are none.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let per_second = qps.max(1.0) as u32;
        (qps >= 0.0).then_some(Self {
            per_second,
            burst: u32::try_from(burst).unwrap_or_default().max(1),
        })
    }
}

/// A bucket of tokens, of which each request takes one.
#[derive(Debug)]
pub struct Throttle {
    rate: RequestRate,
    bucket: Mutex<(f64, Instant)>,
}

impl Throttle {
    /// A full bucket.
    pub fn new(rate: RequestRate) -> Self {
        Self {
            rate,
            bucket: Mutex::new((f64::from(rate.burst), Instant::now())),
        }
    }

    /// Takes a token if there is one.
    pub fn try_take(&self) -> bool {
        self.reserve(true).is_some()
    }

    /// Takes a token as soon as there is one, after those who came before.
    pub async fn take(&self) {
        let wait = self.reserve(false).unwrap_or_default();
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }

    /// How long to wait for the token that was taken; none where it would be a wait and `at_once` is asked for.
    fn reserve(&self, at_once: bool) -> Option<Duration> {
        let mut bucket = self.bucket.lock();
        let now = Instant::now();
        let (tokens, since) = *bucket;
        let (rate, burst) = (
            f64::from(self.rate.per_second.max(1)),
            f64::from(self.rate.burst.max(1)),
        );
        let tokens = (tokens + now.duration_since(since).as_secs_f64() * rate).min(burst);
        if at_once && tokens < 1.0 {
            *bucket = (tokens, now);
            return None;
        }
        *bucket = (tokens - 1.0, now);
        Some(Duration::from_secs_f64((1.0 - tokens).max(0.0) / rate))
    }
}

/// A client whose requests wait for their turn and go out by `client`. A watch is one request.
pub fn throttled(client: kube::Client, rate: RequestRate) -> kube::Client {
    let namespace = client.default_namespace().to_owned();
    let throttle = Arc::new(Throttle::new(rate));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, throttle) = (client.clone(), throttle.clone());
        async move {
            throttle.take().await;
            client.send(request).await
        }
    });
    kube::Client::new(service, namespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_client_go() {
        let rate = |qps, burst| RequestRate::of_client(qps, burst);
        let some = |per_second, burst| Some(RequestRate { per_second, burst });
        assert_eq!(rate(50.0, 100), some(50, 100));
        assert_eq!(rate(0.5, 0), some(1, 1));
        assert_eq!(rate(-1.0, 100), None);
        assert_eq!(rate(f32::NAN, 1), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_goes_at_once_and_the_rest_by_the_second() {
        let throttle = Throttle::new(RequestRate {
            per_second: 2,
            burst: 3,
        });
        let begun = Instant::now();
        let mut went = Vec::new();
        for _ in 0..5 {
            throttle.take().await;
            went.push(begun.elapsed().as_millis());
        }
        assert_eq!(went[..3], [0, 0, 0]);
        assert!(
            (499..=502).contains(&went[3]) && (999..=1003).contains(&went[4]),
            "{went:?}"
        );
        assert!(!throttle.try_take());
        tokio::time::sleep(Duration::from_millis(510)).await;
        assert!(throttle.try_take() && !throttle.try_take());
        tokio::time::sleep(Duration::from_secs(60)).await;
        let left = (0..10).filter(|_| throttle.try_take()).count();
        assert_eq!(left, 3, "no more than a burst is saved");
    }
}
