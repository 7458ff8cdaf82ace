//! Keeps the objects of priority and fairness in order and in force.

use std::sync::{Arc, Weak};
use std::time::Duration;

use davit_api::flowcontrol::{AUTO_UPDATE, Upkeep, levels, schemas};
use davit_api::status::{Reason, Status};
use davit_registry::object;
use futures::future::try_join_all;
use futures::try_join;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::ownership::Tracking;
use crate::server::ApiServer;
use crate::writes::Author;
use davit_flowcontrol::{FlowControl, GROUP};

const SCHEMAS: &str = "flowschemas";
const LEVELS: &str = "prioritylevelconfigurations";
const PRODUCER: &str = "api-priority-and-fairness-config-producer-v1";
const CONSUMER: &str = "api-priority-and-fairness-config-consumer-v1";
/// Changes that come together are taken together.
const SETTLE: Duration = Duration::from_millis(20);
/// Objects are looked at again after this long even when nothing seems to have changed.
const AGAIN: Duration = Duration::from_secs(60);
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// Makes what is missing of the mandatory and suggested objects, mends what is the server's own,
/// and puts everything in force.
pub(crate) async fn ensure(server: &ApiServer, control: &FlowControl) -> Result<(), Status> {
    for (plural, wanted) in [(LEVELS, levels()), (SCHEMAS, schemas())] {
        let held = server.objects(GROUP, plural, None).await?;
        let writes = wanted.into_iter().map(|(wanted, upkeep)| {
            let name = object::name(&wanted).to_owned();
            let held = held.iter().find(|held| object::name(held) == name).cloned();
            async move { keep(server, plural, held, wanted, upkeep).await }
        });
        // together they are one write of the disk
        try_join_all(writes).await?;
    }
    apply(server, control).await
}

async fn keep(
    server: &ApiServer,
    plural: &str,
    held: Option<Value>,
    wanted: Value,
    upkeep: Upkeep,
) -> Result<(), Status> {
    let Some(held) = held else {
        return match write(server, plural, PRODUCER, Write::Create(wanted)).await {
            Err(status) if status.reason == Reason::AlreadyExists => Ok(()),
            result => result,
        };
    };
    let says = davit_api::meta::annotation(&held, AUTO_UPDATE);
    let is_ours = upkeep == Upkeep::Mandatory
        || match says {
            Some(text) => text == "true",
            None => davit_api::meta::generation(&held) == 1,
        };
    let mandatory_says_no = upkeep == Upkeep::Mandatory && says != Some("true");
    if !is_ours || (held["spec"] == wanted["spec"] && !mandatory_says_no) {
        return Ok(());
    }
    let name = object::name(&held).to_owned();
    let change = move |current: &Value| {
        let mut new = current.clone();
        new["spec"] = wanted["spec"].clone();
        new["metadata"]["annotations"][AUTO_UPDATE] = json!("true");
        new
    };
    let update = Write::Update(name, "", Box::new(change));
    write(server, plural, PRODUCER, update).await
}

type Change = Box<dyn Fn(&Value) -> Value + Send + Sync>;

