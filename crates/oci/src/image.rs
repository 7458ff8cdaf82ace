//! Images: what is there, where it comes from, and the layers that containers share.
//!
//! On disk, below the runtime's root: `images/images.json` (the records, written atomically), `layers/<id>` (one
//! unpacked layer each, named after the digest of its content), `images/tmp` (cleared at start).

mod archive;
mod entries;
mod pull;
mod reference;
mod registry;
mod room;
mod unpack;

pub use reference::{ParseError, Reference};

use crate::monitor::{read_json, start_ticks, write_durably};
use davit_beneath::{DiskUse, disk_use, measure_tree};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The reference that stands for the host's own root file system.
pub const HOST_IMAGE: &str = "davit.local/host";

/// Why an image operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not a reference.
    #[error(transparent)]
    Reference(#[from] ParseError),
    /// No image of that name.
    #[error("image {0} not found")]
    NotFound(String),
    /// The host image was asked for, but the node does not offer it.
    #[error(
        "image {HOST_IMAGE} is not allowed on this node; --allow-host-image of its davit allows it"
    )]
    HostImageForbidden,
    /// A file could not be read or written.
    #[error("{what}: {source}")]
    Io {
        /// What was being done to which file.
        what: String,
        /// The cause.
        source: io::Error,
    },
    /// The archive or the image in it is not as the specification says.
    #[error("{0}")]
    Invalid(String),
    /// The registry said no.
    #[error("failed to pull {reference}: {message}")]
    Registry {
        /// What was asked for.
        reference: String,
        /// The registry's answer.
        message: String,
    },
}

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
    let what = what.into();
    move |source| Error::Io { what, source }
}

/// The layers a container's root is made of, the lowest first; none for the host image.
pub(crate) type RootLayers = Vec<String>;

/// What an image says about the containers made of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageConfig {
    /// `user[:group]`, names or numbers.
    #[serde(default)]
    pub user: String,
    /// `NAME=value`.
    #[serde(default)]
    pub env: Vec<String>,
    /// Command that arguments are added to.
    #[serde(default)]
    pub entrypoint: Vec<String>,
    /// Arguments, or the command when there is no entrypoint.
    #[serde(default)]
    pub cmd: Vec<String>,
    /// Working directory.
    #[serde(default)]
    pub working_dir: String,
    /// Name or number of the signal that asks a container to end.
    #[serde(default)]
    pub stop_signal: String,
}

/// Layers of an image at most.
const MAX_LAYERS: usize = 500;
/// Words of a command, or variables, of an image at most.
const MAX_WORDS: usize = 4096;
/// Bytes that an image says about containers at most. The kernel starts nothing with more than a few MiB, and what is
/// here is in memory as long as the image is there.
const MAX_CONFIG: usize = 512 << 10;

impl ImageConfig {
    fn check_size(&self) -> Result<()> {
        let lists = [&self.env, &self.entrypoint, &self.cmd];
        let single = [&self.user, &self.working_dir, &self.stop_signal];
        let bytes: usize = lists
            .into_iter()
            .flatten()
            .chain(single)
            .map(String::len)
            .sum();
        if bytes > MAX_CONFIG || lists.iter().any(|list| list.len() > MAX_WORDS) {
            return Err(Error::Invalid(format!(
                "image configuration: more than {MAX_WORDS} words or variables, or {MAX_CONFIG} bytes of them"
            )));
        }
        Ok(())
    }
}

/// One image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// Digest of its configuration, `sha256:<hex>`.
    pub id: String,
    /// References with tag.
    pub tags: BTreeSet<String>,
    /// References with digest.
    pub digests: BTreeSet<String>,
    /// Names of its layers' directories, the lowest first.
    pub layers: Vec<String>,
    /// Bytes on disk, shared layers included.
    pub size: u64,
    /// What it says about containers.
    pub config: ImageConfig,
}

