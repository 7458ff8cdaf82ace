//! Credentials that a program says, which a kubeconfig names (client.authentication.k8s.io,
//! <https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins>).
//!
//! `kube` runs such a program for as long as it likes, keeps all that it writes, and shows it, tokens included, when the
//! program fails. Here it has a deadline and a limit, ends with what it has called, and what it says is shown nowhere.

use crate::Error;
use crate::bearer::{Bearer, Lasting, header_of, with_bearer};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use davit_task::ProcessGroup;
use http::HeaderValue;
use k8s_openapi::jiff::Timestamp;
use kube::config::{AuthInfo, ExecConfig, ExecInteractiveMode};
use serde::Deserialize;
use serde_json::json;
use std::io::IsTerminal as _;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;
use tokio::sync::Mutex;

/// How long a program may take.
const LIMIT: Duration = Duration::from_secs(60);
/// How long one may take that asks somebody at a terminal.
const LIMIT_ASKING: Duration = Duration::from_mins(10);
/// More than any answer has.
const MAX_OUTPUT: u64 = 1 << 20;
/// What is kept of what it says beside it.
const MAX_STDERR: u64 = 64 << 10;
/// What is shown of that.
const MAX_SHOWN: usize = 400;
/// A token is renewed so long before it ends.
const AHEAD: Duration = Duration::from_secs(60);

