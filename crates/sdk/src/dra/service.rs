//! The gRPC services of a node plugin over a [`Driver`].

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use davit_proto::dra::{v1, v1beta1};
use davit_proto::drahealth;
use futures::Stream;
use futures::future::join_all;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::Api;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status};

use super::claim::main_request;
use super::metadata::MetadataFiles;
use super::turns::Turns;
use super::{
    AllocatedClaim, ClaimError, ClaimId, Condition, DeviceHealth, Driver, PreparedDevice, Refusal,
};

/// Limit of reading one claim.
const FETCH: Duration = Duration::from_secs(10);
/// How often health is sent although nothing has changed, well within the agent's 30 s.
const HEALTH_REFRESH: Duration = Duration::from_secs(10);

/// What all versions of the service share.
pub(super) struct Core<D> {
    pub(super) driver: Arc<D>,
    /// What the driver tells of its devices' health.
    pub(super) health: Option<watch::Receiver<Vec<DeviceHealth>>>,
    pub(super) name: String,
    pub(super) client: kube::Client,
    /// Files about devices, if containers are to have them.
    pub(super) metadata: Option<MetadataFiles>,
    pub(super) turns: Turns,
    /// Calls of the driver that go on.
    pub(super) calls: TaskTracker,
    /// No new calls are taken.
    pub(super) stopping: CancellationToken,
    /// Open calls are given up.
    pub(super) cut_off: CancellationToken,
}

type Results<T> = BTreeMap<String, Result<T, String>>;

impl<D: Driver> Core<D> {
    async fn prepare(
        this: &Arc<Self>,
        claims: Vec<ClaimId>,
    ) -> Result<Results<Vec<PreparedDevice>>, Status> {
        Self::each(this, claims, |core, id| async move {
            let claim = core.fetch(&id).await.map_err(Refusal::because)?;
            let mut devices = core.driver.prepare(&claim).await?;
            for device in &mut devices {
                for request in &mut device.requests {
                    *request = main_request(request).to_owned();
                }
                device.requests.dedup();
            }
            if let Some(files) = &core.metadata {
                let written = files.write(&claim, &mut devices);
                written.map_err(|e| Refusal::new(format!("device metadata: {e}")))?;
            }
            tracing::info!(driver = core.name, claim = %id, uid = id.uid, devices = devices.len(), "claim prepared");
            Ok(devices)
        })
        .await
    }

    async fn unprepare(this: &Arc<Self>, claims: Vec<ClaimId>) -> Result<Results<()>, Status> {
        Self::each(this, claims, |core, id| async move {
            core.driver.unprepare(&id).await?;
            if let Some(files) = &core.metadata {
                let removed = files.remove(&id);
                removed.map_err(|e| Refusal::new(format!("device metadata: {e}")))?;
            }
            tracing::info!(driver = core.name, claim = %id, uid = id.uid, "claim unprepared");
            Ok(())
        })
        .await
    }

    /// Does something with each claim in a task of its own, which also ends what it does when
    /// the agent has hung up: a driver is not left in the middle of something.
    async fn each<T, F, W>(
        this: &Arc<Self>,
        claims: Vec<ClaimId>,
        work: W,
    ) -> Result<Results<T>, Status>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Refusal>> + Send + 'static,
        W: Fn(Arc<Self>, ClaimId) -> F + Copy + Send + Sync + 'static,
    {
        if this.stopping.is_cancelled() {
            return Err(Status::unavailable("the driver is about to end"));
        }
        let calls = claims.into_iter().map(|id| {
            let (core, uid) = (this.clone(), id.uid.clone());
            let task = this.calls.spawn(async move {
                let done = async {
                    let _turn = core.turns.take(&id.uid).await?;
                    work(core.clone(), id.clone()).await
                };
                let result = tokio::select! {
                    result = done => result,
                    () = core.cut_off.cancelled() => Err(Refusal::new("the driver was stopped")),
                };
                if let Err(refusal) = &result {
                    tracing::warn!(driver = core.name, claim = %id, uid = id.uid, error = refusal.0, "call failed");
                }
                result
            });
            async move {
                let result = task.await;
                let result = result.unwrap_or_else(|e| Err(Refusal::new(format!("driver: {e}"))));
                (uid, result.map_err(|refusal| refusal.0))
            }
        });
        Ok(join_all(calls).await.into_iter().collect())
    }

    async fn fetch(&self, id: &ClaimId) -> Result<AllocatedClaim, ClaimError> {
        let api: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &id.namespace);
        let failed = |cause: String| ClaimError::Fetch {
            id: id.clone(),
            cause,
        };
        let answer = tokio::time::timeout(FETCH, api.get(&id.name)).await;
        let answer =
            answer.map_err(|_| failed(format!("no answer within {} s", FETCH.as_secs())))?;
        let claim = answer.map_err(|e| match e {
            kube::Error::Api(status) if status.code == 404 => ClaimError::Gone(id.clone()),
            kube::Error::Api(status) => failed(status.message.clone()),
            other => failed(other.to_string()),
        })?;
        AllocatedClaim::new(claim, id, &self.name)
    }
}

/// Serves one version of the DRAPlugin service.
pub(super) struct Service<D>(pub(super) Arc<Core<D>>);

