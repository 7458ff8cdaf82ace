//! Containers whose users are not the host's: the pod's user namespace maps them to a range that nobody else has.
//!
//! What only the host's root may do happens before the namespace is entered: mapping the IDs of layers and volumes,
//! mounting the root, making devices. From then on the process is the root of its namespace and nobody on the host.

use super::mounts::RootFs;
use crate::sys::{MountAttr, mount_setattr};
use nix::libc;
use nix::sched::{CloneFlags, setns};
use nix::sys::prctl;
use nix::unistd::{Gid, Uid, fchown, setgroups, setresgid, setresuid};
use oci_spec::runtime::{LinuxDeviceType, Spec};
use rustix::fs::{CWD, FileType, Mode, OFlags, makedev, mkdirat, mknodat, openat, symlinkat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, OpenTreeFlags,
    fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount, move_mount, open_tree,
};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

type Result<T, E = String> = std::result::Result<T, E>;

fn failed<E: Into<io::Error>>(what: impl std::fmt::Display) -> impl FnOnce(E) -> String {
    move |error| format!("{what}: {}", error.into())
}

/// Host IDs of the namespace's root.
#[derive(Debug, Clone, Copy)]
pub(super) struct Owner {
    uid: u32,
    gid: u32,
}

impl Owner {
    /// Reads them from the mappings of the configuration.
    pub(super) fn of(spec: &Spec) -> Result<Self> {
        let linux = spec.linux().as_ref();
        let host = |list: Option<&Vec<oci_spec::runtime::LinuxIdMapping>>| {
            let mut list = list.into_iter().flatten();
            list.find(|map| map.container_id() == 0)
                .map(oci_spec::runtime::LinuxIdMapping::host_id)
                .ok_or("the user namespace maps no root")
        };
        Ok(Owner {
            uid: host(linux.and_then(|l| l.uid_mappings().as_ref()))?,
            gid: host(linux.and_then(|l| l.gid_mappings().as_ref()))?,
        })
    }

    fn ids(self) -> (Option<Uid>, Option<Gid>) {
        (Some(Uid::from_raw(self.uid)), Some(Gid::from_raw(self.gid)))
    }

    fn chown(self, path: &Path) -> Result<()> {
        let (uid, gid) = self.ids();
        nix::unistd::chown(path, uid, gid).map_err(failed(path.display()))
    }
}

/// Has a mount that is not attached yet show the IDs of files as the namespace maps them.
pub(super) fn map_ids(mount: impl AsFd, namespace: &File) -> io::Result<()> {
    let attr = MountAttr {
        set: libc::MOUNT_ATTR_IDMAP,
        userns_fd: u64::try_from(namespace.as_raw_fd()).map_err(io::Error::other)?,
        ..MountAttr::default()
    };
    mount_setattr(mount, &attr, true)
}

fn attach(mount: impl AsFd, target: impl AsFd) -> rustix::io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", target, "", flags)
}

fn clone_of(path: &Path) -> Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    open_tree(CWD, path, flags).map_err(failed(path.display()))
}

/// The same root file system with the layers' IDs mapped, and a writable layer that belongs to the namespace's root.
pub(super) fn map_root(rootfs: &RootFs, namespace: &File, owner: Owner) -> Result<RootFs> {
    let scratch = rootfs.target().with_file_name("scratch");
    mount("tmpfs", &scratch, "tmpfs", MountFlags::NODEV, c"mode=0700")
        .map_err(failed("mount scratch tmpfs"))?;
    let (layers, upper, work) = match rootfs {
        RootFs::Overlay {
            layers,
            lower,
            upper,
            work,
            ..
        } => {
            let layers: Vec<PathBuf> = lower.iter().map(|layer| layers.join(layer)).collect();
            (layers, upper.clone(), work.clone())
        }
        RootFs::Host { .. } => {
            let (upper, work) = (scratch.join("upper"), scratch.join("work"));
            for dir in [&upper, &work] {
                fs::create_dir(dir).map_err(failed(dir.display()))?;
            }
            (vec![Path::new("/").to_owned()], upper, work)
        }
    };
    owner.chown(&upper)?;
    let lower = map_layers(layers, namespace, &scratch)?;
    Ok(RootFs::Overlay {
        layers: scratch,
        lower,
        upper,
        work,
        target: rootfs.target().to_owned(),
    })
}

