//! Discovery and OpenAPI documents of a backend.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use davit_api::json_values::JsonValues;
use davit_client::served_entries::served_entries;
use davit_schema::openapi::Foreign;
use http::header::CONTENT_TYPE;
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;

use super::backend::Backend;
use crate::openapi::Document;

const DISCOVERY_ACCEPT: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
     application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
const JSON: &str = "application/json";
const DISCOVERY_LIMIT: usize = 8 << 20;
const OPENAPI_LIMIT: usize = 32 << 20;
/// Values of a document that is taken apart: each takes up to two hundred bytes.
const VALUES: usize = 1_000_000;

/// One document of all backends is taken apart at a time.
static PARSING: Semaphore = Semaphore::const_new(1);

/// What was read of a backend last.
#[derive(Debug, Clone, Default)]
pub(crate) struct Documents {
    /// Entries of aggregated discovery.
    pub(crate) resources: Arc<Vec<Value>>,
    /// The last attempt to read them succeeded.
    pub(crate) fresh: bool,
    pub(crate) openapi: Option<OpenApi>,
    pub(crate) openapi_v2: Option<Arc<Foreign>>,
}

/// An OpenAPI v3 document and where it was read.
#[derive(Debug, Clone)]
pub(crate) struct OpenApi {
    /// With the hash of its content.
    url: String,
    pub(crate) document: Arc<Document>,
}

/// Reads the documents anew; what cannot be read stays as it was.
pub(crate) async fn refresh(backend: &Backend) {
    let mut documents = Documents::clone(&backend.documents.load());
    match discovery(backend).await {
        Ok(resources) => {
            documents.fresh = true;
            if *documents.resources != resources {
                documents.resources = Arc::new(resources);
            }
        }
        Err(error) => {
            documents.fresh = false;
            tracing::debug!(
                apiservice = backend.name,
                error,
                "reading discovery of a backend"
            );
        }
    }
    let mut reread = documents.openapi_v2.is_none();
    match openapi(backend, documents.openapi.as_ref()).await {
        Ok(Some(openapi)) => {
            documents.openapi = Some(openapi);
            // the same schemas in another form: read again when these have changed
            reread = true;
        }
        Ok(None) => {}
        Err(error) => {
            reread = true;
            tracing::debug!(
                apiservice = backend.name,
                error,
                "reading OpenAPI of a backend"
            );
        }
    }
    if reread {
        match openapi_v2(backend).await {
            Ok(found) if documents.openapi_v2.as_deref() != Some(&found) => {
                documents.openapi_v2 = Some(Arc::new(found));
            }
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(
                    apiservice = backend.name,
                    error,
                    "reading OpenAPI v2 of a backend"
                );
            }
        }
    }
    backend.documents.store(Arc::new(documents));
}

/// What is merged of the backend's OpenAPI v2 document.
async fn openapi_v2(backend: &Backend) -> Result<Foreign, String> {
    let (status, _, body) = backend.get("/openapi/v2", JSON, OPENAPI_LIMIT).await?;
    if !status.is_success() {
        return Err(format!("/openapi/v2: {status}"));
    }
    let (group, version) = (backend.group.clone(), backend.version.clone());
    parsed(body, move |document| {
        Ok(Foreign::of(&document, &group, &version))
    })
    .await
    .map_err(|error| format!("/openapi/v2: {error}"))
}

/// What `take` makes of a document.
async fn parsed<T: Send + 'static>(
    body: Bytes,
    take: impl FnOnce(Value) -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let _alone = PARSING.acquire().await.map_err(|error| error.to_string())?;
    let made = tokio::task::spawn_blocking(move || {
        if body.len() > VALUES && JsonValues::of(&body) > VALUES {
            return Err(format!("it has more than {VALUES} values"));
        }
        let document = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
        take(document)
    });
    made.await.map_err(|error| error.to_string())?
}

/// The backend cannot be asked: what is known of it is old.
pub(crate) fn mark_stale(backend: &Backend) {
    let documents = backend.documents.load();
    if documents.fresh {
        backend.documents.store(Arc::new(Documents {
            fresh: false,
            ..Documents::clone(&documents)
        }));
    }
}

/// A document, and of which media type it is.
async fn read(
    backend: &Backend,
    path: &str,
    accept: &'static str,
    limit: usize,
) -> Result<(String, Bytes), String> {
    let (status, headers, body) = backend.get(path, accept, limit).await?;
    if !status.is_success() {
        return Err(format!("{path}: {status}"));
    }
    let kind = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    Ok((kind.unwrap_or_default().to_owned(), body))
}

async fn discovery(backend: &Backend) -> Result<Vec<Value>, String> {
    let (kind, body) = read(backend, "/apis", DISCOVERY_ACCEPT, DISCOVERY_LIMIT).await?;
    let (group, version) = (backend.group.clone(), backend.version.clone());
    if kind.contains("g=apidiscovery.k8s.io") {
        let found = move |value: Value| served_entries(&of_version(&value, &group, &version));
        return parsed(body, found).await;
    }
    let path = format!("/apis/{}/{}", backend.group, backend.version);
    let (_, body) = read(backend, &path, JSON, DISCOVERY_LIMIT).await?;
    let found = move |list: Value| served_entries(&from_legacy(&list, &group, &version));
    parsed(body, found).await
}

/// The entries of a version in an `APIGroupDiscoveryList`.
fn of_version(list: &Value, group: &str, version: &str) -> Vec<Value> {
    let groups = list["items"].as_array().into_iter().flatten();
    groups
        .filter(|item| item["metadata"]["name"] == group)
        .flat_map(|item| item["versions"].as_array().into_iter().flatten())
        .filter(|item| item["version"] == version)
        .flat_map(|item| item["resources"].as_array().into_iter().flatten().cloned())
        .collect()
}

