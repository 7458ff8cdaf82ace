//! The drivers of claims and what is known of them. Claims are prepared and undone in modules of their own.

mod prepare;
mod undo;

use super::driver::{Asked, Health, Instance, Offer};
use super::health::{DeviceKey, HealthTable, Messages};
use super::metrics::Metrics;
use super::partial::Failing;
use super::registry::Drivers;
use super::{Error, Options, slices, state_file, view};
use crate::allocation::{Change, ClaimHold, PreparedDevice};
use crate::devices;
use davit_proto::unix::{self, Address};
use davit_task::{RepeatedFailure, Task};
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
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::Code;

/// How long a driver that asks for registration waits for the first connection to it.
const DIAL: Duration = Duration::from_secs(1);
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
    pub(super) devices: Arc<devices::Manager>,
    drivers: Mutex<Drivers>,
    /// Claims with the drivers that have confirmed them in this run.
    confirmed: Mutex<BTreeSet<(String, String)>>,
    turns: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
    health: Mutex<HealthTable>,
    failing: Mutex<Failing>,
    /// What could not be undone when it was looked at last: by the UID of a pod that is gone.
    stuck: Mutex<BTreeMap<String, RepeatedFailure>>,
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
            failing: Mutex::default(),
            stuck: Mutex::default(),
            started: Instant::now(),
        })
    }

    /// Starts what goes on without anybody asking: wiping slices, health that runs out, claims of pods that are gone.
    pub(crate) fn serve(this: &Arc<Self>, tasks: &mut JoinSet<()>) {
        let cancel = &this.devices.cancel;
        let manager = this.clone();
        tasks.spawn(Task::new("node", "claims", cancel.clone()).retry(move || {
            let manager = manager.clone();
            async move {
                let cancel = manager.devices.cancel.clone();
                tokio::select! {
                    () = cancel.cancelled() => {}
                    () = run(manager) => {}
                }
            }
        }));
        let manager = this.clone();
        tasks.spawn(
            Task::new("node", "claims-checkpoint", cancel.clone()).retry(move || {
                let manager = manager.clone();
                async move {
                    let cancel = manager.devices.cancel.clone();
                    tokio::select! {
                        () = cancel.cancelled() => {}
                        () = state_file::keep(manager) => {}
                    }
                }
            }),
        );
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
        // The driver may begin to serve after it is registered, as with the kubelet.
        let lost = match unix::connect_observed(this.address(&instance), DIAL).await {
            Ok((channel, lost)) => {
                instance.set_channel(Some(channel));
                Some(lost)
            }
            Err(error) => {
                tracing::info!(driver, %error, "DRA driver is not reached yet");
                None
            }
        };
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

    /// Where an instance serves. Drivers may write below the agent's directory.
    fn address(&self, instance: &Instance) -> Address {
        Address::below(self.devices.root_dir(), &instance.endpoint)
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

    /// The NUMA nodes of the machine.
    pub(super) fn nodes(&self) -> davit_topology::NumaMask {
        self.devices.compute.machine.nodes()
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

/// Keeps the connection to an instance, and follows its health while there is one. `lost` ends the connection that is there.
async fn keep_connected(
    manager: Arc<Manager>,
    instance: Arc<Instance>,
    lost: Option<CancellationToken>,
) {
    let mut lost = match lost {
        Some(lost) => lost,
        None => reconnect(&manager, &instance).await,
    };
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
        lost = reconnect(&manager, &instance).await;
    }
}

/// Dials until an instance is connected.
async fn reconnect(manager: &Manager, instance: &Instance) -> CancellationToken {
    let mut pause = REDIAL.0;
    let lost = loop {
        tokio::time::sleep(pause).await;
        match unix::connect_observed(manager.address(instance), Duration::from_secs(1)).await {
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
    tracing::info!(driver = instance.driver, "DRA driver is connected");
    lost
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
