//! The container's file system tree, built in its own mount namespace, so that nothing has to be unmounted later.
//!
//! Uses the descriptor-based mount calls throughout (Linux 5.12 or newer): a source is opened where davit sees it, a
//! target is opened inside the new root, and no path is looked up twice.

use crate::cgroup::Hierarchies;
use crate::sys::{MountAttr, mount_setattr};
use nix::libc;
use oci_spec::runtime::{LinuxDevice, LinuxDeviceType, Mount, Spec};
use rustix::fs::{
    self as rfs, AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, chownat, makedev,
    mkdirat, mknodat, openat, openat2, symlinkat,
};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount,
    fsopen, mount, mount_change, move_mount, open_tree, unmount,
};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

type Result<T, E = String> = std::result::Result<T, E>;

/// Where a container's root file system comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RootFs {
    /// Image layers with a writable layer on top.
    Overlay {
        /// Directory that holds the layers; `lower` is relative to it.
        layers: PathBuf,
        /// Layers, the topmost first.
        lower: Vec<String>,
        /// Writable layer.
        upper: PathBuf,
        /// Work directory of the overlay, on the same file system as `upper`.
        work: PathBuf,
        /// Mount point.
        target: PathBuf,
    },
    /// The host's root, read-only, with a writable layer in memory on top.
    Host {
        /// Mount point of the memory file system.
        scratch: PathBuf,
        /// Mount point.
        target: PathBuf,
    },
}

impl RootFs {
    /// Where the root is mounted in the container's mount namespace before it becomes `/`.
    pub(super) fn target(&self) -> &Path {
        match self {
            RootFs::Overlay { target, .. } | RootFs::Host { target, .. } => target,
        }
    }
}

fn failed(what: impl std::fmt::Display) -> impl FnOnce(Errno) -> String {
    move |error| format!("{what}: {}", std::io::Error::from(error))
}

/// Mount options, sorted into what the kernel's calls take.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    attrs: u64,
    recursive_readonly: bool,
    bind: bool,
    recursive: bool,
    propagation: Option<u64>,
    data: Vec<String>,
}

impl Options {
    fn parse(options: Option<&Vec<String>>) -> Self {
        let mut parsed = Options::default();
        for option in options.into_iter().flatten() {
            match option.as_str() {
                "ro" => parsed.attrs |= libc::MOUNT_ATTR_RDONLY,
                "rro" => {
                    parsed.attrs |= libc::MOUNT_ATTR_RDONLY;
                    parsed.recursive_readonly = true;
                }
                "nosuid" => parsed.attrs |= libc::MOUNT_ATTR_NOSUID,
                "nodev" => parsed.attrs |= libc::MOUNT_ATTR_NODEV,
                "noexec" => parsed.attrs |= libc::MOUNT_ATTR_NOEXEC,
                "noatime" => parsed.attrs |= libc::MOUNT_ATTR_NOATIME,
                "strictatime" => parsed.attrs |= libc::MOUNT_ATTR_STRICTATIME,
                "nodiratime" => parsed.attrs |= libc::MOUNT_ATTR_NODIRATIME,
                "rw" | "suid" | "dev" | "exec" | "relatime" | "defaults" => {}
                "bind" => parsed.bind = true,
                "rbind" => (parsed.bind, parsed.recursive) = (true, true),
                "private" | "rprivate" => parsed.propagation = Some(libc::MS_PRIVATE),
                "slave" | "rslave" => parsed.propagation = Some(libc::MS_SLAVE),
                "shared" | "rshared" => parsed.propagation = Some(libc::MS_SHARED),
                "unbindable" | "runbindable" => parsed.propagation = Some(libc::MS_UNBINDABLE),
                data => parsed.data.push(data.to_owned()),
            }
        }
        parsed
    }
}

/// A mount whose source is already open.
pub(super) struct Prepared<'a> {
    spec: &'a Mount,
    options: Options,
    source: Option<OwnedFd>,
}

/// Opens the sources of all bind mounts. Before the namespace's propagation changes: a source that is shared with the
/// host stays shared only when it is cloned while it still is.
pub(super) fn open_sources(spec: &Spec) -> Result<Vec<Prepared<'_>>> {
    let mut prepared = Vec::new();
    for mount in spec.mounts().iter().flatten() {
        let options = Options::parse(mount.options().as_ref());
        let bind = options.bind || mount.typ().as_deref() == Some("bind");
        let source = match mount.source() {
            Some(path) if bind => {
                let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
                if options.recursive || !options.bind {
                    flags |= OpenTreeFlags::AT_RECURSIVE;
                }
                Some(
                    open_tree(CWD, path, flags)
                        .map_err(failed(format_args!("mount source {}", path.display())))?,
                )
            }
            None if bind => {
                return Err(format!(
                    "mount {} has no source",
                    mount.destination().display()
                ));
            }
            _ => None,
        };
        prepared.push(Prepared {
            spec: mount,
            options,
            source,
        });
    }
    Ok(prepared)
}

