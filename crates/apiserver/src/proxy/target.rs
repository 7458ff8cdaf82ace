//! Where a forwarded request goes.

use std::sync::Arc;

use std::net::IpAddr;

use davit_api::status::Status;
use davit_registry::ResourceInfo;
use serde_json::Value;

use crate::context::Context;
use crate::node_client::Destination;
use crate::server::ApiServer;

const KUBELET_PORT: u16 = 10250;
/// Addresses are tried in this order of their types.
const ADDRESS_TYPES: [&str; 5] = [
    "InternalIP",
    "Hostname",
    "InternalDNS",
    "ExternalIP",
    "ExternalDNS",
];

/// The agent of a node.
pub(crate) async fn node_backend(server: &ApiServer, node: &str) -> Result<Destination, Status> {
    let found = server.object("", "nodes", "", node).await?;
    let Some(found) = found else {
        return Err(Status::not_found(
            davit_api::status::Qualified::new("", "nodes"),
            node,
        ));
    };
    let addresses = found.pointer("/status/addresses").and_then(Value::as_array);
    let addresses = addresses.map(Vec::as_slice).unwrap_or_default();
    let host = ADDRESS_TYPES
        .iter()
        .find_map(|wanted| addresses.iter().find(|address| address["type"] == *wanted))
        .and_then(|address| address["address"].as_str());
    let Some(host) = host else {
        return Err(Status::internal(format!(
            "no preferred addresses found; known addresses: {addresses:?}"
        )));
    };
    let port = found
        .pointer("/status/daemonEndpoints/kubeletEndpoint/Port")
        .and_then(Value::as_u64)
        .and_then(|port| u16::try_from(port).ok())
        .filter(|port| *port != 0)
        .unwrap_or(KUBELET_PORT);
    let here = server.node_here(node);
    let is_named = here.is_some_and(|here| here.is_named);
    Ok(Destination {
        host: if is_named { node } else { host }.to_owned(),
        port,
        tls: true,
        node: Some(node.to_owned()),
        via: here.map(|here| here.at),
    })
}

/// The target of a proxy request: `[scheme:]name[:port]` for pods and services, `name[:port]` for
/// nodes.
pub(super) async fn of_proxy(
    server: &ApiServer,
    context: &Context,
    resource: &ResourceInfo,
) -> Result<Destination, Status> {
    let (scheme, name, port) = split(&context.info.name).ok_or_else(|| {
        Status::bad_request(format!(
            "invalid {} request \"{}\"",
            resource.row.singular, context.info.name
        ))
    })?;
    let tls = scheme == "https";
    match resource.row.plural {
        "nodes" => {
            let mut backend = node_backend(server, name).await?;
            if let Ok(port) = port.parse::<u16>() {
                if port != backend.port {
                    backend = Destination {
                        tls,
                        node: None,
                        via: None,
                        ..backend
                    };
                }
                backend.port = port;
            }
            Ok(backend)
        }
        "pods" => {
            let pod = found(server, context, resource, name).await?;
            let host = pod
                .pointer("/status/podIP")
                .and_then(Value::as_str)
                .unwrap_or_default();
            if host.parse::<IpAddr>().is_err() {
                return Err(Status::internal(format!(
                    "address not allowed: pod {name} has no address"
                )));
            }
            let port = pod_port(&pod, port);
            Ok(Destination {
                host: host.to_owned(),
                port,
                tls,
                node: None,
                via: None,
            })
        }
        _ => {
            let service = found(server, context, resource, name).await?;
            let (host, port) = endpoint(server, context, &service, name, port).await?;
            Ok(Destination {
                host,
                port,
                tls,
                node: None,
                via: None,
            })
        }
    }
}

fn split(text: &str) -> Option<(&str, &str, &str)> {
    let parts: Vec<&str> = text.split(':').collect();
    match parts.as_slice() {
        [name] => Some(("", name, "")),
        [name, port] => Some(("", name, port)),
        [scheme @ ("http" | "https" | ""), name, port] => Some((scheme, name, port)),
        _ => None,
    }
}

