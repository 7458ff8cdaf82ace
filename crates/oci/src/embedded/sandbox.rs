//! Pod sandboxes: namespaces that files keep alive, without any process of their own.

use super::record::{self, Namespaces, Pause, Proto, SandboxRecord};
use super::users::{self, Furnishing, Mapping};
use super::{Embedded, Inner, blocking, io_error, lock, new_id};
use crate::monitor::{
    PAUSE_ARG, Surroundings, kill_that_began, make_log_dir, now_nanos, start_ticks,
};
use crate::netdev;
use crate::network::PodNetwork;
use crate::runtime::{Error, Result};
use davit_beneath::{Procfs, remove_tree};
use davit_proto::cri::v1 as cri;
use futures::future::try_join_all;
use nix::sched::{CloneFlags, unshare};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Limit for one call to the pod network.
const NETWORK_LIMIT: Duration = Duration::from_secs(120);

/// A sandbox in memory.
#[derive(Debug)]
pub(super) struct Sandbox {
    id: String,
    dir: PathBuf,
    run_dir: PathBuf,
    record: Mutex<SandboxRecord>,
    /// One move of network devices at a time: held on blocking threads only.
    moving: Mutex<()>,
    /// One stop or removal at a time.
    pub(super) ending: tokio::sync::Mutex<()>,
}

fn options(config: &cri::PodSandboxConfig) -> cri::NamespaceOption {
    config
        .linux
        .as_ref()
        .and_then(|linux| linux.security_context.as_ref())
        .and_then(|context| context.namespace_options.clone())
        .unwrap_or_default()
}

fn is_host(mode: i32) -> bool {
    mode == cri::NamespaceMode::Node as i32
}

impl Sandbox {
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn record(&self) -> SandboxRecord {
        lock(&self.record).clone()
    }

    /// Bytes that containers have put into files that davit made for the pod, beside what such files have.
    pub(super) fn written(&self) -> u64 {
        const USUAL: u64 = 64 << 10;
        let size = |name: &str| {
            let file = fs::symlink_metadata(self.dir.join(name));
            file.map_or(0, |file| file.len().saturating_sub(USUAL))
        };
        size("resolv.conf") + size("hostname")
    }

    /// Directory with the pod's files.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Keeps others from moving network devices meanwhile.
    pub(super) fn moving(&self) -> std::sync::MutexGuard<'_, ()> {
        lock(&self.moving)
    }

    pub(super) fn is_ready(&self) -> bool {
        let record = self.record();
        !record.stopped && namespaces_alive(&record)
    }

    fn network(&self) -> Option<PodNetwork> {
        let record = self.record();
        let metadata = record.config.0.metadata.clone().unwrap_or_default();
        Some(PodNetwork {
            sandbox_id: self.id.clone(),
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            netns: record.namespaces.net?,
            annotations: record.config.0.annotations.clone(),
            ports: record.config.0.port_mappings,
            dns: record.config.0.dns_config,
            cgroup_parent: record
                .config
                .0
                .linux
                .map(|linux| linux.cgroup_parent)
                .unwrap_or_default(),
        })
    }

    pub(super) fn state(&self) -> i32 {
        let ready = self.is_ready();
        (if ready {
            cri::PodSandboxState::SandboxReady
        } else {
            cri::PodSandboxState::SandboxNotready
        }) as i32
    }

    pub(super) fn summary(&self) -> cri::PodSandbox {
        let record = self.record();
        let config = record.config.0;
        cri::PodSandbox {
            id: record.id,
            metadata: config.metadata,
            state: self.state(),
            created_at: record.created_at,
            labels: config.labels,
            annotations: config.annotations,
            runtime_handler: record.handler,
        }
    }

    pub(super) fn status(&self, host_ip: &str) -> cri::PodSandboxStatus {
        let record = self.record();
        let options = options(&record.config.0);
        let mut addresses = record.addresses.into_iter();
        let ip = if is_host(options.network) {
            host_ip.to_owned()
        } else {
            addresses.next().unwrap_or_default()
        };
        let summary = self.summary();
        cri::PodSandboxStatus {
            id: summary.id,
            metadata: summary.metadata,
            state: summary.state,
            created_at: summary.created_at,
            network: Some(cri::PodSandboxNetworkStatus {
                ip,
                additional_ips: addresses.map(|ip| cri::PodIp { ip }).collect(),
            }),
            linux: Some(cri::LinuxPodSandboxStatus {
                namespaces: Some(cri::Namespace {
                    options: Some(options),
                }),
            }),
            labels: summary.labels,
            annotations: summary.annotations,
            runtime_handler: summary.runtime_handler,
        }
    }
}

