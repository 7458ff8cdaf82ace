//! The calls on one registered driver.

use crate::connection::{Connection, Kept};
use crate::{Capabilities, CsiVersion, Error, VolumeStats};
use davit_proto::csi::v1 as pb;
use davit_proto::unix::Address;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tonic::{Request, Response, Status};

/// How long a call may take, with the connection it may need.
pub const CALL_LIMIT: Duration = Duration::from_secs(120);
/// The driver is told a little more, so that the end of a call is always seen as one kind of error here.
const GRACE: Duration = Duration::from_millis(500);

/// One instance of a driver: where it serves, and calls on it. Calls may be made at the same time; a call that is dropped
/// is cancelled at the driver.
#[derive(Debug)]
pub struct DriverClient {
    name: String,
    endpoint: Address,
    version: CsiVersion,
    limit: Duration,
    kept: Kept,
}

impl DriverClient {
    pub(crate) fn new(name: &str, endpoint: Address, version: CsiVersion, limit: Duration) -> Self {
        Self {
            name: name.to_owned(),
            endpoint,
            version,
            limit,
            kept: Kept::default(),
        }
    }

    /// The driver's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The socket of its services.
    pub fn endpoint(&self) -> &Path {
        self.endpoint.path()
    }

    /// The highest version it announced that is spoken here.
    pub fn version(&self) -> &CsiVersion {
        &self.version
    }

    /// NodeGetInfo: how the driver calls this node.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub async fn node_get_info(&self) -> Result<pb::NodeGetInfoResponse, Error> {
        let request = pb::NodeGetInfoRequest {};
        self.call(request, async |c, r| c.client().node_get_info(r).await)
            .await
    }

    /// NodeGetCapabilities: asked once a connection.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub async fn capabilities(&self) -> Result<Capabilities, Error> {
        self.limited(async {
            let connection = self.kept.get(&self.endpoint).await?;
            let ask = async || {
                let request = self.request(pb::NodeGetCapabilitiesRequest {});
                let answer = connection.client().node_get_capabilities(request).await?;
                Ok::<_, Error>(Capabilities::from(answer.get_ref()))
            };
            connection.capabilities.get_or_try_init(ask).await.copied()
        })
        .await
    }

    /// NodeStageVolume.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Call`].
    pub async fn stage(&self, request: pb::NodeStageVolumeRequest) -> Result<(), Error> {
        given(&request.volume_id, "volume id")?;
        given(&request.staging_target_path, "staging target path")?;
        self.call(request, async |c, r| c.client().node_stage_volume(r).await)
            .await
            .map(|_| ())
    }

    /// NodeUnstageVolume.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Call`].
    pub async fn unstage(&self, request: pb::NodeUnstageVolumeRequest) -> Result<(), Error> {
        given(&request.volume_id, "volume id")?;
        given(&request.staging_target_path, "staging target path")?;
        self.call(request, async |c, r| {
            c.client().node_unstage_volume(r).await
        })
        .await
        .map(|_| ())
    }

    /// NodePublishVolume.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Call`].
    pub async fn publish(&self, request: pb::NodePublishVolumeRequest) -> Result<(), Error> {
        given(&request.volume_id, "volume id")?;
        given(&request.target_path, "target path")?;
        self.call(request, async |c, r| {
            c.client().node_publish_volume(r).await
        })
        .await
        .map(|_| ())
    }

    /// NodeUnpublishVolume.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Call`].
    pub async fn unpublish(&self, request: pb::NodeUnpublishVolumeRequest) -> Result<(), Error> {
        given(&request.volume_id, "volume id")?;
        given(&request.target_path, "target path")?;
        self.call(request, async |c, r| {
            c.client().node_unpublish_volume(r).await
        })
        .await
        .map(|_| ())
    }

    /// NodeExpandVolume; the size in bytes that the driver answers.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Call`].
    pub async fn expand(&self, request: pb::NodeExpandVolumeRequest) -> Result<i64, Error> {
        given(&request.volume_id, "volume id")?;
        given(&request.volume_path, "volume path")?;
        self.call(request, async |c, r| c.client().node_expand_volume(r).await)
            .await
            .map(|answer| answer.capacity_bytes)
    }

    /// NodeGetVolumeStats.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Call`], [`Error::NoUsage`].
    pub async fn volume_stats(
        &self,
        request: pb::NodeGetVolumeStatsRequest,
    ) -> Result<VolumeStats, Error> {
        given(&request.volume_id, "volume id")?;
        given(&request.volume_path, "target path")?;
        let answer = self.call(request, async |c, r| {
            c.client().node_get_volume_stats(r).await
        });
        VolumeStats::read(answer.await?)
    }

    async fn call<Q, A>(
        &self,
        request: Q,
        send: impl AsyncFnOnce(Arc<Connection>, Request<Q>) -> Result<Response<A>, Status>,
    ) -> Result<A, Error> {
        self.limited(async {
            let connection = self.kept.get(&self.endpoint).await?;
            let answer = send(connection, self.request(request)).await?;
            Ok(answer.into_inner())
        })
        .await
    }

    fn request<Q>(&self, message: Q) -> Request<Q> {
        let mut request = Request::new(message);
        request.set_timeout(self.limit + GRACE);
        request
    }

    async fn limited<A>(&self, work: impl Future<Output = Result<A, Error>>) -> Result<A, Error> {
        match tokio::time::timeout(self.limit, work).await {
            Ok(answer) => answer,
            Err(_) => Err(Error::deadline()),
        }
    }
}

fn given(value: &str, what: &'static str) -> Result<(), Error> {
    if value.is_empty() {
        return Err(Error::Missing(what));
    }
    Ok(())
}
