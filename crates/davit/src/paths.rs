//! Where things live on disk.

use anyhow::{Context, Result};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
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

/// Where a node keeps the volumes of davit's own provisioner unless told otherwise (`--volumes-dir`).
pub(crate) fn local_volumes(data_dir: &Path) -> PathBuf {
    data_dir.join("volumes")
}

/// Where the embedded runtime keeps images and containers.
pub(crate) fn runtime_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("runtime")
}

/// Whether a cluster or node has been in a data directory.
pub(crate) fn holds_cluster(data_dir: &Path) -> bool {
    ["locks", "store", "runtime"]
        .iter()
        .any(|part| data_dir.join(part).is_dir())
}

/// What davit puts into its data directory.
const OWN: [&str; 20] = [
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
    "admin.kubeconfig",
    "node.kubeconfig",
    "scheduler.kubeconfig",
    "controllers.kubeconfig",
    NODE_ROOT,
    NODE_NAME,
    MARK,
];

/// Says which names in the data directory are davit's: in a directory that holds more (`/var/lib`, a home) others may have
/// used the same ones.
pub(crate) const MARK: &str = ".davit";
/// Says below which root the node of the data directory has its files, for commands that come when it is gone.
const NODE_ROOT: &str = "node-root";
/// Says what the node of the data directory is called.
pub(crate) const NODE_NAME: &str = "node-name";
/// Bytes of a path.
const PATH_LIMIT: u64 = 4096;
/// What commands lock, below `locks`.
const OF_COMMANDS: [&str; 3] = ["up", "node", "server"];
/// In the mark: everything of a name in [`OWN`].
const ALL: &str = "*";
/// Bytes of a mark.
const MARK_LIMIT: u64 = 4096;

/// Whether davit puts something of this name into its data directory.
fn is_own(name: &str) -> bool {
    OWN.contains(&name)
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let name = |entry: std::fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    entries.map(name).collect()
}

/// Whether a davit has run there that wrote nothing down: each has left a file named after its command.
fn was_davits(dir: &Path) -> bool {
    let locks = dir.join("locks");
    OF_COMMANDS.iter().any(|name| locks.join(name).is_file())
}

/// Writes down what in the data directory is going to be davit's, unless that is written down. Of what was there before
/// davit nothing is; where an older davit has been, which wrote nothing down, everything that looks like it.
fn mark(dir: &Path, names: &[String], is_shared: bool) -> Result<()> {
    if names.iter().any(|name| name == MARK) {
        return Ok(());
    }
    let made: Vec<&str> = if is_shared && !was_davits(dir) {
        let is_new = |own: &&str| !names.iter().any(|name| name == own);
        OWN.into_iter().filter(is_new).collect()
    } else {
        vec![ALL]
    };
    davit_beneath::write_private(dir.join(MARK), made.join("\n").as_bytes())
        .with_context(|| format!("data directory {}", dir.display()))
}

/// What in a data directory davit has made, and what only has a name like it.
///
/// # Errors
/// What was written down about it cannot be read.
pub(crate) fn made_in(dir: &Path) -> Result<(Vec<String>, Vec<String>)> {
    let present = names(dir);
    let made = match davit_beneath::read_own(dir.join(MARK), MARK_LIMIT) {
        Ok(text) => String::from_utf8_lossy(&text).into_owned(),
        // An older davit has written nothing down.
        Err(error) if error.is_not_found() => {
            let is_shared = present.iter().any(|name| !is_own(name));
            (if is_shared && !was_davits(dir) {
                MARK
            } else {
                ALL
            })
            .to_owned()
        }
        Err(error) => return Err(error).with_context(|| format!("{MARK} in {}", dir.display())),
    };
    let is_made = |name: &String| made.lines().any(|line| line == ALL || line == name);
    Ok(present
        .into_iter()
        .filter(|name| is_own(name))
        .partition(is_made))
}

/// Makes the data directory, or closes one that is there to other accounts. Should it hold anything besides what davit
/// puts there, it may be somebody else's (`/var/lib`, a home): then its mode stays, and only the directories in it are
/// closed, each by the component whose it is.
///
/// # Errors
/// It belongs to another account.
pub(crate) fn protect_data_dir(dir: &Path) -> Result<()> {
    refuse_others(dir)?;
    let names = names(dir);
    let foreign = names.iter().find(|name| !is_own(name));
    if let Some(name) = foreign {
        mark(dir, &names, true)?;
        tracing::info!(
            dir = %dir.display(), %name,
            "the data directory holds more than davit's data; who may list it is left as it is"
        );
        return Ok(());
    }
    davit_beneath::private_dir(dir, 0o700)
        .with_context(|| format!("data directory {}", dir.display()))?;
    mark(dir, &names, false)
}

/// Refuses a directory of another account than root's and our own: whose it is could put what he likes in the place of
/// anything in it. What is not there yet is nobody's.
///
/// # Errors
/// It belongs to another account.
pub(crate) fn refuse_others(dir: &Path) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    let owner = match std::fs::metadata(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        other => other.with_context(|| dir.display().to_string())?.uid(),
    };
    Ok(davit_beneath::ours(dir, owner)?)
}

