//! `davit down`: ends what a cluster or node has left running, and removes it where asked to.

use crate::paths::{self, NodePaths};
use crate::{output, owner};
use anyhow::{Context, Result, bail};
use davit_beneath::mountinfo::{is_mount_point, mount_points, part_from_outside};
use davit_beneath::{Links, Root};
use davit_disk::Directories;
use davit_oci::{Cni, CniOptions, Embedded, EmbeddedOptions, Runtime};
use davit_proto::cri::v1::ContainerState;
use futures::future::join_all;
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// What a node's agent makes in its directory. Of `plugins`, which drivers share, only the part that is its own.
const OF_NODE: [&str; 13] = [
    "pods",
    "image_manager",
    "pods-api",
    "pod-resources",
    "device-plugins",
    "plugins/kubernetes.io",
    "plugins_registry",
    "pki",
    "cpu_manager_state",
    "memory_manager_state",
    "dra_manager_state",
    "allocations.log",
    AGENT_LOCK,
];
/// Held by the agent of a node, in the node's directory.
const AGENT_LOCK: &str = "allocations.lock";
/// Where a node's agent mounts in its directory, or has drivers mount.
const MOUNTED: [&str; 2] = ["pods", "plugins/kubernetes.io"];
/// Seconds that containers get to end by themselves.
const GRACE: u64 = 30;
/// Where plugins of CNI are.
const CNI_BIN_DIRS: &str = "/opt/cni/bin,/usr/lib/cni";
/// How many calls to the runtime are under way at once.
const PARALLEL: usize = 16;

/// Flags of `davit down`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Down {
    /// Where the cluster's or the node's state lives [default: /var/lib/davit as root, else ~/.local/share/davit]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Where the node's /var/lib/kubelet and /var/log/pods are [default: where the node had them]
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// How long containers get to end by themselves
    #[arg(long, value_name = "SECONDS", default_value_t = GRACE)]
    grace_period: u64,
    /// Delete everything besides: objects, volumes of class `standard` with their data, images, logs
    #[arg(long)]
    purge: bool,
    /// Directories of CNI plugins, if they connected the pods
    #[arg(
        long,
        value_name = "DIR,...",
        value_delimiter = ',',
        default_value = CNI_BIN_DIRS
    )]
    cni_bin_dir: Vec<PathBuf>,
}

impl Down {
    /// What ends a cluster or node of these directories.
    pub(crate) fn of(data_dir: PathBuf, root: Option<PathBuf>, purge: bool) -> Self {
        Self {
            data_dir: Some(data_dir),
            root,
            grace_period: GRACE,
            purge,
            cni_bin_dir: CNI_BIN_DIRS.split(',').map(PathBuf::from).collect(),
        }
    }
}

pub(crate) async fn run(args: Down) -> Result<()> {
    let data_dir = paths::data_dir(args.data_dir.as_deref())?;
    if !paths::holds_cluster(&data_dir) {
        bail!(
            "there is no cluster in {}; --data-dir names another directory",
            data_dir.display()
        );
    }
    for command in owner::stop_all(&data_dir).await? {
        println!("stopped `davit {command}`");
    }
    let place = StoppedCluster::new(data_dir, args.root.as_deref(), args.cni_bin_dir)?;
    let ended = place.end(Duration::from_secs(args.grace_period)).await?;
    println!("ended {}", output::count(ended, "container"));
    if args.purge {
        place.purge().await?;
        println!("removed what was in {}", place.data_dir.display());
    }
    Ok(())
}

/// Where a cluster or node is that does not run.
#[derive(Debug, Clone)]
pub(crate) struct StoppedCluster {
    data_dir: PathBuf,
    node: NodePaths,
    cni_bin_dirs: Vec<PathBuf>,
}

impl StoppedCluster {
    pub(crate) fn new(
        data_dir: PathBuf,
        root: Option<&Path>,
        cni_bin_dirs: Vec<PathBuf>,
    ) -> Result<Self> {
        let node = NodePaths::of_node_in(&data_dir, root)?;
        Ok(Self {
            data_dir,
            node,
            cni_bin_dirs,
        })
    }

    /// Ends all containers, takes down what is mounted for their pods and how they are connected. What is stored stays: the
    /// next start is one after a reboot. Answers how many containers ran.
    ///
    /// # Errors
    /// Something does not end, or is used by another davit.
    pub(crate) async fn end(&self, grace: Duration) -> Result<usize> {
        let runtime_dir = paths::runtime_dir(&self.data_dir);
        let ended = if runtime_dir.join("sandboxes").is_dir() {
            self.end_pods(runtime_dir, grace).await?
        } else {
            0
        };
        let this = self.clone();
        let freed = tokio::task::spawn_blocking(move || this.free());
        freed.await.context("mounts and links")??;
        Ok(ended)
    }

