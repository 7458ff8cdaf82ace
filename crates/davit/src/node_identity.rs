//! The node's certificate: asked for with a bootstrap token, from a cluster that is known or found by it, and renewed before it ends, as the kubelet does
//! (<https://kubernetes.io/docs/reference/access-authn-authz/kubelet-tls-bootstrapping/>).

use crate::args::Node;
use crate::join;
use anyhow::{Context, Result};
use davit_client::Rotation;
use davit_client::certificate::{CertificateRequest, Issued, write_private};
use davit_task::clock;
use k8s_openapi::jiff::Timestamp;
use kube::config::{KubeConfigOptions, Kubeconfig};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tokio_util::sync::CancellationToken;

const SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// Certificate and key, as the kubelet's file.
const CURRENT: &str = "kubelet-client-current.pem";
/// The key of a request that is under way: after a restart the same request is waited for.
const PENDING_KEY: &str = "kubelet-client.key.tmp";
/// Between tries to renew.
const RETRY: Duration = Duration::from_secs(60);

/// Reaches the API server as the node `name`: with the kubeconfig, or first as somebody who joins, to get a certificate. With rotation the certificate is renewed until `cancel`.
pub(crate) struct Identity {
    pub(crate) client: kube::Client,
    /// Where the client is from.
    pub(crate) kubeconfig: PathBuf,
    rotation: Option<Renewal>,
}

struct Renewal {
    rotation: Rotation,
    kubeconfig: PathBuf,
    dir: PathBuf,
    name: String,
}

impl Identity {
    /// As whom the node agent works.
    pub(crate) async fn new(args: &Node, data_dir: &Path, name: &str) -> Result<Self> {
        let dir = data_dir.join("node-pki");
        let kubeconfig = args.kubeconfig(data_dir)?;
        if !is_usable(&kubeconfig, &dir)
            && let Some(bootstrap) = bootstrap(args, name).await?
        {
            let client = client(bootstrap.clone()).await?;
            let wanted = wanted(name);
            let pem = wanted.obtain(&client, &dir.join(PENDING_KEY)).await?;
            write_private(&dir.join(CURRENT), &pem)?;
            write_kubeconfig(bootstrap, &kubeconfig, &dir.join(CURRENT))?;
            tracing::info!(node = name, "the node has got its certificate");
        }
        let client = davit_client::from_kubeconfig(&kubeconfig).await?;
        let mut identity = Self {
            client,
            kubeconfig,
            rotation: None,
        };
        if args.rotates_certificates()? && dir.join(CURRENT).exists() {
            let (client, rotation) = davit_client::rotating(identity.client);
            identity.client = client;
            identity.rotation = Some(Renewal {
                rotation,
                kubeconfig: identity.kubeconfig.clone(),
                dir,
                name: name.to_owned(),
            });
        }
        Ok(identity)
    }

    /// Renews the certificate in time until `cancel`.
    pub(crate) async fn attend(self, cancel: CancellationToken) {
        let Some(renewal) = self.rotation else { return };
        loop {
            let due = renewal.due().unwrap_or_else(|| SystemTime::now() + RETRY);
            tokio::select! {
                () = cancel.cancelled() => return,
                () = clock::sleep_until(due) => {}
            }
            let renewed = tokio::select! {
                () = cancel.cancelled() => return,
                renewed = renewal.renew(&self.client) => renewed,
            };
            if let Err(error) = renewed {
                tracing::error!(
                    error = format!("{error:#}"),
                    "renewing the node's certificate"
                );
                tokio::select! {
                    () = cancel.cancelled() => return,
                    () = tokio::time::sleep(RETRY) => {}
                }
            }
        }
    }
}

impl Renewal {
    fn due(&self) -> Option<SystemTime> {
        let pem = std::fs::read(self.dir.join(CURRENT)).ok()?;
        Some(Issued::read(&pem)?.renewal())
    }

