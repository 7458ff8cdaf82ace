//! The container's file system tree, built in its own mount namespace, so that nothing has to be unmounted later.
//!
//! Uses the descriptor-based mount calls throughout (Linux 5.12 or newer): a source is opened where davit sees it, a
//! target is opened inside the new root by `beneath`, and no path is looked up twice. The image and other containers of
//! the pod, which write the same volumes at the same time, decide what the paths below the root are.

mod devices;
mod images;
mod options;
mod place;
mod protect;

pub use images::ImageMount;
pub(super) use images::mount_images;
pub(crate) use place::clean_path;
pub(super) use protect::protect;

use crate::cgroup::Hierarchies;
use crate::sys::{MountAttr, mount_setattr};
use davit_beneath::{Links, Procfs, Root, TargetKind, mount as fds};
use nix::libc;
use oci_spec::runtime::{Mount, Spec};
use options::Options;
use rustix::fs::{self as rfs, CWD, FileType};
use rustix::io::Errno;
use rustix::mount::{
    MountAttrFlags, MountFlags, MountPropagationFlags, OpenTreeFlags, UnmountFlags, mount,
    mount_change, open_tree, unmount,
};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

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

/// The root directory while it is being filled.
pub(super) struct NewRoot {
    root: Root,
    /// The file system at `/dev`, when it is one that was made for this container.
    dev: Option<Root>,
}

impl NewRoot {
    pub(super) fn open(path: &Path) -> Result<Self> {
        // What is written through it later must be the host's procfs, whatever is `/proc` then.
        Procfs::of_host().map_err(|e| e.to_string())?;
        let root = Root::open(path, Links::Confined).map_err(|e| format!("open root {e}"))?;
        Ok(NewRoot { root, dev: None })
    }

    /// Opens what a mount goes on, making it when it is not there, and puts the mount onto it.
    fn attach(&self, mount: &OwnedFd, path: &Path, kind: TargetKind, links: Links) -> Result<()> {
        let shown = |e: davit_beneath::Error| format!("mount {}: {e}", path.display());
        let target = place::target(&self.root, path, kind, links).map_err(shown)?;
        place::check(mount, &target, path)?;
        fds::attach(mount, &target).map_err(shown)
    }

    /// Makes all mounts of the configuration, in its order.
    pub(super) fn mount_all(
        &mut self,
        mounts: Vec<Prepared<'_>>,
        cgroups: &Hierarchies,
    ) -> Result<()> {
        for prepared in mounts {
            let path = &clean_path(prepared.spec.destination());
            match (prepared.source, prepared.spec.typ().as_deref()) {
                (Some(source), _) => self.bind(&source, path, &prepared.options)?,
                (None, Some("cgroup" | "cgroup2")) => {
                    self.mount_cgroups(path, &prepared.options, cgroups)?;
                }
                (None, Some(kind)) => {
                    let source = prepared.spec.source().as_deref().unwrap_or(Path::new(kind));
                    let mount = new_mount(kind, source, &prepared.options)
                        .map_err(|e| format!("mount {kind} on {}: {e}", path.display()))?;
                    // Were it on a link's end, what is hidden and protected later would be somewhere else.
                    self.attach(&mount, path, TargetKind::Directory, Links::Refused)?;
                    if kind == "tmpfs" && path == Path::new("/dev") {
                        let dev = Root::from_fd(mount, Links::Refused);
                        self.dev = Some(dev.map_err(|e| format!("/dev: {e}"))?);
                    }
                }
                (None, None) => return Err(format!("mount {} has no type", path.display())),
            }
        }
        Ok(())
    }

    fn bind(&self, source: &OwnedFd, path: &Path, options: &Options) -> Result<()> {
        let stat = rfs::fstat(source).map_err(failed(path.display()))?;
        let kind = if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            TargetKind::Directory
        } else {
            TargetKind::File
        };
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
        self.attach(source, path, kind, Links::Confined)
    }

    /// Shows the container its own cgroups: the v2 tree, or one directory per v1 hierarchy.
    fn mount_cgroups(&self, path: &Path, options: &Options, cgroups: &Hierarchies) -> Result<()> {
        let of = |kind: &str, data: Option<&str>| {
            let options = Options {
                attrs: options.attrs,
                data: data.map(ToOwned::to_owned).into_iter().collect(),
                ..Options::default()
            };
            new_mount(kind, Path::new(kind), &options).map_err(|e| format!("mount {kind}: {e}"))
        };
        let directory = TargetKind::Directory;
        if cgroups.is_unified() {
            return self.attach(&of("cgroup2", None)?, path, directory, Links::Refused);
        }
        let base = Options {
            data: vec!["mode=755".to_owned()],
            ..Options::default()
        };
        let tmpfs = new_mount("tmpfs", Path::new("cgroup"), &base)
            .map_err(|e| format!("mount tmpfs for cgroups: {e}"))?;
        let shown = |e: davit_beneath::Error| format!("cgroup mounts: {e}");
        let target = place::target(&self.root, path, directory, Links::Refused).map_err(shown)?;
        fds::attach(&tmpfs, target).map_err(shown)?;
        let tmpfs = Root::from_fd(tmpfs, Links::Refused).map_err(shown)?;
        let put = |mount: OwnedFd, name: &str| {
            let target = tmpfs.target(name, directory).map_err(shown)?;
            fds::attach(mount, target).map_err(shown)
        };
        for (controller, _) in cgroups.v1_mounts() {
            put(of("cgroup", Some(controller))?, controller)?;
        }
        if options.attrs & libc::MOUNT_ATTR_RDONLY != 0 {
            let readonly = MountAttr {
                set: libc::MOUNT_ATTR_RDONLY,
                ..MountAttr::default()
            };
            mount_setattr(&tmpfs, &readonly, false).map_err(|e| format!("cgroup mounts: {e}"))?;
        }
        Ok(())
    }

    /// Makes the root `/`, and lets go of the host's.
    pub(super) fn pivot(self) -> Result<()> {
        rustix::process::fchdir(&self.root).map_err(failed("enter root"))?;
        rustix::process::pivot_root(".", ".").map_err(failed("pivot_root"))?;
        unmount(".", UnmountFlags::DETACH).map_err(failed("unmount the old root"))?;
        std::env::set_current_dir("/").map_err(|e| format!("enter /: {e}"))
    }
}

fn new_mount(kind: &str, source: &Path, options: &Options) -> davit_beneath::Result<OwnedFd> {
    let attrs = MountAttrFlags::from_bits_retain(options.attrs as u32);
    fds::file_system(kind, source, &options.data, attrs)
}