enum Write {
    Create(Value),
    /// Name, subresource, what to make of the object.
    Update(String, &'static str, Change),
}

async fn write(server: &ApiServer, plural: &str, manager: &str, what: Write) -> Result<(), Status> {
    let snapshot = server.registry().snapshot();
    let Some(resource) = snapshot.by_group_resource(GROUP, plural) else {
        return Ok(());
    };
    let author = Author::apiserver();
    let writer = author.writer(server, resource, "", Tracking::Update(manager.to_owned()));
    match what {
        Write::Create(object) => writer.create(object).await.map(drop),
        Write::Update(name, subresource, change) => {
            let mut transform = |current: &Value| Ok(change(current));
            writer
                .update(&name, subresource, &mut transform)
                .await
                .map(drop)
        }
    }
}

/// Puts the stored objects in force and says in the status of schemas whether their level is there.
async fn apply(server: &ApiServer, control: &FlowControl) -> Result<(), Status> {
    let schemas = server.objects(GROUP, SCHEMAS, None).await?;
    let levels = server.objects(GROUP, LEVELS, None).await?;
    control.configure(&schemas, &levels);
    let dangling = schemas.iter().filter_map(|schema| {
        let level = schema["spec"]["priorityLevelConfiguration"]["name"]
            .as_str()
            .unwrap_or_default();
        let found = levels.iter().any(|held| object::name(held) == level);
        let condition = condition(level, found);
        let held = schema["status"]["conditions"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|held| held["type"] == "Dangling");
        let same = held.is_some_and(|held| {
            ["status", "reason", "message"]
                .iter()
                .all(|key| held[*key] == condition[*key])
        });
        (!same).then(|| (object::name(schema).to_owned(), condition))
    });
    let writes = dangling.map(|(name, condition)| async move {
        let change = move |current: &Value| with_condition(current, &condition);
        let update = Write::Update(name, "status", Box::new(change));
        match write(server, SCHEMAS, CONSUMER, update).await {
            // it has gone meanwhile, or is written again soon
            Err(status) if matches!(status.reason, Reason::NotFound | Reason::Conflict) => Ok(()),
            result => result,
        }
    });
    try_join_all(writes).await.map(drop)
}

fn condition(level: &str, found: bool) -> Value {
    let quoted = davit_api::field::quote(level);
    let (status, reason, what) = if found {
        ("False", "Found", "and it exists")
    } else {
        ("True", "NotFound", "but there is no such object")
    };
    json!({
        "type": "Dangling", "status": status, "reason": reason,
        "lastTransitionTime": object::now(),
        "message": format!(
            "This FlowSchema references the PriorityLevelConfiguration object named {quoted} {what}"
        ),
    })
}

fn with_condition(current: &Value, condition: &Value) -> Value {
    let mut new = current.clone();
    let mut conditions = current["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    conditions.retain(|held| held["type"] != "Dangling");
    conditions.push(condition.clone());
    if !new["status"].is_object() {
        new["status"] = json!({});
    }
    new["status"]["conditions"] = Value::from(conditions);
    new
}

/// Follows the objects until cancelled or the server is gone.
pub(crate) async fn follow(
    server: Weak<ApiServer>,
    control: Arc<FlowControl>,
    cancel: CancellationToken,
) {
    let work = async {
        let mut after = None;
        loop {
            let Some(held) = server.upgrade() else { return };
            let revision = held.store().current_revision().await;
            let kept = match revision {
                // the first round was made before the server began to answer
                Ok(revision) if after.is_none() => {
                    after = Some(revision);
                    apply(&held, &control).await
                }
                Ok(revision) => {
                    after = Some(revision);
                    ensure(&held, &control).await
                }
                Err(error) => Err(Status::internal(error)),
            };
            if let Err(status) = kept {
                tracing::warn!(%status, "priority and fairness objects");
                drop(held);
                tokio::time::sleep(AFTER_FAILURE).await;
                continue;
            }
            let Some(after) = after else { continue };
            let store = Arc::clone(held.store());
            drop(held);
            let watch = async |plural| {
                let prefix = format!("/registry/{GROUP}/{plural}/");
                store.watch(&prefix, after).await
            };
            let streams = try_join!(watch(SCHEMAS), watch(LEVELS));
            drop(store);
            let Ok((mut schemas, mut levels)) = streams else {
                tokio::time::sleep(AFTER_FAILURE).await;
                continue;
            };
            let changed = async {
                tokio::select! {
                    change = schemas.next() => change,
                    change = levels.next() => change,
                }
            };
            let _ = tokio::time::timeout(AGAIN, changed).await;
            tokio::time::sleep(SETTLE).await;
        }
    };
    tokio::select! {
        () = cancel.cancelled() => {}
        () = work => {}
    }
}
