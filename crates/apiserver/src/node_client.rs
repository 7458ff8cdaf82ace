//! Connections to nodes, pods and services, each to be used for one request.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use davit_access::{NODE_PREFIX, NODES};
use davit_client::subject::Subject;
use davit_pki::first_certificate;
use davit_webhook::Loopback;
use davit_webhook::tls::{ShownIdentity, TlsError, Trust, client_config};
use http::Response;
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::body::{BoxError, ResponseBody};

const BUFFER: usize = 32 * 1024;
/// How long two connections may take to go over to another protocol: a backend that does not take the rest of the request never
/// does.
const UPGRADE: Duration = Duration::from_secs(30);

/// A server to forward to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Destination {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) tls: bool,
    /// Whose server this is, when it is a node's: the kubelet client certificate is shown, and its own is checked.
    pub(crate) node: Option<String>,
    /// Where to connect to instead of the host, which is still whose certificate is expected.
    pub(crate) via: Option<IpAddr>,
}

/// Connects to nodes and pods and keeps track of what is connected.
pub(crate) struct NodeClient {
    node: TlsConnector,
    /// The cluster's own authority, DER: what it has signed says whose it is.
    authority: Option<Vec<u8>>,
    plain: TlsConnector,
    loopback: Loopback,
    tasks: TaskTracker,
    cancel: CancellationToken,
}

impl std::fmt::Debug for NodeClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NodeClient({} connections)", self.tasks.len())
    }
}

/// A connection that ends when this is dropped.
pub(crate) type Driven = AbortOnDropHandle<()>;

/// A connection, with TLS or without.
pub(crate) trait Transport: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Transport for T {}

impl NodeClient {
    /// `identity` is what nodes are shown, `ca` verifies them when given. What `authority`, the cluster's own, has signed
    /// must be the node's that is meant. Everything ends with `cancel`.
    pub(crate) fn new(
        identity: Option<Arc<ShownIdentity>>,
        ca: Option<&str>,
        authority: Option<&str>,
        loopback: Loopback,
        cancel: CancellationToken,
    ) -> Result<Self, TlsError> {
        let trust = ca.map_or(Trust::Any, |pem| Trust::Authorities(pem.to_owned()));
        Ok(Self {
            node: TlsConnector::from(Arc::new(client_config(&trust, identity)?)),
            authority: authority.and_then(first_certificate),
            plain: TlsConnector::from(Arc::new(client_config(&Trust::Any, None)?)),
            loopback,
            tasks: TaskTracker::new(),
            cancel,
        })
    }

