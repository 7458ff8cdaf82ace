//! Component statuses: how the store, the controllers and the scheduler are.
//!
//! kube-apiserver asks for `/healthz` at the ports that kube-controller-manager and kube-scheduler have by default on its own
//! machine. Here they may be in this process or anywhere, and one that works watches this server: that is counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use davit_api::status::Status;
use davit_registry::{ResourceInfo, selection};
use http::StatusCode;
use serde_json::{Value, json};

use crate::context::{Context, HandlerResult};
use crate::handlers::{ListQuery, not_allowed};
use crate::negotiate::Offer;
use crate::respond::{self, Item, ListMeta};
use crate::server::ApiServer;

/// The components beside the store, and whom they are known as.
const KNOWN: [(&str, &str); 2] = [
    ("controller-manager", "system:kube-controller-manager"),
    ("scheduler", "system:kube-scheduler"),
];

/// How many watches the components have open.
#[derive(Debug, Default)]
pub(crate) struct Components([Arc<AtomicUsize>; KNOWN.len()]);

/// An open watch of a component.
#[derive(Debug)]
pub(crate) struct Presence(Arc<AtomicUsize>);

impl Components {
    /// Counts a watch of `user` until the answer is dropped, if it is one of the components.
    pub(crate) fn watches(&self, user: &str) -> Option<Presence> {
        let at = KNOWN.iter().position(|(_, known)| *known == user)?;
        let count = Arc::clone(&self.0[at]);
        count.fetch_add(1, Ordering::Relaxed);
        Some(Presence(count))
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

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
    let mut all: Vec<Value> = KNOWN
        .iter()
        .zip(&server.components().0)
        .map(|((name, user), watches)| {
            let works = watches.load(Ordering::Relaxed) > 0;
            status(
                name,
                works,
                &format!("{user} watches nothing at this API server"),
            )
        })
        .collect();
    let stores = server.store().current_revision().await;
    let why = stores.as_ref().err().map(ToString::to_string);
    all.push(status("etcd-0", stores.is_ok(), &why.unwrap_or_default()));
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
