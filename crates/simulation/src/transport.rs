//! How clients reach the API server: in process, through a network that loses, delays and cuts.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use davit_access::UserInfo;
use davit_apiserver::{ApiServer, BoxError, ResponseBody};
use futures::Stream;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use kube::client::Body;
use parking_lot::Mutex;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::faults::{End, Fate, FaultAnswer, Faults};

/// The body of an answer that came over the network.
pub type Received = StreamBody<Pin<Box<dyn Stream<Item = Result<Frame<Bytes>, BoxError>> + Send>>>;

/// Nobody answers, or no longer.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Broken(&'static str);

const REFUSED: &str = "connection refused";
const RESET: &str = "connection reset by peer";
const GONE: &[u8] = b"{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\",\"message\":\"too old resource version\",\"reason\":\"Expired\",\"code\":410}}\n";

/// A server that runs until it is cut off.
#[derive(Debug, Clone)]
pub struct RunningApiServer {
    /// The server.
    pub server: Arc<ApiServer>,
    /// Cancelled when it crashes.
    pub cut: CancellationToken,
}

/// The network between components and the API server that runs, if one does.
#[derive(Debug)]
pub struct FaultyNetwork {
    server: Mutex<Option<RunningApiServer>>,
    faults: Arc<Mutex<Faults>>,
}

impl FaultyNetwork {
    /// One without a server yet.
    pub fn new(faults: Arc<Mutex<Faults>>) -> Self {
        Self {
            server: Mutex::new(None),
            faults,
        }
    }

    /// Puts another server, or none, behind it; the former.
    pub fn serve(&self, server: Option<RunningApiServer>) -> Option<RunningApiServer> {
        std::mem::replace(&mut *self.server.lock(), server)
    }

    /// The server that runs.
    pub fn running(&self) -> Option<RunningApiServer> {
        self.server.lock().clone()
    }

    /// A client for `user` that works until `cut`.
    pub fn client(
        self: &Arc<Self>,
        user: &str,
        groups: &[&str],
        cut: &CancellationToken,
    ) -> kube::Client {
        let (network, cut) = (Arc::clone(self), cut.clone());
        let user = UserInfo::new(user, groups);
        let service = tower::service_fn(move |request: Request<Body>| {
            let (network, user, cut) = (Arc::clone(&network), user.clone(), cut.clone());
            async move { network.send(request, user, cut).await }
        });
        davit_client::in_process(service, "default")
    }

    async fn send(
        self: Arc<Self>,
        request: Request<Body>,
        user: UserInfo,
        cut: CancellationToken,
    ) -> Result<Response<Received>, BoxError> {
        let query = request.uri().query().unwrap_or_default();
        let is_watch = query.contains("watch=true") || query.contains("watch=1");
        let fate = self.faults.lock().request();
        let sent = async {
            pause(fate.before).await;
            if let Some(refusal) = fate.refused {
                return refuse(refusal);
            }
            let Some(running) = self.running() else {
                return Err(Broken(REFUSED).into());
            };
            // What the server has begun it may end although whoever asked is gone.
            let server = Arc::clone(&running.server);
            let call = AbortUnless {
                task: tokio::spawn(async move { server.call(request, user).await }),
                goes_on: fate.goes_on,
            };
            let answer = tokio::select! {
                biased;
                () = running.cut.cancelled() => return Err(Broken(RESET).into()),
                answer = call => answer?,
            };
            let (parts, body) = answer.into_parts();
            let body = self.receive(body, running.cut, cut.clone(), is_watch);
            self.answer(&fate, Response::from_parts(parts, body)).await
        };
        tokio::select! {
            biased;
            () = cut.cancelled() => Err(Broken(RESET).into()),
            answer = sent => answer,
        }
    }

    async fn answer(
        &self,
        fate: &Fate,
        answer: Response<Received>,
    ) -> Result<Response<Received>, BoxError> {
        pause(fate.after).await;
        match fate.unanswered {
            Some(refusal) => refuse(refusal),
            None => Ok(answer),
        }
    }

    fn receive(
        self: &Arc<Self>,
        body: ResponseBody,
        server_cut: CancellationToken,
        client_cut: CancellationToken,
        is_watch: bool,
    ) -> Received {
        let end = match is_watch {
            true => self.faults.lock().watch(),
            false => None,
        };
        let now = Instant::now();
        let receiving = Receiving {
            network: Arc::clone(self),
            body,
            server_cut,
            client_cut,
            is_watch,
            end: end.map(|(life, end)| (now + life, end)),
            is_over: false,
        };
        let pieces = futures::stream::unfold(receiving, |mut receiving| async move {
            let piece = receiving.next().await?;
            Some((piece, receiving))
        });
        StreamBody::new(Box::pin(pieces))
    }
}

/// A request that the server works on.
struct AbortUnless<T> {
    task: JoinHandle<T>,
    goes_on: bool,
}

impl<T> Future for AbortUnless<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.task).poll(cx)
    }
}

impl<T> Drop for AbortUnless<T> {
    fn drop(&mut self) {
        if !self.goes_on {
            self.task.abort();
        }
    }
}

struct Receiving {
    network: Arc<FaultyNetwork>,
    body: ResponseBody,
    server_cut: CancellationToken,
    client_cut: CancellationToken,
    is_watch: bool,
    end: Option<(Instant, End)>,
    is_over: bool,
}

impl Receiving {
    async fn next(&mut self) -> Option<Result<Frame<Bytes>, BoxError>> {
        if self.is_over {
            return None;
        }
        let at = self.end.map(|(at, _)| at);
        let ends = async move {
            match at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let (server_cut, client_cut) = (self.server_cut.clone(), self.client_cut.clone());
        let frame = tokio::select! {
            biased;
            () = server_cut.cancelled() => return self.lost(),
            () = client_cut.cancelled() => return self.lost(),
            () = ends => return self.end().await,
            frame = self.body.frame() => frame?,
        };
        let late = match self.is_watch {
            true => self.network.faults.lock().late(),
            false => Duration::ZERO,
        };
        tokio::select! {
            biased;
            () = server_cut.cancelled() => return self.lost(),
            () = client_cut.cancelled() => return self.lost(),
            () = pause(late) => {}
        }
        Some(frame)
    }

    fn lost(&mut self) -> Option<Result<Frame<Bytes>, BoxError>> {
        self.is_over = true;
        Some(Err(Broken(RESET).into()))
    }

    async fn end(&mut self) -> Option<Result<Frame<Bytes>, BoxError>> {
        self.is_over = true;
        match self.end.map(|(_, end)| end)? {
            End::Closed => None,
            End::Lost => self.lost(),
            End::Stalled(pause) => {
                tokio::time::sleep(pause).await;
                self.lost()
            }
            End::Gone => Some(Ok(Frame::data(Bytes::from_static(GONE)))),
        }
    }
}

async fn pause(pause: Duration) {
    if !pause.is_zero() {
        tokio::time::sleep(pause).await;
    }
}

/// What is heard in the place of an answer.
fn refuse(refusal: FaultAnswer) -> Result<Response<Received>, BoxError> {
    let FaultAnswer::Status(code) = refusal else {
        return Err(Broken(RESET).into());
    };
    let reason = match code {
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "InternalError",
    };
    let status = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "a fault of the simulation", "reason": reason, "code": code,
    });
    let body = Bytes::from(status.to_string());
    let once = futures::stream::once(async move { Ok(Frame::data(body)) });
    let body: Received = StreamBody::new(Box::pin(once));
    Ok(Response::builder()
        .status(code)
        .header("content-type", "application/json")
        .body(body)?)
}
