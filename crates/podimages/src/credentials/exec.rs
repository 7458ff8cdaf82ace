//! One call of a plugin.

use super::config::{Provider, TokenCache};
use davit_pods::durations;
use davit_task::ProcessGroup;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

/// How long a plugin may take.
const LIMIT: Duration = Duration::from_secs(60);
/// How long outputs are read that a program left behind in the background holds open.
const AFTER_EXIT: Duration = Duration::from_millis(500);
/// More than any answer has.
const MAX_OUTPUT: u64 = 1024 * 1024;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("error execing credential provider plugin {name} for image {image}: {cause}")]
    Exec {
        name: String,
        image: String,
        cause: String,
    },
    #[error("error decoding credential provider plugin response from stdout: {0}")]
    Decode(String),
    #[error(
        "apiVersion from credential plugin response did not match expected apiVersion:{expected}, actual apiVersion:{actual}"
    )]
    Version { expected: String, actual: String },
    #[error(
        "credential provider plugin {name:?} returned the service account token as the password for image {image:?}, \
         which is not allowed when service account cache type is not set to 'Token'"
    )]
    Token { name: String, image: String },
}

/// What a plugin is asked.
pub(super) struct Request<'a> {
    pub(super) image: &'a str,
    /// Empty when the plugin gets none.
    pub(super) token: &'a str,
    pub(super) annotations: &'a BTreeMap<String, String>,
}

/// What an answer is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(super) enum CacheKeyType {
    Image,
    Registry,
    Global,
}

#[derive(Debug, Deserialize)]
pub(super) struct Auth {
    #[serde(default)]
    pub(super) username: String,
    #[serde(default)]
    pub(super) password: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Body {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    cache_key_type: CacheKeyType,
    cache_duration: Option<String>,
    auth: Option<BTreeMap<String, Auth>>,
}

/// An answer.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) cache_key_type: CacheKeyType,
    /// Zero: not to be kept.
    pub(super) cache_duration: Option<Duration>,
    pub(super) auth: BTreeMap<String, Auth>,
}

fn body(provider: &Provider, request: &Request<'_>) -> Value {
    let mut body = json!({
        "kind": "CredentialProviderRequest",
        "apiVersion": provider.api_version,
        "image": request.image,
    });
    if !request.token.is_empty() {
        body["serviceAccountToken"] = json!(request.token);
    }
    if !request.annotations.is_empty() {
        body["serviceAccountAnnotations"] = json!(request.annotations);
    }
    body
}

/// What a plugin writes, up to a limit.
async fn read_all(
    stream: Option<impl AsyncRead + Unpin>,
    out: &mut Vec<u8>,
) -> std::io::Result<()> {
    if let Some(stream) = stream {
        stream.take(MAX_OUTPUT + 1).read_to_end(out).await?;
    }
    if out.len() as u64 > MAX_OUTPUT {
        let message = format!("more than {MAX_OUTPUT} bytes of output");
        return Err(std::io::Error::new(
            std::io::ErrorKind::FileTooLarge,
            message,
        ));
    }
    Ok(())
}

/// Asks a plugin; it gets a minute.
pub(super) async fn run(
    provider: &Provider,
    program: &Path,
    request: &Request<'_>,
) -> Result<Response, Error> {
    run_within(LIMIT, provider, program, request).await
}