    /// Runs something that goes on after its request was answered, until it or the server ends.
    pub(crate) fn track(&self, work: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        let cancel = self.cancel.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = cancel.cancelled() => {}
                () = work => {}
            }
        })
    }

    /// Runs a connection to a backend as long as what is returned is held: by itself it does not end while there is something
    /// to be written that the backend does not take, whether anybody waits for an answer or not.
    pub(crate) fn drive(&self, connection: impl Future<Output = ()> + Send + 'static) -> Driven {
        AbortOnDropHandle::new(self.track(connection))
    }

    /// Waits until everything forwarded has ended.
    pub(crate) async fn drained(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Where a destination is, of what may be connected to.
    ///
    /// # Errors
    /// It has no such address.
    pub(crate) async fn addresses_of(&self, to: &Destination) -> io::Result<Vec<SocketAddr>> {
        let reach = if to.node.is_some() {
            self.loopback.of_nodes()
        } else {
            self.loopback.of_endpoints()
        };
        match to.via {
            Some(address) => Ok(vec![SocketAddr::new(address, to.port)]),
            None => reach.resolve(&to.host, to.port).await,
        }
    }

    /// Connects to a destination at one of its addresses.
    ///
    /// # Errors
    /// Nobody answers there, or somebody who is not the one that is meant.
    pub(crate) async fn connect(
        &self,
        to: &Destination,
        addresses: &[SocketAddr],
    ) -> io::Result<Box<dyn Transport>> {
        let stream = TcpStream::connect(addresses).await?;
        stream.set_nodelay(true)?;
        if !to.tls {
            return Ok(Box::new(stream));
        }
        let name = ServerName::try_from(to.host.clone())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let Some(node) = &to.node else {
            return Ok(Box::new(self.plain.connect(name, stream).await?));
        };
        let stream = self.node.connect(name, stream).await?;
        let (_, session) = stream.get_ref();
        let shown = session.peer_certificates().and_then(<[_]>::first);
        match &self.authority {
            Some(authority) if !shown.is_some_and(|own| may_be(own, authority, node)) => {
                Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("tls: failed to verify certificate: it is not that of node {node}"),
                ))
            }
            _ => Ok(Box::new(stream)),
        }
    }

    /// Answers 101 and joins both sides once they are upgraded; `connection` is held until then.
    pub(crate) fn pipe(
        &self,
        mut response: Response<hyper::body::Incoming>,
        client_side: hyper::upgrade::OnUpgrade,
        connection: Option<Driven>,
    ) -> Response<ResponseBody> {
        let backend_side = hyper::upgrade::on(&mut response);
        let cancel = self.cancel.clone();
        self.tasks.spawn(async move {
            let piped = async {
                let both = async { futures::try_join!(client_side, backend_side) };
                let (client, backend) = tokio::time::timeout(UPGRADE, both).await??;
                drop(connection);
                let (mut client, mut backend) = (TokioIo::new(client), TokioIo::new(backend));
                let copied = tokio::io::copy_bidirectional_with_sizes(
                    &mut client,
                    &mut backend,
                    BUFFER,
                    BUFFER,
                );
                if let Err(error) = copied.await {
                    tracing::debug!(%error, "upgraded connection ended");
                }
                Ok::<_, BoxError>(())
            };
            tokio::select! {
                () = cancel.cancelled() => {}
                result = piped => if let Err(error) = result {
                    tracing::debug!(%error, "upgrading a connection");
                },
            }
        });
        let (parts, _) = response.into_parts();
        Response::from_parts(parts, ResponseBody::empty())
    }
}

/// Whether a serving certificate may be a node's: what the cluster's authority has signed must say so. Those of other
/// authorities are known by the host, as with kube-apiserver.
fn may_be(shown: &[u8], authority: &[u8], node: &str) -> bool {
    let (Ok((_, shown)), Ok((_, authority))) = (
        X509Certificate::from_der(shown),
        X509Certificate::from_der(authority),
    ) else {
        return false;
    };
    if shown
        .verify_signature(Some(authority.public_key()))
        .is_err()
    {
        return true;
    }
    Subject::of(shown.subject()).is_ok_and(|subject| {
        subject.common_name.strip_prefix(NODE_PREFIX) == Some(node)
            && subject.organizations.iter().any(|group| group == NODES)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use davit_pki::Pki;

    #[test]
    fn a_certificate_of_the_clusters_is_that_of_one_node() {
        let dir = tempfile::tempdir().unwrap();
        let own = Pki::open(&dir.path().join("own")).unwrap();
        let other = Pki::open(&dir.path().join("other")).unwrap();
        let authority = first_certificate(own.ca_certificate()).unwrap();
        let names = ["10.0.0.1".to_owned()];
        let judged = |identity: davit_pki::Identity, node: &str| {
            let der = first_certificate(&identity.certificate).unwrap();
            may_be(&der, &authority, node)
        };
        assert!(judged(own.node_serving("a", &names).unwrap(), "a"));
        assert!(!judged(own.node_serving("a", &names).unwrap(), "b"));
        let api = own.serving("apiserver", "kube-apiserver", &names).unwrap();
        assert!(!judged(api, "a"));
        // of no node's group, as certificates of earlier versions, which are made anew
        let old = own.serving("node-a", "system:node:a", &names).unwrap();
        assert!(!judged(old.clone(), "a"));
        let new = own.node_serving("a", &names).unwrap();
        assert_ne!(new.certificate, old.certificate);
        // others are the configured authority's to judge
        let foreign = other.serving("x", "kube-apiserver", &names).unwrap();
        assert!(judged(foreign, "a"));
    }
}
