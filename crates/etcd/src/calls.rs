//! Calls: to a member that answers, with what their answers say of the cluster.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use davit_proto::etcd::etcdserverpb::{
    CompactionRequest, CompactionResponse, RangeRequest, RangeResponse, ResponseHeader,
    StatusRequest, StatusResponse, TxnRequest, TxnResponse,
};
use davit_store::Error;
use tokio::time::{Instant, sleep, timeout};
use tonic::{Code, Status};

use crate::endpoint::Member;

/// How long one member may take for one call; lists of large clusters take seconds.
const CALL: Duration = Duration::from_secs(20);
/// How long a member is looked for that answers.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two rounds over all members.
const PAUSE: Duration = Duration::from_millis(50);
/// After so many answers from a state before the one that is known, the cluster is another than it was.
const WENT_BACK: u32 = 3;

/// What all answers carry.
pub(crate) trait Answer {
    /// Who answered, and at which revision.
    fn header(&self) -> Option<&ResponseHeader>;
}

macro_rules! answers {
    ($($name:ty),*) => {$(
        impl Answer for $name {
            fn header(&self) -> Option<&ResponseHeader> {
                self.header.as_ref()
            }
        }
    )*};
}

answers!(RangeResponse, TxnResponse, CompactionResponse);

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// No member has got the request.
    #[error("etcd cannot be reached: {0}")]
    NotSent(String),
    /// A member may have got it, and no answer came.
    #[error("{0}")]
    Lost(String),
    /// A member has refused it.
    #[error("{message}")]
    Refused {
        /// The class.
        code: Code,
        /// In etcd's words.
        message: String,
    },
}

impl CallError {
    pub(crate) fn is_compacted(&self) -> bool {
        self.says(Code::OutOfRange, "has been compacted")
    }

    pub(crate) fn is_future(&self) -> bool {
        self.says(Code::OutOfRange, "is a future revision")
    }

    pub(crate) fn is_too_large(&self) -> bool {
        self.says(Code::InvalidArgument, "request is too large")
    }

    pub(crate) fn is_lease_gone(&self) -> bool {
        self.says(Code::NotFound, "lease not found")
    }

    fn says(&self, wanted: Code, text: &str) -> bool {
        matches!(self, Self::Refused { code, message } if *code == wanted && message.contains(text))
    }
}

impl From<CallError> for Error {
    fn from(error: CallError) -> Self {
        match error {
            CallError::NotSent(_) | CallError::Lost(_) => Self::Unavailable(error.to_string()),
            CallError::Refused { message, .. } => Self::Refused(message),
        }
    }
}

/// Whether a request has not left this machine.
fn is_unsent(status: &Status) -> bool {
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// The innermost reason, which says most.
fn innermost(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        text = error.to_string();
        source = error.source();
    }
    text
}

/// The members of one cluster.
pub(crate) struct Cluster {
    members: Vec<Member>,
    /// The member that answered last.
    preferred: AtomicUsize,
    /// The newest revision that was seen.
    seen: AtomicU64,
    /// The cluster's id; zero until it is known.
    id: AtomicU64,
    /// Answers from the past, one after the other.
    stale: AtomicU32,
}

impl Cluster {
    pub(crate) fn new(members: Vec<Member>) -> Self {
        Self {
            members,
            preferred: AtomicUsize::new(0),
            seen: AtomicU64::new(0),
            id: AtomicU64::new(0),
            stale: AtomicU32::new(0),
        }
    }

    pub(crate) fn seen(&self) -> u64 {
        self.seen.load(Ordering::Acquire)
    }

    pub(crate) fn members(&self) -> &[Member] {
        &self.members
    }

    /// The member to begin with.
    pub(crate) fn member(&self) -> &Member {
        let index = self.preferred.load(Ordering::Relaxed) % self.members.len();
        &self.members[index]
    }

