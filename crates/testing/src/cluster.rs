//! A cluster that runs.

use crate::log::Log;
use crate::process::Process;
use crate::{ClusterOptions, Error};
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};

/// Longer than the line that says that a cluster is ready.
const LINE: u64 = 64 << 10;

/// A cluster that runs until it is stopped or dropped. Dropping waits for its end: nothing of it is left then.
pub struct Cluster {
    process: Process,
    /// Read by nobody, and open as long as davit may write.
    _stdout: Option<BufReader<ChildStdout>>,
    kubeconfig: PathBuf,
    url: String,
    client: kube::Client,
    // Dropped last, so that what davit writes at its end is in it.
    log: Log,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster")
            .field("process", &self.process_id())
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

impl Cluster {
    /// Starts a control plane.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn start() -> Result<Self, Error> {
        ClusterOptions::new().start().await
    }

    /// A client that may do everything.
    #[must_use]
    pub fn client(&self) -> kube::Client {
        self.client.clone()
    }

    /// The administrator's kubeconfig, for programs.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Where the API server is: `https://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The number of davit's process.
    #[must_use]
    pub fn process_id(&self) -> u32 {
        self.process.0.id()
    }

    /// What davit writes. The file is kept where the test fails.
    #[must_use]
    pub fn log(&self) -> &Path {
        self.log.path()
    }

    /// Stops the cluster and waits until nothing of it is left.
    ///
    /// # Errors
    /// [`Error::Ended`] if it does not end well.
    pub async fn stop(self) -> Result<(), Error> {
        let status = self.process.stop().await;
        if status.is_some_and(|status| status.success()) {
            return Ok(());
        }
        Err(Error::Ended {
            status: status.map_or_else(|| "no end in time".to_owned(), |s| s.to_string()),
            log: self.log.end(),
        })
    }

    pub(crate) async fn launch(options: ClusterOptions, place: Vec<String>) -> Result<Self, Error> {
        let binary = options.program()?;
        let (line, inventory) = options.command(place)?;
        let (log, file) = Log::create()?;
        let child = Command::new(&binary)
            .args(line)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(file)
            .spawn();
        let mut process = Process(child.map_err(|source| Error::Start { binary, source })?);
        let stdout = process.0.stdout.take().map(BufReader::new);
        let reading = tokio::task::spawn_blocking(move || ready(stdout));
        let read = tokio::time::timeout(options.limit, reading).await;
        let Ok(Ok((stdout, Some(ready)))) = read else {
            // First, so that the log is whole.
            drop(process);
            return Err(Error::NotReady {
                limit: options.limit,
                log: log.end(),
            });
        };
        drop(inventory);
        let client = client(&ready.kubeconfig).await;
        let client = client.map_err(|source| Error::Client {
            kubeconfig: ready.kubeconfig.clone(),
            source,
        })?;
        Ok(Self {
            process,
            _stdout: stdout,
            kubeconfig: ready.kubeconfig,
            url: ready.url,
            client,
            log,
        })
    }
}

/// What a cluster says when it is ready.
#[derive(Debug, PartialEq, Eq)]
struct Ready {
    kubeconfig: PathBuf,
    url: String,
}

/// Reads until the cluster says that it is ready. Blocks.
fn ready(
    stdout: Option<BufReader<ChildStdout>>,
) -> (Option<BufReader<ChildStdout>>, Option<Ready>) {
    let Some(mut stdout) = stdout else {
        return (None, None);
    };
    let mut line = String::new();
    // Whatever ends the reading before the line ends the start.
    let _cut = (&mut stdout).take(LINE).read_line(&mut line);
    let ready = parse(&line);
    (Some(stdout), ready)
}

fn parse(line: &str) -> Option<Ready> {
    let (_, rest) = line.trim_end().split_once("  kubeconfig=")?;
    let (kubeconfig, url) = rest.rsplit_once("  server=")?;
    Some(Ready {
        kubeconfig: kubeconfig.into(),
        url: url.to_owned(),
    })
}

async fn client(
    kubeconfig: &Path,
) -> Result<kube::Client, Box<dyn std::error::Error + Send + Sync>> {
    // Somebody else may have chosen before.
    let _chosen = rustls::crypto::ring::default_provider().install_default();
    let read = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
    Ok(kube::Client::try_from(config)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_that_says_ready_is_read() {
        let line = "ready in 31 ms  kubeconfig=/tmp/a b/k  server=https://127.0.0.1:1234\n";
        let expected = Ready {
            kubeconfig: "/tmp/a b/k".into(),
            url: "https://127.0.0.1:1234".to_owned(),
        };
        assert_eq!(parse(line), Some(expected));
        assert_eq!(parse(""), None);
        assert_eq!(parse("davit: something else"), None);
    }
}
