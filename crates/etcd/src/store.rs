//! The store's calls as etcd's.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use davit_proto::etcd::etcdserverpb::{
    DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, ResponseOp, TxnRequest, TxnResponse,
    request_op, response_op,
};
use davit_proto::etcd::mvccpb;
use davit_store::{
    Committed, Error, Expect, KeyValue, ListOptions, Listing, Operation, Result, Store,
    WatchStream, Write,
};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::calls::{CallError, Cluster};
use crate::endpoint::{EndpointUrl, Member};
use crate::layout::{Layout, exists, written_at};
use crate::leases::Leases;
use crate::members::present;
use crate::owner::Owner;
use crate::parts::{EtcdParts, one};
use crate::tls::TlsFiles;
use crate::{compactor, watch};

/// What etcd takes in one request, less what surrounds the value.
const MAX_VALUE: usize = 1_572_864;
/// How long etcd may take to say that it is well.
const HEALTH: Duration = Duration::from_secs(2);
/// How long the tasks of a store have to end.
const END: Duration = Duration::from_secs(5);

/// How etcd is used.
#[derive(Debug, Clone)]
pub struct EtcdOptions {
    /// The members' client addresses (`--etcd-servers`).
    pub servers: Vec<EndpointUrl>,
    /// TLS (`--etcd-cafile`, `--etcd-certfile`, `--etcd-keyfile`).
    pub tls: TlsFiles,
    /// What all keys begin with (`--etcd-prefix`).
    pub prefix: String,
    /// How often history is forgotten (`--etcd-compaction-interval`); zero for never.
    pub compaction_interval: Duration,
    /// How many changes may wait for one watcher before it is dropped.
    pub watch_buffer: usize,
    /// How long a start waits for etcd.
    pub patience: Duration,
    /// Names this server as the store's owner; the same name after a restart takes the store over at once.
    pub identity: String,
    /// Other servers that say so, too, write at the same time.
    pub shared: bool,
}

impl EtcdOptions {
    /// The defaults for these members.
    pub fn new(servers: Vec<EndpointUrl>, identity: impl Into<String>) -> Self {
        Self {
            servers,
            tls: TlsFiles::default(),
            prefix: "/registry".to_owned(),
            compaction_interval: Duration::from_secs(300),
            watch_buffer: 8192,
            patience: Duration::from_secs(10),
            identity: identity.into(),
            shared: false,
        }
    }
}

/// A store in an etcd cluster.
pub struct EtcdStore {
    parts: Arc<EtcdParts>,
    owner: Arc<Owner>,
    leases: Leases,
    tasks: Mutex<JoinSet<()>>,
}

impl EtcdStore {
    /// Opens the store: finds a member that is new enough, and takes the ownership of what is below the prefix, or a
    /// part in it.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when no member answers, [`Error::Refused`] for a release that is too old, [`Error::Owned`]
    /// when another server has the store.
    pub async fn open(options: EtcdOptions) -> Result<Self> {
        if options.tls != TlsFiles::default() {
            // Files that cannot be used are better named here than in each attempt to connect.
            let read = options.tls.read();
            read.map_err(|error| Error::Unavailable(error.to_string()))?;
        }
        let members: std::result::Result<Vec<Member>, _> = options
            .servers
            .into_iter()
            .map(|url| Member::new(url, &options.tls))
            .collect();
        let members = members.map_err(|error| Error::Unavailable(error.to_string()))?;
        if members.is_empty() {
            return Err(Error::Unavailable("no address of etcd is given".to_owned()));
        }
        let cluster = Cluster::new(present(members, options.patience).await?);
        let layout = Layout::new(&options.prefix);
        let parts = Arc::new(EtcdParts::new(cluster, layout, options.watch_buffer));
        compactor::learn(&parts).await?;
        parts.look_back().await?;
        let mut tasks = JoinSet::new();
        let owner = if options.shared {
            let (owner, lease) = Owner::share(Arc::clone(&parts)).await?;
            tasks.spawn(Arc::clone(&owner).stay(lease, parts.closed.clone()));
            owner
        } else {
            let (owner, lease) = Owner::take(Arc::clone(&parts), options.identity).await?;
            tasks.spawn(Arc::clone(&owner).keep(lease, parts.closed.clone()));
            owner
        };
        if !options.compaction_interval.is_zero() {
            tasks.spawn(compactor::run(
                Arc::clone(&parts),
                options.compaction_interval,
                parts.closed.clone(),
            ));
        }
        Ok(Self {
            parts,
            owner,
            leases: Leases::default(),
            tasks: Mutex::new(tasks),
        })
    }

