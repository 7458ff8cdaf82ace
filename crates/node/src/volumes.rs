//! Volumes of pods: made before the containers start, kept up to date while they run, taken down afterwards.
//!
//! Built are emptyDir, hostPath, configMap, secret, downwardAPI and projected. Every other kind is refused with an
//! error that says so.

pub mod atomic;
pub mod mounts;
mod projection;
mod trust_bundle;

use crate::env::NodeFacts;
use crate::objects::{ObjectSource, Token};
use crate::paths::{PRIVATE_DIR, Paths};
use crate::pod::PodExt;
use crate::resources;
use davit_beneath::{Links, Root, private_dir};
use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, HostPathVolumeSource, Pod, Volume};
use mounts::Mounter;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why a volume is not ready.
#[derive(Debug, thiserror::Error)]
#[error("MountVolume.SetUp failed for volume \"{volume}\" : {cause}")]
pub struct Error {
    /// Name of the volume in the pod.
    pub volume: String,
    /// What failed.
    pub cause: Cause,
}

/// What failed about one volume.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// An object that is not optional does not exist.
    #[error("{kind} \"{name}\" not found")]
    Missing {
        /// `configmap`, `secret` or `clustertrustbundle`.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// The object lacks a key that is asked for.
    #[error("references non-existent {kind} key: {key}")]
    MissingKey {
        /// `config` or `secret`.
        kind: &'static str,
        /// The key.
        key: String,
    },
    /// Trust bundles that cannot be used.
    #[error(transparent)]
    TrustBundle(#[from] trust_bundle::Error),
    /// What is at a hostPath is not what the pod says.
    #[error("hostPath type check failed: {path} is not a {expected}")]
    HostPathType {
        /// The path.
        path: String,
        /// What it should be.
        expected: &'static str,
    },
    /// Reading an object failed.
    #[error(transparent)]
    Object(#[from] crate::objects::Error),
    /// A field of the downward API.
    #[error(transparent)]
    Field(#[from] crate::env::Error),
    /// Files or mounts.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// A kind of volume that this node cannot mount.
    #[error("volumes of kind {0} are not built into this node")]
    NotBuilt(&'static str),
}

fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> Cause {
    move |source| Cause::Io { what, source }
}

/// Host paths of a pod's volumes by volume name.
pub type Mounted = BTreeMap<String, PathBuf>;

/// Key of a cached token: pod UID, volume, file.
type TokenKey = (String, String, String);

struct Cached {
    token: Token,
    issued: jiff::Timestamp,
}

/// Makes and removes volumes.
pub struct Volumes {
    paths: Paths,
    mounter: Arc<dyn Mounter>,
    objects: Arc<dyn ObjectSource>,
    tokens: Mutex<HashMap<TokenKey, Cached>>,
}

impl Volumes {
    /// Volumes below `paths`.
    pub fn new(paths: Paths, mounter: Arc<dyn Mounter>, objects: Arc<dyn ObjectSource>) -> Self {
        Self {
            paths,
            mounter,
            objects,
            tokens: Mutex::default(),
        }
    }

    /// The mounter, for sub-paths.
    pub fn mounter(&self) -> &Arc<dyn Mounter> {
        &self.mounter
    }

    /// Makes what is missing and updates what has changed. May be called at any time while the pod lives.
    ///
    /// # Errors
    /// The first volume that cannot be made.
    pub async fn setup(&self, pod: &Pod, facts: &NodeFacts) -> Result<Mounted, Error> {
        let mut out = Mounted::new();
        if let Some(first) = pod.pod_spec().volumes.iter().flatten().next() {
            let dir = self.paths.pod(pod.uid());
            private_dir(dir, PRIVATE_DIR).map_err(|e| Error {
                volume: first.name.clone(),
                cause: io_error("cannot make the pod's directory")(e.into()),
            })?;
        }
        for volume in pod.pod_spec().volumes.iter().flatten() {
            let path = self.one(pod, volume, facts).await.map_err(|cause| Error {
                volume: volume.name.clone(),
                cause,
            })?;
            out.insert(volume.name.clone(), path);
        }
        Ok(out)
    }

    async fn one(&self, pod: &Pod, volume: &Volume, facts: &NodeFacts) -> Result<PathBuf, Cause> {
        if let Some(source) = &volume.host_path {
            return host_path(source);
        }
        if let Some(source) = &volume.empty_dir {
            return self.empty_dir(pod, volume, source).await;
        }
        let (plugin, projection) = if let Some(source) = &volume.config_map {
            (
                "kubernetes.io~configmap",
                projection::config_map(pod, source, &*self.objects).await?,
            )
        } else if let Some(source) = &volume.secret {
            (
                "kubernetes.io~secret",
                projection::secret(pod, source, &*self.objects).await?,
            )
        } else if let Some(source) = &volume.downward_api {
            let items = source.items.as_deref().unwrap_or_default();
            (
                "kubernetes.io~downward-api",
                projection::downward(pod, items, source.default_mode, facts)?,
            )
        } else if let Some(source) = &volume.projected {
            (
                "kubernetes.io~projected",
                projection::projected(self, pod, &volume.name, source, facts).await?,
            )
        } else {
            return Err(Cause::NotBuilt(kind_of(volume)));
        };
        let dir = self.paths.volume(pod.uid(), plugin, &volume.name);
        let in_memory = plugin != "kubernetes.io~configmap";
        let group = fs_group(pod);
        let (mounter, target) = (self.mounter.clone(), dir.clone());
        blocking(move || {
            std::fs::create_dir_all(&target)
                .map_err(io_error("cannot make the volume's directory"))?;
            // Secrets must not reach the disk.
            if in_memory && !mounter.is_mount_point(&target) {
                mounter
                    .mount_memory(&target, None)
                    .map_err(io_error("cannot mount tmpfs"))?;
            }
            atomic::write(&target, &projection, group)
                .map_err(io_error("cannot write the volume's files"))
        })
        .await?;
        Ok(dir)
    }

    async fn empty_dir(
        &self,
        pod: &Pod,
        volume: &Volume,
        source: &EmptyDirVolumeSource,
    ) -> Result<PathBuf, Cause> {
        let dir = self
            .paths
            .volume(pod.uid(), "kubernetes.io~empty-dir", &volume.name);
        let group = fs_group(pod);
        let (mounter, target) = (self.mounter.clone(), dir.clone());
        let medium = source.medium.clone().unwrap_or_default();
        let limit = source
            .size_limit
            .as_ref()
            .map(resources::value)
            .filter(|n| *n > 0)
            .and_then(|n| u64::try_from(n).ok());
        let page = huge_page_size(pod, &medium);
        blocking(move || {
            let known = target.exists();
            std::fs::create_dir_all(&target)
                .map_err(io_error("cannot make the volume's directory"))?;
            let mounted = mounter.is_mount_point(&target);
            if medium == "Memory" && !mounted {
                mounter
                    .mount_memory(&target, limit)
                    .map_err(io_error("cannot mount tmpfs"))?;
            } else if medium.starts_with("HugePages") && !mounted {
                let page =
                    page.ok_or(Cause::NotBuilt("emptyDir with an unknown huge page size"))?;
                mounter
                    .mount_hugepages(&target, page)
                    .map_err(io_error("cannot mount hugetlbfs"))?;
            } else if known {
                return Ok(());
            }
            let mode = if group.is_some() { 0o2777 } else { 0o777 };
            std::fs::set_permissions(&target, std::fs::Permissions::from_mode(mode))
                .map_err(io_error("cannot set the volume's mode"))?;
            if group.is_some() {
                chown(&target, None, group).map_err(io_error("cannot set the volume's group"))?;
                // chown drops the set-group-ID bit on some file systems.
                std::fs::set_permissions(&target, std::fs::Permissions::from_mode(mode))
                    .map_err(io_error("cannot set the volume's mode"))?;
            }
            Ok(())
        })
        .await?;
        Ok(dir)
    }

    /// A token for one file of a projected volume; a new one after 80 % of its life or a day.
    async fn token(
        &self,
        pod: &Pod,
        volume: &str,
        file: &str,
        audience: Option<&str>,
        seconds: i64,
    ) -> Result<String, Cause> {
        let key = (pod.uid().to_owned(), volume.to_owned(), file.to_owned());
        let now = jiff::Timestamp::now();
        if let Some(cached) = self.tokens.lock().get(&key) {
            let life = cached.token.expires.duration_since(cached.issued);
            let age = now.duration_since(cached.issued);
            let old = age >= life * 4 / 5 || age >= jiff::SignedDuration::from_hours(24);
            if !old {
                return Ok(cached.token.token.clone());
            }
        }
        let token = match self.objects.token(pod, audience, seconds).await {
            Ok(token) => token,
            Err(error) => {
                // The old one is good until it ends.
                let cached = self.tokens.lock();
                let usable = cached.get(&key).filter(|c| c.token.expires > now);
                return usable
                    .map(|c| c.token.token.clone())
                    .ok_or(Cause::Object(error));
            }
        };
        let text = token.token.clone();
        self.tokens
            .lock()
            .insert(key, Cached { token, issued: now });
        Ok(text)
    }

    /// Takes the volumes of a pod down. Its other files stay until [`teardown`](Self::teardown).
    ///
    /// # Errors
    /// Mounts that stay, or files that cannot be removed. Nothing behind a mount that stays is removed.
    pub async fn unmount(&self, uid: &str) -> io::Result<()> {
        self.take_down(uid, &["volumes", "volume-subpaths"]).await
    }

    /// Takes down everything of a pod and removes its directory.
    ///
    /// # Errors
    /// Mounts that stay, or files that cannot be removed. Nothing behind a mount that stays is removed.
    pub async fn teardown(&self, uid: &str) -> io::Result<()> {
        self.take_down(uid, &[""]).await
    }

    async fn take_down(&self, uid: &str, parts: &'static [&'static str]) -> io::Result<()> {
        self.tokens.lock().retain(|(pod, _, _), _| pod != uid);
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

/// Unmounts everything below `root`, the deepest first.
fn unmount_below(mounter: &dyn Mounter, root: &Path) -> io::Result<()> {
    let mut below: Vec<String> = mounts::mount_points()?
        .into_iter()
        .filter(|m| Path::new(m).starts_with(root))
        .collect();
    below.sort_by_key(|m| std::cmp::Reverse(m.len()));
    for point in &below {
        mounter.unmount(Path::new(point))?;
    }
    let left = mounts::mount_points()?
        .into_iter()
        .find(|m| Path::new(m).starts_with(root));
    match left {
        Some(point) => Err(io::Error::other(format!("{point} is still mounted"))),
        None => Ok(()),
    }
}

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

fn fs_group(pod: &Pod) -> Option<u32> {
    let group = pod.pod_spec().security_context.as_ref()?.fs_group?;
    u32::try_from(group).ok()
}

/// `HugePages-2Mi` names a size; plain `HugePages` takes the one size the pod's containers ask for.
fn huge_page_size(pod: &Pod, medium: &str) -> Option<u64> {
    let parse = |text: &str| {
        let q = k8s_openapi::apimachinery::pkg::api::resource::Quantity(text.to_owned());
        u64::try_from(resources::value(&q)).ok().filter(|n| *n > 0)
    };
    if let Some(size) = medium.strip_prefix("HugePages-") {
        return parse(size);
    }
    let requests = resources::pod_requests(pod);
    requests
        .keys()
        .find_map(|name| name.strip_prefix("hugepages-"))
        .and_then(parse)
}

fn host_path(source: &HostPathVolumeSource) -> Result<PathBuf, Cause> {
    let path = PathBuf::from(&source.path);
    let failed = |expected| Cause::HostPathType {
        path: source.path.clone(),
        expected,
    };
    let kind = source.type_.as_deref().unwrap_or_default();
    match kind {
        "DirectoryOrCreate" if !path.exists() => {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(&path)
                .map_err(io_error("cannot make the hostPath directory"))?;
        }
        "FileOrCreate" if !path.exists() => {
            let mut new = std::fs::OpenOptions::new();
            // Only if nothing is there still: whatever has come meanwhile is neither emptied nor followed.
            match new.write(true).create_new(true).mode(0o644).open(&path) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(io_error("cannot make the hostPath file")(e));
                }
                _ => {}
            }
        }
        _ => {}
    }
    let file_type = || std::fs::metadata(&path).map(|m| m.file_type()).ok();
    let (good, expected) = match kind {
        "Directory" | "DirectoryOrCreate" => (file_type().is_some_and(|t| t.is_dir()), "directory"),
        "File" | "FileOrCreate" => (file_type().is_some_and(|t| t.is_file()), "file"),
        "Socket" => (file_type().is_some_and(|t| t.is_socket()), "socket file"),
        "CharDevice" => (
            file_type().is_some_and(|t| t.is_char_device()),
            "character device",
        ),
        "BlockDevice" => (
            file_type().is_some_and(|t| t.is_block_device()),
            "block device",
        ),
        _ => (true, ""),
    };
    if good {
        Ok(path)
    } else {
        Err(failed(expected))
    }
}

fn kind_of(volume: &Volume) -> &'static str {
    let kinds: [(bool, &'static str); 12] = [
        (
            volume.persistent_volume_claim.is_some(),
            "persistentVolumeClaim",
        ),
        (volume.csi.is_some(), "csi"),
        (volume.ephemeral.is_some(), "ephemeral"),
        (volume.flex_volume.is_some(), "flexVolume"),
        (volume.nfs.is_some(), "nfs"),
        (volume.iscsi.is_some(), "iscsi"),
        (volume.fc.is_some(), "fc"),
        (volume.image.is_some(), "image"),
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