    /// The directory of the node, where an agent of davit has been and none is. Another's, davit's with another data directory
    /// or a kubelet's, is left alone. Held as long as the answer, so that none begins meanwhile.
    fn node_dir(&self) -> Option<(PathBuf, File)> {
        let dir = self.node.kubelet();
        // Pods that had the directory as a volume may have put a FIFO there.
        let lock = davit_beneath::open_own_for_writing(dir.join(AGENT_LOCK)).ok()?;
        lock.try_lock().is_ok().then_some((dir, lock))
    }

    async fn end_pods(&self, runtime_dir: PathBuf, grace: Duration) -> Result<usize> {
        let mut options = EmbeddedOptions::new(runtime_dir);
        options.network = Arc::new(Cni::new(CniOptions {
            conf_dir: self.node.cni_conf(),
            bin_dirs: self.cni_bin_dirs.clone(),
            cache_dir: self.data_dir.join("cni/results"),
            wished_addresses: false,
        }));
        let runtime = Embedded::new(options).await.context("embedded runtime")?;
        let containers = runtime.list_containers(None).await?;
        let running = |c: &&davit_proto::cri::v1::Container| {
            c.state == ContainerState::ContainerRunning as i32
        };
        let running: Vec<&str> = containers
            .iter()
            .filter(running)
            .map(|c| c.id.as_str())
            .collect();
        for some in running.chunks(PARALLEL) {
            let stops = some.iter().map(|id| runtime.stop_container(id, grace));
            for stopped in join_all(stops).await {
                stopped.context("cannot end a container")?;
            }
        }
        let sandboxes = runtime.list_pod_sandboxes(None).await?;
        for some in sandboxes.chunks(PARALLEL) {
            let removals = some.iter().map(|sandbox| async {
                runtime.stop_pod_sandbox(&sandbox.id).await?;
                runtime.remove_pod_sandbox(&sandbox.id).await
            });
            for removed in join_all(removals).await {
                removed.context("cannot remove a pod")?;
            }
        }
        Ok(running.len())
    }

    /// Takes down what is mounted, the devices of volumes, and davit's network. Blocks.
    fn free(&self) -> Result<()> {
        if !paths::is_root() {
            return Ok(());
        }
        unmount_below(&paths::runtime_dir(&self.data_dir))?;
        if let Some((dir, _held)) = self.node_dir() {
            for part in MOUNTED {
                unmount_below(&dir.join(part))?;
            }
            release(&dir.join("pods"))?;
            // Devices of images hold the room of files that are removed.
            let volumes = Directories::at(paths::local_volumes(&self.data_dir));
            volumes.detach_all().context("devices of volumes")?;
        }
        davit_network::remove(&self.data_dir).context("the pods' network")
    }

    /// Removes everything that [`Self::end`] has left.
    ///
    /// # Errors
    /// Something is mounted there all the same, or cannot be removed.
    pub(crate) async fn purge(&self) -> Result<()> {
        let this = self.clone();
        tokio::task::spawn_blocking(move || this.remove())
            .await
            .context("removal")?
    }

    fn remove(&self) -> Result<()> {
        let node = self.node_dir();
        let dirs = node.iter().map(|(dir, _)| dir).chain([&self.data_dir]);
        for dir in dirs {
            if let Some(mount) = mounts_below(dir)?.pop() {
                bail!("{} is mounted: nothing is removed", mount.display());
            }
        }
        if let Some((kubelet, _held)) = node {
            remove_logs(&self.node.pod_logs(), &kubelet)?;
            for name in OF_NODE {
                remove_own(&kubelet, Path::new(name))?;
            }
            for dir in [kubelet.join("plugins"), kubelet] {
                // Others may have something there.
                let _kept = std::fs::remove_dir(dir);
            }
        }
        davit_network::release_range(&self.data_dir).context("the range of pods")?;
        // It may be somebody's home: what is not davit's stays, and the directory with it.
        let (mut made, others) = paths::made_in(&self.data_dir)?;
        // What says so goes last: somebody may have to try again.
        made.sort_by_key(|name| name == paths::MARK);
        for name in made {
            remove_own(&self.data_dir, Path::new(&name))?;
        }
        for name in others {
            let path = self.data_dir.join(name);
            eprintln!("davit: {} was there before davit and stays", path.display());
        }
        let _kept = std::fs::remove_dir(&self.data_dir);
        Ok(())
    }
}

/// Removes the logs of the node's pods, and links to them. Pods that had these directories as volumes may have put links in
/// their places: what these lead to stays.
fn remove_logs(logs: &Path, kubelet: &Path) -> Result<()> {
    let pods: BTreeSet<OsString> = names(&kubelet.join("pods")).into_iter().collect();
    for name in names(logs) {
        let bytes = name.as_encoded_bytes();
        let uid = bytes.rsplit(|byte| *byte == b'_').next();
        if uid.is_some_and(|uid| pods.contains(OsStr::from_bytes(uid))) {
            remove(
                Root::open_itself(logs, Links::Refused),
                logs,
                Path::new(&name),
            )?;
        }
    }
    let links = logs.with_file_name("containers");
    for name in names(&links) {
        let Ok(dir) = Root::open_itself(&links, Links::Refused) else {
            break;
        };
        let leads = dir.read_link(&name);
        if leads.is_ok_and(|to| to.starts_with(logs) && !to.exists()) {
            let _gone = dir.remove_file(&name);
        }
    }
    Ok(())
}

