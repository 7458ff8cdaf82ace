//! Where the node keeps its files. The names are those of the upstream node agent, because plugins, log collectors and
//! backup tools look for them (`/var/lib/kubelet`, `/var/log/pods`, `/var/log/containers`).

use davit_beneath::private_dir;
use std::path::{Path, PathBuf};

/// Mode of directories that only the node and its group may enter, as the original has it.
pub const PRIVATE_DIR: u32 = 0o750;

/// The directories of one node agent.
#[derive(Debug, Clone)]
pub struct Paths {
    root: PathBuf,
    pod_logs: PathBuf,
    container_logs: PathBuf,
}

impl Paths {
    /// `root` is the equivalent of `/var/lib/kubelet`, `pod_logs` of `/var/log/pods`; links for log collectors go to
    /// `containers` beside the latter.
    pub fn new(root: PathBuf, pod_logs: PathBuf) -> Self {
        let container_logs = pod_logs
            .parent()
            .unwrap_or(Path::new("/"))
            .join("containers");
        Self {
            root,
            pod_logs,
            container_logs,
        }
    }

    /// Makes the directories that other accounts of the machine may not enter, and closes those that are there. What
    /// is in them are Secrets, tokens, sockets that give power over the node, and volumes with setuid programs of
    /// containers.
    ///
    /// # Errors
    /// One cannot be made or changed.
    pub fn protect(&self) -> davit_beneath::Result<()> {
        private_dir(&self.root, PRIVATE_DIR)?;
        private_dir(self.pki(), 0o700)?;
        private_dir(&self.pod_logs, PRIVATE_DIR)?;
        for name in [
            "pods",
            "device-plugins",
            "plugins",
            "plugins_registry",
            "pod-resources",
            "pods-api",
        ] {
            private_dir(self.root.join(name), PRIVATE_DIR)?;
        }
        Ok(())
    }

    /// The root directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Directory of the node server's certificate.
    pub fn pki(&self) -> PathBuf {
        self.root.join("pki")
    }

    /// Directory of the records of images' pulls.
    pub fn image_manager(&self) -> PathBuf {
        self.root.join("image_manager")
    }

    /// Directory below which each pod has its own.
    pub fn pods(&self) -> PathBuf {
        self.root.join("pods")
    }

    /// Everything the node keeps for one pod.
    pub fn pod(&self, uid: &str) -> PathBuf {
        self.pods().join(uid)
    }

    /// Directory of one volume; `plugin` in the escaped form (`kubernetes.io~empty-dir`).
    pub fn volume(&self, uid: &str, plugin: &str, name: &str) -> PathBuf {
        self.pod(uid).join("volumes").join(plugin).join(name)
    }

    /// Link to the device of one volume; `plugin` in the escaped form (`kubernetes.io~csi`).
    pub fn volume_device(&self, uid: &str, plugin: &str, name: &str) -> PathBuf {
        self.pod(uid).join("volumeDevices").join(plugin).join(name)
    }

    /// Bind mount that stands for one `subPath` of one container.
    pub fn subpath(&self, uid: &str, volume: &str, container: &str, index: usize) -> PathBuf {
        self.pod(uid)
            .join("volume-subpaths")
            .join(volume)
            .join(container)
            .join(index.to_string())
    }

    /// Per-container directory (termination messages).
    pub fn container(&self, uid: &str, container: &str) -> PathBuf {
        self.pod(uid).join("containers").join(container)
    }

    /// The pod's `/etc/hosts`.
    pub fn hosts_file(&self, uid: &str) -> PathBuf {
        self.pod(uid).join("etc-hosts")
    }

    /// Directory below which each pod has its log directory.
    pub fn log_root(&self) -> &Path {
        &self.pod_logs
    }

    /// Log directory of a pod.
    pub fn pod_log_dir(&self, namespace: &str, name: &str, uid: &str) -> PathBuf {
        self.pod_logs.join(format!("{namespace}_{name}_{uid}"))
    }

    /// Directory of the links that log collectors follow.
    pub fn container_log_links(&self) -> &Path {
        &self.container_logs
    }

    /// Link for one container's current log.
    pub fn container_log_link(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
        id: &str,
    ) -> PathBuf {
        self.container_logs
            .join(format!("{pod}_{namespace}_{container}-{id}.log"))
    }
}
