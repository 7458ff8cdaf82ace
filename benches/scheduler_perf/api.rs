//! Calls to the API server, whoever's it is.

use anyhow::{Context, Result};
use http::{Method, Request};
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::HashMap;

pub(crate) struct Api {
    pub(crate) client: kube::Client,
    /// Where objects of a kind are, by `apiVersion` and `kind`: resource, and whether it is in namespaces.
    resources: Mutex<HashMap<(String, String), (String, bool)>>,
}

impl Api {
    pub(crate) fn new(client: kube::Client) -> Self {
        Self {
            client,
            resources: Mutex::default(),
        }
    }

    /// Sends a body, and returns the answer as it comes: few look at it.
    pub(crate) async fn send(&self, method: Method, path: &str, body: &Value) -> Result<String> {
        let request = Request::builder()
            .method(method.clone())
            .uri(path)
            .header("content-type", "application/json")
            .body(serde_json::to_vec(body)?)?;
        let answer = self.client.request_text(request).await;
        answer.with_context(|| format!("{method} {path}"))
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Value> {
        let request = Request::get(path).body(Vec::new())?;
        let answer = self.client.request(request).await;
        answer.with_context(|| format!("GET {path}"))
    }

    pub(crate) async fn create(&self, collection: &str, object: &Value) -> Result<String> {
        self.send(Method::POST, collection, object).await
    }

    /// At once, as far as the grace period is left to it.
    pub(crate) async fn delete(&self, path: &str) -> Result<()> {
        let options = serde_json::json!({"gracePeriodSeconds": 0});
        match self.send(Method::DELETE, path, &options).await {
            Err(error) if !is(&error, 404) => Err(error),
            _ => Ok(()),
        }
    }

    pub(crate) async fn ensure_namespace(&self, name: &str) -> Result<()> {
        let namespace = serde_json::json!({"metadata": {"name": name}});
        match self.create("/api/v1/namespaces", &namespace).await {
            Err(error) if !is(&error, 409) => Err(error),
            _ => Ok(()),
        }
    }

    /// The collection that an object belongs into.
    pub(crate) async fn collection(&self, object: &Value, namespace: &str) -> Result<String> {
        let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
        let (version, kind) = (text("apiVersion"), text("kind"));
        let root = match version.contains('/') {
            true => format!("/apis/{version}"),
            false => format!("/api/{version}"),
        };
        let key = (version, kind);
        let known = self.resources.lock().get(&key).cloned();
        let (resource, namespaced) = match known {
            Some(known) => known,
            None => {
                let found = self.discover(&root, &key.1).await?;
                self.resources.lock().insert(key, found.clone());
                found
            }
        };
        Ok(match namespaced {
            true => format!("{root}/namespaces/{namespace}/{resource}"),
            false => format!("{root}/{resource}"),
        })
    }

    async fn discover(&self, root: &str, kind: &str) -> Result<(String, bool)> {
        let served = self.get(root).await?;
        let mut all = served["resources"].as_array().into_iter().flatten();
        let found = all.find(|resource| {
            let name = resource["name"].as_str().unwrap_or_default();
            resource["kind"] == kind && !name.contains('/')
        });
        let found = found.with_context(|| format!("{kind} is not served in {root}"))?;
        let name = found["name"].as_str().unwrap_or_default();
        Ok((name.to_owned(), found["namespaced"] == true))
    }
}

/// Whether the server has answered with this status.
pub(crate) fn is(error: &anyhow::Error, code: u16) -> bool {
    let cause = error.downcast_ref::<kube::Error>();
    matches!(cause, Some(kube::Error::Api(status)) if status.code == code)
}