/// Whether the files still stand for namespaces (they do not after a reboot).
fn namespaces_alive(record: &SandboxRecord) -> bool {
    const NSFS_MAGIC: rustix::fs::FsWord = 0x6e73_6673;
    let files = &record.namespaces;
    [&files.user, &files.net, &files.ipc, &files.uts]
        .into_iter()
        .flatten()
        .all(|file| rustix::fs::statfs(file).is_ok_and(|stat| stat.f_type == NSFS_MAGIC))
}

/// Directories of a sandbox that has no record: remains of an interrupted creation.
pub(super) struct Remains {
    dir: PathBuf,
    run_dir: PathBuf,
}

impl Remains {
    /// Removes them, once the network is disconnected.
    pub(super) fn clear(&self) {
        release(&self.run_dir);
        let _ = remove_tree(&self.dir);
    }
}

/// Reads the records of an earlier davit.
pub(super) fn load_all(inner: &Inner) -> Result<(Vec<Arc<Sandbox>>, Vec<Remains>)> {
    let base = inner.options.root.join("sandboxes");
    let (mut found, mut remains) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(&base)
        .map_err(io_error(base.display()))?
        .flatten()
    {
        let id = entry.file_name().to_string_lossy().into_owned();
        let dir = entry.path();
        let run_dir = inner.options.run_dir.join("sandboxes").join(&id);
        match record::load::<SandboxRecord>(&dir) {
            Ok(Some(record)) => found.push(Arc::new(Sandbox {
                id,
                dir,
                run_dir,
                record: Mutex::new(record),
                moving: Mutex::default(),
                ending: tokio::sync::Mutex::default(),
            })),
            Ok(None) => remains.push(Remains { dir, run_dir }),
            Err(error) => {
                tracing::error!(sandbox = id, %error, "sandbox record cannot be read; left alone");
            }
        }
    }
    Ok((found, remains))
}

/// Unmounts and removes everything in a sandbox's run directory.
fn release(run_dir: &Path) {
    for name in ["net", "ipc", "uts", "pid", "user", "shm"] {
        let path = run_dir.join(name);
        while unmount(&path, UnmountFlags::DETACH).is_ok() {}
    }
    let _ = remove_tree(run_dir);
}

/// Makes the pod's namespaces in a thread that ends at once; the files keep them.
fn make_namespaces(namespaces: &Namespaces, furnishing: Furnishing) -> Result<()> {
    let mut flags = CloneFlags::empty();
    let mut pins = Vec::new();
    for (file, flag, name) in [
        (&namespaces.net, CloneFlags::CLONE_NEWNET, "net"),
        (&namespaces.ipc, CloneFlags::CLONE_NEWIPC, "ipc"),
        (&namespaces.uts, CloneFlags::CLONE_NEWUTS, "uts"),
    ] {
        if let Some(file) = file {
            fs::write(file, "").map_err(io_error(file.display()))?;
            flags |= flag;
            pins.push((file.clone(), format!("/proc/thread-self/ns/{name}")));
        }
    }
    let work = move || {
        unshare(flags).map_err(|e| Error::Internal(format!("make namespaces: {}", e.desc())))?;
        furnishing.apply()?;
        for (file, own) in pins {
            mount_bind(&own, &file)
                .map_err(|e| io_error(format_args!("keep {}", file.display()))(e.into()))?;
        }
        Ok(())
    };
    let thread = std::thread::Builder::new()
        .name("pod-namespaces".to_owned())
        .spawn(work);
    let thread = thread.map_err(io_error("thread"))?;
    thread
        .join()
        .map_err(|_| Error::Internal("making namespaces panicked".to_owned()))?
}

/// Sets a kernel setting of the pod's. `network` and `ipc`: whether the pod has such namespaces of its own.
pub(super) fn set_sysctl(name: &str, value: &str, network: bool, ipc: bool) -> Result<()> {
    // Only what belongs to the pod's own namespaces; anything else would change the host.
    const IPC: [&str; 4] = ["kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue."];
    let own = (network && name.starts_with("net."))
        || (ipc && IPC.iter().any(|prefix| name.starts_with(prefix)));
    // A slash in a name stands for a dot in the name of a file (interfaces: eth0/1).
    let swap = |c| match c {
        '.' => '/',
        '/' => '.',
        other => other,
    };
    let path: String = name.chars().map(swap).collect();
    if !own || path.split('/').any(|part| part.is_empty() || part == "..") {
        return Err(Error::InvalidArgument(format!(
            "sysctl {name} does not belong to a pod"
        )));
    }
    // Into procfs and nothing that may be mounted over a part of it.
    Procfs::of_host()
        .and_then(|host| host.write(Path::new("sys").join(path), value))
        .map_err(|e| io_error(format_args!("sysctl {name}"))(e.into()))
}

