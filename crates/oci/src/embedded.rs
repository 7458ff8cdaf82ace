//! The embedded runtime: pods as Linux containers, with one monitor process per container.
//!
//! davit itself holds nothing that a container needs. Everything is in the container's directory and in its monitor,
//! so a davit that was killed and started again finds all its containers running ([`Embedded::new`] adopts them).

mod connection;
mod container;
mod exec;
mod image_part;
mod layers;
mod record;
mod sandbox;
mod service;
mod spec;
mod traffic;
mod user;
mod users;

pub(crate) use users::main as namespaces_main;

use crate::cgroup::Hierarchies;
use crate::image::Images;
use crate::network::{Loopback, Network};
use crate::runtime::{Error, Result};
use container::Container;
use davit_beneath::private_dir;
use rustix::mount::OpenTreeFlags;
use sandbox::Sandbox;
use std::collections::{BTreeSet, HashMap, HashSet};

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::task::JoinSet;

/// How many files a process may open (`RLIMIT_NOFILE`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenFiles {
    /// As long as it asks for no more.
    pub soft: u64,
    /// At most.
    pub hard: u64,
}

/// Where the runtime keeps things and what it may do.
#[derive(Debug, Clone)]
pub struct EmbeddedOptions {
    /// Images, layers, records of sandboxes and containers. Paths with `,` or `:` are refused (overlayfs).
    pub root: PathBuf,
    /// Sockets and namespace files; best on tmpfs.
    pub run_dir: PathBuf,
    /// cgroup below which containers go whose pod names none.
    pub cgroup_parent: String,
    /// Offer the host's root file system as image `davit.local/host`.
    pub allow_host_image: bool,
    /// The program that [`crate::monitor::main_if_invoked`] is called in; `/proc/self/exe` is davit itself.
    pub monitor_exe: PathBuf,
    /// Connects pods.
    pub network: Arc<dyn Network>,
    /// Address of pods in the host's network.
    pub host_ip: String,
    /// Directories of CDI files, the one that wins last.
    pub cdi_dirs: Vec<PathBuf>,
    /// How many files containers may open; as many as this process, without.
    pub open_files: Option<OpenFiles>,
    /// Handlers of runtime classes that are taken besides the empty one. All of them run pods alike.
    pub handlers: BTreeSet<String>,
}

impl EmbeddedOptions {
    /// Options with everything below one directory, loopback-only pods and no host image.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        EmbeddedOptions {
            run_dir: root.join("run"),
            root,
            cgroup_parent: "/davit".to_owned(),
            allow_host_image: false,
            monitor_exe: PathBuf::from("/proc/self/exe"),
            network: Arc::new(Loopback),
            host_ip: "127.0.0.1".to_owned(),
            cdi_dirs: crate::cdi::DEFAULT_DIRS.map(PathBuf::from).to_vec(),
            open_files: None,
            handlers: BTreeSet::new(),
        }
    }
}

/// The runtime. Cheap to clone; the containers outlive every clone.
#[derive(Debug, Clone)]
pub struct Embedded {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    options: EmbeddedOptions,
    images: Arc<Images>,
    hierarchies: Hierarchies,
    cdi: crate::cdi::Registry,
    /// Keeps the descriptor behind `exe` open.
    _exe_mount: OwnedFd,
    exe: PathBuf,
    sandboxes: Mutex<HashMap<String, Arc<Sandbox>>>,
    containers: Mutex<HashMap<String, Arc<Container>>>,
    /// Counts starts and ends of containers.
    changes: tokio::sync::watch::Sender<u64>,
    /// One task per running container, which waits for its end.
    watchers: Mutex<JoinSet<()>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each critical section is a single step on the map, so a panic elsewhere leaves it sound.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn io_error(what: impl std::fmt::Display) -> impl FnOnce(std::io::Error) -> Error {
    move |error| Error::Internal(format!("{what}: {error}"))
}

/// Runs blocking work off the async threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|e| Error::Internal(format!("runtime task: {e}")))?
}

