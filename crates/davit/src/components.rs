//! The parts of a cluster, made from command-line options and wired by clients only.

use crate::args::{NodeOptions, RuntimeKind, ServerOptions};
use crate::paths::{self, NodePaths};
use crate::pod_network::{self, Opened};
use crate::{elections, features, open_files, output};
use anyhow::{Context, Result, bail};
use davit_access::UserInfo;
use davit_access::authn::parse_token_file;
use davit_api::features::Features;
use davit_apiserver::version::Build;
use davit_apiserver::{ApiServer, KubeletAuthority, Options, ServiceRanges, ServingFiles};
use davit_controllers::{Authority, TokenSigner};
use davit_netplan::Family;
use davit_oci::{Embedded, EmbeddedOptions, Hollow, Runtime};
use davit_pki::{Identity, Kubeconfig, LOOPBACK_NAME, Pki, write_kubeconfig};
use davit_proto::cri::v1::{ContainerFilter, ContainerState, ContainerStateValue};
use davit_webhook::Loopback;
use http::HeaderValue;
use http::header::USER_AGENT;
use std::collections::BTreeMap;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tower::ServiceExt as _;

/// How long the runtime may take to say what runs at the end.
const LAST_LOOK: Duration = Duration::from_secs(2);
/// How often it is looked whether the API server is ready, and for how long.
const READY_POLL: Duration = Duration::from_millis(5);
const READY_PATIENCE: Duration = Duration::from_secs(10);
/// Port of the API server, unless told otherwise.
const PORT: u16 = 6443;
/// Port of the node's server, unless told otherwise.
const NODE_PORT: u16 = 10250;

/// The scheduler's user.
pub(crate) const SCHEDULER: &str = "system:kube-scheduler";
/// The controllers' user.
pub(crate) const CONTROLLERS: &str = "system:kube-controller-manager";
/// What controllers with service accounts of their own say that they are: owners of fields have one name for all of them, as
/// in Kubernetes.
pub(crate) const CONTROLLER_AGENT: &str =
    concat!("kube-controller-manager/", env!("CARGO_PKG_VERSION"));

/// The kubeconfigs written for components, by file name, and the users they are for.
const COMPONENTS: [(&str, &str); 2] = [("scheduler", SCHEDULER), ("controllers", CONTROLLERS)];

/// An API server that serves, and how to reach it.
#[derive(Clone)]
pub(crate) struct RunningServer {
    pub(crate) server: Arc<ApiServer>,
    /// `https://host:port`
    pub(crate) url: String,
    /// The administrator's kubeconfig.
    pub(crate) kubeconfig: PathBuf,
}

impl RunningServer {
    /// A client in this process that acts as a component.
    pub(crate) fn client(&self, user: &str, groups: &[&str]) -> kube::Client {
        davit_client::in_process(self.server.service(UserInfo::new(user, groups)), "default")
    }

    /// A client in this process that acts as the service account of a controller. Owners of fields know it as Kubernetes'.
    pub(crate) fn account_client(&self, name: &str) -> kube::Client {
        let user = UserInfo::service_account("kube-system", name);
        let service = self.server.service(user);
        let named = service.map_request(|mut request: http::Request<kube::client::Body>| {
            let agent = HeaderValue::from_static(CONTROLLER_AGENT);
            request.headers_mut().insert(USER_AGENT, agent);
            request
        });
        davit_client::in_process(named, "default")
    }

    /// Waits until the API server says that it is ready, or has not for so long that it is better to go on and let it say why.
    pub(crate) async fn ready(&self) {
        let client = self.client("davit:up", &["system:masters"]);
        let ready = async {
            while let Ok(request) = http::Request::get("/readyz").body(Vec::new())
                && client.request_text(request).await.is_err()
            {
                tokio::time::sleep(READY_POLL).await;
            }
        };
        if tokio::time::timeout(READY_PATIENCE, ready).await.is_err() {
            tracing::warn!("the API server is not ready yet, its page /readyz says why");
        }
    }

