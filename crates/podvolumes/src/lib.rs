//! Volumes of pods: made before the containers start, kept up to date while they run, taken down afterwards.
//!
//! What is mounted is known from the disk and the kernel alone: nothing has to be remembered over a restart. Kinds that
//! are not built are refused with an error that says so.

#![forbid(unsafe_code)]

mod block;
mod claims;
mod csi;
mod device_mount;
mod empty_dir;
mod env_files;
mod error;
mod file_waits;
mod flex;
mod fs_group;
mod helper;
mod host_path;
mod local;
mod locks;
mod mount_options;
pub mod mounts;
mod nfs;
mod node_expand;
mod persistent;
mod projection;
mod sources;
mod stats;
mod sub_paths;
mod tally;
mod tokens;
mod trust_bundle;

pub use error::{Cause, Error};
pub use local::record_of;
pub use stats::{VolumeFigures, file_system};
pub use sub_paths::{SubPath, too_many as too_many_sub_paths};

use claims::Use;
use davit_beneath::mountinfo::{is_there, mount_points};
use davit_beneath::{Links, Root};
use davit_client::{EventRecorder, Informer};
use davit_csi::Drivers;
use davit_disk::{Directories, nested, published};
use davit_flexvolume::{DEFAULT_PLUGIN_DIR, FlexDrivers};
use davit_pods::env::NodeFacts;
use davit_pods::objects::ObjectSource;
use davit_pods::paths::Paths;
use davit_pods::pod::PodExt;
use error::io_error;
use file_waits::FileWaits;
use futures::future::join_all;
use k8s_openapi::api::core::v1::{Node, Pod, Volume};
use locks::Locks;
use mounts::Mounter;
use node_expand::Known;
use parking_lot::Mutex;
use projection::Files;
use prometheus_client::collector::Collector;
use rustix::io::Errno;
use sources::Sources;
use stats::PlacedVolumes;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use tally::VolumeTally;
use tokens::Tokens;
use tokio::sync::Notify;

/// A volume that containers can be given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ready {
    /// A directory or a file.
    Directory {
        /// Where it is on the node.
        path: PathBuf,
        /// Whatever the containers' mounts say.
        read_only: bool,
    },
    /// A block device.
    Device {
        /// Where its node is.
        path: PathBuf,
        /// The claim may only be read.
        read_only: bool,
    },
}

impl Ready {
    /// Where it is on the node.
    pub fn path(&self) -> &Path {
        match self {
            Self::Directory { path, .. } | Self::Device { path, .. } => path,
        }
    }
}

/// A pod's volumes by their names in the pod.
pub type Mounted = BTreeMap<String, Ready>;

/// Makes and removes volumes.
pub struct Volumes {
    paths: Paths,
    mounter: Arc<dyn Mounter>,
    objects: Arc<dyn ObjectSource>,
    recorder: Option<EventRecorder>,
    tokens: Tokens,
    /// By pod UID: volumes are made side by side, and not while the pod is taken down.
    pods: Locks<tokio::sync::RwLock<()>>,
    /// By name of the persistent volume.
    volumes: Locks<tokio::sync::Mutex<()>>,
    drivers: Arc<Drivers>,
    flex_drivers: FlexDrivers,
    /// The volumes of davit's own provisioner.
    own: Option<Directories>,
    /// Where programs of the host are that mount.
    helpers: Vec<PathBuf>,
    node_name: String,
    /// This node's object.
    node: Option<Informer<Node>>,
    /// Has the node's status computed: what it says to be in use has changed.
    look: Arc<Notify>,
    /// Volumes that drivers have published or mounted since this process began, by pod UID and name.
    published: Mutex<BTreeSet<(String, String)>>,
    /// Volumes that drivers have staged since this process began, by driver and handle.
    staged: Mutex<BTreeSet<(String, String)>>,
    /// Attachable volumes that pods wait for, by pod UID and unique name.
    wanted: Mutex<BTreeSet<(String, String)>>,
    /// Devices that pods have, opened, by pod UID and name of the persistent volume.
    held: Mutex<BTreeMap<(String, String), OwnedFd>>,
    /// Sizes of persistent volumes, by name.
    sizes: Mutex<BTreeMap<String, Known>>,
    placed: PlacedVolumes,
    tally: VolumeTally,
    /// Threads that wait for file systems of others.
    waits: FileWaits,
    /// The same of those that measure.
    measuring: FileWaits,
    /// Some staged volume may be used no more.
    unstage: Notify,
}

