//! Making the claims of a pod ready for its containers.

use super::{Manager, ask, sort_out};
use crate::allocation::{Change, ClaimHold};
use crate::dra::claims::Entry;
use crate::dra::driver::{Asked, PREPARE, Prepared, UNPREPARE};
use crate::dra::partial::Key;
use crate::dra::pod;
use crate::dra::{Error, claims};
use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use std::collections::{BTreeMap, BTreeSet};
use tokio::time::Instant;

/// What came of asking drivers.
#[derive(Default)]
struct Outcome {
    /// The first failure.
    failure: Option<Error>,
    /// The drivers that failed.
    culprits: BTreeSet<String>,
    /// What was not prepared before.
    fresh: BTreeSet<Key>,
}

impl Manager {
    /// Makes all claims of a pod ready for its containers. Calling it again is cheap while nothing has changed.
    ///
    /// # Errors
    /// Some claim is not ready; to be tried again later. What drivers have already done stays recorded, and is undone
    /// with the pod or when it has failed for long ([`Options::keep_partial`]).
    pub(crate) async fn prepare(&self, pod: &Pod) -> Result<(), Error> {
        let entries = claims::entries(pod);
        if entries.is_empty() {
            return Ok(());
        }
        let begun = Instant::now();
        let result = self.prepare_all(pod, &entries).await;
        let failed = result.is_err();
        self.metrics
            .operation("PrepareResources", failed, begun.elapsed());
        result
    }

    async fn prepare_all(&self, pod: &Pod, entries: &[Entry]) -> Result<(), Error> {
        let known = self.recorded(pod, entries);
        if let Some(holds) = &known
            && holds.iter().all(|h| self.is_confirmed(h))
        {
            return Ok(());
        }
        // Once a pod has its claims they cannot change, so the log is as good as the API.
        let wanted = match known {
            Some(holds) => holds,
            None => self.look_up(pod, entries).await?,
        };
        let mut wanted: BTreeMap<String, ClaimHold> = wanted
            .into_iter()
            .map(|h| (h.claim.uid.clone(), h))
            .collect();
        let _turns = self.turns(wanted.keys()).await;
        self.enter(pod, &mut wanted).await?;
        let mut asked: BTreeMap<String, Vec<Asked>> = BTreeMap::new();
        for hold in wanted.values() {
            for driver in self.unconfirmed(hold) {
                let question = ask(hold, &driver);
                asked.entry(driver).or_default().push(question);
            }
        }
        let rounds = self.failing.lock().rounds(pod::uid(pod), asked);
        let mut fresh = BTreeSet::new();
        for asked in rounds {
            let calls = asked.into_iter().map(async |(driver, asked)| {
                let answer = self.prepare_by(&driver, &asked, &wanted).await;
                (driver, asked, answer)
            });
            let answers = join_all(calls).await;
            let outcome = self.take_in(&mut wanted, answers).await?;
            fresh.extend(outcome.fresh);
            if let Some(error) = outcome.failure {
                let due = {
                    let (keep, now) = (self.options.keep_partial, Instant::now());
                    let mut failing = self.failing.lock();
                    failing.failed(pod::uid(pod), fresh, outcome.culprits, now);
                    failing.due(pod::uid(pod), wanted.values(), keep, now)
                };
                self.roll_back(pod::uid(pod), &mut wanted, due).await;
                return Err(error);
            }
        }
        self.failing.lock().over(pod::uid(pod));
        Ok(())
    }

