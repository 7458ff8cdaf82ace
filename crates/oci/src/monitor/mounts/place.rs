//! Where mounts may go.
//!
//! Runtimes set up a container by what they write to `/proc`, and programs trust what they read there. So a volume cannot be
//! mounted over a part of it: only what is itself a file system of the kernel, and over a few files what shows a container
//! its own limits (as runc has it; CVE-2019-16884, CVE-2023-27561). Over `/sys` and its parts anything may go, such as the
//! devices of a machine that is not there: what davit hides below `/sys` is hidden after volumes are mounted.

use super::Result;
use davit_beneath::{Inode, Links, Root, TargetKind};
use rustix::fs::{FsWord, PROC_SUPER_MAGIC, fstatfs};
use std::os::fd::AsFd;
use std::path::{Component, Path, PathBuf};

/// File systems whose content is the kernel's, by their magic numbers.
const KERNEL: [FsWord; 14] = [
    PROC_SUPER_MAGIC,
    0x6265_6572, // sysfs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0xcafe_4a11, // bpf
    0xde5e_81e4, // efivarfs
    0x6165_676c, // pstore
    0x6265_6570, // configfs
    0x6573_5543, // fusectl
    0xf97c_ff8c, // selinuxfs
    0x0765_5821, // resctrl
];

/// Files of `/proc` that a file system such as lxcfs may stand for.
const SUBSTITUTES: [&str; 10] = [
    "/proc/cpuinfo",
    "/proc/diskstats",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/swaps",
    "/proc/uptime",
    "/proc/loadavg",
    "/proc/slabinfo",
    "/proc/sys/kernel/ns_last_pid",
    "/proc/sys/crypto/fips_enabled",
];

/// A destination without `.`, `..` and doubled slashes.
pub(crate) fn clean_path(path: &Path) -> PathBuf {
    let mut clean = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => {
                clean.pop();
            }
            _ => {}
        }
    }
    clean
}

fn in_kernels_tree(path: &Path) -> bool {
    path.starts_with("/proc") || path.starts_with("/sys")
}

/// Opens the target of a mount. It is made when it is not there, but not in the kernel's trees, and no link is followed
/// on the way into them.
pub(super) fn target(
    root: &Root,
    path: &Path,
    kind: TargetKind,
    links: Links,
) -> davit_beneath::Result<Inode> {
    let below = path != Path::new("/proc") && path != Path::new("/sys");
    let links = if in_kernels_tree(path) || path == Path::new("/dev") {
        Links::Refused
    } else {
        links
    };
    let root = root.same(links)?;
    if in_kernels_tree(path) && below {
        root.entry(path)
    } else {
        root.target(path, kind)
    }
}

fn magic(fd: impl AsFd) -> Result<FsWord> {
    fstatfs(fd)
        .map(|fs| fs.f_type)
        .map_err(super::failed("file system of a mount"))
}

/// Whether the mount may go there. What is judged is what is open: the way to the target may have led anywhere.
pub(super) fn check(mount: impl AsFd, target: impl AsFd, path: &Path) -> Result<()> {
    let (source, under) = (magic(mount)?, magic(target)?);
    let fits = match path {
        _ if KERNEL.contains(&source) => path != Path::new("/proc") || source == PROC_SUPER_MAGIC,
        _ if path.starts_with("/sys") => true,
        _ if SUBSTITUTES.iter().any(|file| path == Path::new(file)) => true,
        _ if in_kernels_tree(path) => false,
        _ => !KERNEL.contains(&under),
    };
    if fits {
        return Ok(());
    }
    Err(format!(
        "{:?} cannot be mounted because it is inside /proc",
        path.display().to_string()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use davit_beneath::mount::file_system;
    use rustix::mount::MountAttrFlags;

    #[test]
    fn destinations_are_cleaned() {
        let cleaned = |path: &str| clean_path(Path::new(path)).display().to_string();
        assert_eq!(cleaned("/a/../proc//self/./x"), "/proc/self/x");
        assert_eq!(cleaned("../../sys/"), "/sys");
        assert_eq!(cleaned("/.."), "/");
    }

    #[test]
    fn volumes_do_not_cover_the_kernels_files() {
        let dir = tempfile::tempdir().unwrap();
        let proc = Root::open("/proc", Links::Refused).unwrap();
        let volume = Root::open(dir.path(), Links::Refused).unwrap();
        let may =
            |source: &Root, under: &Root, path: &str| check(source, under, Path::new(path)).is_ok();
        assert!(may(&volume, &volume, "/data"));
        assert!(may(&volume, &volume, "/process"));
        for path in ["/proc", "/proc/sys", "/proc/self/attr"] {
            assert!(!may(&volume, &volume, path), "{path}");
            assert!(!may(&volume, &proc, path), "{path}");
        }
        for path in ["/sys", "/sys/class"] {
            assert!(may(&volume, &volume, path), "{path}");
        }
        // A link of the image led there.
        assert!(!may(&volume, &proc, "/data"));
        assert!(may(&volume, &proc, "/proc/meminfo"));
        assert!(may(&proc, &proc, "/proc"));
        assert!(may(&proc, &volume, "/host/proc"));
        assert!(may(&proc, &proc, "/host/proc/1"));
        if let Ok(tmpfs) = file_system(
            "tmpfs",
            Path::new("x"),
            ["size=4k"],
            MountAttrFlags::empty(),
        ) {
            assert!(check(&tmpfs, &proc, Path::new("/proc/acpi")).is_err());
        }
    }
}
