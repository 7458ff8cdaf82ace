//! The server of a component that runs alone (`davit scheduler`, `davit controllers`), under the flag names of kube-scheduler
//! and kube-controller-manager.

use crate::cluster_ca::cluster_ca;
use crate::protection::duration;
use crate::serving::TlsFlags;
use anyhow::{Context, Result};
use davit_client::Reviews;
use davit_serving::{ComponentServer, ServedComponent, ServingOptions};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The HTTPS server of a component that runs alone.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Serving")]
pub(crate) struct ComponentServingFlags {
    /// Address of /healthz, /livez, /readyz, /metrics and /configz
    #[arg(long, value_name = "IP", default_value = "0.0.0.0")]
    bind_address: IpAddr,
    /// Certificate of the server, PEM [default: a self-signed one for localhost, made anew at each start]
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    tls_cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    tls_private_key_file: Option<PathBuf>,
    #[command(flatten)]
    tls: TlsFlags,
    /// Authorities of callers' certificates, PEM [default: the cluster's, from the kubeconfig]
    #[arg(long, value_name = "FILE")]
    client_ca_file: Option<PathBuf>,
    /// Has no effect but a warning: callers are known by their own certificates and tokens, what a front proxy says of them
    /// is not believed
    #[arg(long, value_name = "FILE")]
    requestheader_client_ca_file: Option<PathBuf>,
    /// Whom to ask whose a bearer token is [default: the component's API server, in its own name]
    #[arg(long, value_name = "FILE")]
    authentication_kubeconfig: Option<PathBuf>,
    /// How long the answer counts
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    authentication_token_webhook_cache_ttl: Duration,
    /// Whom to ask what callers may do [default: the component's API server, in its own name]
    #[arg(long, value_name = "FILE")]
    authorization_kubeconfig: Option<PathBuf>,
    /// How long a yes counts
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    authorization_webhook_cache_authorized_ttl: Duration,
    /// How long a no counts
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    authorization_webhook_cache_unauthorized_ttl: Duration,
    /// Paths that everybody may ask
    #[arg(
        long,
        value_name = "PATH,...",
        value_delimiter = ',',
        default_value = "/healthz,/readyz,/livez"
    )]
    authorization_always_allow_paths: Vec<String>,
}

impl ComponentServingFlags {
    /// Where the server of this port listens.
    pub(crate) fn address(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.bind_address, port)
    }

    /// Serves in a task of the set, about a component that is reached by `kubeconfig`, until `cancel`. There is no server at
    /// port 0.
    pub(crate) async fn serve<C: ServedComponent>(
        &self,
        port: u16,
        component: C,
        kubeconfig: &Path,
        tasks: &mut JoinSet<Result<()>>,
        cancel: CancellationToken,
    ) -> Result<()> {
        if port == 0 {
            return Ok(());
        }
        if self.requestheader_client_ca_file.is_some() {
            tracing::warn!(
                "--requestheader-client-ca-file has no effect: what front proxies say of callers is not believed"
            );
        }
        let options = self.options(kubeconfig).await?;
        let address = self.address(port);
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| format!("cannot listen on {address} (--secure-port)"))?;
        let server = ComponentServer::new(listener, component, options)?;
        tasks.spawn(async move {
            server.run(cancel).await;
            Ok(())
        });
        Ok(())
    }

    async fn options(&self, kubeconfig: &Path) -> Result<ServingOptions> {
        let read = |file: &Path| std::fs::read(file).with_context(|| file.display().to_string());
        let certificate = match (&self.tls_cert_file, &self.tls_private_key_file) {
            (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
            _ => None,
        };
        let client_ca = match &self.client_ca_file {
            Some(file) => Some(read(file)?),
            None => cluster_ca(kubeconfig)?.map(String::into_bytes),
        };
        let authentication = self.authentication_kubeconfig.as_deref();
        let authorization = self.authorization_kubeconfig.as_deref();
        let reviews = Reviews::new(
            davit_client::from_kubeconfig(authentication.unwrap_or(kubeconfig)).await?,
            davit_client::from_kubeconfig(authorization.unwrap_or(kubeconfig)).await?,
            [
                self.authentication_token_webhook_cache_ttl,
                self.authorization_webhook_cache_authorized_ttl,
                self.authorization_webhook_cache_unauthorized_ttl,
            ],
        );
        Ok(ServingOptions {
            certificate,
            tls: self.tls.policy()?,
            client_ca,
            reviews,
            always_allow_paths: self.authorization_always_allow_paths.clone(),
        })
    }
}
