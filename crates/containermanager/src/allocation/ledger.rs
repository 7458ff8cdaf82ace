//! The log and its table together: claims, commits, and the thread that writes.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use davit_topology::devices::{ContainerKind, DeviceId, DeviceSet};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};

use super::file::{Error, LogFile, table};
use super::record::Change;
use super::table::{CPU, Conflict, Table};

/// Commits waiting to be written; more wait in their callers.
const QUEUE: usize = 1024;
/// Commits that share one sync.
const GROUP: usize = 512;

/// Why a commit did not become durable. Nothing of it counts.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum CommitError {
    /// A device is in other hands.
    #[error(transparent)]
    Conflict(#[from] Conflict),
    /// The log could not be written.
    #[error("{0}")]
    Log(String),
    /// The ledger is shutting down.
    #[error("the allocation log is closed")]
    Closed,
}

struct Shared {
    table: Mutex<Table>,
    /// Rises with each change of the table that is durable.
    generation: watch::Sender<u64>,
    closing: AtomicBool,
}

struct Commit {
    changes: Vec<Change>,
    // Dropped after the changes are applied: from then on the table itself holds the claims.
    _claims: Reservation,
    done: oneshot::Sender<Result<(), CommitError>>,
}

/// The allocation log. See the module's description.
pub(crate) struct Ledger {
    shared: Arc<Shared>,
    queue: Mutex<Option<mpsc::Sender<Commit>>>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// Claims on devices of an admission under way. Dropping it gives up those that no commit has
/// made durable.
pub(crate) struct Reservation {
    shared: Arc<Shared>,
    uid: String,
    claims: Vec<Claim>,
}

#[derive(PartialEq, Eq)]
struct Claim {
    uid: String,
    container: String,
    resource: String,
    device: DeviceId,
}

impl Claim {
    fn give_up(&self, table: &mut Table) {
        table.unclaim(&self.uid, &self.container, &self.resource, &self.device);
    }
}

impl Ledger {
    /// Opens the log at `path`, creating it when absent, and starts its writer. A log without
    /// any commit begins with the changes `imported` from elsewhere.
    ///
    /// # Errors
    /// The file cannot be used; a torn end is no error.
    pub(crate) fn open(path: &Path, imported: Vec<Change>) -> Result<Self, Error> {
        let (mut file, mut commits) = LogFile::open(path)?;
        if commits.is_empty() && !imported.is_empty() {
            file.append(&[&imported])?;
            commits.push(imported);
        }
        let table = table(path, &commits)?;
        let shared = Arc::new(Shared {
            table: Mutex::new(table),
            generation: watch::Sender::new(1),
            closing: AtomicBool::new(false),
        });
        let (queue, commits) = mpsc::channel(QUEUE);
        let writer = std::thread::Builder::new()
            .name("allocation-log".to_owned())
            .spawn({
                let shared = shared.clone();
                move || write(file, &shared, commits)
            })
            .map_err(|source| Error::Io {
                path: path.to_owned(),
                what: "start writer",
                source,
            })?;
        Ok(Self {
            shared,
            queue: Mutex::new(Some(queue)),
            writer: Mutex::new(Some(writer)),
        })
    }

    /// Reads the table under its lock. Keep it short.
    pub(crate) fn read<T>(&self, f: impl FnOnce(&Table) -> T) -> T {
        f(&self.shared.table.lock())
    }

    /// Number of the durable state; changes with it.
    pub(crate) fn generation(&self) -> u64 {
        *self.shared.generation.borrow()
    }

    /// Watches [`generation`](Self::generation).
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.shared.generation.subscribe()
    }

    /// An empty set of claims for a pod.
    pub(crate) fn reservation(&self, uid: &str) -> Reservation {
        Reservation {
            shared: self.shared.clone(),
            uid: uid.to_owned(),
            claims: Vec::new(),
        }
    }

