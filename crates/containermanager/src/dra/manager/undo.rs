//! Undoing claims after their last pod.

use super::{Manager, ask, sort_out};
use crate::allocation::{Change, ClaimHold};
use crate::dra::Error;
use crate::dra::driver::{Asked, UNPREPARE};
use crate::dra::pod;
use futures::future::join_all;
use std::collections::{BTreeMap, BTreeSet};
use tokio::time::Instant;

/// What a driver says to being asked to undo claims, by their UIDs.
pub(super) type Undone = BTreeMap<String, Result<(), String>>;

/// The key of claims without pods among those that could not be undone.
const NO_POD: &str = "";

impl Manager {
    /// Takes a pod from its claims; those it was the last user of are undone by their drivers. To be called when the
    /// pod's containers have ended, as often as it takes.
    ///
    /// # Errors
    /// A driver could not, or is not there; to be tried again later.
    pub(crate) async fn unprepare(&self, pod_uid: &str) -> Result<(), Error> {
        self.failing.lock().over(pod_uid);
        let uids: Vec<String> = self
            .devices
            .ledger
            .read(|t| t.claims_of(pod_uid).map(|c| c.claim.uid.clone()).collect());
        if uids.is_empty() {
            return Ok(());
        }
        let begun = Instant::now();
        let result = self.let_go(&uids, Some(pod_uid)).await;
        let failed = result.is_err();
        self.metrics
            .operation("UnprepareResources", failed, begun.elapsed());
        result
    }

    async fn let_go(&self, uids: &[String], pod_uid: Option<&str>) -> Result<(), Error> {
        let _turns = self.turns(uids.iter()).await;
        let holds: Vec<ClaimHold> = self.devices.ledger.read(|t| {
            let known = uids.iter().filter_map(|uid| t.claims().get(uid));
            known.map(|h| h.as_ref().clone()).collect()
        });
        let mut shared = Vec::new();
        let mut last = BTreeMap::new();
        for mut hold in holds {
            hold.pods.retain(|p| Some(p.uid.as_str()) != pod_uid);
            if hold.pods.is_empty() {
                last.insert(hold.claim.uid.clone(), hold);
            } else {
                shared.push(Change::Claim(hold));
            }
        }
        self.commit(shared).await?;
        let mut asked: BTreeMap<String, Vec<Asked>> = BTreeMap::new();
        for (uid, hold) in &last {
            self.confirmed.lock().retain(|(claim, _)| claim != uid);
            for driver in hold.drivers.keys() {
                asked
                    .entry(driver.clone())
                    .or_default()
                    .push(ask(hold, driver));
            }
        }
        let calls = asked
            .into_iter()
            .map(async |(driver, asked)| self.unprepare_by(driver, asked).await);
        let answers = join_all(calls).await;
        let mut failure = None;
        let mut owed: BTreeSet<String> = BTreeSet::new();
        let mut refused: BTreeSet<String> = BTreeSet::new();
        for (driver, asked, answer) in answers {
            let of_driver = asked.iter().map(|a| a.claim.uid.clone());
            match answer {
                Ok(answer) => {
                    let (good, problem) = sort_out(UNPREPARE, &asked, answer);
                    refused.extend(of_driver.filter(|uid| !good.contains_key(uid)));
                    if let Some(problem) = problem {
                        failure.get_or_insert(problem);
                    }
                }
                Err(_) if self.is_given_up(&driver) => owed.extend(of_driver),
                Err(error) => {
                    refused.extend(of_driver);
                    failure.get_or_insert(error);
                }
            }
        }
        let mut changes = Vec::new();
        for (uid, hold) in last {
            if refused.contains(&uid) {
                continue;
            }
            if !owed.contains(&uid) {
                changes.push(Change::ClaimGone { claim: uid });
            } else if pod_uid.is_some() {
                tracing::warn!(
                    claim = hold.claim.name,
                    namespace = hold.claim.namespace,
                    "the driver of the claim is gone, it will be undone when it is back"
                );
                changes.push(Change::Claim(hold));
            }
        }
        self.commit(changes).await?;
        failure.map_or(Ok(()), Err)
    }

    pub(super) async fn unprepare_by(
        &self,
        driver: String,
        asked: Vec<Asked>,
    ) -> (String, Vec<Asked>, Result<Undone, Error>) {
        let answer = match self.driver(&driver) {
            Ok(instance) => instance.unprepare(&asked, self.options.call_timeout).await,
            Err(error) => Err(error),
        };
        (driver, asked, answer)
    }

    /// Whether nobody waits any more for a driver.
    fn is_given_up(&self, driver: &str) -> bool {
        let gone = self.drivers.lock().gone_since(driver, self.started);
        gone.is_some_and(|since| since.elapsed() >= self.options.patience)
    }

    /// Undoes claims whose pods are gone without having been able to.
    pub(super) async fn reconcile(&self) {
        let active = self.devices.pods.active_pods();
        let active: BTreeSet<&str> = active.iter().map(|p| pod::uid(p)).collect();
        let (mut gone, mut owed) = (BTreeSet::new(), Vec::new());
        self.devices.ledger.read(|t| {
            for hold in t.claims().values() {
                let uids = hold.pods.iter().map(|p| p.uid.clone());
                gone.extend(uids.filter(|uid| !active.contains(uid.as_str())));
                let back = hold.drivers.keys().all(|d| self.is_connected(d));
                if hold.pods.is_empty() && back {
                    owed.push(hold.claim.uid.clone());
                }
            }
        });
        self.stuck
            .lock()
            .retain(|pod, _| gone.contains(pod) || (pod == NO_POD && !owed.is_empty()));
        for pod in gone {
            let result = self.unprepare(&pod).await;
            if let Some(error) = self.news_of(&pod, result) {
                tracing::info!(pod, %error, "claims of a pod that is gone cannot be undone, will try again");
            }
        }
        if owed.is_empty() {
            return;
        }
        let result = self.let_go(&owed, None).await;
        if let Some(error) = self.news_of(NO_POD, result) {
            tracing::info!(%error, "claims without pods cannot be undone, will try again");
        }
    }

    /// Why claims could not be undone, where that is worth a line in the log.
    fn news_of(&self, pod: &str, result: Result<(), Error>) -> Option<Error> {
        let mut stuck = self.stuck.lock();
        let Err(error) = result else {
            stuck.remove(pod);
            return None;
        };
        let failure = stuck.entry(pod.to_owned()).or_default();
        failure.is_news(&error.to_string()).then_some(error)
    }
}