impl Volumes {
    /// Volumes below `paths`.
    pub fn new(paths: Paths, mounter: Arc<dyn Mounter>, objects: Arc<dyn ObjectSource>) -> Self {
        Self {
            paths,
            mounter,
            tokens: Tokens::new(objects.clone()),
            objects,
            recorder: None,
            pods: Locks::default(),
            volumes: Locks::default(),
            drivers: Arc::default(),
            flex_drivers: FlexDrivers::new(PathBuf::from(DEFAULT_PLUGIN_DIR)),
            own: None,
            helpers: helper::dirs(),
            node_name: String::new(),
            node: None,
            look: Arc::default(),
            published: Mutex::default(),
            staged: Mutex::default(),
            wanted: Mutex::default(),
            held: Mutex::default(),
            sizes: Mutex::default(),
            placed: PlacedVolumes::default(),
            tally: VolumeTally::default(),
            waits: FileWaits::default(),
            measuring: FileWaits::default(),
            unstage: Notify::new(),
        }
    }

    /// Volumes of the CSI drivers that register on this node. `look` has the node's status computed.
    #[must_use]
    pub fn with_drivers(
        mut self,
        drivers: Arc<Drivers>,
        node_name: &str,
        node: Informer<Node>,
        look: Arc<Notify>,
    ) -> Self {
        (self.drivers, self.look) = (drivers, look);
        node_name.clone_into(&mut self.node_name);
        self.node = Some(node);
        self
    }

    /// Volumes of these FlexVolume drivers.
    #[must_use]
    pub fn with_flex_drivers(mut self, drivers: FlexDrivers) -> Self {
        self.flex_drivers = drivers;
        self
    }

    /// Volumes of davit's own provisioner in this directory.
    #[must_use]
    pub fn with_own(mut self, root: Option<&Path>) -> Self {
        self.own = root.map(|root| Directories::at(root.to_owned()));
        self
    }

    /// Tells what takes long or looks wrong by events on the pods.
    #[must_use]
    pub fn with_events(mut self, recorder: EventRecorder) -> Self {
        self.recorder = Some(recorder);
        self
    }

    /// The metrics of claims, and of all volumes.
    pub fn collectors(&self) -> [Box<dyn Collector>; 2] {
        [Box::new(self.placed.clone()), Box::new(self.tally.clone())]
    }

    fn tell(&self, pod: &Pod, reason: &'static str, message: String) {
        match &self.recorder {
            Some(recorder) => recorder.normal(&pod.reference(), reason, message),
            None => tracing::info!(pod = %pod.format(), reason, message),
        }
    }

    fn warn(&self, pod: &Pod, reason: &'static str, message: String) {
        match &self.recorder {
            Some(recorder) => recorder.warning(&pod.reference(), reason, message),
            None => tracing::warn!(pod = %pod.format(), reason, message),
        }
    }

