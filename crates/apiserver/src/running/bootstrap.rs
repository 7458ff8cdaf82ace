//! The objects every cluster has: made at start when they are missing.

use std::sync::Arc;

use davit_access::authn::RequestHeader;
use davit_admission::SYSTEM_CLASSES;
use davit_api::status::{Reason, Status};
use davit_netplan::ServiceRanges;
use davit_registry::object;
use serde_json::{Value, json};

use super::shared_keys;
use crate::ownership::Tracking;
use crate::server::{ApiServer, Error};
use crate::writes::Author;
use davit_pki::FRONT_PROXY_CLIENT;

const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];
pub(super) const KUBERNETES: &str = "kubernetes";
/// The manager under which the server writes its own objects.
const MANAGER: &str = "kube-apiserver";
const TOKEN_TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";
const NETWORKING: &str = "networking.k8s.io";
const RANGES: &str = "servicecidrs";

/// Namespaces, system priority classes, what aggregated API servers need to know.
pub(super) async fn objects(server: &Arc<ApiServer>) -> Result<(), Error> {
    same_range(server).await?;
    if server.shares_store() {
        shared_keys::check(server).await?;
    }
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
    let today = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC);
    let tracking = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": TOKEN_TRACKING, "namespace": "kube-system" },
        "data": { "since": today.date().to_string() },
    });
    ensure(server, "", "configmaps", "kube-system", tracking, false).await?;
    service_range(server).await?;
    let adopted = server.service_addresses().adopt(server).await;
    adopted.map_err(|status| Error::Bootstrap {
        what: "the addresses of services".to_owned(),
        status: Box::new(status),
    })?;
    extension_authentication(server).await
}

/// The ConfigMap from which aggregated API servers learn whom to believe.
pub(super) async fn extension_authentication(server: &Arc<ApiServer>) -> Result<(), Error> {
    let Some(pki) = server.pki() else {
        return Ok(());
    };
    let mut believed = Believed::own(pki.front_proxy()?.ca);
    if let Some(configured) = server.authenticator().request_header() {
        believed.join(configured, server.aggregation().has_own_identity());
    }
    let list = |names: &[String]| json!(names).to_string();
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "extension-apiserver-authentication", "namespace": "kube-system" },
        "data": {
            "client-ca-file": server.authenticator().client_authorities(),
            "requestheader-client-ca-file": believed.ca,
            "requestheader-allowed-names": list(&believed.names),
            "requestheader-username-headers": list(&believed.username),
            "requestheader-uid-headers": list(&believed.uid),
            "requestheader-group-headers": list(&believed.group),
            "requestheader-extra-headers-prefix": list(&believed.extra),
        },
    });
    ensure(server, "", "configmaps", "kube-system", map, true).await
}

/// Which front proxies aggregated API servers believe, and where these write the user.
struct Believed {
    ca: String,
    /// Empty for any.
    names: Vec<String>,
    username: Vec<String>,
    uid: Vec<String>,
    group: Vec<String>,
    extra: Vec<String>,
}

impl Believed {
    /// This server alone, with a certificate of the authority `ca`.
    fn own(ca: String) -> Self {
        let one = |text: &str| vec![text.to_owned()];
        Self {
            ca,
            names: one(FRONT_PROXY_CLIENT),
            username: one("X-Remote-User"),
            uid: one("X-Remote-Uid"),
            group: one("X-Remote-Group"),
            extra: one("X-Remote-Extra-"),
        }
    }

    /// The proxies that this server believes, too; with `alone` its own authority is left out,
    /// because it shows a certificate that was given to it.
    fn join(&mut self, configured: RequestHeader, alone: bool) {
        let join = |own: &mut Vec<String>, more: Vec<String>| {
            let known: Vec<String> = own.iter().map(|name| name.to_ascii_lowercase()).collect();
            own.extend(
                more.into_iter()
                    .filter(|name| !known.contains(&name.to_ascii_lowercase())),
            );
        };
        if alone {
            self.ca = configured.client_ca;
            self.names = configured.allowed_names;
        } else {
            self.ca = format!("{}\n{}", self.ca.trim_end(), configured.client_ca);
            match configured.allowed_names.is_empty() {
                true => self.names.clear(),
                false => join(&mut self.names, configured.allowed_names),
            }
        }
        join(&mut self.username, configured.username_headers);
        join(&mut self.uid, configured.uid_headers);
        join(&mut self.group, configured.group_headers);
        join(&mut self.extra, configured.extra_prefixes);
    }
}

