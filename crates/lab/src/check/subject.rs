//! The program under test, and where it finds the node agent.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

/// The directory that stands for `/var/lib/kubelet`.
#[derive(Debug, Clone)]
pub struct KubeletDirectory {
    dir: PathBuf,
}

impl KubeletDirectory {
    /// A place in this directory; makes the directories that an agent has.
    ///
    /// # Errors
    /// They cannot be made.
    pub fn new(dir: impl Into<PathBuf>) -> Result<Self, davit_proto::unix::Error> {
        let place = Self { dir: dir.into() };
        for dir in [
            place.device_plugins(),
            place.registry(),
            place.pod_resources(),
            place.cdi(),
        ] {
            davit_proto::unix::create_dir(&dir)?;
        }
        Ok(place)
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where plugins register and listen.
    pub fn device_plugins(&self) -> PathBuf {
        self.dir.join("device-plugins")
    }

    /// Where plugins are found.
    pub fn registry(&self) -> PathBuf {
        self.dir.join("plugins_registry")
    }

    /// Where monitors ask.
    pub fn pod_resources(&self) -> PathBuf {
        self.dir.join("pod-resources")
    }

    /// Where drivers put CDI files.
    pub fn cdi(&self) -> PathBuf {
        self.dir.join("cdi")
    }

    /// The socket that monitors ask.
    pub fn pod_resources_socket(&self) -> PathBuf {
        self.pod_resources().join("kubelet.sock")
    }
}

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Whether it says that all is well.
    pub success: bool,
    /// `exit status: 1` and the like.
    pub how: String,
}

/// A program that can be started, again and again.
#[async_trait]
pub trait Subject: Send + Sync {
    /// What it is, for the report.
    fn name(&self) -> String;

    /// Starts it.
    ///
    /// # Errors
    /// Why it cannot be started.
    async fn start(&self, place: &KubeletDirectory) -> Result<Box<dyn Life>, String>;
}

/// A program that runs. Dropping it ends it at once.
#[async_trait]
pub trait Life: Send {
    /// How it ended, if it has.
    fn ended(&mut self) -> Option<Ended>;

    /// Asks it to end and waits so long; `None` when it has not ended by then.
    async fn terminate(&mut self, limit: Duration) -> Option<Ended>;
}

/// A command line. In its arguments `{dir}`, `{device-plugins}`, `{plugins-registry}`,
/// `{pod-resources}`, `{pod-resources-socket}` and `{cdi-dir}` stand for the agent's paths; in its
/// environment they are `KUBELET_DIR`, `DEVICE_PLUGINS_DIR`, `PLUGINS_REGISTRY_DIR`,
/// `POD_RESOURCES_SOCKET` and `CDI_DIR`.
#[derive(Debug, Clone)]
pub struct Process {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Whether the program sees the agent's directory at `/var/lib/kubelet`, in a mount namespace
    /// of its own: for programs that look nowhere else. Needs root and `unshare`.
    pub at_default_path: bool,
    /// Whether its output is shown.
    pub output: bool,
    /// Further names: what stands in arguments for it, the variable, and the value.
    pub names: Vec<(&'static str, &'static str, String)>,
}

impl Process {
    fn arguments(&self, place: &KubeletDirectory) -> Vec<OsString> {
        let text = |p: PathBuf| p.display().to_string();
        let paths = [
            ("{dir}", text(place.dir.clone())),
            ("{device-plugins}", text(place.device_plugins())),
            ("{plugins-registry}", text(place.registry())),
            ("{pod-resources}", text(place.pod_resources())),
            ("{pod-resources-socket}", text(place.pod_resources_socket())),
            ("{cdi-dir}", text(place.cdi())),
        ];
        let more = self.names.iter().map(|(n, _, value)| (*n, value.clone()));
        let names: Vec<_> = paths.into_iter().chain(more).collect();
        let fill = |arg: &String| {
            let filled = names
                .iter()
                .fold(arg.clone(), |arg, (name, path)| arg.replace(name, path));
            OsString::from(filled)
        };
        let given = self.command.iter().map(fill);
        if !self.at_default_path {
            return given.collect();
        }
        let script = "mkdir -p /var/lib/kubelet /var/run/cdi && mount --bind \"$0/cdi\" /var/run/cdi && \
             mount --bind \"$0\" /var/lib/kubelet && exec \"$@\"";
        let wrap = ["unshare", "--mount", "sh", "-c", script].map(OsString::from);
        wrap.into_iter()
            .chain([place.dir.clone().into_os_string()])
            .chain(given)
            .collect()
    }
}

#[async_trait]
impl Subject for Process {
    fn name(&self) -> String {
        self.command.join(" ")
    }

