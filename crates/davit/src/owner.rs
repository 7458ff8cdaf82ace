//! Which davit uses a data directory: each command that runs there holds a lock on a file of its own, and the kernel says
//! whose lock it is.

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, OFlags, fcntl_lock};
use rustix::io::Errno;
use rustix::process::{
    Flock, FlockType, Pid, PidfdFlags, Signal, fcntl_getlk, getppid, pidfd_open, pidfd_send_signal,
};
use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

/// Below the data directory: the files that are locked, named after the commands.
const LOCKS: &str = "locks";
/// How long a davit may take to stop: its pods may have half a minute each to end, where it was told to wait for them.
const STOPPING: Duration = Duration::from_secs(180);
/// How often a process is looked at that shall end.
const LOOK: Duration = Duration::from_millis(50);

/// A data directory that this process uses, until it ends.
#[derive(Debug)]
pub(crate) struct Owned {
    _locked: File,
}

/// Takes a data directory, which has to be there, for a command of this process. To be called once a process: the lock goes
/// when any descriptor of its file is closed.
///
/// # Errors
/// The same command runs there already.
pub(crate) fn own(data_dir: &Path, command: &str) -> Result<Owned> {
    let dir = data_dir.join(LOCKS);
    davit_beneath::private_dir(&dir, 0o700)
        .with_context(|| format!("data directory {}", data_dir.display()))?;
    let path = dir.join(command);
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        // Who had the directory before may have put a link or a FIFO there.
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
        .open(&path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Owned { _locked: file }),
        Err(Errno::AGAIN | Errno::ACCESS) => {
            let process = holder(&file)?.map_or_else(String::new, |pid| {
                format!(" (process {})", pid.as_raw_nonzero())
            });
            bail!(
                "`davit {command}`{process} runs with {}; stop it with `davit down`, or name another directory with --data-dir",
                data_dir.display()
            )
        }
        Err(error) => Err(error).with_context(|| format!("cannot lock {}", path.display())),
    }
}

/// Who has locked a file.
fn holder(file: &File) -> Result<Option<Pid>> {
    let asked = fcntl_getlk(file, &Flock::from(FlockType::WriteLock));
    Ok(asked
        .context("cannot ask for a lock")?
        .and_then(|lock| lock.pid))
}

/// The processes that run with a data directory, with their commands.
///
/// # Errors
/// Nobody may ask.
pub(crate) fn users(data_dir: &Path) -> Result<Vec<(String, File, Pid)>> {
    let mut found = Vec::new();
    let locks = std::fs::read_dir(data_dir.join(LOCKS));
    for entry in locks.into_iter().flatten().flatten() {
        let command = entry.file_name().to_string_lossy().into_owned();
        let file = davit_beneath::open_own_for_writing(entry.path());
        let file = file.with_context(|| format!("cannot open {}", entry.path().display()))?;
        if let Some(pid) = holder(&file)? {
            found.push((command, file, pid));
        }
    }
    Ok(found)
}

/// Stops every davit that runs with a data directory, and waits for its end. Answers with the commands that ran.
///
/// # Errors
/// One does not stop in time, or may not be told to.
pub(crate) async fn stop_all(data_dir: &Path) -> Result<Vec<String>> {
    let mut stopped = Vec::new();
    for (command, file, pid) in users(data_dir)? {
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
            continue;
        };
        // It may have ended meanwhile, and its number be another's.
        if holder(&file)? != Some(pid) {
            continue;
        }
        let what = || format!("`davit {command}` (process {})", pid.as_raw_nonzero());
        pidfd_send_signal(&process, Signal::TERM)
            .with_context(|| format!("cannot stop {}", what()))?;
        match tokio::time::timeout(STOPPING, ended(process)).await {
            Ok(waited) => waited?,
            Err(_) => bail!("{} did not stop within {} s", what(), STOPPING.as_secs()),
        }
        stopped.push(command);
    }
    Ok(stopped)
}

/// Waits for the end of a process.
async fn ended(process: OwnedFd) -> Result<()> {
    let now = Timespec::default();
    loop {
        let mut asked = [PollFd::new(&process, PollFlags::IN)];
        if poll(&mut asked, Some(&now)).context("cannot watch a process")? > 0 {
            return Ok(());
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Resolves when the process that started this one has ended. Other than the kernel's signal of a parent's death this is
/// not about the thread that started it.
///
/// # Errors
/// It has ended already, or cannot be watched.
pub(crate) fn parent_ended() -> Result<impl Future<Output = ()> + Send + 'static> {
    let parent = getppid().filter(|pid| !pid.is_init());
    let parent =
        parent.context("--exit-with-parent: the process that started this one has ended")?;
    let process = pidfd_open(parent, PidfdFlags::empty())
        .context("--exit-with-parent: the process that started this one cannot be watched")?;
    Ok(async move {
        if let Err(error) = ended(process).await {
            tracing::error!("--exit-with-parent: {error:#}");
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_taken_once_for_a_command() {
        let tmp = tempfile::tempdir().unwrap();
        let _up = own(tmp.path(), "up").unwrap();
        // locks of one process do not exclude one another: another process is asked
        let script = format!(
            "exec 3<>{}/locks/up; python3 -c \"import fcntl; fcntl.lockf(3, fcntl.LOCK_EX | fcntl.LOCK_NB)\"",
            tmp.path().display()
        );
        let taken = std::process::Command::new("sh")
            .args(["-c", &script])
            .output()
            .unwrap();
        assert!(!taken.status.success());
        let _node = own(tmp.path(), "node").unwrap();
    }

    #[tokio::test]
    async fn a_directory_that_nobody_uses_has_nobody_to_stop() {
        let tmp = tempfile::tempdir().unwrap();
        assert!(stop_all(tmp.path()).await.unwrap().is_empty());
        std::fs::create_dir(tmp.path().join(LOCKS)).unwrap();
        std::fs::write(tmp.path().join(LOCKS).join("up"), "").unwrap();
        assert!(stop_all(tmp.path()).await.unwrap().is_empty());
    }
}