/// Services have their addresses for life: a server with another range would leave them where nobody looks.
async fn same_range(server: &ApiServer) -> Result<(), Error> {
    let held = server.object(NETWORKING, RANGES, "", KUBERNETES).await;
    let held = held.map_err(|status| Error::Bootstrap {
        what: format!("{RANGES} {KUBERNETES}"),
        status: Box::new(status),
    })?;
    let asked = server.service_addresses().ranges();
    let held = held.as_ref().and_then(|range| {
        let cidrs = range.pointer("/spec/cidrs")?.as_array()?;
        Some(
            cidrs
                .iter()
                .filter_map(Value::as_str)
                .collect::<Vec<_>>()
                .join(","),
        )
    });
    let Some(held) = held else { return Ok(()) };
    // a second family may be added, for good
    let kept = held.parse::<ServiceRanges>().is_ok_and(|known| {
        known == asked || (known.all().count() == 1 && known.primary() == asked.primary())
    });
    match kept {
        true => Ok(()),
        false => Err(Error::ServiceRange { held, asked }),
    }
}

/// The range of cluster IPs as the object `kubernetes` of kind ServiceCIDR (KEP-1880), from which addresses come as from
/// those that users add.
pub(super) async fn service_range(server: &Arc<ApiServer>) -> Result<(), Error> {
    let addresses = server.service_addresses().ranges();
    let range = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": {
            "name": KUBERNETES, "finalizers": ["networking.k8s.io/service-cidr-finalizer"],
        },
        "spec": { "cidrs": addresses.all().map(|range| range.to_string()).collect::<Vec<_>>() },
    });
    ensure(server, NETWORKING, RANGES, "", range, false).await?;
    let failed = |status| Error::Bootstrap {
        what: format!("{RANGES} {KUBERNETES}"),
        status: Box::new(status),
    };
    let held = server.object(NETWORKING, RANGES, "", KUBERNETES).await;
    let held = held.map_err(failed)?;
    let cidrs = |range: &Value| {
        range
            .pointer("/spec/cidrs")
            .and_then(Value::as_array)
            .map(Vec::len)
    };
    if held.as_deref().and_then(cidrs) == Some(1) && addresses.all().count() == 2 {
        add_second_family(server, addresses).await.map_err(failed)?;
    }
    let is_ready = |range: &Value| range.pointer("/status/conditions/0").is_some();
    let snapshot = server.registry().snapshot();
    let Some(resource) = snapshot.by_group_resource(NETWORKING, RANGES) else {
        return Ok(());
    };
    if held.is_none_or(|range| is_ready(&range)) {
        return Ok(());
    }
    let author = Author::apiserver();
    let writer = author.writer(server, resource, "", Tracking::Update(MANAGER.to_owned()));
    let mut ready = |current: &Value| {
        let mut range = current.clone();
        range["status"] = json!({ "conditions": [{
            "type": "Ready", "status": "True", "reason": "",
            "message": "Kubernetes default Service CIDR is ready",
            "lastTransitionTime": object::now(),
        }] });
        Ok(range)
    };
    let written = writer.update(KUBERNETES, "status", &mut ready).await;
    written.map_err(failed).map(|_| ())
}

/// The cluster has become one of two families.
async fn add_second_family(server: &Arc<ApiServer>, ranges: ServiceRanges) -> Result<(), Status> {
    let snapshot = server.registry().snapshot();
    let Some(resource) = snapshot.by_group_resource(NETWORKING, RANGES) else {
        return Ok(());
    };
    let author = Author::apiserver();
    let writer = author.writer(server, resource, "", Tracking::Update(MANAGER.to_owned()));
    let mut both = |current: &Value| {
        let mut range = current.clone();
        let all: Vec<String> = ranges.all().map(|range| range.to_string()).collect();
        range["spec"]["cidrs"] = json!(all);
        Ok(range)
    };
    writer.update(KUBERNETES, "", &mut both).await.map(drop)
}

/// Creates an object; with `update` an existing one gets the wanted content again.
pub(super) async fn ensure(
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
    let author = Author::apiserver();
    let writer = author.writer(
        server,
        resource,
        namespace,
        Tracking::Update(MANAGER.to_owned()),
    );
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