/// Gives the first mount of a kind a file system that is mounted already, with its attributes.
pub(super) fn supply(mounts: &mut [Prepared<'_>], kind: &str, mount: OwnedFd) {
    let wanted = |prepared: &&mut Prepared<'_>| {
        prepared.source.is_none() && prepared.spec.typ().as_deref() == Some(kind)
    };
    if let Some(prepared) = mounts.iter_mut().find(wanted) {
        prepared.source = Some(mount);
        prepared.options.attrs = 0;
    }
}

/// Has the mounts that ask for it show their files' IDs as the user namespace maps them.
pub(super) fn map_ids(mounts: &[Prepared<'_>], namespace: &fs::File) -> Result<()> {
    for prepared in mounts {
        if let Some(source) = &prepared.source
            && prepared.spec.uid_mappings().is_some()
        {
            super::userns::map_ids(source, namespace).map_err(|e| {
                let path = prepared.spec.destination().display();
                format!("mount {path}: the file system cannot map IDs: {e}")
            })?;
        }
    }
    Ok(())
}

/// Cuts the namespace off from the host: what the container mounts stays here, what the host mounts still arrives.
pub(super) fn detach_propagation() -> Result<()> {
    mount_change(
        "/",
        MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
    )
    .map_err(failed("change propagation of /"))
}

/// Mounts the root file system at its target.
pub(super) fn mount_root(rootfs: &RootFs) -> Result<()> {
    match rootfs {
        RootFs::Overlay {
            layers,
            lower,
            upper,
            work,
            target,
        } => {
            // Relative names keep the option string within the kernel's one page.
            std::env::set_current_dir(layers)
                .map_err(|e| format!("layers {}: {e}", layers.display()))?;
            overlay(&lower.join(":"), upper, work, target)
        }
        RootFs::Host { scratch, target } => {
            // A writable layer below the lower one is refused, so it lives on a file system of its own.
            mount("tmpfs", scratch, "tmpfs", MountFlags::NODEV, c"mode=0700")
                .map_err(failed("mount scratch tmpfs"))?;
            let (upper, work) = (scratch.join("upper"), scratch.join("work"));
            for dir in [&upper, &work] {
                fs::create_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
            }
            overlay("/", &upper, &work, target)
        }
    }
}

/// Volatile, because otherwise the end of each container writes back the whole file system that its writable layer is
/// on. No container outlives a power loss, and none is started twice.
fn overlay(lower: &str, upper: &Path, work: &Path, target: &Path) -> Result<()> {
    let mut options = OsString::from("lowerdir=");
    options.push(lower);
    options.push(",upperdir=");
    options.push(upper);
    options.push(",workdir=");
    options.push(work);
    let with = |more: &str| {
        let mut options = options.clone();
        options.push(more);
        let options =
            std::ffi::CString::new(options.into_encoded_bytes()).map_err(|_| Errno::INVAL)?;
        mount(
            "overlay",
            target,
            "overlay",
            MountFlags::empty(),
            options.as_c_str(),
        )
    };
    match with(",volatile") {
        Err(Errno::INVAL) => with(""),
        other => other,
    }
    .map_err(failed("mount overlay"))
}

/// A path inside the root with every symbolic link followed as the container would: relative to the root, without
/// links. Parts that do not exist stay as they are.
fn resolve(root: &Path, path: &Path) -> Result<PathBuf> {
    const MAX_LINKS: usize = 255;
    let mut done = PathBuf::new();
    let mut rest: Vec<OsString> = path.iter().rev().map(ToOwned::to_owned).collect();
    let mut links = 0;
    while let Some(part) = rest.pop() {
        match Path::new(&part).components().next() {
            Some(Component::ParentDir) => {
                done.pop();
                continue;
            }
            Some(Component::Normal(_)) => {}
            _ => continue,
        }
        let next = done.join(&part);
        match fs::read_link(root.join(&next)) {
            Ok(link) => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(format!("{}: too many symbolic links", path.display()));
                }
                if link.is_absolute() {
                    done.clear();
                }
                rest.extend(link.iter().rev().map(ToOwned::to_owned));
            }
            Err(_) => done = next,
        }
    }
    Ok(done)
}