/// Why a program has given no credentials. What it has written to its output is in none of them.
#[derive(Debug, thiserror::Error)]
pub enum ExecPluginError {
    /// As client-go since 1.26; it runs a program, too.
    #[error("the auth provider gcp is no more; use gke-gcloud-auth-plugin")]
    Removed,
    /// The kubeconfig names none.
    #[error("it has no command")]
    NoCommand,
    /// It asks somebody, and nobody is there.
    #[error("it has to ask somebody (interactiveMode Always), and there is no terminal")]
    NoTerminal,
    /// `provideClusterInfo` without a cluster.
    #[error("it is to be told of the cluster, and there is none")]
    NoCluster,
    /// The system says why.
    #[error("it cannot be run: {0}")]
    Run(#[from] std::io::Error),
    /// It was ended.
    #[error("it has not ended within {0:?}")]
    Late(Duration),
    /// It says more than any credential has.
    #[error("it has written more than {MAX_OUTPUT} bytes")]
    TooMuch,
    /// By its own account.
    #[error("{status}{said}")]
    Failed {
        /// How it has ended.
        status: std::process::ExitStatus,
        /// The beginning of what it has said.
        said: String,
    },
    /// Neither JSON nor YAML of an ExecCredential, or another version.
    #[error("what it has written is no ExecCredential of {0}")]
    NoCredential(String),
    /// A token that no header can have, or a time that is none.
    #[error("its {0} cannot be used")]
    Unusable(&'static str),
}

/// What a program says.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredential {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    expiration_timestamp: Option<String>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

/// What there is for a while.
struct Credential {
    /// `Bearer`, and the token.
    header: Option<HeaderValue>,
    token: Option<String>,
    /// Certificate and key, PEM.
    identity: Option<(String, String)>,
    until: Option<Timestamp>,
}

/// A program, and what it has said last. Clones share it.
#[derive(Clone)]
pub(crate) struct Plugin {
    exec: Arc<ExecConfig>,
    last: Arc<Mutex<Lasting>>,
}

/// Runs the program that a configuration names, if it does and has no other credentials, and puts what it says in its
/// place: the certificate for good, and the token too where `keeps_token`; otherwise the plugin gives it to each request.
///
/// # Errors
/// [`Error::Plugin`].
pub(crate) async fn settle(
    auth: &mut AuthInfo,
    keeps_token: bool,
) -> Result<Option<Plugin>, Error> {
    if let Some(provider) = auth.auth_provider.as_ref().filter(|p| p.name == "gcp") {
        return Err(Error::Plugin {
            command: provider.name.clone(),
            source: ExecPluginError::Removed,
        });
    }
    let has_other = auth.token.is_some()
        || auth.token_file.is_some()
        || (auth.username.is_some() && auth.password.is_some())
        || auth.auth_provider.is_some();
    let Some(exec) = auth.exec.take().filter(|_| !has_other) else {
        return Ok(None);
    };
    let credential = run(&exec, LIMIT).await.map_err(|source| Error::Plugin {
        command: exec.command.clone().unwrap_or_default(),
        source,
    })?;
    if let Some((certificate, key)) = &credential.identity {
        auth.client_certificate_data = Some(STANDARD.encode(certificate));
        auth.client_key_data = Some(STANDARD.encode(key).into());
    }
    if credential.token.is_none() {
        return Ok(None);
    }
    if keeps_token {
        auth.token = credential.token.map(Into::into);
        return Ok(None);
    }
    Ok(Some(Plugin {
        exec: Arc::new(exec),
        last: Arc::new(Mutex::new(credential.lasting())),
    }))
}

impl Plugin {
    /// A client whose requests have the token of now.
    pub(crate) fn client(self, inner: kube::Client) -> kube::Client {
        with_bearer(inner, self)
    }
}

impl Bearer for Plugin {
    type Error = ExecPluginError;

    async fn header(&self) -> Result<Option<HeaderValue>, ExecPluginError> {
        let mut last = self.last.lock().await;
        if last.is_over() {
            *last = run(&self.exec, LIMIT).await?.lasting();
        }
        Ok(last.header.clone())
    }

    async fn refused(&self, header: HeaderValue) {
        self.last.lock().await.refuse(&header);
    }
}

impl Credential {
    fn lasting(self) -> Lasting {
        let renewed_at = self.until.map(|until| {
            let ahead = until.saturating_sub(AHEAD);
            ahead.unwrap_or(until)
        });
        Lasting {
            header: self.header,
            renewed_at,
        }
    }
}

async fn run(exec: &ExecConfig, limit: Duration) -> Result<Credential, ExecPluginError> {
    let asks = is_asking(exec)?;
    let mut command = command(exec, asks)?;
    let limit = if asks { LIMIT_ASKING } else { limit };
    let work = async {
        // One that asks reads from the terminal, which a group of its own could not.
        let mut running = if asks {
            Running::Asking(Box::new(command.kill_on_drop(true).spawn()?))
        } else {
            Running::Group(ProcessGroup::start(&mut command).await?)
        };
        let child = match &mut running {
            Running::Asking(child) => child,
            Running::Group(group) => group.leader(),
        };
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (stdout, stderr) = tokio::join!(first(stdout, MAX_OUTPUT), beginning(stderr));
        let stdout = stdout?;
        let status = child.wait().await?;
        if !status.success() {
            return Err(ExecPluginError::Failed {
                status,
                said: shown(&stderr?),
            });
        }
        Ok(stdout)
    };
    let stdout = tokio::time::timeout(limit, work)
        .await
        .map_err(|_| ExecPluginError::Late(limit))??;
    read(exec, &stdout)
}

/// A program that runs.
enum Running {
    Asking(Box<tokio::process::Child>),
    Group(ProcessGroup),
}

fn is_asking(exec: &ExecConfig) -> Result<bool, ExecPluginError> {
    let terminal = std::io::stdin().is_terminal();
    match exec.interactive_mode {
        Some(ExecInteractiveMode::Never) => Ok(false),
        Some(ExecInteractiveMode::Always) if !terminal => Err(ExecPluginError::NoTerminal),
        _ => Ok(terminal),
    }
}

fn command(exec: &ExecConfig, asks: bool) -> Result<Command, ExecPluginError> {
    let mut command = Command::new(exec.command.as_ref().ok_or(ExecPluginError::NoCommand)?);
    command.args(exec.args.iter().flatten());
    for variable in exec.env.iter().flatten() {
        if let (Some(name), Some(value)) = (variable.get("name"), variable.get("value")) {
            command.env(name, value);
        }
    }
    let mut spec = json!({ "interactive": asks });
    if exec.provide_cluster_info {
        let cluster = exec.cluster.as_ref().ok_or(ExecPluginError::NoCluster)?;
        spec["cluster"] = json!(cluster);
    }
    let info = json!({ "apiVersion": exec.api_version, "kind": "ExecCredential", "spec": spec });
    command.env("KUBERNETES_EXEC_INFO", info.to_string());
    for name in exec.drop_env.iter().flatten() {
        command.env_remove(name);
    }
    command.stdout(Stdio::piped());
    if asks {
        command.stdin(Stdio::inherit()).stderr(Stdio::inherit());
    } else {
        command.stdin(Stdio::null()).stderr(Stdio::piped());
    }
    Ok(command)
}

/// All of a stream, or an error when that is more than it may be.
async fn first(
    stream: Option<impl AsyncRead + Unpin>,
    limit: u64,
) -> Result<Vec<u8>, ExecPluginError> {
    let mut out = Vec::new();
    if let Some(stream) = stream {
        stream.take(limit + 1).read_to_end(&mut out).await?;
    }
    if out.len() as u64 > limit {
        return Err(ExecPluginError::TooMuch);
    }
    Ok(out)
}

/// The beginning of a stream; the rest is read and dropped.
async fn beginning(stream: Option<impl AsyncRead + Unpin>) -> Result<Vec<u8>, ExecPluginError> {
    let mut out = Vec::new();
    if let Some(mut stream) = stream {
        (&mut stream).take(MAX_STDERR).read_to_end(&mut out).await?;
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await?;
    }
    Ok(out)
}

fn shown(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let text: String = text.trim().chars().take(MAX_SHOWN).collect();
    let text = text.escape_debug().to_string();
    if text.is_empty() {
        return text;
    }
    format!(": {text}")
}

fn read(exec: &ExecConfig, stdout: &[u8]) -> Result<Credential, ExecPluginError> {
    let version = exec.api_version.clone().unwrap_or_default();
    // YAML as well, as client-go reads it; the error would quote it.
    let said: ExecCredential = serde_saphyr::from_slice(stdout)
        .map_err(|_| ExecPluginError::NoCredential(version.clone()))?;
    let status = said.status.filter(|_| said.kind == "ExecCredential");
    let status = status.filter(|_| version.is_empty() || said.api_version == version);
    let status = status.ok_or(ExecPluginError::NoCredential(version))?;
    let header = status
        .token
        .as_ref()
        .map(|token| header_of(token).ok_or(ExecPluginError::Unusable("token")));
    let until = status.expiration_timestamp.map(|time| {
        time.parse()
            .map_err(|_| ExecPluginError::Unusable("expirationTimestamp"))
    });
    let identity = status.client_certificate_data.zip(status.client_key_data);
    if header.is_none() && identity.is_none() {
        return Err(ExecPluginError::Unusable(
            "answer, which has neither a token nor a certificate,",
        ));
    }
    Ok(Credential {
        header: header.transpose()?,
        token: status.token,
        identity,
        until: until.transpose()?,
    })
}

#[cfg(test)]
mod tests;
