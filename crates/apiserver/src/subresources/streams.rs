//! `log`, `exec`, `attach`, `portforward`: forwarded to the pod's node under the paths of the
//! kubelet.

use std::time::Duration;

use davit_access::query::{Query, encode};
use davit_api::field::{ErrorList, FieldError, Path};
use davit_api::status::{Qualified, Reason, Status};
use davit_registry::object;
use futures::StreamExt;
use http::header::{CONNECTION, UPGRADE};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Collected};
use serde_json::Value;

use crate::body::{RequestBody, ResponseBody};
use crate::context::{Context, HandlerResult};
use crate::posted;
use crate::proxy::{self, Forward, node_backend, uri};
use crate::server::ApiServer;
use crate::websocket::{self, Encoding};

/// How long somebody who reads a log over a WebSocket may take for a piece of it.
const READING: Duration = Duration::from_secs(4 * 3600);
const ERROR_BYTES: usize = 10_000;
/// The protocols in which a log can be read over a WebSocket.
const LOG_PROTOCOLS: [(&str, Encoding); 2] = [
    ("binary.k8s.io", Encoding::Binary),
    ("base64.binary.k8s.io", Encoding::Base64),
];
const PODS: Qualified<'static> = Qualified {
    group: "",
    name: "pods",
};

/// GET (and POST, except logs).
pub(super) async fn handle(
    server: &ApiServer,
    context: &Context,
    name: &str,
    mut request: Request<RequestBody>,
) -> HandlerResult {
    let get = context.method == Method::GET;
    if !get && (name == "log" || context.method != Method::POST) {
        return Err(Status::method_not_allowed());
    }
    let pod_name = context.info.name.as_str();
    // what is asked is looked at before of whom
    let read = (name == "log").then(|| log_params(&context.query, pod_name));
    let read = read.transpose()?;
    let pod = server
        .object("", "pods", context.namespace(), pod_name)
        .await?;
    let Some(pod) = pod else {
        return Err(Status::not_found(PODS, pod_name));
    };
    if name != "log" {
        let snapshot = server.registry().snapshot();
        if let Some(pods) = snapshot.get("", "v1", "pods") {
            posted::connected(server, context, pods).await?;
        }
    }
    let (path, query) = match (name, read) {
        (_, Some(params)) => (log(context, &pod)?, params.join("&")),
        ("portforward", _) => port_forward(context),
        _ => remote_command(context, name, &pod)?,
    };
    let node = pod
        .pointer("/spec/nodeName")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if node.is_empty() {
        if name == "log" {
            let mut nothing = Response::new(ResponseBody::empty());
            *nothing.status_mut() = StatusCode::NO_CONTENT;
            return Ok(nothing);
        }
        return Err(Status::bad_request(format!(
            "pod {pod_name} does not have a host assigned"
        )));
    }
    let backend = node_backend(server, node).await?;
    let forward = Forward {
        backend,
        uri: uri(&path, Some(&query))?,
        user: context.user.name.clone(),
        rewrite_prefix: None,
    };
    if name != "log" {
        return proxy::forward(server, forward, request).await;
    }
    // what is told over a WebSocket is told here: the node knows a plain answer only
    let session = match websocket::is_wanted(request.headers()) {
        true => Some(websocket::accept(
            &mut request,
            &LOG_PROTOCOLS,
            Encoding::Binary,
        )?),
        false => None,
    };
    for name in [UPGRADE, CONNECTION] {
        request.headers_mut().remove(name);
    }
    let response = proxy::forward(server, forward, request).await?;
    let response = checked(pod_name, response).await?;
    let Some(session) = session else {
        return Ok(response);
    };
    let lines = response.into_body().into_data_stream();
    let lines = lines.filter_map(|piece| std::future::ready(piece.ok()));
    let (response, work) = session.start(lines, READING);
    server.nodes().track(work);
    Ok(response)
}

fn log(context: &Context, pod: &Value) -> Result<String, Status> {
    let asked = context.query.get("container").unwrap_or_default();
    let container = container(asked, pod)?;
    let (namespace, name) = (context.namespace(), object::name(pod));
    Ok(format!("/containerLogs/{namespace}/{name}/{container}"))
}

