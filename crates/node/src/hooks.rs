//! Lifecycle hooks: postStart and preStop.

use crate::dial::PodEndpoint;
use crate::probes::{HttpActionError, HttpTarget, Outcome, exec_check};
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
            Outcome::Success | Outcome::Warning(_) => Ok(()),
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
            let target = HttpTarget {
                runtime,
                pod,
                container,
                reach,
            };
            return http_hook(target, action).await;
        }
        Err("invalid handler: no exec, httpGet or sleep".to_owned())
    };
    match tokio::time::timeout(limit, work).await {
        Ok(result) => result,
        Err(_) => Err(format!("hook did not finish within {limit:?}")),
    }
}

async fn http_hook(target: HttpTarget<'_>, action: &HTTPGetAction) -> Result<(), String> {
    match target.get(action).await {
        Ok(response) if response.status < 400 => Ok(()),
        Ok(response) => {
            let status = response.status;
            Err(format!("HTTP hook failed with statuscode: {status}"))
        }
        Err(HttpActionError::Port) => Err("couldn't resolve port of the hook".to_owned()),
        Err(HttpActionError::Failed(text)) => Err(text),
    }
}