/// The root of a node that was given none.
fn default_root(data_dir: &Path) -> PathBuf {
    if is_root() {
        PathBuf::from("/")
    } else {
        data_dir.join("root")
    }
}

/// The root that the node of a data directory has written down.
fn written_root(data_dir: &Path) -> Result<Option<PathBuf>> {
    match davit_beneath::read_own(data_dir.join(NODE_ROOT), PATH_LIMIT) {
        Ok(path) => Ok(Some(PathBuf::from(OsString::from_vec(path)))),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error).with_context(|| format!("{NODE_ROOT} in {}", data_dir.display())),
    }
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
            None => default_root(data_dir),
        };
        refuse_others(&root)?;
        Ok(Self { root })
    }

    /// Those of the node that has been in a data directory: below `asked`, or where that node had them.
    ///
    /// # Errors
    /// As [`Self::new`], and if what is written down cannot be read.
    pub(crate) fn of_node_in(data_dir: &Path, asked: Option<&Path>) -> Result<Self> {
        let written = written_root(data_dir)?;
        Self::new(asked.or(written.as_deref()), data_dir)
    }

    /// Writes down in the data directory where they are, unless one would look for them there.
    ///
    /// # Errors
    /// It cannot be written, or what is there not read.
    pub(crate) fn write_down(&self, data_dir: &Path) -> Result<()> {
        let known = written_root(data_dir)?.unwrap_or_else(|| default_root(data_dir));
        if known == self.root {
            return Ok(());
        }
        davit_beneath::write_private(data_dir.join(NODE_ROOT), self.root.as_os_str().as_bytes())
            .with_context(|| format!("{NODE_ROOT} in {}", data_dir.display()))
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
    fn what_was_there_before_davit_is_not_davits() {
        let tmp = tempfile::tempdir().unwrap();
        let made = |dir: &Path| {
            let (mut made, mut others) = made_in(dir).unwrap();
            made.sort();
            others.sort();
            (made, others)
        };
        let dir = |name: &str, before: &[&str]| {
            let dir = tmp.path().join(name);
            for name in before {
                std::fs::create_dir_all(dir.join(name)).unwrap();
            }
            dir
        };
        // A home: the user's own `volumes`, and what davit makes later.
        let home = dir("home", &["volumes", "letters"]);
        std::fs::write(home.join("prod.kubeconfig"), "").unwrap();
        protect_data_dir(&home).unwrap();
        for name in ["locks", "store"] {
            std::fs::create_dir(home.join(name)).unwrap();
        }
        protect_data_dir(&home).unwrap();
        let expected = [".davit", "locks", "store"].map(str::to_owned).to_vec();
        assert_eq!(made(&home), (expected, vec!["volumes".to_owned()]));
        // Nothing but davit's, from the beginning or from an older davit.
        let own = dir("own", &[]);
        protect_data_dir(&own).unwrap();
        std::fs::create_dir(own.join("volumes")).unwrap();
        assert_eq!(made(&own).0, [".davit", "volumes"]);
        let older = dir("older", &["locks", "volumes", "letters"]);
        std::fs::write(older.join("locks/node"), "").unwrap();
        assert_eq!(made(&older).0, ["locks", "volumes"]);
        let none = dir("none", &["root", "letters"]);
        assert_eq!(made(&none), (Vec::new(), vec!["root".to_owned()]));
    }

    #[test]
    fn a_directory_of_another_account_is_refused() {
        if !is_root() {
            println!("skipped: giving directories away needs root");
            return;
        }
        let tmp = tempfile::tempdir().unwrap();
        let dir = tmp.path().join("dir");
        protect_data_dir(&dir).unwrap();
        NodePaths::new(Some(&dir), tmp.path()).unwrap();
        std::os::unix::fs::chown(&dir, Some(1234), None).unwrap();
        // Also where it holds more than davit's own.
        for name in ["store", "somebody-elses"] {
            std::fs::create_dir(dir.join(name)).unwrap();
            let error = protect_data_dir(&dir).unwrap_err().to_string();
            assert!(error.contains("belongs to user 1234"), "{error}");
        }
        NodePaths::new(Some(&dir), tmp.path()).unwrap_err();
    }

    #[test]
    fn where_a_node_was_is_known_afterwards() {
        let tmp = tempfile::tempdir().unwrap();
        let of = |asked| NodePaths::of_node_in(tmp.path(), asked).unwrap().kubelet();
        let nowhere = NodePaths::new(None, tmp.path()).unwrap();
        assert_eq!(of(None), nowhere.kubelet());
        nowhere.write_down(tmp.path()).unwrap();
        assert!(!tmp.path().join(NODE_ROOT).exists());
        let node = NodePaths::new(Some(&tmp.path().join("a b")), tmp.path()).unwrap();
        node.write_down(tmp.path()).unwrap();
        assert_eq!(of(None), node.kubelet());
        let other = tmp.path().join("other");
        assert_eq!(of(Some(&other)), other.join("var/lib/kubelet"));
        assert!(
            made_in(tmp.path())
                .unwrap()
                .0
                .contains(&NODE_ROOT.to_owned())
        );
    }

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
