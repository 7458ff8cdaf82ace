//! Termination messages: what a container has written last to a file of its choice, or the end of its log.

use crate::runtime_state::{ContainerRecord, keys};
use davit_beneath::{Links, Root};
use davit_nodelogs::{LogFile, last_lines};
use davit_proto::cri::v1 as cri;
use std::path::{Path, PathBuf};
use std::time::Duration;

const MAX_FILE: u64 = 4096;
const MAX_LOG: usize = 2048;
const MAX_LINES: usize = 80;
/// How long reading may take. The file may be of a volume that hangs.
const LIMIT: Duration = Duration::from_secs(5);

/// Where a container's message may be.
struct Places {
    file: Option<PathBuf>,
    /// Where the policy says so.
    log: Option<LogFile>,
}

/// The termination message of an ended container: its file in `dir`, the container's directory, or the end of its log where
/// the policy says so. Empty when it cannot be read in time.
pub(crate) async fn message(record: &ContainerRecord, dir: &Path, log: LogFile) -> String {
    let note = |key: &str| record.annotations.get(key).map(String::as_str);
    let path = note(keys::TERMINATION_PATH).unwrap_or_default();
    let fallback = note(keys::TERMINATION_POLICY) == Some("FallbackToLogsOnError");
    let places = Places {
        file: own_file(&record.mounts, path, dir),
        log: (fallback && record.exit_code != 0).then_some(log),
    };
    let reading = tokio::task::spawn_blocking(move || places.read());
    match tokio::time::timeout(LIMIT, reading).await {
        Ok(message) => message.unwrap_or_default(),
        Err(_) => {
            tracing::warn!(container = %record.name, "the termination message cannot be read in time");
            String::new()
        }
    }
}

impl Places {
    fn read(self) -> String {
        let message = self
            .file
            .and_then(|file| read_tail(&file))
            .unwrap_or_default();
        match self.log {
            Some(log) if message.is_empty() => {
                last_lines(&log, MAX_LINES, MAX_LOG).unwrap_or_default()
            }
            _ => message,
        }
    }
}

/// The file that the node made for the message. A volume may be mounted in its place: what is there the container's user may
/// not be able to read, and the node can.
fn own_file(mounts: &[cri::Mount], path: &str, dir: &Path) -> Option<PathBuf> {
    let mut there = mounts.iter().filter(|mount| mount.container_path == path);
    let file = there.next().map(|mount| PathBuf::from(&mount.host_path));
    file.filter(|file| file.parent() == Some(dir))
}

/// The end of a regular file; nothing of anything else, which is not even opened: a FIFO would wait.
fn read_tail(file: &Path) -> Option<String> {
    let dir = Root::open(file.parent()?, Links::Refused).ok()?;
    let tail = dir.read_tail(file.file_name()?, MAX_FILE).ok()?;
    Some(String::from_utf8_lossy(&tail).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A user who is not root mounts a file of root's where the message is to be, and reads its end in the pod's status.
    #[test]
    fn what_a_volume_has_in_its_place_is_no_message() {
        let mount = |container: &str, host: &str| cri::Mount {
            container_path: container.to_owned(),
            host_path: host.to_owned(),
            ..cri::Mount::default()
        };
        let dir = Path::new("/pods/u/containers/c");
        let found = |mounts: &[cri::Mount]| own_file(mounts, "/dev/termination-log", dir);
        let hosts = mount("/etc/hosts", "/pods/u/etc-hosts");
        let own = mount("/dev/termination-log", "/pods/u/containers/c/termination-0");
        let made = Some(PathBuf::from(&own.host_path));
        assert_eq!(found(&[hosts.clone(), own]), made);
        for host in [
            "/etc/shadow",
            "/pods/u/volumes/v/file",
            "/pods/other/containers/c/termination-0",
        ] {
            let other = mount("/dev/termination-log", host);
            assert_eq!(found(&[hosts.clone(), other]), None, "{host}");
        }
        assert_eq!(found(&[hosts]), None);
    }

    #[test]
    fn only_the_end_of_a_regular_file_is_read() {
        let tmp = tempfile::tempdir().unwrap();
        let at = |name: &str| tmp.path().join(name);
        std::fs::write(at("file"), format!("{}end", "x".repeat(5000))).unwrap();
        let text = read_tail(&at("file")).unwrap();
        assert!(text.len() == 4096 && text.ends_with("xend"));
        let huge = std::fs::File::create(at("huge")).unwrap();
        huge.set_len(1 << 40).unwrap();
        assert_eq!(read_tail(&at("huge")).unwrap().len(), 4096);
        std::os::unix::fs::symlink(at("file"), at("link")).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), fifo, mode, 0).unwrap();
        for other in ["link", "fifo", "none", "."] {
            assert_eq!(read_tail(&at(other)), None, "{other}");
        }
    }
}
