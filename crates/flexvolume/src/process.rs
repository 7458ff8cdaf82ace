//! One run of an executable, a driver or another program of the host.

use crate::Error;
use davit_task::ProcessGroup;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};

/// More than this is not kept of what an executable writes, in bytes.
const MAX_OUTPUT: u64 = 1 << 20;
/// How long outputs are read that a program left behind in the background holds open.
const AFTER_EXIT: Duration = Duration::from_millis(500);

/// How a run ended.
#[derive(Debug)]
pub struct Ended {
    /// How it exited.
    pub status: ExitStatus,
    /// What it wrote, cut off after a mebibyte.
    pub stdout: Vec<u8>,
    /// The same of its errors.
    pub stderr: Vec<u8>,
}

/// Runs an executable to its end; `None` when it was ended, with what it had started, because the limit was over.
///
/// # Errors
/// [`Error::Start`].
pub async fn run(
    executable: &Path,
    arguments: &[&str],
    limit: Duration,
) -> Result<Option<Ended>, Error> {
    let failed = |source| Error::Start {
        path: executable.to_owned(),
        source,
    };
    let mut command = Command::new(executable);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut running = ProcessGroup::start(&mut command).await.map_err(failed)?;
    match tokio::time::timeout(limit, talk(running.leader())).await {
        Ok(ended) => ended.map(Some).map_err(failed),
        Err(_) => Ok(None),
    }
}

async fn talk(child: &mut Child) -> std::io::Result<Ended> {
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let status = {
        let reading = async { tokio::join!(drain(out, &mut stdout), drain(err, &mut stderr)) };
        let mut reading = std::pin::pin!(reading);
        tokio::select! {
            status = child.wait() => {
                let _ = tokio::time::timeout(AFTER_EXIT, reading).await;
                status?
            }
            _ = &mut reading => child.wait().await?,
        }
    };
    Ok(Ended {
        status,
        stdout,
        stderr,
    })
}

async fn drain(pipe: Option<impl AsyncRead + Unpin>, into: &mut Vec<u8>) {
    if let Some(mut pipe) = pipe {
        // What can be read until the pipe breaks is all that there is.
        let _ = (&mut pipe).take(MAX_OUTPUT).read_to_end(into).await;
        let _ = tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await;
    }
}
