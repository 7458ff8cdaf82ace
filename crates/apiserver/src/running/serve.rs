//! A server on its sockets, from the first connection to the last.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::{endpoints, identity_lease, listen, publish, reload, renewal};
use crate::server::{ApiServer, Error};

/// Between looks at the claims on node ports.
const NODE_PORTS: Duration = Duration::from_secs(3 * 60);
const DRAIN: Duration = Duration::from_secs(2);

impl ApiServer {
    /// Serves HTTPS on `listener` until `cancel`; then finishes the answers under way and ends
    /// watches.
    ///
    /// # Errors
    /// When TLS cannot be configured or the cluster's own endpoints cannot be written.
    pub fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        cancel: CancellationToken,
    ) -> BoxFuture<'static, Result<(), Error>> {
        self.serve_until(listener, cancel).boxed()
    }

    async fn serve_until(
        self: Arc<Self>,
        listener: TcpListener,
        cancel: CancellationToken,
    ) -> Result<(), Error> {
        let acceptor = self.acceptor()?;
        let address = listener.local_addr().map_err(Error::Listener)?;
        self.addresses().listens_at(address);
        let mut peers = endpoints::Peers::new(self.shares_store());
        let published = publish::now(&self, address, &mut peers).await?;
        let stopping = Arc::clone(&self);
        let closing = CancellationToken::new();
        let close = closing.clone();
        let end_watches = async move {
            cancel.cancelled().await;
            // load balancers learn of it before anybody is turned away
            stopping.lifecycle().leave();
            tokio::time::sleep(stopping.limits().shutdown_delay).await;
            stopping.lifecycle().end();
            close.cancel();
        };
        let server = Arc::clone(&self);
        tokio::join!(
            listen::serve(server, listener, acceptor, closing),
            publish::keep(&self, address, published, peers),
            identity_lease::keep(&self),
            self.repair_node_ports(),
            reload::follow(&self, self.shutdown()),
            renewal::follow(&self, self.shutdown()),
            end_watches
        );
        if tokio::time::timeout(DRAIN, self.nodes().drained())
            .await
            .is_err()
        {
            tracing::debug!("forwarded connections still open after the drain time");
        }
        if let Some(auditor) = self.auditor() {
            auditor.close(DRAIN).await;
        }
        Ok(())
    }

    /// Compares the claims on node ports with the Services every three minutes, until the server stops.
    async fn repair_node_ports(self: &Arc<Self>) {
        loop {
            tokio::select! {
                () = self.shutdown().cancelled() => return,
                () = tokio::time::sleep(NODE_PORTS) => {}
            }
            if let Err(status) = self.service_addresses().repair_ports(self).await {
                tracing::warn!(error = status.message, "the claims on node ports");
            }
        }
    }

    /// Serves on a further listener, by which the pods of this machine reach a server that otherwise listens for the
    /// machine only, and tells them so: it is what stands behind the Service `kubernetes` then. Until `cancel`.
    ///
    /// # Errors
    /// When TLS cannot be configured.
    pub fn serve_pods(
        self: Arc<Self>,
        listener: TcpListener,
        cancel: CancellationToken,
    ) -> BoxFuture<'static, Result<(), Error>> {
        self.serve_pods_until(listener, cancel).boxed()
    }

    async fn serve_pods_until(
        self: Arc<Self>,
        listener: TcpListener,
        cancel: CancellationToken,
    ) -> Result<(), Error> {
        let acceptor = self.acceptor()?;
        let address = listener.local_addr().map_err(Error::Listener)?;
        self.addresses().pods_reach(address);
        listen::serve(Arc::clone(&self), listener, acceptor, cancel).await;
        Ok(())
    }

    /// What the server shows to whoever connects.
    fn acceptor(&self) -> Result<TlsAcceptor, Error> {
        let pki = self.pki().ok_or(Error::NoDataDir)?;
        let identity = self.identities().serving().ok_or(Error::NoDataDir)?;
        let builder = self.limits().tls.builder()?;
        let config = davit_pki::server_config(builder, identity, pki.ca_certificate())?;
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}