    /// Whether this etcd has keys that begin with `below` in a store with another prefix.
    ///
    /// # Errors
    /// etcd does not answer.
    pub async fn has_elsewhere(&self, prefix: &str, below: &str) -> Result<bool> {
        let (key, range_end) = Layout::new(prefix).range(below, None);
        let request = RangeRequest {
            key,
            range_end,
            count_only: true,
            ..RangeRequest::default()
        };
        let (answer, _) = self.parts.cluster.range(request).await?;
        Ok(answer.count > 0)
    }
}

fn operation(request: request_op::Request) -> RequestOp {
    RequestOp {
        request: Some(request),
    }
}

/// The pair that a range of one key found.
fn found(response: Option<ResponseOp>) -> Option<mvccpb::KeyValue> {
    match response?.response? {
        response_op::Response::ResponseRange(range) => range.kvs.into_iter().next(),
        _ => None,
    }
}

/// The pair that a write replaced.
fn replaced(response: Option<ResponseOp>) -> Option<mvccpb::KeyValue> {
    match response?.response? {
        response_op::Response::ResponsePut(put) => put.prev_kv,
        response_op::Response::ResponseDeleteRange(delete) => delete.prev_kvs.into_iter().next(),
        response_op::Response::ResponseRange(_) => None,
    }
}

impl EtcdStore {
    /// The lease of a pair that is to go by itself; zero for one that stays.
    async fn lease(&self, write: &Write) -> Result<i64> {
        let Some(ttl) = write.ttl else {
            return Ok(0);
        };
        let lease = self.leases.get(&self.parts.cluster, ttl).await;
        lease.map_err(Error::Unavailable)
    }

    fn request(&self, write: &Write, key: &Bytes, lease: i64) -> TxnRequest {
        let compare = match (write.expect, &write.op) {
            (Expect::Absent, _) => Some(written_at(key.clone(), 0)),
            (Expect::Revision(revision), _) => Some(written_at(key.clone(), revision)),
            (Expect::Any, Operation::Delete) => Some(exists(key.clone())),
            (Expect::Any, Operation::Put(_)) => None,
        };
        let act = match &write.op {
            Operation::Put(value) => request_op::Request::RequestPut(PutRequest {
                key: key.clone(),
                value: value.clone(),
                lease,
                prev_kv: true,
            }),
            Operation::Delete => request_op::Request::RequestDeleteRange(DeleteRangeRequest {
                key: key.clone(),
                prev_kv: true,
                ..DeleteRangeRequest::default()
            }),
        };
        TxnRequest {
            compare: compare.into_iter().collect(),
            success: vec![operation(act)],
            failure: vec![
                operation(request_op::Request::RequestRange(one(key.clone()))),
                self.owner.look(),
            ],
        }
    }

    fn done(&self, write: Write, answer: TxnResponse, revision: u64) -> Result<Committed> {
        let previous = replaced(answer.responses.into_iter().next());
        let previous = previous.and_then(|pair| self.parts.layout.pair(pair));
        // Deleting what is to be absent writes nothing.
        if write.op == Operation::Delete && previous.is_none() {
            return Err(Error::NotFound { key: write.key });
        }
        Ok(committed(write, previous, revision))
    }