    /// Undoes what drivers have done for claims that are not ready and will not be soon.
    async fn roll_back(&self, pod: &str, wanted: &mut BTreeMap<String, ClaimHold>, due: Vec<Key>) {
        let mut asked: BTreeMap<String, Vec<Asked>> = BTreeMap::new();
        for (uid, driver) in due {
            if let Some(hold) = wanted.get(&uid) {
                let question = ask(hold, &driver);
                asked.entry(driver).or_default().push(question);
            }
        }
        let calls = asked
            .into_iter()
            .map(async |(driver, asked)| self.unprepare_by(driver, asked).await);
        let (mut undone, mut changes) = (Vec::new(), BTreeMap::new());
        for (driver, asked, answer) in join_all(calls).await {
            let sorted = answer.map(|answer| sort_out(UNPREPARE, &asked, answer));
            let (good, problem) = sorted.unwrap_or_else(|e| (BTreeMap::new(), Some(e)));
            if let Some(error) = problem
                && self
                    .failing
                    .lock()
                    .is_news(pod, &driver, &error.to_string())
            {
                tracing::info!(driver, %error, "a partial preparation cannot be undone, will try again");
            }
            for uid in good.into_keys() {
                let Some(hold) = wanted.get_mut(&uid) else {
                    continue;
                };
                if let Some(part) = hold.drivers.get_mut(&driver) {
                    (part.prepared, part.devices) = (false, Vec::new());
                }
                tracing::info!(
                    driver,
                    claim = hold.claim.name,
                    namespace = hold.claim.namespace,
                    "undone, because other drivers keep failing"
                );
                changes.insert(uid.clone(), Change::Claim(hold.clone()));
                undone.push((uid, driver.clone()));
            }
        }
        // The log may go on saying that it is prepared: then the drivers are asked again, which changes nothing.
        self.confirmed.lock().retain(|key| !undone.contains(key));
        if let Err(error) = self.commit(changes.into_values().collect()).await {
            tracing::warn!(%error, "undoing of a partial preparation not recorded");
        }
        self.failing.lock().undone(&undone);
    }

    /// The records of the pod's claims, if it has them all.
    fn recorded(&self, pod: &Pod, entries: &[Entry]) -> Option<Vec<ClaimHold>> {
        self.devices.ledger.read(|table| {
            let find = |entry: &Entry| {
                let mut holds = table.claims_of(pod::uid(pod));
                holds.find(|h| h.claim.name == entry.claim).cloned()
            };
            let holds: Option<Vec<_>> = entries.iter().map(find).collect();
            holds.map(|h| h.iter().map(|h| h.as_ref().clone()).collect())
        })
    }

    fn is_confirmed(&self, hold: &ClaimHold) -> bool {
        self.unconfirmed(hold).is_empty()
    }

    /// The drivers that have to be asked for a claim.
    fn unconfirmed(&self, hold: &ClaimHold) -> Vec<String> {
        let confirmed = self.confirmed.lock();
        let lacking = hold.drivers.iter().filter(|(driver, part)| {
            let key = (hold.claim.uid.clone(), (*driver).clone());
            !part.prepared || !confirmed.contains(&key)
        });
        lacking.map(|(driver, _)| driver.clone()).collect()
    }

    /// Reads the claims from the API and checks them. Nothing is changed yet: a pod that fails here can be deleted
    /// without any driver.
    async fn look_up(&self, pod: &Pod, entries: &[Entry]) -> Result<Vec<ClaimHold>, Error> {
        let mut holds = Vec::new();
        for entry in entries {
            let hold = self.look_up_one(pod, entry).await?;
            for driver in hold.drivers.keys() {
                self.driver(driver)?;
            }
            holds.push(hold);
        }
        Ok(holds)
    }

    async fn look_up_one(&self, pod: &Pod, entry: &Entry) -> Result<ClaimHold, Error> {
        let fetch = |cause: String| Error::Fetch {
            claim: entry.claim.clone(),
            cause,
        };
        let (api, now) = (&self.options.api, Timestamp::now().as_millisecond());
        if !entry.guessed {
            let claim = api
                .claim(pod::namespace(pod), &entry.claim)
                .await
                .map_err(fetch)?;
            if let Some(claim) = claim {
                let place = (&*self.options.node_name, self.options.consumers);
                return claims::structured(pod, entry, &claim, place, now);
            }
        }
        let claim = api.classic_claim(pod::namespace(pod), &entry.claim).await;
        match claim.map_err(fetch)? {
            Some(claim) => claims::classic(pod, entry, &claim, now),
            None if entry.guessed => Err(Error::NotCreated {
                entry: entry.name.clone(),
            }),
            None => Err(fetch(format!(
                "resourceclaims.resource.k8s.io \"{}\" not found",
                entry.claim
            ))),
        }
    }

