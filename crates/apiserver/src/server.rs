//! The server: what it is made of, and what its parts see of it. It comes up and listens in [`running`](crate::running).

mod addresses;
mod authorization;
mod error;
mod identities;
mod identity;
mod lifecycle;
mod make;
mod options;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use davit_access::RequestInfo;
use davit_access::authn::Authenticator;
use davit_access::authz;
use davit_api::features::Features;
use davit_api::status::Status;
use davit_audit::Auditor;
use davit_flowcontrol::FlowControl;
use davit_listen::{ConnectionLimits, HttpLimits, TlsPolicy};
use davit_netplan::ServiceRanges;
use davit_registry::{Registry, errors};
use davit_schema::gates::Disabled;
use davit_store::Store;
use davit_webhook::Webhooks;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::aggregation::Aggregation;
use crate::components::Components;
use crate::discovery::AggregatedCache;
use crate::in_flight::InFlight;
use crate::metrics::Metrics;
use crate::node_client::NodeClient;
use crate::openapi::OpenApiCache;
use crate::resource_metrics::ResourceMetrics;
use crate::service_addresses::ServiceAddresses;
use crate::stored_form::StoredForms;
use crate::version::Build;
use addresses::{Addresses, NodeHere};
use authorization::Authorizers;
use davit_pki::Pki;
pub use error::Error;
use identities::OwnIdentities;
pub use identities::ServingFiles;
pub(crate) use identity::NAME;
use lifecycle::Lifecycle;
pub use options::{DEFAULT_ISSUER, HTTP2_STREAMS, KubeletAuthority, MIN_REQUEST_TIMEOUT, Options};

/// What the keys begin with by which servers that share a store know of each other.
pub(crate) const OF_SERVERS: [&str; 2] = [LEASES, KEYS];

/// Below this there is a key for each server that serves, by its address, as kube-apiserver keeps it: an Endpoints object that
/// goes by itself where the store can do that.
pub(crate) const LEASES: &str = "/registry/masterleases/";

/// Holds a hash of the keys of those that share the store.
pub(crate) const KEYS: &str = "/registry/davit.dev/keys";

/// The API server.
pub struct ApiServer {
    registry: Registry,
    /// Fields that feature gates disable.
    disabled: Disabled,
    /// In which form objects are in the stores.
    stored: StoredForms,
    /// Whether other API servers work on the same store.
    shares_store: bool,
    /// The name of its Lease.
    identity: String,
    addresses: Addresses,
    pki: Option<Pki>,
    signing_key: String,
    identities: OwnIdentities,
    authenticator: Authenticator,
    authorizers: Authorizers,
    admission: davit_admission::Chain,
    flow_control: Arc<FlowControl>,
    in_flight: InFlight,
    limits: Limits,
    auditor: Option<Auditor>,
    metrics: Metrics,
    components: Components,
    build: Build,
    console: bool,
    aggregated: AggregatedCache,
    openapi: OpenApiCache,
    service_addresses: ServiceAddresses,
    nodes: NodeClient,
    /// Whether nodes' servers must show certificates of an authority that is known.
    judges_nodes: bool,
    webhooks: Arc<Webhooks>,
    aggregation: Aggregation,
    resource_metrics: ResourceMetrics,
    /// What ends with the server.
    tasks: Mutex<Vec<AbortOnDropHandle<()>>>,
    lifecycle: Lifecycle,
}

/// What connections and requests are held to.
pub(crate) struct Limits {
    pub(crate) tls: TlsPolicy,
    pub(crate) connections: ConnectionLimits,
    pub(crate) http: HttpLimits,
    /// The share of requests over HTTP/2 after which a client is to connect anew.
    pub(crate) goaway_chance: f64,
    /// How long a watch that names no time lives at least.
    pub(crate) min_request_timeout: Duration,
    /// Between the announcement of a shutdown and its begin.
    pub(crate) shutdown_delay: Duration,
}

impl std::fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiServer")
            .field("registry", &self.registry)
            .finish_non_exhaustive()
    }
}