/// The pod's `resolv.conf`, as Kubernetes' runtimes write it.
fn resolv_conf(dns: &cri::DnsConfig) -> String {
    let mut text = String::new();
    if !dns.searches.is_empty() {
        text += &format!("search {}\n", dns.searches.join(" "));
    }
    for server in &dns.servers {
        text += &format!("nameserver {server}\n");
    }
    if !dns.options.is_empty() {
        text += &format!("options {}\n", dns.options.join(" "));
    }
    text
}

impl Embedded {
    pub(super) async fn run_sandbox(
        &self,
        config: cri::PodSandboxConfig,
        handler: &str,
    ) -> Result<String> {
        let handlers = &self.inner.options.handlers;
        if !handler.is_empty() && !handlers.contains(handler) {
            return Err(Error::InvalidArgument(format!(
                "failed to get sandbox runtime: no runtime for {handler:?} is configured"
            )));
        }
        if config.metadata.is_none() {
            return Err(Error::InvalidArgument(
                "sandbox configuration without metadata".to_owned(),
            ));
        }
        let (inner, handler) = (self.inner.clone(), handler.to_owned());
        let sandbox = blocking(move || create(&inner, config, handler)).await?;
        if let Some(pod) = sandbox.network() {
            let network = &self.inner.options.network;
            let attached = match tokio::time::timeout(NETWORK_LIMIT, network.attach(&pod)).await {
                Ok(result) => result.map_err(|e| {
                    let id = &sandbox.id;
                    Error::Internal(format!("failed to setup network for sandbox {id:?}: {e}"))
                }),
                Err(_) => Err(Error::DeadlineExceeded {
                    call: "attach network",
                    after: NETWORK_LIMIT,
                }),
            };
            match attached {
                Ok(addresses) => lock(&sandbox.record).addresses = addresses,
                Err(error) => {
                    self.undo_network(&pod).await;
                    release_pause(&sandbox.record());
                    release(&sandbox.run_dir);
                    let _ = remove_tree(&sandbox.dir);
                    return Err(error);
                }
            }
        }
        let saved = sandbox.clone();
        blocking(move || {
            record::save(&saved.dir, &saved.record()).map_err(io_error("write sandbox record"))
        })
        .await?;
        let id = sandbox.id.clone();
        lock(&self.inner.sandboxes).insert(id.clone(), sandbox);
        Ok(id)
    }

