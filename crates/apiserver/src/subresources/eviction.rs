//! `eviction`: deletion of a pod that its disruption budget must allow.

use std::time::Duration;

use davit_admission::Operation;
use davit_api::labels::Selector;
use davit_api::status::{Qualified, Reason, Status};
use davit_registry::{ResourceInfo, object};
use http::{Request, StatusCode};
use serde_json::{Value, json};

use super::binding::set_condition;
use crate::body::RequestBody;
use crate::context::{Context, HandlerResult};
use crate::handlers::{Expected, WriteOptions, check_namespace, decode_body, format, read_body};
use crate::ownership::Tracking;
use crate::posted::posted;
use crate::respond;
use crate::server::ApiServer;
use crate::writes::{Author, DeleteOptions, Preconditions, Writer};

const GROUP: &str = "policy";
const OLD_VERSION: &str = "v1beta1";
const PLURAL: &str = "poddisruptionbudgets";
const STALE_RETRY_SECONDS: u32 = 10;
const MAX_DISRUPTED: usize = 2000;
const RETRIES: u32 = 20;
const RETRY_PAUSE: Duration = Duration::from_millis(10);

/// `POST pods/{name}/eviction`.
pub(super) async fn handle(
    server: &ApiServer,
    context: &Context,
    pods: &ResourceInfo,
    request: Request<RequestBody>,
) -> HandlerResult {
    let options = WriteOptions::parse(context, "CreateOptions", false)?;
    let mut expected = Expected::built_in(GROUP, "v1", "Eviction")?;
    let format = format(&context.headers)?;
    let bytes = read_body(request.into_body()).await?;
    // of clients from before 1.22, whose version is the same
    if expected.has_version(&bytes, format, OLD_VERSION) {
        expected.version = OLD_VERSION;
    }
    let mut eviction = decode_body(context, &bytes, format, &expected, options.validation)?;
    eviction["apiVersion"] = json!("policy/v1");
    let name = context.info.name.as_str();
    check_namespace(true, context.namespace(), object::namespace(&eviction))?;
    if object::name(&eviction) != name {
        return Err(Status::bad_request(
            "name in URL does not match name in Eviction object",
        ));
    }
    posted(
        server,
        context,
        pods,
        Operation::Create,
        name,
        options.dry_run,
        &mut eviction,
    )
    .await?;
    let mut delete = DeleteOptions::from_value(&eviction["deleteOptions"])?;
    delete.dry_run |= options.dry_run;
    let mut races = 0;
    loop {
        match evict_once(server, context, pods, name, delete.clone()).await? {
            Attempt::Done => break,
            Attempt::Changed(_) if races < RETRIES => {
                races += 1;
                tokio::time::sleep(RETRY_PAUSE * races).await;
            }
            Attempt::Changed(status) => return Err(status),
        }
    }
    let status = Status::success_code(StatusCode::CREATED.as_u16());
    let value = serde_json::to_value(status).map_err(Status::internal)?;
    respond::document(context, StatusCode::CREATED, &value)
}

/// What became of an attempt.
enum Attempt {
    Done,
    /// The pod, to which no budget applied, is not what it was.
    Changed(Status),
}

