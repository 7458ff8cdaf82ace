//! File systems on devices: made where there is none, checked, mounted (spec storage.md 7.4).

use super::mounts::Mounter;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::process::Command;

/// How long looking at a device may take.
const LOOK_LIMIT: Duration = Duration::from_secs(60);
/// How long making or checking a file system may take: large disks take minutes.
const WORK_LIMIT: Duration = Duration::from_secs(30 * 60);
/// As much of a device has to be readable.
const FIRST_BYTES: usize = 4096;
/// The file system that is made where nobody says which.
const DEFAULT_FS_TYPE: &str = "ext4";
/// What blkid answers when it finds nothing.
const BLKID_NOTHING: i32 = 2;
/// What fsck answers when errors are left.
const FSCK_UNCORRECTED: i32 = 4;

/// Why a device is not mounted.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// What is on it cannot be found out, so nothing is made on it.
    #[error("failed to get disk format of disk {}: {cause}", device.display())]
    Unknown {
        /// The device.
        device: PathBuf,
        /// Why.
        cause: String,
    },
    /// There is no file system, and none may be made.
    #[error(
        "cannot mount unformatted disk {} as we are manipulating it in read-only mode",
        .0.display()
    )]
    Unformatted(PathBuf),
    /// No file system can be made.
    #[error("failed to format disk {} as {fs_type}: {cause}", device.display())]
    Format {
        /// The device.
        device: PathBuf,
        /// The file system.
        fs_type: String,
        /// Why.
        cause: String,
    },
    /// The file system is broken.
    #[error("'fsck' found errors on device {} but could not correct them: {output}", device.display())]
    Broken {
        /// The device.
        device: PathBuf,
        /// What fsck wrote.
        output: String,
    },
    /// The file system does not grow with its device.
    #[error("failed to resize the file system on disk {}: {cause}", device.display())]
    Resize {
        /// The device.
        device: PathBuf,
        /// Why.
        cause: String,
    },
    /// What is on it is no file system, or not the one that is wanted.
    #[error("failed to mount disk {} as {fs_type}, which has {found}", device.display())]
    Different {
        /// The device.
        device: PathBuf,
        /// As what it was to be mounted.
        fs_type: String,
        /// What is on it.
        found: String,
    },
    /// The kernel does not mount it.
    #[error("failed to mount disk {} as {fs_type}: {source}", device.display())]
    Mount {
        /// The device.
        device: PathBuf,
        /// What is on it.
        fs_type: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// What is to be mounted where.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) device: &'a Path,
    pub(super) target: &'a Path,
    /// Empty where nobody says which.
    pub(super) fs_type: &'a str,
    pub(super) read_only: bool,
}

/// What is on a device.
#[derive(Debug, PartialEq, Eq)]
enum Format {
    Blank,
    FileSystem(String),
    /// Partitions, or something else that must not be overwritten.
    Other,
}

/// Mounts a device; makes a file system on it if it is blank. It is mounted as what is found on it and as nothing else:
/// who names the type may be a pod, and file systems that need no device (`proc`, `cgroup`) take any.
///
/// # Errors
/// See [`DeviceError`].
pub(super) async fn format_and_mount(
    mounter: &Arc<dyn Mounter>,
    wanted: Wanted<'_>,
) -> Result<(), DeviceError> {
    let device = wanted.device;
    let format = look(device).await?;
    let fs_type = match wanted.fs_type {
        "" => DEFAULT_FS_TYPE,
        given => given,
    };
    let is_new = format == Format::Blank;
    let format = match format {
        Format::Blank if wanted.read_only => return Err(DeviceError::Unformatted(device.into())),
        Format::Blank => {
            make(device, fs_type).await?;
            look(device).await?
        }
        other => other,
    };
    let fs_type = mounted_as(device, format, wanted.fs_type)?;
    if !wanted.read_only && !is_new {
        check(device).await?;
    }
    let (mounter, to) = (mounter.clone(), wanted.target.to_owned());
    let (from, kind, read_only) = (device.to_owned(), fs_type.clone(), wanted.read_only);
    let mounted =
        tokio::task::spawn_blocking(move || mounter.mount_device(&from, &to, &kind, read_only));
    let mounted = mounted.await.map_err(io::Error::other).flatten();
    mounted.map_err(|source| DeviceError::Mount {
        device: device.into(),
        fs_type,
        source,
    })
}

