//! The node's part in davit's own provisioner: directories and images for the volumes that the controller has placed here.
//!
//! The controller makes and removes objects, the node makes and removes directories and says so by an annotation of the
//! volume. It sees only volumes that carry its label, and goes by their names, never by the paths that they say.

use crate::context::Context;
use davit_client::{Informer, object_ref};
use davit_disk::{Directories, DirectoryError, VolumeForm};
use davit_podvolumes::record_of;
use davit_task::Task;
use davit_volume::local::{self, NodeStorage, State};
use k8s_openapi::api::core::v1::{Node, PersistentVolume};
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher;
use serde_json::json;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How often everything is looked at and the room is measured.
const PERIOD: Duration = Duration::from_secs(30);
/// How soon what could not be done is tried again.
const SOON: Duration = Duration::from_secs(1);
const DEADLINE: Duration = Duration::from_secs(15);
/// The room is told anew when it has changed by a hundredth.
const NOTEWORTHY: u64 = 100;

/// Keeps local volumes below `root` until `cancel`.
pub(crate) async fn run(ctx: Arc<Context>, root: PathBuf, cancel: CancellationToken) {
    let opened = tokio::task::spawn_blocking(move || Directories::open(&root)).await;
    let opened = opened.map_err(|e| e.to_string());
    let directories = match opened.and_then(|opened| opened.map_err(|e| e.to_string())) {
        Ok(directories) => directories,
        Err(error) => {
            tracing::error!(error, "this node keeps no local volumes");
            return cancel.cancelled().await;
        }
    };
    let mut tasks = JoinSet::new();
    let selector = local::selector_of_node(&ctx.options.node_name);
    let volumes = Informer::<PersistentVolume>::spawn(
        Api::all(ctx.client.clone()),
        watcher::Config::default().labels(&selector),
        &mut tasks,
        cancel.clone(),
    );
    let trash = Arc::new(Notify::new());
    let emptying = Task::new("node", "local-volumes-trash", cancel.clone())
        .keep(|| empty_trash(directories.clone(), trash.clone()));
    let keeper = Keeper {
        ctx,
        directories: directories.clone(),
        volumes,
        trash: trash.clone(),
        copies: Notify::new(),
        copied: Notify::new(),
    };
    // Pods have made what is in the trash: however long it takes, other volumes are made and removed meanwhile.
    tokio::select! {
        () = cancel.cancelled() => {}
        () = keeper.run() => {}
        () = keeper.copy() => {}
        () = emptying => {}
    }
    tasks.shutdown().await;
}

struct Keeper {
    ctx: Arc<Context>,
    directories: Directories,
    volumes: Informer<PersistentVolume>,
    /// Something has come into the trash.
    trash: Arc<Notify>,
    /// A volume waits for its data.
    copies: Notify,
    /// A volume has got it.
    copied: Notify,
}

/// What a volume wants of its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    Nothing,
    Make,
    /// It was made once.
    Find,
    /// It was made, and shall be larger.
    Grow,
    Remove,
}

fn wish(volume: &PersistentVolume) -> Wish {
    let spec = volume.spec.as_ref();
    let phase = volume.status.as_ref().and_then(|s| s.phase.as_deref());
    let policy = spec.and_then(|s| s.persistent_volume_reclaim_policy.as_deref());
    let state = State::of(&volume.metadata);
    if !local::is_ours(volume) || state == Some(State::Removed) {
        return Wish::Nothing;
    }
    match (phase, policy, state) {
        (Some("Released"), Some("Delete"), _) => Wish::Remove,
        (Some("Released" | "Failed"), ..) => Wish::Nothing,
        (_, _, Some(State::Ready)) if said_size(volume) < told_size(volume) => Wish::Grow,
        (_, _, Some(State::Ready)) => Wish::Find,
        _ if volume.metadata.deletion_timestamp.is_some() => Wish::Nothing,
        _ => Wish::Make,
    }
}

/// The size of an image as its node is to say it.
fn told_size(volume: &PersistentVolume) -> Option<u64> {
    local::is_image(volume).then(|| local::wanted_bytes(volume))
}

fn said_size(volume: &PersistentVolume) -> Option<u64> {
    local::made_bytes(volume)
}

fn form_of(volume: &PersistentVolume) -> VolumeForm {
    told_size(volume).map_or(VolumeForm::Directory, VolumeForm::Image)
}