/// Judges the pod as it is now, and evicts it as such.
async fn evict_once(
    server: &ApiServer,
    context: &Context,
    pods: &ResourceInfo,
    name: &str,
    mut delete: DeleteOptions,
) -> Result<Attempt, Status> {
    let Some(pod) = server.object("", "pods", context.namespace(), name).await? else {
        return Err(Status::not_found(pods.qualified(), name));
    };
    let is_ignored = ignores_budgets(&pod);
    let budget = match is_ignored {
        true => None,
        false => budget_of(server, context.namespace(), &pod).await?,
    };
    // Before a budget is spent on a pod that is not meant.
    is_meant(&delete.preconditions, pods, &pod)?;
    let wanted = &mut delete.preconditions;
    let is_free = wanted.resource_version.is_none();
    let (mut spared, mut not_begun) = (None, false);
    if is_ignored {
        not_begun = is_free && may_still_run(&pod);
        if not_begun {
            wanted.resource_version = Some(object::resource_version(&pod).to_owned());
        }
    } else {
        match budget {
            Some(budget) if spares(&budget, &pod) => {
                // It has to be this unhealthy still.
                spared = is_free.then_some(budget);
                wanted
                    .resource_version
                    .get_or_insert_with(|| object::resource_version(&pod).to_owned());
            }
            Some(budget) => {
                spend(server, context, object::name(&budget), name, delete.dry_run).await?;
            }
            None => {}
        }
        // what was allowed was the eviction of this very pod
        delete
            .preconditions
            .uid
            .get_or_insert_with(|| object::uid(&pod).to_owned());
    }
    match evict(server, context, pods, name, delete).await {
        Err(status) if status.reason == Reason::Conflict => match spared {
            Some(budget) => Err(stale(object::name(&budget))),
            None if not_begun => Ok(Attempt::Changed(status)),
            None => Err(status),
        },
        other => other.map(|()| Attempt::Done),
    }
}

/// Refuses to touch a pod that is another, or in another state, than who asks has seen.
fn is_meant(wanted: &Preconditions, pods: &ResourceInfo, pod: &Value) -> Result<(), Status> {
    let (kind, name) = (pods.qualified_kind(), object::name(pod));
    let (uid, version) = (object::uid(pod), object::resource_version(pod));
    match (&wanted.uid, &wanted.resource_version) {
        (Some(wanted), _) if wanted != uid => Err(Status::other_uid(kind, name, wanted, uid)),
        (_, Some(wanted)) if wanted != version => {
            Err(Status::other_version(kind, name, wanted, version))
        }
        _ => Ok(()),
    }
}

/// Says on the pod why it ends, and deletes it.
async fn evict(
    server: &ApiServer,
    context: &Context,
    pods: &ResourceInfo,
    name: &str,
    mut delete: DeleteOptions,
) -> Result<(), Status> {
    if !delete.dry_run {
        let author = Author::apiserver();
        let writer = author.writer(server, pods, context.namespace(), Tracking::Keep);
        let wanted = delete.preconditions.clone();
        let mut transform = |current: &Value| Ok(disrupted(current, &wanted));
        let marked = writer.update(name, "status", &mut transform).await?;
        if wanted.resource_version.is_some() {
            delete.preconditions.resource_version = Some(marked.revision.to_string());
        }
    }
    let writer = Writer::of(context, server, pods, context.namespace(), Tracking::Keep)
        .dry_run(delete.dry_run);
    writer.delete(name, &delete).await.map(drop)
}

/// The pod with the condition that failure policies of jobs look for (KEP-3329).
fn disrupted(pod: &Value, wanted: &Preconditions) -> Value {
    let mut new = pod.clone();
    if let Some(uid) = &wanted.uid {
        new["metadata"]["uid"] = json!(uid);
    }
    if let Some(version) = &wanted.resource_version {
        new["metadata"]["resourceVersion"] = json!(version);
    }
    let condition = json!({
        "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting", "lastTransitionTime": object::now(),
    });
    set_condition(&mut new, condition);
    new
}

/// Whether the budget lets the pod go without counting it: one that is not ready, if the budget says so or its application
/// is whole without it (KEP-3017).
fn spares(budget: &Value, pod: &Value) -> bool {
    let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
    let mut conditions = conditions.into_iter().flatten();
    if conditions.any(|c| c["type"] == "Ready" && c["status"] == "True") {
        return false;
    }
    let number = |key: &str| budget["status"][key].as_i64().unwrap_or(0);
    let (healthy, desired) = (number("currentHealthy"), number("desiredHealthy"));
    budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
        || (healthy >= desired && desired > 0)
}

/// Whether a pod that does not count as available may do so the next moment: one that has not begun yet.
fn may_still_run(pod: &Value) -> bool {
    !object::is_deleting(pod) && pod["status"]["phase"] == "Pending"
}

/// Pods that do not count as available anyway.
fn ignores_budgets(pod: &Value) -> bool {
    let phase = pod
        .pointer("/status/phase")
        .and_then(Value::as_str)
        .unwrap_or_default();
    object::is_deleting(pod) || matches!(phase, "Succeeded" | "Failed" | "Pending")
}

