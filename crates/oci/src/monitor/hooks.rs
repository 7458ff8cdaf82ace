//! OCI hooks: programs that a device vendor's CDI file asks to be run at fixed points of a container's life.

use oci_spec::runtime::Hook;
use serde_json::json;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A hook without a timeout of its own may not hold a container up for ever.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs hooks in order; the first failure is the answer. The state of the container goes to each one's input.
pub(super) fn run(
    hooks: Option<&Vec<Hook>>,
    id: &str,
    status: &str,
    pid: i32,
    bundle: &Path,
) -> Result<(), String> {
    for hook in hooks.into_iter().flatten() {
        let state = json!({"ociVersion": "1.2.0", "id": id, "status": status, "pid": pid, "bundle": bundle});
        run_one(hook, &state.to_string())
            .map_err(|why| format!("hook {}: {why}", hook.path().display()))?;
    }
    Ok(())
}

fn run_one(hook: &Hook, state: &str) -> Result<(), String> {
    let mut command = Command::new(hook.path());
    if let Some((first, rest)) = hook.args().as_ref().and_then(|args| args.split_first()) {
        command.arg0(first).args(rest);
    }
    command.env_clear();
    for pair in hook.env().iter().flatten() {
        if let Some((name, value)) = pair.split_once('=') {
            command.env(name, value);
        }
    }
    let timeout = hook
        .timeout()
        .and_then(|s| u64::try_from(s).ok())
        .map_or(DEFAULT_TIMEOUT, Duration::from_secs);
    let deadline = Instant::now() + timeout;
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| error.to_string())?;
    if let Some(mut input) = child.stdin.take() {
        // A hook that does not read its input is in its right.
        let _ = input.write_all(state.as_bytes());
    }
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(status.to_string()),
            Ok(None) if Instant::now() >= deadline => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("did not finish within {timeout:?}"));
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => return Err(error.to_string()),
        }
    }
}