/// As what a device is mounted: what is on it. One driver of the kernel mounts ext2, ext3 and ext4, whichever is named.
fn mounted_as(device: &Path, format: Format, wish: &str) -> Result<String, DeviceError> {
    let different = |found: String| DeviceError::Different {
        device: device.into(),
        fs_type: match wish {
            "" => DEFAULT_FS_TYPE,
            given => given,
        }
        .to_owned(),
        found,
    };
    let is_ext = |kind: &str| matches!(kind, "ext2" | "ext3" | "ext4");
    match format {
        Format::FileSystem(found)
            if wish.is_empty() || wish == found || (is_ext(wish) && is_ext(&found)) =>
        {
            if needs_no_device(&found) {
                return Err(different(format!("{found}, which is on no device")));
            }
            Ok(found)
        }
        Format::FileSystem(found) => Err(different(found)),
        Format::Blank => Err(different("nothing".to_owned())),
        Format::Other => Err(different("unknown data, probably partitions".to_owned())),
    }
}

/// Whether the kernel mounts this type without looking at a device.
fn needs_no_device(fs_type: &str) -> bool {
    let known = std::fs::read("/proc/filesystems").unwrap_or_default();
    String::from_utf8_lossy(&known)
        .lines()
        .any(|line| line.split_once('\t') == Some(("nodev", fs_type)))
}

async fn look(device: &Path) -> Result<Format, DeviceError> {
    let arguments = ["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export"];
    let unknown = |cause: String| DeviceError::Unknown {
        device: device.into(),
        cause,
    };
    readable(device).await.map_err(|e| unknown(e.to_string()))?;
    let output = run("blkid", &arguments, device, LOOK_LIMIT).await;
    let output = output.map_err(|e| unknown(format!("blkid: {e}")))?;
    match output.status.code() {
        Some(BLKID_NOTHING) => Ok(Format::Blank),
        Some(0) => Ok(read_format(&String::from_utf8_lossy(&output.stdout))),
        _ => Err(unknown(written(&output))),
    }
}

/// blkid says of devices that are missing or cannot be read what it says of blank ones.
async fn readable(device: &Path) -> io::Result<()> {
    let device = device.to_owned();
    let read = tokio::task::spawn_blocking(move || {
        let mut file = File::open(device)?;
        if !file.metadata()?.file_type().is_block_device() {
            return Err(io::Error::other("not a block device"));
        }
        file.read_exact(&mut [0; FIRST_BYTES])
    });
    match tokio::time::timeout(LOOK_LIMIT, read).await {
        Ok(ended) => ended.map_err(io::Error::other).flatten(),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Reads what blkid found.
fn read_format(text: &str) -> Format {
    let pairs = || text.lines().filter_map(|line| line.split_once('='));
    let found = |key: &str| pairs().find(|(k, v)| *k == key && !v.is_empty());
    match (found("TYPE"), found("PTTYPE")) {
        (_, Some(_)) | (None, None) => Format::Other,
        (Some((_, kind)), None) => Format::FileSystem(kind.to_owned()),
    }
}

async fn make(device: &Path, fs_type: &str) -> Result<(), DeviceError> {
    let failed = |cause: String| DeviceError::Format {
        device: device.into(),
        fs_type: fs_type.to_owned(),
        cause,
    };
    if !fs_type.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return Err(failed("not a name of a file system".to_owned()));
    }
    let program = format!("mkfs.{fs_type}");
    let arguments: &[&str] = match fs_type {
        "ext3" | "ext4" => &["-F", "-m0"],
        "xfs" => &["-f"],
        _ => &[],
    };
    let output = run(&program, arguments, device, WORK_LIMIT).await;
    let output = output.map_err(|e| failed(format!("{program}: {e}")))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(failed(written(&output)))
    }
}