    /// Finds out what became of a write whose answer was lost.
    async fn resolve(&self, write: Write, key: Bytes) -> Result<Committed> {
        let unknown = Error::OutcomeUnknown {
            key: write.key.clone(),
        };
        let Ok((answer, _)) = self.parts.cluster.range(one(key)).await else {
            return Err(unknown);
        };
        let current = answer.kvs.into_iter().next();
        let current = current.and_then(|pair| self.parts.layout.pair(pair));
        let at = current.as_ref().map_or(0, |pair| pair.mod_revision);
        let expected = match write.expect {
            Expect::Absent => 0,
            Expect::Revision(revision) => revision,
            Expect::Any => return Err(unknown),
        };
        // Still as expected: it may be applied later.
        if at == expected {
            return Err(unknown);
        }
        match (&write.op, current) {
            (Operation::Put(value), Some(pair)) if pair.value == *value => {
                // The write is done, whether what it replaced can be read or not.
                let previous = self.get_at(&write.key, at - 1).await.unwrap_or(None);
                Ok(Committed {
                    revision: at,
                    current: Some(pair),
                    previous,
                })
            }
            (Operation::Delete, None) => Err(unknown),
            (_, current) => Err(Error::Conflict {
                key: write.key,
                current: current.map(Box::new),
            }),
        }
    }
}

fn committed(write: Write, previous: Option<KeyValue>, revision: u64) -> Committed {
    let current = match write.op {
        Operation::Delete => None,
        Operation::Put(value) => Some(KeyValue {
            key: Arc::from(write.key),
            value,
            mod_revision: revision,
            create_revision: previous.as_ref().map_or(revision, |p| p.create_revision),
        }),
    };
    Committed {
        revision,
        current,
        previous,
    }
}

#[async_trait]
impl Store for EtcdStore {
    fn revision(&self) -> u64 {
        self.parts.cluster.seen()
    }

    async fn current_revision(&self) -> Result<u64> {
        self.parts.current_revision().await
    }

    async fn oldest_revision(&self) -> Result<u64> {
        Ok(self.parts.begin())
    }

    async fn get(&self, key: &str) -> Result<Option<KeyValue>> {
        let (answer, _) = self.parts.read(one(self.parts.layout.key(key))).await?;
        let pair = answer.kvs.into_iter().next();
        Ok(pair.and_then(|pair| self.parts.layout.pair(pair)))
    }

    async fn get_at(&self, key: &str, revision: u64) -> Result<Option<KeyValue>> {
        let request = RangeRequest {
            revision: revision.cast_signed(),
            ..one(self.parts.layout.key(key))
        };
        let (answer, _) = self.parts.read(request).await?;
        let pair = answer.kvs.into_iter().next();
        Ok(pair.and_then(|pair| self.parts.layout.pair(pair)))
    }

    async fn list(&self, prefix: &str, opts: ListOptions) -> Result<Listing> {
        let layout = &self.parts.layout;
        let (key, range_end) = layout.range(prefix, opts.start.as_deref());
        let request = RangeRequest {
            key,
            range_end,
            limit: opts.limit.and_then(|n| i64::try_from(n).ok()).unwrap_or(0),
            revision: opts.revision.unwrap_or(0).cast_signed(),
            ..RangeRequest::default()
        };
        // A page of nothing is no page without a limit.
        if opts.limit == Some(0) {
            let counted = RangeRequest {
                count_only: true,
                ..request
            };
            let (answer, revision) = self.parts.read(counted).await?;
            let remaining = usize::try_from(answer.count).unwrap_or(0);
            return Ok(Listing {
                items: Vec::new(),
                revision: opts.revision.unwrap_or(revision),
                more: remaining > 0,
                remaining,
            });
        }
        let (answer, revision) = self.parts.read(request).await?;
        let count = usize::try_from(answer.count).unwrap_or(0);
        let remaining = count.saturating_sub(answer.kvs.len());
        let items = answer.kvs.into_iter();
        Ok(Listing {
            items: items.filter_map(|pair| layout.pair(pair)).collect(),
            revision: opts.revision.unwrap_or(revision),
            more: answer.more,
            remaining,
        })
    }

