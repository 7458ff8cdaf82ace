//! `binding`: a pod gets its node, once.

use davit_admission::Operation;
use davit_api::field::{FieldError, Path};
use davit_api::status::{Qualified, Status};
use davit_registry::{errors, object};
use http::{Request, StatusCode};
use serde_json::{Value, json};

use crate::body::RequestBody;
use crate::context::{Context, HandlerResult};
use crate::handlers::{Expected, WriteOptions, decode_body, format, read_body};
use crate::ownership::Tracking;
use crate::posted::posted;
use crate::respond;
use crate::server::ApiServer;
use crate::writes::Writer;

/// The labels that say where the node is, whatever the pod has said before.
const TOPOLOGY: &str = "topology.kubernetes.io/";

/// `POST pods/{name}/binding` and, with an empty `name`, `POST bindings`.
pub(crate) async fn handle(
    server: &ApiServer,
    context: &Context,
    name: &str,
    request: Request<RequestBody>,
) -> HandlerResult {
    let options = WriteOptions::parse(context, "CreateOptions", false)?;
    let expected = Expected::built_in("", "v1", "Binding")?;
    let format = format(&context.headers)?;
    let bytes = read_body(request.into_body()).await?;
    let mut binding = decode_body(context, &bytes, format, &expected, options.validation)?;
    let namespace = object::namespace(&binding);
    if !namespace.is_empty() && namespace != context.namespace() {
        return Err(Status::bad_request(errors::NAMESPACE_MISMATCH));
    }
    let named = object::name(&binding).to_owned();
    if name.is_empty() && named.is_empty() {
        return Err(Status::bad_request("Name parameter required."));
    }
    let name = if name.is_empty() {
        named.as_str()
    } else {
        name
    };
    if named != name {
        return Err(Status::bad_request(
            "name in URL does not match name in Binding object",
        ));
    }
    let snapshot = server.registry().snapshot();
    let pods = snapshot
        .get("", "v1", "pods")
        .ok_or_else(|| Status::internal("pods are not served"))?;
    let through = if context.info.resource == "bindings" {
        snapshot.get("", "v1", "bindings").unwrap_or(pods)
    } else {
        pods
    };
    posted(
        server,
        context,
        through,
        Operation::Create,
        name,
        options.dry_run,
        &mut binding,
    )
    .await?;
    let node = target(name, &binding)?;
    let writer = Writer::of(context, server, pods, context.namespace(), Tracking::Keep)
        .dry_run(options.dry_run);
    let mut transform = |pod: &Value| bound(name, pod, &binding, &node);
    writer.update(name, "binding", &mut transform).await?;
    let status = Status::success_code(StatusCode::CREATED.as_u16());
    let value = serde_json::to_value(status).map_err(Status::internal)?;
    respond::document(context, StatusCode::CREATED, &value)
}

fn target(name: &str, binding: &Value) -> Result<String, Status> {
    let node = binding["target"]["name"].as_str().unwrap_or_default();
    let kind = binding["target"]["kind"].as_str().unwrap_or_default();
    let path = Path::new("target");
    let mut faults = Vec::new();
    if !matches!(kind, "" | "Node") {
        let supported = ["Node", "<empty>"];
        faults.push(FieldError::not_supported(
            &path.child("kind"),
            kind,
            &supported,
        ));
    }
    if node.is_empty() {
        faults.push(FieldError::required(&path.child("name"), ""));
    }
    if faults.is_empty() {
        Ok(node.to_owned())
    } else {
        Err(Status::invalid(
            Qualified::new("", "Binding"),
            name,
            &faults,
        ))
    }
}

fn bound(name: &str, pod: &Value, binding: &Value, node: &str) -> Result<Value, Status> {
    let conflict = |why: String| {
        Err(Status::conflict(
            Qualified::new("", "pods/binding"),
            name,
            why,
        ))
    };
    let wanted = object::uid(binding);
    let held = object::uid(pod);
    if !wanted.is_empty() && wanted != held {
        return Err(Status::uid_precondition(
            Qualified::new("", "pods"),
            name,
            wanted,
            held,
        ));
    }
    let [wanted, held] = [binding, pod].map(object::resource_version);
    if !wanted.is_empty() && wanted != held {
        let pods = Qualified::new("", "pods");
        return Err(Status::version_precondition(pods, name, wanted, held));
    }
    if object::is_deleting(pod) {
        return conflict(format!(
            "pod {name} is being deleted, cannot be assigned to a host"
        ));
    }
    let current = pod
        .pointer("/spec/nodeName")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if !current.is_empty() {
        return conflict(format!(
            "pod {name} is already assigned to node \"{current}\""
        ));
    }
    let gates = pod
        .pointer("/spec/schedulingGates")
        .and_then(Value::as_array);
    if gates.is_some_and(|gates| !gates.is_empty()) {
        return conflict(format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    let mut new = pod.clone();
    new["spec"]["nodeName"] = json!(node);
    // where it was to go is past: schedulers and autoscalers would go on counting with it
    if let Some(status) = new["status"].as_object_mut() {
        status.remove("nominatedNodeName");
    }
    for map in ["annotations", "labels"] {
        for (key, value) in binding["metadata"][map].as_object().into_iter().flatten() {
            let held = &mut new["metadata"][map][key.as_str()];
            // who binds pods does not choose by what others select them
            if held.is_null() || key.starts_with(TOPOLOGY) {
                *held = value.clone();
            }
        }
    }
    set_scheduled(&mut new);
    Ok(new)
}

fn set_scheduled(pod: &mut Value) {
    let scheduled = json!({
        "type": "PodScheduled", "status": "True", "lastProbeTime": null,
        "lastTransitionTime": object::now(),
    });
    set_condition(pod, scheduled);
}

/// Sets a condition of a pod; its transition stays when it was if it has that status already.
pub(super) fn set_condition(pod: &mut Value, mut condition: Value) {
    if !pod["status"].is_object() {
        pod["status"] = json!({});
    }
    if !pod["status"]["conditions"].is_array() {
        pod["status"]["conditions"] = json!([]);
    }
    let Some(conditions) = pod["status"]["conditions"].as_array_mut() else {
        return;
    };
    let held = conditions
        .iter_mut()
        .find(|held| held["type"] == condition["type"]);
    match held {
        Some(held) => {
            if held["status"] == condition["status"] {
                condition["lastTransitionTime"] = held["lastTransitionTime"].clone();
            }
            *held = condition;
        }
        None => conditions.push(condition),
    }
}