/// The root directory while it is being filled.
pub(super) struct Root {
    path: PathBuf,
    fd: OwnedFd,
}

impl Root {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let fd = openat(
            CWD,
            path,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(failed(format_args!("open root {}", path.display())))?;
        Ok(Root {
            path: path.to_owned(),
            fd,
        })
    }

    fn make_dirs(&self, path: &Path) -> Result<()> {
        let mut so_far = PathBuf::new();
        for part in path {
            so_far.push(part);
            match mkdirat(&self.fd, &so_far, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => {
                    return Err(failed(format_args!("create {}", so_far.display()))(error));
                }
            }
        }
        Ok(())
    }

    fn open_path(&self, path: &Path) -> rustix::io::Result<OwnedFd> {
        if path.as_os_str().is_empty() {
            return rustix::io::fcntl_dupfd_cloexec(&self.fd, 3);
        }
        openat2(
            &self.fd,
            path,
            OFlags::PATH | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS,
        )
    }

    /// Opens a mount target, making it (and its parents) when it is not there.
    fn target(&self, path: &Path, directory: bool) -> Result<OwnedFd> {
        let resolved = resolve(&self.path, path)?;
        match self.open_path(&resolved) {
            Err(Errno::NOENT) => {}
            other => return other.map_err(failed(format_args!("mount target {}", path.display()))),
        }
        if directory {
            self.make_dirs(&resolved)?;
        } else {
            if let Some(parent) = resolved.parent() {
                self.make_dirs(parent)?;
            }
            let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            openat(&self.fd, &resolved, flags, Mode::from_raw_mode(0o644)).map_err(failed(
                format_args!("create mount target {}", path.display()),
            ))?;
        }
        self.open_path(&resolved)
            .map_err(failed(format_args!("mount target {}", path.display())))
    }

    fn attach(&self, mount: &OwnedFd, path: &Path, directory: bool) -> Result<()> {
        let target = self.target(path, directory)?;
        attach(mount, &target).map_err(failed(format_args!("mount {}", path.display())))
    }

    /// Makes all mounts of the configuration, in its order.
    pub(super) fn mount_all(&self, mounts: Vec<Prepared<'_>>, cgroups: &Hierarchies) -> Result<()> {
        for prepared in mounts {
            let path = prepared.spec.destination();
            match (prepared.source, prepared.spec.typ().as_deref()) {
                (Some(source), _) => self.bind(&source, path, &prepared.options)?,
                (None, Some("cgroup" | "cgroup2")) => {
                    self.mount_cgroups(path, &prepared.options, cgroups)?;
                }
                (None, Some(kind)) => {
                    let source = prepared.spec.source().as_deref().unwrap_or(Path::new(kind));
                    let mount = new_mount(kind, source, &prepared.options)
                        .map_err(failed(format_args!("mount {kind} on {}", path.display())))?;
                    self.attach(&mount, path, true)?;
                }
                (None, None) => return Err(format!("mount {} has no type", path.display())),
            }
        }
        Ok(())
    }

    fn bind(&self, source: &OwnedFd, path: &Path, options: &Options) -> Result<()> {
        let stat = rfs::fstat(source).map_err(failed(path.display()))?;
        let directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let shown = || format!("mount {}", path.display());
        let attr = |set, propagation| MountAttr {
            set,
            propagation,
            ..MountAttr::default()
        };
        let propagation = options.propagation.unwrap_or(libc::MS_PRIVATE);
        mount_setattr(source, &attr(0, propagation), true)
            .map_err(|e| format!("{}: propagation: {e}", shown()))?;
        if options.attrs != 0 {
            mount_setattr(source, &attr(options.attrs, 0), options.recursive_readonly)
                .map_err(|e| format!("{}: options: {e}", shown()))?;
        }
        self.attach(source, path, directory)
    }

