//! The directories of a node's local volumes: one a volume, with its data and a record of whose it is.
//!
//! Data is never removed where it is: the volume's directory goes to the trash by one rename, and what is in the trash is
//! removed whenever there is time, also after a restart.

use crate::copy::{copy_file, copy_tree, sync_file_system};
use davit_beneath::{Links, Permissions, Root, private_dir, write_private};
use davit_volume::local::{DATA, IMAGE, NodeStorage};
use rustix::fs::{FallocateFlags, FileType, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

const RECORD: &str = "volume.json";
const TRASH: &str = ".trash";
/// An image as long as it is not whole.
const NEW_IMAGE: &str = "data.img.new";
/// The same of a directory.
const NEW_DATA: &str = "data.new";
/// Images have whole blocks of so many bytes.
const BLOCK: u64 = 4096;
/// Bytes a record may have.
const RECORD_LIMIT: u64 = 64 << 10;
/// Volumes of a node that are looked at in one go.
const VOLUMES_LIMIT: usize = 100_000;
/// Entries of the trash that are looked at in one go.
const TRASH_LIMIT: usize = 10_000;
/// What stays free of the file system: a twentieth of it, and at most a gibibyte, since a large disk that is nearly full
/// has room for a volume too.
const RESERVE_PART: u64 = 20;
const RESERVE_MOST: u64 = 1 << 30;

/// Why a volume's directory is not as it should be.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// Another claim's data is where the volume's should be.
    #[error("the directory {path} holds the data of another claim ({uid})")]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// UID of that claim.
        uid: String,
    },
    /// The record was changed or cannot be read.
    #[error("the directory {path} has no readable record of whose it is: {why}")]
    NoRecord {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Something is mounted in it.
    #[error("something is mounted at {0}")]
    Mounted(PathBuf),
    /// Data that is copied only while nobody changes it.
    #[error("volume {0}, the data source, is in use: it is copied when no pod has it")]
    InUse(String),
    /// There was data, and now there is none.
    #[error("the directory {0} is gone, and the volume's data with it")]
    Lost(PathBuf),
    /// The device of its image.
    #[error(transparent)]
    Device(#[from] crate::loop_device::Error),
    /// Files.
    #[error("cannot {what} {path}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

/// Whose a volume's directory is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRecord {
    /// Name of the PersistentVolume.
    pub pv: String,
    /// Namespace of its claim.
    pub namespace: String,
    /// Name of the claim.
    pub claim: String,
    /// UID of the claim.
    pub uid: String,
}

/// What a volume is in its directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeForm {
    /// A directory.
    Directory,
    /// A file of so many bytes, which is the content of a device.
    Image(u64),
}

impl VolumeForm {
    /// What it is called in the volume's directory.
    fn name(self) -> &'static str {
        match self {
            Self::Directory => DATA,
            Self::Image(_) => IMAGE,
        }
    }
}

/// The directories of all volumes of a node.
#[derive(Debug, Clone)]
pub struct Directories {
    root: PathBuf,
}

impl Directories {
    /// Makes the directory of all volumes, which only its owner may enter.
    pub fn open(root: &Path) -> Result<Self, DirectoryError> {
        let made = private_dir(root, 0o700).and_then(|()| private_dir(root.join(TRASH), 0o700));
        made.map_err(|e| io_error("make", root, e.into()))?;
        // Mount points are known by their real paths.
        let root = root.canonicalize().map_err(|e| io_error("find", root, e))?;
        Ok(Self { root })
    }

    /// The directories below `root`, made by who [opened](Self::open) them, now or later.
    pub fn at(root: PathBuf) -> Self {
        Self { root }
    }

    #[cfg(test)]
    fn root(&self) -> &Path {
        &self.root
    }

    #[cfg(test)]
    fn data(&self, pv: &str) -> PathBuf {
        self.root.join(pv).join(DATA)
    }

    /// Makes a volume's directory, or finds that it is there.
    pub fn make(&self, record: &VolumeRecord, form: VolumeForm) -> Result<(), DirectoryError> {
        let dir = self.dir(&record.pv)?;
        let failed = |what| {
            let dir = dir.clone();
            move |e: davit_beneath::Error| io_error(what, &dir, e.into())
        };
        let below = self.enter(record, &dir)?;
        match form {
            VolumeForm::Directory => {
                let data = below.mkdir_all(DATA, 0o777).map_err(failed("make"))?;
                let open_to_all = Permissions::mode(0o777);
                data.entry("")
                    .and_then(|inode| inode.set(&open_to_all))
                    .map_err(failed("open to all"))?;
            }
            VolumeForm::Image(bytes) => make_image(&below, &dir, bytes)?,
        }
        sync(&dir)?;
        sync(&self.root)
    }

