//! Where things live on disk.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// Whether this process runs as root.
pub(crate) fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// The data directory: as asked for, or the default of this user.
pub(crate) fn data_dir(asked: Option<&Path>) -> Result<PathBuf> {
    let dir = match asked {
        Some(dir) => dir.to_owned(),
        None => default_data_dir()
            .context("no home directory; name a data directory with --data-dir")?,
    };
    std::path::absolute(&dir).with_context(|| format!("data directory {}", dir.display()))
}

fn default_data_dir() -> Option<PathBuf> {
    if is_root() {
        return Some("/var/lib/davit".into());
    }
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".local/share"));
    std::env::var_os("XDG_DATA_HOME")
        .map(PathBuf::from)
        .or_else(home)
        .map(|dir| dir.join("davit"))
}

/// The administrator's kubeconfig below a data directory.
pub(crate) fn admin_kubeconfig(data_dir: &Path) -> PathBuf {
    data_dir.join("admin.kubeconfig")
}

/// The kubeconfig to use when none is named: `KUBECONFIG`, then the davit cluster of this machine, then `~/.kube/config`.
pub(crate) fn find_kubeconfig(asked: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = asked {
        return Ok(path.to_owned());
    }
    let from_env = std::env::var_os("KUBECONFIG").filter(|v| !v.is_empty());
    let first_of_env = from_env.and_then(|list| std::env::split_paths(&list).next());
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".kube/config"));
    let local = default_data_dir().map(|dir| admin_kubeconfig(&dir));
    // Under kubectl the same cluster is asked as kubectl asks.
    let after_env = if crate::plugin::is_running() {
        [home, local]
    } else {
        [local, home]
    };
    [first_of_env]
        .into_iter()
        .chain(after_env)
        .flatten()
        .find(|path| path.is_file())
        .context("no kubeconfig found; start a cluster with `davit up`, or name one with --kubeconfig FILE")
}

/// What davit puts into its data directory, beside kubeconfigs.
const OWN: [&str; 13] = [
    "locks",
    "store",
    "pki",
    "runtime",
    "node-pki",
    "sim",
    "cni",
    "network",
    "root",
    "demo-devices",
    "volumes",
    "api-server",
    "audit.log",
];

/// Whether davit puts something of this name into its data directory.
pub(crate) fn is_own(name: &str) -> bool {
    OWN.contains(&name) || name.ends_with(".kubeconfig")
}

/// Makes the data directory, or closes one that is there to other accounts. Should it hold anything besides what davit
/// puts there, it may be somebody else's (`/var/lib`, a home): then its mode stays, and only the directories in it are
/// closed, each by the component whose it is.
pub(crate) fn protect_data_dir(dir: &Path) -> Result<()> {
    let foreign = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .find(|name| !is_own(name));
    if let Some(name) = foreign {
        tracing::info!(
            dir = %dir.display(), %name,
            "the data directory holds more than davit's data; who may list it is left as it is"
        );
        return Ok(());
    }
    davit_beneath::private_dir(dir, 0o700)
        .with_context(|| format!("data directory {}", dir.display()))
}

/// The directories of a node, all below one root: `/` on a real node.
#[derive(Debug, Clone)]
pub(crate) struct NodePaths {
    root: PathBuf,
}

impl NodePaths {
    /// Below `asked`, or `/` as root, or the data directory otherwise.
    pub(crate) fn new(asked: Option<&Path>, data_dir: &Path) -> Result<Self> {
        let root = match asked {
            Some(root) => {
                std::path::absolute(root).with_context(|| format!("root {}", root.display()))?
            }
            None if is_root() => PathBuf::from("/"),
            None => data_dir.join("root"),
        };
        Ok(Self { root })
    }

    /// `/var/lib/kubelet`
    pub(crate) fn kubelet(&self) -> PathBuf {
        self.root.join("var/lib/kubelet")
    }

    /// `/var/log/pods`
    pub(crate) fn pod_logs(&self) -> PathBuf {
        self.root.join("var/log/pods")
    }

    /// `/etc/cdi` and `/var/run/cdi`
    pub(crate) fn cdi(&self) -> Vec<PathBuf> {
        vec![self.root.join("etc/cdi"), self.root.join("var/run/cdi")]
    }

    /// `/etc/cni/net.d`
    pub(crate) fn cni_conf(&self) -> PathBuf {
        self.root.join("etc/cni/net.d")
    }

    /// `/etc/kubernetes/manifests`
    pub(crate) fn static_pods(&self) -> PathBuf {
        self.root.join("etc/kubernetes/manifests")
    }
}

/// The name of this host, in the form that node names have.
pub(crate) fn host_name() -> Result<String> {
    let name = nix::unistd::gethostname().context("host name")?;
    let name = name.to_string_lossy().trim().to_ascii_lowercase();
    anyhow::ensure!(
        !name.is_empty(),
        "this host has no name; give the node one with --node-name NAME"
    );
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_a_data_directory_of_our_own_is_closed() {
        let tmp = tempfile::tempdir().unwrap();
        let mode = |dir: &Path| std::fs::metadata(dir).unwrap().permissions().mode() & 0o777;
        let open = |dir: &Path| {
            std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
        };
        let own = tmp.path().join("new");
        protect_data_dir(&own).unwrap();
        assert_eq!(mode(&own), 0o700);
        open(&own);
        for name in ["store", "pki", "runtime"] {
            std::fs::create_dir(own.join(name)).unwrap();
        }
        std::fs::write(own.join("scheduler.kubeconfig"), "").unwrap();
        protect_data_dir(&own).unwrap();
        assert_eq!(mode(&own), 0o700);
        // Like /var/lib, which others need.
        open(&own);
        std::fs::create_dir(own.join("dpkg")).unwrap();
        protect_data_dir(&own).unwrap();
        assert_eq!(mode(&own), 0o755);
    }
}