    /// Shows the container its own cgroups: the v2 tree, or one directory per v1 hierarchy.
    fn mount_cgroups(&self, path: &Path, options: &Options, cgroups: &Hierarchies) -> Result<()> {
        let of = |kind: &str, data: Option<&str>| {
            let options = Options {
                attrs: options.attrs,
                data: data.map(ToOwned::to_owned).into_iter().collect(),
                ..Options::default()
            };
            new_mount(kind, Path::new(kind), &options).map_err(failed(format_args!("mount {kind}")))
        };
        if cgroups.is_unified() {
            return self.attach(&of("cgroup2", None)?, path, true);
        }
        let base = Options {
            data: vec!["mode=755".to_owned()],
            ..Options::default()
        };
        let tmpfs = new_mount("tmpfs", Path::new("cgroup"), &base)
            .map_err(failed("mount tmpfs for cgroups"))?;
        self.attach(&tmpfs, path, true)?;
        for (controller, _) in cgroups.v1_mounts() {
            self.attach(
                &of("cgroup", Some(controller))?,
                &path.join(controller),
                true,
            )?;
        }
        if cgroups.unified_root().is_some() {
            self.attach(&of("cgroup2", None)?, &path.join("unified"), true)?;
        }
        if options.attrs & libc::MOUNT_ATTR_RDONLY != 0 {
            let dir = self.target(path, true)?;
            let readonly = MountAttr {
                set: libc::MOUNT_ATTR_RDONLY,
                ..MountAttr::default()
            };
            mount_setattr(dir, &readonly, false).map_err(|e| format!("cgroup mounts: {e}"))?;
        }
        Ok(())
    }

    /// Makes the device files and the customary links in `/dev`.
    pub(super) fn devices(&self, spec: &Spec) -> Result<()> {
        const DEFAULT: [(&str, u32, u32); 6] = [
            ("null", 1, 3),
            ("zero", 1, 5),
            ("full", 1, 7),
            ("random", 1, 8),
            ("urandom", 1, 9),
            ("tty", 5, 0),
        ];
        const LINKS: [(&str, &str); 5] = [
            ("fd", "/proc/self/fd"),
            ("stdin", "/proc/self/fd/0"),
            ("stdout", "/proc/self/fd/1"),
            ("stderr", "/proc/self/fd/2"),
            ("ptmx", "pts/ptmx"),
        ];
        let own_dev =
            spec.mounts().iter().flatten().any(|m| {
                m.destination() == Path::new("/dev") && m.typ().as_deref() == Some("tmpfs")
            });
        if own_dev {
            for (name, major, minor) in DEFAULT {
                self.device(
                    &Path::new("dev").join(name),
                    FileType::CharacterDevice,
                    makedev(major, minor),
                    0o666,
                    0,
                    0,
                )?;
            }
            for (name, link) in LINKS {
                match symlinkat(link, &self.fd, Path::new("dev").join(name)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(failed(format_args!("link /dev/{name}"))(error)),
                }
            }
        }
        for device in spec
            .linux()
            .as_ref()
            .and_then(|linux| linux.devices().as_ref())
            .into_iter()
            .flatten()
        {
            self.listed_device(device)?;
        }
        Ok(())
    }

    fn listed_device(&self, device: &LinuxDevice) -> Result<()> {
        let path = resolve(&self.path, device.path())?;
        if let Some(parent) = path.parent() {
            self.make_dirs(parent)?;
        }
        let kind = match device.typ() {
            LinuxDeviceType::B => FileType::BlockDevice,
            LinuxDeviceType::P => FileType::Fifo,
            _ => FileType::CharacterDevice,
        };
        let number = makedev(device.major() as u32, device.minor() as u32);
        let mode = device.file_mode().unwrap_or(0o666) & 0o7777;
        self.device(
            &path,
            kind,
            number,
            mode,
            device.uid().unwrap_or(0),
            device.gid().unwrap_or(0),
        )
    }

    fn device(
        &self,
        path: &Path,
        kind: FileType,
        number: u64,
        mode: u32,
        uid: u32,
        gid: u32,
    ) -> Result<()> {
        let shown = format!("device /{}", path.display());
        match mknodat(&self.fd, path, kind, Mode::from_raw_mode(mode), number) {
            Ok(()) => {}
            // A later entry for the same path wins, unless the path is a mount of its own.
            Err(Errno::EXIST) => {
                let same = rfs::statat(&self.fd, path, AtFlags::SYMLINK_NOFOLLOW)
                    .is_ok_and(|stat| stat.st_rdev == number);
                if !same {
                    rfs::unlinkat(&self.fd, path, AtFlags::empty()).map_err(failed(&shown))?;
                    mknodat(&self.fd, path, kind, Mode::from_raw_mode(mode), number)
                        .map_err(failed(&shown))?;
                }
            }
            Err(error) => return Err(failed(&shown)(error)),
        }
        chownat(
            &self.fd,
            path,
            Some(Uid::from_raw(uid)),
            Some(Gid::from_raw(gid)),
            AtFlags::SYMLINK_NOFOLLOW,
        )
        .map_err(failed(&shown))
    }

