//! How a server is made: what it is made of, the objects that every cluster has, the loops that go on.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use davit_access::StoredObjects;
use davit_access::authn::Authenticator;
use davit_access::authz::Sources;
use davit_access::tokens::TokenKeys;
use davit_audit::Auditor;
use davit_flowcontrol::FlowControl;
use davit_listen::HttpLimits;
use davit_registry::Registry;
use davit_schema::gates::Disabled;
use davit_task::Task;
use davit_webhook::Webhooks;
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::addresses::Addresses;
use super::authorization::Authorizers;
use super::identities::OwnIdentities;
use super::lifecycle::Lifecycle;
use super::{
    ApiServer, Error, KubeletAuthority, Limits, Options, bootstrap, identity_lease, roles,
};
use crate::aggregation::{self, Aggregation};
use crate::discovery::AggregatedCache;
use crate::metrics::Metrics;
use crate::openapi::OpenApiCache;
use crate::pipeline::InFlight;
use crate::proxy::NodeClient;
use crate::resource_metrics::{self, ResourceMetrics};
use crate::service_addresses::ServiceAddresses;
use crate::service_endpoints::StoredEndpoints;
use crate::stored_form::StoredForm;
use crate::virtuals::Components;
use crate::{crd, event_ttl, flow_objects};
use davit_pki::{Pki, api_server_names};

/// The component in names of tasks.
const COMPONENT: &str = "apiserver";
/// How long plugins that keep keys of encryption at rest may take to answer at start.
const PLUGINS_READY: Duration = Duration::from_secs(20);

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
        same_family(&options)?;
        let encryption = options.encryption.clone();
        if let Some(encryption) = &encryption {
            encryption.ready(PLUGINS_READY).await?;
        }
        let server = Arc::new(Self::made_of(options)?);
        server.make_first_objects().await?;
        if let Some(encryption) = encryption {
            server.keep("encryption", move |_, cancel| {
                let encryption = encryption.clone();
                async move { encryption.attend(cancel).await }
            });
        }
        server.lifecycle.serve();
        server.keep("aggregator", |server, _| aggregation::run(server));
        server.keep("event-ttl", |server, _| event_ttl::run(server));
        server.keep("resource-metrics", |server, _| {
            resource_metrics::run(server)
        });
        Ok(server)
    }

    fn made_of(options: Options) -> Result<Self, Error> {
        let pki = match &options.data_dir {
            Some(dir) => Some(Pki::open(&dir.join("pki"))?),
            None => None,
        };
        let signing_key = match (&options.service_account_signing_key, &pki) {
            (Some(key), _) => key.clone(),
            (None, Some(pki)) => pki.service_account_key()?,
            (None, None) => davit_pki::ephemeral_key()?,
        };
        let keys = token_keys(&options, &signing_key)?;
        let identities = own_identities(&options, pki.as_ref())?;
        let lifecycle = Lifecycle::new();
        let ended = lifecycle.ended().clone();
        let nodes = node_client(&options, pki.as_ref(), &identities, ended.clone())?;
        let stored = StoredForm::new(options.store, options.encryption, options.kubernetes_form);
        let store = stored.store();
        let registry = Registry::built_in(Arc::clone(&store), |row| {
            options.runtime_config.serves(row, &options.features)
        });
        let service_addresses =
            ServiceAddresses::new(options.service_ranges, options.node_ports, &registry);
        let services = StoredEndpoints::new(&registry, options.loopback.of_endpoints());
        let webhooks = Arc::new(Webhooks::new(Arc::new(services), ended));
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
        let sources = Sources::new(&find, Arc::clone(&metrics.access));
        let authorizers = Authorizers::new(options.authorization, sources, &webhooks)?;
        let types = Arc::clone(&davit_api::kinds::builtin().types);
        Ok(Self {
            registry,
            disabled: Disabled::new(types, options.features),
            store,
            stored,
            shares_store: options.shares_store,
            identity: identity_lease::name(options.data_dir.as_deref()),
            addresses: Addresses::new(options.advertise_address),
            authenticator,
            authorizers,
            admission: options.admission,
            flow_control: Arc::new(FlowControl::new(options.flow_control, metrics.flow.clone())),
            flow_task: OnceLock::new(),
            in_flight: InFlight::new(options.flow_control),
            limits: Limits {
                connections: options.connections,
                http: HttpLimits {
                    streams: options.http2_streams,
                },
                goaway_chance: options.goaway_chance,
                min_request_timeout: options.min_request_timeout,
                shutdown_delay: options.shutdown_delay,
            },
            auditor,
            metrics,
            components: Components::default(),
            build: options.build,
            console: options.console,
            aggregated: AggregatedCache::default(),
            openapi: OpenApiCache::default(),
            service_addresses,
            nodes,
            judges_nodes: options.kubelet_authority != KubeletAuthority::Any,
            webhooks,
            aggregation: Aggregation::new(identities.front_proxy(), options.proxy_client.is_some()),
            resource_metrics: ResourceMetrics::default(),
            identities,
            custom_kinds: OnceLock::new(),
            pki,
            signing_key,
            lifecycle,
        })
    }

    /// The objects that every cluster has, and what follows them.
    async fn make_first_objects(self: &Arc<Self>) -> Result<(), Error> {
        bootstrap::objects(self).await?;
        if self.flow_control.is_enabled() {
            self.control_flow().await?;
        }
        let controller = crd::Controller::start(self).await;
        let controller = controller.map_err(|s| Error::of_bootstrap("custom kinds", s))?;
        // set once, right here
        let _ = self.custom_kinds.set(controller);
        if self.authorizers.uses_rbac() {
            let made = roles::ensure(self).await;
            made.map_err(|(what, status)| Error::of_bootstrap(what, status))?;
        }
        Ok(())
    }

    async fn control_flow(self: &Arc<Self>) -> Result<(), Error> {
        let control = Arc::clone(&self.flow_control);
        let kept = flow_objects::ensure(self, &control).await;
        kept.map_err(|s| Error::of_bootstrap("priority and fairness objects", s))?;
        let cancel = self.lifecycle.ended().clone();
        let weak = Arc::downgrade(self);
        let task = Task::new(COMPONENT, "priority-and-fairness", cancel.clone());
        let follow = task.retry(move || {
            flow_objects::follow(weak.clone(), Arc::clone(&control), cancel.clone())
        });
        let task = AbortOnDropHandle::new(tokio::spawn(follow));
        // set once, here
        let _ = self.flow_task.set(task);
        Ok(())
    }

    /// Starts a loop in the background, which ends with the server and is made anew when it panics.
    fn keep<W: Future<Output = ()> + Send + 'static>(
        self: &Arc<Self>,
        name: &'static str,
        make: impl Fn(Weak<Self>, CancellationToken) -> W + Send + 'static,
    ) {
        let (server, cancel) = (Arc::downgrade(self), self.lifecycle.ended().clone());
        let task = Task::new(COMPONENT, name, cancel.clone());
        let work = task.retry(move || make(Weak::clone(&server), cancel.clone()));
        self.nodes.track(work);
    }
}

