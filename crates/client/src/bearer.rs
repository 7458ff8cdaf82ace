//! Requests with a token that does not last.

use http::header::AUTHORIZATION;
use http::{HeaderValue, Request, StatusCode};
use k8s_openapi::jiff::Timestamp;
use kube::client::Body;
use std::future::Future;
use tower::BoxError;

/// Says which token requests have now. Clones share what they know.
pub(crate) trait Bearer: Clone + Send + Sync + 'static {
    /// Why there is none.
    type Error: std::error::Error + Send + Sync + 'static;

    /// The value of the header of now; one request asks for it anew, the others wait.
    fn header(&self) -> impl Future<Output = Result<Option<HeaderValue>, Self::Error>> + Send;

    /// A server has answered 401 to what this header said; what is asked for next is new.
    fn refused(&self, header: HeaderValue) -> impl Future<Output = ()> + Send;
}

/// A header that is good until some time.
pub(crate) struct Lasting {
    /// `Bearer`, and the token.
    pub(crate) header: Option<HeaderValue>,
    /// When another one is to be asked for; never without.
    pub(crate) renewed_at: Option<Timestamp>,
}

impl Lasting {
    /// None, to be asked for at once.
    pub(crate) const NOTHING: Self = Self {
        header: None,
        renewed_at: Some(Timestamp::MIN),
    };

    /// Whether another one is to be asked for.
    pub(crate) fn is_over(&self) -> bool {
        self.renewed_at.is_some_and(|at| at <= Timestamp::now())
    }

    /// Is over if it says what was refused, and not something newer.
    pub(crate) fn refuse(&mut self, header: &HeaderValue) {
        if self.header.as_ref() == Some(header) {
            *self = Self::NOTHING;
        }
    }
}

/// The header that says this token; none if no header can.
pub(crate) fn header_of(token: &str) -> Option<HeaderValue> {
    let mut header = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
    header.set_sensitive(true);
    Some(header)
}

/// A client whose requests go through `inner` with the token of now.
pub(crate) fn with_bearer(inner: kube::Client, bearer: impl Bearer) -> kube::Client {
    let namespace = inner.default_namespace().to_owned();
    let service = tower::service_fn(move |mut request: Request<Body>| {
        let (bearer, inner) = (bearer.clone(), inner.clone());
        async move {
            let header = bearer.header().await.map_err(BoxError::from)?;
            if let Some(header) = &header {
                request.headers_mut().insert(AUTHORIZATION, header.clone());
            }
            let response = inner.send(request).await.map_err(BoxError::from)?;
            if response.status() == StatusCode::UNAUTHORIZED
                && let Some(header) = header
            {
                bearer.refused(header).await;
            }
            Ok::<_, BoxError>(response)
        }
    });
    kube::Client::new(service, namespace)
}
