//! The plugins that look at nothing but the request: AlwaysAdmit, AlwaysDeny, NamespaceExists,
//! NamespaceAutoProvision, DenyServiceExternalIPs, LimitPodHardAntiAffinityTopology.

use davit_api::status::{Qualified, Status};
use serde_json::Value;

use super::{Attributes, Mutating, Operation, Validating, forbidden};

/// Lets everything pass.
pub(super) struct AlwaysAdmit;

impl Validating for AlwaysAdmit {
    async fn validate(&self, _: &Attributes<'_>, _: Option<&Value>) -> Result<(), Status> {
        Ok(())
    }
}

/// Lets nothing pass.
pub(super) struct AlwaysDeny;

impl Mutating for AlwaysDeny {
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&mut Value>,
    ) -> Result<(), Status> {
        let why = "admission control is denying all modifications";
        Err(forbidden(attributes, object.as_deref(), why))
    }
}

/// Namespaces that are missing are refused, whatever is done in them.
pub(super) struct NamespaceExists;

impl Validating for NamespaceExists {
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        _object: Option<&Value>,
    ) -> Result<(), Status> {
        let namespace = attributes.namespace;
        if namespace.is_empty() {
            return Ok(());
        }
        let server = attributes.server;
        match server.object("", "namespaces", "", namespace).await? {
            Some(_) => Ok(()),
            None => Err(Status::not_found(
                Qualified::new("", "namespaces"),
                namespace,
            )),
        }
    }
}

/// Namespaces that are missing are made.
pub(super) struct NamespaceAutoProvision;

impl Mutating for NamespaceAutoProvision {
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        _object: Option<&mut Value>,
    ) -> Result<(), Status> {
        let namespace = attributes.namespace;
        if namespace.is_empty()
            || attributes.operation != Operation::Create
            || attributes.dry_run
            || attributes.resource.is_virtual()
        {
            return Ok(());
        }
        let server = attributes.server;
        let found = server.object("", "namespaces", "", namespace).await?;
        if found.is_some() {
            return Ok(());
        }
        server.make_namespace(namespace, attributes.warnings).await
    }
}

/// Services get no external addresses that they do not have already.
pub(super) struct DenyServiceExternalIps;

impl Validating for DenyServiceExternalIps {
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let (true, true, Some(service)) =
            (attributes.is("", "services"), attributes.writes(), object)
        else {
            return Ok(());
        };
        let of = |service: &Value| {
            let list = service
                .pointer("/spec/externalIPs")
                .and_then(Value::as_array);
            list.cloned().unwrap_or_default()
        };
        let held = attributes.old.map(of).unwrap_or_default();
        if of(service).iter().all(|address| held.contains(address)) {
            return Ok(());
        }
        let why = "Use of external IPs is denied by admission control.";
        Err(forbidden(attributes, object, why))
    }
}

/// Pods may keep others away from their node, not from whole zones.
pub(super) struct LimitPodHardAntiAffinityTopology;

impl Validating for LimitPodHardAntiAffinityTopology {
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        const ONLY: &str = "kubernetes.io/hostname";
        if !attributes.is("", "pods") || !attributes.writes() {
            return Ok(());
        }
        let terms = object
            .and_then(|pod| {
                pod.pointer(
                    "/spec/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution",
                )
            })
            .and_then(Value::as_array);
        for term in terms.into_iter().flatten() {
            let key = term["topologyKey"].as_str().unwrap_or_default();
            if key != ONLY {
                let why = format!(
                    "affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey {key} but only key {ONLY} is allowed"
                );
                return Err(forbidden(attributes, object, why));
            }
        }
        Ok(())
    }
}
