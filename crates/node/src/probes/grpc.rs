//! The gRPC health check (`grpc.health.v1.Health/Check`).

use super::check::Outcome;
use super::http::within_limit;
use davit_oci::runtime::PodConnection;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use std::io;
use std::sync::{Arc, Weak};
use tokio::task::JoinSet;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Endpoint, Uri};

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

const SERVING: i32 = 1;

/// The tasks of one connection, which end with this: by itself a connection stays for as long as there is something to be
/// written that the other end does not take.
#[derive(Default)]
struct OwnTasks(Arc<Mutex<JoinSet<()>>>);

/// Where [`OwnTasks`] come from; does not keep them, since the tasks themselves hold it.
#[derive(Clone)]
struct Spawns(Weak<Mutex<JoinSet<()>>>);

impl<F> hyper::rt::Executor<F> for Spawns
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, work: F) {
        if let Some(tasks) = self.0.upgrade() {
            tasks.lock().spawn(work);
        }
    }
}

/// Asks over an open connection; the caller sets the deadline.
pub(super) async fn grpc_check(stream: Box<dyn PodConnection>, service: &str) -> Outcome {
    let tasks = OwnTasks::default();
    let once = Arc::new(Mutex::new(Some(within_limit(stream))));
    let connector = tower::service_fn(move |_: Uri| {
        let stream = once.lock().take();
        async move {
            stream
                .map(TokioIo::new)
                .ok_or_else(|| io::Error::other("connection was used already"))
        }
    });
    let endpoint = Endpoint::from_static("http://localhost");
    let endpoint = endpoint.executor(Spawns(Arc::downgrade(&tasks.0)));
    let channel = match endpoint.connect_with_connector(connector).await {
        Ok(channel) => channel,
        Err(error) => return Outcome::Failure(format!("error: health rpc failed: {error}")),
    };
    let mut client = tonic::client::Grpc::new(channel);
    if let Err(error) = client.ready().await {
        return Outcome::Failure(format!("error: health rpc failed: {error}"));
    }
    let request = tonic::Request::new(HealthCheckRequest {
        service: service.to_owned(),
    });
    let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let codec = tonic_prost::ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
    match client.unary(request, path, codec).await {
        Ok(answer) if answer.get_ref().status == SERVING => Outcome::Success,
        Ok(answer) => {
            let name = match answer.get_ref().status {
                2 => "NOT_SERVING",
                3 => "SERVICE_UNKNOWN",
                _ => "UNKNOWN",
            };
            Outcome::Failure(format!("service unhealthy (responded with \"{name}\")"))
        }
        Err(status) if status.code() == tonic::Code::Unimplemented => {
            Outcome::Failure("error: this server does not implement the grpc health protocol (grpc.health.v1.Health)".to_owned())
        }
        Err(status) => Outcome::Failure(format!("error: health rpc failed: {status}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::timeout;

    const LIMIT: Duration = Duration::from_secs(10);

    /// Its own end would wait until what it has to say about the pings is taken.
    #[tokio::test]
    async fn nothing_is_left_of_a_check_whose_time_is_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap());
        let ours = ours.await.unwrap();
        let (mut theirs, _) = listener.accept().await.unwrap();
        let pings = async {
            theirs.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await?;
            loop {
                theirs.write_all(b"\0\0\x08\x06\0\0\0\0\0abcdefgh").await?;
            }
        };
        let check = async {
            let checked = grpc_check(Box::new(ours), "");
            timeout(Duration::from_millis(500), checked).await.is_err()
        };
        let ended: io::Result<()> = timeout(LIMIT, async { tokio::join!(pings, check).0 })
            .await
            .unwrap();
        ended.unwrap_err();
    }
}