    async fn start(&self, place: &KubeletDirectory) -> Result<Box<dyn Life>, String> {
        let arguments = self.arguments(place);
        let program = arguments.first().ok_or("there is no command")?;
        let mut command = Command::new(program);
        command
            .args(&arguments[1..])
            .env("KUBELET_DIR", place.dir())
            .env("DEVICE_PLUGINS_DIR", place.device_plugins())
            .env("PLUGINS_REGISTRY_DIR", place.registry())
            .env("POD_RESOURCES_SOCKET", place.pod_resources_socket())
            .env("CDI_DIR", place.cdi())
            .envs(self.names.iter().map(|(_, name, value)| (name, value)))
            .stdin(Stdio::null())
            // What it starts ends with it.
            .process_group(0)
            .kill_on_drop(true);
        if self.output {
            // Standard output belongs to the report.
            let shown = std::io::stderr();
            let shown = std::os::fd::AsFd::as_fd(&shown).try_clone_to_owned();
            command.stdout(shown.map_err(|e| e.to_string())?);
        } else {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let mut child = command
            .spawn()
            .map_err(|e| format!("{}: {e}", program.display()))?;
        let (tail, mut readers) = (Tail::default(), JoinSet::new());
        if let Some(stream) = child.stdout.take() {
            readers.spawn(tail.clone().follow(stream));
        }
        if let Some(stream) = child.stderr.take() {
            readers.spawn(tail.clone().follow(stream));
        }
        let group = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .map(Pid::from_raw);
        Ok(Box::new(Running {
            child,
            group,
            exited: None,
            ended: None,
            tail,
            readers,
        }))
    }
}

struct Running {
    child: Child,
    group: Option<Pid>,
    /// The program's own end, and when it was seen.
    exited: Option<(ExitStatus, Instant)>,
    ended: Option<Ended>,
    tail: Tail,
    readers: JoinSet<()>,
}

/// How long what a program has written is read after its end; what it started may hold the pipe open.
const LINGER: Duration = Duration::from_millis(500);

/// The last lines that a program wrote.
#[derive(Debug, Clone, Default)]
struct Tail(Arc<Mutex<VecDeque<String>>>);

impl Tail {
    /// How many lines are kept, and how long each may be.
    const LINES: usize = 5;
    const LINE: usize = 300;

    /// Reads to the end, keeping the last lines.
    async fn follow(self, stream: impl AsyncRead + Unpin) {
        let mut stream = stream;
        let mut piece = vec![0; 4096];
        let mut line = Vec::new();
        while let Ok(read @ 1..) = stream.read(&mut piece).await {
            for byte in &piece[..read] {
                match byte {
                    b'\n' => self.push(&std::mem::take(&mut line)),
                    byte if line.len() < Self::LINE => line.push(*byte),
                    _ => {}
                }
            }
        }
        self.push(&line);
    }

    fn push(&self, line: &[u8]) {
        let line = String::from_utf8_lossy(line).trim().to_owned();
        if line.is_empty() {
            return;
        }
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == Self::LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// How the program ended, with its last words if it failed.
    fn ended(&self, status: ExitStatus) -> Ended {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let how = if status.success() || lines.is_empty() {
            status.to_string()
        } else {
            let last: Vec<&str> = lines.iter().map(String::as_str).collect();
            format!("{status}, its last words: {}", last.join(" | "))
        };
        Ended {
            success: status.success(),
            how,
        }
    }
}

impl Running {
    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // It may have ended meanwhile.
            let _gone = killpg(group, signal);
        }
    }
}

#[async_trait]
impl Life for Running {
    fn ended(&mut self) -> Option<Ended> {
        if self.ended.is_none() {
            if self.exited.is_none() {
                let status = self.child.try_wait().ok().flatten();
                self.exited = status.map(|status| (status, Instant::now()));
            }
            while self.readers.try_join_next().is_some() {}
            let read = self.readers.is_empty();
            let exited = self.exited;
            let over = exited.filter(|(_, at)| read || at.elapsed() >= LINGER);
            self.ended = over.map(|(status, _)| self.tail.ended(status));
        }
        self.ended.clone()
    }

    async fn terminate(&mut self, limit: Duration) -> Option<Ended> {
        if self.ended().is_none() {
            self.signal(Signal::SIGTERM);
            let waited = tokio::time::timeout(limit, self.child.wait()).await;
            if let Some(status) = waited.ok().and_then(Result::ok) {
                let reading = async { while self.readers.join_next().await.is_some() {} };
                // What still holds the pipe open is not waited for.
                let _over = tokio::time::timeout(LINGER, reading).await;
                self.ended = Some(self.tail.ended(status));
            }
        }
        self.ended.clone()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The number of a process group is not given away again while the group has members;
        // a child that was waited for may have left some.
        self.signal(Signal::SIGKILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_that_dies_has_last_words() {
        let dir = tempfile::tempdir().unwrap();
        let place = KubeletDirectory::new(dir.path()).unwrap();
        let script =
            "for i in 1 2 3 4 5 6 7; do echo line $i; done; echo no such device >&2; exit 3";
        let process = Process {
            command: ["sh", "-c", script].map(str::to_owned).to_vec(),
            at_default_path: false,
            output: false,
            names: Vec::new(),
        };
        let mut life = process.start(&place).await.unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(20), async {
            loop {
                tokio::time::sleep(Duration::from_millis(50)).await;
                if let Some(ended) = life.ended() {
                    return ended;
                }
            }
        });
        let how = ended.await.unwrap().how;
        assert!(how.starts_with("exit status: 3, its last words: "), "{how}");
        assert!(
            how.contains("no such device") && how.contains("line 7"),
            "{how}"
        );
        assert!(!how.contains("line 1 "), "{how}");
    }
}
