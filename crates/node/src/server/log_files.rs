//! `/logs/`: the files below the directory of logs (`/var/log`), as the kubelet's `enableSystemLogHandler` serves them, and with
//! `enableSystemLogQuery` the logs of services (KEP-2258).

use super::{query, set_type, text};
use crate::context::Context;
use bytes::{Bytes, BytesMut};
use davit_nodelogs::{Asked, LogPath, LogQuery, QueryFault, answer, open, page};
use davit_streaming::Body;
use futures::{StreamExt as _, stream};
use http::{HeaderValue, Response, StatusCode, Uri, header};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::fs::File;
use tokio::io::AsyncReadExt;

const CHUNK: usize = 64 * 1024;
/// How long opening may take.
const OPENING: Duration = Duration::from_secs(10);

/// Answers for a path of the request, percent-encoded, that begins with `/logs`.
pub(super) async fn serve(ctx: &Context, uri: &Uri, path: &str) -> Response<Body> {
    let below = path.strip_prefix("/logs").unwrap_or(path);
    let logs = ctx.paths.log_root().parent().map(Path::to_owned);
    let logs = logs.unwrap_or_else(|| PathBuf::from("/"));
    let asked = match asked(ctx, uri, below) {
        Ok(asked) => asked,
        Err((code, why)) => return text(code, format!("{why}\n")),
    };
    match asked {
        Some(Asked::Services(services)) => {
            let pieces = answer(services, logs).await;
            let mut response = text(StatusCode::OK, "");
            *response.body_mut() =
                StreamBody::new(pieces.map(|piece| piece.map(Frame::data))).boxed_unsync();
            response
        }
        Some(Asked::File(file)) => at(logs, file, path).await,
        None => {
            let decoded = percent_encoding::percent_decode_str(below).decode_utf8_lossy();
            let relative = PathBuf::from(decoded.trim_start_matches('/'));
            at(logs, relative, path).await
        }
    }
}

/// What the parameters of a request ask for, if there are some.
fn asked(ctx: &Context, uri: &Uri, below: &str) -> Result<Option<Asked>, (StatusCode, String)> {
    let refused = |fault: QueryFault| {
        let code = match fault {
            QueryFault::Malformed(_) => StatusCode::BAD_REQUEST,
            QueryFault::Unacceptable(_) => StatusCode::NOT_ACCEPTABLE,
        };
        (code, fault.to_string())
    };
    let Some(asked) = LogQuery::parse(&query(uri)).map_err(refused)? else {
        return Ok(None);
    };
    if !ctx.options.system_log_query {
        let why = "log queries are disabled (enableSystemLogQuery in the node's configuration)";
        return Err((StatusCode::METHOD_NOT_ALLOWED, why.to_owned()));
    }
    if !below.trim_matches('/').is_empty() {
        let why = "path not allowed in query mode";
        return Err((StatusCode::NOT_ACCEPTABLE, why.to_owned()));
    }
    asked.asked().map(Some).map_err(refused)
}

/// The file or directory at `relative` below `logs`; `path` is that of the request.
async fn at(logs: PathBuf, relative: PathBuf, path: &str) -> Response<Body> {
    let opening = tokio::task::spawn_blocking(move || open(&logs, &relative));
    let found = match tokio::time::timeout(OPENING, opening).await {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => Err(io::Error::other(error)),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    };
    match found {
        Ok(LogPath::File(file)) => contents(File::from_std(file)),
        Ok(LogPath::Directory(_)) if !path.ends_with('/') => redirect(&format!("{path}/")),
        Ok(LogPath::Directory(names)) => {
            let mut response = text(StatusCode::OK, page(&names));
            set_type(&mut response, "text/html; charset=utf-8");
            response
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            text(StatusCode::NOT_FOUND, "404 page not found\n")
        }
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            text(StatusCode::GATEWAY_TIMEOUT, "the disk does not answer\n")
        }
        // a link that leads out, a socket, a directory that is too large
        Err(error) => text(StatusCode::FORBIDDEN, format!("{error}\n")),
    }
}

fn contents(file: File) -> Response<Body> {
    let pieces = stream::try_unfold(file, |mut file| async move {
        let mut piece = BytesMut::with_capacity(CHUNK);
        let read = file.read_buf(&mut piece).await?;
        let frame = Frame::data(Bytes::from(piece));
        Ok::<_, io::Error>((read > 0).then_some((frame, file)))
    });
    let mut response = text(StatusCode::OK, "");
    *response.body_mut() = StreamBody::new(pieces).boxed_unsync();
    response
}

fn redirect(to: &str) -> Response<Body> {
    let mut response = text(StatusCode::MOVED_PERMANENTLY, "");
    if let Ok(to) = HeaderValue::from_str(to) {
        response.headers_mut().insert(header::LOCATION, to);
    }
    response
}
