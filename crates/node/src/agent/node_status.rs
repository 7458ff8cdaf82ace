//! Registration of the node and its status.
//!
//! Capacity is what the machine has, what device plugins have, and what others wrote into the status by hand: keys of
//! extended resources that the agent does not know are kept and copied into allocatable. Only differences are written,
//! so a value set by hand between two computations is not lost.

use super::node_events;
use crate::context::Context;
use crate::eviction::Condition;
use crate::runtime_conditions::{joined, problems};
use davit_api::architecture;
use davit_api::declared_features::{
    EXTEND_WEB_SOCKETS_TO_KUBELET, IN_PLACE_INIT_CONTAINERS, IN_PLACE_POD_LEVEL_RESOURCES,
    RESTART_ALL_CONTAINERS,
};
use davit_pods::resources::Quantities;
use davit_proto::cri::v1 as cri;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerImage, Node, NodeCondition, NodeFeatures, NodeRuntimeHandler,
    NodeRuntimeHandlerFeatures, NodeStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

const DEADLINE: Duration = Duration::from_secs(15);
/// Changes that come together are computed together.
const SETTLE: Duration = Duration::from_millis(50);
/// What this agent can do that not every kubelet can, in alphabetical order (KEP-5328).
const DECLARED: [&str; 4] = [
    EXTEND_WEB_SOCKETS_TO_KUBELET,
    IN_PLACE_POD_LEVEL_RESOURCES,
    IN_PLACE_INIT_CONTAINERS,
    RESTART_ALL_CONTAINERS,
];

/// Registers the node and keeps its status until `cancel`.
pub(super) async fn run(ctx: Arc<Context>, port: u16, cancel: CancellationToken) {
    let mut devices = ctx.devices.subscribe();
    let mut node = ctx.node.subscribe();
    let mut reported: Option<Instant> = None;
    let reporting = &ctx.options.reporting;
    let mut ticks = tokio::time::interval(reporting.update);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut standing = if reporting.register {
        Standing::Unregistered
    } else {
        Standing::Awaited
    };
    let mut pressure = ctx.pressure.subscribe();
    // Whether the report says that the machine goes down.
    let mut told = false;
    let mut closed = false;
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            _ = ticks.tick() => {}
            Ok(()) = pressure.changed() => {}
            () = ctx.options.look.notified() => {}
            () = ctx.options.going_down.cancelled(), if !told => told = true,
            Ok(()) = devices.changed() => tokio::time::sleep(SETTLE).await,
            change = node.next() => match change {
                Some(_) => {}
                None => return,
            },
        }
        let work = async {
            if standing == Standing::Unregistered {
                register(&ctx).await?;
                node_events::started(&ctx);
                standing = Standing::Registered;
            }
            let node = update(&ctx, port, &mut reported).await?;
            if standing == Standing::Awaited {
                node_events::started(&ctx);
            }
            node_events::schedulable(&ctx, &node, &mut closed);
            Ok(())
        };
        match tokio::time::timeout(DEADLINE, work).await {
            // Somebody may have made it again.
            Ok(Ok(())) => standing = Standing::Registered,
            Ok(Err(kube::Error::Api(status)))
                if status.code == 404 && standing == Standing::Awaited =>
            {
                tracing::debug!("nobody has made this agent's Node yet, and it makes none itself");
            }
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => {
                if standing != Standing::Removed {
                    let node = &ctx.options.node_name;
                    tracing::warn!(%node, "the node was deleted; it is registered again when its agent starts again");
                }
                standing = Standing::Removed;
            }
            Ok(Err(error)) => {
                tracing::warn!(
                    error = davit_client::message_of(&error),
                    "cannot report the node's status"
                );
                ticks.reset_after(Duration::from_millis(500));
            }
            Err(_) => tracing::warn!("the API server did not answer the node's status report"),
        }
    }
}

/// What has become of the node's registration. Who deletes a node wants it gone: as the kubelet does, the agent registers
/// once in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Unregistered,
    /// Somebody else makes it.
    Awaited,
    Registered,
    /// It was deleted after that.
    Removed,
}

fn labels(ctx: &Context) -> BTreeMap<String, String> {
    let mut out = ctx.options.labels.clone();
    let arch = architecture();
    for (key, value) in [
        ("kubernetes.io/hostname", ctx.options.node_name.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", arch),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", arch),
    ] {
        out.insert(key.to_owned(), value.to_owned());
    }
    out
}