async fn run_within(
    limit: Duration,
    provider: &Provider,
    program: &Path,
    request: &Request<'_>,
) -> Result<Response, Error> {
    let failed = |cause: String| Error::Exec {
        name: provider.name.clone(),
        image: request.image.to_owned(),
        cause,
    };
    let input = body(provider, request).to_string();
    let work = async {
        let mut command = Command::new(program);
        command
            .args(&provider.args)
            .envs(provider.env.iter().map(|(k, v)| (k, v)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut running = ProcessGroup::start(&mut command).await?;
        let child = running.leader();
        let stdin = child.stdin.take();
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let write = async {
            if let Some(mut stdin) = stdin {
                // A plugin need not read what it does not care for.
                let _ = stdin.write_all(input.as_bytes()).await;
            }
        };
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let status = {
            let talking = async {
                let read = tokio::join!(
                    read_all(stdout, &mut out),
                    read_all(stderr, &mut err),
                    write
                );
                read.0.and(read.1)
            };
            let mut talking = std::pin::pin!(talking);
            tokio::select! {
                status = child.wait() => {
                    // A program that it has left in the background may hold its outputs.
                    if let Ok(read) = tokio::time::timeout(AFTER_EXIT, talking).await {
                        read?;
                    }
                    status?
                }
                read = &mut talking => {
                    read?;
                    child.wait().await?
                }
            }
        };
        std::io::Result::Ok(std::process::Output {
            stdout: out,
            stderr: err,
            status,
        })
    };
    let output = match tokio::time::timeout(limit, work).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Err(failed(error.to_string())),
        Err(_) => return Err(failed("context deadline exceeded".to_owned())),
    };
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let status = output.status.to_string();
        let status = status.replace("exit status: ", "exit status ");
        return Err(failed(format!("{status}: {}", stderr.trim())));
    }
    let response = parse(provider, &output.stdout)?;
    let attributes = provider.token_attributes.as_ref();
    if attributes.is_some_and(|a| a.cache_type != TokenCache::Token)
        && !request.token.is_empty()
        && response.auth.values().any(|a| a.password == request.token)
    {
        return Err(Error::Token {
            name: provider.name.clone(),
            image: request.image.to_owned(),
        });
    }
    Ok(response)
}

fn parse(provider: &Provider, stdout: &[u8]) -> Result<Response, Error> {
    let body: Body = serde_json::from_slice(stdout).map_err(|e| Error::Decode(e.to_string()))?;
    if body.kind != "CredentialProviderResponse" {
        return Err(Error::Decode(format!(
            "failed to decode CredentialProviderResponse, unexpected kind {:?}",
            body.kind
        )));
    }
    if body.api_version != provider.api_version {
        return Err(Error::Version {
            expected: provider.api_version.clone(),
            actual: body.api_version,
        });
    }
    let duration = body
        .cache_duration
        .as_deref()
        .map(durations::parse)
        .transpose();
    Ok(Response {
        cache_key_type: body.cache_key_type,
        cache_duration: duration.map_err(|e| Error::Decode(format!("cacheDuration: {e}")))?,
        auth: body.auth.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A plugin that has another program answer, which does not.
    #[tokio::test]
    async fn programs_of_a_plugin_end_with_its_time() {
        let dir = tempfile::tempdir().unwrap();
        let (program, pid) = (dir.path().join("plugin"), dir.path().join("pid"));
        let script = format!(
            "#!/bin/sh\nsleep 600 &\necho $! > {}\nwait\n",
            pid.display()
        );
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let provider = Provider {
            name: "plugin".to_owned(),
            match_images: vec!["*".to_owned()],
            default_cache: Duration::ZERO,
            api_version: "credentialprovider.kubelet.k8s.io/v1".to_owned(),
            args: Vec::new(),
            env: Vec::new(),
            token_attributes: None,
        };
        let annotations = BTreeMap::new();
        let request = Request {
            image: "a/b",
            token: "",
            annotations: &annotations,
        };
        // One that is left behind, out of the plugin's group, holds its outputs. It has answered all the same.
        let answering = dir.path().join("answering");
        let answer = json!({"kind": "CredentialProviderResponse", "apiVersion": provider.api_version,
            "cacheKeyType": "Image", "auth": {}});
        let left = dir.path().join("left");
        let script = format!(
            "#!/bin/sh\nsetsid sleep 600 &\necho $! > {}\necho '{answer}'\n",
            left.display()
        );
        std::fs::write(&answering, script).unwrap();
        std::fs::set_permissions(&answering, std::fs::Permissions::from_mode(0o755)).unwrap();
        let answered = run_within(Duration::from_secs(30), &provider, &answering, &request).await;
        answered.unwrap();
        let left: i32 = std::fs::read_to_string(&left)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        let left = rustix::process::Pid::from_raw(left).unwrap();
        rustix::process::kill_process(left, rustix::process::Signal::KILL).unwrap();
        let error = run_within(Duration::from_secs(2), &provider, &program, &request).await;
        let error = error.unwrap_err().to_string();
        assert!(error.contains("deadline"), "{error}");
        let called: i32 = std::fs::read_to_string(&pid)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        let called = rustix::process::Pid::from_raw(called).unwrap();
        let end = std::time::Instant::now() + Duration::from_secs(10);
        while is_running(called) {
            assert!(std::time::Instant::now() < end, "it still runs");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Whether a process is there and no mere entry of one that has ended.
    fn is_running(process: rustix::process::Pid) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    }
}
