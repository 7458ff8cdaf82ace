//! What is done for aggregated API servers, and with their requests.
//!
//! Each [`Backend`](crate::aggregation::Backend) has a task of its own that checks it and fetches its discovery and OpenAPI
//! documents, so that a slow or dead one harms no other. For everything served here `APIService` objects are kept
//! automatically ([`register`]).

mod availability;
mod forward;
mod register;
mod supervisor;

use davit_api::status::Status;
use serde_json::Value;

use crate::aggregation::USER;
use crate::ownership::Tracking;
use crate::server::ApiServer;
use crate::writes::{Author, Writer};

pub(crate) use forward::{Peer, handle};
pub(crate) use supervisor::run;

const GROUP: &str = "apiregistration.k8s.io";
const PLURAL: &str = "apiservices";

/// The field manager of what is kept automatically.
const MANAGER: &str = "kube-aggregator";

/// Runs `write` with a writer of APIServices on behalf of the aggregator.
async fn with_writer<T, F>(server: &ApiServer, write: F) -> Result<T, Status>
where
    F: AsyncFnOnce(&Writer<'_>) -> Result<T, Status>,
{
    let snapshot = server.registry().snapshot();
    let Some(resource) = snapshot.by_group_resource(GROUP, PLURAL) else {
        return Err(Status::internal("APIServices are not served"));
    };
    let author = Author::named(USER);
    let writer = author.writer(server, resource, "", Tracking::Update(MANAGER.to_owned()));
    write(&writer).await
}

/// Sets the Available condition if it says something else.
async fn set_available(
    server: &ApiServer,
    name: &str,
    (status, reason, message): (&str, &str, String),
) -> Result<(), Status> {
    let mut transform = |current: &Value| {
        let mut new = current.clone();
        let mut conditions = current
            .pointer("/status/conditions")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        let mut condition = serde_json::json!({
            "type": "Available", "status": status, "reason": reason, "message": message,
            "lastTransitionTime": davit_registry::object::now(),
        });
        let at = conditions.iter().position(|c| c["type"] == "Available");
        if let Some(held) = at.map(|at| conditions.remove(at))
            && held["status"] == status
        {
            condition["lastTransitionTime"] = held["lastTransitionTime"].clone();
        }
        conditions.insert(at.unwrap_or(0), condition);
        new["status"]["conditions"] = Value::Array(conditions);
        Ok(new)
    };
    with_writer(server, async |writer| {
        writer.update(name, "status", &mut transform).await
    })
    .await
    .map(|_| ())
}