    /// Enters the pod as a user of the claims in the log, before any driver is called.
    async fn enter(
        &self,
        pod: &Pod,
        wanted: &mut BTreeMap<String, ClaimHold>,
    ) -> Result<(), Error> {
        let user = claims::pod_name(pod);
        let changes = self.devices.ledger.read(|table| {
            let mut changes = Vec::new();
            for (uid, hold) in wanted.iter_mut() {
                let old = table.claims().values().find(|h| {
                    h.claim.uid != *uid
                        && !h.pods.is_empty()
                        && h.classic == hold.classic
                        && (&h.claim.namespace, &h.claim.name)
                            == (&hold.claim.namespace, &hold.claim.name)
                });
                if let Some(old) = old {
                    return Err(Error::OldClaim {
                        claim: old.claim.name.clone(),
                        uid: old.claim.uid.clone(),
                    });
                }
                // Others of the claim's pods may have entered it meanwhile.
                if let Some(known) = table.claims().get(uid) {
                    *hold = known.as_ref().clone();
                }
                if let Err(at) = hold.pods.binary_search_by(|p| p.uid.cmp(&user.uid)) {
                    hold.pods.insert(at, user.clone());
                    changes.push(Change::Claim(hold.clone()));
                }
            }
            Ok(changes)
        })?;
        self.commit(changes).await
    }

    async fn prepare_by(
        &self,
        driver: &str,
        asked: &[Asked],
        wanted: &BTreeMap<String, ClaimHold>,
    ) -> Result<Prepared, Error> {
        let instance = match self.driver(driver) {
            Ok(instance) => instance,
            Err(error) => {
                // The log knows what the driver has prepared before the agent was restarted; a container that starts
                // again need not wait for a driver that is being replaced.
                let recorded = |a: &Asked| {
                    let part = wanted.get(&a.claim.uid)?.drivers.get(driver)?;
                    let devices = part.prepared.then(|| part.devices.clone())?;
                    Some((a.claim.uid.clone(), Ok(devices)))
                };
                return asked
                    .iter()
                    .map(recorded)
                    .collect::<Option<Prepared>>()
                    .ok_or(error);
            }
        };
        instance.prepare(asked, self.options.call_timeout).await
    }

    /// Records what the drivers have answered.
    ///
    /// # Errors
    /// It cannot be recorded.
    async fn take_in(
        &self,
        wanted: &mut BTreeMap<String, ClaimHold>,
        answers: Vec<(String, Vec<Asked>, Result<Prepared, Error>)>,
    ) -> Result<Outcome, Error> {
        let mut outcome = Outcome::default();
        let (mut changed, mut confirmed) = (BTreeSet::new(), Vec::new());
        for (driver, asked, answer) in answers {
            let sorted = answer.map(|answer| sort_out(PREPARE, &asked, answer));
            let (good, problem) = sorted.unwrap_or_else(|e| (BTreeMap::new(), Some(e)));
            if let Some(problem) = problem {
                outcome.culprits.insert(driver.clone());
                outcome.failure.get_or_insert(problem);
            }
            for (uid, devices) in good {
                let hold = wanted.get_mut(&uid);
                if let Some(part) = hold.and_then(|h| h.drivers.get_mut(&driver)) {
                    if !part.prepared {
                        outcome.fresh.insert((uid.clone(), driver.clone()));
                    }
                    if !part.prepared || part.devices != devices {
                        (part.prepared, part.devices) = (true, devices);
                        changed.insert(uid.clone());
                    }
                    confirmed.push((uid, driver.clone()));
                }
            }
        }
        let holds = changed.iter().filter_map(|uid| wanted.get(uid)).cloned();
        self.commit(holds.map(Change::Claim).collect()).await?;
        self.confirmed.lock().extend(confirmed);
        Ok(outcome)
    }
}