    /// Makes what is missing and updates what has changed, of the volumes that some container uses. May be called at any
    /// time while the pod lives.
    ///
    /// # Errors
    /// All volumes that cannot be made.
    pub async fn setup(&self, pod: &Pod, facts: &NodeFacts) -> Result<Mounted, Vec<Error>> {
        let used = claims::used(pod);
        let wanted: Vec<(&Volume, Use)> = pod
            .pod_spec()
            .volumes
            .iter()
            .flatten()
            .filter_map(|volume| Some((volume, *used.get(&volume.name)?)))
            .collect();
        let Some((first, _)) = wanted.first() else {
            return Ok(Mounted::new());
        };
        let lock = self.pods.of(pod.uid());
        let _alive = lock.read().await;
        self.paths
            .make_dir(&self.paths.pod(pod.uid()))
            .map_err(|e| {
                vec![Error::SetUp {
                    volume: first.name.clone(),
                    cause: io_error("cannot make the pod's directory")(e.into()),
                }]
            })?;
        let sources = Sources::new(&*self.objects, pod.ns());
        let made = wanted
            .iter()
            .map(|(volume, usage)| Box::pin(self.one(pod, volume, *usage, facts, &sources)));
        let made = join_all(made).await;
        let names = || wanted.iter().map(|(volume, _)| volume.name.clone());
        let failed: Vec<String> = names()
            .zip(&made)
            .filter(|(_, made)| made.is_err())
            .map(|(name, _)| name)
            .collect();
        let mut errors = Vec::new();
        let mut out = Mounted::new();
        for (name, made) in names().zip(made) {
            match made {
                Ok(ready) => drop(out.insert(name, ready)),
                Err(Error::Unprocessed { volume, cause, .. }) => {
                    let unmounted = failed.clone();
                    errors.push(Error::Unprocessed {
                        volume,
                        unmounted,
                        cause,
                    });
                }
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() {
            Ok(out)
        } else {
            Err(errors)
        }
    }

    async fn one(
        &self,
        pod: &Pod,
        volume: &Volume,
        usage: Use,
        facts: &NodeFacts,
        sources: &Sources<'_>,
    ) -> Result<Ready, Error> {
        let claimed = Box::pin(claims::resolve(pod, volume, usage, &*self.objects)).await;
        let claimed = claimed.map_err(|cause| Error::Unprocessed {
            volume: volume.name.clone(),
            unmounted: Vec::new(),
            cause,
        })?;
        let had = self.tally.wanted(pod.uid(), volume, claimed.as_ref());
        let begun = Instant::now();
        let made = match &claimed {
            Some(claimed) => Box::pin(self.persistent(pod, claimed, facts)).await,
            None => Box::pin(self.unclaimed(pod, volume, facts, sources)).await,
        };
        if !had {
            let took = begun.elapsed();
            self.tally.made(pod.uid(), &volume.name, made.is_ok(), took);
        }
        let ready = made?;
        self.place(pod, volume, claimed.as_ref(), &ready);
        Ok(ready)
    }

    /// A volume that the pod describes itself.
    async fn unclaimed(
        &self,
        pod: &Pod,
        volume: &Volume,
        facts: &NodeFacts,
        sources: &Sources<'_>,
    ) -> Result<Ready, Error> {
        if let Some(source) = &volume.csi {
            return Box::pin(self.inline_csi(pod, &volume.name, source)).await;
        }
        if let Some(source) = &volume.flex_volume {
            return Box::pin(self.inline_flex(pod, &volume.name, source)).await;
        }
        if let Some(source) = &volume.nfs {
            let share = nfs::Share::new(&volume.name, source, Vec::new(), false);
            let mounted = self.nfs(pod, &share).await;
            return mounted.map_err(|cause| Error::SetUp {
                volume: volume.name.clone(),
                cause,
            });
        }
        let made = Box::pin(self.of_the_pod(pod, volume, facts, sources)).await;
        let path = made.map_err(|cause| Error::SetUp {
            volume: volume.name.clone(),
            cause,
        })?;
        Ok(Ready::Directory {
            path,
            read_only: false,
        })
    }

    /// A volume that belongs to the pod alone.
    async fn of_the_pod(
        &self,
        pod: &Pod,
        volume: &Volume,
        facts: &NodeFacts,
        sources: &Sources<'_>,
    ) -> Result<PathBuf, Cause> {
        if let Some(source) = &volume.host_path {
            let source = source.clone();
            let key = format!("hostPath {}/{}", pod.uid(), volume.name);
            let set_up = self.waits.run(key, move || host_path::set_up(&source));
            return set_up
                .await
                .unwrap_or_else(|e| Err(io_error("cannot look at the hostPath")(e)));
        }
        if let Some(source) = &volume.empty_dir {
            return empty_dir::set_up(self, pod, volume, source).await;
        }
        let mut files = Files::within(&sources.budget);
        let plugin = if let Some(source) = &volume.config_map {
            projection::config_map(source, sources, &mut files).await?;
            "kubernetes.io~configmap"
        } else if let Some(source) = &volume.secret {
            projection::secret(source, sources, &mut files).await?;
            "kubernetes.io~secret"
        } else if let Some(source) = &volume.downward_api {
            let items = source.items.as_deref().unwrap_or_default();
            projection::downward(pod, items, source.default_mode, facts, &mut files)?;
            "kubernetes.io~downward-api"
        } else if let Some(source) = &volume.projected {
            let of_pod = projection::OfPod { pod, facts };
            projection::projected(&self.tokens, of_pod, source, sources, &mut files).await?;
            "kubernetes.io~projected"
        } else {
            return Err(Cause::NotBuilt(kind_of(volume)));
        };
        let projection = files.into_payload();
        let dir = self.paths.volume(pod.uid(), plugin, &volume.name);
        let in_memory = plugin != "kubernetes.io~configmap";
        let group = group_of(pod);
        let containers = pod.all_containers();
        let mounts = containers.iter().map(|(_, container)| {
            let mounts = container.volume_mounts.iter().flatten();
            mounts.map(|m| (&*m.name, &*m.mount_path)).collect()
        });
        let nested = nested::points(&mounts.collect::<Vec<_>>(), &volume.name);
        let (mounter, target) = (self.mounter.clone(), dir.clone());
        let pods = self.paths.pods();
        blocking(move || {
            empty_dir::make_dir(&pods, &target)
                .map_err(io_error("cannot make the volume's directory"))?;
            // Secrets must not reach the disk.
            let known = io_error("cannot know whether tmpfs is mounted");
            if in_memory && !mounter.is_mount_point(&target).map_err(known)? {
                mounter
                    .mount_memory(&target, None)
                    .map_err(io_error("cannot mount tmpfs"))?;
            }
            nested::make(&target, &nested)
                .map_err(io_error("cannot make mount points in the volume"))?;
            published::write(&target, &projection, group)
                .map_err(io_error("cannot write the volume's files"))
        })
        .await?;
        Ok(dir)
    }

    /// Whether something is mounted there.
    fn is_mounted(&self, path: &Path) -> Result<bool, Cause> {
        let mounted = self.mounter.is_mount_point(path);
        mounted.map_err(io_error("cannot know what is mounted"))
    }

    /// Whether some pod of this node has the volume mounted, or may have.
    pub fn is_local_volume_used(&self, volume: &str) -> bool {
        let others = self.others_with("", local::PLUGIN, volume);
        let with_device = || self.local_map(volume).pods();
        let used = others.and_then(|others| Ok(!others.is_empty() || !with_device()?.is_empty()));
        used.unwrap_or_else(|error| {
            tracing::warn!(volume, %error, "not known to be unused");
            true
        })
    }

    /// The other pods of the node that have a directory for this volume.
    ///
    /// # Errors
    /// It cannot be known; that never means that there are none.
    fn others_with(&self, uid: &str, plugin: &str, volume: &str) -> io::Result<Vec<String>> {
        let pods = entries(&self.paths.pods())?.into_iter();
        let others = pods.map(|pod| name_of(&pod)).filter(|other| other != uid);
        // What is mounted there is not asked: it may hang. What cannot be known counts.
        let has = |other: &String| {
            is_there(&self.paths.volume(other, plugin, volume)).unwrap_or_else(|error| {
                tracing::warn!(pod = %other, volume, %error, "not known to be unused");
                true
            })
        };
        Ok(others.filter(has).collect())
    }

    /// Takes the volumes of a pod down. Its other files stay until [`teardown`](Self::teardown).
    ///
    /// # Errors
    /// Mounts that stay, or files that cannot be removed. Nothing behind a mount that stays is removed.
    pub async fn unmount(&self, uid: &str) -> io::Result<()> {
        let parts = &["volumes", "volume-subpaths", "volumeDevices"];
        self.take_down(uid, parts).await
    }

    /// Takes down everything of a pod and removes its directory.
    ///
    /// # Errors
    /// Mounts that stay, or files that cannot be removed. Nothing behind a mount that stays is removed.
    pub async fn teardown(&self, uid: &str) -> io::Result<()> {
        self.take_down(uid, &[""]).await
    }

    async fn take_down(&self, uid: &str, parts: &'static [&'static str]) -> io::Result<()> {
        let lock = self.pods.of(uid);
        let _alone = lock.write().await;
        self.tokens.forget(uid);
        self.displace(uid);
        self.tally.gone(uid);
        // A driver of one kind that hangs or is gone does not keep what those of the others have mounted.
        let (flex, csi, local, nfs) = tokio::join!(
            self.unmount_flex(uid),
            self.unpublish(uid),
            self.unmap_local(uid),
            self.unmount_nfs(uid)
        );
        flex.and(csi).and(local).and(nfs)?;
        let path = self.paths.pod(uid);
        let mounter = self.mounter.clone();
        let done = tokio::task::spawn_blocking(move || {
            let path = match path.canonicalize() {
                Ok(path) => path,
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(e) => return Err(e),
            };
            unmount_below(&*mounter, &path)?;
            // Containers have made what is in there, as deep and with as many links as they liked.
            let pods = Root::open(path.parent().unwrap_or(&path), Links::Refused)?;
            let pod = PathBuf::from(path.file_name().unwrap_or_default());
            for part in parts {
                let below = if part.is_empty() {
                    pod.clone()
                } else {
                    pod.join(part)
                };
                pods.remove_tree(below)?;
            }
            Ok(())
        });
        done.await.map_err(io::Error::other)?
    }
}

impl Volumes {
    /// Makes the directory of a volume, below the node's own.
    async fn make_volume_dir(&self, dir: &Path) -> Result<(), Cause> {
        let (paths, dir) = (self.paths.clone(), dir.to_owned());
        blocking(move || {
            let made = paths.make_dir(&dir).map(drop);
            made.map_err(|e| io_error("cannot make the volume's directory")(e.into()))
        })
        .await
    }
}

/// What is in a directory of the node's own; nothing where there is none.
///
/// # Errors
/// It cannot be listed (all descriptors are taken, a disk fails). That is never taken for an empty one: what nobody seems
/// to use is unmounted and given back.
fn entries(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let error = match std::fs::read_dir(dir) {
        Ok(entries) => return entries.map(|entry| Ok(entry?.path())).collect(),
        Err(error) => error,
    };
    match Errno::from_io_error(&error) {
        Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(Vec::new()),
        _ => Err(error),
    }
}

fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// What is not there need not be removed.
fn missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Whether these are all volumes that the pod's containers use.
pub fn are_all(pod: &Pod, mounted: &Mounted) -> bool {
    claims::used(pod)
        .keys()
        .all(|name| mounted.contains_key(name))
}

/// Unmounts everything below `root`, the deepest first.
fn unmount_below(mounter: &dyn Mounter, root: &Path) -> io::Result<()> {
    let mut below = mount_points()?;
    below.retain(|point| point.starts_with(root));
    if !below.is_empty() {
        mounter.part_from_outside(root)?;
    }
    below.sort_by_key(|point| std::cmp::Reverse(point.as_os_str().len()));
    for point in &below {
        mounter.unmount(point)?;
    }
    let left = mount_points()?
        .into_iter()
        .find(|point| point.starts_with(root));
    match left {
        Some(point) => Err(io::Error::other(format!(
            "{} is still mounted",
            point.display()
        ))),
        None => Ok(()),
    }
}

/// Runs what waits for files or mounts where that holds up nobody.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Cause> + Send + 'static,
) -> Result<T, Cause> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(Cause::Io {
            what: "volume task ended early",
            source: io::Error::other(error),
        }),
    }
}

/// The group that the pod's volumes are to have.
fn group_of(pod: &Pod) -> Option<u32> {
    let group = pod.pod_spec().security_context.as_ref()?.fs_group?;
    u32::try_from(group).ok()
}

fn kind_of(volume: &Volume) -> &'static str {
    let kinds: [(bool, &'static str); 6] = [
        (volume.iscsi.is_some(), "iscsi"),
        (volume.fc.is_some(), "fc"),
        (volume.git_repo.is_some(), "gitRepo"),
        (volume.rbd.is_some(), "rbd"),
        (volume.cephfs.is_some(), "cephfs"),
        (volume.glusterfs.is_some(), "glusterfs"),
    ];
    kinds
        .into_iter()
        .find(|(set, _)| *set)
        .map_or("unknown", |(_, name)| name)
}

#[cfg(test)]
mod tests;
