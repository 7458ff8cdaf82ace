//! One plugin connection and the calls made on it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use davit_proto::deviceplugin::v1beta1 as pb;
use davit_proto::deviceplugin::v1beta1::device_plugin_client::DevicePluginClient;
use davit_proto::unix::{self, Address, MAX_MESSAGE};
use davit_topology::devices::{Ask, DeviceSet};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use super::inventory::InstanceId;
use super::lists::Lists;

/// Why a plugin cannot be taken into service. The texts are what plugins get to see.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("failed to dial device plugin: {0}")]
    Dial(String),
    #[error("failed to get device plugin options: {0}")]
    Options(String),
}

/// A call that failed.
#[derive(Debug)]
pub(super) struct CallError {
    /// As grpc-go prints it.
    pub(super) text: String,
    /// The connection broke; the plugin said nothing.
    pub(super) lost: bool,
}

/// A connected plugin.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) id: InstanceId,
    pub(super) resource: String,
    /// The plugin's service socket.
    pub(super) socket: PathBuf,
    /// The socket in the plugin registry it came by, if it came that way.
    pub(super) registry_socket: Option<PathBuf>,
    pub(super) options: pb::DevicePluginOptions,
    channel: Channel,
    client: DevicePluginClient<Channel>,
}

impl Endpoint {
    /// Dials a plugin and asks for its options.
    pub(super) async fn connect(
        id: InstanceId,
        resource: &str,
        socket: &Path,
        registry_socket: Option<PathBuf>,
        limits: &crate::config::Config,
    ) -> Result<Self, ConnectError> {
        // plugins run in containers that may write here
        let address = Address::below(&limits.root_dir, socket);
        let channel = unix::connect_once(address, limits.dial_timeout)
            .await
            .map_err(|e| ConnectError::Dial(e.to_string()))?;
        let mut client = DevicePluginClient::new(channel.clone())
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE);
        let limit = limits.options_timeout;
        let options = call(
            "GetDevicePluginOptions",
            resource,
            limit,
            pb::Empty {},
            |r| client.get_device_plugin_options(r),
        );
        let options = options.await.map_err(|e| ConnectError::Options(e.text))?;
        Ok(Self {
            id,
            resource: resource.to_owned(),
            socket: socket.to_owned(),
            registry_socket,
            options,
            channel,
            client,
        })
    }

    /// Opens the device stream. Many plugins answer only with their first list, so there is
    /// no limit.
    pub(super) async fn lists(&self) -> Result<Lists, CallError> {
        Lists::open(self.channel.clone())
            .await
            .map_err(|s| CallError::of(&s))
    }

    /// GetPreferredAllocation, if the plugin offers it; an empty set otherwise.
    pub(super) async fn preferred(
        &self,
        ask: &Ask,
        limit: Duration,
    ) -> Result<DeviceSet, CallError> {
        if !self.options.get_preferred_allocation_available {
            return Ok(DeviceSet::new());
        }
        let request = pb::PreferredAllocationRequest {
            container_requests: vec![pb::ContainerPreferredAllocationRequest {
                available_device_i_ds: texts(&ask.available),
                must_include_device_i_ds: texts(&ask.must_include),
                allocation_size: i32::try_from(ask.size).unwrap_or(i32::MAX),
            }],
        };
        let mut client = self.client.clone();
        let answer = call(
            "GetPreferredAllocation",
            &self.resource,
            limit,
            request,
            |r| client.get_preferred_allocation(r),
        );
        let first = answer.await?.container_responses.into_iter().next();
        let ids = first.map(|r| r.device_i_ds).unwrap_or_default();
        Ok(ids.into_iter().map(Into::into).collect())
    }

    /// Allocate for one container; the answer may hold any number of responses.
    pub(super) async fn allocate(
        &self,
        ids: &DeviceSet,
        limit: Duration,
    ) -> Result<pb::AllocateResponse, CallError> {
        let request = pb::AllocateRequest {
            container_requests: vec![pb::ContainerAllocateRequest {
                devices_ids: texts(ids),
            }],
        };
        let mut client = self.client.clone();
        call("Allocate", &self.resource, limit, request, |r| {
            client.allocate(r)
        })
        .await
    }

    /// PreStartContainer for the devices of one container.
    pub(super) async fn pre_start(
        &self,
        ids: Vec<String>,
        limit: Duration,
    ) -> Result<(), CallError> {
        let request = pb::PreStartContainerRequest { devices_ids: ids };
        let mut client = self.client.clone();
        let answer = call("PreStartContainer", &self.resource, limit, request, |r| {
            client.pre_start_container(r)
        });
        answer.await.map(|_| ())
    }
}

fn texts(ids: &DeviceSet) -> Vec<String> {
    ids.iter().map(|id| id.as_str().to_owned()).collect()
}

async fn call<Q, A, F>(
    method: &str,
    resource: &str,
    limit: Duration,
    request: Q,
    send: impl FnOnce(Request<Q>) -> F,
) -> Result<A, CallError>
where
    F: Future<Output = Result<tonic::Response<A>, Status>>,
{
    let mut request = Request::new(request);
    // The plugin learns of the limit; a little more, so that this side ends the call itself.
    request.set_timeout(limit + Duration::from_millis(500));
    match tokio::time::timeout(limit, send(request)).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(CallError::of(&status)),
        Err(_) => Err(CallError {
            text: format!(
                "rpc error: code = DeadlineExceeded desc = the plugin of {resource} did not answer {method} within {}s",
                limit.as_secs_f32()
            ),
            lost: false,
        }),
    }
}

impl CallError {
    fn of(status: &Status) -> Self {
        Self {
            text: go_text(status),
            // A status the plugin sent has no cause on this side of the wire.
            lost: std::error::Error::source(status).is_some(),
        }
    }
}

/// A status as grpc-go prints errors; users and tests look for this form.
pub(super) fn go_text(status: &Status) -> String {
    let code = match status.code() {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    };
    format!("rpc error: code = {code} desc = {}", status.message())
}

/// Shared by everything that uses a plugin.
pub(super) type SharedEndpoint = Arc<Endpoint>;