impl Image {
    /// Whether it is the host's root file system. Goes by the ID, which is the digest of what is no configuration: names are
    /// what whoever wrote an archive likes.
    #[must_use]
    pub fn is_host(&self) -> bool {
        self.id == host_id()
    }
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Records {
    images: Vec<Image>,
}

/// Which state of the records' file was read: it is replaced as a whole, so these tell any two apart.
type FileMark = Option<(u64, i64, i64, u64)>;

/// The image store. Several processes may use one (davit and its command line): locks on files order what they do.
/// Its methods block; async callers run them on a blocking thread.
#[derive(Debug)]
pub struct Images {
    dir: PathBuf,
    layers: PathBuf,
    allow_host: bool,
    cache: Mutex<(FileMark, Arc<Records>)>,
}

/// A description of an image whose layers are there.
#[derive(Clone)]
pub(crate) struct NewImage {
    id: String,
    reference: Option<Reference>,
    manifest_digest: Option<String>,
    layers: Vec<String>,
    config: ImageConfig,
}

/// The parts of an OCI or Docker image configuration that we read.
#[derive(Debug, Deserialize)]
struct ConfigFile {
    #[serde(default)]
    config: Option<ConfigSection>,
    rootfs: RootFsSection,
    #[serde(default)]
    architecture: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct ConfigSection {
    user: Option<String>,
    env: Option<Vec<String>>,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    working_dir: Option<String>,
    stop_signal: Option<String>,
}

#[derive(Debug, Deserialize)]
struct RootFsSection {
    #[serde(default)]
    diff_ids: Vec<String>,
}

/// Reads an image configuration: its ID, what it says about containers and the digests of its layers' content.
fn parse_config(json: &[u8]) -> Result<(String, ImageConfig, Vec<String>)> {
    let file: ConfigFile = serde_json::from_slice(json)
        .map_err(|e| Error::Invalid(format!("image configuration: {e}")))?;
    if !file.architecture.is_empty() && file.architecture != davit_api::architecture() {
        return Err(Error::Invalid(format!(
            "image is for {}, this machine is {}",
            file.architecture,
            davit_api::architecture()
        )));
    }
    if let Some(odd) = file
        .rootfs
        .diff_ids
        .iter()
        .find(|id| !reference::is_digest(id))
    {
        return Err(Error::Invalid(format!(
            "image configuration: layer digest {odd:?}"
        )));
    }
    if file.rootfs.diff_ids.len() > MAX_LAYERS {
        return Err(Error::Invalid(format!(
            "image configuration: more than {MAX_LAYERS} layers"
        )));
    }
    let section = file.config.unwrap_or_default();
    let config = ImageConfig {
        user: section.user.unwrap_or_default(),
        env: section.env.unwrap_or_default(),
        entrypoint: section.entrypoint.unwrap_or_default(),
        cmd: section.cmd.unwrap_or_default(),
        working_dir: section.working_dir.unwrap_or_default(),
        stop_signal: section.stop_signal.unwrap_or_default(),
    };
    config.check_size()?;
    Ok((sha256(json), config, file.rootfs.diff_ids))
}

/// `sha256:<hex>` of bytes.
fn sha256(bytes: &[u8]) -> String {
    format!("sha256:{}", unpack::hex(Sha256::new_with_prefix(bytes)))
}

/// The ID of the host's root file system.
fn host_id() -> String {
    sha256(HOST_IMAGE.as_bytes())
}

/// The directory of a layer: short, because overlayfs takes all names of an image in one page, and of 160 bits, so that
/// nobody finds two contents with one name: an image that is named by its digest would be made of another's layer.
fn layer_name(diff_id: &str) -> String {
    use base64::Engine as _;
    let digits = diff_id.trim_start_matches("sha256:").as_bytes();
    let value = |digit: &u8| char::from(*digit).to_digit(16).unwrap_or(0) as u8;
    let bytes: Vec<u8> = digits
        .chunks_exact(2)
        .take(20)
        .map(|pair| value(&pair[0]) << 4 | value(&pair[1]))
        .collect();
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes)
}

/// What a process leaves in `tmp` when it dies is named after it.
fn is_abandoned(name: &str) -> bool {
    let owner = name.split('-').next().and_then(|pid| pid.parse().ok());
    owner.is_none_or(|pid: i32| pid != std::process::id() as i32 && start_ticks(pid).is_none())
}

impl Images {
    /// Opens the store below `root`, making what is missing and clearing what an interrupted import left.
    pub fn open(root: &Path, allow_host: bool) -> Result<Self> {
        let (dir, layers) = (root.join("images"), root.join("layers"));
        let temporary = dir.join("tmp");
        for path in [&dir, &layers, &temporary] {
            davit_beneath::private_dir(path, 0o700)
                .map_err(|e| io_error(format!("protect {}", path.display()))(e.into()))?;
        }
        let images = Images {
            dir,
            layers,
            allow_host,
            cache: Mutex::default(),
        };
        let entries =
            fs::read_dir(&temporary).map_err(io_error(format!("read {}", temporary.display())))?;
        for entry in entries
            .flatten()
            .filter(|entry| is_abandoned(&entry.file_name().to_string_lossy()))
        {
            let path = entry.path();
            let removed = if path.is_dir() {
                davit_beneath::remove_tree(&path).map_err(Into::into)
            } else {
                fs::remove_file(&path)
            };
            removed.map_err(io_error(format!("clear {}", path.display())))?;
        }
        images.records()?;
        Ok(images)
    }

