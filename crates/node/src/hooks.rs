//! Lifecycle hooks: postStart and preStop.

use crate::dial::{PodEndpoint, connect, port_number};
use crate::probes::{BODY, HttpRequest, Outcome, exec_check, http_get};
use davit_oci::runtime::Runtime;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction, LifecycleHandler, Pod};
use std::time::Duration;

/// Runs a hook to its end.
///
/// # Errors
/// What went wrong, for the event.
pub(crate) async fn run_hook(
    runtime: &dyn Runtime,
    pod: &Pod,
    container: &Container,
    container_id: &str,
    reach: &PodEndpoint,
    hook: &LifecycleHandler,
    limit: Duration,
) -> Result<(), String> {
    if let Some(exec) = &hook.exec {
        let command = exec.command.clone().unwrap_or_default();
        return match exec_check(runtime, container_id, command.clone(), limit).await {
            Outcome::Success => Ok(()),
            Outcome::Failure(output) => Err(format!("exec hook {command:?} failed: {output}")),
            Outcome::Error(error) => Err(format!("exec hook {command:?} failed: {error}")),
        };
    }
    let work = async {
        if let Some(sleep) = &hook.sleep {
            tokio::time::sleep(Duration::from_secs(
                u64::try_from(sleep.seconds).unwrap_or(0),
            ))
            .await;
            return Ok(());
        }
        if let Some(action) = &hook.http_get {
            return http_hook(runtime, pod, container, reach, action).await;
        }
        Err("invalid handler: no exec, httpGet or sleep".to_owned())
    };
    match tokio::time::timeout(limit, work).await {
        Ok(result) => result,
        Err(_) => Err(format!("hook did not finish within {limit:?}")),
    }
}

async fn http_hook(
    runtime: &dyn Runtime,
    pod: &Pod,
    container: &Container,
    reach: &PodEndpoint,
    action: &HTTPGetAction,
) -> Result<(), String> {
    let port = port_number(&action.port, container).ok_or("couldn't resolve port of the hook")?;
    let host = action.host.as_deref().filter(|h| !h.is_empty());
    let at = host
        .map(str::to_owned)
        .or_else(|| reach.ips.first().cloned())
        .unwrap_or_else(|| "127.0.0.1".to_owned());
    let stream = connect(runtime, pod, reach, host, port)
        .await
        .map_err(|e| format!("dial tcp {at}:{port}: {e}"))?;
    let path = action.path.as_deref().unwrap_or("/");
    let request = HttpRequest {
        authority: format!("{at}:{port}"),
        path: if path.starts_with('/') {
            path.to_owned()
        } else {
            format!("/{path}")
        },
        https: action.scheme.as_deref() == Some("HTTPS"),
        headers: action
            .http_headers
            .iter()
            .flatten()
            .map(|h| (h.name.clone(), h.value.clone()))
            .collect(),
        body_limit: BODY,
    };
    let response = http_get(stream, request).await.map_err(|e| e.to_string())?;
    if response.status < 400 {
        Ok(())
    } else {
        Err(format!(
            "HTTP hook failed with statuscode: {}",
            response.status
        ))
    }
}
