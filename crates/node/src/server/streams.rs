//! `/exec`, `/attach`, `/run` and `/portForward`.

use super::{Shared, flag, parameter, query, text};
use crate::context::Context;
use crate::runtime_state::{PodRuntime, State, observe};
use davit_listen::Share;
use davit_oci::runtime::{ExecSession, Streaming, TerminalSize};
use davit_pods::pod::PodExt;
use davit_proto::cri::v1 as cri;
use davit_streaming::remotecommand::{ExitStatus, Pending, Process, Streams, negotiate_session};
use davit_streaming::{Body, portforward, proxy};
use http::{Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use k8s_openapi::api::core::v1::Pod;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

const DIAL: Duration = Duration::from_secs(10);
/// How much of each stream `/run` answers with.
const RUN_OUTPUT: usize = 16 << 20;
/// Terminal size changes that wait; more are dropped, only the last matters.
const SIZES: usize = 4;

type Failure = Box<Response<Body>>;

fn fail(status: StatusCode, message: impl Into<String>) -> Failure {
    Box::new(text(status, message.into()))
}

fn internal(error: impl std::fmt::Display) -> Failure {
    fail(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

pub(super) async fn route(
    state: &Arc<Shared>,
    request: Request<Incoming>,
    parts: &[&str],
) -> Response<Body> {
    let result = match parts {
        ["portForward", ns, pod] | ["portForward", ns, pod, _] => {
            port_forward(state, request, ns, pod).await
        }
        [verb, ns, pod, container] | [verb, ns, pod, _, container] if *verb != "portForward" => {
            command(state, request, verb, ns, pod, container).await
        }
        _ => Err(fail(StatusCode::NOT_FOUND, "404 page not found\n")),
    };
    result.unwrap_or_else(|failure| *failure)
}

async fn find(ctx: &Context, ns: &str, name: &str) -> Result<(Arc<Pod>, PodRuntime), Failure> {
    let pod = ctx
        .pods
        .find(ns, name)
        .ok_or_else(|| fail(StatusCode::NOT_FOUND, "pod does not exist"))?;
    let runtime = observe(&*ctx.runtime, pod.uid()).await.map_err(internal)?;
    Ok((pod, runtime))
}

async fn command(
    state: &Arc<Shared>,
    request: Request<Incoming>,
    verb: &str,
    ns: &str,
    name: &str,
    container: &str,
) -> Result<Response<Body>, Failure> {
    let ctx = &state.ctx;
    let query = query(request.uri());
    let (pod, runtime) = find(ctx, ns, name).await?;
    let running = runtime
        .latest(container)
        .filter(|c| c.state == State::Running);
    let Some(record) = running else {
        return Err(internal(format!("container not found (\"{container}\")")));
    };
    let words = |key: &str| {
        query
            .iter()
            .filter(|(k, _)| k == key)
            .map(|(_, v)| v.clone())
            .collect::<Vec<_>>()
    };
    if verb == "run" {
        let line = parameter(&query, "cmd").unwrap_or_default();
        let command = line.split(' ').map(str::to_owned).collect();
        let output = ctx
            .runtime
            .exec_sync(&record.id, command, Duration::from_secs(120), RUN_OUTPUT)
            .await
            .map_err(internal)?;
        return Ok(text(
            StatusCode::OK,
            [output.stdout, output.stderr].concat(),
        ));
    }
    let tty = flag(&query, &["tty"]);
    let streams = Streams {
        stdin: flag(&query, &["input", "stdin"]),
        stdout: flag(&query, &["output", "stdout"]),
        stderr: flag(&query, &["error", "stderr"]) && !tty,
        tty,
    };
    if !streams.stdin && !streams.stdout && !streams.stderr {
        return Err(fail(
            StatusCode::BAD_REQUEST,
            "you must specify at least 1 of stdin, stdout, stderr",
        ));
    }
    let started = if verb == "exec" {
        let request = cri::ExecRequest {
            container_id: record.id.clone(),
            cmd: words("command"),
            tty,
            stdin: streams.stdin,
            stdout: streams.stdout,
            stderr: streams.stderr,
            ..Default::default()
        };
        Start::Exec(request, state.left.try_take(pod.uid(), 1))
    } else {
        // A terminal of the container decides, not the caller's wish.
        let tty = tty
            && pod
                .container(container)
                .is_some_and(|(_, c)| c.tty == Some(true));
        let request = cri::AttachRequest {
            container_id: record.id.clone(),
            stdin: streams.stdin,
            tty,
            stdout: streams.stdout,
            stderr: streams.stderr,
            ..Default::default()
        };
        Start::Attach(request)
    };
    session(state, request, streams, started).await
}

enum Start {
    /// With the pod's share of processes that go on without their clients, if it may have more.
    Exec(cri::ExecRequest, Option<Share>),
    Attach(cri::AttachRequest),
}

async fn session(
    state: &Arc<Shared>,
    mut request: Request<Incoming>,
    streams: Streams,
    start: Start,
) -> Result<Response<Body>, Failure> {
    let runtime = &state.ctx.runtime;
    // Nothing is started for a request that cannot be upgraded.
    let (response, pending) =
        negotiate_session(&mut request, streams).map_err(|e| Box::new(e.response()))?;
    let (opened, share) = match start {
        Start::Exec(exec, share) => (runtime.exec(exec).await, share),
        Start::Attach(attach) => (runtime.attach(attach).await.map(end_of_attach), None),
    };
    match opened.map_err(|e| internal(format!("error executing command in container: {e}")))? {
        Streaming::Url(url) => {
            pending.release(&mut request);
            pass_on(state, &mut request, &url).await
        }
        Streaming::Direct(process) => {
            state.keep(join(pending, process, share));
            Ok(response)
        }
    }
}

/// Attaching succeeds whatever becomes of the container; how that ended is in the pod's status.
fn end_of_attach(attached: Streaming<ExecSession>) -> Streaming<ExecSession> {
    match attached {
        Streaming::Direct(mut session) => {
            let exit = session.exit;
            session.exit = Box::pin(async move { exit.await.map(|_| 0) });
            Streaming::Direct(session)
        }
        url @ Streaming::Url(_) => url,
    }
}

async fn join(pending: Pending, process: ExecSession, share: Option<Share>) {
    let session = match pending.accept().await {
        Ok(session) => session,
        Err(error) => {
            tracing::debug!(%error, "stream connection did not come to be");
            return;
        }
    };
    let (resize, sizes) = match process.resize {
        None => (None, None),
        Some(target) => {
            let (sender, mut receiver) =
                mpsc::channel::<davit_streaming::remotecommand::TerminalSize>(SIZES);
            let pass = async move {
                while let Some(size) = receiver.recv().await {
                    if target
                        .send(TerminalSize {
                            width: size.width,
                            height: size.height,
                        })
                        .await
                        .is_err()
                    {
                        return;
                    }
                }
            };
            (Some(sender), Some(pass))
        }
    };
    let exit = process.exit;
    let joined = session.join(Process {
        stdin: process.stdin,
        stdout: process.stdout,
        stderr: process.stderr,
        resize,
        outlives_client: share.is_some(),
        exit: async move {
            match exit.await {
                Ok(code) => ExitStatus::Code(code),
                Err(error) => {
                    ExitStatus::Failed(format!("error executing command in container: {error}"))
                }
            }
        },
    });
    match sizes {
        None => joined.await,
        Some(sizes) => {
            tokio::pin!(joined);
            tokio::select! {
                () = &mut joined => {}
                () = sizes => joined.await,
            }
        }
    }
}

/// Joins the caller with the runtime's own streaming server.
async fn pass_on(
    state: &Arc<Shared>,
    request: &mut Request<Incoming>,
    url: &str,
) -> Result<Response<Body>, Failure> {
    let uri: Uri = url
        .parse()
        .map_err(|e| internal(format!("runtime gave a bad URL: {e}")))?;
    if uri.scheme_str() != Some("http") {
        return Err(internal(
            "streaming server of the runtime speaks TLS, which is not supported",
        ));
    }
    let host = uri.host().unwrap_or("127.0.0.1").to_owned();
    let port = uri.port_u16().unwrap_or(80);
    let dial = tokio::time::timeout(DIAL, TcpStream::connect((host.as_str(), port))).await;
    let target = dial
        .map_err(|_| internal("streaming server of the runtime does not answer"))?
        .map_err(internal)?;
    let path = uri.path_and_query().map_or("/", |p| p.as_str());
    let path: Uri = path.parse().map_err(internal)?;
    // Credentials for the node server are not for the runtime.
    request.headers_mut().remove(http::header::AUTHORIZATION);
    let (response, session) = proxy::upgrade(request, path, target)
        .await
        .map_err(internal)?;
    state.keep(session);
    Ok(response)
}

async fn port_forward(
    state: &Arc<Shared>,
    mut request: Request<Incoming>,
    ns: &str,
    name: &str,
) -> Result<Response<Body>, Failure> {
    let ctx = &state.ctx;
    let query = query(request.uri());
    let ports: Vec<u16> = query
        .iter()
        .filter(|(k, _)| k == "port" || k == "ports")
        .flat_map(|(_, v)| v.split(','))
        .filter_map(|p| p.parse().ok())
        .collect();
    let (_, runtime) = find(ctx, ns, name).await?;
    let Some(sandbox) = runtime.ready_sandbox() else {
        return Err(internal(format!("pod {name} is not running")));
    };
    let ask = cri::PortForwardRequest {
        pod_sandbox_id: sandbox.id.clone(),
        port: ports.iter().map(|p| i32::from(*p)).collect(),
    };
    match ctx.runtime.port_forward(ask).await.map_err(internal)? {
        Streaming::Url(url) => pass_on(state, &mut request, &url).await,
        Streaming::Direct(dialer) => {
            let (response, pending) = portforward::negotiate_session(&mut request, ports)
                .map_err(|e| Box::new(e.response()))?;
            let dialer: Arc<dyn davit_oci::runtime::PodDialer> = Arc::from(dialer);
            state.keep(async move {
                let dial = move |port: u16| {
                    let dialer = dialer.clone();
                    async move { dialer.dial(port).await }
                };
                if let Err(error) = pending.serve(dial).await {
                    tracing::debug!(%error, "port-forward ended");
                }
            });
            Ok(response)
        }
    }
}