async fn budget_of(
    server: &ApiServer,
    namespace: &str,
    pod: &Value,
) -> Result<Option<Value>, Status> {
    let labels = pod
        .pointer("/metadata/labels")
        .cloned()
        .unwrap_or_else(|| json!({}));
    if labels.as_object().is_none_or(serde_json::Map::is_empty) {
        return Ok(None);
    }
    let budgets = server.objects(GROUP, PLURAL, Some(namespace)).await?;
    let mut matching = budgets.into_iter().filter(|budget| {
        budget
            .pointer("/spec/selector")
            .filter(|selector| selector.is_object())
            .and_then(|selector| Selector::from_label_selector(Some(selector)).ok())
            .is_some_and(|selector| selector.matches(&labels))
    });
    let first = matching.next();
    if matching.next().is_some() {
        return Err(Status::internal(
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
        ));
    }
    Ok(first)
}

/// Takes one allowed disruption from a budget.
async fn spend(
    server: &ApiServer,
    context: &Context,
    budget: &str,
    pod: &str,
    dry_run: bool,
) -> Result<(), Status> {
    let snapshot = server.registry().snapshot();
    let Some(resource) = snapshot.by_group_resource(GROUP, PLURAL) else {
        return Ok(());
    };
    let author = Author::apiserver();
    let writer = author
        .writer(server, resource, context.namespace(), Tracking::Keep)
        .dry_run(dry_run);
    for attempt in 0..RETRIES {
        let mut transform = |current: &Value| spent(current, budget, pod);
        match writer.update(budget, "status", &mut transform).await {
            Ok(_) => return Ok(()),
            Err(status) if status.reason == Reason::Conflict => {
                tokio::time::sleep(RETRY_PAUSE * (attempt + 1)).await;
            }
            // a budget that vanished forbids nothing
            Err(status) if status.reason == Reason::NotFound => return Ok(()),
            Err(status) => return Err(status),
        }
    }
    Err(Status::conflict(
        Qualified::new(GROUP, PLURAL),
        budget,
        "the budget keeps changing",
    ))
}

fn refuse(cause: &str, retry: u32) -> Status {
    Status::too_many_requests(
        "Cannot evict pod as it would violate the pod's disruption budget.",
        retry,
    )
    .with_cause("DisruptionBudget", cause, "")
}

/// What the budget says is not of now: to be asked again.
fn stale(name: &str) -> Status {
    let cause = format!("The disruption budget {name} is still being processed by the server.");
    refuse(&cause, STALE_RETRY_SECONDS)
}

fn spent(budget: &Value, name: &str, pod: &str) -> Result<Value, Status> {
    let number = |pointer: &str| budget.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
    if number("/status/observedGeneration") < number("/metadata/generation") {
        return Err(stale(name));
    }
    let allowed = number("/status/disruptionsAllowed");
    if allowed < 0 {
        return Err(Status::forbidden(
            Qualified::new(GROUP, "poddisruptionbudget"),
            name,
            "pdb disruptions allowed is negative",
        ));
    }
    let disrupted = budget
        .pointer("/status/disruptedPods")
        .and_then(Value::as_object);
    if disrupted.is_some_and(|pods| pods.len() > MAX_DISRUPTED) {
        return Err(Status::forbidden(
            Qualified::new(GROUP, "poddisruptionbudget"),
            name,
            "DisruptedPods map too big - too many evictions not confirmed by PDB controller",
        ));
    }
    if allowed == 0 {
        let (desired, healthy) = (
            number("/status/desiredHealthy"),
            number("/status/currentHealthy"),
        );
        let cause = format!(
            "The disruption budget {name} needs {desired} healthy pods and has {healthy} currently"
        );
        return Err(refuse(&cause, 0));
    }
    let mut new = budget.clone();
    new["status"]["disruptionsAllowed"] = json!(allowed - 1);
    new["status"]["disruptedPods"][pod] = json!(object::now());
    Ok(new)
}
