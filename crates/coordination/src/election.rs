//! The decision: what the candidates for a Lease and the Lease itself ask for. Nothing is remembered between steps; where an
//! election stands is read from the times in the objects.

use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::api::coordination::v1beta1::{LeaseCandidate, LeaseCandidateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use semver::Version;
use std::cmp::Ordering;
use std::sync::Arc;

/// How long candidates have to answer, and how long an answer counts.
const ANSWER: SignedDuration = SignedDuration::from_secs(5);
/// Who has not renewed for so long is no candidate any more.
const CANDIDATE: SignedDuration = SignedDuration::from_mins(30);
/// How long a lease lasts that was just given; its holder renews it with its own duration.
const TERM_SECONDS: i32 = 5;
/// The strategy that is decided here.
const OLDEST: &str = "OldestEmulationVersion";

/// What is to be done for a Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing, and nothing will be before something changes: nobody stands for it.
    Rest,
    /// Nothing now; answers or an end of the lease are waited for.
    Wait,
    /// These are asked whether they are there.
    Ping(Vec<String>),
    /// All answers that will come have.
    Elect(Choice),
}

/// What an election came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Choice {
    /// The strategy by which the holder is chosen.
    pub(crate) strategy: String,
    /// The candidate that is to hold the lease; none if the strategy is somebody else's.
    pub(crate) holder: Option<String>,
}

/// Why nobody can be elected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ElectionError {
    /// Of the newest binaries two want different strategies.
    #[error(
        "candidates {0:?}, {1:?} at same binary version but received differing strategies {2}, {3}"
    )]
    Strategies(String, String, String, String),
    /// None has answered.
    #[error("no available candidates")]
    Silent,
}

/// What the candidates for a lease, and the lease if there is one, ask for at `now`.
pub(crate) fn step(
    candidates: &[Arc<LeaseCandidate>],
    lease: Option<&LeaseSpec>,
    now: Timestamp,
) -> Result<Step, ElectionError> {
    let standing = candidates.iter().filter_map(|c| Standing::of(c, now));
    let standing: Vec<Standing<'_>> = standing.collect();
    if standing.is_empty() {
        return Ok(Step::Rest);
    }
    if !is_needed(&standing, lease, now)? {
        return Ok(Step::Wait);
    }
    let unasked = standing
        .iter()
        .filter(|c| !c.has_answered(now) && c.may_be_asked(now));
    let unasked: Vec<String> = unasked.map(|c| c.name.to_owned()).collect();
    if !unasked.is_empty() {
        return Ok(Step::Ping(unasked));
    }
    if standing.iter().any(|c| c.is_asked(now)) {
        return Ok(Step::Wait);
    }
    let there = standing.into_iter().filter(|c| c.has_answered(now));
    let there: Vec<Standing<'_>> = there.collect();
    if there.is_empty() {
        return Err(ElectionError::Silent);
    }
    let strategy = strategy(&there)?.to_owned();
    let holder = (strategy == OLDEST)
        .then(|| oldest(&there))
        .flatten()
        .map(|candidate| candidate.name.to_owned());
    Ok(Step::Elect(Choice { strategy, holder }))
}

/// Enters a choice into a lease; whether that changes it. A holder whose lease has not ended keeps it, and learns by
/// `preferredHolder` that it is to give way.
pub(crate) fn enter(choice: &Choice, lease: &mut LeaseSpec, now: Timestamp) -> bool {
    let before = lease.clone();
    lease.strategy = Some(choice.strategy.clone());
    if let Some(chosen) = &choice.holder {
        let holder = lease.holder_identity.as_ref().filter(|h| !h.is_empty());
        match holder {
            Some(holder) if holder == chosen => {}
            Some(_) if !has_ended(lease, now) => lease.preferred_holder = Some(chosen.clone()),
            _ => {
                lease.holder_identity = Some(chosen.clone());
                lease.preferred_holder = None;
                lease.renew_time = Some(MicroTime(now));
                lease.lease_duration_seconds = Some(TERM_SECONDS);
                lease.acquire_time = None;
            }
        }
    }
    *lease != before
}

/// The lease for which there is none yet.
pub(crate) fn first_lease(choice: &Choice, now: Timestamp) -> LeaseSpec {
    LeaseSpec {
        strategy: Some(choice.strategy.clone()),
        holder_identity: choice.holder.clone(),
        lease_duration_seconds: Some(TERM_SECONDS),
        renew_time: Some(MicroTime(now)),
        ..LeaseSpec::default()
    }
}

/// Whether a candidate has not said for so long that it is there that it is none any more.
pub(crate) fn is_expired(candidate: &LeaseCandidate, now: Timestamp) -> bool {
    let renewed = candidate.spec.renew_time.as_ref();
    renewed.is_none_or(|renewed| is_past(renewed.0, CANDIDATE, now))
}

/// Whether more than `span` has passed since.
fn is_past(since: Timestamp, span: SignedDuration, now: Timestamp) -> bool {
    now.duration_since(since) > span
}