/// An `APIResourceList` in the form of aggregated discovery.
fn from_legacy(list: &Value, group: &str, version: &str) -> Vec<Value> {
    let all = list["resources"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let kind = |resource: &Value| {
        let own = |key: &str, default: &str| match resource[key].as_str() {
            Some(text) if !text.is_empty() => text.to_owned(),
            _ => default.to_owned(),
        };
        json!({ "group": own("group", group), "version": own("version", version), "kind": resource["kind"] })
    };
    let mut subresources: HashMap<&str, Vec<Value>> = HashMap::new();
    let mut resources = Vec::new();
    for resource in all {
        let name = resource["name"].as_str().unwrap_or_default();
        match name.split_once('/') {
            Some((parent, rest)) => subresources.entry(parent).or_default().push(
                json!({ "subresource": rest, "responseKind": kind(resource), "verbs": resource["verbs"] }),
            ),
            None => resources.push((name, resource)),
        }
    }
    resources
        .into_iter()
        .map(|(name, resource)| {
            let scope = match resource["namespaced"].as_bool() {
                Some(true) => "Namespaced",
                _ => "Cluster",
            };
            let mut entry = Map::new();
            entry.insert("resource".into(), json!(name));
            entry.insert("responseKind".into(), kind(resource));
            entry.insert("scope".into(), json!(scope));
            for (key, from) in [
                ("singularResource", "singularName"),
                ("verbs", "verbs"),
                ("shortNames", "shortNames"),
                ("categories", "categories"),
            ] {
                if let Some(value) = resource.get(from) {
                    entry.insert(key.into(), value.clone());
                }
            }
            // One that is there twice has them once.
            if let Some(subresources) = subresources.remove(name) {
                entry.insert("subresources".into(), Value::Array(subresources));
            }
            Value::Object(entry)
        })
        .collect()
}

/// The OpenAPI v3 document of the version; `None` when it is still the one that is held, or the
/// backend has none.
async fn openapi(backend: &Backend, held: Option<&OpenApi>) -> Result<Option<OpenApi>, String> {
    let (_, index) = read(backend, "/openapi/v3", JSON, DISCOVERY_LIMIT).await?;
    let path = format!("apis/{}/{}", backend.group, backend.version);
    let url = parsed(index, move |index| {
        let url = index["paths"][path.as_str()]["serverRelativeURL"].as_str();
        Ok(url.map(str::to_owned))
    });
    let url = url.await.map_err(|error| format!("/openapi/v3: {error}"))?;
    let Some(url) = url.filter(|url| held.is_none_or(|held| held.url != *url)) else {
        return Ok(None);
    };
    let (_, body) = read(backend, &url, JSON, OPENAPI_LIMIT).await?;
    // Clients parse it: nothing that is not JSON is passed on.
    let document = tokio::task::spawn_blocking(move || {
        serde_json::from_slice::<serde::de::IgnoredAny>(&body)
            .map(|_| Document::new(&body))
            .map_err(|error| error.to_string())
    });
    let document = document.await.map_err(|error| error.to_string())??;
    Ok(Some(OpenApi {
        url,
        document: Arc::new(document),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::time::{ClockId, clock_gettime};

    #[test]
    fn legacy_discovery_becomes_aggregated_discovery() {
        let list = json!({ "resources": [
            { "name": "gauges", "singularName": "gauge", "namespaced": true, "kind": "Gauge",
              "verbs": ["get", "list"], "shortNames": ["gg"] },
            { "name": "gauges/scale", "singularName": "", "namespaced": true, "kind": "Scale",
              "group": "autoscaling", "version": "v1", "verbs": ["get"] },
        ] });
        let found = from_legacy(&list, "g.test", "v1");
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0]["responseKind"],
            json!({ "group": "g.test", "version": "v1", "kind": "Gauge" })
        );
        assert_eq!(found[0]["scope"], "Namespaced");
        assert_eq!(
            found[0]["subresources"][0]["responseKind"]["group"],
            "autoscaling"
        );
        assert_eq!(found[0]["shortNames"], json!(["gg"]));
    }

    /// Resources and subresources by the hundred thousand cost their number.
    #[test]
    fn many_resources_cost_their_number() {
        let mut all = vec![json!({ "name": "a" }); 40_000];
        all.extend(vec![json!({ "name": "a/b" }); 40_000]);
        let list = json!({ "resources": all });
        // Of this thread: what else the machine does is no cost of ours.
        let spent = || clock_gettime(ClockId::ThreadCPUTime);
        let begun = spent();
        let found = from_legacy(&list, "g.test", "v1");
        assert_eq!(found.len(), 40_000);
        let sub = |entry: &Value| entry["subresources"].as_array().map_or(0, Vec::len);
        assert_eq!(found.iter().map(sub).sum::<usize>(), 40_000);
        assert!((spent() - begun).tv_sec < 30);
    }

    #[test]
    fn only_the_version_asked_for_is_taken() {
        let list = json!({ "items": [
            { "metadata": { "name": "other" }, "versions": [{ "version": "v1", "resources": [{ "resource": "x" }] }] },
            { "metadata": { "name": "g" }, "versions": [
                { "version": "v1", "resources": [{ "resource": "a" }] },
                { "version": "v2", "resources": [{ "resource": "b" }] } ] },
        ] });
        assert_eq!(of_version(&list, "g", "v1"), [json!({ "resource": "a" })]);
        assert!(of_version(&list, "g", "v3").is_empty());
    }
}
