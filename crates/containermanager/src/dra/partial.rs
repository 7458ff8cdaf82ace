//! What drivers have done for a pod that does not get on because another driver of its claims fails.
//!
//! A failed preparation is tried again soon and most failures pass, so what the others have done is kept meanwhile: to
//! undo hardware and to do it again helps nobody. A pod that has failed for [`super::Options::keep_partial`] gives it
//! back; from then on the drivers that failed are asked first, and the others only when these have succeeded.

use super::driver::Asked;
use crate::allocation::ClaimHold;
use davit_task::RepeatedFailure;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// A claim, by its UID, and a driver.
pub(super) type Key = (String, String);

/// The pods whose last preparation failed, by UID. Pure.
#[derive(Debug, Default)]
pub(super) struct Failing(BTreeMap<String, Failure>);

#[derive(Debug)]
struct Failure {
    since: Instant,
    /// What drivers have said yes to since.
    fresh: BTreeSet<Key>,
    /// Drivers that failed last.
    culprits: BTreeSet<String>,
    /// Something was undone.
    undone: bool,
    /// Why drivers could not undo what they have done.
    stuck: BTreeMap<String, RepeatedFailure>,
}

impl Failing {
    /// An attempt failed because of `culprits`, while other drivers did what is in `fresh`.
    pub(super) fn failed(
        &mut self,
        pod: &str,
        fresh: BTreeSet<Key>,
        culprits: BTreeSet<String>,
        now: Instant,
    ) {
        let failure = self.0.entry(pod.to_owned()).or_insert_with(|| Failure {
            since: now,
            fresh: BTreeSet::new(),
            culprits: BTreeSet::new(),
            undone: false,
            stuck: BTreeMap::new(),
        });
        failure.fresh.extend(fresh);
        failure.culprits = culprits;
    }

    /// The pod is ready or gone.
    pub(super) fn over(&mut self, pod: &str) {
        self.0.remove(pod);
    }

    /// The order in which drivers are asked: all at once, or first those that have failed for long.
    pub(super) fn rounds(
        &self,
        pod: &str,
        asked: BTreeMap<String, Vec<Asked>>,
    ) -> Vec<BTreeMap<String, Vec<Asked>>> {
        let Some(failure) = self.0.get(pod).filter(|f| f.undone) else {
            return vec![asked];
        };
        let (first, then): (BTreeMap<_, _>, BTreeMap<_, _>) = asked
            .into_iter()
            .partition(|(driver, _)| failure.culprits.contains(driver));
        [first, then]
            .into_iter()
            .filter(|r| !r.is_empty())
            .collect()
    }

    /// What is to be undone for a pod that has failed for long. Claims stay that a pod uses which does not fail.
    pub(super) fn due<'a>(
        &self,
        pod: &str,
        claims: impl IntoIterator<Item = &'a ClaimHold>,
        keep: Duration,
        now: Instant,
    ) -> Vec<Key> {
        let Some(failure) = self.0.get(pod).filter(|f| now >= f.since + keep) else {
            return Vec::new();
        };
        let unused = claims
            .into_iter()
            .filter(|hold| hold.pods.iter().all(|p| self.0.contains_key(&p.uid)));
        let uids: BTreeSet<&String> = unused.map(|hold| &hold.claim.uid).collect();
        let fresh = failure.fresh.iter();
        fresh
            .filter(|(claim, _)| uids.contains(claim))
            .cloned()
            .collect()
    }

    /// Whether it is worth a line in the log that a driver cannot undo what it has done for a pod.
    pub(super) fn is_news(&mut self, pod: &str, driver: &str, error: &str) -> bool {
        let Some(failure) = self.0.get_mut(pod) else {
            return true;
        };
        let stuck = failure.stuck.entry(driver.to_owned()).or_default();
        stuck.is_news(error)
    }

    /// These were undone.
    pub(super) fn undone(&mut self, keys: &[Key]) {
        for failure in self.0.values_mut() {
            for key in keys {
                failure.undone |= failure.fresh.remove(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocation::{ClaimName, PodName};

    fn hold(uid: &str, pods: &[&str]) -> ClaimHold {
        let name = |uid: &str| PodName {
            uid: uid.to_owned(),
            namespace: "ns".to_owned(),
            name: uid.to_owned(),
        };
        ClaimHold {
            claim: ClaimName {
                uid: uid.to_owned(),
                namespace: "ns".to_owned(),
                name: uid.to_owned(),
            },
            classic: false,
            pods: pods.iter().map(|p| name(p)).collect(),
            drivers: BTreeMap::new(),
            since: 0,
        }
    }

    fn key(claim: &str, driver: &str) -> Key {
        (claim.to_owned(), driver.to_owned())
    }

    #[test]
    fn what_was_done_is_given_back_late_and_only_where_nobody_needs_it() {
        let (mut failing, start) = (Failing::default(), Instant::now());
        let keep = Duration::from_secs(60);
        let own = hold("own", &["p"]);
        let shared = hold("shared", &["p", "q"]);
        let holds = [&own, &shared];
        let fresh = BTreeSet::from([key("own", "a"), key("shared", "a")]);
        let culprits = BTreeSet::from(["b".to_owned()]);
        failing.failed("p", fresh, culprits.clone(), start);
        assert!(failing.due("p", holds, keep, start).is_empty());
        // A later failure does not begin anew.
        let late = start + keep;
        failing.failed("p", BTreeSet::new(), culprits.clone(), late);
        assert_eq!(failing.due("p", holds, keep, late), [key("own", "a")]);
        // The other user of the claim fails as well.
        failing.failed("q", BTreeSet::new(), culprits, late);
        assert_eq!(
            failing.due("p", holds, keep, late),
            [key("own", "a"), key("shared", "a")]
        );
        let asked = || BTreeMap::from(["a", "b"].map(|d| (d.to_owned(), Vec::new())));
        assert_eq!(failing.rounds("p", asked()).len(), 1);
        failing.undone(&[key("own", "a")]);
        let rounds = failing.rounds("p", asked());
        let first: Vec<&str> = rounds[0].keys().map(String::as_str).collect();
        assert_eq!((rounds.len(), first), (2, vec!["b"]));
        assert_eq!(failing.due("p", holds, keep, late), [key("shared", "a")]);
        let said = (1..=10)
            .filter(|_| failing.is_news("p", "a", "stuck"))
            .count();
        assert_eq!(said, 4);
        failing.over("p");
        assert_eq!(failing.rounds("p", asked()).len(), 1);
        assert!(failing.due("p", holds, keep, late).is_empty());
    }
}