    /// Makes changes durable, then applies them. `claims` of the pod's admission pass into the
    /// log's keeping: they end when the changes count, or have failed.
    ///
    /// If the returned future is dropped the commit may still happen.
    ///
    /// # Errors
    /// See [`CommitError`].
    pub(crate) async fn commit(
        &self,
        changes: Vec<Change>,
        mut claims: Reservation,
    ) -> Result<(), CommitError> {
        for change in &changes {
            match change {
                Change::Hold(hold) => {
                    let devices = hold.devices.keys().cloned().collect();
                    let (uid, container) = (&hold.pod.uid, &hold.container);
                    claims.add_for(uid, container, hold.kind, &hold.resource, &devices)?;
                }
                Change::Compute(hold) => {
                    let (uid, container) = (&hold.pod.uid, &hold.container);
                    claims.add_for(uid, container, hold.kind, CPU, &hold.cpu_ids())?;
                }
                Change::Release { .. }
                | Change::Claim(_)
                | Change::ClaimGone { .. }
                | Change::Learned { .. }
                | Change::Forgotten { .. } => {}
            }
        }
        if changes.is_empty() {
            return Ok(());
        }
        let (done, result) = oneshot::channel();
        let commit = Commit {
            changes,
            _claims: claims,
            done,
        };
        let queue = self.queue.lock().clone().ok_or(CommitError::Closed)?;
        queue.send(commit).await.map_err(|_| CommitError::Closed)?;
        drop(queue);
        result.await.map_err(|_| CommitError::Closed)?
    }
}

impl Ledger {
    /// Writes what is queued and closes the file; later commits fail. What was read stays
    /// readable. Waits for the last sync.
    pub(crate) fn close(&self) {
        let Some(queue) = self.queue.lock().take() else {
            return;
        };
        self.shared.closing.store(true, Ordering::Release);
        // Wakes the writer; when the queue is full it is awake. Callers that wait for room are
        // turned away when it ends.
        let (done, _) = oneshot::channel();
        let _ = queue.try_send(Commit {
            changes: Vec::new(),
            _claims: self.reservation(""),
            done,
        });
        drop(queue);
        let writer = self.writer.lock().take();
        if writer.is_some_and(|w| w.join().is_err()) {
            tracing::error!("the writer of the allocation log has panicked");
        }
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.close();
    }
}

impl Reservation {
    /// Claims devices for one container of the pod, all or none.
    ///
    /// # Errors
    /// One of them is in other hands.
    pub(crate) fn add(
        &mut self,
        container: &str,
        kind: ContainerKind,
        resource: &str,
        devices: &DeviceSet,
    ) -> Result<(), Conflict> {
        let uid = self.uid.clone();
        self.add_for(&uid, container, kind, resource, devices)
    }

    fn add_for(
        &mut self,
        uid: &str,
        container: &str,
        kind: ContainerKind,
        resource: &str,
        devices: &DeviceSet,
    ) -> Result<(), Conflict> {
        let mut table = self.shared.table.lock();
        let before = self.claims.len();
        for device in devices {
            let claim = Claim {
                uid: uid.to_owned(),
                container: container.to_owned(),
                resource: resource.to_owned(),
                device: device.clone(),
            };
            if self.claims.contains(&claim) {
                continue;
            }
            if let Err(conflict) = table.claim(uid, container, kind, resource, device) {
                for claim in self.claims.drain(before..) {
                    claim.give_up(&mut table);
                }
                return Err(conflict);
            }
            self.claims.push(claim);
        }
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.claims.is_empty() {
            return;
        }
        let mut table = self.shared.table.lock();
        for claim in &self.claims {
            claim.give_up(&mut table);
        }
    }
}

/// Body of the writer thread: groups what is waiting, one sync for all.
fn write(mut file: LogFile, shared: &Shared, mut commits: mpsc::Receiver<Commit>) {
    while let Some(first) = commits.blocking_recv() {
        let mut group = vec![first];
        while group.len() < GROUP
            && let Ok(next) = commits.try_recv()
        {
            group.push(next);
        }
        group.retain(|c| !c.changes.is_empty());
        let written = if group.is_empty() {
            Ok(())
        } else {
            write_group(&mut file, shared, &group)
        };
        for commit in group {
            let result = written.clone().and_then(|()| {
                let mut table = shared.table.lock();
                commit.changes.iter().try_for_each(|c| Ok(table.apply(c)?))
            });
            let Commit { _claims, done, .. } = commit;
            drop(_claims);
            // The caller may have gone; the change counts all the same.
            let _ = done.send(result);
        }
        shared.generation.send_modify(|g| *g += 1);
        if shared.closing.load(Ordering::Acquire) && commits.is_empty() {
            return;
        }
    }
}

fn write_group(file: &mut LogFile, shared: &Shared, group: &[Commit]) -> Result<(), CommitError> {
    let result = (|| {
        if file.wants_rewrite() {
            let changes = shared.table.lock().changes();
            file.rewrite(&changes)?;
        }
        let changes: Vec<&[Change]> = group.iter().map(|c| c.changes.as_slice()).collect();
        file.append(&changes)
    })();
    result.map_err(|e| {
        tracing::error!(error = %e, "allocations not recorded");
        CommitError::Log(e.to_string())
    })
}
