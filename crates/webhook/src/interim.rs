//! Interim answers (1xx) before an answer: hyper passes over them, however many come, for as long as a request has time.

use std::sync::atomic::{AtomicUsize, Ordering};

use http::Request;
use tokio_util::sync::CancellationToken;

/// As many as a server gives before its answer: hints come once, progress some times a minute.
const MOST: usize = 100;

/// A server goes on with interim answers and does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("more than {MOST} interim responses (1xx) and no response")]
pub struct OnlyInterim;

/// What comes of a request that `send` sends over HTTP/1.1. The request is given up, and its connection with it, after a hundred
/// interim answers.
///
/// # Errors
/// [`OnlyInterim`].
pub async fn answered<B, F: Future>(
    mut request: Request<B>,
    send: impl FnOnce(Request<B>) -> F,
) -> Result<F::Output, OnlyInterim> {
    let (count, too_many) = (AtomicUsize::new(0), CancellationToken::new());
    let tell = too_many.clone();
    hyper::ext::on_informational(&mut request, move |_| {
        if count.fetch_add(1, Ordering::Relaxed) >= MOST {
            tell.cancel();
        }
    });
    tokio::select! {
        biased;
        () = too_many.cancelled() => Err(OnlyInterim),
        answer = send(request) => Ok(answer),
    }
}
