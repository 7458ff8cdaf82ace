//! Programs of the host that mount file systems for the node.

use davit_flexvolume::process;
use std::path::PathBuf;
use std::time::Duration;

/// How long mounting may take. A server that does not answer is asked again with the next try.
const LIMIT: Duration = Duration::from_secs(120);
/// Where helpers are that are not on the path of services.
const SYSTEM_DIRS: [&str; 2] = ["/usr/sbin", "/sbin"];
/// As mount(8) says it.
const NO_HELPER: &str = "bad option; for several filesystems (e.g. nfs, cifs) you might need a /sbin/mount.<type> helper program.";

/// Why the host's helper has not mounted a volume, in upstream's form.
#[derive(Debug, thiserror::Error)]
#[error("mount failed: {status}\nMounting command: {helper}\nMounting arguments: {}\nOutput: {output}", .arguments.join(" "))]
pub struct HelperError {
    helper: &'static str,
    status: String,
    arguments: Vec<String>,
    output: String,
    is_uncertain: bool,
}

impl HelperError {
    /// Whether the helper was ended: what it has mounted is not known.
    pub(super) fn is_uncertain(&self) -> bool {
        self.is_uncertain
    }
}

/// The directories in which helpers are looked for.
pub(super) fn dirs() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = SYSTEM_DIRS.map(PathBuf::from);
    std::env::split_paths(&path).chain(system).collect()
}

/// Mounts by the first `helper` in `dirs`.
///
/// # Errors
/// There is none, it fails, or it does not end.
pub(super) async fn mount(
    dirs: &[PathBuf],
    helper: &'static str,
    arguments: Vec<String>,
) -> Result<(), HelperError> {
    let failed = |status: String, output: String, is_uncertain| HelperError {
        helper,
        status,
        arguments: arguments.clone(),
        output,
        is_uncertain,
    };
    let not_there = || {
        let status = format!("exec: {helper:?}: executable file not found in $PATH");
        failed(status, NO_HELPER.to_owned(), false)
    };
    let mut candidates = dirs.iter().map(|dir| dir.join(helper));
    let program = candidates
        .find(|path| path.is_file())
        .ok_or_else(not_there)?;
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ended = process::run(&program, &words, LIMIT).await;
    let ended = ended.map_err(|e| failed(e.to_string(), String::new(), false))?;
    let Some(ended) = ended else {
        let status = format!("no answer within {LIMIT:?}");
        return Err(failed(status, String::new(), true));
    };
    if ended.status.success() {
        return Ok(());
    }
    let status = match ended.status.code() {
        Some(code) => format!("exit status {code}"),
        None => ended.status.to_string(),
    };
    let output = [ended.stdout, ended.stderr].concat();
    let output = String::from_utf8_lossy(&output).trim().to_owned();
    Err(failed(status, output, false))
}