impl ApiServer {
    /// Ends watches and makes `/readyz` fail, as the first step of a shutdown of a server that is
    /// used in process only.
    pub fn shut_down(&self) {
        self.lifecycle.end();
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

    /// Whether requests are answered.
    pub fn is_ready(&self) -> bool {
        self.lifecycle.is_answering()
    }

    /// How far it is in its life.
    pub(crate) fn lifecycle(&self) -> &Lifecycle {
        &self.lifecycle
    }

    /// Where it is reached, and nodes of its process are.
    pub(crate) fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// The certificates that it shows.
    pub(crate) fn identities(&self) -> &OwnIdentities {
        &self.identities
    }

    /// What connections and requests are held to.
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The name of its Lease.
    pub(crate) fn identity(&self) -> &str {
        &self.identity
    }

    /// Whether nodes' servers must show certificates of an authority that is known.
    pub(crate) fn judges_nodes(&self) -> bool {
        self.judges_nodes
    }

    /// Has a task end with the server.
    pub(crate) fn own(&self, task: AbortOnDropHandle<()>) {
        self.tasks.lock().push(task);
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        self.registry.stores().main()
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
        self.authorizers.chain()
    }

    /// The roles and bindings.
    pub(crate) fn rbac(&self) -> &authz::rbac::Rbac {
        self.authorizers.rbac()
    }

    /// Whether roles decided when the server started.
    pub(crate) fn uses_rbac(&self) -> bool {
        self.authorizers.uses_rbac()
    }

    /// Whether nodes may change only what is theirs.
    pub(crate) fn restricts_nodes(&self) -> bool {
        self.authorizers.restricts_nodes()
    }

    /// The file that [`ApiServer::reload_authorization`] reads.
    pub(crate) fn authorization_file(&self) -> Option<&std::path::Path> {
        self.authorizers.file()
    }

    /// Reads the authorization configuration again; it stays as it was if it cannot be used.
    pub(crate) fn reload_authorization(&self) {
        self.authorizers.reload(&self.webhooks);
    }

    pub(crate) fn admission(&self) -> &davit_admission::Chain {
        &self.admission
    }

    /// How long a watch that names no time lives at least.
    pub(crate) fn min_request_timeout(&self) -> Duration {
        self.limits.min_request_timeout
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

    /// In which form objects are in the stores.
    pub(crate) fn stored(&self) -> &StoredForms {
        &self.stored
    }

    /// Whether a shutdown has begun; requests may still be taken.
    pub(crate) fn is_stopping(&self) -> bool {
        self.lifecycle.is_stopping()
    }

    /// Where pods reach this server, if not where everybody does.
    pub(crate) fn for_pods(&self) -> watch::Receiver<Option<SocketAddr>> {
        self.addresses.for_pods()
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
        self.addresses.listener()
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
        self.lifecycle.ended()
    }

    /// The addresses of Services.
    #[must_use]
    pub fn service_ranges(&self) -> ServiceRanges {
        self.service_addresses.ranges()
    }

    /// `host:port` that discovery names.
    pub(crate) fn advertised(&self) -> String {
        self.addresses.of_server().to_string()
    }

    /// Has the server of a node be reached at `address`, whatever its Node object says: it runs in this process and listens
    /// there. Its certificate has the node's name if it `is_named`, else that of the node's address.
    pub fn reach_node(&self, node: &str, address: IpAddr, is_named: bool) {
        let at = address;
        self.addresses.reach_node(node, NodeHere { at, is_named });
    }

    /// Says at which address of this machine its pods reach a server that listens at all of them: that stays when the machine
    /// loses its network.
    pub fn has_gateway(&self, address: IpAddr) {
        self.addresses.has_gateway(address);
    }

    /// Where a node of this process is reached.
    pub(crate) fn node_here(&self, node: &str) -> Option<NodeHere> {
        self.addresses.node(node)
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
    ) -> Result<Option<Arc<Value>>, Status> {
        let snapshot = self.registry.snapshot();
        let Some(resource) = snapshot.by_group_resource(group, plural) else {
            return Ok(None);
        };
        let found = resource.storage.lookup(namespace, name).await;
        found.map_err(|error| errors::storage(error, resource, name))
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