    /// Whether the API server answers at all, be it that it is not well.
    pub(crate) async fn answers(&self) -> bool {
        let client = self.client("davit:up", &["system:masters"]);
        let request = http::Request::get("/livez").body(Vec::new());
        match request {
            Ok(request) => !matches!(
                client.request_text(request).await,
                Err(error) if !matches!(error, kube::Error::Api(_))
            ),
            Err(_) => false,
        }
    }

    /// What signs certificate requests: the cluster's own authority.
    pub(crate) fn authority(&self) -> Result<Option<Authority>> {
        let Some(pki) = self.server.pki() else {
            return Ok(None);
        };
        let identity = pki.authority();
        let authority = Authority::new(&identity.certificate, &identity.key);
        Ok(Some(authority.context("certificate authority")?))
    }

    /// What signs the tokens of Secrets: the key of service account tokens.
    pub(crate) fn token_signer(&self) -> Result<TokenSigner> {
        TokenSigner::new(self.server.service_account_key()).context("service account tokens")
    }

    /// Has a node of this process serve with a certificate of the cluster's authority, and the API server find it where
    /// it listens.
    pub(crate) fn attach_node(&self, node: &mut davit_node::NodeOptions) -> Result<()> {
        let name = node.node_name.clone();
        let at = match node.address.is_unspecified() {
            true => Ipv4Addr::LOCALHOST.into(),
            false => node.address,
        };
        // Not by its address on the network, which it may lose.
        self.server.reach_node(&name, at, false);
        if node.serving_certificate.is_some() || node.server_tls_bootstrap {
            return Ok(());
        }
        let Some(pki) = self.server.pki() else {
            return Ok(());
        };
        let names = node.serving_names();
        let identity = pki.node_serving(&name, &names);
        let identity = identity.with_context(|| format!("serving certificate of {name}"))?;
        let (certificate, key) = (identity.certificate.into_bytes(), identity.key.into_bytes());
        node.serving_certificate = Some((certificate, key));
        self.server.reach_node(&name, at, true);
        Ok(())
    }

    /// Of the addresses by which pods reach this machine the one of the family of the Service `kubernetes`.
    fn for_pods(&self, gateways: Result<Vec<IpAddr>, oneshot::error::RecvError>) -> Option<IpAddr> {
        let family = self.server.service_ranges().primary().family();
        let mut gateways = gateways.ok()?.into_iter();
        gateways.find(|address| Family::of(*address) == family)
    }

    /// Once pods have a gateway, says so to a server that listens there with all addresses.
    pub(crate) async fn name_gateway(
        self,
        gateways: oneshot::Receiver<Vec<IpAddr>>,
        cancel: CancellationToken,
    ) -> Result<()> {
        let named = async {
            if let Some(address) = self.for_pods(gateways.await) {
                self.server.has_gateway(address);
            }
        };
        tokio::select! { () = cancel.cancelled() => {} () = named => cancel.cancelled().await }
        Ok(())
    }

    /// Once pods have a gateway, serves there, too: a server that only this machine reaches is reached by its pods all the
    /// same, at the same port where it is free.
    pub(crate) async fn serve_pods(
        self,
        gateways: oneshot::Receiver<Vec<IpAddr>>,
        cancel: CancellationToken,
    ) -> Result<()> {
        let address = tokio::select! {
            () = cancel.cancelled() => return Ok(()),
            found = gateways => match self.for_pods(found) {
                Some(address) => address,
                // Pods have no such network.
                None => {
                    cancel.cancelled().await;
                    return Ok(());
                }
            },
        };
        let port = self
            .url
            .rsplit_once(':')
            .and_then(|(_, port)| port.parse().ok());
        let listener = match TcpListener::bind((address, port.unwrap_or(0))).await {
            Ok(listener) => listener,
            Err(_) => TcpListener::bind((address, 0))
                .await
                .with_context(|| format!("cannot listen on {address} for pods"))?,
        };
        let serving = self.server.serve_pods(listener, cancel);
        serving.await.context("API server for pods")
    }

    /// The cluster's CA in PEM.
    pub(crate) fn ca(&self) -> Option<String> {
        self.server.pki().map(|pki| pki.ca_certificate().to_owned())
    }
}