impl Keeper {
    async fn run(&self) {
        let mut changes = self.volumes.subscribe();
        let mut node = self.ctx.node.subscribe();
        let mut told: Option<NodeStorage> = None;
        let mut lost = BTreeSet::new();
        loop {
            let mut settled = true;
            for volume in self.volumes.list() {
                settled &= self.keep(&volume, &mut lost).await;
            }
            settled &= self.tell_room(&mut told).await;
            let wait = if settled { PERIOD } else { SOON };
            tokio::select! {
                change = changes.next() => if change.is_none() { return },
                // Somebody may have made the node anew.
                change = node.next(), if !settled || told.is_none() => if change.is_none() { return },
                () = self.copied.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Copies the data of volumes that begin as copies, one after the other: others are made and removed meanwhile.
    async fn copy(&self) {
        loop {
            for volume in self.volumes.list() {
                let source = local::source_of(&volume).filter(|_| wish(&volume) == Wish::Make);
                let (Some(source), Some(record)) = (source.map(str::to_owned), record_of(&volume))
                else {
                    continue;
                };
                let (directories, form) = (self.directories.clone(), form_of(&volume));
                let mut alone = None;
                if local::has_file_system(&volume) {
                    // What its file system still holds back would be missing.
                    alone = self.ctx.volumes.keep_unmounted(&source).await;
                    if alone.is_none() {
                        let in_use = DirectoryError::InUse(source);
                        self.report(&volume, Wish::Make, &in_use);
                        continue;
                    }
                }
                let copied =
                    tokio::task::spawn_blocking(move || directories.copy(&record, form, &source));
                let copied = copied.await;
                drop(alone);
                match copied {
                    Ok(Ok(true)) => self.copied.notify_one(),
                    Ok(Ok(false)) => {}
                    Ok(Err(error)) => self.report(&volume, Wish::Make, &error),
                    Err(error) => tracing::error!(%error, "the data of a volume was not copied"),
                }
            }
            // What cannot be copied now may be later.
            let _ = tokio::time::timeout(PERIOD, self.copies.notified()).await;
        }
    }

    /// Whether a volume is still to be copied from.
    fn is_source(&self, name: &str) -> bool {
        let copies = |volume: &Arc<PersistentVolume>| {
            wish(volume) == Wish::Make && local::source_of(volume) == Some(name)
        };
        self.volumes.list().iter().any(copies)
    }

    /// Does what one volume wants. Answers whether nothing is left to do.
    async fn keep(&self, volume: &PersistentVolume, lost: &mut BTreeSet<String>) -> bool {
        let (wish, Some(record)) = (wish(volume), record_of(volume)) else {
            return true;
        };
        let name = record.pv.clone();
        if wish == Wish::Nothing || wish == Wish::Find && lost.contains(&name) {
            return true;
        }
        let volumes = &self.ctx.volumes;
        let is_used = || {
            volumes.is_local_volume_used(&name)
                || volumes.is_local_volume_mounted(&name)
                || self.is_source(&name)
        };
        if wish == Wish::Remove && is_used() {
            return false;
        }
        if wish == Wish::Make && local::source_of(volume).is_some() {
            let (directories, form) = (self.directories.clone(), form_of(volume));
            let asked = record.clone();
            let whole = tokio::task::spawn_blocking(move || directories.is_whole(&asked, form));
            if !matches!(whole.await, Ok(Ok(true))) {
                self.copies.notify_one();
                return true;
            }
        }
        let (directories, form) = (self.directories.clone(), form_of(volume));
        let done = tokio::task::spawn_blocking(move || match wish {
            Wish::Make => directories.make(&record, form),
            Wish::Find => directories.find(&record),
            Wish::Grow => directories.grow(&record, form),
            Wish::Remove => directories.remove(&record),
            Wish::Nothing => Ok(()),
        });
        let state = match (done.await, wish) {
            (Ok(Ok(())), Wish::Make | Wish::Grow) => State::Ready,
            (Ok(Ok(())), Wish::Remove) => {
                self.trash.notify_one();
                State::Removed
            }
            (Ok(Ok(())), _) => return true,
            (Ok(Err(error)), _) => {
                self.report(volume, wish, &error);
                if wish == Wish::Find {
                    lost.insert(name);
                    return true;
                }
                return false;
            }
            (Err(error), _) => {
                tracing::error!(volume = name, %error, "the directory of a volume was not kept");
                return false;
            }
        };
        self.say(&name, state, told_size(volume)).await
    }

    fn report(&self, volume: &PersistentVolume, wish: Wish, error: &DirectoryError) {
        let reason = match wish {
            Wish::Remove => "VolumeFailedDelete",
            Wish::Find => "VolumeMissing",
            Wish::Grow => "VolumeResizeFailed",
            Wish::Make | Wish::Nothing => "ProvisioningFailed",
        };
        let reference = object_ref(volume);
        self.ctx
            .recorder
            .warning(&reference, reason, error.to_string());
    }

    async fn say(&self, name: &str, state: State, size: Option<u64>) -> bool {
        let api: Api<PersistentVolume> = Api::all(self.ctx.client.clone());
        let mut said = json!({ (local::STATE): state.as_str() });
        if let Some(size) = size {
            said[local::SIZE] = json!(size.to_string());
        }
        let patch = json!({"metadata": {"annotations": said}});
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        let call = api.patch(name, &params, &patch);
        match tokio::time::timeout(DEADLINE, call).await {
            Ok(Ok(_)) => true,
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => true,
            Ok(Err(error)) => {
                tracing::warn!(volume = name, %error, "cannot say what became of a volume");
                false
            }
            Err(_) => false,
        }
    }

    /// Puts into the node's annotations how much there is room for.
    async fn tell_room(&self, told: &mut Option<NodeStorage>) -> bool {
        let Some(node) = self.ctx.node_object() else {
            return false;
        };
        let directories = self.directories.clone();
        let measured = tokio::task::spawn_blocking(move || directories.storage()).await;
        let Ok(Ok(storage)) = measured else {
            return false;
        };
        let held = node.metadata.annotations.as_ref();
        let held = held.and_then(|all| all.get(local::STORAGE));
        let held = held.and_then(|text| serde_json::from_str::<NodeStorage>(text).ok());
        if held.is_some_and(|held| !differs(&held, &storage)) {
            told.get_or_insert(storage);
            return true;
        }
        let Ok(text) = serde_json::to_string(&storage) else {
            return true;
        };
        let api: Api<Node> = Api::all(self.ctx.client.clone());
        let patch = json!({"metadata": {"annotations": {(local::STORAGE): text}}});
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        let call = api.patch(&self.ctx.options.node_name, &params, &patch);
        match tokio::time::timeout(DEADLINE, call).await {
            Ok(Ok(_)) => {
                *told = Some(storage);
                true
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "cannot tell the room for local volumes");
                false
            }
            Err(_) => false,
        }
    }
}

/// Empties the trash whenever something has come into it, and from time to time.
async fn empty_trash(directories: Directories, filled: Arc<Notify>) {
    loop {
        let directories = directories.clone();
        let emptied = tokio::task::spawn_blocking(move || directories.empty_trash()).await;
        match emptied.map_err(|e| e.to_string()) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "data of a volume that was deleted is still there");
            }
            Err(error) => tracing::error!(%error, "the trash was not emptied"),
        }
        // What cannot be removed now may be later.
        let _ = tokio::time::timeout(PERIOD, filled.notified()).await;
    }
}