/// The parameters of `PodLogOptions` in the kubelet's form.
fn log_params(query: &Query, pod: &str) -> Result<Vec<String>, Status> {
    let mut params = Vec::new();
    let mut faults: ErrorList = Vec::new();
    for flag in ["follow", "previous", "timestamps"] {
        if query.flag(flag) {
            params.push(format!("{flag}=true"));
        }
    }
    for (name, least) in [("sinceSeconds", 1), ("tailLines", 0), ("limitBytes", 1)] {
        let Some(number) = query.number(name).map_err(Status::bad_request)? else {
            continue;
        };
        if number < least {
            let why = if least == 0 {
                "must be greater than or equal to 0"
            } else {
                "must be greater than 0"
            };
            faults.push(FieldError::invalid(&Path::new(name), number, why));
        }
        params.push(format!("{name}={number}"));
    }
    if let Some(time) = query.text("sinceTime") {
        if query.text("sinceSeconds").is_some() {
            let why = "at most one of `sinceTime` or `sinceSeconds` may be specified";
            faults.push(FieldError::forbidden(&Path::root(), why));
        }
        davit_api::time::parse(time).map_err(|error| Status::bad_request(error.to_string()))?;
        params.push(format!("sinceTime={}", encode(time)));
    }
    if let Some(stream) = query.text("stream") {
        if !matches!(stream, "All" | "Stdout" | "Stderr") {
            let known = ["All", "Stderr", "Stdout"];
            faults.push(FieldError::not_supported(
                &Path::new("stream"),
                stream,
                &known,
            ));
        }
        params.push(format!("stream={}", encode(stream)));
    }
    if faults.is_empty() {
        Ok(params)
    } else {
        let kind = Qualified::new("", "PodLogOptions");
        Err(Status::invalid(kind, pod, &faults))
    }
}

fn remote_command(context: &Context, name: &str, pod: &Value) -> Result<(String, String), Status> {
    let query = &context.query;
    let container = container(query.get("container").unwrap_or_default(), pod)?;
    let mut params = Vec::new();
    for (api, kubelet) in [
        ("stdin", "input"),
        ("stdout", "output"),
        ("stderr", "error"),
        ("tty", "tty"),
    ] {
        if query.flag(api) {
            params.push(format!("{kubelet}=1"));
        }
    }
    if name == "exec" {
        params.extend(
            query
                .all("command")
                .map(|word| format!("command={}", encode(word))),
        );
    }
    let (namespace, pod) = (context.namespace(), object::name(pod));
    Ok((
        format!("/{name}/{namespace}/{pod}/{container}"),
        params.join("&"),
    ))
}

fn port_forward(context: &Context) -> (String, String) {
    let ports: Vec<String> = context
        .query
        .all("ports")
        .flat_map(|ports| ports.split(','))
        .filter(|port| !port.is_empty())
        .map(|port| format!("port={}", encode(port)))
        .collect();
    (
        format!("/portForward/{}/{}", context.namespace(), context.info.name),
        ports.join("&"),
    )
}

/// The container asked for, or the only one.
fn container(asked: &str, pod: &Value) -> Result<String, Status> {
    let names = |list: &str| -> Vec<String> {
        let containers = pod.pointer(list).and_then(Value::as_array);
        let names = containers
            .into_iter()
            .flatten()
            .filter_map(|c| c["name"].as_str());
        names.map(str::to_owned).collect()
    };
    let containers = names("/spec/containers");
    let init = names("/spec/initContainers");
    let pod_name = object::name(pod);
    if !asked.is_empty() {
        let ephemeral = names("/spec/ephemeralContainers");
        let known = containers
            .iter()
            .chain(&init)
            .chain(&ephemeral)
            .any(|name| name == asked);
        if known {
            return Ok(asked.to_owned());
        }
        return Err(Status::bad_request(format!(
            "container {asked} is not valid for pod {pod_name}"
        )));
    }
    if let [only] = containers.as_slice() {
        return Ok(only.clone());
    }
    let mut text = format!(
        "a container name must be specified for pod {pod_name}, choose one of: [{}]",
        containers.join(" ")
    );
    if !init.is_empty() {
        text.push_str(&format!(
            " or one of the init containers: [{}]",
            init.join(" ")
        ));
    }
    Err(Status::bad_request(text))
}

/// A node's refusal becomes a `Status`; logs stream through.
async fn checked(pod: &str, response: Response<ResponseBody>) -> HandlerResult {
    let code = response.status();
    if code.is_success() {
        return Ok(response);
    }
    let limited = http_body_util::Limited::new(response.into_body(), ERROR_BYTES);
    let body = limited
        .collect()
        .await
        .map(Collected::to_bytes)
        .unwrap_or_default();
    let text = String::from_utf8_lossy(&body).trim_end().to_owned();
    Err(match code {
        StatusCode::BAD_REQUEST => Status::bad_request(text),
        StatusCode::NOT_FOUND => {
            let mut status = Status::not_found(PODS, pod);
            status.message = format!("the server could not find the requested resource ({text})");
            status
        }
        StatusCode::INTERNAL_SERVER_ERROR => Status::internal(text),
        code => {
            let mut status = Status::failure(Reason::Unknown, text);
            status.code = code.as_u16();
            status
        }
    })
}