/// Opens the store, makes the API server and serves it in a task of `tasks` until `cancel`. `nodes`: whose certificates
/// of nodes' servers are believed unless the options say; `shown`: a serving certificate that is given.
pub(crate) async fn start_server(
    options: &ServerOptions,
    features: Features,
    nodes: KubeletAuthority,
    shown: Option<ServingFiles>,
    data_dir: &Path,
    tasks: &mut JoinSet<Result<()>>,
    cancel: CancellationToken,
) -> Result<RunningServer> {
    let services = options.services.service_cluster_ip_range;
    let timers = options.elections.timers()?;
    let bind = same_family(options)?;
    let address = SocketAddr::new(
        in_all_families(bind, &services),
        options.port.unwrap_or(PORT),
    );
    let listener = TcpListener::bind(address).await.with_context(|| {
        format!(
            "cannot listen on {address}; another port can be named with --port N (0 = any free one)"
        )
    })?;
    let stores = options.store.open(data_dir).await?;
    let mut server_options = Options::new(Arc::clone(stores.main()));
    server_options.stores = stores;
    server_options.build = Build {
        commit: env!("DAVIT_GIT_COMMIT"),
        date: env!("DAVIT_BUILD_DATE"),
    };
    server_options.features = features.clone();
    server_options
        .runtime_config
        .clone_from(&options.runtime_config);
    server_options.kubelet_authority = nodes;
    server_options.data_dir = Some(data_dir.to_owned());
    server_options.extra_names.clone_from(&options.tls_san);
    let own = own_addresses(address.ip(), services);
    let own = own.iter().map(ToString::to_string);
    server_options.extra_names.extend(own);
    server_options.advertise_address = options.advertise_address;
    server_options.shares_store = options.store.is_shared();
    server_options.kubernetes_form = options.store.form()?;
    // Its own clients are shown its own certificate: they believe no other authority.
    let server_name = shown.as_ref().map(|_| LOOPBACK_NAME);
    server_options.serving_files = shown;
    server_options.tls = options.tls.policy()?;
    server_options.service_ranges = services;
    server_options.node_ports = options.services.service_node_port_range.clone();
    // A server that only this machine reaches, or one without a network, has its nodes here.
    server_options.loopback = Loopback {
        endpoints: options.allow_loopback_endpoints,
        nodes: options.bind_address.is_loopback()
            || davit_listen::addresses::default_address().is_loopback(),
    };
    server_options.console = options.console;
    options.access.apply(&mut server_options)?;
    if let Some(file) = &options.token_auth_file {
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("token file {}", file.display()))?;
        server_options.static_tokens =
            parse_token_file(&text).with_context(|| format!("token file {}", file.display()))?;
    }
    server_options.admission = admission(options)?;
    options
        .protection
        .apply(&mut server_options, tasks, &cancel)?;
    let server = ApiServer::new(server_options).await.context("API server")?;
    let port = listener.local_addr().context("listener")?.port();
    let host = reachable(options.bind_address);
    let url = format!("https://{}", SocketAddr::new(host, port));
    let kubeconfig = options
        .kubeconfig
        .clone()
        .unwrap_or_else(|| paths::admin_kubeconfig(data_dir));
    let kubeconfig = std::path::absolute(&kubeconfig).context("kubeconfig")?;
    let mut files = Kubeconfigs {
        server: server.clone(),
        url: url.clone(),
        server_name,
        admin: kubeconfig.clone(),
        data_dir: data_dir.to_owned(),
        written: BTreeMap::new(),
    };
    files.write()?;
    tasks.spawn(files.follow(cancel.clone()));
    let running = RunningServer {
        server: server.clone(),
        url,
        kubeconfig,
    };
    elections::spawn(&running, timers, &features, tasks, cancel.clone())?;
    tasks.spawn(async move { server.serve(listener, cancel).await.context("API server") });
    Ok(running)
}

/// The address to listen on, where it is one by which a server can be reached as the Service `kubernetes`: that is of the
/// family of the first range.
fn same_family(options: &ServerOptions) -> Result<IpAddr> {
    let bind = options.bind_address;
    let range = options.services.service_cluster_ip_range.primary();
    let is_told = options.advertise_address.is_none() && !bind.is_loopback();
    if is_told && !bind.is_unspecified() && Family::of(bind) != range.family() {
        bail!(
            "service IP family {:?} must match public address family {:?}",
            range.to_string(),
            bind.to_string()
        );
    }
    Ok(bind)
}

