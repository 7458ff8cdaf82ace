//! `davit kubeconfig`: the kubeconfig of a cluster, printed or put into the one that kubectl reads.

mod merge;

use crate::cluster_flag::Cluster;
use crate::paths;
use anyhow::{Context, Result, bail};
use merge::MergedEntry;
use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longer files are no kubeconfigs.
const LIMIT: u64 = 16 << 20;
/// How long another program may hold the file.
const LOCKED: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(50);

/// What `davit kubeconfig` takes.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct KubeconfigArgs {
    /// Put the cluster into the kubeconfig of kubectl, beside what is there
    #[arg(long)]
    merge: bool,
    /// The file to put it into [default: ~/.kube/config]
    #[arg(long, value_name = "FILE", requires = "merge")]
    into: Option<PathBuf>,
    /// Name of its context, cluster and user there [default: the context's name]
    #[arg(long, value_name = "NAME", requires = "merge")]
    name: Option<String>,
    /// Have kubectl ask this cluster from now on
    #[arg(long, requires = "merge")]
    switch: bool,
    /// Replace an entry of this name though it is another cluster's
    #[arg(long, requires = "merge")]
    replace: bool,
    #[command(flatten)]
    cluster: Cluster,
}

/// Runs `davit kubeconfig`.
pub(crate) fn run(args: KubeconfigArgs) -> Result<()> {
    let from = paths::find_kubeconfig(args.cluster.kubeconfig.as_deref())?;
    let mut own = read(&from)?.with_context(|| format!("{} is empty", from.display()))?;
    let dir = std::path::absolute(&from).context("kubeconfig")?;
    merge::with_whole_paths(&mut own, dir.parent().unwrap_or(Path::new("/")));
    if !args.merge {
        print!("{}", serde_saphyr::to_string(&own)?);
        return Ok(());
    }
    let into = match args.into {
        Some(file) => file,
        None => home_config()?,
    };
    let merged = merge_into(&into, &from, &own, |there| {
        merge::merge(there, &own, args.name.as_deref(), args.switch, args.replace)
    })?;
    let MergedEntry { name, current } = merged;
    println!("{} has the context {name}", into.display());
    if current != name {
        println!(
            "kubectl --context {name} asks it; --switch makes it the one that is asked without"
        );
    }
    Ok(())
}

fn home_config() -> Result<PathBuf> {
    let home = std::env::var_os("HOME").context("no home directory; name a file with --into")?;
    Ok(Path::new(&home).join(".kube/config"))
}

/// Changes a kubeconfig while nobody else does, at once: whoever reads it meanwhile sees the old one or the new one.
fn merge_into(
    into: &Path,
    from: &Path,
    own: &Value,
    change: impl FnOnce(Value) -> Result<(Value, MergedEntry)>,
) -> Result<MergedEntry> {
    let dir = into.parent().filter(|dir| !dir.as_os_str().is_empty());
    if let Some(dir) = dir {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    // What is replaced is the file, not a link to it.
    let file = match into.canonicalize() {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            std::path::absolute(into).context("kubeconfig")?
        }
        Err(error) => return Err(error).with_context(|| into.display().to_string()),
    };
    if from.canonicalize().is_ok_and(|from| from == file) {
        bail!("{} is the cluster's own kubeconfig", into.display());
    }
    let _lock = Lock::take(&file)?;
    let there = read(&file)?.unwrap_or_else(|| merge::empty(own));
    let (changed, merged) =
        change(there).with_context(|| format!("{} is left as it is", into.display()))?;
    let text = serde_saphyr::to_string(&changed)?;
    davit_beneath::write_private(&file, text.as_bytes())
        .with_context(|| format!("cannot write {}", file.display()))?;
    Ok(merged)
}

/// A kubeconfig; none where there is no file, or nothing in it.
fn read(path: &Path) -> Result<Option<Value>> {
    let bytes = match davit_beneath::read_given(path, LIMIT) {
        Ok(bytes) => bytes,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    };
    let text = String::from_utf8(bytes).with_context(|| path.display().to_string())?;
    if text.trim().is_empty() {
        return Ok(None);
    }
    let parsed: Value = serde_saphyr::from_str(&text)
        .with_context(|| format!("{} is no kubeconfig", path.display()))?;
    if !parsed.is_object() {
        bail!("{} is no kubeconfig", path.display());
    }
    Ok(Some(parsed))
}

/// The lock that kubectl takes: a file beside the kubeconfig.
struct Lock(PathBuf);

impl Lock {
    fn take(file: &Path) -> Result<Self> {
        let mut name = file.as_os_str().to_owned();
        name.push(".lock");
        let path = PathBuf::from(name);
        let begun = Instant::now();
        loop {
            match Self::create(&path) {
                Ok(_) => return Ok(Self(path)),
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(error).with_context(|| format!("cannot make {}", path.display()));
                }
                Err(_) if begun.elapsed() > LOCKED => bail!(
                    "another program has locked {}; remove {} if none runs",
                    file.display(),
                    path.display()
                ),
                Err(_) => std::thread::sleep(LOOK),
            }
        }
    }

    fn create(path: &Path) -> std::io::Result<File> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600).open(path)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Should it be gone, somebody was told to remove it.
        let _gone = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::os::unix::fs::{MetadataExt, symlink};

    fn own() -> Value {
        json!({"apiVersion": "v1", "kind": "Config", "current-context": "davit",
            "clusters": [{"name": "davit", "cluster": {"server": "https://a"}}],
            "users": [{"name": "admin", "user": {"token": "t"}}],
            "contexts": [{"name": "davit", "context": {"cluster": "davit", "user": "admin"}}]})
    }

    fn merge_here(into: &Path, from: &Path) -> Result<MergedEntry> {
        let own = own();
        merge_into(into, from, &own, |there| {
            merge::merge(there, &own, None, false, false)
        })
    }

    #[test]
    fn the_file_behind_a_link_is_changed_and_nothing_is_left_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link, from) = ("real", "config", "own").into_paths(dir.path());
        std::fs::write(
            &real,
            "apiVersion: v1\nkind: Config\ncontexts: []\nextensions: [x]\n",
        )
        .unwrap();
        symlink(&real, &link).unwrap();
        merge_here(&link, &from).unwrap();
        assert!(link.is_symlink());
        assert_eq!(std::fs::metadata(&real).unwrap().mode() & 0o777, 0o600);
        let now = read(&real).unwrap().unwrap();
        assert_eq!(now["extensions"], json!(["x"]));
        assert_eq!(now["contexts"][0]["name"], "davit");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn what_is_no_kubeconfig_or_locked_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (file, _, from) = ("config", "x", "own").into_paths(dir.path());
        std::fs::write(&file, "[1, 2").unwrap();
        assert!(merge_here(&file, &from).is_err());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "[1, 2");
        assert!(merge_here(&file, &file).is_err());
        let fresh = dir.path().join("below/config");
        merge_here(&fresh, &from).unwrap();
        let _held = Lock::take(&fresh).unwrap();
        let error = merge_here(&fresh, &from).unwrap_err().to_string();
        assert!(error.contains("config.lock"), "{error}");
    }

    trait IntoPaths {
        fn into_paths(self, dir: &Path) -> (PathBuf, PathBuf, PathBuf);
    }

    impl IntoPaths for (&str, &str, &str) {
        fn into_paths(self, dir: &Path) -> (PathBuf, PathBuf, PathBuf) {
            (dir.join(self.0), dir.join(self.1), dir.join(self.2))
        }
    }
}
