//! One check: exec, HTTP, TCP or gRPC.

use super::grpc::grpc_check;
use super::http_action::{HttpActionError, HttpTarget, authority};
use crate::dial::{PodEndpoint, connect, port_number};
use davit_oci::runtime::{Error, Runtime};
use davit_pods::pod::PodExt;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction, Pod, Probe};
use std::sync::Arc;
use std::time::Duration;

/// Longest output of a check that is kept.
const MAX_OUTPUT: usize = 10 * 1024;

/// What a check said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Good.
    Success,
    /// Good, but worth a word.
    Warning(String),
    /// Bad, with the output.
    Failure(String),
    /// It could not be made.
    Error(String),
}

/// What is checked.
pub(crate) struct Target {
    /// The pod.
    pub pod: Arc<Pod>,
    /// The container.
    pub container: Container,
    /// Its runtime ID.
    pub container_id: String,
    /// Where the pod is reached.
    pub reach: PodEndpoint,
}

/// Makes one check within `timeout`.
pub(crate) async fn run_check(
    runtime: &dyn Runtime,
    probe: &Probe,
    target: &Target,
    timeout: Duration,
) -> Outcome {
    if let Some(exec) = &probe.exec {
        return exec_check(
            runtime,
            &target.container_id,
            exec.command.clone().unwrap_or_default(),
            timeout,
        )
        .await;
    }
    let network = async {
        if let Some(action) = &probe.http_get {
            http_check(runtime, action, target).await
        } else if let Some(action) = &probe.tcp_socket {
            let Some(port) = port_number(&action.port, &target.container) else {
                return bad_port();
            };
            match connect(
                runtime,
                &target.pod,
                &target.reach,
                host(action.host.as_deref()),
                port,
            )
            .await
            {
                Ok(_) => Outcome::Success,
                Err(error) => Outcome::Failure(format!(
                    "dial tcp {}: {error}",
                    address(target, action.host.as_deref(), port)
                )),
            }
        } else if let Some(action) = &probe.grpc {
            let Ok(port) = u16::try_from(action.port) else {
                return bad_port();
            };
            match connect(runtime, &target.pod, &target.reach, None, port).await {
                Ok(stream) => {
                    grpc_check(stream, action.service.as_deref().unwrap_or_default()).await
                }
                Err(error) => {
                    let at = address(target, None, port);
                    Outcome::Failure(format!(
                        "timeout: failed to connect service \"{at}\" within {timeout:?}: {error}"
                    ))
                }
            }
        } else {
            Outcome::Error("missing probe handler".to_owned())
        }
    };
    match tokio::time::timeout(timeout, network).await {
        Ok(outcome) => outcome,
        Err(_) => Outcome::Failure(timed_out(probe, target, timeout)),
    }
}

fn timed_out(probe: &Probe, target: &Target, timeout: Duration) -> String {
    if let Some(action) = &probe.http_get {
        let port = port_number(&action.port, &target.container).unwrap_or(0);
        let scheme = action.scheme.as_deref().unwrap_or("HTTP").to_lowercase();
        let at = address(target, action.host.as_deref(), port);
        let path = action.path.as_deref().unwrap_or("/");
        return format!(
            "Get \"{scheme}://{at}{path}\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
        );
    }
    if probe.grpc.is_some() {
        return format!("timeout: health rpc did not complete within {timeout:?}");
    }
    "dial tcp: i/o timeout".to_owned()
}

fn bad_port() -> Outcome {
    Outcome::Error("couldn't resolve port of the probe".to_owned())
}

fn host(given: Option<&str>) -> Option<&str> {
    given.filter(|h| !h.is_empty())
}

fn address(target: &Target, given: Option<&str>, port: u16) -> String {
    authority(given, &target.reach, port)
}

/// Runs a command in a container; a timeout counts as failure.
pub(crate) async fn exec_check(
    runtime: &dyn Runtime,
    container_id: &str,
    command: Vec<String>,
    timeout: Duration,
) -> Outcome {
    let shown = format!("{command:?}");
    // The runtime has a deadline of its own; ours is for a runtime that does not keep it.
    let call = runtime.exec_sync(container_id, command, timeout, MAX_OUTPUT);
    match tokio::time::timeout(timeout + Duration::from_secs(5), call).await {
        Ok(Ok(response)) if response.exit_code == 0 => Outcome::Success,
        Ok(Ok(response)) => {
            let mut output = response.stdout;
            output.extend(response.stderr);
            output.truncate(MAX_OUTPUT);
            Outcome::Failure(String::from_utf8_lossy(&output).into_owned())
        }
        Ok(Err(Error::DeadlineExceeded { .. })) | Err(_) => Outcome::Failure(format!(
            "command timed out: {shown} timed out after {timeout:?}"
        )),
        Ok(Err(error)) => Outcome::Error(error.to_string()),
    }
}

async fn http_check(runtime: &dyn Runtime, action: &HTTPGetAction, target: &Target) -> Outcome {
    let whom = HttpTarget {
        runtime,
        pod: &target.pod,
        container: &target.container,
        reach: &target.reach,
    };
    let response = match whom.get(action).await {
        Ok(response) => response,
        Err(HttpActionError::Port) => return bad_port(),
        Err(HttpActionError::Failed(text)) => return Outcome::Failure(text),
    };
    let (status, body) = (response.status, String::from_utf8_lossy(&response.body));
    match status {
        200..300 => Outcome::Success,
        300..400 => Outcome::Warning(format!("Probe terminated redirects, Response body: {body}")),
        _ => {
            let pod = target.pod.pod_name();
            tracing::debug!(pod, status, %body, "HTTP probe failed");
            Outcome::Failure(format!("HTTP probe failed with statuscode: {status}"))
        }
    }
}
