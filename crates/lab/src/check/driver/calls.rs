//! What needs only a driver that runs: slices, preparing and undoing.

use std::collections::BTreeMap;

use davit_proto::dra::v1;
use serde_json::Value;
use tokio::time::sleep;

use super::answers::{self, CdiFiles, Device};
use super::cluster::{Claim, REQUEST};
use super::{Met, Run};

/// Claims of one call.
const SEVERAL: usize = 4;

/// Names and versions of slices: what a write changes.
pub(super) fn versions(slices: &[Value]) -> BTreeMap<String, String> {
    let text = |slice: &Value, at: &str| {
        let found = slice.pointer(at).and_then(Value::as_str);
        found.unwrap_or_default().to_owned()
    };
    slices
        .iter()
        .map(|s| {
            (
                text(s, "/metadata/name"),
                text(s, "/metadata/resourceVersion"),
            )
        })
        .collect()
}

/// Pools and names of devices.
pub(super) fn names(devices: &[Device]) -> Vec<(String, String)> {
    let mut names: Vec<_> = devices
        .iter()
        .map(|d| (d.pool.clone(), d.name.clone()))
        .collect();
    names.sort();
    names
}

/// An answer in a form that can be compared: the order of devices means nothing.
pub(super) fn sorted(mut answer: Vec<v1::Device>) -> Vec<v1::Device> {
    answer.sort_by(|a, b| {
        let key = |d: &v1::Device| {
            (
                d.pool_name.clone(),
                d.device_name.clone(),
                d.request_names.clone(),
            )
        };
        key(a).cmp(&key(b))
    });
    answer
}