    /// The directory that holds the layers.
    #[must_use]
    pub fn layers_dir(&self) -> &Path {
        &self.layers
    }

    fn file(&self) -> PathBuf {
        self.dir.join("images.json")
    }

    /// The records as they are now, whoever wrote them.
    fn records(&self) -> Result<Arc<Records>> {
        use std::os::unix::fs::MetadataExt;
        let file = self.file();
        let mark = fs::metadata(&file)
            .ok()
            .map(|m| (m.ino(), m.mtime(), m.mtime_nsec(), m.len()));
        // The cache is replaced as a whole, so a panic elsewhere leaves it sound.
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.0 != mark {
            let records: Option<Records> =
                read_json(&file).map_err(io_error(format!("read {}", file.display())))?;
            *cache = (mark, Arc::new(records.unwrap_or_default()));
        }
        Ok(Arc::clone(&cache.1))
    }

    /// Changes the records under their lock.
    fn change<T>(&self, change: impl FnOnce(&mut Vec<Image>) -> T) -> Result<T> {
        let _lock = self.lock_file("records.lock", FlockOperation::LockExclusive)?;
        let before = self.records()?;
        let mut records = Records::clone(&before);
        let result = change(&mut records.images);
        if records.images != before.images {
            let file = self.file();
            let json = serde_json::to_vec(&records).map_err(|e| Error::Invalid(e.to_string()))?;
            write_durably(&file, &json).map_err(io_error(format!("write {}", file.display())))?;
        }
        Ok(result)
    }

    /// A lock that lasts as long as the file is open, against other processes as well as other threads.
    fn lock_file(&self, name: &str, how: FlockOperation) -> Result<fs::File> {
        let path = self.dir.join(name);
        let what = || format!("lock {}", path.display());
        let file = fs::File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(io_error(what()))?;
        rustix::fs::flock(&file, how).map_err(|e| io_error(what())(e.into()))?;
        Ok(file)
    }

    /// Keeps layers from being collected while an image made of them is not recorded yet.
    fn layers_in_use(&self) -> Result<fs::File> {
        self.lock_file("layers.lock", FlockOperation::LockShared)
    }

    fn host_image() -> Image {
        Image {
            id: host_id(),
            tags: [format!("{HOST_IMAGE}:latest")].into(),
            digests: BTreeSet::new(),
            layers: Vec::new(),
            size: 0,
            config: ImageConfig {
                env: vec![
                    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
                ],
                cmd: vec!["/bin/sh".to_owned()],
                ..ImageConfig::default()
            },
        }
    }

    /// All images.
    pub fn list(&self) -> Result<Vec<Image>> {
        let mut images = self.records()?.images.clone();
        if self.allow_host {
            images.push(Self::host_image());
        }
        Ok(images)
    }

    /// The image that a reference or an ID stands for.
    pub fn find(&self, name: &str) -> Result<Option<Image>> {
        let records = self.records()?;
        let host = self.allow_host.then(Self::host_image);
        let images = || records.images.iter().chain(&host);
        if let Some(image) = images()
            .find(|image| image.id == name || image.id.strip_prefix("sha256:") == Some(name))
        {
            return Ok(Some(image.clone()));
        }
        if reference::is_digest(name) {
            return Ok(None);
        }
        let reference = Reference::parse(name)?;
        let matches = |image: &&Image| match (reference.digested(), reference.tagged()) {
            // With both, the digest decides.
            (Some(digested), _) => image.digests.contains(&digested),
            (None, Some(tagged)) => image.tags.contains(&tagged),
            (None, None) => false,
        };
        Ok(images().find(matches).cloned())
    }