    async fn commit(&self, write: Write) -> Result<Committed> {
        write.check(MAX_VALUE)?;
        if !Layout::takes(&write.key) {
            return Err(Error::InvalidKey {
                key: write.key,
                reason: "it does not begin with a slash",
            });
        }
        let key = self.parts.layout.key(&write.key);
        let (mut lease, mut renewed) = (self.lease(&write).await?, false);
        loop {
            if self.parts.closed.is_cancelled() {
                return Err(Error::Closed);
            }
            let (claim, claimed) = self.owner.claim().await?;
            let mut request = self.request(&write, &key, lease);
            request.compare.push(claim);
            let (answer, revision) = match self.parts.cluster.txn(request).await {
                Ok(answered) => answered,
                Err(CallError::Lost(why)) => {
                    tracing::debug!(key = write.key, why, "the answer to a write is lost");
                    return self.resolve(write, key).await;
                }
                Err(error) if error.is_lease_gone() && !std::mem::replace(&mut renewed, true) => {
                    self.leases.forget(lease).await;
                    lease = self.lease(&write).await?;
                    continue;
                }
                Err(error) if error.is_too_large() => {
                    let size = match &write.op {
                        Operation::Put(value) => value.len(),
                        Operation::Delete => 0,
                    };
                    return Err(Error::TooLarge {
                        key: write.key,
                        size,
                        limit: MAX_VALUE,
                    });
                }
                Err(error) => return Err(error.into()),
            };
            if answer.succeeded {
                return self.done(write, answer, revision);
            }
            let mut responses = answer.responses.into_iter();
            let current = found(responses.next());
            if self
                .owner
                .is_lost(claimed, found(responses.next()).as_ref())
            {
                continue;
            }
            let current = current.and_then(|pair| self.parts.layout.pair(pair));
            if write.expect == Expect::Any {
                return Err(Error::NotFound { key: write.key });
            }
            return Err(Error::Conflict {
                key: write.key,
                current: current.map(Box::new),
            });
        }
    }

    async fn watch(&self, prefix: &str, after: u64) -> Result<WatchStream> {
        watch::open(&self.parts, prefix, after)
    }

    async fn compact(&self, revision: u64) -> Result<()> {
        if self.parts.closed.is_cancelled() {
            return Err(Error::Closed);
        }
        self.parts.compact(revision).await
    }

    fn expires(&self) -> bool {
        true
    }

    async fn health(&self) -> Result<()> {
        if self.parts.closed.is_cancelled() {
            return Err(Error::Closed);
        }
        self.owner.check()?;
        self.parts.cluster.check()?;
        let asked = async {
            self.parts.current_revision().await?;
            // The one that has just answered.
            let status = Cluster::status(self.parts.cluster.member()).await;
            status.map_err(Error::Unavailable)
        };
        let Ok(status) = timeout(HEALTH, asked).await else {
            return Err(Error::Unavailable("etcd does not answer".to_owned()));
        };
        let faults = status?.errors;
        if faults.is_empty() {
            return Ok(());
        }
        Err(Error::Unavailable(format!("etcd: {}", faults.join("; "))))
    }

    async fn size(&self) -> Option<u64> {
        let status = Cluster::status(self.parts.cluster.member()).await.ok()?;
        u64::try_from(status.db_size).ok()
    }

    async fn close(&self) {
        self.parts.closed.cancel();
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        let ended = async { while tasks.join_next().await.is_some() {} };
        let _late = timeout(END, ended).await;
    }
}

impl Drop for EtcdStore {
    fn drop(&mut self) {
        self.parts.closed.cancel();
    }
}
