//! Component statuses: how the store, the controllers and the scheduler are.

use davit_api::status::Status;
use davit_registry::{ResourceInfo, selection};
use http::StatusCode;
use serde_json::{Value, json};

use crate::context::{Context, HandlerResult};
use crate::handlers::{ListQuery, not_allowed};
use crate::negotiate::Offer;
use crate::respond::{self, Item, ListMeta};
use crate::server::ApiServer;

/// `GET` of one or all.
pub(super) async fn handle(
    server: &ApiServer,
    context: &Context,
    resource: &ResourceInfo,
) -> HandlerResult {
    let verb = context.info.verb.as_str();
    if !matches!(verb, "get" | "list") {
        return Err(not_allowed(resource, verb));
    }
    let accepted = respond::accepted(context, Offer::Objects)?;
    if verb == "get" {
        let name = context.info.name.as_str();
        let mut all = statuses(server).await.into_iter();
        let found = all.find(|item| item["metadata"]["name"] == name);
        let found = found.ok_or_else(|| Status::not_found(resource.qualified(), name))?;
        return respond::shaped(context, accepted, resource, StatusCode::OK, found);
    }
    let query = ListQuery::parse(context, false)?;
    selection::select(resource, None, &query.labels, &query.fields)?;
    let chosen = |item: &Value| {
        let name = item["metadata"]["name"].as_str();
        let is_named = |field: &str| name.filter(|_| field == "metadata.name");
        query.fields.matches(is_named) && query.labels.matches(&serde_json::Map::new())
    };
    let items = statuses(server).await.into_iter().filter(chosen);
    let items = items.map(Item::Value).collect();
    let meta = ListMeta {
        revision: server.store().revision(),
        ..ListMeta::default()
    };
    respond::list(context, accepted, resource, items, &meta)
}

async fn statuses(server: &ApiServer) -> Vec<Value> {
    let mut all: Vec<Value> = server
        .components()
        .states()
        .map(|(name, user, works)| {
            status(
                name,
                works,
                &format!("{user} watches nothing at this API server"),
            )
        })
        .collect();
    for (number, store) in server.registry().stores().all().enumerate() {
        let revision = store.current_revision().await;
        let why = revision.as_ref().err().map(ToString::to_string);
        let name = format!("etcd-{number}");
        all.push(status(&name, revision.is_ok(), &why.unwrap_or_default()));
    }
    all
}

fn status(name: &str, is_healthy: bool, else_why: &str) -> Value {
    let (status, message) = if is_healthy {
        ("True", "ok")
    } else {
        ("False", else_why)
    };
    json!({
        "kind": "ComponentStatus", "apiVersion": "v1", "metadata": { "name": name },
        "conditions": [{ "type": "Healthy", "status": status, "message": message }],
    })
}
