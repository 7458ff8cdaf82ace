//! Preparing and undoing claims, and the drivers that do it.

use super::claims::{self, Entry};
use super::driver::{Asked, Health, Instance, Offer, PREPARE, Prepared, UNPREPARE};
use super::health::{DeviceKey, HealthTable, Messages};
use super::metrics::Metrics;
use super::registry::Drivers;
use super::{Error, Options, slices, view};
use crate::allocation::{Change, ClaimHold, PreparedDevice};
use crate::devices;
use crate::pod::PodExt;
use davit_proto::unix;
use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, ResourceStatus};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::OwnedMutexGuard;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use tonic::Code;

/// How long the first connection to a driver may take.
const DIAL: Duration = Duration::from_secs(10);
/// Pauses between attempts to connect again.
const REDIAL: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// Pause before a health stream that has ended is opened again.
const HEALTH_PAUSE: Duration = Duration::from_secs(5);
const TICK: Duration = Duration::from_secs(1);

/// The right to change the records of some claims; see [`Manager::turns`].
type Turns = Vec<OwnedMutexGuard<()>>;

/// See the module's description.
pub(crate) struct Manager {
    pub(super) options: Options,
    devices: Arc<devices::Manager>,
    drivers: Mutex<Drivers>,
    /// Claims with the drivers that have confirmed them in this run.
    confirmed: Mutex<BTreeSet<(String, String)>>,
    turns: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
    health: Mutex<HealthTable>,
    started: Instant,
    metrics: Metrics,
}

impl Manager {
    pub(crate) fn new(options: Options, devices: Arc<devices::Manager>) -> Arc<Self> {
        let metrics = Metrics::default();
        devices.ledger.read(|table| metrics.count(table));
        Arc::new(Self {
            metrics,
            options,
            devices,
            drivers: Mutex::default(),
            confirmed: Mutex::default(),
            turns: Mutex::default(),
            health: Mutex::default(),
            started: Instant::now(),
        })
    }

    /// Starts what goes on without anybody asking: wiping slices, health that runs out, claims of pods that are gone.
    pub(crate) fn serve(this: &Arc<Self>, tasks: &mut JoinSet<()>) {
        let manager = this.clone();
        tasks.spawn(async move {
            let cancel = manager.devices.cancel.clone();
            tokio::select! {
                () = cancel.cancelled() => {}
                () = run(manager) => {}
            }
        });
    }

    // ---- drivers ----

    /// Takes an instance of a driver into service.
    ///
    /// # Errors
    /// A sentence that the plugin gets to see.
    pub(crate) async fn register(
        this: &Arc<Self>,
        driver: &str,
        endpoint: PathBuf,
        registry_socket: &Path,
        offer: Offer,
    ) -> Result<(), String> {
        let taken = this.drivers.lock().check(driver, &endpoint);
        taken.map_err(|e| e.to_string())?;
        let socket = registry_socket.to_owned();
        let instance = Arc::new(Instance::new(
            driver,
            endpoint,
            socket,
            offer,
            this.metrics.clone(),
        ));
        let connected = unix::connect_observed(&instance.endpoint, DIAL).await;
        let (channel, lost) = connected
            .map_err(|e| format!("create gRPC connection to DRA driver {driver} plugin: {e}"))?;
        instance.set_channel(Some(channel));
        let task = tokio::spawn(keep_connected(this.clone(), instance.clone(), lost));
        let task = AbortOnDropHandle::new(task);
        {
            let mut drivers = this.drivers.lock();
            let added = drivers.add(instance, Some(task));
            added.map_err(|e| e.to_string())?;
            drivers.settle(driver, Instant::now());
        }
        tracing::info!(driver, service = ?offer.service, "DRA driver registered");
        Ok(())
    }

    /// Ends the instances that came by a socket of the plugin registry.
    pub(crate) fn disconnect_registry(&self, registry_socket: &Path) {
        let removed = {
            let mut drivers = self.drivers.lock();
            let removed = drivers.remove(registry_socket);
            for instance in &removed {
                drivers.settle(&instance.driver, Instant::now());
            }
            removed
        };
        for instance in removed {
            tracing::info!(driver = instance.driver, endpoint = %instance.endpoint.display(), "DRA driver deregistered");
            if !self.is_connected(&instance.driver) {
                self.forget_health(&instance.driver);
            }
        }
    }