    /// Whether the data of a volume is there.
    pub fn is_whole(
        &self,
        record: &VolumeRecord,
        form: VolumeForm,
    ) -> Result<bool, DirectoryError> {
        let dir = self.dir(&record.pv)?;
        let below = match Root::open(&dir, Links::Refused) {
            Err(e) if e.is_not_found() => return Ok(false),
            other => other.map_err(|e| io_error("open", &dir, e.into()))?,
        };
        match below.entry_itself(form.name()) {
            Err(e) if e.is_not_found() => Ok(false),
            Err(e) => Err(io_error("look at", &dir, e.into())),
            Ok(_) => self.check(&below, &dir, &record.uid).map(|()| true),
        }
    }

    /// Fills a volume that has no data yet with that of another. What a crash has left of an earlier try is removed.
    /// Answers whether something was copied.
    pub fn copy(
        &self,
        record: &VolumeRecord,
        form: VolumeForm,
        source: &str,
    ) -> Result<bool, DirectoryError> {
        if self.is_whole(record, form)? {
            return Ok(false);
        }
        let from_dir = self.dir(source)?;
        let from = match Root::open(&from_dir, Links::Refused) {
            Err(e) if e.is_not_found() => return Err(DirectoryError::Lost(from_dir)),
            other => other.map_err(|e| io_error("open", &from_dir, e.into()))?,
        };
        let dir = self.dir(&record.pv)?;
        let below = self.enter(record, &dir)?;
        let failed = |e: davit_beneath::Error| io_error("copy data to", &dir, e.into());
        for part in [NEW_DATA, NEW_IMAGE] {
            below.remove_tree(part).map_err(failed)?;
        }
        let part = match form {
            VolumeForm::Directory => {
                let data = from.dir(DATA).map_err(failed)?;
                copy_tree(&data, &below.mkdir_all(NEW_DATA, 0o700).map_err(failed)?)
                    .map_err(failed)?;
                NEW_DATA
            }
            VolumeForm::Image(bytes) => {
                let image = image(&from, &from_dir)?.ok_or(DirectoryError::Lost(from_dir))?;
                for device in crate::find(&image)? {
                    device.sync()?;
                }
                let copy = below.create_new(NEW_IMAGE, 0o600).map_err(failed)?;
                copy_file(&image, &copy)
                    .and_then(|()| fill(&copy, bytes))
                    .map_err(|e| io_error("copy data to", &dir, e))?;
                NEW_IMAGE
            }
        };
        sync_file_system(&dir).map_err(|e| io_error("sync", &dir, e))?;
        below.rename(part, form.name()).map_err(failed)?;
        sync(&dir)?;
        Ok(true)
    }

    /// Makes an image as large as it shall be, and its device, should it have one. It is never made smaller.
    pub fn grow(&self, record: &VolumeRecord, form: VolumeForm) -> Result<(), DirectoryError> {
        let VolumeForm::Image(bytes) = form else {
            return Ok(());
        };
        let image = self.image_of(record)?;
        fill(&image, bytes)
            .map_err(|e| io_error("make room in", &self.root.join(&record.pv), e))?;
        for device in crate::find(&image)? {
            device.follow_size()?;
        }
        Ok(())
    }

    /// The device of an image: the one that it has, or a new one, as large as the image. For one volume one caller at a time.
    pub fn attach(&self, record: &VolumeRecord) -> Result<PathBuf, DirectoryError> {
        let image = self.image_of(record)?;
        let name = self.root.join(&record.pv).join(IMAGE);
        let device = crate::attach(&image, &name)?;
        device.follow_size()?;
        Ok(device.path().to_owned())
    }

    /// Takes the device from an image, if there is one and it has one.
    pub fn detach(&self, pv: &str) -> Result<(), DirectoryError> {
        let dir = self.dir(pv)?;
        let below = match Root::open(&dir, Links::Refused) {
            Err(e) if e.is_not_found() => return Ok(()),
            other => other.map_err(|e| io_error("open", &dir, e.into()))?,
        };
        match image(&below, &dir)? {
            Some(image) => Ok(crate::detach(&image)?),
            None => Ok(()),
        }
    }

