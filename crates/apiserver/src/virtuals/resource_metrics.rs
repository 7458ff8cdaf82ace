//! `metrics.k8s.io/v1beta1`: NodeMetrics and PodMetrics, computed from what nodes tell
//! ([`resource_metrics`](crate::resource_metrics)), with the labels of the nodes and pods that they are about.

use davit_api::quantity::Quantity;
use davit_api::status::Status;
use davit_api::time::format_duration;
use davit_registry::{ResourceInfo, object};
use http::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::context::{Context, HandlerResult};
use crate::handlers::{ListQuery, find, not_allowed};
use crate::negotiate::Offer;
use crate::resource_metrics::{PodUse, Used};
use crate::respond::{self, Item};
use crate::server::ApiServer;

/// Answers a request for what nodes or pods use.
pub(super) async fn handle(
    server: &ApiServer,
    context: &Context,
    resource: &ResourceInfo,
) -> HandlerResult {
    match context.info.verb.as_str() {
        "list" => list(server, context, resource).await,
        "get" => get(server, context, resource).await,
        verb => Err(not_allowed(resource, verb)),
    }
}

/// Those that selectors let pass of the nodes or pods whose use is known.
async fn list(server: &ApiServer, context: &Context, resource: &ResourceInfo) -> HandlerResult {
    let accepted = respond::accepted(context, Offer::Objects)?;
    let query = ListQuery::parse(context, false)?;
    let snapshot = server.registry().snapshot();
    let of = snapshot.by_group_resource("", resource.row.plural);
    let of = of.ok_or_else(|| Status::internal("what is measured is not served"))?;
    let found = find(context, of, &query).await?;
    let mut items = Vec::new();
    for object in found.items {
        let object = serde_json::from_slice(&object.json()).map_err(Status::internal)?;
        items.extend(measured(server, resource, &object).map(Item::Value));
    }
    respond::list(context, accepted, resource, items, &found.meta)
}

async fn get(server: &ApiServer, context: &Context, resource: &ResourceInfo) -> HandlerResult {
    let accepted = respond::accepted(context, Offer::Objects)?;
    let (namespace, name) = (context.namespace(), context.info.name.as_str());
    let object = server
        .object("", resource.row.plural, namespace, name)
        .await?;
    let shown = object.and_then(|object| measured(server, resource, &object));
    let shown = shown.ok_or_else(|| {
        let name = match namespace {
            "" => name.to_owned(),
            namespace => format!("{namespace}/{name}"),
        };
        Status::not_found(
            davit_api::status::Qualified::new(resource.row.group, &resource.row.singular),
            &name,
        )
    })?;
    respond::shaped(context, accepted, resource, StatusCode::OK, shown)
}

/// What a node or pod uses, if that is known.
fn measured(server: &ApiServer, resource: &ResourceInfo, object: &Value) -> Option<Value> {
    let metrics = server.resource_metrics();
    let name = object::name(object);
    let mut shown = if resource.row.namespaced {
        let node = object.pointer("/spec/nodeName")?.as_str()?;
        of_pod(&metrics.pod(node, object::namespace(object), name)?)?
    } else {
        let used = metrics.node(name)?;
        let mut shown = when(&used)?;
        shown["usage"] = usage(&used)?;
        shown
    };
    shown["kind"] = resource.row.kind.into();
    shown["apiVersion"] = resource.api_version().into();
    shown["metadata"] = json!({"name": name, "creationTimestamp": object::now()});
    for key in ["namespace", "labels"] {
        if let Some(value) = object["metadata"].get(key) {
            shown["metadata"][key] = value.clone();
        }
    }
    Some(shown)
}

/// Its containers, and the oldest of their times.
fn of_pod(used: &PodUse) -> Option<Value> {
    let mut shown = when(used.values().min_by_key(|used| used.at)?)?;
    let containers = used
        .iter()
        .map(|(name, used)| Some(json!({"name": name, "usage": usage(used)?})));
    shown["containers"] = containers.collect::<Option<Value>>()?;
    Some(shown)
}

fn when(used: &Used) -> Option<Value> {
    let at = Timestamp::from_nanosecond(i128::from(used.at)).ok()?;
    Some(json!({
        "timestamp": object::seconds(at),
        "window": format_duration(used.window),
    }))
}

fn usage(used: &Used) -> Option<Value> {
    let cpu = Quantity::parse(&format!("{}n", used.cpu)).ok()?;
    let memory = Quantity::from_bytes(i64::try_from(used.memory).ok()?);
    Some(json!({"cpu": cpu.to_string(), "memory": memory.to_string()}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_has_the_time_of_its_oldest_container() {
        let used = |cpu, at| Used {
            cpu,
            memory: 3 << 20,
            at,
            window: 15_200_000_000,
        };
        let pod = [
            ("a".to_owned(), used(250_000_001, 9_000_000_000)),
            ("b".to_owned(), used(250_000_000, 8_000_000_000)),
        ];
        let shown = of_pod(&pod.into()).unwrap();
        assert_eq!(shown["timestamp"], "1970-01-01T00:00:08Z");
        assert_eq!(shown["window"], "15.2s");
        assert_eq!(
            shown["containers"],
            json!([
                {"name": "a", "usage": {"cpu": "250000001n", "memory": "3Mi"}},
                {"name": "b", "usage": {"cpu": "250m", "memory": "3Mi"}},
            ])
        );
        assert!(of_pod(&PodUse::default()).is_none());
    }
}