    /// The member did not answer: the next one is asked first from now on.
    pub(crate) fn pass_over(&self, member: &Member) {
        if self.member().url == member.url {
            self.preferred.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes note of what an answer says of the cluster. `floor`: what was known before the question.
    pub(crate) fn note(&self, header: Option<&ResponseHeader>, floor: u64) -> Result<u64, String> {
        let Some(header) = header else {
            return Err("an answer without a header".to_owned());
        };
        let known =
            self.id
                .compare_exchange(0, header.cluster_id, Ordering::AcqRel, Ordering::Acquire);
        if let Err(known) = known
            && known != header.cluster_id
        {
            return Err(format!(
                "another cluster is behind the address: its id is {:x}, it was {known:x}",
                header.cluster_id
            ));
        }
        let revision = u64::try_from(header.revision);
        let revision = revision.map_err(|_| format!("etcd says revision {}", header.revision))?;
        if revision < floor {
            self.stale.fetch_add(1, Ordering::Relaxed);
            return Err(format!("etcd went back from {floor} to {revision}"));
        }
        self.stale.store(0, Ordering::Relaxed);
        self.seen.fetch_max(revision, Ordering::AcqRel);
        Ok(revision)
    }

    /// Whether the cluster is the one it was.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.stale.load(Ordering::Relaxed) >= WENT_BACK {
            let text = format!("etcd went back: it had revision {} before", self.seen());
            return Err(Error::Unavailable(text));
        }
        Ok(())
    }

    /// Asks members until one answers. What `repeats` may be asked again after a member may have got it.
    async fn call<T: Answer, F>(
        &self,
        repeats: bool,
        mut ask: impl FnMut(Member) -> F,
    ) -> Result<(T, u64), CallError>
    where
        F: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let deadline = Instant::now() + PATIENCE;
        let mut asked = 0;
        loop {
            let member = self.member().clone();
            let floor = self.seen();
            let answer = timeout(CALL, ask(member.clone())).await;
            let (sent, why) = match answer {
                Ok(Ok(answer)) => {
                    let answer = answer.into_inner();
                    match self.note(answer.header(), floor) {
                        Ok(revision) => return Ok((answer, revision)),
                        Err(why) => (true, why),
                    }
                }
                Ok(Err(status)) if is_unsent(&status) => (false, innermost(&status)),
                Ok(Err(status)) if status.code() == Code::Unavailable => (true, innermost(&status)),
                Ok(Err(status)) if is_transport(&status) => (true, innermost(&status)),
                Ok(Err(status)) => {
                    return Err(CallError::Refused {
                        code: status.code(),
                        message: status.message().to_owned(),
                    });
                }
                Err(_) => (true, format!("no answer within {} s", CALL.as_secs())),
            };
            let why = format!("{}: {why}", member.url);
            self.pass_over(&member);
            if sent && !repeats {
                return Err(CallError::Lost(why));
            }
            if Instant::now() >= deadline {
                return Err(if sent {
                    CallError::Lost(why)
                } else {
                    CallError::NotSent(why)
                });
            }
            asked += 1;
            if asked % self.members.len() == 0 {
                sleep(PAUSE).await;
            }
        }
    }

    pub(crate) async fn range(
        &self,
        request: RangeRequest,
    ) -> Result<(RangeResponse, u64), CallError> {
        self.call(true, |member| {
            let request = request.clone();
            async move { member.kv().range(request).await }
        })
        .await
    }

    pub(crate) async fn txn(&self, request: TxnRequest) -> Result<(TxnResponse, u64), CallError> {
        self.call(false, |member| {
            let request = request.clone();
            async move { member.kv().txn(request).await }
        })
        .await
    }

    pub(crate) async fn compact(&self, revision: u64) -> Result<(), CallError> {
        let request = CompactionRequest {
            revision: revision.cast_signed(),
            physical: false,
        };
        let compacted: Result<(CompactionResponse, u64), _> = self
            .call(
                true,
                |member| async move { member.kv().compact(request).await },
            )
            .await;
        compacted.map(drop)
    }

    /// What a member says of itself.
    pub(crate) async fn status(member: &Member) -> Result<StatusResponse, String> {
        match timeout(PATIENCE, member.maintenance().status(StatusRequest {})).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(innermost(&status)),
            Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
        }
    }
}

/// Whether the connection broke, which the library calls by several names.
fn is_transport(status: &Status) -> bool {
    std::error::Error::source(status).is_some()
        && matches!(
            status.code(),
            Code::Unknown | Code::Internal | Code::Cancelled
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a large number it would make every later answer one from the past.
    #[test]
    fn a_revision_below_zero_is_none() {
        let cluster = Cluster::new(Vec::new());
        let note = |revision| {
            let header = ResponseHeader {
                cluster_id: 1,
                revision,
                ..ResponseHeader::default()
            };
            cluster.note(Some(&header), 0)
        };
        assert_eq!(note(5), Ok(5));
        assert!(note(-1).is_err());
        assert_eq!(note(6), Ok(6));
        assert_eq!(cluster.seen(), 6);
    }
}
