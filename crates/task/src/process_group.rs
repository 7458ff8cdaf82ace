use std::io;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};

/// A program that is being written cannot be started for a moment.
const BUSY_TRIES: u32 = 5;
const BUSY_WAIT: Duration = Duration::from_millis(200);

/// A program of somebody else at work, as the leader of a process group.
///
/// When nobody waits for it any more it ends, with the programs that it has called and that stayed in its group. One that
/// has ended by itself may leave programs behind: file systems in user space are such.
#[derive(Debug)]
pub struct ProcessGroup(Child);

impl ProcessGroup {
    /// Starts a program; one that is being replaced at the moment is tried again for a second.
    ///
    /// # Errors
    ///
    /// The program cannot be started.
    pub async fn start(command: &mut Command) -> io::Result<Self> {
        command.process_group(0).kill_on_drop(true);
        let mut tries = 1;
        loop {
            match command.spawn() {
                Ok(child) => return Ok(Self(child)),
                Err(error)
                    if error.kind() == io::ErrorKind::ExecutableFileBusy && tries < BUSY_TRIES =>
                {
                    tries += 1;
                    tokio::time::sleep(BUSY_WAIT).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The program itself, to talk to and to wait for.
    pub fn leader(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // The id is gone once the child was waited for, so this hits nobody else.
        let id = self.0.id().and_then(|id| i32::try_from(id).ok());
        if let Some(group) = id.and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::test_kill_process;
    use std::process::Stdio;
    use tokio::io::{AsyncBufReadExt, BufReader};

    #[tokio::test]
    async fn what_a_program_has_called_ends_with_it() {
        let mut command = Command::new("sh");
        command
            .args(["-c", "sleep 600 & echo $!; wait"])
            .stdout(Stdio::piped());
        let mut program = ProcessGroup::start(&mut command).await.unwrap();
        let stdout = program.leader().stdout.take().unwrap();
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).await.unwrap();
        let called = Pid::from_raw(line.trim().parse().unwrap()).unwrap();
        test_kill_process(called).unwrap();
        drop(program);
        let gone = async {
            // Its parent is dead, so that init collects it; until then it is there as a zombie.
            while test_kill_process(called).is_ok() && !is_zombie(called) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), gone)
            .await
            .unwrap();
    }

    fn is_zombie(pid: Pid) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        stat.is_ok_and(|stat| stat.contains(") Z "))
    }

    #[tokio::test]
    async fn a_program_that_is_being_written_is_tried_again() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        std::fs::copy("/bin/true", &path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let writer = std::fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap();
        let mut command = Command::new(&path);
        let starting = ProcessGroup::start(&mut command);
        let closing = async {
            tokio::time::sleep(BUSY_WAIT / 2).await;
            drop(writer);
        };
        let (started, ()) = tokio::join!(starting, closing);
        assert!(started.unwrap().leader().wait().await.unwrap().success());
    }
}
