//! For tests: an API server that has one object.

use serde_json::{Value, json};

/// A client of a server that answers at `path` with the object, and everywhere else that there is nothing.
pub(crate) fn one_object(path: &'static str, object: Value) -> kube::Client {
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (code, answer) = if request.uri().path() == path {
            (200, object.clone())
        } else {
            let status =
                json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound"});
            (404, status)
        };
        let body = kube::client::Body::from(answer.to_string().into_bytes());
        let answer = http::Response::builder().status(code).body(body);
        async move { answer }
    });
    kube::Client::new(service, "n")
}