/// Mounts layers with their IDs mapped below a directory; their names there.
pub(super) fn map_layers(
    layers: impl IntoIterator<Item = PathBuf>,
    namespace: &File,
    scratch: &Path,
) -> Result<Vec<String>> {
    let mut lower = Vec::new();
    for (number, layer) in layers.into_iter().enumerate() {
        let mapped = clone_of(&layer)?;
        map_ids(&mapped, namespace)
            .map_err(failed(format_args!("map the IDs of {}", layer.display())))?;
        let name = number.to_string();
        let place = scratch.join(&name);
        fs::create_dir(&place).map_err(failed(place.display()))?;
        let target = openat(CWD, &place, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        attach(mapped, target.map_err(failed(place.display()))?)
            .map_err(failed(format_args!("mount layer {}", layer.display())))?;
        lower.push(name);
    }
    Ok(lower)
}

/// A file system for `/dev` with all its devices, which only the host's root can make.
pub(super) fn dev(spec: &Spec, owner: Owner) -> Result<OwnedFd> {
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
    let dev = tmpfs(owner).map_err(failed("mount /dev"))?;
    for (name, major, minor) in DEFAULT {
        let number = makedev(major, minor);
        let kind = FileType::CharacterDevice;
        device(&dev, Path::new(name), kind, number, 0o666, owner)?;
    }
    for (name, link) in LINKS {
        symlinkat(link, &dev, name).map_err(failed(format_args!("link /dev/{name}")))?;
    }
    let linux = spec.linux().as_ref();
    for listed in linux
        .and_then(|l| l.devices().as_ref())
        .into_iter()
        .flatten()
    {
        let path = listed.path();
        let inside = path.strip_prefix("/dev").map_err(|_| {
            format!(
                "device {}: not below /dev in a user namespace",
                path.display()
            )
        })?;
        let kind = match listed.typ() {
            LinuxDeviceType::B => FileType::BlockDevice,
            LinuxDeviceType::P => FileType::Fifo,
            _ => FileType::CharacterDevice,
        };
        let number = makedev(listed.major() as u32, listed.minor() as u32);
        let mode = listed.file_mode().unwrap_or(0o666) & 0o7777;
        // As on the host: what its root alone may open, the container's root may not.
        let user = Owner {
            uid: listed.uid().unwrap_or(0),
            gid: listed.gid().unwrap_or(0),
        };
        device(&dev, inside, kind, number, mode, user)?;
    }
    Ok(dev)
}

fn tmpfs(owner: Owner) -> rustix::io::Result<OwnedFd> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in [
        ("source", "tmpfs".to_owned()),
        ("mode", "755".to_owned()),
        ("size", "65536k".to_owned()),
        ("uid", owner.uid.to_string()),
        ("gid", owner.gid.to_string()),
    ] {
        fsconfig_set_string(context.as_fd(), key, value)?;
    }
    fsconfig_create(context.as_fd())?;
    let attrs = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_STRICTATIME;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attrs)
}

/// Makes one device in a file system that nobody else has seen yet.
fn device(
    dev: &OwnedFd,
    path: &Path,
    kind: FileType,
    number: u64,
    mode: u32,
    owner: Owner,
) -> Result<()> {
    let shown = format!("device /dev/{}", path.display());
    let (uid, gid) = owner.ids();
    if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
        let mut so_far = PathBuf::new();
        for part in parent {
            so_far.push(part);
            if mkdirat(dev, &so_far, Mode::from_raw_mode(0o755)).is_ok() {
                let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
                let made = openat(dev, &so_far, flags, Mode::empty()).map_err(failed(&shown))?;
                fchown(made, owner.ids().0, owner.ids().1).map_err(failed(&shown))?;
            }
        }
    }
    match mknodat(dev, path, kind, Mode::from_raw_mode(mode), number) {
        Ok(()) => {}
        // A later entry for the same path wins.
        Err(rustix::io::Errno::EXIST) => {
            rustix::fs::unlinkat(dev, path, rustix::fs::AtFlags::empty())
                .and_then(|()| mknodat(dev, path, kind, Mode::from_raw_mode(mode), number))
                .map_err(failed(&shown))?;
        }
        Err(error) => return Err(failed(&shown)(error)),
    }
    nix::unistd::fchownat(
        dev,
        path,
        uid,
        gid,
        nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW,
    )
    .map_err(failed(&shown))
}

/// Becomes the root of the namespace, nobody on the host.
pub(super) fn enter(namespace: &File) -> Result<()> {
    setns(namespace, CloneFlags::CLONE_NEWUSER).map_err(failed("join the user namespace"))?;
    become_root()
}

/// Takes on the namespace's own root as user after it was entered.
pub(crate) fn become_root() -> Result<()> {
    let (uid, gid) = (Uid::from_raw(0), Gid::from_raw(0));
    setgroups(&[]).map_err(failed("set groups"))?;
    setresgid(gid, gid, gid).map_err(failed("set group"))?;
    setresuid(uid, uid, uid).map_err(failed("set user"))?;
    // The change of user may have set it again.
    prctl::set_dumpable(false).map_err(failed("dumpable"))
}

/// In the mount namespace that the user namespace owns: puts a copy of the current directory's mount, which this
/// namespace may not take apart, over it, and enters the copy.
pub(super) fn own_root() -> Result<()> {
    let copy = clone_of(Path::new("."))?;
    let below = openat(CWD, ".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    attach(&copy, below.map_err(failed("open root"))?).map_err(failed("mount root"))?;
    rustix::process::fchdir(&copy).map_err(failed("enter root"))
}