    async fn renew(&self, client: &kube::Client) -> Result<()> {
        let wanted = wanted(&self.name);
        let pem = wanted.obtain(client, &self.dir.join(PENDING_KEY)).await?;
        write_private(&self.dir.join(CURRENT), &pem)?;
        let next = davit_client::from_kubeconfig(&self.kubeconfig).await?;
        self.rotation.replace(next);
        tracing::info!(node = self.name, "the node's certificate was renewed");
        Ok(())
    }
}

/// How the API server is reached by a node that has no certificate yet, if the flags say.
async fn bootstrap(args: &Node, name: &str) -> Result<Option<Kubeconfig>> {
    if let Some(file) = &args.bootstrap_kubeconfig {
        let read = Kubeconfig::read_from(file);
        let read = read.with_context(|| format!("kubeconfig {}", file.display()))?;
        return Ok(Some(read));
    }
    if !args.join.are_given() {
        return Ok(None);
    }
    let found = args.join.discover().await?;
    join::check_name(&client(found.clone()).await?, name).await?;
    Ok(Some(found))
}

async fn client(kubeconfig: Kubeconfig) -> Result<kube::Client> {
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await;
    let config = config.context("cannot use the credentials for joining")?;
    let client = davit_client::from_config(config).await;
    client.context("cannot use the credentials for joining")
}

/// What the kubelet asks for.
fn wanted(name: &str) -> CertificateRequest {
    CertificateRequest {
        signer: SIGNER,
        usages: &["digital signature", "client auth"],
        common_name: format!("system:node:{name}"),
        organizations: vec!["system:nodes".to_owned()],
        dns_names: Vec::new(),
        ip_addresses: Vec::new(),
    }
}

/// Whether there is a kubeconfig, and a certificate from before that is still good or none is its own.
fn is_usable(kubeconfig: &Path, dir: &Path) -> bool {
    if !kubeconfig.exists() {
        return false;
    }
    let Ok(pem) = std::fs::read(dir.join(CURRENT)) else {
        // it is somebody's own
        return true;
    };
    Issued::read(&pem).is_some_and(|c| c.not_after > Timestamp::now().as_second())
}

/// A kubeconfig for the cluster that was joined with the certificate's file as identity.
fn write_kubeconfig(mut config: Kubeconfig, kubeconfig: &Path, identity: &Path) -> Result<()> {
    let unusable = "the kubeconfig for joining has no current context";
    let identity = std::path::absolute(identity).context("certificate")?;
    let identity = identity.to_string_lossy().into_owned();
    let wanted = config.current_context.clone().unwrap_or_default();
    let context = config.contexts.iter_mut().find(|c| c.name == wanted);
    let context = context.and_then(|c| c.context.as_mut());
    let context = context.context(unusable)?;
    context.user = Some(USER.to_owned());
    let user = serde_json::from_value(serde_json::json!({
        "name": USER,
        "user": { "client-certificate": identity, "client-key": identity },
    }));
    config.auth_infos = vec![user.context("kubeconfig")?];
    let text = serde_json::to_string_pretty(&config).context("kubeconfig")?;
    Ok(write_private(kubeconfig, &text)?)
}

const USER: &str = "default-auth";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kubeconfig_has_the_clusters_address_and_the_certificate() {
        let dir = tempfile::tempdir().unwrap();
        let (bootstrap, kubeconfig) = (dir.path().join("b"), dir.path().join("k"));
        std::fs::write(
            &bootstrap,
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{name: x, cluster: {server: 'https://1.2.3.4'}}]\n\
             contexts: [{name: c, context: {cluster: x, user: u}}]\n\
             users: [{name: u, user: {token: t}}]\n",
        )
        .unwrap();
        assert!(!is_usable(&kubeconfig, dir.path()));
        let bootstrap = Kubeconfig::read_from(&bootstrap).unwrap();
        write_kubeconfig(bootstrap, &kubeconfig, Path::new("/pki/c.pem")).unwrap();
        let read = Kubeconfig::read_from(&kubeconfig).unwrap();
        let user = read.auth_infos[0].auth_info.as_ref().unwrap();
        assert_eq!(user.client_certificate.as_deref(), Some("/pki/c.pem"));
        assert!(user.token.is_none());
        assert!(is_usable(&kubeconfig, dir.path()));
    }
}
