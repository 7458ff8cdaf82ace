//! `/containerLogs`.

use super::{flag, parameter, query, text};
use crate::context::Context;
use crate::runtime_state::{ContainerRecord, State, observe};
use async_trait::async_trait;
use bytes::Bytes;
use davit_nodelogs::{LogFile, LogReader, ShownLines, Writing};
use davit_oci::runtime::Runtime;
use davit_pods::pod::PodExt;
use davit_streaming::Body;
use futures::stream;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use std::sync::Arc;

/// Asks the runtime whether a container still runs.
struct Running {
    runtime: Arc<dyn Runtime>,
    id: String,
}

#[async_trait]
impl Writing for Running {
    async fn writing(&self) -> bool {
        let status = self.runtime.container_status(&self.id).await;
        status.is_ok_and(|s| matches!(State::from_cri(s.state), State::Running | State::Created))
    }
}

pub(super) async fn serve(
    ctx: &Arc<Context>,
    request: &Request<Incoming>,
    ns: &str,
    pod: &str,
    container: &str,
) -> Response<Body> {
    let query = query(request.uri());
    let options = match options(&query) {
        Ok(options) => options,
        Err(message) => return text(StatusCode::UNPROCESSABLE_ENTITY, message),
    };
    let Some(found) = ctx.pods.find(ns, pod) else {
        return text(
            StatusCode::NOT_FOUND,
            format!("pod \"{pod}\" does not exist\n"),
        );
    };
    if found.container(container).is_none() {
        return text(
            StatusCode::NOT_FOUND,
            format!("container \"{container}\" not found in pod \"{pod}\"\n"),
        );
    }
    let record = match pick(ctx, &found, container, flag(&query, &["previous"])).await {
        Ok(record) => record,
        Err(message) => return text(StatusCode::BAD_REQUEST, message),
    };
    if record.log_path.is_empty() {
        let message = format!(
            "container \"{container}\" in pod \"{pod}\" has no log: the node's runtime keeps none (simulated nodes and those with --runtime none run no containers)\n"
        );
        return text(StatusCode::BAD_REQUEST, message);
    }
    let dir = ctx
        .paths
        .pod_log_dir(found.ns(), found.pod_name(), found.uid());
    let path = dir.join(&record.log_path);
    let log = LogFile::new(&ctx.paths, &path);
    let writer = Box::new(Running {
        runtime: ctx.runtime.clone(),
        id: record.id.clone(),
    });
    let reader = match LogReader::open(log, options, writer).await {
        Ok(reader) => reader,
        Err(error) => {
            let message = format!(
                "failed to try resolving symlinks in path {:?}: {error}\n",
                path.display()
            );
            return text(StatusCode::INTERNAL_SERVER_ERROR, message);
        }
    };
    let frames = stream::try_unfold(reader, |mut reader| async move {
        let piece = reader.next().await?;
        Ok::<_, std::io::Error>(piece.map(|bytes: Bytes| (Frame::data(bytes), reader)))
    });
    let mut response = text(StatusCode::OK, "");
    *response.body_mut() = StreamBody::new(frames).boxed_unsync();
    response
}

async fn pick(
    ctx: &Context,
    pod: &Pod,
    container: &str,
    previous: bool,
) -> Result<ContainerRecord, String> {
    let name = pod.pod_name();
    let runtime = observe(&*ctx.runtime, pod.uid())
        .await
        .map_err(|e| format!("cannot ask the runtime: {e}\n"))?;
    if previous {
        let record = runtime.previous(container).cloned();
        return record.ok_or_else(|| {
            format!("previous terminated container \"{container}\" in pod \"{name}\" not found")
        });
    }
    let started = runtime
        .containers
        .iter()
        .find(|c| c.name == container && c.state != State::Created);
    started.cloned().ok_or_else(|| {
        let status = ctx.status.get(pod.uid()).unwrap_or_default();
        let all = status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten());
        let waiting = all.filter(|s| s.name == container).find_map(|s| s.state.as_ref()?.waiting.as_ref()?.reason.clone());
        let reason = waiting.unwrap_or_else(|| "ContainerCreating".to_owned());
        match reason.as_str() {
            "ErrImagePull" => format!("container \"{container}\" in pod \"{name}\" is waiting to start: image can't be pulled"),
            "ImagePullBackOff" => format!("container \"{container}\" in pod \"{name}\" is waiting to start: trying and failing to pull image"),
            _ => format!("container \"{container}\" in pod \"{name}\" is waiting to start: {reason}"),
        }
    })
}

fn options(query: &[(String, String)]) -> Result<ShownLines, String> {
    let number = |name: &str| match parameter(query, name) {
        None => Ok(None),
        Some(text) => text
            .parse::<i64>()
            .map(Some)
            .map_err(|_| format!("{{\"message\": \"invalid {name}: {text}\"}}")),
    };
    let positive = |name: &str, n: Option<i64>| match n {
        Some(n) if n < 0 => Err(format!(
            "{{\"message\": \"{name} must be greater than or equal to 0\"}}"
        )),
        other => Ok(other.map(i64::unsigned_abs)),
    };
    let since = match (number("sinceSeconds")?, parameter(query, "sinceTime")) {
        (Some(seconds), _) => Timestamp::now()
            .checked_sub(SignedDuration::from_secs(seconds))
            .ok(),
        (None, Some(time)) => Some(
            time.parse()
                .map_err(|_| format!("{{\"message\": \"invalid sinceTime: {time}\"}}"))?,
        ),
        (None, None) => None,
    };
    Ok(ShownLines {
        follow: flag(query, &["follow"]),
        tail_lines: positive("tailLines", number("tailLines")?)?,
        since,
        timestamps: flag(query, &["timestamps"]),
        limit_bytes: positive("limitBytes", number("limitBytes")?)?,
        stream: match parameter(query, "stream") {
            Some("Stdout") => Some("stdout"),
            Some("Stderr") => Some("stderr"),
            _ => None,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_a_query() {
        let pairs = |list: &[(&str, &str)]| {
            list.iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect::<Vec<_>>()
        };
        let o = options(&pairs(&[
            ("follow", "true"),
            ("tailLines", "5"),
            ("limitBytes", "10"),
            ("stream", "All"),
        ]))
        .unwrap();
        assert!(
            o.follow && o.tail_lines == Some(5) && o.limit_bytes == Some(10) && o.stream.is_none()
        );
        assert!(options(&pairs(&[("tailLines", "x")])).is_err());
        assert!(options(&pairs(&[("tailLines", "-1")])).is_err());
        let o = options(&pairs(&[("sinceTime", "2024-01-01T00:00:00Z")])).unwrap();
        assert!(o.since.is_some());
    }
}