async fn found(
    server: &ApiServer,
    context: &Context,
    resource: &ResourceInfo,
    name: &str,
) -> Result<Arc<Value>, Status> {
    server
        .object("", resource.row.plural, context.namespace(), name)
        .await?
        .ok_or_else(|| Status::not_found(resource.qualified(), name))
}

/// The number asked for, a named port, or the first port of the first container that has one.
fn pod_port(pod: &Value, asked: &str) -> u16 {
    if let Ok(port) = asked.parse() {
        return port;
    }
    let containers = pod.pointer("/spec/containers").and_then(Value::as_array);
    let ports = containers
        .into_iter()
        .flatten()
        .flat_map(|container| container["ports"].as_array().into_iter().flatten());
    ports
        .filter(|port| asked.is_empty() || port["name"] == asked)
        .find_map(|port| {
            port["containerPort"]
                .as_u64()
                .and_then(|p| u16::try_from(p).ok())
        })
        .unwrap_or(80)
}

/// A ready address behind a service, and the port its endpoints have for the service's port.
async fn endpoint(
    server: &ApiServer,
    context: &Context,
    service: &Value,
    name: &str,
    asked: &str,
) -> Result<(String, u16), Status> {
    let ports = service.pointer("/spec/ports").and_then(Value::as_array);
    let ports = ports.map(Vec::as_slice).unwrap_or_default();
    let chosen = match asked {
        "" if ports.len() == 1 => ports.first(),
        asked => ports.iter().find(|port| {
            port["name"] == asked
                || port["port"]
                    .as_u64()
                    .is_some_and(|p| p.to_string() == asked)
        }),
    };
    let Some(chosen) = chosen else {
        return Err(Status::service_unavailable(format!(
            "no service port \"{asked}\" found for service \"{name}\""
        )));
    };
    let port_name = chosen["name"].as_str().unwrap_or_default();
    let endpoints = server
        .object("", "endpoints", context.namespace(), name)
        .await?;
    let subsets = endpoints.as_ref().and_then(|e| e["subsets"].as_array());
    for subset in subsets.into_iter().flatten() {
        let port = subset["ports"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|port| port["name"].as_str().unwrap_or_default() == port_name);
        let number = port
            .and_then(|port| port["port"].as_u64())
            .and_then(|p| u16::try_from(p).ok());
        let Some(number) = number else { continue };
        for address in subset["addresses"].as_array().into_iter().flatten() {
            if let Some(ip) = of_pod(server, context.namespace(), address).await? {
                return Ok((ip.to_owned(), number));
            }
        }
    }
    Err(Status::service_unavailable(format!(
        "no endpoints available for service \"{name}\""
    )))
}

/// The address, if it is that of a pod of the namespace: endpoints may be written by hand, and lead
/// anywhere.
async fn of_pod<'a>(
    server: &ApiServer,
    namespace: &str,
    address: &'a Value,
) -> Result<Option<&'a str>, Status> {
    let target = &address["targetRef"];
    let (Some(ip), Some(name)) = (address["ip"].as_str(), target["name"].as_str()) else {
        return Ok(None);
    };
    if target["kind"] != "Pod" || target["namespace"] != namespace {
        return Ok(None);
    }
    let pod = server.object("", "pods", namespace, name).await?;
    let ips = pod.as_ref().and_then(|pod| pod.pointer("/status/podIPs"));
    let mut ips = ips.and_then(Value::as_array).into_iter().flatten();
    Ok(ips.any(|held| held["ip"] == ip).then_some(ip))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxy_names_split_into_scheme_name_and_port() {
        assert_eq!(split("web"), Some(("", "web", "")));
        assert_eq!(split("web:8080"), Some(("", "web", "8080")));
        assert_eq!(split("https:web:"), Some(("https", "web", "")));
        assert_eq!(split("ftp:web:1"), None);
    }
}