fn differs(old: &NodeStorage, new: &NodeStorage) -> bool {
    let far = |a: u64, b: u64| a.abs_diff(b) > a / NOTEWORTHY;
    old.path != new.path || old.size != new.size || far(old.available, new.available)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_volume_wants() {
        let volume = |phase: &str, policy: &str, state: Option<&str>| -> PersistentVolume {
            serde_json::from_value(json!({
                "metadata": {"name": "pvc-1", "annotations": {
                    "pv.kubernetes.io/provisioned-by": local::PROVISIONER, "local.davit.dev/state": state.unwrap_or_default()}},
                "spec": {"persistentVolumeReclaimPolicy": policy,
                    "claimRef": {"namespace": "ns", "name": "c", "uid": "u"}},
                "status": {"phase": phase},
            }))
            .unwrap()
        };
        assert_eq!(wish(&volume("Pending", "Delete", None)), Wish::Make);
        assert_eq!(wish(&volume("Bound", "Delete", Some("Ready"))), Wish::Find);
        assert_eq!(
            wish(&volume("Released", "Delete", Some("Ready"))),
            Wish::Remove
        );
        assert_eq!(
            wish(&volume("Released", "Retain", Some("Ready"))),
            Wish::Nothing
        );
        assert_eq!(
            wish(&volume("Released", "Delete", Some("Removed"))),
            Wish::Nothing
        );
        assert_eq!(
            record_of(&volume("Bound", "Delete", None)).unwrap().uid,
            "u"
        );
        let mut device = volume("Bound", "Delete", Some("Ready"));
        device.spec.as_mut().unwrap().volume_mode = Some("Block".to_owned());
        assert_eq!(wish(&device), Wish::Grow);
        let annotations = device.metadata.annotations.as_mut().unwrap();
        annotations.insert(local::SIZE.to_owned(), "0".to_owned());
        assert_eq!(wish(&device), Wish::Find);
        let mut foreign = volume("Released", "Delete", None);
        foreign.metadata.annotations = None;
        assert_eq!(wish(&foreign), Wish::Nothing);
    }

    #[test]
    fn small_changes_of_the_room_are_not_told() {
        let storage = |available| NodeStorage {
            path: "/v".to_owned(),
            size: 1000,
            available,
        };
        assert!(!differs(&storage(500), &storage(498)));
        assert!(differs(&storage(500), &storage(480)));
    }
}