    /// After a sandbox that did not come to be. What this leaves goes at the next start.
    async fn undo_network(&self, pod: &PodNetwork) {
        let network = &self.inner.options.network;
        let sandbox = &pod.sandbox_id;
        match tokio::time::timeout(NETWORK_LIMIT, network.detach(pod)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(sandbox, %error, "cannot disconnect a sandbox that was not made");
            }
            Err(_) => tracing::warn!(sandbox, "disconnecting a sandbox that was not made hangs"),
        }
    }

    /// Disconnects what an earlier davit connected and did not come to record.
    pub(super) async fn collect_networks(&self, sandboxes: &[Arc<Sandbox>]) {
        let living = sandboxes.iter().filter(|s| {
            let record = s.record();
            !record.stopped && record.namespaces.net.is_some()
        });
        let living = living.map(|s| s.id.clone()).collect();
        let network = &self.inner.options.network;
        match tokio::time::timeout(NETWORK_LIMIT, network.collect(&living)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "leftovers of pod networks remain"),
            Err(_) => tracing::warn!("clearing leftovers of pod networks hangs"),
        }
    }

    /// Stops everything in the sandbox and lets its namespaces go.
    pub(super) async fn stop_sandbox(&self, sandbox: &Arc<Sandbox>) -> Result<()> {
        let _one = sandbox.ending.lock().await;
        let containers = self.containers_of(&sandbox.id);
        try_join_all(
            containers
                .iter()
                .map(|container| self.stop(container, Duration::ZERO)),
        )
        .await?;
        if sandbox.record().stopped {
            return Ok(());
        }
        if let Some(pod) = sandbox.network() {
            let held = sandbox.clone();
            let netns = pod.netns.clone();
            blocking(move || {
                let _one = held.moving();
                if let Err(error) = netdev::take_back(&netns, &held.dir) {
                    // With the namespace the kernel gives back what belongs to a machine.
                    tracing::warn!(sandbox = held.id, %error, "network devices are not given back");
                }
                Ok(())
            })
            .await?;
            match tokio::time::timeout(NETWORK_LIMIT, self.inner.options.network.detach(&pod)).await
            {
                Ok(result) => result.map_err(|e| {
                    let id = &sandbox.id;
                    Error::Internal(format!("failed to destroy network for sandbox {id:?}: {e}"))
                })?,
                Err(_) => {
                    return Err(Error::DeadlineExceeded {
                        call: "detach network",
                        after: NETWORK_LIMIT,
                    });
                }
            }
        }
        let sandbox = sandbox.clone();
        blocking(move || {
            release_pause(&sandbox.record());
            release(&sandbox.run_dir);
            lock(&sandbox.record).stopped = true;
            record::save(&sandbox.dir, &sandbox.record()).map_err(io_error("write sandbox record"))
        })
        .await
    }

    pub(super) async fn remove_sandbox(&self, sandbox: &Arc<Sandbox>) -> Result<()> {
        self.stop_sandbox(sandbox).await?;
        let containers = self.containers_of(&sandbox.id);
        try_join_all(containers.iter().map(|container| self.remove(container))).await?;
        let (inner, gone) = (self.inner.clone(), sandbox.clone());
        blocking(move || {
            remove_tree(&gone.dir).map_err(|e| io_error("remove sandbox")(e.into()))?;
            // The pod's own cgroup, which our containers made where it was missing. Stays if anything else is in it.
            let config = gone.record().config.0;
            let parent = config
                .linux
                .map(|linux| linux.cgroup_parent)
                .unwrap_or_default();
            if !parent.is_empty() && parent != inner.options.cgroup_parent {
                let _ = inner.hierarchies.cgroup(&parent).remove(Duration::ZERO);
            }
            Ok(())
        })
        .await?;
        lock(&self.inner.sandboxes).remove(&sandbox.id);
        Ok(())
    }
}

pub(super) fn absent_is_fine(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::NotFound {
        Ok(())
    } else {
        Err(error)
    }
}

fn release_pause(record: &SandboxRecord) {
    if let Some(pause) = &record.pause {
        kill_that_began(pause.pid, pause.start_ticks);
    }
}

fn create(inner: &Inner, config: cri::PodSandboxConfig, handler: String) -> Result<Arc<Sandbox>> {
    let id = new_id();
    let dir = inner.options.root.join("sandboxes").join(&id);
    let run_dir = inner.options.run_dir.join("sandboxes").join(&id);
    let created =
        fill(inner, &id, &dir, &run_dir, config).map(|record| SandboxRecord { handler, ..record });
    match created {
        Ok(record) => Ok(Arc::new(Sandbox {
            id,
            dir,
            run_dir,
            record: Mutex::new(record),
            moving: Mutex::default(),
            ending: tokio::sync::Mutex::default(),
        })),
        Err(error) => {
            release(&run_dir);
            let _ = remove_tree(&dir);
            Err(error)
        }
    }
}