/// The versions differ in their packages and in one field.
macro_rules! dra_plugin {
    ($version:ident, $device:expr) => {
        #[tonic::async_trait]
        impl<D: Driver> $version::dra_plugin_server::DraPlugin for Service<D> {
            async fn node_prepare_resources(
                &self,
                request: Request<$version::NodePrepareResourcesRequest>,
            ) -> Result<Response<$version::NodePrepareResourcesResponse>, Status> {
                let ids = request.into_inner().claims.into_iter().map(|c| ClaimId {
                    namespace: c.namespace,
                    name: c.name,
                    uid: c.uid,
                });
                let results = Core::prepare(&self.0, ids.collect()).await?;
                let answer = |result: Result<Vec<PreparedDevice>, String>| match result {
                    Ok(devices) => $version::NodePrepareResourceResponse {
                        devices: devices.into_iter().map($device).collect(),
                        error: String::new(),
                    },
                    Err(error) => $version::NodePrepareResourceResponse {
                        devices: Vec::new(),
                        error: said(error),
                    },
                };
                let claims: BTreeMap<_, _> = results
                    .into_iter()
                    .map(|(uid, r)| (uid, answer(r)))
                    .collect();
                Ok(Response::new($version::NodePrepareResourcesResponse {
                    claims,
                }))
            }

            async fn node_unprepare_resources(
                &self,
                request: Request<$version::NodeUnprepareResourcesRequest>,
            ) -> Result<Response<$version::NodeUnprepareResourcesResponse>, Status> {
                let ids = request.into_inner().claims.into_iter().map(|c| ClaimId {
                    namespace: c.namespace,
                    name: c.name,
                    uid: c.uid,
                });
                let results = Core::unprepare(&self.0, ids.collect()).await?;
                let answer = |result: Result<(), String>| $version::NodeUnprepareResourceResponse {
                    error: result.err().map(said).unwrap_or_default(),
                };
                let claims: BTreeMap<_, _> = results
                    .into_iter()
                    .map(|(uid, r)| (uid, answer(r)))
                    .collect();
                Ok(Response::new($version::NodeUnprepareResourcesResponse {
                    claims,
                }))
            }
        }
    };
}

dra_plugin!(v1, |d: PreparedDevice| v1::Device {
    request_names: d.requests,
    pool_name: d.pool,
    device_name: d.device,
    cdi_device_ids: d.cdi,
    share_id: d.share_id,
});
dra_plugin!(v1beta1, |d: PreparedDevice| v1beta1::Device {
    request_names: d.requests,
    pool_name: d.pool,
    device_name: d.device,
    cdi_device_ids: d.cdi,
});

/// An empty text would mean success.
fn said(error: String) -> String {
    if error.is_empty() {
        "refused without a reason".to_owned()
    } else {
        error
    }
}

/// Serves the health stream, in both versions.
#[derive(Clone)]
pub(super) struct Health {
    pub(super) devices: watch::Receiver<Vec<DeviceHealth>>,
    pub(super) stop: CancellationToken,
}

fn seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |d| i64::try_from(d.as_secs()).unwrap_or(i64::MAX))
}

macro_rules! dra_health {
    ($version:ident) => {
        #[tonic::async_trait]
        impl drahealth::$version::dra_resource_health_server::DraResourceHealth for Health {
            type NodeWatchResourcesStream = Pin<
                Box<
                    dyn Stream<
                            Item = Result<drahealth::$version::NodeWatchResourcesResponse, Status>,
                        > + Send,
                >,
            >;

            async fn node_watch_resources(
                &self,
                _: Request<drahealth::$version::NodeWatchResourcesRequest>,
            ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
                use drahealth::$version as pb;
                let told = |d: &DeviceHealth| pb::DeviceHealth {
                    device: Some(pb::DeviceIdentifier {
                        pool_name: d.pool.clone(),
                        device_name: d.device.clone(),
                    }),
                    health: match d.condition {
                        Condition::Healthy => pb::HealthStatus::Healthy,
                        Condition::Unhealthy => pb::HealthStatus::Unhealthy,
                        Condition::Unknown => pb::HealthStatus::Unknown,
                    }
                    .into(),
                    last_updated_time: seconds(d.checked.unwrap_or_else(SystemTime::now)),
                    health_check_timeout_seconds: d
                        .timeout
                        .map_or(0, |t| i64::try_from(t.as_secs().max(1)).unwrap_or(i64::MAX)),
                    message: d.message.clone(),
                };
                let start = (self.clone(), true);
                let stream =
                    futures::stream::unfold(start, move |(mut health, is_first)| async move {
                        if !is_first && !health.wait().await {
                            return None;
                        }
                        let list = health.devices.borrow_and_update();
                        let devices = list.iter().map(told).collect();
                        drop(list);
                        let message = pb::NodeWatchResourcesResponse { devices };
                        Some((Ok(message), (health, false)))
                    });
                Ok(Response::new(Box::pin(stream)))
            }
        }
    };
}

dra_health!(v1);
dra_health!(v1alpha1);

impl Health {
    /// Waits for the next time to send; `false` at the end.
    async fn wait(&mut self) -> bool {
        let changed = async {
            if self.devices.changed().await.is_err() {
                // The driver has no more to say; what it said last stands.
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = self.stop.cancelled() => false,
            () = changed => true,
            () = tokio::time::sleep(HEALTH_REFRESH) => true,
        }
    }
}
