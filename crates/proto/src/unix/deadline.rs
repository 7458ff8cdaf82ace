//! Ends calls whose `grpc-timeout` is over with the code Go peers expect.
//!
//! tonic ends such calls too, but with Cancelled; this layer is nearer to the service and so
//! a moment earlier.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderMap, Request, Response};
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tower::{Layer, Service};

/// See the module's description.
#[derive(Debug, Clone, Copy, Default)]
pub struct DeadlineLayer;

/// The service [`DeadlineLayer`] makes.
#[derive(Debug, Clone)]
pub struct Deadline(Routes);

impl Layer<Routes> for DeadlineLayer {
    type Service = Deadline;

    fn layer(&self, inner: Routes) -> Deadline {
        Deadline(inner)
    }
}

impl Service<Request<Body>> for Deadline {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<Request<Body>>::poll_ready(&mut self.0, cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let limit = limit(request.headers());
        let answer = self.0.call(request);
        let Some(limit) = limit else {
            return Box::pin(answer);
        };
        let limited = tokio::time::timeout(limit, answer);
        Box::pin(async move {
            let over = || Status::deadline_exceeded("context deadline exceeded").into_http();
            limited.await.unwrap_or_else(|_| Ok(over()))
        })
    }
}

/// The value of `grpc-timeout`: up to eight digits and a unit.
fn limit(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let n: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(n * 3600),
        "M" => Duration::from_secs(n * 60),
        "S" => Duration::from_secs(n),
        "m" => Duration::from_millis(n),
        "u" => Duration::from_micros(n),
        "n" => Duration::from_nanos(n),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_forms() {
        for (text, expected) in [
            ("9999863u", Some(Duration::from_micros(9_999_863))),
            ("1m", Some(Duration::from_millis(1))),
            ("99999999H", Some(Duration::from_secs(99_999_999 * 3600))),
            ("123456789S", None),
            ("S", None),
            ("", None),
            ("5x", None),
            ("-1S", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", text.parse().unwrap());
            assert_eq!(limit(&headers), expected, "{text}");
        }
    }
}
