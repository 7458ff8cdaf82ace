//! Who owns the store: one API server at a time, or all that say that they share it.
//!
//! A key with a lease names the owner; it is written when the store is opened and not again, so that its revision stands
//! for the ownership. Every write compares it. A lease that ran out while etcd could not be reached is taken anew, if no
//! other server came in between. Servers that share the store compare the same key, which one of them keeps and the next one
//! writes when that ends: none that wants the store for itself begins beside them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use davit_proto::etcd::etcdserverpb::{
    Compare, LeaseKeepAliveRequest, LeaseRevokeRequest, PutRequest, RangeRequest, RequestOp,
    TxnRequest, request_op, response_op,
};
use davit_proto::etcd::mvccpb::KeyValue;
use davit_store::Error;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::layout::written_at;
use crate::leases::grant;
use crate::parts::EtcdParts;

/// How long the ownership outlives its server.
const TTL: Duration = Duration::from_secs(15);
/// What the key says while several servers share the store.
const SHARED: &str = "servers that share it";
/// How often the lease is renewed.
const RENEW: Duration = Duration::from_secs(5);
/// How long one renewal may take.
const CALL: Duration = Duration::from_secs(4);
/// Between attempts after a failed one.
const RETRY: Duration = Duration::from_millis(500);

/// The ownership of a store.
pub(crate) struct Owner {
    parts: Arc<EtcdParts>,
    key: Bytes,
    /// Names this server; the same after a restart, which takes over at once.
    identity: String,
    /// Revision at which the key was written; zero while it is not held.
    held: AtomicU64,
    /// Another server has it.
    is_replaced: AtomicBool,
}

/// Why the ownership was not taken.
enum Refusal {
    Held(KeyValue),
    Failed(Error),
}

/// What became of joining those that share the store.
enum Entered {
    /// The key is this server's, with this lease.
    Wrote(i64),
    /// It was there.
    Found,
    /// This server has the store for itself.
    Owned(String),
}

impl Owner {
    /// Takes the ownership, waiting for that of a server that is gone to run out.
    pub(crate) async fn take(
        parts: Arc<EtcdParts>,
        identity: String,
    ) -> Result<(Arc<Self>, i64), Error> {
        let owner = Arc::new(Self {
            key: parts.layout.owner(),
            parts,
            identity,
            held: AtomicU64::new(0),
            is_replaced: AtomicBool::new(false),
        });
        let deadline = Instant::now() + TTL + RENEW;
        let mut said = false;
        loop {
            let lease = owner.grant().await.map_err(Error::Unavailable)?;
            let refusal = match owner.write(lease, 0).await {
                Ok(()) => return Ok((owner, lease)),
                Err(Refusal::Held(pair)) if pair.value == owner.identity => {
                    tracing::info!(
                        owner = owner.identity,
                        "taking the store over from an earlier run"
                    );
                    owner.write(lease, pair.mod_revision.cast_unsigned()).await
                }
                Err(refusal) => Err(refusal),
            };
            let pair = match refusal {
                Ok(()) => return Ok((owner, lease)),
                Err(Refusal::Failed(error)) => return Err(error),
                Err(Refusal::Held(pair)) => pair,
            };
            owner.revoke(lease).await;
            let holder = String::from_utf8_lossy(&pair.value).into_owned();
            if Instant::now() >= deadline || holder == SHARED {
                return Err(Error::Owned { holder });
            }
            if !std::mem::replace(&mut said, true) {
                tracing::info!(
                    holder,
                    "another server owns the store in etcd; waiting for its end"
                );
            }
            sleep(RETRY).await;
        }
    }

    /// Joins the servers that share the store, waiting for the end of one that has it for itself. The lease of the key, if
    /// this server wrote it.
    pub(crate) async fn share(parts: Arc<EtcdParts>) -> Result<(Arc<Self>, Option<i64>), Error> {
        let owner = Arc::new(Self {
            key: parts.layout.owner(),
            parts,
            identity: SHARED.to_owned(),
            held: AtomicU64::new(0),
            is_replaced: AtomicBool::new(false),
        });
        let deadline = Instant::now() + TTL + RENEW;
        loop {
            match owner.enter().await? {
                Entered::Wrote(lease) => return Ok((owner, Some(lease))),
                Entered::Found => return Ok((owner, None)),
                Entered::Owned(holder) if Instant::now() >= deadline => {
                    return Err(Error::Owned { holder });
                }
                Entered::Owned(_) => sleep(RETRY).await,
            }
        }
    }

