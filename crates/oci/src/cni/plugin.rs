//! One call of a plugin: environment, standard input, answer, error.

use super::cache::Attachment;
use davit_task::ProcessGroup;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

/// More than this is not read of what a plugin writes.
const MAX_OUTPUT: u64 = 4 << 20;
/// How long outputs are read that a program left behind in the background holds open.
const AFTER_EXIT: Duration = Duration::from_millis(500);
/// Bytes of a plugin's words that are told on.
const SHOWN: usize = 4 << 10;
/// Directories of the programs that plugins call (iptables).
const SYSTEM_DIRS: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Why a call failed, in the words of libcni.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("invalid plugin name: {0}")]
    Name(String),
    #[error("failed to find plugin {name:?} in path [{path}]")]
    NotFound { name: String, path: String },
    #[error("cannot run {}: {source}", path.display())]
    Start {
        path: PathBuf,
        source: std::io::Error,
    },
    /// The plugin's own message.
    #[error("{0}")]
    Plugin(String),
    #[error("netplugin failed with no error message: {0}")]
    Silent(String),
    #[error("netplugin failed: {0:?}")]
    Stderr(String),
    #[error("netplugin failed but error parsing its diagnostic message {0:?}: {1}")]
    Diagnostic(String, serde_json::Error),
    #[error("error parsing the plugin's result {0:?}: {1}")]
    Result(String, serde_json::Error),
}

/// A call to come.
pub(super) struct Call<'a> {
    pub(super) command: &'static str,
    pub(super) bin_dirs: &'a [PathBuf],
    /// The pod; calls about the whole network have none.
    pub(super) attachment: Option<&'a Attachment>,
}

#[derive(Deserialize)]
struct Failure {
    #[serde(default)]
    msg: String,
    #[serde(default)]
    details: String,
}

impl Call<'_> {
    /// Runs the plugin that `config` names by its `type`; null when it answers nothing.
    pub(super) async fn run(&self, config: &Map<String, Value>) -> Result<Value, Error> {
        let name = config.get("type").and_then(Value::as_str);
        let program = self.find(name.unwrap_or_default())?;
        let input = Value::Object(config.clone()).to_string();
        let (status, stdout, stderr) = self.talk(&program, input.as_bytes()).await?;
        if !stderr.is_empty() {
            let text = String::from_utf8_lossy(&stderr);
            tracing::debug!(plugin = %program.display(), command = self.command, stderr = %text.trim());
        }
        if !status.success() {
            return Err(failure(status, &stdout, &stderr));
        }
        let text = String::from_utf8_lossy(&stdout);
        if text.trim().is_empty() || self.command != "ADD" {
            return Ok(Value::Null);
        }
        serde_json::from_str(&text).map_err(|e| Error::Result(shown(&text), e))
    }

    fn find(&self, name: &str) -> Result<PathBuf, Error> {
        if name.is_empty() || name.contains('/') || name == ".." {
            return Err(Error::Name(name.to_owned()));
        }
        let is_program = |path: &PathBuf| {
            std::fs::metadata(path)
                .is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
        };
        let found = self.bin_dirs.iter().map(|dir| dir.join(name));
        found.into_iter().find(is_program).ok_or_else(|| {
            let dirs: Vec<_> = self.bin_dirs.iter().map(|d| d.to_string_lossy()).collect();
            Error::NotFound {
                name: name.to_owned(),
                path: dirs.join(" "),
            }
        })
    }

    /// The variables that say what to do, in addition to davit's own environment.
    fn environment(&self) -> Vec<(&'static str, OsString)> {
        let of = self.attachment;
        let arguments = of.map(|a| {
            let pairs = a.arguments.iter().map(|(k, v)| format!("{k}={v}"));
            pairs.collect::<Vec<_>>().join(";")
        });
        let path = std::env::join_paths(self.bin_dirs).unwrap_or_default();
        vec![
            ("CNI_COMMAND", self.command.into()),
            (
                "CNI_CONTAINERID",
                of.map(|a| a.container_id.clone())
                    .unwrap_or_default()
                    .into(),
            ),
            (
                "CNI_NETNS",
                of.map(|a| a.netns.clone()).unwrap_or_default().into(),
            ),
            ("CNI_ARGS", arguments.unwrap_or_default().into()),
            (
                "CNI_IFNAME",
                of.map(|a| a.interface.clone()).unwrap_or_default().into(),
            ),
            ("CNI_PATH", path),
            ("PATH", search_path(std::env::var_os("PATH").as_deref())),
        ]
    }

    async fn start(&self, program: &Path) -> std::io::Result<ProcessGroup> {
        let mut command = Command::new(program);
        for (name, _) in
            std::env::vars_os().filter(|(n, _)| n.to_string_lossy().starts_with("CNI_"))
        {
            command.env_remove(name);
        }
        command
            .envs(self.environment())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        ProcessGroup::start(&mut command).await
    }

    async fn talk(
        &self,
        program: &Path,
        input: &[u8],
    ) -> Result<(ExitStatus, Vec<u8>, Vec<u8>), Error> {
        let failed = |source| Error::Start {
            path: program.to_owned(),
            source,
        };
        let mut running = self.start(program).await.map_err(failed)?;
        let child = running.leader();
        let stdin = child.stdin.take();
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let write = async {
            if let Some(mut stdin) = stdin {
                // A plugin need not read what it does not care for.
                let _ = stdin.write_all(input).await;
            }
        };
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let status = {
            let talking =
                async { tokio::join!(write, drain(stdout, &mut out), drain(stderr, &mut err)) };
            let mut talking = std::pin::pin!(talking);
            tokio::select! {
                status = child.wait() => {
                    let _ = tokio::time::timeout(AFTER_EXIT, talking).await;
                    status
                }
                _ = &mut talking => child.wait().await,
            }
        };
        Ok((status.map_err(failed)?, out, err))
    }
}

async fn drain(pipe: Option<impl AsyncRead + Unpin>, into: &mut Vec<u8>) {
    if let Some(mut pipe) = pipe {
        let _ = (&mut pipe).take(MAX_OUTPUT).read_to_end(into).await;
        let _ = tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await;
    }
}

/// What of a plugin's words is told on: they come into statuses of pods and of the node.
fn shown(text: &str) -> String {
    text[..text.floor_char_boundary(SHOWN)].to_owned()
}

/// The search path with the system's directories, which a service's own path may lack.
fn search_path(own: Option<&OsStr>) -> OsString {
    let mut dirs: Vec<PathBuf> = own.into_iter().flat_map(std::env::split_paths).collect();
    for dir in SYSTEM_DIRS.map(PathBuf::from) {
        if !dirs.contains(&dir) {
            dirs.push(dir);
        }
    }
    std::env::join_paths(dirs).unwrap_or_default()
}

fn failure(status: ExitStatus, stdout: &[u8], stderr: &[u8]) -> Error {
    let text = String::from_utf8_lossy(stdout);
    if text.trim().is_empty() {
        return if stderr.is_empty() {
            Error::Silent(status.to_string().replace("exit status: ", "exit status "))
        } else {
            Error::Stderr(shown(&String::from_utf8_lossy(stderr)))
        };
    }
    match serde_json::from_str::<Failure>(&text) {
        Ok(Failure { msg, details }) if details.is_empty() => Error::Plugin(shown(&msg)),
        Ok(Failure { msg, details }) => Error::Plugin(shown(&format!("{msg}; {details}"))),
        Err(error) => Error::Diagnostic(shown(&text), error),
    }
}