fn fill(
    inner: &Inner,
    id: &str,
    dir: &Path,
    run_dir: &Path,
    config: cri::PodSandboxConfig,
) -> Result<SandboxRecord> {
    for path in [dir, run_dir] {
        fs::create_dir_all(path).map_err(io_error(path.display()))?;
    }
    let options = options(&config);
    let host_net = is_host(options.network);
    let host_ipc = is_host(options.ipc);
    let hostname = if config.hostname.is_empty() || host_net {
        nix::unistd::gethostname()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    } else {
        config.hostname.clone()
    };
    let mapping = Mapping::of(&options)?;
    if mapping.is_some() && (host_net || host_ipc || is_host(options.pid)) {
        return Err(Error::InvalidArgument(
            "a pod with users of its own cannot have the host's network, IPC or processes"
                .to_owned(),
        ));
    }
    let namespaces = Namespaces {
        user: mapping.is_some().then(|| run_dir.join("user")),
        net: (!host_net).then(|| run_dir.join("net")),
        ipc: (!host_ipc).then(|| run_dir.join("ipc")),
        uts: (!host_net).then(|| run_dir.join("uts")),
        pid: run_dir.join("pid"),
        shm: if host_ipc {
            PathBuf::from("/dev/shm")
        } else {
            run_dir.join("shm")
        },
    };
    let sysctls = config
        .linux
        .as_ref()
        .map(|linux| linux.sysctls.clone())
        .unwrap_or_default();
    let furnishing = Furnishing {
        hostname: namespaces.uts.is_some().then(|| hostname.clone()),
        network: namespaces.net.is_some(),
        ipc: namespaces.ipc.is_some(),
        sysctls: sysctls.into_iter().collect(),
    };
    match &mapping {
        Some(mapping) => users::make(inner, &namespaces, mapping, furnishing)?,
        None => make_namespaces(&namespaces, furnishing)?,
    }
    if !host_ipc {
        fs::create_dir_all(&namespaces.shm).map_err(io_error(namespaces.shm.display()))?;
        let flags = MountFlags::NOEXEC | MountFlags::NOSUID | MountFlags::NODEV;
        mount(
            "shm",
            &namespaces.shm,
            "tmpfs",
            flags,
            c"mode=1777,size=65536k",
        )
        .map_err(|e| io_error("mount shared memory")(e.into()))?;
    }
    let pause = if options.pid == cri::NamespaceMode::Pod as i32 {
        Some(start_pause(inner, &namespaces)?)
    } else {
        None
    };
    fs::write(dir.join("hostname"), format!("{hostname}\n")).map_err(io_error("write hostname"))?;
    match &config.dns_config {
        Some(dns) => fs::write(dir.join("resolv.conf"), resolv_conf(dns))
            .map_err(io_error("write resolv.conf"))?,
        None => {
            let host = fs::read("/etc/resolv.conf").unwrap_or_default();
            fs::write(dir.join("resolv.conf"), host).map_err(io_error("write resolv.conf"))?;
        }
    }
    if !config.log_directory.is_empty() {
        make_log_dir(Path::new(&config.log_directory)).map_err(io_error(&config.log_directory))?;
    }
    Ok(SandboxRecord {
        id: id.to_owned(),
        config: Proto(config),
        handler: String::new(),
        created_at: now_nanos(),
        hostname,
        namespaces,
        pause,
        addresses: Vec::new(),
        stopped: false,
    })
}

/// Starts the first process of a shared pid namespace and keeps the namespace by a file.
fn start_pause(inner: &Inner, namespaces: &Namespaces) -> Result<Pause> {
    let file = &namespaces.pid;
    let others = [&namespaces.net, &namespaces.ipc, &namespaces.uts];
    let around = Surroundings {
        user: namespaces.user.clone(),
        others: others.into_iter().flatten().cloned().collect(),
    };
    let input = serde_json::to_vec(&around).map_err(|e| Error::Internal(e.to_string()))?;
    let run = || -> std::io::Result<std::process::Output> {
        let mut child = std::process::Command::new(&inner.exe)
            .arg(PAUSE_ARG)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(&input)?;
        }
        child.wait_with_output()
    };
    let output = run().map_err(io_error("start pause process"))?;
    let pid: i32 = String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .map_err(|_| {
            let why = String::from_utf8_lossy(&output.stderr);
            Error::Internal(format!("pause process did not start: {}", why.trim()))
        })?;
    let pause = Pause {
        pid,
        start_ticks: start_ticks(pid).unwrap_or(0),
    };
    let keep = fs::write(file, "")
        .and_then(|()| Ok(mount_bind(format!("/proc/{pid}/ns/pid"), file)?))
        .map_err(io_error("keep pid namespace"));
    if let Err(error) = keep {
        let _ = crate::sys::kill(nix::unistd::Pid::from_raw(pid), nix::libc::SIGKILL);
        return Err(error);
    }
    Ok(pause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolv_conf_form() {
        let dns = cri::DnsConfig {
            servers: vec!["10.0.0.10".into(), "1.1.1.1".into()],
            searches: vec!["a.svc".into(), "svc".into()],
            options: vec!["ndots:5".into()],
        };
        assert_eq!(
            resolv_conf(&dns),
            "search a.svc svc\nnameserver 10.0.0.10\nnameserver 1.1.1.1\noptions ndots:5\n"
        );
    }

    #[test]
    fn sysctls_of_the_host_are_refused() {
        let refused = |name: &str, network, ipc| {
            let set = set_sysctl(name, "1", network, ipc);
            assert!(matches!(set, Err(Error::InvalidArgument(_))), "{name}");
        };
        for name in ["vm.swappiness", "kernel.hostname", "net..x", "net.../x"] {
            refused(name, true, true);
        }
        // Of a pod that has the host's namespaces.
        refused("net.ipv4.ip_forward", false, true);
        refused("kernel.shmmax", true, false);
    }
}