impl Run<'_> {
    /// The checks of a driver that stays.
    pub(super) async fn calls(&mut self, met: &Met) {
        self.steady(met).await;
        self.repaired(met).await;
        self.health(met).await;
        if met.devices.is_empty() {
            let why = "no device can be allocated without further ado";
            for id in ["prepare", "unprepare"] {
                self.report.skip(id, why);
            }
        } else {
            self.one_by_one(met).await;
            self.several(met).await;
            self.refused(met).await;
            self.parameters(met).await;
        }
        self.undone_without_need(met).await;
    }

    async fn steady(&mut self, met: &Met) {
        let before = versions(&met.slices);
        sleep(self.options.steady).await;
        let time = crate::span::Span(self.options.steady);
        let seen = match self.cluster.slices_of(&met.found.name).await {
            Ok(slices) if versions(&slices) == before => Ok(format!("no write in {time}")),
            Ok(_) => Err(format!("slices were written within {time}")),
            Err(e) => Err(e),
        };
        self.report.verdict("slices-steady", seen);
    }

    async fn repaired(&mut self, met: &Met) {
        let Some(name) = versions(&met.slices).into_keys().next() else {
            return;
        };
        if let Err(e) = self.cluster.delete_slice(&name).await {
            self.report.skip("slices-repaired", e);
            return;
        }
        let begun = tokio::time::Instant::now();
        let wanted = names(&answers::devices(&met.slices));
        let whole = |slices: &[Value]| {
            answers::check_pools(slices)?;
            let found = names(&answers::devices(slices));
            if found == wanted {
                Ok(())
            } else {
                Err(format!("{} of {} devices", found.len(), wanted.len()))
            }
        };
        let limit = self.options.repair;
        let back = self
            .cluster
            .await_slices(&met.found.name, limit, whole)
            .await;
        let seen = back.map(|_| format!("after {} ms", begun.elapsed().as_millis()));
        self.report.verdict("slices-repaired", seen);
    }

    async fn health(&mut self, met: &Met) {
        match met.driver.health(&met.found.versions).await {
            Ok(None) => self.report.skip("health", "it names no health service"),
            Err(e) => self.report.fail("health", e),
            Ok(Some(told)) => {
                let all: Vec<(&str, &str)> = answers::newest(&met.slices)
                    .values()
                    .flatten()
                    .flat_map(|slice| {
                        let pool = slice.pointer("/spec/pool/name").and_then(Value::as_str);
                        let list = slice.pointer("/spec/devices").and_then(Value::as_array);
                        let devices = list.into_iter().flatten();
                        devices.filter_map(move |d| Some((pool?, d["name"].as_str()?)))
                    })
                    .collect();
                let odd = told
                    .iter()
                    .find(|(pool, name)| !all.contains(&(pool, name)));
                let seen = match odd {
                    Some((pool, name)) => Err(format!("{pool}/{name} is not published")),
                    None => Ok(format!("{} of {} devices", told.len(), all.len())),
                };
                self.report.verdict("health", seen);
            }
        }
    }

    /// Every device by a claim of its own, prepared, prepared again, undone, undone again.
    async fn one_by_one(&mut self, met: &Met) {
        let most = self.options.devices;
        let mut good = 0;
        for device in met.devices.iter().take(most) {
            let claim = match self.cluster.allocated(&met.found.name, device).await {
                Ok(claim) => claim,
                Err(e) => {
                    self.report.fail("prepare", e);
                    return;
                }
            };
            if self.cycle(met, device, &claim).await {
                good += 1;
            }
            self.forget(met, &claim).await;
        }
        if good > 0 {
            let all = met.devices.len();
            self.report
                .pass("prepare", format!("{good} of {all} devices"));
            self.report.pass("unprepare", format!("{good} claims"));
        }
    }

    /// One claim from beginning to end; whether it could be prepared.
    async fn cycle(&mut self, met: &Met, device: &Device, claim: &Claim) -> bool {
        let of = format!("{}/{}", device.pool, device.name);
        let answer = match met.driver.prepare_one(claim).await {
            Ok(answer) => answer,
            Err(e) => {
                self.report.fail("prepare", format!("{of}: {e}"));
                return false;
            }
        };
        let said = answers::check_answer(&answer, device, REQUEST);
        self.report.verdict("prepare-answer", said);
        let files = CdiFiles::read(&self.place.cdi()).check(&answer);
        self.report.verdict("cdi-files", files);
        let again = match met.driver.prepare_one(claim).await {
            Ok(again) if sorted(again.clone()) == sorted(answer.clone()) => {
                Ok("the same".to_owned())
            }
            Ok(again) => Err(format!("{again:?} instead of {answer:?}")),
            Err(e) => Err(format!("{of}: {e}")),
        };
        self.report.verdict("prepare-again", again);
        if let Err(e) = met.driver.unprepare_one(claim).await {
            self.report.fail("unprepare", format!("{of}: {e}"));
            return true;
        }
        let left = CdiFiles::read(&self.place.cdi()).of_claim(&claim.uid);
        let left = left.map_or(Ok("nothing is left".to_owned()), Err);
        self.report.verdict("unprepare-cdi", left);
        let again = met.driver.unprepare_one(claim).await;
        let again = again.map(|()| "no error".to_owned());
        self.report.verdict("unprepare-again", again);
        true
    }

    /// Undoes and deletes what a check has made.
    async fn forget(&mut self, met: &Met, claim: &Claim) {
        // What fails here has failed in its check, or does not matter any more.
        let _undone = met.driver.unprepare_one(claim).await;
        let _deleted = self.cluster.delete(claim).await;
    }

    /// Claims for devices that can be had together; an error is a failure of the check.
    async fn claims(&mut self, met: &Met, most: usize, id: &str) -> Vec<Claim> {
        let mut claims = Vec::new();
        for device in answers::together(&met.devices, most) {
            match self.cluster.allocated(&met.found.name, device).await {
                Ok(claim) => claims.push(claim),
                Err(e) => self.report.fail(id, e),
            }
        }
        claims
    }

    /// Several claims in one call, and in calls at the same time.
    async fn several(&mut self, met: &Met) {
        let claims = self.claims(met, SEVERAL, "prepare-several").await;
        if claims.len() < 2 {
            for id in ["prepare-several", "parallel"] {
                self.report.skip(id, "no two devices can be had together");
            }
        } else {
            let all: Vec<&Claim> = claims.iter().collect();
            let prepared = met.driver.prepare(&all).await;
            let seen = prepared.and_then(|answers| each(&all, &answers));
            self.report.verdict("prepare-several", seen);
            let undone = met.driver.unprepare(&all).await;
            if let Err(e) = undone.and_then(|answers| each(&all, &answers)) {
                self.report
                    .fail("unprepare", format!("several claims: {e}"));
            }
            let calls = claims.iter().map(async |claim| {
                met.driver.prepare_one(claim).await?;
                met.driver.unprepare_one(claim).await
            });
            let outcomes = futures::future::join_all(calls).await;
            let failed = outcomes.into_iter().find_map(Result::err);
            let seen = failed.map_or(Ok(format!("{} at once", claims.len())), Err);
            self.report.verdict("parallel", seen);
        }
        for claim in claims {
            self.forget(met, &claim).await;
        }
    }

    /// Claims that must not be prepared, each together with one that must.
    async fn refused(&mut self, met: &Met) {
        let [good] = &self.claims(met, 1, "prepare-unknown").await[..] else {
            return;
        };
        let unknown = Claim {
            name: "davit-lab-unknown".to_owned(),
            namespace: good.namespace.clone(),
            uid: UNKNOWN_UID.to_owned(),
        };
        let replaced = Claim {
            uid: UNKNOWN_UID.to_owned(),
            ..good.clone()
        };
        let seen = refuses(met, good, &unknown).await;
        self.report.verdict("prepare-unknown", seen);
        match self.cluster.claim().await {
            Ok(plain) => {
                let seen = refuses(met, good, &plain).await;
                self.report.verdict("prepare-unallocated", seen);
                self.forget(met, &plain).await;
            }
            Err(e) => self.report.skip("prepare-unallocated", e),
        }
        let seen = match met.driver.prepare(&[&replaced]).await {
            Ok(answers) => refusal(&answers, &replaced),
            Err(e) => Ok(format!("with the call: {e}")),
        };
        self.report.verdict("prepare-replaced", seen);
        self.forget(met, good).await;
    }

    /// Undoing what is not prepared, and what is gone.
    async fn undone_without_need(&mut self, met: &Met) {
        let never = Claim {
            name: "davit-lab-never".to_owned(),
            namespace: "default".to_owned(),
            uid: UNKNOWN_UID.to_owned(),
        };
        let seen = met.driver.unprepare_one(&never).await;
        let seen = seen.map(|()| "no error".to_owned());
        self.report.verdict("unprepare-unknown", seen);
        let Some(device) = met.devices.first() else {
            return;
        };
        let gone = async {
            let claim = self.cluster.allocated(&met.found.name, device).await?;
            met.driver.prepare_one(&claim).await?;
            self.cluster.delete(&claim).await?;
            met.driver.unprepare_one(&claim).await?;
            match CdiFiles::read(&self.place.cdi()).of_claim(&claim.uid) {
                Some(left) => Err(format!("{left} is left")),
                None => Ok("undone".to_owned()),
            }
        };
        let seen = gone.await;
        self.report.verdict("unprepare-gone", seen);
    }
}