    /// Takes the devices from all images that have one: nobody uses any volume.
    pub fn detach_all(&self) -> Result<(), DirectoryError> {
        let all = match Root::open(&self.root, Links::Refused) {
            Err(e) if e.is_not_found() => return Ok(()),
            other => other.map_err(|e| io_error("open", &self.root, e.into()))?,
        };
        let entries = all
            .list("", VOLUMES_LIMIT)
            .map_err(|e| io_error("list", &self.root, e.into()))?;
        let names = entries.iter().filter_map(|entry| entry.name.to_str());
        for name in names.filter(|name| !name.starts_with('.')) {
            self.detach(name)?;
        }
        Ok(())
    }

    fn image_of(&self, record: &VolumeRecord) -> Result<File, DirectoryError> {
        let dir = self.dir(&record.pv)?;
        let below = match Root::open(&dir, Links::Refused) {
            Err(e) if e.is_not_found() => return Err(DirectoryError::Lost(dir)),
            other => other.map_err(|e| io_error("open", &dir, e.into()))?,
        };
        self.check(&below, &dir, &record.uid)?;
        image(&below, &dir)?.ok_or(DirectoryError::Lost(dir))
    }

    /// Opens a volume's directory, which is made with its record if it is not there.
    fn enter(&self, record: &VolumeRecord, dir: &Path) -> Result<Root, DirectoryError> {
        let failed = |what| move |e: davit_beneath::Error| io_error(what, dir, e.into());
        private_dir(dir, 0o700).map_err(failed("make"))?;
        let below = Root::open(dir, Links::Refused).map_err(failed("open"))?;
        match below.entry_itself(RECORD) {
            Err(e) if e.is_not_found() => {
                let text =
                    serde_json::to_vec(record).map_err(|e| io_error("describe", dir, e.into()))?;
                write_private(dir.join(RECORD), &text).map_err(failed("write into"))?;
            }
            _ => self.check(&below, dir, &record.uid)?,
        }
        Ok(below)
    }

    /// Whether the directory that was made is there still.
    pub fn find(&self, record: &VolumeRecord) -> Result<(), DirectoryError> {
        let dir = self.dir(&record.pv)?;
        let below = match Root::open(&dir, Links::Refused) {
            Err(e) if e.is_not_found() => return Err(DirectoryError::Lost(dir)),
            other => other.map_err(|e| io_error("open", &dir, e.into()))?,
        };
        self.check(&below, &dir, &record.uid)
    }

    /// Moves a volume's directory to the trash. Success when there is none.
    pub fn remove(&self, record: &VolumeRecord) -> Result<(), DirectoryError> {
        let dir = self.dir(&record.pv)?;
        let all = self.below()?;
        let found = match all.entry_itself(&record.pv) {
            Err(e) if e.is_not_found() => return Ok(()),
            other => other.map_err(|e| io_error("look at", &dir, e.into()))?,
        };
        if found.kind().ok() != Some(FileType::Directory) {
            let why = "it is no directory".to_owned();
            return Err(DirectoryError::NoRecord { path: dir, why });
        }
        let below = all
            .dir(&record.pv)
            .map_err(|e| io_error("open", &dir, e.into()))?;
        self.check(&below, &dir, &record.uid)?;
        if let Some(point) = mounted_below(&dir).map_err(|e| io_error("look at", &dir, e))? {
            return Err(DirectoryError::Mounted(point));
        }
        self.detach(&record.pv)?;
        let trash = Path::new(TRASH).join(format!("{}-{}", record.pv, record.uid));
        all.rename(&record.pv, trash)
            .map_err(|e| io_error("move to the trash", &dir, e.into()))?;
        sync(&self.root)?;
        sync(&self.root.join(TRASH))
    }

    /// Removes what is in the trash. What cannot be removed stays for the next time.
    pub fn empty_trash(&self) -> Result<(), DirectoryError> {
        let all = self.below()?;
        let path = self.root.join(TRASH);
        let entries = all
            .list(TRASH, TRASH_LIMIT)
            .map_err(|e| io_error("list", &path, e.into()))?;
        let mut first = None;
        for entry in entries {
            let name = Path::new(TRASH).join(&entry.name);
            if let Err(e) = all.remove_tree(&name) {
                first.get_or_insert(io_error("remove", &self.root.join(name), e.into()));
            }
        }
        first.map_or(Ok(()), Err)
    }

