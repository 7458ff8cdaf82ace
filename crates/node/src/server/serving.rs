//! The node server's certificate by request (`serverTLSBootstrap`): asked for with the node's addresses, somebody approves
//! it, and it is renewed in time and when the addresses change. Until there is one, no connection is served.
//! <https://kubernetes.io/docs/reference/access-authn-authz/kubelet-tls-bootstrapping/>

use crate::context::Context;
use arc_swap::ArcSwapOption;
use davit_client::certificate::{CertificateError, CertificateRequest, Issued, write_private};
use davit_task::clock;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeAddress};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio_util::sync::CancellationToken;

const SIGNER: &str = "kubernetes.io/kubelet-serving";
/// Certificate and key, as the kubelet's file.
const CURRENT: &str = "kubelet-server-current.pem";
const PENDING_KEY: &str = "kubelet-server.key.tmp";
/// Between tries.
const RETRY: Duration = Duration::from_secs(60);

/// The certificate that is served at the moment.
#[derive(Debug, Default)]
pub(super) struct Serving {
    key: ArcSwapOption<CertifiedKey>,
    issued: ArcSwapOption<Issued>,
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let key = self.key.load_full();
        if key.is_none() {
            tracing::debug!("no serving certificate available for the node server");
        }
        key
    }
}

impl Serving {
    /// The one of before, if it is still good.
    pub(super) fn load(ctx: &Context) -> Self {
        let this = Self::default();
        if let Ok(pem) = std::fs::read(current(ctx))
            && Issued::read(&pem).is_some_and(|c| c.not_after > now())
            && let Err(error) = this.serve(&pem)
        {
            tracing::warn!(%error, "the node server's certificate cannot be used, another is asked for");
        }
        this
    }

    /// Serves certificate and key in PEM from now on.
    fn serve(&self, pem: &[u8]) -> Result<(), super::tls::Error> {
        let chain = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(pem)?;
        let provider = rustls::crypto::ring::default_provider();
        let key = CertifiedKey::from_der(chain, key, &provider)?;
        self.issued.store(Issued::read(pem).map(Arc::new));
        self.key.store(Some(Arc::new(key)));
        Ok(())
    }

    /// When another certificate than the one that is served is to be asked for, where this is wanted.
    fn due(&self, wanted: &CertificateRequest) -> SystemTime {
        let issued = self.issued.load_full();
        let issued = issued.filter(|issued| wanted.is_met_by(issued));
        issued.map_or(UNIX_EPOCH, |issued| issued.renewal())
    }
}

fn now() -> i64 {
    Timestamp::now().as_second()
}

fn current(ctx: &Context) -> PathBuf {
    ctx.paths.pki().join(CURRENT)
}

/// Keeps the certificate up to date until `cancel`.
pub(super) async fn run(ctx: Arc<Context>, serving: Arc<Serving>, cancel: CancellationToken) {
    let work = async {
        while !cancel.is_cancelled() {
            let Some(wanted) = wanted(&ctx) else {
                tracing::debug!(
                    "no serving certificate is asked for before the node has an address"
                );
                changed(&ctx, None).await;
                continue;
            };
            tokio::select! {
                () = changed(&ctx, Some(&wanted)) => continue,
                () = clock::sleep_until(serving.due(&wanted)) => {}
            }
            let renewed = tokio::select! {
                // what is under way would be for the wrong addresses
                () = changed(&ctx, Some(&wanted)) => continue,
                renewed = renew(&ctx, &serving, &wanted) => renewed,
            };
            if let Err(error) = renewed {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "the node server has no new certificate"
                );
                tokio::select! {
                    () = changed(&ctx, Some(&wanted)) => {}
                    () = tokio::time::sleep(RETRY) => {}
                }
            }
        }
    };
    tokio::select! { biased; () = cancel.cancelled() => {} () = work => {} }
}

/// Why there is no new certificate.
#[derive(Debug, thiserror::Error)]
enum RenewError {
    #[error(transparent)]
    Request(#[from] CertificateError),
    #[error(transparent)]
    Use(#[from] super::tls::Error),
}

async fn renew(
    ctx: &Context,
    serving: &Serving,
    wanted: &CertificateRequest,
) -> Result<(), RenewError> {
    let pending = ctx.paths.pki().join(PENDING_KEY);
    let pem = wanted.obtain(&ctx.client, &pending).await?;
    serving.serve(pem.as_bytes())?;
    write_private(&current(ctx), &pem)?;
    tracing::info!(
        node = ctx.options.node_name,
        "the node server has a new certificate"
    );
    Ok(())
}

/// Waits until another certificate is wanted.
async fn changed(ctx: &Context, before: Option<&CertificateRequest>) {
    let mut changes = ctx.node.subscribe();
    while wanted(ctx).as_ref() == before {
        if changes.next().await.is_none() {
            // nothing changes any more: the agent ends
            return std::future::pending().await;
        }
    }
}

/// What is asked for; nothing before the node has an IP address.
fn wanted(ctx: &Context) -> Option<CertificateRequest> {
    let node = ctx.node_object()?;
    request_of(&ctx.options.node_name, addresses(&node))
}

fn addresses(node: &Node) -> &[NodeAddress] {
    let status = node.status.as_ref();
    status
        .and_then(|status| status.addresses.as_deref())
        .unwrap_or_default()
}

fn request_of(node_name: &str, addresses: &[NodeAddress]) -> Option<CertificateRequest> {
    let (mut names, mut ips) = (BTreeSet::new(), BTreeSet::new());
    for address in addresses {
        let ip = address.address.parse::<IpAddr>();
        match (&*address.type_, ip) {
            ("Hostname" | "InternalIP" | "ExternalIP", Ok(ip)) => {
                ips.insert(ip);
            }
            ("Hostname", Err(_)) | ("InternalDNS" | "ExternalDNS", _) => {
                names.insert(address.address.clone());
            }
            _ => {}
        }
    }
    (!ips.is_empty()).then(|| CertificateRequest {
        signer: SIGNER,
        usages: &["digital signature", "server auth"],
        common_name: format!("system:node:{node_name}"),
        organizations: vec!["system:nodes".to_owned()],
        dns_names: names.into_iter().collect(),
        ip_addresses: ips.into_iter().collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(kind: &str, address: &str) -> NodeAddress {
        NodeAddress {
            type_: kind.to_owned(),
            address: address.to_owned(),
        }
    }

    #[test]
    fn the_names_are_the_nodes_addresses() {
        let list = [
            address("InternalIP", "10.0.0.2"),
            address("InternalIP", "fd00::2"),
            address("ExternalIP", "192.0.2.1"),
            address("ExternalIP", "not an address"),
            address("Hostname", "n1"),
            address("InternalDNS", "n1.example.com"),
            address("Hostname", "10.0.0.1"),
        ];
        let request = request_of("n1", &list).unwrap();
        assert_eq!(request.common_name, "system:node:n1");
        assert_eq!(request.organizations, ["system:nodes"]);
        assert_eq!(request.dns_names, ["n1", "n1.example.com"]);
        let ips: Vec<String> = request.ip_addresses.iter().map(IpAddr::to_string).collect();
        assert_eq!(ips, ["10.0.0.1", "10.0.0.2", "192.0.2.1", "fd00::2"]);
        let serving = Serving::default();
        assert_eq!(serving.due(&request), UNIX_EPOCH);
        // a name alone is not enough
        assert_eq!(request_of("n1", &list[4..6]), None);
    }
}