/// Makes a mounted file system as large as its device.
///
/// # Errors
/// [`DeviceError::Unknown`], [`DeviceError::Resize`].
pub(super) async fn grow(device: &Path, mount: &Path) -> Result<(), DeviceError> {
    let failed = |cause: String| DeviceError::Resize {
        device: device.into(),
        cause,
    };
    let (program, arguments, at): (_, &[&str], _) = match look(device).await? {
        Format::FileSystem(found) => match found.as_str() {
            "ext2" | "ext3" | "ext4" => ("resize2fs", &[], device),
            "xfs" => ("xfs_growfs", &["-d"], mount),
            "btrfs" => ("btrfs", &["filesystem", "resize", "max"], mount),
            other => return Err(failed(format!("nothing here grows {other}"))),
        },
        Format::Blank | Format::Other => return Err(failed("no file system is on it".to_owned())),
    };
    let output = run(program, arguments, at, WORK_LIMIT).await;
    let output = output.map_err(|e| failed(format!("{program}: {e}")))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(failed(written(&output)))
    }
}

/// Corrects what can be corrected without asking. A machine without fsck mounts without.
async fn check(device: &Path) -> Result<(), DeviceError> {
    match run("fsck", &["-a"], device, WORK_LIMIT).await {
        Ok(output) if output.status.code() == Some(FSCK_UNCORRECTED) => Err(DeviceError::Broken {
            device: device.into(),
            output: written(&output),
        }),
        Ok(_) => Ok(()),
        Err(error) => {
            tracing::warn!(device = %device.display(), %error, "mounted without a check by fsck");
            Ok(())
        }
    }
}

async fn run(
    program: &str,
    arguments: &[&str],
    device: &Path,
    limit: Duration,
) -> io::Result<Output> {
    let output = Command::new(program)
        .args(arguments)
        .arg(device)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    match tokio::time::timeout(limit, output).await {
        Ok(ended) => ended,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

fn written(output: &Output) -> String {
    let both = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8_lossy(&both).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_blkid_finds_is_not_overwritten() {
        let ext = Format::FileSystem("ext4".to_owned());
        assert_eq!(read_format("DEVNAME=/dev/x\nTYPE=ext4\n"), ext);
        assert_eq!(read_format("PTTYPE=dos\n"), Format::Other);
        assert_eq!(read_format("TYPE=vfat\nPTTYPE=dos\n"), Format::Other);
        assert_eq!(read_format(""), Format::Other);
    }

    #[test]
    fn a_device_is_mounted_as_what_is_on_it_whatever_a_pod_wishes() {
        let ext = || Format::FileSystem("ext4".to_owned());
        let of = |format, wish| mounted_as(Path::new("/dev/x"), format, wish);
        for wish in ["", "ext4", "ext3"] {
            assert_eq!(of(ext(), wish).unwrap(), "ext4", "{wish}");
        }
        for wish in ["proc", "sysfs", "cgroup2", "tmpfs", "overlay", "xfs"] {
            assert_eq!(
                of(ext(), wish).unwrap_err().to_string(),
                format!("failed to mount disk /dev/x as {wish}, which has ext4")
            );
            for other in [Format::Blank, Format::Other] {
                of(other, wish).unwrap_err();
            }
        }
        // Were a device to say of itself that it is one, it would not be mounted either.
        let proc = Format::FileSystem("proc".to_owned());
        let error = of(proc, "proc").unwrap_err().to_string();
        assert!(
            error.ends_with("has proc, which is on no device"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_device_that_cannot_be_looked_at_is_not_formatted() {
        let mounter: Arc<dyn Mounter> = Arc::new(super::super::mounts::NoMounter);
        let wanted = Wanted {
            device: Path::new("/nonexistent/device"),
            target: Path::new("/nonexistent/target"),
            fs_type: "",
            read_only: false,
        };
        let error = format_and_mount(&mounter, wanted).await.unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("failed to get disk format of disk /nonexistent/device: "),
            "{text}"
        );
    }
}
