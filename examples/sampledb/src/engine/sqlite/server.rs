//! Rows over HTTP: `POST /rows` (a JSON list of id and value), `GET /rows`, `GET /version`, `GET /check` (whether the file
//! is whole) and `GET /dump` (the file), by the password as a bearer token.

use super::super::{ANSWER_LIMIT, Place, Row};
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use futures::TryStreamExt;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;

const BODY_LIMIT: usize = 8 << 20;
const CONNECTIONS: usize = 64;
const PATIENCE: Duration = Duration::from_secs(60);

type Body = BoxBody<Bytes, io::Error>;

/// Serves the file until the container is told to end. A write that was answered is on the disk.
pub(in crate::engine) fn serve(data: &Path, password: &str, version: u32) -> Result<()> {
    let local = super::Sqlite::open(Place::Local(data.to_owned()));
    super::super::same_version(&local, version)?;
    let file = data.join(super::FILE);
    super::whole(&file)?;
    runtime()?.block_on(listen(file, Arc::from(format!("Bearer {password}"))))
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start the runtime")
}

async fn listen(file: PathBuf, token: Arc<str>) -> Result<()> {
    let port = crate::engine::Engine::Sqlite.port();
    let listener = TcpListener::bind(("0.0.0.0", port))
        .await
        .with_context(|| format!("listen on port {port}"))?;
    let mut end = signal(SignalKind::terminate()).context("wait for SIGTERM")?;
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let place = Arc::clone(&places).acquire_owned().await?;
        let stream = tokio::select! {
            _ = end.recv() => return Ok(()),
            accepted = listener.accept() => accepted.context("accept a connection")?.0,
        };
        let (file, token) = (file.clone(), Arc::clone(&token));
        tokio::spawn(async move {
            let _place = place;
            let service = hyper::service::service_fn(move |request| {
                let (file, token) = (file.clone(), Arc::clone(&token));
                async move { Ok::<_, Infallible>(answer(request, file, &token).await) }
            });
            let mut builder = hyper::server::conn::http1::Builder::new();
            builder
                .timer(TokioTimer::new())
                .header_read_timeout(PATIENCE);
            if let Err(error) = builder
                .serve_connection(TokioIo::new(stream), service)
                .await
            {
                tracing::debug!(%error, "connection ended");
            }
        });
    }
}

fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(
        Full::new(text.into())
            .map_err(|never| match never {})
            .boxed(),
    );
    *response.status_mut() = status;
    response
}

async fn answer(request: Request<Incoming>, file: PathBuf, token: &str) -> Response<Body> {
    let given = request.headers().get(hyper::header::AUTHORIZATION);
    if given.map(hyper::header::HeaderValue::as_bytes) != Some(token.as_bytes()) {
        return text(StatusCode::UNAUTHORIZED, "wrong password\n");
    }
    match served(request, file).await {
        Ok(response) => response,
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}\n")),
    }
}

async fn served(request: Request<Incoming>, file: PathBuf) -> Result<Response<Body>> {
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    Ok(match (method, path.as_str()) {
        (Method::POST, "/rows") => {
            let body = Limited::new(request.into_body(), BODY_LIMIT).collect();
            let Ok(Ok(body)) = tokio::time::timeout(PATIENCE, body).await else {
                return Ok(text(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    "the body is too large or did not come\n",
                ));
            };
            let Ok(rows) = serde_json::from_slice::<Vec<Row>>(&body.to_bytes()) else {
                return Ok(text(StatusCode::BAD_REQUEST, "not a list of rows\n"));
            };
            blocking(move || super::insert(&file, &rows)).await?;
            text(StatusCode::OK, "stored\n")
        }
        (Method::GET, "/rows") => text(
            StatusCode::OK,
            serde_json::to_vec(&blocking(move || super::select(&file)).await?)?,
        ),
        (Method::GET, "/version") => text(
            StatusCode::OK,
            blocking(move || super::query(&file, "PRAGMA user_version;")).await?,
        ),
        (Method::GET, "/check") => {
            blocking(move || super::whole(&file)).await?;
            text(StatusCode::OK, "ok\n")
        }
        (Method::GET, "/dump") => dump(file).await?,
        _ => text(StatusCode::NOT_FOUND, "not found\n"),
    })
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .context("the work was broken off")?
}

