//! Directories of a cluster that leaves nothing behind: of the demo, and of `davit up --ephemeral`.

use crate::args::Up;
use crate::down::StoppedCluster;
use crate::owner;
use anyhow::{Context, Result, bail};
use davit_beneath::mountinfo::is_mount_point;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long containers get to end by themselves.
const GRACE: Duration = Duration::from_secs(2);
/// What a cluster begins with that is a copy of another: objects and keys.
const TEMPLATE: [&str; 2] = ["store", "pki"];
/// What the directories are called, before the number of the process.
const PREFIX: &str = "davit-ephemeral-";

/// Bytes of the name of a directory for temporary files below which there is room for the sockets of a cluster, whose
/// paths may have 107: those of plugins on simulated nodes have some ninety below it.
const LONGEST_TEMP: usize = 16;

/// Where the directories are: that of `TMPDIR`, unless its name leaves no room for sockets.
fn temp_dir() -> PathBuf {
    let named = std::env::temp_dir();
    let usual = Path::new("/tmp");
    if named.as_os_str().len() > LONGEST_TEMP && usual.is_dir() {
        return usual.to_owned();
    }
    named
}

/// Directories that go with the process.
pub(crate) struct Scratch {
    dir: PathBuf,
    place: StoppedCluster,
}

impl Scratch {
    /// For an ephemeral cluster, and for a demo that was given no directories.
    pub(crate) fn for_cluster(args: &mut Up) -> Result<Option<Self>> {
        let demo = args.demo && args.server.data_dir.is_none() && args.node.root.is_none();
        if !args.ephemeral && !demo {
            return Ok(None);
        }
        let dir = temp_dir().join(format!("{PREFIX}{}", std::process::id()));
        // Not one that somebody else has made there before.
        DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700)
            .create(&dir)
            .with_context(|| format!("directory {}", dir.display()))?;
        let (data, root) = (dir.join("data"), dir.join("root"));
        let place = StoppedCluster::new(data.clone(), Some(&root), args.node.cni_bin_dir.clone())?;
        let scratch = Self { dir, place };
        if let Some(template) = &args.template
            && let Err(error) = copy_template(template, &data)
        {
            let _unused = std::fs::remove_dir_all(&scratch.dir);
            return Err(error.context(format!("--template {}", template.display())));
        }
        args.server.data_dir = Some(data);
        args.node.root = Some(root);
        args.server.store.keep_in_memory();
        // It needs next to no disk, and is to work on a developer's machine that has as much.
        args.node.kubelet.ignore_full_disk();
        Ok(Some(scratch))
    }

    /// Ends what runs there and removes everything.
    pub(crate) async fn remove(self) {
        if let Err(error) = clear(&self.dir, &self.place).await {
            eprintln!("davit: {} was not removed: {error:#}", self.dir.display());
        }
    }
}

/// Copies what a cluster has stored, and its keys.
fn copy_template(template: &Path, to: &Path) -> Result<()> {
    if !template.join("store").is_dir() {
        bail!("there is no cluster");
    }
    if let Some((command, ..)) = owner::users(template)?.first() {
        bail!("`davit {command}` runs there");
    }
    for part in TEMPLATE {
        let from = template.join(part);
        if from.is_dir() {
            copy_dir(&from, &to.join(part)).with_context(|| format!("cannot copy {part}"))?;
        }
    }
    Ok(())
}

/// Copies directories and files.
fn copy_dir(from: &Path, to: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    DirBuilderExt::mode(builder.recursive(true), 0o700).create(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        let target = to.join(entry.file_name());
        if kind.is_dir() {
            copy_dir(&entry.path(), &target)?;
        } else if kind.is_file() {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

async fn clear(dir: &Path, place: &StoppedCluster) -> Result<()> {
    place.end(GRACE).await?;
    place.purge().await?;
    std::fs::remove_dir_all(dir).with_context(|| format!("{}", dir.display()))
}

/// Whether there is such a process. One that has ended, for which its parent has not waited yet, has no program any more.
fn lives(process: u32) -> bool {
    let program = std::fs::read_link(format!("/proc/{process}/exe"));
    !program.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// Removes what clusters of this user have left that were killed.
pub(crate) async fn sweep(args: &Up) {
    let temp = temp_dir();
    let own = nix::unistd::geteuid().as_raw();
    for entry in std::fs::read_dir(&temp).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Ok(meta) = entry.metadata() else { continue };
        let process = name
            .strip_prefix(PREFIX)
            .and_then(|n| n.parse::<u32>().ok());
        // Ours alone from the beginning, and nothing that is mounted there: others write in this directory, too.
        let is_ours = meta.is_dir() && meta.uid() == own && meta.mode() & 0o7777 == 0o700;
        let is_plain = || is_mount_point(&entry.path()).is_ok_and(|mounted| !mounted);
        let Some(process) = process.filter(|_| is_ours && is_plain()) else {
            continue;
        };
        let (data, root) = (entry.path().join("data"), entry.path().join("root"));
        // One that has only just begun has no lock yet. This process has not begun: an earlier one had its number.
        let is_alive = process != std::process::id() && lives(process);
        if is_alive || !owner::users(&data).is_ok_and(|users| users.is_empty()) {
            continue;
        }
        let place = StoppedCluster::new(data, Some(&root), args.node.cni_bin_dir.clone());
        let cleared = match place {
            Ok(place) => clear(&entry.path(), &place).await,
            Err(error) => Err(error),
        };
        if let Err(error) = cleared {
            tracing::warn!("{} was not removed: {error:#}", entry.path().display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_has_ended_lives_no_more() {
        assert!(lives(std::process::id()));
        let mut child = std::process::Command::new("sleep")
            .arg("100")
            .spawn()
            .unwrap();
        assert!(lives(child.id()));
        child.kill().unwrap();
        // Nobody waits for it until it is known to be gone.
        let end = std::time::Instant::now() + Duration::from_secs(60);
        while lives(child.id()) {
            assert!(std::time::Instant::now() < end);
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(Path::new("/proc").join(child.id().to_string()).exists());
        child.wait().unwrap();
    }
}