/// A new ID: 64 hexadecimal digits, as other runtimes give.
fn new_id() -> String {
    format!(
        "{}{}",
        uuid::Uuid::new_v4().simple(),
        uuid::Uuid::new_v4().simple()
    )
}

/// The program behind a mount that cannot be written to, so that a container whose program is a link to its monitor's
/// executable cannot change it (CVE-2019-5736). Without it no container is run.
fn protected_exe(path: &Path) -> Result<(PathBuf, OwnedFd)> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let readonly = crate::sys::MountAttr {
        set: nix::libc::MOUNT_ATTR_RDONLY,
        ..Default::default()
    };
    let failed = |error: std::io::Error| {
        Error::Unavailable(format!(
            "the embedded runtime cannot protect {} from its containers by a read-only mount (needs \
             CAP_SYS_ADMIN and a kernel from 5.12): {error}",
            path.display()
        ))
    };
    let mount = rustix::mount::open_tree(rustix::fs::CWD, path, flags);
    let mount = mount.map_err(|error| failed(error.into()))?;
    crate::sys::mount_setattr(&mount, &readonly, false).map_err(failed)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd()));
    Ok((path, mount))
}

impl Embedded {
    /// Opens the runtime's state and adopts the containers that still run. Needs root.
    pub async fn new(options: EmbeddedOptions) -> Result<Self> {
        let has_odd = |path: &Path| path.to_string_lossy().contains([',', ':', '\\']);
        if !options.root.is_absolute() || has_odd(&options.root) {
            return Err(Error::InvalidArgument(format!(
                "runtime directory {:?} must be absolute and without ',', ':' and '\\'",
                options.root
            )));
        }
        if !rustix::process::geteuid().is_root() {
            return Err(Error::Unavailable(
                "the embedded runtime needs root".to_owned(),
            ));
        }
        // Registries are spoken to with the one TLS provider of the program; someone may have chosen it already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let inner = blocking(move || Inner::open(options)).await?;
        let embedded = Embedded {
            inner: Arc::new(inner),
        };
        embedded.adopt().await?;
        Ok(embedded)
    }

    /// How many records of containers and pods there are below `root`, and which cannot be read. Changes nothing. Blocks.
    #[must_use]
    pub fn examine(root: &Path) -> (usize, Vec<String>) {
        let (mut whole, mut faults) = (0, Vec::new());
        for kind in ["containers", "sandboxes"] {
            for entry in std::fs::read_dir(root.join(kind))
                .into_iter()
                .flatten()
                .flatten()
            {
                match record::load::<serde_json::Value>(&entry.path()) {
                    // Its creation was interrupted: the next start clears it.
                    Ok(None) => {}
                    Ok(Some(_)) => whole += 1,
                    Err(error) => faults.push(format!(
                        "record of {kind}/{}: {error}",
                        entry.file_name().to_string_lossy()
                    )),
                }
            }
        }
        (whole, faults)
    }

    /// The image store, for the command line. Its methods block.
    #[must_use]
    pub fn images(&self) -> &Arc<Images> {
        &self.inner.images
    }

    fn container(&self, id: &str) -> Result<Arc<Container>> {
        lookup(&lock(&self.inner.containers), id)
            .ok_or_else(|| Error::NotFound(format!("container {id:?}")))
    }

    fn sandbox(&self, id: &str) -> Result<Arc<Sandbox>> {
        lookup(&lock(&self.inner.sandboxes), id)
            .ok_or_else(|| Error::NotFound(format!("sandbox {id:?}")))
    }

    fn containers_of(&self, sandbox: &str) -> Vec<Arc<Container>> {
        lock(&self.inner.containers)
            .values()
            .filter(|c| c.record().sandbox_id == sandbox)
            .cloned()
            .collect()
    }

