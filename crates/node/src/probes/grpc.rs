//! The gRPC health check (`grpc.health.v1.Health/Check`).

use super::check::Outcome;
use davit_oci::runtime::PodConnection;
use hyper_util::rt::TokioIo;
use std::io;
use std::sync::Arc;
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

/// Asks over an open connection; the caller sets the deadline.
pub(super) async fn grpc_check(stream: Box<dyn PodConnection>, service: &str) -> Outcome {
    let once = Arc::new(parking_lot::Mutex::new(Some(stream)));
    let connector = tower::service_fn(move |_: Uri| {
        let stream = once.lock().take();
        async move {
            stream
                .map(TokioIo::new)
                .ok_or_else(|| io::Error::other("connection was used already"))
        }
    });
    let endpoint = Endpoint::from_static("http://localhost");
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
