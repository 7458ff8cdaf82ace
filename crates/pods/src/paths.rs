//! Where the node keeps its files. The names are those of the upstream node agent, because plugins, log collectors and
//! backup tools look for them (`/var/lib/kubelet`, `/var/log/pods`, `/var/log/containers`).

use davit_beneath::{Links, Root, private_dir, private_dir_below, private_dir_itself};
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
    /// containers. Pods that have the directory around them as a volume may have put links in their places: none is followed.
    ///
    /// # Errors
    /// One cannot be made or changed, or is a link.
    pub fn protect(&self) -> davit_beneath::Result<()> {
        private_dir(&self.root, PRIVATE_DIR)?;
        private_dir_itself(self.pki(), 0o700)?;
        private_dir_itself(&self.pod_logs, PRIVATE_DIR)?;
        for name in [
            "pods",
            "device-plugins",
            "plugins",
            "plugins_registry",
            "pod-resources",
            "pods-api",
        ] {
            private_dir_itself(self.root.join(name), PRIVATE_DIR)?;
        }
        Ok(())
    }

    /// The directory of the links that log collectors follow, held open. It is made where nothing is; a link in its place is
    /// not followed.
    ///
    /// # Errors
    /// A link is there, or what the kernel says.
    pub fn open_container_logs(&self) -> davit_beneath::Result<Root> {
        let above = self.container_logs.parent().unwrap_or(Path::new("/"));
        let name = self.container_logs.file_name().unwrap_or_default();
        Root::open(above, Links::Refused)?.mkdir_all(name, 0o755)
    }

    /// Makes a directory below the root that only the node and its group may enter. Pods that have the root as a volume may
    /// have put links there: none is followed.
    ///
    /// # Errors
    /// A link on the way, or what the kernel says.
    pub fn make_dir(&self, dir: &Path) -> davit_beneath::Result<Root> {
        private_dir_below(&self.root, dir, PRIVATE_DIR)
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

    /// Everything the node keeps for one pod. What a runtime says is a pod's UID is one name, whatever it says.
    pub fn pod(&self, uid: &str) -> PathBuf {
        let name = match uid {
            "" | "." | ".." => "~".to_owned(),
            uid => uid.replace(['/', '\0'], "~"),
        };
        self.pods().join(name)
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

    /// The name of the link for one container's current log.
    pub fn container_log_link(namespace: &str, pod: &str, container: &str, id: &str) -> String {
        format!("{pod}_{namespace}_{container}-{id}.log")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Labels of a runtime's sandboxes, of which the directories are removed.
    #[test]
    fn a_pods_directory_is_in_that_of_all_pods() {
        let paths = Paths::new("/r".into(), "/l/pods".into());
        for uid in ["", ".", "..", "/etc", "../../etc", "a/../../b", "a\0b", "/"] {
            let dir = paths.pod(uid);
            assert_eq!(dir.parent(), Some(paths.pods().as_path()), "{uid}");
            assert!(dir.file_name().is_some(), "{uid}");
        }
        assert_eq!(paths.pod("u-1"), Path::new("/r/pods/u-1"));
    }
}