/// A copy as of now, without a name as soon as it is open.
async fn dump(file: PathBuf) -> Result<Response<Body>> {
    let copy = PathBuf::from(format!("/tmp/dump-{:016x}", rand::random::<u64>()));
    let target = copy.clone();
    blocking(move || super::copy(&file, &target)).await?;
    let opened = tokio::fs::File::open(&copy)
        .await
        .context("open the copy")?;
    tokio::fs::remove_file(&copy)
        .await
        .context("remove the copy's name")?;
    let length = opened.metadata().await.context("size of the copy")?.len();
    let stream = futures::stream::try_unfold(opened, async |mut file| {
        let mut bytes = vec![0; 64 << 10];
        let read = file.read(&mut bytes).await?;
        bytes.truncate(read);
        Ok::<_, io::Error>((read > 0).then(|| (Bytes::from(bytes), file)))
    });
    let body = StreamBody::new(stream.map_ok(Frame::data));
    let mut response = Response::new(BodyExt::boxed(body));
    response
        .headers_mut()
        .insert(hyper::header::CONTENT_LENGTH, length.into());
    Ok(response)
}

/// Asks the server and returns its answer as text.
pub(super) fn call(place: &Place, method: &str, path: &str, body: Vec<u8>) -> Result<String> {
    runtime()?.block_on(async {
        let response = ask(place, method, path, body).await?;
        let limit = usize::try_from(ANSWER_LIMIT).unwrap_or(usize::MAX);
        let body = Limited::new(response, limit).collect().await;
        let body = body.map_err(|error| anyhow::anyhow!("read the answer to {path}: {error}"))?;
        String::from_utf8(body.to_bytes().to_vec()).context("the answer is no text")
    })
}

/// Writes the server's answer into a file.
pub(super) fn fetch(place: &Place, path: &str, to: &Path) -> Result<()> {
    runtime()?.block_on(async {
        let mut body = ask(place, "GET", path, Vec::new()).await?;
        let mut file = tokio::fs::File::create_new(to)
            .await
            .with_context(|| format!("make {}", to.display()))?;
        while let Some(frame) = tokio::time::timeout(PATIENCE, body.frame())
            .await
            .context("the server stopped sending")?
        {
            if let Ok(data) = frame.context("read the dump")?.into_data() {
                file.write_all(&data)
                    .await
                    .with_context(|| format!("write {}", to.display()))?;
            }
        }
        file.sync_all()
            .await
            .with_context(|| format!("sync {}", to.display()))
    })
}

async fn ask(place: &Place, method: &str, path: &str, body: Vec<u8>) -> Result<Incoming> {
    let Place::Remote {
        host,
        port,
        password,
    } = place
    else {
        bail!("a file is not asked over HTTP");
    };
    let connect = TcpStream::connect((host.as_str(), *port));
    let stream = tokio::time::timeout(PATIENCE, connect)
        .await
        .context("connecting took too long")?;
    let stream = stream.with_context(|| format!("connect to {host}:{port}"))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(hyper::header::HOST, host)
        .header(hyper::header::AUTHORIZATION, format!("Bearer {password}"))
        .body(Full::new(Bytes::from(body)))
        .context("make the request")?;
    let response = tokio::time::timeout(PATIENCE, sender.send_request(request));
    let response = response.await.context("no answer in time")??;
    let status = response.status();
    if !status.is_success() {
        let said = Limited::new(response.into_body(), 4096).collect().await;
        let said = said
            .map(http_body_util::Collected::to_bytes)
            .unwrap_or_default();
        bail!(
            "{method} {path}: {status}: {}",
            String::from_utf8_lossy(&said).trim()
        );
    }
    ensure!(status == StatusCode::OK, "{method} {path}: {status}");
    Ok(response.into_body())
}
