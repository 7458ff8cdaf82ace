//! OCI hooks: programs that a device vendor's CDI file asks to be run at fixed points of a container's life.

use oci_spec::runtime::Hook;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::json;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
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
        .process_group(0)
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
                end(&mut child);
                return Err(format!("did not finish within {timeout:?}"));
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// Ends a hook that has had its time, with the programs that it has called. One that ends by itself may leave some behind.
fn end(child: &mut Child) {
    // It was not waited for, so that its number is nobody else's.
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(group) = group {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;
    use oci_spec::runtime::HookBuilder;
    use rustix::process::test_kill_process;

    #[test]
    fn what_a_hook_has_called_ends_with_its_time() {
        let dir = tempfile::tempdir().unwrap();
        let told = dir.path().join("pid");
        let script = format!(
            "sleep 600 & echo $! > {0}.new; mv {0}.new {0}; wait",
            told.display()
        );
        let args = ["sh", "-c", &script].map(str::to_owned).to_vec();
        let hook = HookBuilder::default().path("/bin/sh").args(args).timeout(1);
        let error = run_one(&hook.build().unwrap(), "{}").unwrap_err();
        assert!(error.contains("did not finish"), "{error}");
        // A machine so busy that the script did not come so far has left nothing to look at.
        let Ok(called) = std::fs::read_to_string(&told) else {
            return;
        };
        let called = Pid::from_raw(called.trim().parse().unwrap()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        // Its parent is dead, so that init collects it; until then it is there as a zombie.
        while test_kill_process(called).is_ok() && !is_zombie(called) {
            assert!(Instant::now() < deadline, "it goes on");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn is_zombie(process: Pid) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()));
        stat.is_ok_and(|stat| {
            stat.rsplit(')')
                .next()
                .is_some_and(|rest| rest.starts_with(" Z"))
        })
    }
}