    /// Imports an OCI layout or a Docker archive: a directory, a tar file or a compressed tar file. Answers with the
    /// names of the images.
    pub fn import(&self, path: &Path) -> Result<Vec<String>> {
        archive::import(self, path)
    }

    /// Removes an image by ID, or a name; the image goes with its last name. False when there was none.
    pub fn remove(&self, name: &str) -> Result<bool> {
        let Some(found) = self.find(name)? else {
            return Ok(false);
        };
        if found.is_host() {
            return Ok(false);
        }
        let tagged = Reference::parse(name)
            .ok()
            .filter(|_| !found.id.contains(name))
            .and_then(|r| r.tagged());
        self.change(|images| {
            let Some(image) = images.iter_mut().find(|image| image.id == found.id) else {
                return false;
            };
            let last = tagged.is_none_or(|tagged| {
                image.tags.remove(&tagged);
                image.tags.is_empty()
            });
            if last {
                images.retain(|image| image.id != found.id);
            }
            true
        })
    }

    /// Removes layers that neither an image nor one of `used` needs. Does nothing while an image is being imported or
    /// pulled.
    pub fn collect(&self, used: &HashSet<String>) -> Result<()> {
        let Ok(lock) = self.lock_file("layers.lock", FlockOperation::NonBlockingLockExclusive)
        else {
            return Ok(());
        };
        let records = self.records()?;
        let needed: HashSet<&String> = records
            .images
            .iter()
            .flat_map(|image| &image.layers)
            .chain(used)
            .collect();
        let entries = fs::read_dir(&self.layers)
            .map_err(io_error(format!("read {}", self.layers.display())))?;
        let mut doomed = Vec::new();
        for entry in entries.flatten() {
            let unneeded = entry
                .file_name()
                .to_str()
                .is_some_and(|name| !needed.contains(&name.to_owned()));
            let target = self.temporary();
            // Moved first: half a layer must never be found under its name.
            if unneeded && fs::rename(entry.path(), &target).is_ok() {
                doomed.push(target);
            }
        }
        drop(lock);
        for path in doomed {
            davit_beneath::remove_tree(&path)
                .map_err(|e| io_error(format!("remove {}", path.display()))(e.into()))?;
        }
        Ok(())
    }

    /// How many images there are below `root`, and what is not as it should be: an image whose layer is gone. Changes nothing.
    ///
    /// # Errors
    /// The list of images cannot be read.
    pub fn examine(root: &Path) -> Result<(usize, Vec<String>)> {
        let file = root.join("images/images.json");
        let records: Option<Records> =
            read_json(&file).map_err(io_error(format!("read {}", file.display())))?;
        let images = records.unwrap_or_default().images;
        let layers = root.join("layers");
        let broken = |image: &&Image| image.layers.iter().any(|name| !layers.join(name).is_dir());
        let name = |image: &Image| image.tags.first().unwrap_or(&image.id).clone();
        let faults = images
            .iter()
            .filter(broken)
            .map(|image| format!("image {} lacks a layer", name(image)))
            .collect();
        Ok((images.len(), faults))
    }

    /// Bytes and inodes in use, as far as they are known by `until`.
    #[must_use]
    pub fn disk_use(&self, until: Instant) -> Option<DiskUse> {
        disk_use(&self.layers, until)
    }

    fn temporary(&self) -> PathBuf {
        self.dir.join("tmp").join(format!(
            "{}-{}",
            std::process::id(),
            uuid::Uuid::new_v4().simple()
        ))
    }