    pub(super) fn is_connected(&self, driver: &str) -> bool {
        self.drivers.lock().is_connected(driver)
    }

    fn driver(&self, name: &str) -> Result<Arc<Instance>, Error> {
        let found = self.drivers.lock().get(name);
        found.ok_or_else(|| Error::NoDriver(name.to_owned()))
    }

    /// Adds the metrics, whose names begin with `dra_`.
    pub(crate) fn register_metrics(&self, registry: &mut prometheus_client::registry::Registry) {
        self.metrics.register(registry);
    }

    /// Ends all connections.
    pub(crate) fn stop(&self) {
        self.drivers.lock().clear();
    }

    // ---- preparing ----

    /// Makes all claims of a pod ready for its containers. Calling it again is cheap while nothing has changed.
    ///
    /// # Errors
    /// Some claim is not ready; to be tried again later. What drivers have already done stays recorded, and is undone
    /// with the pod.
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
        let calls = asked.into_iter().map(async |(driver, asked)| {
            let answer = self.prepare_by(&driver, &asked, &wanted).await;
            (driver, asked, answer)
        });
        let answers = join_all(calls).await;
        self.take_in(&mut wanted, answers).await
    }

    /// The records of the pod's claims, if it has them all.
    fn recorded(&self, pod: &Pod, entries: &[Entry]) -> Option<Vec<ClaimHold>> {
        self.devices.ledger.read(|table| {
            let find = |entry: &Entry| {
                let mut holds = table.claims_of(pod.uid());
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
            let claim = api.claim(pod.ns(), &entry.claim).await.map_err(fetch)?;
            if let Some(claim) = claim {
                let node = &self.options.node_name;
                return claims::structured(pod, entry, &claim, node, now);
            }
        }
        let claim = api.classic_claim(pod.ns(), &entry.claim).await;
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

    /// Records what the drivers have answered; the first failure is the result.
    async fn take_in(
        &self,
        wanted: &mut BTreeMap<String, ClaimHold>,
        answers: Vec<(String, Vec<Asked>, Result<Prepared, Error>)>,
    ) -> Result<(), Error> {
        let mut failure = None;
        let (mut changed, mut confirmed) = (BTreeSet::new(), Vec::new());
        for (driver, asked, answer) in answers {
            let answer = match answer {
                Ok(answer) => answer,
                Err(error) => {
                    failure.get_or_insert(error);
                    continue;
                }
            };
            let (good, problem) = sort_out(PREPARE, &asked, answer);
            if let Some(problem) = problem {
                failure.get_or_insert(problem);
            }
            for (uid, devices) in good {
                let hold = wanted.get_mut(&uid);
                if let Some(part) = hold.and_then(|h| h.drivers.get_mut(&driver)) {
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
        failure.map_or(Ok(()), Err)
    }

    // ---- undoing ----

    /// Takes a pod from its claims; those it was the last user of are undone by their drivers. To be called when the
    /// pod's containers have ended, as often as it takes.
    ///
    /// # Errors
    /// A driver could not, or is not there; to be tried again later.
    pub(crate) async fn unprepare(&self, pod_uid: &str) -> Result<(), Error> {
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
        let calls = asked.into_iter().map(async |(driver, asked)| {
            let answer = match self.driver(&driver) {
                Ok(instance) => instance.unprepare(&asked, self.options.call_timeout).await,
                Err(error) => Err(error),
            };
            (driver, asked, answer)
        });
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

    /// Whether nobody waits any more for a driver.
    fn is_given_up(&self, driver: &str) -> bool {
        let gone = self.drivers.lock().gone_since(driver, self.started);
        gone.is_some_and(|since| since.elapsed() >= self.options.patience)
    }

    /// Undoes claims whose pods are gone without having been able to.
    async fn reconcile(&self) {
        let active = self.devices.pods.active_pods();
        let active: BTreeSet<&str> = active.iter().map(|p| p.uid()).collect();
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
        for pod in gone {
            if let Err(error) = self.unprepare(&pod).await {
                tracing::info!(pod, %error, "claims of a pod that is gone cannot be undone, will try again");
            }
        }
        if !owed.is_empty()
            && let Err(error) = self.let_go(&owed, None).await
        {
            tracing::info!(%error, "claims without pods cannot be undone, will try again");
        }
    }

    // ---- records ----

    /// Waits until nobody else works on these claims. Taken in order of UIDs, so two never wait for each other.
    async fn turns(&self, uids: impl Iterator<Item = &String>) -> Turns {
        let uids: BTreeSet<&String> = uids.collect();
        let locks: Vec<_> = {
            let mut turns = self.turns.lock();
            turns.retain(|_, lock| Arc::strong_count(lock) > 1);
            let each = uids.into_iter();
            each.map(|uid| turns.entry(uid.clone()).or_default().clone())
                .collect()
        };
        let mut guards = Vec::new();
        for lock in locks {
            guards.push(lock.lock_owned().await);
        }
        guards
    }

    async fn commit(&self, changes: Vec<Change>) -> Result<(), Error> {
        if changes.is_empty() {
            return Ok(());
        }
        let ledger = &self.devices.ledger;
        let committed = ledger.commit(changes, ledger.reservation("")).await;
        committed.map_err(|e| Error::Record(e.to_string()))?;
        ledger.read(|table| self.metrics.count(table));
        self.devices.touch();
        Ok(())
    }

    // ---- what others see ----

    /// CDI names of a container.
    pub(crate) fn cdi_devices(
        &self,
        pod: &Pod,
        container: &Container,
    ) -> Result<Vec<String>, Error> {
        let ledger = &self.devices.ledger;
        ledger.read(|table| view::cdi_devices(pod, container, table))
    }

    /// `allocatedResourcesStatus` of a container's claims.
    pub(crate) fn status(&self, pod: &Pod, container: &Container) -> Vec<ResourceStatus> {
        let health = self.health.lock();
        let of = |driver: &str, d: &PreparedDevice| health.of(driver, &d.pool, &d.device);
        let ledger = &self.devices.ledger;
        ledger.read(|table| view::status(pod, container, table, of))
    }

    fn forget_health(&self, driver: &str) {
        let devices = self.health.lock().forget(driver);
        self.wake_users(driver, &devices);
    }

    /// Has the status of pods with these devices computed anew.
    fn wake_users(&self, driver: &str, devices: &BTreeSet<DeviceKey>) {
        if devices.is_empty() {
            return;
        }
        let pods = self.devices.ledger.read(|table| {
            let mut pods = BTreeSet::new();
            for hold in table.claims().values() {
                let part = hold.drivers.get(driver);
                let mut own = part.into_iter().flat_map(|p| &p.devices);
                if own.any(|d| devices.contains(&(d.pool.clone(), d.device.clone()))) {
                    pods.extend(hold.pods.iter().map(|p| p.uid.clone()));
                }
            }
            pods
        });
        self.devices.wake(pods);
    }

    /// Takes in what a driver says of its devices, until its connection ends.
    async fn follow_health(&self, instance: &Instance, version: Health) {
        loop {
            match self.read_health(instance, version).await {
                Err(status) if status.code() == Code::Unimplemented => {
                    std::future::pending::<()>().await;
                }
                Err(error) => {
                    tracing::debug!(driver = instance.driver, %error, "health stream ended");
                }
                Ok(()) => {}
            }
            self.forget_health(&instance.driver);
            tokio::time::sleep(HEALTH_PAUSE).await;
        }
    }

    async fn read_health(&self, instance: &Instance, version: Health) -> Result<(), tonic::Status> {
        let mut messages = Messages::open(instance, version).await?;
        while let Some(devices) = messages.next().await? {
            let now = SystemTime::now();
            let changed = self.health.lock().update(&instance.driver, devices, now);
            self.wake_users(&instance.driver, &changed);
        }
        Ok(())
    }
}

fn ask(hold: &ClaimHold, driver: &str) -> Asked {
    let part = hold.drivers.get(driver).cloned().unwrap_or_default();
    Asked {
        claim: hold.claim.clone(),
        handle: part.handle,
        cdi: part.devices.into_iter().flat_map(|d| d.cdi).collect(),
    }
}

/// What a driver did of what it was asked for, and the first thing that is wrong with its answer.
fn sort_out<T>(
    method: &'static str,
    asked: &[Asked],
    answer: BTreeMap<String, Result<T, String>>,
) -> (BTreeMap<String, T>, Option<Error>) {
    let mut problem = None;
    let mut good = BTreeMap::new();
    let answered = answer.len();
    for (uid, result) in answer {
        let Some(claim) = asked.iter().find(|a| a.claim.uid == uid) else {
            problem.get_or_insert(Error::Unasked { method, uid });
            continue;
        };
        match result {
            Ok(value) => {
                good.insert(uid, value);
            }
            Err(cause) => {
                problem.get_or_insert(Error::Claim {
                    method,
                    claim: claim.claim.name.clone(),
                    cause,
                });
            }
        }
    }
    if problem.is_none() && answered < asked.len() {
        let count = asked.len() - answered;
        problem = Some(Error::Skipped { method, count });
    }
    (good, problem)
}

/// Keeps the connection to an instance, and follows its health while there is one.
async fn keep_connected(
    manager: Arc<Manager>,
    instance: Arc<Instance>,
    lost: tokio_util::sync::CancellationToken,
) {
    let mut lost = lost;
    loop {
        {
            let health = async {
                match instance.offer.health {
                    Some(version) => manager.follow_health(&instance, version).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = lost.cancelled() => {}
                () = health => {}
            }
        }
        tracing::info!(driver = instance.driver, endpoint = %instance.endpoint.display(), "connection to DRA driver lost");
        instance.set_channel(None);
        manager
            .drivers
            .lock()
            .settle(&instance.driver, Instant::now());
        if !manager.is_connected(&instance.driver) {
            manager.forget_health(&instance.driver);
        }
        let mut pause = REDIAL.0;
        lost = loop {
            tokio::time::sleep(pause).await;
            match unix::connect_observed(&instance.endpoint, Duration::from_secs(1)).await {
                Ok((channel, lost)) => {
                    instance.set_channel(Some(channel));
                    break lost;
                }
                Err(error) => {
                    tracing::debug!(driver = instance.driver, %error, "DRA driver not reached");
                    pause = (pause * 2).min(REDIAL.1);
                }
            }
        };
        manager
            .drivers
            .lock()
            .settle(&instance.driver, Instant::now());
        tracing::info!(driver = instance.driver, "DRA driver is back");
    }
}

async fn run(manager: Arc<Manager>) {
    let mut wiping: JoinSet<()> = JoinSet::new();
    wiping.spawn(slices::wipe(
        manager.clone(),
        slices::Which::MadeBefore(Timestamp::now()),
    ));
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // The pods have to be known for a while: their workers enter them one by one.
    let mut next_look = None;
    let mut looking: Option<AbortOnDropHandle<()>> = None;
    loop {
        ticks.tick().await;
        while wiping.try_join_next().is_some() {}
        let after = manager.options.wipe_after;
        let due = manager.drivers.lock().take_overdue(after, Instant::now());
        for driver in due {
            tracing::info!(
                driver,
                "DRA driver has not come back, deleting its ResourceSlices"
            );
            wiping.spawn(slices::wipe(manager.clone(), slices::Which::Of(driver)));
        }
        let expired = manager.health.lock().expire(SystemTime::now());
        for (driver, devices) in expired {
            manager.wake_users(&driver, &devices);
        }
        if !manager.devices.are_sources_ready() {
            continue;
        }
        let at = *next_look.get_or_insert(Instant::now() + manager.options.reconcile);
        if at <= Instant::now() && looking.as_ref().is_none_or(AbortOnDropHandle::is_finished) {
            next_look = Some(Instant::now() + manager.options.reconcile);
            let manager = manager.clone();
            let look = tokio::spawn(async move { manager.reconcile().await });
            looking = Some(AbortOnDropHandle::new(look));
        }
    }
}