/// All addresses of a machine are those of IPv6, too, in a cluster that has such.
fn in_all_families(bind: IpAddr, services: &ServiceRanges) -> IpAddr {
    match services.families().any(|family| family == Family::V6) {
        true if bind == Ipv4Addr::UNSPECIFIED => Ipv6Addr::UNSPECIFIED.into(),
        _ => bind,
    }
}

/// The addresses by which a server that listens on `bind` is reached and that its certificate names: that one, or what it
/// advertises if it listens on all.
fn own_addresses(bind: IpAddr, services: ServiceRanges) -> Vec<IpAddr> {
    match bind.is_unspecified() {
        true => machine_addresses(services),
        false => vec![bind],
    }
}

/// The kubeconfigs of a server, whose certificates are renewed in time.
struct Kubeconfigs {
    server: Arc<ApiServer>,
    url: String,
    /// What is asked for in handshakes, unless the URL's.
    server_name: Option<&'static str>,
    /// The administrator's file.
    admin: PathBuf,
    data_dir: PathBuf,
    /// The certificate that each file has.
    written: BTreeMap<PathBuf, String>,
}

impl Kubeconfigs {
    /// Between looks at the certificates; they are renewed a year before their end.
    const INTERVAL: Duration = Duration::from_secs(3600);

    /// Writes the files whose certificates are new.
    fn write(&mut self) -> Result<()> {
        let server = self.server.clone();
        let pki = server.pki().context("the API server has no keys")?;
        let admin = pki.admin().context("administrator's certificate")?;
        self.write_one(pki, self.admin.clone(), "kubernetes-admin", &admin)?;
        // for components that run apart from this process
        for (name, user) in COMPONENTS {
            let identity = pki.client(name, user, &[]);
            let identity = identity.with_context(|| format!("certificate of {user}"))?;
            let file = self.data_dir.join(format!("{name}.kubeconfig"));
            self.write_one(pki, file, user, &identity)?;
        }
        Ok(())
    }

    fn write_one(
        &mut self,
        pki: &Pki,
        file: PathBuf,
        user: &str,
        identity: &Identity,
    ) -> Result<()> {
        if self.written.get(&file) == Some(&identity.certificate) {
            return Ok(());
        }
        let config = Kubeconfig {
            cluster: "davit",
            user,
            server: &self.url,
            server_name: self.server_name,
            ca: pki.ca_certificate(),
            identity,
        };
        write_kubeconfig(&file, &config)
            .with_context(|| format!("kubeconfig {}", file.display()))?;
        self.written.insert(file, identity.certificate.clone());
        Ok(())
    }

    /// Keeps the files good until `cancel`.
    async fn follow(mut self, cancel: CancellationToken) -> Result<()> {
        loop {
            tokio::select! {
                () = cancel.cancelled() => return Ok(()),
                () = tokio::time::sleep(Self::INTERVAL) => {}
            }
            if let Err(error) = self.write() {
                tracing::error!(error = format!("{error:#}"), "renewing kubeconfigs");
            }
        }
    }
}

/// The admission plugins that the flags leave on.
fn admission(options: &ServerOptions) -> Result<davit_admission::Chain> {
    let mut config = davit_admission::Config::switched(
        options.enable_admission_plugins.clone(),
        options.disable_admission_plugins.clone(),
    );
    if let Some(file) = &options.admission_control_config_file {
        config.read_file(file).context("admission configuration")?;
    }
    davit_admission::Chain::configured(&config).context("admission plugins")
}

/// The address by which a server that listens on `bound` is reached from this machine.
fn reachable(bound: IpAddr) -> IpAddr {
    match bound {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        other => other,
    }
}

/// What the embedded runtime needs and this process lacks, in one line.
pub(crate) fn lacks_privileges(options: &NodeOptions) -> Result<Option<String>> {
    let needs_root = options.runtime()? == RuntimeKind::Embedded && !paths::is_root();
    Ok(needs_root.then(|| {
        "running containers needs root, which this user is not; what works without: \
         --no-node (control plane only), --runtime unix:///path/to/cri.sock (an external runtime), \
         --runtime none (pods hold devices, nothing runs)"
            .to_owned()
    }))
}

