//! The loop device of a file.

use crate::sys::{self, AUTOCLEAR, DIRECT_IO, Info};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

const CONTROL: &str = "/dev/loop-control";
/// The kernel's block devices; a loop device that has a file has a directory `loop`.
const BLOCK_DEVICES: &str = "/sys/block";
/// The major number of loop devices.
const MAJOR: u32 = 7;
/// How often a device is asked for that somebody else takes first.
const TRIES: usize = 64;

/// Why a file has no loop device.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel has none, or this process sees none.
    #[error("loop devices are not to be had on this machine: {CONTROL}: {0}")]
    NoLoopDevices(#[source] io::Error),
    /// The devices cannot be listed.
    #[error("cannot list the block devices in {BLOCK_DEVICES}: {0}")]
    List(#[source] io::Error),
    /// The file itself.
    #[error("cannot look at the file of a loop device: {0}")]
    File(#[source] io::Error),
    /// A call on a device.
    #[error("cannot {what} {}: {source}", device.display())]
    Device {
        /// What was tried.
        what: &'static str,
        /// The device.
        device: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// Others were always faster.
    #[error("no loop device stayed free until it was taken")]
    Contended,
}

/// A block device whose content is a file. It keeps its file when this is dropped: [`detach`] takes it away.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    device: OwnedFd,
}

impl LoopDevice {
    /// Where its node is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes it as large as its file.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn follow_size(&self) -> Result<(), Error> {
        sys::set_capacity(&self.device).map_err(failed("resize", &self.path))
    }

    /// Has everything that was written to it in its file.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn sync(&self) -> Result<(), Error> {
        rustix::fs::fsync(&self.device).map_err(|e| failed("sync", &self.path)(e.into()))
    }

    fn status(&self) -> Result<Option<Info>, Error> {
        match sys::status(&self.device) {
            Err(e) if e.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => Ok(None),
            other => other
                .map(Some)
                .map_err(failed("ask for the file of", &self.path)),
        }
    }

    /// Has it keep its file when it is closed. Answers whether it still has one.
    fn keep(&self, info: &Info) -> Result<bool, Error> {
        if info.flags & AUTOCLEAR == 0 {
            return Ok(true);
        }
        let mut kept = *info;
        kept.flags &= !AUTOCLEAR;
        match sys::set_status(&self.device, &kept) {
            Err(e) if e.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => Ok(false),
            other => other.map(|()| true).map_err(failed("keep", &self.path)),
        }
    }
}

fn failed(what: &'static str, device: &Path) -> impl FnOnce(io::Error) -> Error + use<> {
    let device = device.to_owned();
    move |source| Error::Device {
        what,
        device,
        source,
    }
}

/// Opens a loop device; nothing if it went away, or is something else.
fn open(number: &str, flags: OFlags) -> Result<Option<LoopDevice>, Error> {
    let path = Path::new("/dev").join(number);
    let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let device = match rustix::fs::openat(CWD, &path, flags, Mode::empty()) {
        Err(Errno::NOENT | Errno::NXIO | Errno::NODEV) => return Ok(None),
        other => other.map_err(|e| failed("open", &path)(e.into()))?,
    };
    let stat = rustix::fs::fstat(&device).map_err(|e| failed("look at", &path)(e.into()))?;
    let is_loop = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice
        && rustix::fs::major(stat.st_rdev) == MAJOR;
    Ok(is_loop.then_some(LoopDevice { path, device }))
}

/// The devices that have this file, opened for reading. Blocks.
///
/// # Errors
/// It cannot be known; that never means that there is none.
pub fn find(file: &File) -> Result<Vec<LoopDevice>, Error> {
    let stat = rustix::fs::fstat(file).map_err(|e| Error::File(e.into()))?;
    let mut found = Vec::new();
    for entry in std::fs::read_dir(BLOCK_DEVICES).map_err(Error::List)? {
        let entry = entry.map_err(Error::List)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with("loop") || !entry.path().join("loop").is_dir() {
            continue;
        }
        let Some(device) = open(&name, OFlags::RDONLY)? else {
            continue;
        };
        let info = device.status()?;
        if info.is_some_and(|info| (info.device, info.inode) == (stat.st_dev, stat.st_ino)) {
            found.push(device);
        }
    }
    Ok(found)
}