const UNKNOWN_UID: &str = "00000000-0000-4000-8000-000000000000";

/// Whether each claim of a call has an entry without an error.
fn each<T>(claims: &[&Claim], answers: &super::plugin::Answers<T>) -> Result<String, String> {
    for claim in claims {
        match answers.get(&claim.uid) {
            Some(Ok(_)) => {}
            Some(Err(e)) => return Err(format!("{}: {e}", claim.name)),
            None => return Err(format!("the answer has no entry for {}", claim.name)),
        }
    }
    match answers.len() {
        n if n == claims.len() => Ok(format!("{n} claims")),
        n => Err(format!("{n} entries for {} claims", claims.len())),
    }
}

fn refusal<T>(answers: &super::plugin::Answers<T>, claim: &Claim) -> Result<String, String> {
    match answers.get(&claim.uid) {
        Some(Err(why)) => Ok(why.clone()),
        Some(Ok(_)) => Err("it was prepared".to_owned()),
        None => Err("the answer has no entry for it".to_owned()),
    }
}

/// A good and a bad claim in one call: the bad one is refused. Where that is not said in its entry but by the whole call,
/// the good one is prepared by the next, as the agent tries again.
async fn refuses(met: &Met, good: &Claim, bad: &Claim) -> Result<String, String> {
    let (why, answers) = match met.driver.prepare(&[bad, good]).await {
        Ok(answers) => (refusal(&answers, bad)?, answers),
        Err(e) => {
            let alone = met.driver.prepare(&[good]).await;
            let alone = alone.map_err(|e| format!("the other claim alone: {e}"))?;
            (format!("with the call: {e}"), alone)
        }
    };
    match answers.get(&good.uid) {
        Some(Ok(_)) => Ok(why),
        Some(Err(e)) => Err(format!("the other claim was not prepared: {e}")),
        None => Err("the answer has no entry for the other claim".to_owned()),
    }
}
