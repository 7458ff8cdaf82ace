//! The server: what it is made of, how it is started, how requests enter it.

mod bootstrap;
mod endpoints;
mod identities;
mod identity_lease;
mod joining;
mod listen;
mod options;
mod publish;
mod reload;
mod roles;
mod shared_keys;
mod view;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use davit_access::authn::{AuthenticationError, Authenticator};
use davit_access::authz::{self, Authorization};
use davit_access::tokens::{TokenError, TokenKeys};
use davit_access::{RequestInfo, StoredObjects, UserInfo};
use davit_api::features::Features;
use davit_api::status::Status;
use davit_listen::{ConnectionLimits, HttpLimits};
use davit_schema::gates::Disabled;
use davit_store::Store;
use davit_task::Task;
use davit_webhook::Webhooks;
use davit_webhook::tls::TlsError;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body::Body;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::aggregation::{self, Aggregation};
use crate::audit::{AuditError, Auditor};
use crate::body::{BoxError, RequestBody, ResponseBody, request_body};
use crate::discovery::AggregatedCache;
use crate::flowcontrol::{self, FlowControl};
use crate::metrics::Metrics;
use crate::openapi::OpenApiCache;
use crate::pipeline::{self, Caller, InFlight};
use crate::pki::{Pki, PkiError, api_server_names};
use crate::proxy::NodeClient;
use crate::registry::Registry;
use crate::resource_metrics::{self, ResourceMetrics};
use crate::service_addresses::{ServiceAddresses, ServiceRanges};
use crate::service_endpoints::StoredEndpoints;
use crate::stored_form::StoredForm;
use crate::tls;
use crate::version::Build;
use crate::virtuals::Components;
use crate::{admission, crd, errors, event_ttl};
use identities::OwnIdentities;
pub use identities::ServingFiles;
pub use options::{DEFAULT_ISSUER, HTTP2_STREAMS, KubeletAuthority, MIN_REQUEST_TIMEOUT, Options};

/// The component in names of tasks.
const COMPONENT: &str = "apiserver";
/// How long plugins that keep keys of encryption at rest may take to answer at start.
const PLUGINS_READY: Duration = Duration::from_secs(20);
/// What the keys begin with by which servers that share a store know of each other.
pub(crate) const OF_SERVERS: [&str; 2] = [endpoints::LEASES, shared_keys::KEY];
/// Between looks at the claims on node ports.
const NODE_PORTS: Duration = Duration::from_secs(3 * 60);
const DRAIN: Duration = Duration::from_secs(2);