/// The container runtime of the node with this address.
async fn runtime(
    options: &NodeOptions,
    data_dir: &Path,
    paths: &NodePaths,
    address: IpAddr,
    demo: bool,
    network: &Opened,
) -> Result<Arc<dyn Runtime>> {
    let images = options.image_socket()?;
    Ok(match options.runtime()? {
        RuntimeKind::Embedded => {
            let mut embedded = EmbeddedOptions::new(paths::runtime_dir(data_dir));
            embedded.host_ip = address.to_string();
            embedded.allow_host_image = options.allow_host_image || demo;
            embedded.cdi_dirs = match options.cdi_spec_dirs.as_slice() {
                [] => paths.cdi(),
                dirs => dirs.to_vec(),
            };
            embedded.handlers = options.runtime_handlers.iter().cloned().collect();
            embedded.network = network.connects.clone();
            embedded.open_files = open_files::given();
            Arc::new(Embedded::new(embedded).await.context("embedded runtime")?)
        }
        RuntimeKind::Cri(socket) => {
            let remote = davit_oci::cri::Remote::connect(&socket).await;
            let remote =
                remote.with_context(|| format!("container runtime at {}", socket.display()))?;
            Arc::new(match images {
                Some(socket) => remote.with_images(socket).await?,
                None => remote,
            })
        }
        RuntimeKind::None => Arc::new(Hollow::default()),
    })
}

/// The node's name, which is known before anything is started ([`crate::node_name`]).
///
/// # Errors
/// It is not.
pub(crate) fn node_name(options: &NodeOptions) -> Result<String> {
    options.node_name.clone().context("the node has no name")
}

/// What a node agent is started with.
pub(crate) struct NodeStart<'a> {
    pub(crate) client: kube::Client,
    /// Learns the address by which pods reach this machine, once there is one.
    pub(crate) gateway: Option<oneshot::Sender<Vec<IpAddr>>>,
    pub(crate) options: &'a NodeOptions,
    pub(crate) data_dir: &'a Path,
    /// The authority of those who call the node's server, PEM.
    pub(crate) client_ca: Option<String>,
    /// Where the node's server listens unless flags or configuration say.
    pub(crate) listen: IpAddr,
    /// At its end it is said which containers go on.
    pub(crate) stays: bool,
    /// Addresses of Services; that of the DNS server among them, unless flags or configuration say.
    pub(crate) services: ServiceRanges,
    pub(crate) demo: bool,
}

/// The addresses of this machine: one of each family of Services, as far as it has them.
fn machine_addresses(services: ServiceRanges) -> Vec<IpAddr> {
    let four = davit_listen::addresses::default_address;
    let found = services.families().filter_map(|family| match family {
        Family::V4 => Some(four()),
        Family::V6 => davit_listen::addresses::default_ipv6_address(),
    });
    let mut found: Vec<IpAddr> = found.collect();
    if found.is_empty() {
        found.push(four());
    }
    found
}

/// The addresses of a node unless flags say.
fn node_addresses(services: ServiceRanges) -> Vec<IpAddr> {
    let found = machine_addresses(services);
    if found.len() < services.families().count()
        || found
            .first()
            .is_some_and(|first| Family::of(*first) != services.primary().family())
    {
        tracing::warn!(
            addresses = ?found, %services,
            "this machine has no address of a family of Services by which others reach it; --node-ip names some"
        );
    }
    found
}

