//! Connections into pods, for probes, hooks and port-forward.

use davit_oci::runtime::{PodConnection, Runtime, Streaming};
use davit_pods::pod::PodExt;
use davit_proto::cri::v1 as cri;
use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use std::io;
use tokio::net::TcpStream;

/// Where a pod can be reached.
#[derive(Debug, Clone)]
pub(crate) struct PodEndpoint {
    /// Its sandbox.
    pub sandbox: String,
    /// Its addresses; none for pods with an isolated network.
    pub ips: Vec<String>,
}

/// The number of a port that is given as number or as name of a container port.
pub(crate) fn port_number(port: &IntOrString, container: &Container) -> Option<u16> {
    let number = match port {
        IntOrString::Int(n) => Some(*n),
        IntOrString::String(name) => {
            let named = container
                .ports
                .iter()
                .flatten()
                .find(|p| p.name.as_deref() == Some(name));
            named
                .map(|p| p.container_port)
                .or_else(|| name.parse().ok())
        }
    };
    number
        .and_then(|n| u16::try_from(n).ok())
        .filter(|n| *n > 0)
}

/// Connects to a port of a pod: at `host` when given, else at the pod's address, else inside its network namespace.
///
/// # Errors
/// The connection's; the caller sets the deadline.
pub(crate) async fn connect(
    runtime: &dyn Runtime,
    pod: &Pod,
    reach: &PodEndpoint,
    host: Option<&str>,
    port: u16,
) -> io::Result<Box<dyn PodConnection>> {
    let address = host
        .map(str::to_owned)
        .or_else(|| reach.ips.first().cloned());
    if let Some(address) = address {
        return Ok(Box::new(
            TcpStream::connect((address.as_str(), port)).await?,
        ));
    }
    if pod.host_network() {
        return Ok(Box::new(TcpStream::connect(("127.0.0.1", port)).await?));
    }
    let request = cri::PortForwardRequest {
        pod_sandbox_id: reach.sandbox.clone(),
        port: vec![i32::from(port)],
    };
    match runtime
        .port_forward(request)
        .await
        .map_err(io::Error::other)?
    {
        Streaming::Direct(dialer) => dialer.dial(port).await.map_err(io::Error::other),
        Streaming::Url(_) => Err(io::Error::other(
            "the pod has no address and the runtime offers no direct connection",
        )),
    }
}