/// Why a server could not be made or started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Keys or certificates.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// TLS could not be configured.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Service account keys.
    #[error(transparent)]
    Tokens(#[from] TokenError),
    /// Authorization as configured.
    #[error("authorization: {0}")]
    Authorization(#[from] authz::AuthorizationError),
    /// Authentication as configured.
    #[error("authentication: {0}")]
    Authentication(#[from] AuthenticationError),
    /// An object every cluster has could not be made.
    #[error("setting up {what}: {status}")]
    Bootstrap {
        /// Which object.
        what: String,
        /// Why it failed.
        status: Box<Status>,
    },
    /// The store has Services of another range.
    #[error(
        "this cluster's Services have addresses of {held} for life: start it with --service-cluster-ip-range={held}, not {asked}"
    )]
    ServiceRange {
        /// The range of the store.
        held: String,
        /// The range asked for.
        asked: ServiceRanges,
    },
    /// The Service `kubernetes` would have an address of one family and endpoints of the other.
    #[error("service IP family {range:?} must match public address family {address:?}")]
    Family {
        /// The range of its address.
        range: String,
        /// The address that the others are told.
        address: String,
    },
    /// Those that share the store have other keys.
    #[error(
        "pki/ of the data directory holds other keys than those of the API servers that share the store: it must be a copy of theirs"
    )]
    OtherKeys,
    /// A certificate's file cannot be read.
    #[error("reading {}: {error}", .path.display())]
    ServingFile {
        /// Which file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// Serving needs keys, which need a data directory.
    #[error("serving needs a data directory for keys and certificates")]
    NoDataDir,
    /// The audit log.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// Encryption at rest.
    #[error("encryption at rest: {0}")]
    Encryption(#[from] davit_encryption::EncryptionError),
    /// The listener has no address.
    #[error("reading the listener's address: {0}")]
    Listener(std::io::Error),
}

/// The API server.
pub struct ApiServer {
    registry: Registry,
    /// Fields that feature gates disable.
    disabled: Disabled,
    store: Arc<dyn Store>,
    pki: Option<Pki>,
    signing_key: String,
    identities: OwnIdentities,
    advertise_address: Option<IpAddr>,
    /// Whether other API servers work on the same store.
    shares_store: bool,
    /// The name of its Lease.
    identity: String,
    authenticator: Authenticator,
    access: authz::Sources,
    authorizer: ArcSwap<authz::Chain>,
    /// Nodes may change only what is theirs.
    restricts_nodes: AtomicBool,
    authorization: Authorization,
    admission: admission::Chain,
    metrics: Metrics,
    in_flight: InFlight,
    components: Components,
    build: Build,
    flow_control: Arc<FlowControl>,
    flow_task: OnceLock<AbortOnDropHandle<()>>,
    auditor: Option<Auditor>,
    /// In which form objects are in the store.
    stored: StoredForm,
    shutdown_delay: Duration,
    connection_limits: ConnectionLimits,
    http_limits: HttpLimits,
    min_request_timeout: Duration,
    console: bool,
    stopping: AtomicBool,
    aggregated: AggregatedCache,
    openapi: OpenApiCache,
    service_addresses: ServiceAddresses,
    nodes: NodeClient,
    /// Whether nodes' servers must show certificates of an authority that is known.
    judges_nodes: bool,
    nodes_here: parking_lot::RwLock<HashMap<String, IpAddr>>,
    webhooks: Arc<Webhooks>,
    aggregation: Aggregation,
    resource_metrics: ResourceMetrics,
    custom_kinds: OnceLock<crd::Controller>,
    address: parking_lot::RwLock<Option<SocketAddr>>,
    /// Where pods reach a server that listens for its own machine only.
    for_pods: watch::Sender<Option<SocketAddr>>,
    ready: AtomicBool,
    shutdown: CancellationToken,
}

impl std::fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiServer")
            .field("registry", &self.registry)
            .finish_non_exhaustive()
    }
}

/// Whoever reaches the Service `kubernetes` must be able to reach what is behind it.
fn same_family(options: &Options) -> Result<(), Error> {
    let range = options.service_ranges.primary();
    let is_other = |address: &IpAddr| {
        !address.is_unspecified() && davit_netplan::Family::of(*address) != range.family()
    };
    match options.advertise_address.filter(is_other) {
        Some(address) => Err(Error::Family {
            range: range.to_string(),
            address: address.to_string(),
        }),
        None => Ok(()),
    }
}