    /// Waits for the container's end in the background, over a connection to its monitor.
    fn watch(&self, container: Arc<Container>, connection: connection::Connection) {
        let mut watchers = lock(&self.inner.watchers);
        while watchers.try_join_next().is_some() {}
        watchers.spawn(async move { container.follow(connection).await });
    }

    /// Reads the records of an earlier davit and connects to the monitors that still live.
    async fn adopt(&self) -> Result<()> {
        let this = self.clone();
        let ((sandboxes, remains), containers) = blocking(move || {
            let sandboxes = sandbox::load_all(&this.inner)?;
            let containers = container::load_all(&this.inner)?;
            Ok((sandboxes, containers))
        })
        .await?;
        self.collect_networks(&sandboxes).await;
        blocking(move || {
            remains.iter().for_each(sandbox::Remains::clear);
            Ok(())
        })
        .await?;
        lock(&self.inner.sandboxes).extend(sandboxes.into_iter().map(|s| (s.id().to_owned(), s)));
        let mut waiting = JoinSet::new();
        for container in containers {
            lock(&self.inner.containers).insert(container.record().id.clone(), container.clone());
            let this = self.clone();
            waiting.spawn(async move {
                if let Some(connection) = container.reconnect(&this.inner.hierarchies).await {
                    this.watch(container, connection);
                }
            });
        }
        while waiting.join_next().await.is_some() {}
        let this = self.clone();
        blocking(move || this.collect_layers()).await
    }

    /// Removes layers that no image and no container needs.
    fn collect_layers(&self) -> Result<()> {
        let used: HashSet<String> = lock(&self.inner.containers)
            .values()
            .flat_map(|c| c.record().layers.clone())
            .collect();
        self.inner.images.collect(&used).map_err(Error::from)
    }
}

/// By full ID, or by a beginning that only one has.
fn lookup<T>(map: &HashMap<String, Arc<T>>, id: &str) -> Option<Arc<T>> {
    if let Some(found) = map.get(id) {
        return Some(found.clone());
    }
    let mut matching = map
        .iter()
        .filter(|(full, _)| !id.is_empty() && full.starts_with(id));
    match (matching.next(), matching.next()) {
        (Some((_, found)), None) => Some(found.clone()),
        _ => None,
    }
}

impl Inner {
    fn open(options: EmbeddedOptions) -> Result<Self> {
        // Environments of containers are in here, their shared memory, setuid programs of images, and the control
        // sockets that give full power over containers.
        for dir in [
            options.root.clone(),
            options.run_dir.clone(),
            options.root.join("containers"),
            options.root.join("sandboxes"),
            options.run_dir.join("containers"),
            options.run_dir.join("sandboxes"),
        ] {
            private_dir(&dir, 0o700)
                .map_err(|e| io_error(format_args!("protect {}", dir.display()))(e.into()))?;
        }
        let images = Images::open(&options.root, options.allow_host_image)?;
        let (exe, exe_mount) = protected_exe(&options.monitor_exe)?;
        Ok(Inner {
            images: Arc::new(images),
            cdi: crate::cdi::Registry::new(options.cdi_dirs.clone()),
            hierarchies: Hierarchies::detect().map_err(|e| Error::Internal(e.to_string()))?,
            _exe_mount: exe_mount,
            exe,
            sandboxes: Mutex::default(),
            containers: Mutex::default(),
            changes: tokio::sync::watch::Sender::default(),
            watchers: Mutex::default(),
            options,
        })
    }
}

impl From<crate::image::Error> for Error {
    fn from(error: crate::image::Error) -> Self {
        use crate::image::Error as Image;
        match error {
            Image::Reference(error) => Error::InvalidArgument(error.to_string()),
            Image::NotFound(_) => Error::NotFound(error.to_string()),
            Image::HostImageForbidden => Error::FailedPrecondition(error.to_string()),
            other => Error::Internal(other.to_string()),
        }
    }
}
