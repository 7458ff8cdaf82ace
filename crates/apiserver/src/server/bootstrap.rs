//! The objects every cluster has: made at start when they are missing.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use davit_api::status::Reason;
use serde_json::{Value, json};

use super::{ApiServer, Error};
use crate::admission::SYSTEM_CLASSES;
use crate::context::Warnings;
use crate::object;
use crate::ownership::Tracking;
use crate::pki::FRONT_PROXY_CLIENT;
use crate::service_addresses::KUBERNETES_SERVICE_IP;
use crate::user::UserInfo;
use crate::writes::Writer;

const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];
const KUBERNETES: &str = "kubernetes";
/// The manager under which the server writes its own objects.
const MANAGER: &str = "kube-apiserver";
/// The address endpoints name when the server listens on loopback only, which endpoints may not.
const DOCUMENTATION: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// Namespaces, system priority classes, what aggregated API servers need to know.
pub(super) async fn objects(server: &Arc<ApiServer>) -> Result<(), Error> {
    for name in NAMESPACES {
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": { "name": name, "labels": { "kubernetes.io/metadata.name": name } },
            "spec": { "finalizers": ["kubernetes"] },
            "status": { "phase": "Active" },
        });
        ensure(server, "", "namespaces", "", namespace, false).await?;
    }
    for (name, value, description) in SYSTEM_CLASSES {
        let class = json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": { "name": name }, "value": value, "globalDefault": false,
            "description": description, "preemptionPolicy": "PreemptLowerPriority",
        });
        ensure(
            server,
            "scheduling.k8s.io",
            "priorityclasses",
            "",
            class,
            false,
        )
        .await?;
    }
    extension_authentication(server).await
}

/// The ConfigMap from which aggregated API servers learn whom to believe.
async fn extension_authentication(server: &Arc<ApiServer>) -> Result<(), Error> {
    let Some(pki) = server.pki() else {
        return Ok(());
    };
    let front_proxy = pki.front_proxy()?;
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "extension-apiserver-authentication", "namespace": "kube-system" },
        "data": {
            "client-ca-file": pki.ca_certificate(),
            "requestheader-client-ca-file": front_proxy.ca,
            "requestheader-allowed-names": json!([FRONT_PROXY_CLIENT]).to_string(),
            "requestheader-username-headers": r#"["X-Remote-User"]"#,
            "requestheader-uid-headers": r#"["X-Remote-Uid"]"#,
            "requestheader-group-headers": r#"["X-Remote-Group"]"#,
            "requestheader-extra-headers-prefix": r#"["X-Remote-Extra-"]"#,
        },
    });
    ensure(server, "", "configmaps", "kube-system", map, true).await
}

/// The Service `default/kubernetes` and the addresses behind it.
pub(super) async fn endpoints(server: &Arc<ApiServer>, listens: SocketAddr) -> Result<(), Error> {
    let labels = json!({ "component": "apiserver", "provider": "kubernetes" });
    let ip = KUBERNETES_SERVICE_IP.to_string();
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": KUBERNETES, "namespace": "default", "labels": labels },
        "spec": {
            "type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip],
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
            "internalTrafficPolicy": "Cluster", "sessionAffinity": "None",
            "ports": [{ "name": "https", "protocol": "TCP", "port": 443, "targetPort": listens.port() }],
        },
        "status": { "loadBalancer": {} },
    });
    ensure(server, "", "services", "default", service, true).await?;
    let address = reachable(server, listens);
    let port = listens.port();
    let endpoints = json!({
        "apiVersion": "v1", "kind": "Endpoints",
        "metadata": {
            "name": KUBERNETES, "namespace": "default",
            "labels": { "endpointslice.kubernetes.io/skip-mirror": "true" },
        },
        "subsets": [{
            "addresses": [{ "ip": address }],
            "ports": [{ "name": "https", "port": port, "protocol": "TCP" }],
        }],
    });
    ensure(server, "", "endpoints", "default", endpoints, true).await?;
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": KUBERNETES, "namespace": "default",
            "labels": { "kubernetes.io/service-name": KUBERNETES },
        },
        "addressType": "IPv4",
        "endpoints": [{ "addresses": [address], "conditions": { "ready": true } }],
        "ports": [{ "name": "https", "port": port, "protocol": "TCP" }],
    });
    ensure(
        server,
        "discovery.k8s.io",
        "endpointslices",
        "default",
        slice,
        true,
    )
    .await
}

fn reachable(server: &ApiServer, listens: SocketAddr) -> String {
    let fits = |ip: &IpAddr| !ip.is_loopback() && !ip.is_unspecified() && ip.is_ipv4();
    server
        .advertise_address
        .filter(fits)
        .or_else(|| Some(listens.ip()).filter(fits))
        .or_else(outgoing_address)
        .unwrap_or(IpAddr::V4(DOCUMENTATION))
        .to_string()
}

/// The address this machine uses towards others; asking the routing table sends nothing.
fn outgoing_address() -> Option<IpAddr> {
    let socket = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((DOCUMENTATION, 9)).ok()?;
    socket
        .local_addr()
        .ok()
        .map(|address| address.ip())
        .filter(|ip| !ip.is_loopback())
}

/// Creates an object; with `update` an existing one gets the wanted content again.
async fn ensure(
    server: &Arc<ApiServer>,
    group: &str,
    plural: &str,
    namespace: &str,
    wanted: Value,
    update: bool,
) -> Result<(), Error> {
    let snapshot = server.registry().snapshot();
    let name = object::name(&wanted).to_owned();
    let what = format!("{plural} {name}");
    let failed = |status| Error::Bootstrap {
        what: what.clone(),
        status: Box::new(status),
    };
    let Some(resource) = snapshot.by_group_resource(group, plural) else {
        return Ok(());
    };
    let user = UserInfo::system("system:apiserver");
    let warnings = Warnings::default();
    let writer = Writer {
        server,
        resource,
        namespace,
        user: &user,
        warnings: &warnings,
        dry_run: false,
        tracking: Tracking::Update(MANAGER.to_owned()),
    };
    let held = server
        .object(group, plural, namespace, &name)
        .await
        .map_err(failed)?;
    if held.is_none() {
        match writer.create(wanted).await {
            Ok(_) => return Ok(()),
            Err(status) if status.reason == Reason::AlreadyExists => {}
            Err(status) => return Err(failed(status)),
        }
        return Ok(());
    }
    if update {
        let mut transform = |current: &Value| Ok(with_content(current, &wanted));
        writer
            .update(&name, "", &mut transform)
            .await
            .map_err(failed)?;
    }
    Ok(())
}

/// The current object with the wanted content and labels.
fn with_content(current: &Value, wanted: &Value) -> Value {
    let mut new = current.clone();
    for (key, value) in wanted.as_object().into_iter().flatten() {
        match key.as_str() {
            "apiVersion" | "kind" | "metadata" | "status" => {}
            _ => new[key.as_str()] = value.clone(),
        }
    }
    for (key, value) in wanted["metadata"]["labels"]
        .as_object()
        .into_iter()
        .flatten()
    {
        new["metadata"]["labels"][key.as_str()] = value.clone();
    }
    new
}