    /// How much there is room for.
    pub fn storage(&self) -> Result<NodeStorage, DirectoryError> {
        let stat = rustix::fs::statvfs(&self.root)
            .map_err(|e| io_error("measure", &self.root, e.into()))?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        // What is kept for root is nobody's room.
        let kept_for_root = stat.f_bfree.saturating_sub(stat.f_bavail);
        let size = bytes(stat.f_blocks.saturating_sub(kept_for_root));
        let reserve = reserve(size);
        Ok(NodeStorage {
            path: self.root.to_string_lossy().into_owned(),
            size: size.saturating_sub(reserve),
            available: bytes(stat.f_bavail).saturating_sub(reserve),
        })
    }

    fn below(&self) -> Result<Root, DirectoryError> {
        Root::open(&self.root, Links::Refused).map_err(|e| io_error("open", &self.root, e.into()))
    }

    /// The directory of a volume. Names of objects are no paths, but who knows who made the object.
    fn dir(&self, pv: &str) -> Result<PathBuf, DirectoryError> {
        let dir = self.root.join(pv);
        if pv.is_empty() || pv.starts_with('.') || pv.contains('/') {
            return Err(io_error("use", &dir, io::ErrorKind::InvalidInput.into()));
        }
        Ok(dir)
    }

    fn check(&self, below: &Root, dir: &Path, uid: &str) -> Result<(), DirectoryError> {
        let no_record = |why: String| DirectoryError::NoRecord {
            path: dir.to_owned(),
            why,
        };
        let text = below
            .read_limited(RECORD, RECORD_LIMIT)
            .map_err(|e| no_record(e.to_string()))?;
        let record: VolumeRecord =
            serde_json::from_slice(&text).map_err(|e| no_record(e.to_string()))?;
        if record.uid == uid {
            return Ok(());
        }
        Err(DirectoryError::Foreign {
            path: dir.to_owned(),
            uid: record.uid,
        })
    }
}

/// The image in a volume's directory, if it is there.
fn image(below: &Root, dir: &Path) -> Result<Option<File>, DirectoryError> {
    let failed = |e: davit_beneath::Error| io_error("open the image in", dir, e.into());
    let inode = match below.entry_itself(IMAGE) {
        Err(e) if e.is_not_found() => return Ok(None),
        other => other.map_err(failed)?,
    };
    if inode.kind().map_err(failed)? != FileType::RegularFile {
        let why = "its image is no file".to_owned();
        let path = dir.to_owned();
        return Err(DirectoryError::NoRecord { path, why });
    }
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    Ok(Some(inode.reopen(flags).map_err(failed)?.into()))
}

/// Makes the image of a volume, or finds that it is there.
fn make_image(below: &Root, dir: &Path, bytes: u64) -> Result<(), DirectoryError> {
    let failed = |what| move |e: davit_beneath::Error| io_error(what, dir, io::Error::from(e));
    if let Some(image) = image(below, dir)? {
        return fill(&image, bytes).map_err(|e| io_error("make room in", dir, e));
    }
    below.remove_tree(NEW_IMAGE).map_err(failed("clear"))?;
    let file = below
        .create_new(NEW_IMAGE, 0o600)
        .map_err(failed("make an image in"))?;
    fill(&file, bytes).map_err(|e| io_error("make room in", dir, e))?;
    below
        .rename(NEW_IMAGE, IMAGE)
        .map_err(failed("name the image in"))
}

/// Makes a file at least so long, with its room taken from the file system if that can be: a device whose writes fail
/// because others have filled the disk would lose data.
fn fill(file: &File, bytes: u64) -> io::Result<()> {
    let bytes = bytes.div_ceil(BLOCK).max(1) * BLOCK;
    if file.metadata()?.len() >= bytes {
        return Ok(());
    }
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Err(Errno::OPNOTSUPP) => file.set_len(bytes)?,
        other => other?,
    }
    file.sync_all()
}

fn mounted_below(dir: &Path) -> io::Result<Option<PathBuf>> {
    let points = davit_beneath::mountinfo::mount_points()?;
    Ok(points.into_iter().find(|point| point.starts_with(dir)))
}

fn sync(dir: &Path) -> Result<(), DirectoryError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let synced = rustix::fs::open(dir, flags, rustix::fs::Mode::empty())
        .and_then(|fd| rustix::fs::fsync(&fd));
    synced.map_err(|e| io_error("sync", dir, e.into()))
}

fn io_error(what: &'static str, path: &Path, source: io::Error) -> DirectoryError {
    DirectoryError::Io {
        what,
        path: path.to_owned(),
        source,
    }
}

/// Bytes of a file system of `size` bytes that volumes leave alone.
fn reserve(size: u64) -> u64 {
    (size / RESERVE_PART).min(RESERVE_MOST)
}

#[cfg(test)]
mod tests;
