//! The gRPC services of a plugin over a [`DevicePlugin`].

use std::pin::Pin;
use std::sync::Arc;

use davit_proto::deviceplugin::v1beta1 as pb;
use futures::Stream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::{Device, DevicePlugin, Offer, Refusal, Tamper};

/// The DevicePlugin service.
pub(super) struct Service<P> {
    pub(super) plugin: Arc<P>,
    /// Ends the device streams.
    pub(super) stop: CancellationToken,
    /// Changes what goes out.
    pub(super) tamper: Option<Arc<dyn Tamper>>,
}

fn refused(refusal: Refusal) -> Status {
    Status::unknown(refusal.0)
}

fn message(devices: &[Device]) -> pb::ListAndWatchResponse {
    let device = |d: &Device| pb::Device {
        id: d.id.clone(),
        health: if d.healthy {
            pb::HEALTHY
        } else {
            pb::UNHEALTHY
        }
        .to_owned(),
        topology: (!d.numa_nodes.is_empty()).then(|| pb::TopologyInfo {
            nodes: d.numa_nodes.iter().map(|&id| pb::NumaNode { id }).collect(),
        }),
    };
    pb::ListAndWatchResponse {
        devices: devices.iter().map(device).collect(),
    }
}

impl<P: DevicePlugin> Service<P> {
    fn check(&self, ids: &[String]) -> Result<(), Status> {
        let devices = self.plugin.devices();
        let devices = devices.borrow();
        match ids.iter().find(|id| !devices.iter().any(|d| d.id == **id)) {
            Some(unknown) => Err(Status::invalid_argument(format!(
                "there is no device {unknown:?}"
            ))),
            None => Ok(()),
        }
    }
}

type Lists = Pin<Box<dyn Stream<Item = Result<pb::ListAndWatchResponse, Status>> + Send>>;

#[tonic::async_trait]
impl<P: DevicePlugin> pb::device_plugin_server::DevicePlugin for Service<P> {
    async fn get_device_plugin_options(
        &self,
        _: Request<pb::Empty>,
    ) -> Result<Response<pb::DevicePluginOptions>, Status> {
        if let Some(tamper) = &self.tamper {
            tamper.options().await?;
        }
        Ok(Response::new(pb::DevicePluginOptions {
            pre_start_required: self.plugin.wants_pre_start(),
            get_preferred_allocation_available: self.plugin.has_preference(),
        }))
    }

    type ListAndWatchStream = Lists;

    async fn list_and_watch(&self, _: Request<pb::Empty>) -> Result<Response<Lists>, Status> {
        let mut devices = self.plugin.devices();
        // The first list goes out at once.
        devices.mark_changed();
        let state = (devices, self.stop.clone(), self.tamper.clone());
        let stream = futures::stream::unfold(state, |(mut devices, stop, tamper)| async {
            tokio::select! {
                () = stop.cancelled() => return None,
                changed = devices.changed() => if changed.is_err() {
                    // The plugin has no more to say, but its devices stay.
                    stop.cancelled().await;
                    return None;
                },
            }
            let mut list = message(&devices.borrow_and_update());
            if let Some(tamper) = &tamper {
                tamper.list(&mut list);
            }
            Some((Ok(list), (devices, stop, tamper)))
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<pb::PreferredAllocationRequest>,
    ) -> Result<Response<pb::PreferredAllocationResponse>, Status> {
        let mut answer = pb::PreferredAllocationResponse::default();
        for request in request.into_inner().container_requests {
            let offer = Offer {
                available: request.available_device_i_ds,
                must_include: request.must_include_device_i_ds,
                size: usize::try_from(request.allocation_size).unwrap_or_default(),
            };
            let ids = self.plugin.preferred(offer).await.map_err(refused)?;
            answer
                .container_responses
                .push(pb::ContainerPreferredAllocationResponse { device_i_ds: ids });
        }
        if let Some(tamper) = &self.tamper {
            tamper.preferred(&mut answer);
        }
        Ok(Response::new(answer))
    }

    async fn allocate(
        &self,
        request: Request<pb::AllocateRequest>,
    ) -> Result<Response<pb::AllocateResponse>, Status> {
        let mut answer = pb::AllocateResponse::default();
        for request in request.into_inner().container_requests {
            self.check(&request.devices_ids)?;
            let given = self
                .plugin
                .allocate(&request.devices_ids)
                .await
                .map_err(refused)?;
            answer.container_responses.push(given.into_message());
        }
        if let Some(tamper) = &self.tamper {
            tamper.allocated(&mut answer);
        }
        Ok(Response::new(answer))
    }

    async fn pre_start_container(
        &self,
        request: Request<pb::PreStartContainerRequest>,
    ) -> Result<Response<pb::PreStartContainerResponse>, Status> {
        let request = request.into_inner();
        self.plugin
            .pre_start(&request.devices_ids)
            .await
            .map_err(refused)?;
        Ok(Response::new(pb::PreStartContainerResponse {}))
    }
}
