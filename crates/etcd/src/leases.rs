//! Leases for pairs that go by themselves. As in kube-apiserver many pairs share one: a lease is given out for a while, and lives
//! that much longer than its pairs are to.

use std::collections::BTreeMap;
use std::time::Duration;

use davit_proto::etcd::etcdserverpb::LeaseGrantRequest;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use crate::calls::Cluster;

/// For how long a lease is given out at most (`--lease-reuse-duration-seconds`).
const REUSE: Duration = Duration::from_secs(60);
/// A part of the time to live, which it is not given out longer than: 5 %.
const REUSE_PART: u32 = 20;
/// How many pairs one lease may have.
const PAIRS: u32 = 1000;
/// How long one call may take.
const CALL: Duration = Duration::from_secs(4);

struct Shared {
    id: i64,
    until: Instant,
    pairs: u32,
}

/// The leases that are given out, by the time that pairs are to live.
#[derive(Default)]
pub(crate) struct Leases(Mutex<BTreeMap<u64, Shared>>);

impl Leases {
    /// A lease for one more pair.
    pub(crate) async fn get(&self, cluster: &Cluster, ttl: Duration) -> Result<i64, String> {
        let mut held = self.0.lock().await;
        let now = Instant::now();
        held.retain(|_, lease| lease.until > now && lease.pairs < PAIRS);
        let seconds = ttl.as_secs().max(1);
        if let Some(lease) = held.get_mut(&seconds) {
            lease.pairs += 1;
            return Ok(lease.id);
        }
        let reuse = (ttl / REUSE_PART).min(REUSE);
        let id = grant(cluster, seconds + reuse.as_secs()).await?;
        let lease = Shared {
            id,
            until: now + reuse,
            pairs: 1,
        };
        held.insert(seconds, lease);
        Ok(id)
    }

    /// The lease is not there any more.
    pub(crate) async fn forget(&self, id: i64) {
        self.0.lock().await.retain(|_, lease| lease.id != id);
    }
}

/// Asks every member at most once.
pub(crate) async fn grant(cluster: &Cluster, seconds: u64) -> Result<i64, String> {
    let request = LeaseGrantRequest {
        ttl: seconds.cast_signed(),
        id: 0,
    };
    let mut why = String::new();
    for _ in cluster.members() {
        let member = cluster.member().clone();
        match timeout(CALL, member.lease().lease_grant(request)).await {
            Ok(Ok(answer)) => return Ok(answer.into_inner().id),
            Ok(Err(status)) => why = format!("{}: {}", member.url, status.message()),
            Err(_) => why = format!("{}: no answer", member.url),
        }
        cluster.pass_over(&member);
    }
    Err(format!("etcd grants no lease: {why}"))
}