impl ApiServer {
    /// Makes a server and sees to it that the objects every cluster has are there. It answers
    /// [`ApiServer::call`] at once; [`ApiServer::serve`] puts it on a socket.
    ///
    /// # Errors
    /// When keys, TLS or the first objects cannot be made.
    pub fn new(options: Options) -> BoxFuture<'static, Result<Arc<Self>, Error>> {
        // Boxed, here and where others of the house are entered: what runs is compiled in its own crate, once, and not by
        // everybody who starts it.
        Self::start(options).boxed()
    }

    async fn start(options: Options) -> Result<Arc<Self>, Error> {
        let pki = match &options.data_dir {
            Some(dir) => Some(Pki::open(&dir.join("pki"))?),
            None => None,
        };
        let signing_key = match (&options.service_account_signing_key, &pki) {
            (Some(key), _) => key.clone(),
            (None, Some(pki)) => pki.service_account_key()?,
            (None, None) => crate::pki::ephemeral_key()?,
        };
        let issuer = &options.service_account_issuer;
        let audiences = if options.api_audiences.is_empty() {
            vec![issuer.clone()]
        } else {
            options.api_audiences.clone()
        };
        let mut keys = TokenKeys::new(&signing_key, issuer, audiences)?;
        keys.also_accept(&options.former_issuers, &options.service_account_keys)?;
        keys.set_life(options.token_life);
        let mut names = options.extra_names.clone();
        names.extend(options.advertise_address.map(|address| address.to_string()));
        let ranges = options.service_ranges.all();
        let of_service: Vec<String> = ranges.map(|range| range.kubernetes().to_string()).collect();
        let names = api_server_names(&of_service, &names);
        same_family(&options)?;
        let identities = OwnIdentities::new(
            pki.as_ref(),
            names,
            options.serving_files.as_ref(),
            options.kubelet_client.as_ref(),
            options.proxy_client.as_ref(),
        )?;
        let shutdown = CancellationToken::new();
        let kubelet_ca = match &options.kubelet_authority {
            KubeletAuthority::Any => None,
            KubeletAuthority::Cluster => pki.as_ref().map(Pki::ca_certificate),
            KubeletAuthority::Pem(pem) => Some(pem.as_str()),
        };
        let (identity, loopback) = (identities.kubelet_client(), options.loopback);
        let authority = pki.as_ref().map(Pki::ca_certificate);
        let nodes = NodeClient::new(identity, kubelet_ca, authority, loopback, shutdown.clone())?;
        if let Some(encryption) = &options.encryption {
            encryption.ready(PLUGINS_READY).await?;
        }
        let attended = options.encryption.clone();
        let stored = StoredForm::new(options.store, options.encryption, options.kubernetes_form);
        let store = stored.store();
        let registry = Registry::built_in(Arc::clone(&store), |row| {
            options.runtime_config.serves(row, &options.features)
        });
        let addresses =
            ServiceAddresses::new(options.service_ranges, options.node_ports, &registry);
        let services = StoredEndpoints::new(&registry, loopback.of_endpoints());
        let webhooks = Arc::new(Webhooks::new(Arc::new(services), shutdown.clone()));
        let metrics = Metrics::new();
        metrics.process.set_build(options.build);
        let (events, lost) = (metrics.audit_events.clone(), metrics.audit_errors.clone());
        let auditor = Auditor::new(options.audit, events, lost)?;
        let authenticator = Authenticator::new(
            pki.as_ref().map(Pki::ca_certificate),
            &options.authentication,
            &options.static_tokens,
            keys,
            webhooks.tasks(),
        )?;
        let snapshot = registry.snapshot();
        let find = |group: &str, plural: &str| {
            let resource = snapshot.by_group_resource(group, plural)?;
            Some(Arc::clone(&resource.storage) as Arc<dyn StoredObjects>)
        };
        let access = authz::Sources::new(&find, Arc::clone(&metrics.access));
        let modes = options.authorization.modes()?;
        let has = |mode: &authz::Mode| modes.iter().flatten().any(|known| known == mode);
        let (uses_rbac, restricts_nodes) = (has(&authz::Mode::Rbac), has(&authz::Mode::Node));
        let authorizer = authz::chain(modes.as_deref(), &access, webhooks.tasks())?;
        let types = Arc::clone(&davit_api::kinds::builtin().types);
        let server = Arc::new(Self {
            registry,
            disabled: Disabled::new(types, options.features),
            store,
            advertise_address: options.advertise_address,
            shares_store: options.shares_store,
            identity: identity_lease::name(options.data_dir.as_deref()),
            authenticator,
            access,
            authorizer: ArcSwap::from_pointee(authorizer),
            authorization: options.authorization,
            restricts_nodes: AtomicBool::new(restricts_nodes),
            admission: options.admission,
            flow_control: Arc::new(FlowControl::new(options.flow_control, metrics.flow.clone())),
            flow_task: OnceLock::new(),
            auditor,
            stored,
            shutdown_delay: options.shutdown_delay,
            connection_limits: options.connections,
            http_limits: HttpLimits {
                streams: options.http2_streams,
            },
            min_request_timeout: options.min_request_timeout,
            console: options.console,
            stopping: AtomicBool::new(false),
            metrics,
            in_flight: InFlight::new(options.flow_control),
            components: Components::default(),
            build: options.build,
            aggregated: AggregatedCache::default(),
            openapi: OpenApiCache::default(),
            service_addresses: addresses,
            nodes,
            judges_nodes: options.kubelet_authority != KubeletAuthority::Any,
            nodes_here: parking_lot::RwLock::default(),
            webhooks,
            aggregation: Aggregation::new(identities.front_proxy(), options.proxy_client.is_some()),
            resource_metrics: ResourceMetrics::default(),
            identities,
            custom_kinds: OnceLock::new(),
            pki,
            signing_key,
            address: parking_lot::RwLock::new(None),
            for_pods: watch::channel(None).0,
            ready: AtomicBool::new(false),
            shutdown,
        });
        bootstrap::objects(&server).await?;
        if server.flow_control.is_enabled() {
            let control = Arc::clone(&server.flow_control);
            let kept = flowcontrol::ensure(&server, &control).await;
            kept.map_err(|status| Error::Bootstrap {
                what: "priority and fairness objects".to_owned(),
                status: Box::new(status),
            })?;
            let cancel = server.shutdown.clone();
            let weak = Arc::downgrade(&server);
            let task = Task::new(COMPONENT, "priority-and-fairness", cancel.clone());
            let follow = task.retry(move || {
                flowcontrol::follow(weak.clone(), Arc::clone(&control), cancel.clone())
            });
            let task = AbortOnDropHandle::new(tokio::spawn(follow));
            // set once, here
            let _ = server.flow_task.set(task);
        }
        let controller = crd::Controller::start(&server).await;
        let controller = controller.map_err(|status| Error::Bootstrap {
            what: "custom kinds".to_owned(),
            status: Box::new(status),
        })?;
        // set once, right here
        let _ = server.custom_kinds.set(controller);
        if uses_rbac {
            let made = roles::ensure(&server).await;
            made.map_err(|(what, status)| Error::Bootstrap {
                what,
                status: Box::new(status),
            })?;
        }
        if let Some(encryption) = attended {
            server.keep("encryption", move |_, cancel| {
                let encryption = encryption.clone();
                async move { encryption.attend(cancel).await }
            });
        }
        server.ready.store(true, Ordering::Release);
        server.keep("aggregator", |server, _| aggregation::run(server));
        server.keep("event-ttl", |server, _| event_ttl::run(server));
        server.keep("resource-metrics", |server, _| {
            resource_metrics::run(server)
        });
        Ok(server)
    }

    /// Starts a loop in the background, which ends with the server and is made anew when it panics.
    fn keep<W: Future<Output = ()> + Send + 'static>(
        self: &Arc<Self>,
        name: &'static str,
        make: impl Fn(Weak<Self>, CancellationToken) -> W + Send + 'static,
    ) {
        let (server, cancel) = (Arc::downgrade(self), self.shutdown.clone());
        let task = Task::new(COMPONENT, name, cancel.clone());
        let work = task.retry(move || make(Weak::clone(&server), cancel.clone()));
        self.nodes.track(work);
    }

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
        let pki = self.pki.as_ref().ok_or(Error::NoDataDir)?;
        let identity = self.identities.serving().ok_or(Error::NoDataDir)?;
        let config = tls::server_config(identity, pki.ca_certificate())?;
        let address = listener.local_addr().map_err(Error::Listener)?;
        *self.address.write() = Some(address);
        let mut peers = endpoints::Peers::new(self.shares_store);
        let published = publish::now(&self, address, &mut peers).await?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let stopping = Arc::clone(&self);
        let closing = CancellationToken::new();
        let close = closing.clone();
        let end_watches = async move {
            cancel.cancelled().await;
            // load balancers learn of it before anybody is turned away
            stopping.stopping.store(true, Ordering::Release);
            tokio::time::sleep(stopping.shutdown_delay).await;
            stopping.ready.store(false, Ordering::Release);
            stopping.shutdown.cancel();
            close.cancel();
        };
        let server = Arc::clone(&self);
        tokio::join!(
            listen::serve(server, listener, acceptor, closing),
            publish::keep(&self, address, published, peers),
            identity_lease::keep(&self),
            self.repair_node_ports(),
            reload::follow(&self, &self.shutdown),
            identities::follow(&self, &self.shutdown),
            end_watches
        );
        if tokio::time::timeout(DRAIN, self.nodes.drained())
            .await
            .is_err()
        {
            tracing::debug!("forwarded connections still open after the drain time");
        }
        if let Some(auditor) = &self.auditor {
            auditor.close(DRAIN).await;
        }
        Ok(())
    }

    /// Compares the claims on node ports with the Services every three minutes, until the server stops.
    async fn repair_node_ports(self: &Arc<Self>) {
        loop {
            tokio::select! {
                () = self.shutdown.cancelled() => return,
                () = tokio::time::sleep(NODE_PORTS) => {}
            }
            if let Err(status) = self.service_addresses.repair_ports(self).await {
                tracing::warn!(error = status.message, "the claims on node ports");
            }
        }
    }

    /// Answers a request of `user` inside the process: no TLS, no socket, everything else as on
    /// the wire. Watches and logs stream in the response's body; upgrades need a socket.
    pub async fn call<B>(
        self: &Arc<Self>,
        request: Request<B>,
        user: UserInfo,
    ) -> Response<ResponseBody>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        self.answer(request.map(request_body), Caller::InProcess(user))
            .await
    }

    /// The server as a tower service on behalf of `user`, for clients in the same process.
    pub fn service(self: &Arc<Self>, user: UserInfo) -> InProcess {
        InProcess {
            server: Arc::clone(self),
            user,
        }
    }

    pub(crate) fn answer<'a>(
        self: &'a Arc<Self>,
        request: Request<RequestBody>,
        caller: Caller,
    ) -> BoxFuture<'a, Response<ResponseBody>> {
        pipeline::run(self, request, caller).boxed()
    }

    /// Ends watches and makes `/readyz` fail, as the first step of a shutdown of a server that is
    /// used in process only.
    pub fn shut_down(&self) {
        self.stopping.store(true, Ordering::Release);
        self.ready.store(false, Ordering::Release);
        self.shutdown.cancel();
    }

    /// Renews the certificates that this server shows, those of them that end soon; how many they
    /// are. Connections that are open go on.
    ///
    /// # Errors
    /// When files cannot be read or written.
    pub fn renew_certificates(&self) -> Result<usize, Error> {
        self.pki
            .as_ref()
            .map_or(Ok(0), |pki| self.identities.renew(pki))
    }

    /// The cluster's keys and certificates.
    pub fn pki(&self) -> Option<&Pki> {
        self.pki.as_ref()
    }

    /// The key that signs service account tokens, PKCS#8 PEM: whoever fills Secrets with tokens
    /// needs it.
    pub fn service_account_key(&self) -> &str {
        &self.signing_key
    }

    /// What is served.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Whether requests are answered and a shutdown has not begun.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Whether other API servers work on the same store.
    pub(crate) fn shares_store(&self) -> bool {
        self.shares_store
    }

    pub(crate) fn authenticator(&self) -> &Authenticator {
        &self.authenticator
    }

    /// Who decides about requests now.
    pub(crate) fn authorizer(&self) -> Arc<authz::Chain> {
        self.authorizer.load_full()
    }

    /// The roles and bindings.
    pub(crate) fn rbac(&self) -> &authz::rbac::Rbac {
        &self.access.rbac
    }

    /// Whether nodes may change only what is theirs.
    pub(crate) fn restricts_nodes(&self) -> bool {
        self.restricts_nodes.load(Ordering::Relaxed)
    }

    /// The file that [`ApiServer::reload_authorization`] reads.
    pub(crate) fn authorization_file(&self) -> Option<&std::path::Path> {
        self.authorization.config_file()
    }

    /// Reads the authorization configuration again; it stays as it was if it cannot be used.
    pub(crate) fn reload_authorization(&self) {
        let modes = self.authorization.modes();
        let read = modes.and_then(|modes| {
            let chain = authz::chain(modes.as_deref(), &self.access, self.webhooks.tasks())?;
            let has_node = modes
                .iter()
                .flatten()
                .any(|mode| *mode == authz::Mode::Node);
            Ok((chain, has_node))
        });
        match read {
            Ok((chain, restricts_nodes)) => {
                self.authorizer.store(Arc::new(chain));
                self.restricts_nodes
                    .store(restricts_nodes, Ordering::Relaxed);
                tracing::info!("authorization configuration read again");
            }
            Err(error) => tracing::error!(%error, "authorization configuration is kept as it was"),
        }
    }

    pub(crate) fn admission(&self) -> &admission::Chain {
        &self.admission
    }

    /// How long a watch that names no time lives at least.
    pub(crate) fn min_request_timeout(&self) -> Duration {
        self.min_request_timeout
    }

    /// Whether the web page at `/console` is served.
    pub(crate) fn has_console(&self) -> bool {
        self.console
    }

    /// Tells the metrics of another component of this process on its page, too.
    pub fn include_metrics(
        &self,
        register: impl FnOnce(&mut prometheus_client::registry::Registry),
    ) {
        self.metrics.include(register);
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    pub(crate) fn build(&self) -> Build {
        self.build
    }

    pub(crate) fn components(&self) -> &Components {
        &self.components
    }

    pub(crate) fn in_flight(&self) -> &InFlight {
        &self.in_flight
    }

    pub(crate) fn flow_control(&self) -> &Arc<FlowControl> {
        &self.flow_control
    }

    pub(crate) fn auditor(&self) -> Option<&Auditor> {
        self.auditor.as_ref()
    }

    /// In which form objects are in the store.
    pub(crate) fn stored(&self) -> &StoredForm {
        &self.stored
    }

    /// Whether a shutdown has begun; requests may still be taken.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
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
        let pki = self.pki.as_ref().ok_or(Error::NoDataDir)?;
        let identity = self.identities.serving().ok_or(Error::NoDataDir)?;
        let config = tls::server_config(identity, pki.ca_certificate())?;
        let address = listener.local_addr().map_err(Error::Listener)?;
        self.for_pods.send_replace(Some(address));
        let acceptor = TlsAcceptor::from(Arc::new(config));
        listen::serve(Arc::clone(&self), listener, acceptor, cancel).await;
        Ok(())
    }

    /// Where pods reach this server, if not where everybody does.
    pub(crate) fn for_pods(&self) -> watch::Receiver<Option<SocketAddr>> {
        self.for_pods.subscribe()
    }

    pub(crate) fn aggregated(&self) -> &AggregatedCache {
        &self.aggregated
    }

    pub(crate) fn openapi(&self) -> &OpenApiCache {
        &self.openapi
    }

    pub(crate) fn service_addresses(&self) -> &ServiceAddresses {
        &self.service_addresses
    }

    /// Where requests come in, once they do.
    pub(crate) fn listens(&self) -> Option<SocketAddr> {
        *self.address.read()
    }

    pub(crate) fn nodes(&self) -> &NodeClient {
        &self.nodes
    }

    /// Calls to servers outside.
    pub(crate) fn aggregation(&self) -> &Aggregation {
        &self.aggregation
    }

    /// What nodes and pods use.
    pub(crate) fn resource_metrics(&self) -> &ResourceMetrics {
        &self.resource_metrics
    }

    pub(crate) fn webhooks(&self) -> &Arc<Webhooks> {
        &self.webhooks
    }

    /// Cancelled when watches must end.
    pub(crate) fn shutdown(&self) -> &CancellationToken {
        &self.shutdown
    }

    /// The addresses of Services.
    #[must_use]
    pub fn service_ranges(&self) -> ServiceRanges {
        self.service_addresses.ranges()
    }

    /// `host:port` that discovery names.
    pub(crate) fn advertised(&self) -> String {
        let address = *self.address.read();
        let port = address.map_or(443, |address| address.port());
        let ip = self
            .advertise_address
            .or_else(|| address.map(|a| a.ip()).filter(|ip| !ip.is_unspecified()))
            .unwrap_or(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));
        SocketAddr::new(ip, port).to_string()
    }

    /// Has the server of a node be reached at `address`, whatever its Node object says: it runs in
    /// this process and listens there only. Its certificate is still that of the node's address.
    pub fn reach_node(&self, node: &str, address: IpAddr) {
        self.nodes_here.write().insert(node.to_owned(), address);
    }

    /// Where a node of this process is reached.
    pub(crate) fn node_here(&self, node: &str) -> Option<IpAddr> {
        self.nodes_here.read().get(node).copied()
    }

    /// Whether a request is about something served, so that its names may become metric labels.
    pub(crate) fn is_known(&self, info: &RequestInfo) -> bool {
        !info.is_resource
            || self
                .registry
                .snapshot()
                .get(&info.group, &info.version, &info.resource)
                .is_some_and(|resource| {
                    info.subresource.is_empty() || resource.subresource(&info.subresource).is_some()
                })
    }

    /// A stored object in the storage version, if it exists.
    pub(crate) async fn object(
        &self,
        group: &str,
        plural: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Value>, Status> {
        let snapshot = self.registry.snapshot();
        let Some(resource) = snapshot.by_group_resource(group, plural) else {
            return Ok(None);
        };
        let found = resource.storage.get(namespace, name).await;
        let found = found.map_err(|error| errors::storage(error, resource, name))?;
        Ok(found.map(|stored| stored.value))
    }

    /// The feature gates.
    pub(crate) fn features(&self) -> &Features {
        self.disabled.features()
    }

    /// The fields of built-in kinds that feature gates disable.
    pub(crate) fn disabled(&self) -> &Disabled {
        &self.disabled
    }

    /// All stored objects of a resource, or of one namespace, in the storage version.
    pub(crate) async fn objects(
        &self,
        group: &str,
        plural: &str,
        namespace: Option<&str>,
    ) -> Result<Vec<Value>, Status> {
        let snapshot = self.registry.snapshot();
        let Some(resource) = snapshot.by_group_resource(group, plural) else {
            return Ok(Vec::new());
        };
        let objects = resource.storage.all(namespace).await;
        objects.map_err(|error| errors::storage(error, resource, ""))
    }
}

/// The server as a tower service for clients in the same process.
#[derive(Debug, Clone)]
pub struct InProcess {
    server: Arc<ApiServer>,
    user: UserInfo,
}

impl<B> tower::Service<Request<B>> for InProcess
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody>;
    type Error = std::convert::Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _cx: &mut TaskContext<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let server = Arc::clone(&self.server);
        let user = self.user.clone();
        async move { Ok(server.call(request, user).await) }.boxed()
    }
}