/// Runs the node agent until it is stopped. `adjust` sees its options last.
pub(crate) async fn run_node(
    start: NodeStart<'_>,
    adjust: impl FnOnce(&mut davit_node::NodeOptions) -> Result<()>,
    stop: Stop,
) -> Result<()> {
    let NodeStart {
        client,
        gateway,
        options,
        data_dir,
        client_ca,
        listen,
        services,
        demo,
        stays,
    } = start;
    let node_paths = NodePaths::new(options.root.as_deref(), data_dir)?;
    node_paths.write_down(data_dir)?;
    let addresses = node_addresses(services);
    // Until the runtime is there nothing is asked of it.
    let none = Arc::new(Hollow::default());
    let mut node = davit_node::NodeOptions::new(node_name(options)?, node_paths.kubelet(), none);
    node.se_linux = matches!(options.runtime()?, RuntimeKind::Cri(_));
    node.log_dir = node_paths.pod_logs();
    node.static_pod_dir = Some(node_paths.static_pods());
    if node.mounts {
        let given = options.volumes_dir.clone();
        node.local_volumes = Some(given.unwrap_or_else(|| paths::local_volumes(data_dir)));
    }
    node.port = options.node_port.unwrap_or(NODE_PORT);
    node.node_ips = addresses;
    let families = services.families();
    node.ip_families = families.map(Family::unspecified).collect();
    node.client_ca = client_ca.map(String::into_bytes);
    node.address = listen;
    options.kubelet.apply(&mut node)?;
    features::remark(&node.features);
    if node.address == Ipv4Addr::UNSPECIFIED && node.node_ips.iter().any(IpAddr::is_ipv6) {
        node.address = Ipv6Addr::UNSPECIFIED.into();
    }
    node.address = options.node_address.unwrap_or(node.address);
    adjust(&mut node)?;
    let opened = pod_network::open(options, &node_paths, data_dir, services, &mut node).await?;
    let address = node.node_ips.first().copied();
    let address = address.unwrap_or_else(davit_listen::addresses::default_address);
    let connecting = runtime(options, data_dir, &node_paths, address, demo, &opened);
    node.runtime = tokio::select! {
        () = stop.cancel.cancelled() => return Ok(()),
        runtime = connecting => runtime?,
    };
    let left = node.runtime.clone();
    let shutdown = node.shutdown.clone();
    node.going_down = stop.terminated.clone();
    let cancel = CancellationToken::new();
    let look = node.look.clone();
    // A task of its own: the agent's stack is deep enough.
    let network = pod_network::run(opened, client.clone(), gateway, look, cancel.clone());
    let mut network = AbortOnDropHandle::new(tokio::spawn(network));
    let mut agent = Box::pin(davit_node::NodeAgent::new(client, node).run(cancel.clone()));
    let ended = tokio::select! {
        ended = &mut agent => Some(ended),
        Err(error) = &mut network => return Err(error).context("the node's network"),
        () = stop.cancel.cancelled() => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        // It ends its pods, then itself.
        None if shutdown.is_on() && stop.terminated.is_cancelled() => {
            let limit = shutdown.total() + AFTER_PODS;
            match tokio::time::timeout(limit, &mut agent).await {
                Ok(ended) => ended,
                Err(_) => {
                    cancel.cancel();
                    agent.await
                }
            }
        }
        None => {
            cancel.cancel();
            agent.await
        }
    };
    ended.context("node agent")?;
    if stays && options.runtime()? == RuntimeKind::Embedded {
        tell_what_stays(&*left, data_dir).await;
    }
    Ok(())
}

/// Says that containers go on without their node, which is as it shall be and not what everybody expects.
async fn tell_what_stays(runtime: &dyn Runtime, data_dir: &Path) {
    let state = ContainerStateValue {
        state: ContainerState::ContainerRunning as i32,
    };
    let running = ContainerFilter {
        state: Some(state),
        ..ContainerFilter::default()
    };
    let listed = tokio::time::timeout(LAST_LOOK, runtime.list_containers(Some(running))).await;
    if let Ok(Ok(containers)) = listed
        && !containers.is_empty()
    {
        // Whoever reads it may be gone.
        let _unread = writeln!(
            std::io::stderr(),
            "davit: left running: {} (the next start finds them again; `davit down --data-dir {}` ends them)",
            output::count(containers.len(), "container"),
            data_dir.display()
        );
    }
}

/// How a node is stopped.
pub(crate) struct Stop {
    /// It stops.
    pub(crate) cancel: CancellationToken,
    /// Cancelled before: by SIGTERM, which says that the machine goes down where pods have time for that.
    pub(crate) terminated: CancellationToken,
}

/// What the agent gets after its pods' time, for the last statuses.
const AFTER_PODS: Duration = Duration::from_secs(10);
