//! Forgets history, by the protocol that all API servers on one etcd share: whoever counts the compactor's key up compacts
//! to where etcd was one interval ago.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use davit_proto::etcd::etcdserverpb::{
    Compare, PutRequest, RangeRequest, RequestOp, TxnRequest, compare, request_op, response_op,
};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::parts::EtcdParts;

/// The key, of all servers whatever their prefix.
const KEY: &[u8] = b"compact_rev_key";

/// What a compactor remembers from round to round.
#[derive(Debug, Default)]
struct Round {
    /// How often the key was written.
    version: i64,
    /// Where etcd was in the last round.
    revision: u64,
}

/// Compacts every `interval` until the store is closed.
pub(crate) async fn run(parts: Arc<EtcdParts>, interval: Duration, closed: CancellationToken) {
    let mut round = Round::default();
    loop {
        tokio::select! {
            () = closed.cancelled() => return,
            () = sleep(interval) => {}
        }
        round = match turn(&parts, &round).await {
            Ok(next) => next,
            Err(error) => {
                tracing::warn!(%error, "cannot compact etcd");
                round
            }
        };
    }
}

async fn turn(parts: &EtcdParts, round: &Round) -> Result<Round, davit_store::Error> {
    let request = TxnRequest {
        compare: vec![Compare {
            result: compare::CompareResult::Equal.into(),
            target: compare::CompareTarget::Version.into(),
            key: Bytes::from_static(KEY),
            target_union: Some(compare::TargetUnion::Version(round.version)),
        }],
        success: vec![RequestOp {
            request: Some(request_op::Request::RequestPut(PutRequest {
                key: Bytes::from_static(KEY),
                value: Bytes::from(round.revision.to_string()),
                ..PutRequest::default()
            })),
        }],
        failure: vec![RequestOp {
            request: Some(request_op::Request::RequestRange(read())),
        }],
    };
    let (answer, revision) = parts.cluster.txn(request).await?;
    if !answer.succeeded {
        // Another's turn.
        let found = answer
            .responses
            .into_iter()
            .next()
            .and_then(|op| op.response);
        let version = match found {
            Some(response_op::Response::ResponseRange(range)) => {
                range.kvs.first().map_or(0, |pair| pair.version)
            }
            _ => 0,
        };
        learn(parts).await?;
        return Ok(Round { version, revision });
    }
    if round.revision != 0 {
        parts.compact(round.revision).await?;
        tracing::debug!(revision = round.revision, "etcd is compacted");
    }
    Ok(Round {
        version: round.version + 1,
        revision,
    })
}

fn read() -> RangeRequest {
    RangeRequest {
        key: Bytes::from_static(KEY),
        ..RangeRequest::default()
    }
}

/// Learns from the key how far others have compacted.
pub(crate) async fn learn(parts: &EtcdParts) -> Result<(), davit_store::Error> {
    let (answer, _) = parts.cluster.range(read()).await?;
    let written = answer.kvs.first().map(|pair| pair.value.clone());
    let text = written.and_then(|value| String::from_utf8(value.into()).ok());
    if let Some(revision) = text.and_then(|text| text.trim().parse().ok()) {
        parts.forget_before(revision);
    }
    Ok(())
}