    /// Makes the root `/`, and lets go of the host's.
    pub(super) fn pivot(self) -> Result<()> {
        std::env::set_current_dir(&self.path).map_err(|e| format!("enter root: {e}"))?;
        rustix::process::pivot_root(".", ".").map_err(failed("pivot_root"))?;
        unmount(".", UnmountFlags::DETACH).map_err(failed("unmount the old root"))?;
        std::env::set_current_dir("/").map_err(|e| format!("enter /: {e}"))
    }
}

fn attach(mount: impl AsFd, target: impl AsFd) -> rustix::io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", target, "", flags)
}

fn new_mount(kind: &str, source: &Path, options: &Options) -> rustix::io::Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), "source", source)?;
    for option in &options.data {
        match option.split_once('=') {
            Some((key, value)) => fsconfig_set_string(context.as_fd(), key, value)?,
            None => fsconfig_set_flag(context.as_fd(), option.as_str())?,
        }
    }
    fsconfig_create(context.as_fd())?;
    let attrs = MountAttrFlags::from_bits_retain(options.attrs as u32);
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attrs)
}

fn clone_mount(path: &str, recursive: bool) -> rustix::io::Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    open_tree(CWD, path, flags)
}

fn open_here(path: &str) -> rustix::io::Result<OwnedFd> {
    openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

/// After the pivot: hides and write-protects what the configuration names, and the root itself when asked to.
pub(super) fn protect(spec: &Spec) -> Result<()> {
    let readonly = MountAttr {
        set: libc::MOUNT_ATTR_RDONLY,
        ..MountAttr::default()
    };
    let Some(linux) = spec.linux() else {
        return Ok(());
    };
    for path in linux.readonly_paths().iter().flatten() {
        let Ok(mount) = clone_mount(path, true) else {
            continue;
        };
        let shown = |e: std::io::Error| format!("protect {path}: {e}");
        mount_setattr(&mount, &readonly, true).map_err(shown)?;
        attach(&mount, open_here(path).map_err(failed(path))?)
            .map_err(failed(format_args!("protect {path}")))?;
    }
    for path in linux.masked_paths().iter().flatten() {
        let Ok(target) = open_here(path) else {
            continue;
        };
        let stat = rfs::fstat(&target).map_err(failed(path))?;
        let mask = if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            let options = Options {
                attrs: libc::MOUNT_ATTR_RDONLY,
                data: vec!["size=0k".to_owned()],
                ..Options::default()
            };
            new_mount("tmpfs", Path::new("tmpfs"), &options)
        } else {
            clone_mount("/dev/null", false)
        };
        attach(mask.map_err(failed(format_args!("mask {path}")))?, target)
            .map_err(failed(format_args!("mask {path}")))?;
    }
    if spec
        .root()
        .as_ref()
        .and_then(oci_spec::runtime::Root::readonly)
        .unwrap_or(false)
    {
        let root = open_here("/").map_err(failed("/"))?;
        mount_setattr(root, &readonly, false).map_err(|e| format!("make / read-only: {e}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_never_leave_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::create_dir_all(root.join("a/b")).unwrap();
        std::os::unix::fs::symlink("/etc", root.join("abs")).unwrap();
        std::os::unix::fs::symlink("../../../../etc", root.join("a/up")).unwrap();
        std::os::unix::fs::symlink("loop", root.join("loop")).unwrap();
        let resolved =
            |path: &str| resolve(root, Path::new(path)).map(|p| p.to_string_lossy().into_owned());
        assert_eq!(resolved("/a/b/../c").unwrap(), "a/c");
        assert_eq!(resolved("/../../x").unwrap(), "x");
        assert_eq!(resolved("abs/passwd").unwrap(), "etc/passwd");
        assert_eq!(resolved("a/up/passwd").unwrap(), "etc/passwd");
        assert!(resolved("loop/x").is_err());
    }

    #[test]
    fn options() {
        let list: Vec<String> = ["rbind", "rprivate", "ro", "nosuid", "size=64k"]
            .map(str::to_owned)
            .into();
        let parsed = Options::parse(Some(&list));
        assert!(parsed.bind && parsed.recursive && !parsed.recursive_readonly);
        assert_eq!(
            parsed.attrs,
            libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID
        );
        assert_eq!(parsed.propagation, Some(libc::MS_PRIVATE));
        assert_eq!(parsed.data, ["size=64k"]);
    }
}
