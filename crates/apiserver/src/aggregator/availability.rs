//! Whether a backend can be used: the checks behind the `Available` condition.

use std::time::Duration;

use davit_api::field::quote;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use serde_json::Value;

use crate::aggregation::Backend;
use crate::server::ApiServer;

/// One attempt may take this long.
const ATTEMPT: Duration = Duration::from_secs(5);
/// Attempts made at the same time; they meet different endpoints.
const ATTEMPTS: usize = 5;
/// All attempts together.
const GUARD: Duration = Duration::from_secs(6);
const LIMIT: usize = 8 << 20;

/// The condition: status, reason, message.
pub(super) type AvailabilityCondition = (&'static str, &'static str, String);

/// Of an APIService without service.
pub(super) fn local() -> AvailabilityCondition {
    let message = "Local APIServices are always available".to_owned();
    ("True", "Local", message)
}

/// Looks at the service, its endpoints and the backend's answer.
pub(super) async fn check(server: &ApiServer, backend: &Backend) -> AvailabilityCondition {
    match prerequisites(server, backend).await {
        Ok(()) => {}
        Err(verdict) => return verdict,
    }
    let path = format!("/apis/{}/{}", backend.group, backend.version);
    let url = format!("https://{}{path}", backend.authority());
    let mut attempts: FuturesUnordered<_> = (0..ATTEMPTS)
        .map(|_| attempt(backend, &path, &url))
        .collect();
    let answered = async {
        let mut last = String::new();
        while let Some(result) = attempts.next().await {
            match result {
                Ok(()) => return Ok(()),
                Err(error) => last = error,
            }
        }
        Err(last)
    };
    let failed = match tokio::time::timeout(GUARD, answered).await {
        Ok(Ok(())) => return ("True", "Passed", "all checks passed".to_owned()),
        Ok(Err(error)) => error,
        Err(_) => format!("timed out waiting for {url}"),
    };
    let message = format!("failing or missing response from {url}: {failed}");
    ("False", "FailedDiscoveryCheck", message)
}

async fn attempt(backend: &Backend, path: &str, url: &str) -> Result<(), String> {
    let asked = backend.get(path, "application/json, */*", LIMIT);
    match tokio::time::timeout(ATTEMPT, asked).await {
        Ok(Ok((status, _, _))) if status.is_success() => Ok(()),
        Ok(Ok((status, _, _))) => Err(format!("bad status from {url}: {}", status.as_u16())),
        Ok(Err(error)) => Err(format!("Get {}: {error}", quote(url))),
        Err(_) => Err(format!("Get {}: context deadline exceeded", quote(url))),
    }
}

async fn prerequisites(server: &ApiServer, backend: &Backend) -> Result<(), AvailabilityCondition> {
    let (namespace, name) = (&backend.service.namespace, &backend.service.name);
    let found = server.object("", "services", namespace, name).await;
    let at = format!("service/{name} in {}", quote(namespace));
    let service = match found {
        Ok(Some(service)) => service,
        Ok(None) => return Err(("False", "ServiceNotFound", format!("{at} is not present"))),
        Err(status) => {
            let message = format!("{at} cannot be checked due to: {}", status.message);
            return Err(("Unknown", "ServiceAccessError", message));
        }
    };
    let kind = service.pointer("/spec/type").and_then(Value::as_str);
    if kind == Some("ExternalName") {
        return Ok(());
    }
    let port = backend.service.port;
    let ports = service.pointer("/spec/ports").and_then(Value::as_array);
    let port_name = ports
        .into_iter()
        .flatten()
        .find(|p| p["port"].as_u64() == Some(u64::from(port)))
        .map(|p| p["name"].as_str().unwrap_or_default().to_owned());
    let Some(port_name) = port_name else {
        let message = format!("{at} is not listening on port {port}");
        return Err(("False", "ServicePortError", message));
    };
    match server
        .webhooks()
        .services()
        .endpoint(namespace, name, port)
        .await
    {
        Ok(_) => Ok(()),
        Err(_) if !has_slices(server, namespace, name).await => {
            let message = format!("cannot find endpointslices for {at}");
            Err(("False", "EndpointsNotFound", message))
        }
        Err(_) => {
            let message = format!(
                "endpointslices for {at} have no addresses with port name {}",
                quote(&port_name)
            );
            Err(("False", "MissingEndpoints", message))
        }
    }
}

async fn has_slices(server: &ApiServer, namespace: &str, name: &str) -> bool {
    let slices = server
        .objects("discovery.k8s.io", "endpointslices", Some(namespace))
        .await
        .unwrap_or_default();
    let of_service = slices.iter().any(|slice| {
        let label = slice.pointer("/metadata/labels/kubernetes.io~1service-name");
        label.and_then(Value::as_str) == Some(name)
    });
    let endpoints = server.object("", "endpoints", namespace, name).await;
    of_service || matches!(endpoints, Ok(Some(_)))
}