    /// Sees to it that the key says that the store is shared.
    async fn enter(&self) -> Result<Entered, Error> {
        let lease = self.grant().await.map_err(Error::Unavailable)?;
        let pair = match self.write(lease, 0).await {
            Ok(()) => return Ok(Entered::Wrote(lease)),
            Err(Refusal::Held(pair)) => pair,
            Err(Refusal::Failed(error)) => {
                self.revoke(lease).await;
                return Err(error);
            }
        };
        self.revoke(lease).await;
        if pair.value != SHARED {
            return Ok(Entered::Owned(
                String::from_utf8_lossy(&pair.value).into_owned(),
            ));
        }
        let revision = pair.mod_revision.cast_unsigned();
        self.held.store(revision, Ordering::Release);
        Ok(Entered::Found)
    }

    /// Keeps the key, or enters again when whoever kept it has ended, until `closed`.
    pub(crate) async fn stay(self: Arc<Self>, mut lease: Option<i64>, closed: CancellationToken) {
        let mut renewed = Instant::now();
        loop {
            tokio::select! {
                () = closed.cancelled() => break,
                () = sleep(RETRY) => {}
            }
            if self.held.load(Ordering::Acquire) == 0 {
                match self.enter().await {
                    Ok(Entered::Wrote(new)) => (lease, renewed) = (Some(new), Instant::now()),
                    Ok(Entered::Found) => lease = None,
                    Ok(Entered::Owned(holder)) => {
                        tracing::error!(
                            holder,
                            "another server owns the store in etcd now; nothing is written any more"
                        );
                        self.is_replaced.store(true, Ordering::Release);
                        return;
                    }
                    Err(error) => tracing::warn!(%error, "cannot share the store in etcd"),
                }
            } else if let Some(held) = lease
                && renewed.elapsed() >= RENEW
            {
                match self.renew(held).await {
                    Ok(true) => renewed = Instant::now(),
                    // The key is gone with it; the next write finds out, or the next look.
                    Ok(false) => {
                        lease = None;
                        self.held.store(0, Ordering::Release);
                    }
                    Err(error) => {
                        tracing::warn!(error, "cannot renew the key of the store in etcd");
                    }
                }
            }
        }
        if let Some(lease) = lease {
            self.revoke(lease).await;
        }
    }

