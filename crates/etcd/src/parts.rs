//! What the store, its watches and its tasks share: the cluster, where the keys are, how much of history there is.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use davit_proto::etcd::etcdserverpb::{RangeRequest, RangeResponse};
use davit_store::{Error, Result};
use tokio_util::sync::CancellationToken;

use crate::calls::Cluster;
use crate::layout::Layout;
use crate::watch;

/// How many revisions before its start a server reads, so that clients can go on from before it.
const HISTORY: u64 = 5000;

/// The shared parts.
pub(crate) struct EtcdParts {
    pub(crate) cluster: Cluster,
    pub(crate) layout: Layout,
    pub(crate) watch_buffer: usize,
    pub(crate) closed: CancellationToken,
    /// The oldest revision that is known to be readable.
    oldest: AtomicU64,
    /// Where histories are read from: some time before the store was opened.
    begin: AtomicU64,
}

impl EtcdParts {
    pub(crate) fn new(cluster: Cluster, layout: Layout, watch_buffer: usize) -> Self {
        Self {
            cluster,
            layout,
            watch_buffer,
            closed: CancellationToken::new(),
            oldest: AtomicU64::new(1),
            begin: AtomicU64::new(0),
        }
    }

    /// Where whoever reads history begins.
    pub(crate) fn begin(&self) -> u64 {
        self.oldest().max(self.begin.load(Ordering::Acquire))
    }

    pub(crate) fn oldest(&self) -> u64 {
        self.oldest.load(Ordering::Acquire)
    }

    /// History before `revision` is gone.
    pub(crate) fn forget_before(&self, revision: u64) {
        self.oldest.fetch_max(revision, Ordering::AcqRel);
    }

    pub(crate) async fn compact(&self, revision: u64) -> Result<()> {
        match self.cluster.compact(revision).await {
            Ok(()) => {}
            Err(error) if error.is_compacted() => {}
            Err(error) if error.is_future() => return Err(self.future(revision).await?),
            Err(error) => return Err(error.into()),
        }
        self.forget_before(revision);
        Ok(())
    }

    pub(crate) async fn current_revision(&self) -> Result<u64> {
        let request = RangeRequest {
            key: self.layout.empty(),
            count_only: true,
            ..RangeRequest::default()
        };
        let (_, revision) = self.cluster.range(request).await?;
        Ok(revision)
    }

    /// Finds out how much of history there is, and from where on it is read.
    pub(crate) async fn look_back(&self) -> Result<()> {
        let asked = RangeRequest {
            revision: self.oldest().cast_signed(),
            ..one(self.layout.empty())
        };
        match self.read(asked).await {
            Ok(_) | Err(Error::Compacted { .. }) => {}
            Err(error) => return Err(error),
        }
        let current = self.current_revision().await?;
        let begin = current.saturating_sub(HISTORY);
        self.begin.store(begin, Ordering::Release);
        Ok(())
    }

    async fn future(&self, requested: u64) -> Result<Error> {
        let current = self.current_revision().await?;
        Ok(Error::FutureRevision { requested, current })
    }

    /// Reads at a revision, in the store's words for what is not there.
    pub(crate) async fn read(&self, request: RangeRequest) -> Result<(RangeResponse, u64)> {
        let asked = request.revision.cast_unsigned();
        let compacted = |oldest| Error::Compacted {
            requested: asked,
            oldest,
        };
        if asked != 0 && asked < self.oldest() {
            return Err(compacted(self.oldest()));
        }
        match self.cluster.range(request).await {
            Ok((answer, revision)) => Ok((answer, revision)),
            Err(error) if error.is_compacted() => {
                // How far is not said here. The present is readable in any case.
                let oldest = match watch::oldest(self).await {
                    Some(oldest) => oldest,
                    None => self.current_revision().await?,
                };
                self.forget_before(oldest);
                Err(compacted(self.oldest()))
            }
            Err(error) if error.is_future() => Err(self.future(asked).await?),
            Err(error) => Err(error.into()),
        }
    }
}

/// A request for one key.
pub(crate) fn one(key: Bytes) -> RangeRequest {
    RangeRequest {
        key,
        ..RangeRequest::default()
    }
}