/// Entries of a directory that are looked at.
const MAX_NAMES: usize = 1_000_000;

/// What is in a directory; nothing where a link is in its place.
fn names(dir: &Path) -> Vec<OsString> {
    let opened = Root::open_itself(dir, Links::Refused);
    let entries = opened.and_then(|dir| dir.list("", MAX_NAMES));
    let entries = entries.into_iter().flatten();
    entries.map(|entry| entry.name).collect()
}

/// Removes a file or a directory with what is in it, below a directory, without following links: what is behind one stays, and
/// that is said. What is not there is removed. `path` is for words.
fn remove(dir: davit_beneath::Result<Root>, path: &Path, name: &Path) -> Result<()> {
    let shown = path.join(name);
    match dir.and_then(|dir| dir.remove_tree(name)) {
        Err(davit_beneath::Error::Escapes(_)) => {
            eprintln!("davit: {} is behind a link and stays", shown.display());
            Ok(())
        }
        Err(error) if !error.is_not_found() => {
            Err(error).with_context(|| format!("cannot remove {}", shown.display()))
        }
        _ => Ok(()),
    }
}

/// The same in a directory of davit's own, which may itself be a link of the administrator's.
fn remove_own(dir: &Path, name: &Path) -> Result<()> {
    remove(Root::open(dir, Links::Refused), dir, name)
}

/// What is mounted below a directory, the deepest last. The directory itself may be a file system of the administrator's.
fn mounts_below(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut all = mount_points().context("cannot read what is mounted")?;
    all.retain(|point| point.starts_with(dir) && point != dir);
    Ok(all)
}

/// Takes back that a directory was bound to itself, to be shared. A file system of its own that is mounted there stays.
fn release(dir: &Path) -> Result<()> {
    let device = |path: &Path| std::fs::metadata(path).map(|meta| meta.dev()).ok();
    let is_mounted = is_mount_point(dir).context("cannot know what is mounted")?;
    if is_mounted && device(dir) == dir.parent().and_then(device) {
        umount2(dir, MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH)
            .with_context(|| format!("cannot unmount {}", dir.display()))?;
    }
    Ok(())
}

/// Takes down what is mounted below a directory. What is busy goes when it is no longer.
fn unmount_below(dir: &Path) -> Result<()> {
    part_from_outside(dir).context("cannot part mounts from those of the host")?;
    // Later mounts may stand on earlier ones.
    for point in mounts_below(dir)?.iter().rev() {
        let plain = umount2(point, MntFlags::UMOUNT_NOFOLLOW);
        let flags = MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH;
        match plain.or_else(|_| umount2(point, flags)) {
            // What is mounted on a shared mount is so on its peers, too, and goes from all of them at once.
            Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => {}
            failed => failed.with_context(|| format!("cannot unmount {}", point.display()))?,
        }
    }
    match mounts_below(dir)?.pop() {
        Some(left) => bail!("{} is still mounted", left.display()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn what_links_lead_to_stays() {
        let tmp = tempfile::tempdir().unwrap();
        let (kubelet, log, home) = (
            tmp.path().join("kubelet"),
            tmp.path().join("log"),
            tmp.path().join("home"),
        );
        let make = |dir: &Path| std::fs::create_dir_all(dir).unwrap();
        make(&kubelet.join("pods/u"));
        make(&log.join("pods/ns_p_u/c"));
        make(&log.join("containers"));
        make(&home.join("alice/kubernetes.io"));
        let old = log.join("containers/p_ns_c-1.log");
        symlink(log.join("pods/ns_p_u/c/0.log"), &old).unwrap();
        remove_logs(&log.join("pods"), &kubelet).unwrap();
        assert!(!log.join("pods/ns_p_u").exists() && !old.is_symlink());

        // a pod that has both directories as volumes
        for place in [kubelet.join("pods"), log.join("pods")] {
            std::fs::remove_dir_all(&place).unwrap();
            symlink(&home, &place).unwrap();
        }
        symlink(home.join("alice"), kubelet.join("plugins")).unwrap();
        remove_logs(&log.join("pods"), &kubelet).unwrap();
        for name in OF_NODE {
            remove_own(&kubelet, Path::new(name)).unwrap();
        }
        assert!(home.join("alice/kubernetes.io").is_dir());
        assert!(!kubelet.join("pods").is_symlink());
    }
}
