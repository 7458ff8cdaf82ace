//! What a server is made of.

use std::sync::Arc;

use davit_access::StoredObjects;
use davit_access::authn::Authenticator;
use davit_access::authz::Sources;
use davit_access::tokens::TokenKeys;
use davit_audit::Auditor;
use davit_flowcontrol::FlowControl;
use davit_listen::HttpLimits;
use davit_registry::Registry;
use davit_schema::gates::Disabled;
use davit_webhook::Webhooks;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::addresses::Addresses;
use super::authorization::Authorizers;
use super::identities::OwnIdentities;
use super::identity;
use super::lifecycle::Lifecycle;
use super::{ApiServer, Error, KubeletAuthority, Limits, Options};
use crate::aggregation::Aggregation;
use crate::components::Components;
use crate::discovery::AggregatedCache;
use crate::in_flight::InFlight;
use crate::metrics::Metrics;
use crate::node_client::NodeClient;
use crate::openapi::OpenApiCache;
use crate::resource_metrics::ResourceMetrics;
use crate::service_addresses::ServiceAddresses;
use crate::service_endpoints::StoredEndpoints;
use crate::stored_form::StoredForms;
use davit_pki::{Pki, api_server_names};

impl ApiServer {
    /// A server of which nothing runs yet.
    ///
    /// # Errors
    /// When keys or TLS cannot be made, or what is configured cannot be used.
    pub(crate) fn made_of(options: Options) -> Result<Self, Error> {
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
        let (encryption, form) = (&options.encryption, &options.kubernetes_form);
        let stored = StoredForms::new(options.stores, encryption.as_ref(), form.as_ref());
        let registry = Registry::built_in(stored.stores(), |row| {
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
            stored,
            shares_store: options.shares_store,
            identity: identity::name(options.data_dir.as_deref()),
            addresses: Addresses::new(options.advertise_address),
            authenticator,
            authorizers,
            admission: options.admission,
            flow_control: Arc::new(FlowControl::new(options.flow_control, metrics.flow.clone())),
            in_flight: InFlight::new(options.flow_control),
            limits: Limits {
                tls: options.tls,
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
            tasks: Mutex::default(),
            pki,
            signing_key,
            lifecycle,
        })
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