/// The device of a file that is open for reading and writing: the one that it has, or a new one. `name` is what tools show.
/// Blocks. For one file one caller at a time.
///
/// # Errors
/// The machine has no loop devices, or what the kernel says.
pub fn attach(file: &File, name: &Path) -> Result<LoopDevice, Error> {
    for device in find(file)? {
        // One that was given up while somebody had it open would go with him.
        if let Some(info) = device.status()?
            && device.keep(&info)?
        {
            return Ok(device);
        }
    }
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let control = rustix::fs::openat(CWD, CONTROL, flags, Mode::empty())
        .map_err(|e| Error::NoLoopDevices(e.into()))?;
    let info = Info::new(name.as_os_str().as_encoded_bytes(), DIRECT_IO);
    for _ in 0..TRIES {
        let number = sys::free_number(&control).map_err(Error::NoLoopDevices)?;
        let name = format!("loop{number}");
        let Some(device) = open(&name, OFlags::RDWR)? else {
            let missing = failed("open", &Path::new("/dev").join(name));
            return Err(missing(io::ErrorKind::NotFound.into()));
        };
        match sys::configure(&device.device, file, info) {
            Ok(()) => return Ok(device),
            Err(e) if e.kind() == io::ErrorKind::ResourceBusy => {}
            Err(e) => return Err(failed("attach a file to", &device.path)(e)),
        }
    }
    Err(Error::Contended)
}

/// Takes a file from the devices that have it: at once, or, where somebody has one open, when he closes it. Success when
/// none has it. Blocks.
///
/// # Errors
/// It cannot be known which have it, or what the kernel says.
pub fn detach(file: &File) -> Result<(), Error> {
    for device in find(file)? {
        match sys::clear(&device.device) {
            Err(e) if e.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => {}
            other => other.map_err(failed("detach", &device.path))?,
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};

    fn image(bytes: u64) -> Option<(tempfile::TempDir, File)> {
        if !rustix::process::geteuid().is_root() || !Path::new(CONTROL).exists() {
            println!("skipped: no loop devices");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let mut options = File::options();
        options.read(true).write(true).create_new(true);
        let file = options.open(dir.path().join("image")).unwrap();
        file.set_len(bytes).unwrap();
        Some((dir, file))
    }

    fn size(device: &LoopDevice) -> u64 {
        let mut file = File::open(device.path()).unwrap();
        file.seek(io::SeekFrom::End(0)).unwrap()
    }

    #[test]
    fn a_file_has_one_device_that_grows_with_it_and_outlives_its_user() {
        let Some((dir, file)) = image(1 << 20) else {
            return;
        };
        let path = dir.path().join("image");
        assert!(find(&file).unwrap().is_empty());
        let device = attach(&file, &path).unwrap();
        let again = attach(
            &File::options().read(true).write(true).open(&path).unwrap(),
            &path,
        );
        assert_eq!(again.unwrap().path(), device.path());
        assert_eq!(size(&device), 1 << 20);
        let mut writer = File::options().write(true).open(device.path()).unwrap();
        writer.write_all(&[7; 4096]).unwrap();
        writer.sync_all().unwrap();
        let mut first = [0; 1];
        File::open(&path).unwrap().read_exact(&mut first).unwrap();
        assert_eq!(first, [7]);

        file.set_len(2 << 20).unwrap();
        device.follow_size().unwrap();
        assert_eq!(size(&device), 2 << 20);

        // Whoever has it open keeps it, and who comes meanwhile gets the same one, for good.
        let held = device.path().to_owned();
        drop(device);
        detach(&file).unwrap();
        let device = attach(&file, &path).unwrap();
        assert_eq!(device.path(), held);
        drop((device, writer));
        let found = find(&file).unwrap();
        assert_eq!(found.len(), 1);
        drop(found);
        detach(&file).unwrap();
        // Whoever looks through all devices has it open for a moment.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while !find(&file).unwrap().is_empty() {
            assert!(std::time::Instant::now() < end, "still attached");
            std::thread::yield_now();
        }
        detach(&file).unwrap();
    }

    #[test]
    fn another_file_has_another_device() {
        let (Some((one, first)), Some((two, second))) = (image(8192), image(8192)) else {
            return;
        };
        let a = attach(&first, &one.path().join("image")).unwrap();
        let b = attach(&second, &two.path().join("image")).unwrap();
        assert_ne!(a.path(), b.path());
        drop((a, b));
        detach(&first).unwrap();
        assert_eq!(find(&second).unwrap().len(), 1);
        detach(&second).unwrap();
    }
}