    /// What every write of the store compares. Waits while the ownership is being taken anew.
    pub(crate) async fn claim(&self) -> Result<(Compare, u64), Error> {
        let deadline = Instant::now() + CALL;
        loop {
            if self.is_replaced.load(Ordering::Acquire) {
                return Err(self.replaced());
            }
            let held = self.held.load(Ordering::Acquire);
            if held != 0 {
                return Ok((written_at(self.key.clone(), held), held));
            }
            if Instant::now() >= deadline {
                let text = "the ownership of the store in etcd has run out";
                return Err(Error::Unavailable(text.to_owned()));
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Reads the key in the transaction of a write that failed.
    pub(crate) fn look(&self) -> RequestOp {
        let request = RangeRequest {
            key: self.key.clone(),
            ..RangeRequest::default()
        };
        RequestOp {
            request: Some(request_op::Request::RequestRange(request)),
        }
    }

    /// Whether a write failed because the key was not what [`Owner::claim`] said. `found` is what [`Owner::look`] read.
    pub(crate) fn is_lost(&self, claimed: u64, found: Option<&KeyValue>) -> bool {
        let revision = found.map_or(0, |pair| pair.mod_revision.cast_unsigned());
        if revision == claimed {
            return false;
        }
        // Whoever renews the lease finds out more.
        let _changed = self
            .held
            .compare_exchange(claimed, 0, Ordering::AcqRel, Ordering::Acquire);
        true
    }

    fn replaced(&self) -> Error {
        Error::Owned {
            holder: "another server".to_owned(),
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.is_replaced.load(Ordering::Acquire) {
            return Err(self.replaced());
        }
        Ok(())
    }

    async fn grant(&self) -> Result<i64, String> {
        grant(&self.parts.cluster, TTL.as_secs()).await
    }

    /// Writes the key if its revision is what is expected.
    async fn write(&self, lease: i64, expected: u64) -> Result<(), Refusal> {
        let put = PutRequest {
            key: self.key.clone(),
            value: Bytes::from(self.identity.clone()),
            lease,
            prev_kv: false,
        };
        let request = TxnRequest {
            compare: vec![written_at(self.key.clone(), expected)],
            success: vec![RequestOp {
                request: Some(request_op::Request::RequestPut(put)),
            }],
            failure: vec![self.look()],
        };
        let (answer, revision) = match self.parts.cluster.txn(request).await {
            Ok(answered) => answered,
            Err(error) => return Err(Refusal::Failed(error.into())),
        };
        if answer.succeeded {
            self.held.store(revision, Ordering::Release);
            return Ok(());
        }
        let found = answer
            .responses
            .into_iter()
            .next()
            .and_then(|op| op.response);
        match found {
            Some(response_op::Response::ResponseRange(range)) if !range.kvs.is_empty() => {
                let mut kvs = range.kvs;
                Err(Refusal::Held(kvs.swap_remove(0)))
            }
            // It ran out in between.
            _ => Err(Refusal::Failed(Error::Unavailable(
                "the ownership of the store in etcd is changing".to_owned(),
            ))),
        }
    }

    async fn revoke(&self, lease: i64) {
        let request = LeaseRevokeRequest { id: lease };
        let member = self.parts.cluster.member().clone();
        // It runs out by itself.
        let _gone = timeout(CALL, member.lease().lease_revoke(request)).await;
    }

    /// Renews the lease until `closed`, then gives the ownership back.
    pub(crate) async fn keep(self: Arc<Self>, mut lease: i64, closed: CancellationToken) {
        let mut pause = RENEW;
        loop {
            tokio::select! {
                () = closed.cancelled() => break,
                () = sleep(pause) => {}
            }
            pause = match self.renew(lease).await {
                Ok(true) if self.held.load(Ordering::Acquire) != 0 => RENEW,
                Ok(_) => match self.take_anew().await {
                    Ok(Some(new)) => {
                        lease = new;
                        RENEW
                    }
                    Ok(None) => return,
                    Err(error) => {
                        tracing::warn!(%error, "cannot take the store in etcd anew");
                        RETRY
                    }
                },
                Err(error) => {
                    tracing::warn!(error, "cannot renew the ownership of the store in etcd");
                    RETRY
                }
            };
        }
        self.revoke(lease).await;
    }

    /// Whether the lease is still there.
    async fn renew(&self, lease: i64) -> Result<bool, String> {
        let member = self.parts.cluster.member().clone();
        let call = async {
            let ask = tokio_stream::once(LeaseKeepAliveRequest { id: lease });
            let mut answers = member.lease().lease_keep_alive(ask).await?.into_inner();
            answers.message().await
        };
        match timeout(CALL, call).await {
            Ok(Ok(Some(answer))) => Ok(answer.ttl > 0),
            Ok(Ok(None)) => Err("no answer".to_owned()),
            Ok(Err(status)) => {
                self.parts.cluster.pass_over(&member);
                Err(status.message().to_owned())
            }
            Err(_) => {
                self.parts.cluster.pass_over(&member);
                Err("no answer in time".to_owned())
            }
        }
    }

    /// `None`: another server has it.
    async fn take_anew(&self) -> Result<Option<i64>, Error> {
        let lease = self.grant().await.map_err(Error::Unavailable)?;
        match self.write(lease, 0).await {
            Ok(()) => {
                tracing::info!("the store in etcd is owned again");
                Ok(Some(lease))
            }
            Err(Refusal::Held(pair)) => {
                self.revoke(lease).await;
                let holder = String::from_utf8_lossy(&pair.value).into_owned();
                tracing::error!(
                    holder,
                    "another server owns the store in etcd now; nothing is written any more"
                );
                self.is_replaced.store(true, Ordering::Release);
                self.held.store(0, Ordering::Release);
                Ok(None)
            }
            Err(Refusal::Failed(error)) => {
                self.revoke(lease).await;
                Err(error)
            }
        }
    }
}