/// Whoever reaches the Service `kubernetes` must be able to reach what is behind it.
fn same_family(options: &Options) -> Result<(), Error> {
    let range = options.service_ranges.primary();
    let is_other = |address: &std::net::IpAddr| {
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

/// The keys that sign and check the tokens of service accounts.
fn token_keys(options: &Options, signing_key: &str) -> Result<TokenKeys, Error> {
    let issuer = &options.service_account_issuer;
    let audiences = if options.api_audiences.is_empty() {
        vec![issuer.clone()]
    } else {
        options.api_audiences.clone()
    };
    let mut keys = TokenKeys::new(signing_key, issuer, audiences)?;
    keys.also_accept(&options.former_issuers, &options.service_account_keys)?;
    keys.set_life(options.token_life);
    Ok(keys)
}

/// The certificates that the server shows.
fn own_identities(options: &Options, pki: Option<&Pki>) -> Result<OwnIdentities, Error> {
    let mut names = options.extra_names.clone();
    names.extend(options.advertise_address.map(|address| address.to_string()));
    let ranges = options.service_ranges.all();
    let of_service: Vec<String> = ranges.map(|range| range.kubernetes().to_string()).collect();
    OwnIdentities::new(
        pki,
        api_server_names(&of_service, &names),
        options.serving_files.as_ref(),
        options.kubelet_client.as_ref(),
        options.proxy_client.as_ref(),
    )
}

/// What calls the servers of nodes.
fn node_client(
    options: &Options,
    pki: Option<&Pki>,
    identities: &OwnIdentities,
    ended: CancellationToken,
) -> Result<NodeClient, Error> {
    let authority = pki.map(Pki::ca_certificate);
    let of_kubelets = match &options.kubelet_authority {
        KubeletAuthority::Any => None,
        KubeletAuthority::Cluster => authority,
        KubeletAuthority::Pem(pem) => Some(pem.as_str()),
    };
    let identity = identities.kubelet_client();
    let client = NodeClient::new(identity, of_kubelets, authority, options.loopback, ended)?;
    Ok(client)
}
