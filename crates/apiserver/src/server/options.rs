//! What a server is made from, and what is usual.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use davit_access::authn::{Authentication, StaticToken};
use davit_access::authz::Authorization;
use davit_access::tokens::TokenLife;
use davit_api::features::Features;
use davit_api::runtime_config::RuntimeConfig;
use davit_audit::AuditOptions;
use davit_encryption::Encryption;
use davit_flowcontrol::FlowOptions;
use davit_listen::{ConnectionLimits, TlsPolicy};
use davit_netplan::{NodePorts, ServiceRanges};
use davit_registry::Stores;
use davit_store::Store;
use davit_webhook::Loopback;

use super::ServingFiles;
use crate::stored_form::KubernetesForm;
use crate::version::Build;
use davit_pki::Identity;

/// The issuer of service account tokens unless configured otherwise.
pub const DEFAULT_ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// Connections of a server whose process may open enough files.
const CONNECTIONS: ConnectionLimits = ConnectionLimits {
    strangers: 1024,
    loopback: 1024,
    known: 8192,
    first_request: Duration::from_secs(15),
    idle: davit_listen::IDLE,
    long_running: 65_536,
    sessions: 4096,
    // as the kubelet's
    session_idle: Duration::from_secs(4 * 3600),
    unsent: 256 << 20,
};
/// The part of the files for connections that the API server gets; the node's server has the rest.
const FILES: (usize, usize) = (4, 5);
/// HTTP/2 streams of a connection unless told otherwise, as kube-apiserver's.
pub const HTTP2_STREAMS: u32 = 250;
/// How long watches live at least unless told otherwise, as kube-apiserver's.
pub const MIN_REQUEST_TIMEOUT: Duration = Duration::from_secs(1800);

/// What a server is made from.
pub struct Options {
    /// What `/version` says the server was built from.
    pub build: Build,
    /// Where objects are kept.
    pub stores: Stores,
    /// Objects are kept as kube-apiserver keeps them, under these keys and in this form; without it under davit's keys, as
    /// JSON.
    pub kubernetes_form: Option<KubernetesForm>,
    /// Where keys and certificates are kept (`pki/` below it). Without it the server can only be
    /// called in process, and service account tokens end with it.
    pub data_dir: Option<PathBuf>,
    /// The address others reach the server by; also in the serving certificate.
    pub advertise_address: Option<IpAddr>,
    /// Other API servers work on the same store at the same time.
    pub shares_store: bool,
    /// Further names and addresses for the serving certificate.
    pub extra_names: Vec<String>,
    /// Certificate and key (PEM files) that clients are shown instead of one of the cluster's own authority
    /// (`--tls-cert-file`, `--tls-private-key-file`); read again when they change. Clients that ask for
    /// [`LOOPBACK_NAME`](davit_pki::LOOPBACK_NAME) are shown the cluster's own all the same.
    pub serving_files: Option<ServingFiles>,
    /// Which versions and suites of TLS are offered (`--tls-min-version`, `--tls-cipher-suites`).
    pub tls: TlsPolicy,
    /// The addresses of Services.
    pub service_ranges: ServiceRanges,
    /// The ports of Services on nodes.
    pub node_ports: NodePorts,
    /// Static bearer tokens.
    pub static_tokens: Vec<StaticToken>,
    /// Further ways to authenticate.
    pub authentication: Authentication,
    /// Issuer of service account tokens.
    pub service_account_issuer: String,
    /// Former issuers, whose tokens are still good.
    pub former_issuers: Vec<String>,
    /// Further keys by which service account tokens are checked, PEM (public or private).
    pub service_account_keys: Vec<String>,
    /// The key that signs service account tokens, PEM; the cluster's own unless given.
    pub service_account_signing_key: Option<String>,
    /// Audiences a token must name one of to be good for this server; empty means the issuer.
    pub api_audiences: Vec<String>,
    /// How long service account tokens live.
    pub token_life: TokenLife,
    /// Whose node serving certificates are believed.
    pub kubelet_authority: KubeletAuthority,
    /// What nodes are shown (`--kubelet-client-certificate`). Without it a certificate of the
    /// cluster's own authority.
    pub kubelet_client: Option<Identity>,
    /// What of others may be on this machine's loopback addresses.
    pub loopback: Loopback,
    /// What aggregated API servers are shown, so that they believe the identities they are told
    /// (`--proxy-client-cert-file`). Without it a certificate of the cluster's own front-proxy
    /// authority.
    pub proxy_client: Option<Identity>,
    /// Who may do what.
    pub authorization: Authorization,
    /// What may change or refuse writes.
    pub admission: davit_admission::Chain,
    /// What is recorded of requests, and where.
    pub audit: AuditOptions,
    /// How values are encrypted before they are stored.
    pub encryption: Option<Arc<Encryption>>,
    /// Priority and fairness.
    pub flow_control: FlowOptions,
    /// Feature gates of the API.
    pub features: Features,
    /// Versions of built-in kinds that are not always served.
    pub runtime_config: RuntimeConfig,
    /// How long requests are still taken after `/readyz` has begun to fail at a shutdown.
    pub shutdown_delay: Duration,
    /// How many connections there may be, and how long they may do nothing.
    pub connections: ConnectionLimits,
    /// HTTP/2 streams at once on a connection.
    pub http2_streams: u32,
    /// The share of the requests over HTTP/2 after which a client is asked to connect anew, so that clients spread over
    /// several servers: 0 to 1. What runs on the connection goes on.
    pub goaway_chance: f64,
    /// A watch that names no time lives between this and twice this.
    pub min_request_timeout: Duration,
    /// Whether the web page at `/console` is served.
    pub console: bool,
}

/// Whose serving certificates of nodes are believed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum KubeletAuthority {
    /// Everybody's, as kube-apiserver does without `--kubelet-certificate-authority`: whoever
    /// answers at the node's address.
    #[default]
    Any,
    /// The cluster's own, which signs requests for `kubernetes.io/kubelet-serving`.
    Cluster,
    /// These, PEM.
    Pem(String),
}

impl Options {
    /// A server over `store` with everything else as usual.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self {
            build: Build::default(),
            stores: Stores::new(store, Vec::new()),
            kubernetes_form: None,
            data_dir: None,
            advertise_address: None,
            shares_store: false,
            extra_names: Vec::new(),
            serving_files: None,
            tls: TlsPolicy::default(),
            service_ranges: ServiceRanges::default(),
            node_ports: NodePorts::default(),
            static_tokens: Vec::new(),
            authentication: Authentication::default(),
            former_issuers: Vec::new(),
            service_account_keys: Vec::new(),
            service_account_signing_key: None,
            service_account_issuer: DEFAULT_ISSUER.to_owned(),
            api_audiences: Vec::new(),
            token_life: TokenLife::default(),
            kubelet_authority: KubeletAuthority::default(),
            kubelet_client: None,
            loopback: Loopback::default(),
            proxy_client: None,
            authorization: Authorization::default(),
            admission: davit_admission::Chain::standard(),
            audit: AuditOptions::default(),
            encryption: None,
            flow_control: FlowOptions::default(),
            features: Features::default(),
            runtime_config: RuntimeConfig::default(),
            shutdown_delay: Duration::ZERO,
            connections: CONNECTIONS.within_files(FILES.0, FILES.1),
            http2_streams: HTTP2_STREAMS,
            goaway_chance: 0.0,
            min_request_timeout: MIN_REQUEST_TIMEOUT,
            console: false,
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("data_dir", &self.data_dir)
            .finish_non_exhaustive()
    }
}