/// Makes the node, or puts the agent's labels onto the one that is there.
async fn register(ctx: &Context) -> Result<(), kube::Error> {
    let api: Api<Node> = Api::all(ctx.heartbeats.clone());
    let name = &ctx.options.node_name;
    let mut annotations = ctx.options.annotations.clone();
    let attach = "volumes.kubernetes.io/controller-managed-attach-detach";
    annotations.insert(attach.to_owned(), "true".to_owned());
    let metadata = json!({
        "name": name,
        "labels": labels(ctx),
        "annotations": annotations,
    });
    let mut spec = match ctx.options.taints.as_slice() {
        [] => json!({}),
        taints => json!({"taints": taints}),
    };
    let provider_id = &ctx.options.reporting.provider_id;
    if !provider_id.is_empty() {
        spec["providerID"] = json!(provider_id);
    }
    let node: Node = serde_json::from_value(json!({"metadata": metadata, "spec": spec}))
        .map_err(kube::Error::SerdeError)?;
    match api.create(&PostParams::default(), &node).await {
        Ok(_) => {
            tracing::info!(node = %name, "node registered");
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.code == 409 => {
            let patch = Patch::Merge(
                json!({"metadata": {"labels": labels(ctx), "annotations": metadata["annotations"]}}),
            );
            api.patch(name, &PatchParams::default(), &patch)
                .await
                .map(|_| ())
        }
        Err(error) => Err(error),
    }
}

/// Writes what differs; the node as it was before.
async fn update(
    ctx: &Context,
    port: u16,
    reported: &mut Option<Instant>,
) -> Result<Arc<Node>, kube::Error> {
    let api: Api<Node> = Api::all(ctx.heartbeats.clone());
    let node = match ctx.node_object() {
        Some(node) => node,
        None => Arc::new(api.get(&ctx.options.node_name).await?),
    };
    let old = node.status.clone().unwrap_or_default();
    let due = reported.is_none_or(|at| at.elapsed() >= ctx.options.reporting.report);
    let new = compute(ctx, port, &old, due).await;
    let Some(patch) = diff(&old, &new) else {
        return Ok(node);
    };
    let body = Patch::Strategic(json!({"status": patch}));
    api.patch_status(&ctx.options.node_name, &PatchParams::default(), &body)
        .await?;
    node_events::reported(ctx, &old, &new);
    if due {
        *reported = Some(Instant::now());
    }
    Ok(node)
}

async fn compute(ctx: &Context, port: u16, old: &NodeStatus, heartbeat: bool) -> NodeStatus {
    let (capacity, allocatable) = resources(ctx, old);
    ctx.addresses.look();
    let mut addresses: Vec<Value> = ctx
        .addresses
        .get()
        .iter()
        .map(|ip| json!({"type": "InternalIP", "address": ip}))
        .collect();
    addresses.push(json!({"type": "Hostname", "address": ctx.options.node_name}));
    let now = Timestamp::now();
    let old_conditions = old.conditions.as_deref().unwrap_or_default();
    let runtime = ctx.runtime.status().await;
    let mut problems = match &runtime {
        Ok(status) => problems(status),
        Err(error) => vec![format!("container runtime is down: {error}")],
    };
    if ctx.options.shutdown.is_on() && ctx.options.going_down.is_cancelled() {
        problems.push("node is shutting down".to_owned());
    }
    let pressure = ctx.pressure.borrow().clone();
    let conditions = conditions(&problems, &pressure)
        .into_iter()
        .map(|c| stamp(c, old_conditions, now, heartbeat))
        .collect();
    let fixed =
        json!({"addresses": addresses, "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}});
    let fixed: NodeStatus = serde_json::from_value(fixed).unwrap_or_default();
    NodeStatus {
        capacity: Some(capacity),
        allocatable: Some(allocatable),
        conditions: Some(conditions),
        node_info: Some(ctx.machine.info.clone()),
        images: images(ctx).await.or_else(|| old.images.clone()),
        volumes_in_use: volumes_in_use(ctx, old),
        declared_features: Some(DECLARED.map(str::to_owned).to_vec()),
        features: match &runtime {
            Ok(status) => status.features.as_ref().map(|features| NodeFeatures {
                supplemental_groups_policy: Some(features.supplemental_groups_policy),
            }),
            Err(_) => old.features.clone(),
        },
        runtime_handlers: match runtime {
            Ok(status) => handlers(status),
            Err(_) => old.runtime_handlers.clone(),
        },
        ..fixed
    }
}

/// What may not be detached. An empty list is only told where there was another.
fn volumes_in_use(ctx: &Context, old: &NodeStatus) -> Option<Vec<String>> {
    let names = match ctx.volumes.in_use() {
        Ok(names) => names,
        Err(error) => {
            tracing::warn!(%error, "not known which volumes are used");
            return old.volumes_in_use.clone();
        }
    };
    let told = old
        .volumes_in_use
        .as_ref()
        .is_some_and(|old| !old.is_empty());
    (told || !names.is_empty()).then_some(names)
}

/// A name of the form `domain/name` that is not Kubernetes' own is an extended resource.
fn is_extended(name: &str) -> bool {
    match name.split_once('/') {
        Some((domain, _)) => {
            domain != "kubernetes.io"
                && !domain.ends_with(".kubernetes.io")
                && !name.starts_with("requests.")
        }
        None => false,
    }
}

fn resources(ctx: &Context, old: &NodeStatus) -> (Quantities, Quantities) {
    let mut capacity = ctx.machine.capacity(ctx.max_pods());
    let mut allocatable = ctx.machine.allocatable(ctx.max_pods());
    for (name, quantity) in old
        .capacity
        .iter()
        .flatten()
        .filter(|(name, _)| is_extended(name))
    {
        capacity.insert(name.clone(), quantity.clone());
        allocatable.insert(name.clone(), quantity.clone());
    }
    for (name, count) in ctx.devices.node_resources() {
        capacity.insert(name.clone(), Quantity(count.capacity.to_string()));
        allocatable.insert(name, Quantity(count.allocatable.to_string()));
    }
    (capacity, allocatable)
}

/// The runtime's handlers of runtime classes, with what they can do.
fn handlers(status: cri::StatusResponse) -> Option<Vec<NodeRuntimeHandler>> {
    let handler = |handler: cri::RuntimeHandler| NodeRuntimeHandler {
        features: handler.features.map(|f| NodeRuntimeHandlerFeatures {
            recursive_read_only_mounts: Some(f.recursive_read_only_mounts),
            user_namespaces: Some(f.user_namespaces),
        }),
        name: Some(handler.name),
    };
    let list = status.runtime_handlers;
    (!list.is_empty()).then(|| list.into_iter().map(handler).collect())
}

async fn images(ctx: &Context) -> Option<Vec<ContainerImage>> {
    let list = ctx.runtime.list_images(None).await.ok()?;
    let mut out: Vec<ContainerImage> = list
        .into_iter()
        .map(|image| ContainerImage {
            names: Some(
                image
                    .repo_digests
                    .into_iter()
                    .chain(image.repo_tags)
                    .take(5)
                    .collect(),
            ),
            size_bytes: i64::try_from(image.size).ok(),
        })
        .collect();
    out.sort_by(|a, b| {
        b.size_bytes
            .cmp(&a.size_bytes)
            .then_with(|| a.names.cmp(&b.names))
    });
    out.truncate(ctx.options.reporting.max_images.unwrap_or(usize::MAX));
    Some(out)
}

fn conditions(problems: &[String], pressure: &[Condition]) -> Vec<NodeCondition> {
    let condition = |kind: &str, status: bool, reason: &str, message: String| NodeCondition {
        type_: kind.to_owned(),
        status: if status { "True" } else { "False" }.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        ..NodeCondition::default()
    };
    let ready = if problems.is_empty() {
        condition(
            "Ready",
            true,
            "KubeletReady",
            "kubelet is posting ready status".to_owned(),
        )
    } else {
        condition("Ready", false, "KubeletNotReady", joined(problems))
    };
    let short = |kind: Condition, [bad, good]: [(&str, &str); 2]| {
        let on = pressure.contains(&kind);
        let (reason, message) = if on { bad } else { good };
        condition(kind.as_str(), on, reason, message.to_owned())
    };
    vec![
        short(
            Condition::Memory,
            [
                (
                    "KubeletHasInsufficientMemory",
                    "kubelet has insufficient memory available",
                ),
                (
                    "KubeletHasSufficientMemory",
                    "kubelet has sufficient memory available",
                ),
            ],
        ),
        short(
            Condition::Disk,
            [
                ("KubeletHasDiskPressure", "kubelet has disk pressure"),
                ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            ],
        ),
        short(
            Condition::Pid,
            [
                (
                    "KubeletHasInsufficientPID",
                    "kubelet has insufficient PID available",
                ),
                (
                    "KubeletHasSufficientPID",
                    "kubelet has sufficient PID available",
                ),
            ],
        ),
        ready,
    ]
}

fn stamp(
    mut condition: NodeCondition,
    old: &[NodeCondition],
    now: Timestamp,
    heartbeat: bool,
) -> NodeCondition {
    let before = old.iter().find(|c| c.type_ == condition.type_);
    let same = before.filter(|c| c.status == condition.status);
    condition.last_transition_time =
        same.map_or(Some(Time(now)), |c| c.last_transition_time.clone());
    let unchanged = same
        .filter(|c| c.reason == condition.reason && c.message == condition.message && !heartbeat);
    condition.last_heartbeat_time =
        unchanged.map_or(Some(Time(now)), |c| c.last_heartbeat_time.clone());
    condition
}

/// The strategic merge patch from the status in the API to the computed one.
fn diff(old: &NodeStatus, new: &NodeStatus) -> Option<Value> {
    let (Ok(old), Ok(new)) = (serde_json::to_value(old), serde_json::to_value(new)) else {
        return None;
    };
    let mut patch = Map::new();
    for name in ["capacity", "allocatable"] {
        let changed = map_diff(old.get(name), new.get(name), name == "allocatable");
        if !changed.is_empty() {
            patch.insert(name.to_owned(), Value::Object(changed));
        }
    }
    for name in [
        "nodeInfo",
        "images",
        "daemonEndpoints",
        "conditions",
        "runtimeHandlers",
        "features",
        "declaredFeatures",
        "volumesInUse",
    ] {
        if let Some(value) = new.get(name).filter(|v| old.get(name) != Some(v)) {
            patch.insert(name.to_owned(), value.clone());
        }
    }
    if let Some(Value::Array(list)) = new
        .get("addresses")
        .filter(|v| old.get("addresses") != Some(v))
    {
        // The list merges by type; the whole of it is meant.
        let mut list = list.clone();
        list.push(json!({"$patch": "replace"}));
        patch.insert("addresses".to_owned(), Value::Array(list));
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

fn map_diff(old: Option<&Value>, new: Option<&Value>, remove: bool) -> Map<String, Value> {
    let empty = Map::new();
    let old = old.and_then(Value::as_object).unwrap_or(&empty);
    let new = new.and_then(Value::as_object).unwrap_or(&empty);
    let mut out = Map::new();
    for (key, value) in new {
        if old.get(key).is_none_or(|v| !same_quantity(v, value)) {
            out.insert(key.clone(), value.clone());
        }
    }
    if remove {
        out.extend(
            old.keys()
                .filter(|k| !new.contains_key(*k))
                .map(|k| (k.clone(), Value::Null)),
        );
    }
    out
}

fn same_quantity(a: &Value, b: &Value) -> bool {
    use davit_api::quantity::Quantity as Exact;
    let parse = |v: &Value| v.as_str().and_then(|s| s.parse::<Exact>().ok());
    a == b || matches!((parse(a), parse(b)), (Some(x), Some(y)) if x == y)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(value: Value) -> NodeStatus {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn only_differences_are_written() {
        let old = status(
            json!({"capacity": {"cpu": "2", "memory": "1Gi", "a.com/x": "1"}, "allocatable": {"cpu": "2", "gone.com/y": "3"}}),
        );
        let new = status(
            json!({"capacity": {"cpu": "2", "memory": "1048576Ki"}, "allocatable": {"cpu": "2", "a.com/x": "1"}}),
        );
        assert_eq!(
            diff(&old, &new),
            Some(json!({"allocatable": {"a.com/x": "1", "gone.com/y": null}}))
        );
        assert_eq!(diff(&new, &new), None);
    }

    #[test]
    fn extended_names() {
        assert!(is_extended("example.com/dongle"));
        assert!(
            !is_extended("cpu") && !is_extended("hugepages-2Mi") && !is_extended("kubernetes.io/x")
        );
    }
}