    /// Whether a download of so many bytes fits.
    fn room_for(&self, bytes: u64) -> Result<()> {
        let room = room::room(&self.dir).map_err(io_error("look for free space"))?;
        if bytes <= room {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "a layer of {bytes} bytes, and {room} can be used of the disk"
        )))
    }

    fn has_layer(&self, diff_id: &str) -> bool {
        self.layers.join(layer_name(diff_id)).is_dir()
    }

    /// Unpacks a layer unless it is there, checks its digest and puts it in place.
    fn add_layer(&self, diff_id: &str, source: impl Read) -> Result<()> {
        let target = self.layers.join(layer_name(diff_id));
        if target.is_dir() {
            return Ok(());
        }
        let temporary = self.temporary();
        let what = || format!("unpack layer {diff_id}");
        fs::create_dir(&temporary).map_err(io_error(what()))?;
        let unpacked = unpack::layer(source, &temporary)
            .map_err(io_error(what()))
            .and_then(|found| {
                if found != diff_id {
                    return Err(Error::Invalid(format!(
                        "layer {diff_id} has content {found}"
                    )));
                }
                // The name promises the content, so the content is on disk before the name.
                let dir = fs::File::open(&temporary).map_err(io_error(what()))?;
                rustix::fs::syncfs(&dir).map_err(|e| io_error(what())(e.into()))?;
                match fs::rename(&temporary, &target) {
                    // Somebody else unpacked the same layer at the same time.
                    Err(_) if target.is_dir() => Ok(()),
                    other => other.map_err(io_error(what())),
                }
            });
        if temporary.exists() {
            let _ = davit_beneath::remove_tree(&temporary);
        }
        unpacked
    }

    /// Records an image whose layers are in place; its name is taken from any other image that had it.
    fn record(&self, new: NewImage) -> Result<Image> {
        let names_host = |reference: &Reference| reference.name() == HOST_IMAGE;
        if new.reference.as_ref().is_some_and(names_host) {
            return Err(Error::Invalid(format!(
                "{HOST_IMAGE} is the host's root file system, no other image is called so"
            )));
        }
        let size = new
            .layers
            .iter()
            .map(|layer| measure_tree(self.layers.join(layer)).bytes)
            .sum();
        let tag = new.reference.as_ref().and_then(Reference::tagged);
        let digested = new
            .reference
            .as_ref()
            .zip(new.manifest_digest)
            .map(|(r, digest)| format!("{}@{digest}", r.name()));
        self.change(|images| {
            if let Some(tag) = &tag {
                for image in images.iter_mut().filter(|image| image.id != new.id) {
                    image.tags.remove(tag);
                }
                images.retain(|image| {
                    image.id == new.id || !image.tags.is_empty() || !image.digests.is_empty()
                });
            }
            let at = images
                .iter()
                .position(|image| image.id == new.id)
                .unwrap_or_else(|| {
                    images.push(Image {
                        id: new.id.clone(),
                        tags: BTreeSet::new(),
                        digests: BTreeSet::new(),
                        layers: new.layers,
                        size,
                        config: new.config,
                    });
                    images.len() - 1
                });
            let image = &mut images[at];
            image.tags.extend(tag);
            image.digests.extend(digested);
            image.clone()
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn layer_tar() -> (Vec<u8>, String) {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(2);
        header.set_mode(0o644);
        header.set_uid(u64::from(rustix::process::getuid().as_raw()));
        header.set_gid(u64::from(rustix::process::getgid().as_raw()));
        builder
            .append_data(&mut header, "file", &b"hi"[..])
            .unwrap();
        let bytes = builder.into_inner().unwrap();
        let digest = sha256(&bytes);
        (bytes, digest)
    }

    fn image(images: &Images, name: &str, extra: &str) -> Image {
        let (tar, diff_id) = layer_tar();
        let config = format!(
            r#"{{"architecture":"{}","os":"linux","config":{{"Cmd":["{extra}"]}},"rootfs":{{"type":"layers","diff_ids":["{diff_id}"]}}}}"#,
            davit_api::architecture()
        );
        let (id, config, diff_ids) = parse_config(config.as_bytes()).unwrap();
        images.add_layer(&diff_ids[0], &tar[..]).unwrap();
        let reference = Some(Reference::parse(name).unwrap());
        let layers = vec![layer_name(&diff_ids[0])];
        images
            .record(NewImage {
                id,
                reference,
                manifest_digest: None,
                layers,
                config,
            })
            .unwrap()
    }

    #[test]
    fn names_move_and_layers_are_shared() {
        let dir = tempfile::tempdir().unwrap();
        let images = Images::open(dir.path(), false).unwrap();
        let one = image(&images, "test:1", "a");
        assert_eq!(
            images.find("docker.io/library/test:1").unwrap().unwrap().id,
            one.id
        );
        let two = image(&images, "test:1", "b");
        assert_ne!(one.id, two.id);
        assert_eq!(
            images.list().unwrap().len(),
            1,
            "the first image lost its only name"
        );
        image(&images, "test:2", "b");
        assert!(images.remove("test:1").unwrap());
        assert!(images.find("test:1").unwrap().is_none());
        assert_eq!(images.find(&two.id).unwrap().unwrap().tags.len(), 1);
        drop(images);
        let images = Images::open(dir.path(), false).unwrap();
        assert!(images.remove("test:2").unwrap() && !images.remove("test:2").unwrap());
        let layer = two.layers[0].clone();
        images.collect(&[layer.clone()].into()).unwrap();
        assert!(
            images.layers_dir().join(&layer).is_dir(),
            "a container uses it"
        );
        images.collect(&HashSet::new()).unwrap();
        assert!(!images.layers_dir().join(&layer).exists());
    }

    #[test]
    fn two_processes_share_a_store() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (
            Images::open(dir.path(), false).unwrap(),
            Images::open(dir.path(), false).unwrap(),
        );
        let found = image(&one, "test:1", "a");
        assert_eq!(two.find("test:1").unwrap(), Some(found.clone()));
        image(&two, "test:2", "b");
        assert_eq!(one.list().unwrap().len(), 2);
        // While one imports, nothing is collected.
        let busy = one.layers_in_use().unwrap();
        assert!(two.remove("test:1").unwrap() && two.remove("test:2").unwrap());
        two.collect(&HashSet::new()).unwrap();
        assert!(one.layers_dir().join(&found.layers[0]).is_dir());
        drop(busy);
        two.collect(&HashSet::new()).unwrap();
        assert!(!one.layers_dir().join(&found.layers[0]).exists());
        assert!(one.list().unwrap().is_empty());
    }

    #[test]
    fn leftovers_of_the_dead_are_cleared() {
        let dir = tempfile::tempdir().unwrap();
        let temporary = dir.path().join("images/tmp");
        fs::create_dir_all(temporary.join("999999999-x")).unwrap();
        fs::write(temporary.join("odd"), "").unwrap();
        fs::create_dir(temporary.join(format!("{}-y", std::process::id()))).unwrap();
        Images::open(dir.path(), false).unwrap();
        let left: Vec<_> = fs::read_dir(&temporary)
            .unwrap()
            .flatten()
            .map(|e| e.file_name())
            .collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }

    #[test]
    fn names_of_layers_are_short_and_nobody_finds_two_alike() {
        let digest = |ends: &str| format!("sha256:{}{ends}{}", "a".repeat(38), "b".repeat(24));
        let (one, other) = (layer_name(&digest("a0")), layer_name(&digest("a1")));
        assert_ne!(one, other);
        assert_eq!((one.len(), other.len()), (27, 27));
        assert!(
            one.bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
        );
    }

    #[test]
    fn a_layer_with_other_content_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let images = Images::open(dir.path(), false).unwrap();
        let wrong = format!("sha256:{}", "0".repeat(64));
        assert!(matches!(
            images.add_layer(&wrong, &layer_tar().0[..]),
            Err(Error::Invalid(_))
        ));
        assert_eq!(fs::read_dir(images.layers_dir()).unwrap().count(), 0);
    }

    #[test]
    fn the_host_image_needs_permission() {
        let dir = tempfile::tempdir().unwrap();
        assert!(
            Images::open(dir.path(), false)
                .unwrap()
                .find(HOST_IMAGE)
                .unwrap()
                .is_none()
        );
        let images = Images::open(dir.path(), true).unwrap();
        let host = images.find(HOST_IMAGE).unwrap().unwrap();
        assert!(host.is_host());
        assert_eq!(images.find(&host.id).unwrap(), Some(host));
        assert!(!images.remove(HOST_IMAGE).unwrap());
    }

    #[test]
    fn no_image_is_the_host_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let images = Images::open(dir.path(), false).unwrap();
        for tag in ["latest", "1"] {
            let refused = images.record(NewImage {
                id: sha256(b"{}"),
                reference: Some(Reference::parse(&format!("{HOST_IMAGE}:{tag}")).unwrap()),
                manifest_digest: None,
                layers: Vec::new(),
                config: ImageConfig::default(),
            });
            assert!(matches!(refused, Err(Error::Invalid(_))), "{tag}");
        }
        // What an earlier version has recorded is an image like others, without a root to start from.
        let recorded = Image {
            id: sha256(b"{}"),
            layers: Vec::new(),
            ..Images::host_image()
        };
        assert!(!recorded.is_host());
    }
}