/// A lease that its holder has let run out, or that was never renewed.
fn has_ended(lease: &LeaseSpec, now: Timestamp) -> bool {
    let (Some(renewed), Some(seconds)) = (&lease.renew_time, lease.lease_duration_seconds) else {
        return true;
    };
    is_past(renewed.0, SignedDuration::from_secs(seconds.into()), now)
}

/// A candidate that counts.
#[derive(Debug)]
struct Standing<'a> {
    name: &'a str,
    spec: &'a LeaseCandidateSpec,
    renewed: Timestamp,
    created: Option<&'a Time>,
    /// Zero where there is none, or one that cannot be read.
    binary: Version,
    /// Versions of what it emulates and of its binary, if both can be read.
    age: Option<[Version; 2]>,
}

impl<'a> Standing<'a> {
    fn of(candidate: &'a LeaseCandidate, now: Timestamp) -> Option<Self> {
        let spec = &candidate.spec;
        if is_expired(candidate, now) {
            return None;
        }
        let emulated = spec.emulation_version.as_deref().and_then(version);
        let binary = version(&spec.binary_version);
        Some(Self {
            name: candidate.metadata.name.as_deref()?,
            spec,
            renewed: spec.renew_time.as_ref()?.0,
            created: candidate.metadata.creation_timestamp.as_ref(),
            binary: binary.clone().unwrap_or(Version::new(0, 0, 0)),
            age: emulated.zip(binary).map(|(e, b)| [e, b]),
        })
    }

    fn pinged(&self) -> Option<Timestamp> {
        self.spec.ping_time.as_ref().map(|ping| ping.0)
    }

    /// It was asked, and has time to answer.
    fn is_asked(&self, now: Timestamp) -> bool {
        let pinged = self.pinged().filter(|ping| self.renewed < *ping);
        pinged.is_some_and(|ping| now.duration_since(ping) < ANSWER)
    }

    /// It has just said that it is there.
    fn has_answered(&self, now: Timestamp) -> bool {
        now.duration_since(self.renewed) < ANSWER
    }

    /// Who has not answered the last time is not asked again: it is waited for until it says something.
    fn may_be_asked(&self, now: Timestamp) -> bool {
        self.pinged()
            .is_none_or(|ping| is_past(ping, ANSWER, now) && self.renewed >= ping)
    }
}

/// Whether somebody else is to lead, or nobody does, or it is time to see who is there.
fn is_needed(
    standing: &[Standing<'_>],
    lease: Option<&LeaseSpec>,
    now: Timestamp,
) -> Result<bool, ElectionError> {
    let holder = lease
        .filter(|lease| !has_ended(lease, now))
        .and_then(|lease| lease.holder_identity.as_deref())
        .filter(|holder| !holder.is_empty());
    let Some(holder) = holder else {
        return Ok(true);
    };
    if standing
        .iter()
        .any(|c| is_past(c.renewed, CANDIDATE / 2, now))
    {
        return Ok(true);
    }
    let best = match strategy(standing)? {
        OLDEST => oldest(standing),
        _ => None,
    };
    Ok(best.is_some_and(|best| best.name != holder))
}

/// The strategy that the newest binary asks for.
fn strategy<'a>(standing: &[Standing<'a>]) -> Result<&'a str, ElectionError> {
    let mut chosen: Option<&Standing<'a>> = None;
    for candidate in standing {
        let order = chosen.map_or(Ordering::Greater, |chosen| {
            candidate.binary.cmp_precedence(&chosen.binary)
        });
        match (order, chosen) {
            (Ordering::Greater, _) => chosen = Some(candidate),
            (Ordering::Equal, Some(chosen)) if chosen.spec.strategy != candidate.spec.strategy => {
                return Err(ElectionError::Strategies(
                    chosen.name.to_owned(),
                    candidate.name.to_owned(),
                    chosen.spec.strategy.clone(),
                    candidate.spec.strategy.clone(),
                ));
            }
            _ => {}
        }
    }
    let chosen = chosen.map(|chosen| chosen.spec.strategy.as_str());
    chosen.ok_or(ElectionError::Silent)
}

/// The candidate that emulates the oldest version; of several the oldest binary, then the oldest object.
fn oldest<'s, 'a>(standing: &'s [Standing<'a>]) -> Option<&'s Standing<'a>> {
    let readable = standing.iter().filter_map(|c| Some((c.age.as_ref()?, c)));
    let oldest = readable.min_by(|(a, x), (b, y)| {
        let versions = a.iter().zip(b.iter());
        let by_version = versions
            .map(|(a, b)| a.cmp_precedence(b))
            .find(|order| order.is_ne());
        let by_age = || x.created.map(|t| t.0).cmp(&y.created.map(|t| t.0));
        by_version.unwrap_or_else(by_age).then(x.name.cmp(y.name))
    });
    oldest.map(|(_, candidate)| candidate)
}

/// The API server takes semantic versions only.
fn version(text: &str) -> Option<Version> {
    Version::parse(text).ok()
}

#[cfg(test)]
mod tests;
