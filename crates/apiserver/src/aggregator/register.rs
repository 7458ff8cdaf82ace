//! APIServices for what this server answers itself: they exist, say so, and come back.

use std::collections::BTreeMap;

use davit_api::kinds;
use davit_api::status::{Reason, Status};
use davit_registry::{Snapshot, group_priority, object};
use serde_json::{Value, json};

use super::{GROUP, PLURAL, availability, set_available, with_writer};
use crate::server::ApiServer;
use crate::writes::DeleteOptions;

const AUTOMANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";
const LABEL: &str = "/metadata/labels/kube-aggregator.kubernetes.io~1automanaged";

/// The automatic APIServices of what is served, by name.
pub(super) fn wanted(snapshot: &Snapshot) -> BTreeMap<String, Value> {
    let mut wanted = BTreeMap::new();
    for (group, versions) in snapshot.groups() {
        // Metrics servers bring an APIService of their own, and tools that install them want to make it.
        if group == GROUP || group == crate::resource_metrics::GROUP {
            continue;
        }
        let built_in = kinds::builtin()
            .resources
            .iter()
            .any(|row| row.group == group);
        for version in versions {
            let (label, priority, version_priority) = if built_in {
                (
                    "onstart",
                    group_priority(&group),
                    version_priority(&group, &version),
                )
            } else {
                ("true", 1000, 100)
            };
            let name = format!("{version}.{group}");
            let mut object = json!({
                "apiVersion": format!("{GROUP}/v1"), "kind": "APIService",
                "metadata": { "name": name, "labels": { AUTOMANAGED: label } },
                "spec": {
                    "version": version,
                    "groupPriorityMinimum": priority, "versionPriority": version_priority,
                },
            });
            // The core group is not said, neither here nor by kube-apiserver.
            if !group.is_empty() {
                object["spec"]["group"] = json!(group);
            }
            wanted.insert(name, object);
        }
    }
    wanted
}

fn version_priority(group: &str, version: &str) -> i32 {
    match (group, version) {
        ("", _) => 1,
        ("autoscaling", "v2") => 30,
        ("flowcontrol.apiserver.k8s.io" | "resource.k8s.io", "v1") => 21,
        ("apiextensions.k8s.io" | "admissionregistration.k8s.io", "v1beta1") => 12,
        ("apiextensions.k8s.io" | "admissionregistration.k8s.io", "v1alpha1") => 9,
        ("resource.k8s.io", "v1beta2") => 15,
        ("coordination.k8s.io", "v1beta1") => 13,
        ("coordination.k8s.io", "v1alpha2") => 12,
        ("internal.apiserver.k8s.io", "v1alpha1") => 9,
        ("scheduling.k8s.io", "v1alpha2") => 2,
        (_, version) if version.contains("beta") => 9,
        (_, version) if version.contains("alpha") => 1,
        _ => 15,
    }
}

/// Brings the automatic APIServices into order; `held` are all APIServices there are.
pub(super) async fn sync(server: &ApiServer, held: &[Value]) -> bool {
    let mut wanted = wanted(&server.registry().snapshot());
    let mut complete = true;
    for object in held {
        let name = object::name(object);
        let label = object.pointer(LABEL).and_then(Value::as_str);
        let result = match (wanted.remove(name), label) {
            (Some(want), Some(_)) => restore(server, name, object, &want).await,
            // One without the label is somebody's own: left alone, but a local one is available.
            (_, None) => announce(server, name, object).await,
            // A kube-apiserver on the same store serves it.
            (None, Some("onstart")) if server.shares_store() => Ok(()),
            (None, Some(_)) => remove(server, name).await,
        };
        complete &= noted(name, result);
    }
    let created = futures::future::join_all(wanted.into_iter().map(|(name, want)| async move {
        let result = create(server, want).await;
        noted(&name, result)
    }));
    created.await.into_iter().all(|done| done) && complete
}

fn noted(name: &str, result: Result<(), Status>) -> bool {
    match result {
        Ok(()) => true,
        Err(status) if matches!(status.reason, Reason::NotFound | Reason::Conflict) => false,
        Err(status) => {
            tracing::warn!(
                apiservice = name,
                error = status.message,
                "keeping an APIService"
            );
            false
        }
    }
}

async fn create(server: &ApiServer, want: Value) -> Result<(), Status> {
    let name = object::name(&want).to_owned();
    let created = with_writer(server, async |writer| writer.create(want).await).await;
    match created {
        Ok(_) => set_available(server, &name, availability::local()).await,
        Err(status) if status.reason == Reason::AlreadyExists => Ok(()),
        Err(status) => Err(status),
    }
}

/// Takes back what somebody changed in an automatic APIService.
async fn restore(server: &ApiServer, name: &str, held: &Value, want: &Value) -> Result<(), Status> {
    if held["spec"] != want["spec"] || held.pointer(LABEL) != want.pointer(LABEL) {
        let mut transform = |current: &Value| {
            let mut new = current.clone();
            new["spec"] = want["spec"].clone();
            new["metadata"]["labels"][AUTOMANAGED] =
                want["metadata"]["labels"][AUTOMANAGED].clone();
            Ok(new)
        };
        let updated = async |writer: &crate::writes::Writer<'_>| {
            writer.update(name, "", &mut transform).await
        };
        with_writer(server, updated).await?;
    }
    announce(server, name, held).await
}

/// Sees to it that a local APIService says that it is available.
async fn announce(server: &ApiServer, name: &str, held: &Value) -> Result<(), Status> {
    let is_local = held.pointer("/spec/service").is_none_or(Value::is_null);
    let conditions = held.pointer("/status/conditions").and_then(Value::as_array);
    let says_so = conditions
        .into_iter()
        .flatten()
        .any(|c| c["type"] == "Available" && c["status"] == "True" && c["reason"] == "Local");
    if !is_local || says_so {
        return Ok(());
    }
    set_available(server, name, availability::local()).await
}

async fn remove(server: &ApiServer, name: &str) -> Result<(), Status> {
    tracing::info!(
        apiservice = name,
        "its group and version is no longer served"
    );
    let options = DeleteOptions::default();
    with_writer(server, async |writer| writer.delete(name, &options).await)
        .await
        .map(|_| ())
}

/// All APIServices.
pub(super) async fn all(server: &ApiServer) -> Result<Vec<Value>, Status> {
    server.objects(GROUP, PLURAL, None).await
}
