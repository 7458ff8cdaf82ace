//! Requests as plain JSON.

use http::Request;
use http::request::Builder;
use serde_json::Value;

/// Somebody who makes requests.
#[derive(Clone)]
pub struct JsonClient {
    client: kube::Client,
}

impl std::fmt::Debug for JsonClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Caller")
    }
}

type Answer = Result<Value, kube::Error>;

/// Whether the server has answered with this code.
pub fn is_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

impl JsonClient {
    /// Requests through `client`.
    pub fn new(client: kube::Client) -> Self {
        Self { client }
    }

    async fn send(&self, request: Builder, body: Option<&Value>) -> Answer {
        let bytes = body.map(|body| body.to_string().into_bytes());
        let request = request.body(bytes.unwrap_or_default());
        let request = request.map_err(|error| {
            kube::Error::BuildRequest(kube::core::request::Error::BuildRequest(error))
        })?;
        self.client.request(request).await
    }

    /// Reads an object.
    pub async fn get(&self, path: &str) -> Answer {
        self.send(Request::get(path), None).await
    }

    /// Creates an object.
    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        let request = Request::post(path).header("content-type", "application/json");
        self.send(request, Some(body)).await
    }

    /// Replaces an object.
    pub async fn put(&self, path: &str, body: &Value) -> Answer {
        let request = Request::put(path).header("content-type", "application/json");
        self.send(request, Some(body)).await
    }

    /// Changes an object: a JSON merge patch.
    pub async fn merge(&self, path: &str, body: &Value) -> Answer {
        let request = Request::patch(path).header("content-type", "application/merge-patch+json");
        self.send(request, Some(body)).await
    }

    /// Changes an object: a strategic merge patch.
    pub async fn patch(&self, path: &str, body: &Value) -> Answer {
        let media = "application/strategic-merge-patch+json";
        let request = Request::patch(path).header("content-type", media);
        self.send(request, Some(body)).await
    }

    /// Deletes an object, with options.
    pub async fn delete(&self, path: &str, options: &Value) -> Answer {
        let request = Request::delete(path).header("content-type", "application/json");
        self.send(request, Some(options)).await
    }
}
