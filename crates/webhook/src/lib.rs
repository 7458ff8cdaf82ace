//! Calls to HTTP servers outside: admission, conversion, authentication, authorization and image
//! policy webhooks, and the checks of aggregated API servers.
//!
//! [`Client`] is one destination with its trust and credentials; it keeps connections open and
//! speaks HTTP/1.1, as webhook servers in the field expect. [`Webhooks`] hands out clients for the
//! `clientConfig` of API objects, one for each distinct configuration; [`Kubeconfig`] makes one
//! from a file. Services are resolved to the endpoints behind them at each new connection: there
//! need be no service network on the API server's machine. Which endpoints these are, who calls
//! says ([`ServiceEndpoints`]); to which addresses objects may lead, [`DialPolicy`] does. Redirects are
//! answers like any other. Error texts are those of Kubernetes.

#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::needless_pass_by_value,
        reason = "tests hand over what they write in place"
    )
)]

mod client;
mod config;
mod credentials;
mod dial;
mod interim;
mod kubeconfig;
mod reach;
pub mod tls;

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::client::{Answer, Call, CallError, Client, Settings};
pub use self::client::{parse, root_cause as go_cause, told};
pub use self::config::{ClientConfig, ServiceReference, Target};
pub use self::credentials::{Credentials, HostCredentials};
pub use self::dial::{Connector, Dial, WithinLimits};
pub use self::interim::{OnlyInterim, answered};
pub use self::kubeconfig::{Kubeconfig, KubeconfigError};
pub use self::reach::{DialPolicy, Loopback, is_refusal, refusal};

/// Clients kept at most; beyond it all are dropped and made again as needed.
const MAX_CLIENTS: usize = 512;

/// The tasks that drive connections: they end with the server.
#[derive(Debug, Clone)]
pub struct Tasks {
    tracker: TaskTracker,
    cancel: CancellationToken,
}

impl Tasks {
    /// Tasks that end with `cancel`.
    pub fn new(cancel: CancellationToken) -> Self {
        Self {
            tracker: TaskTracker::new(),
            cancel,
        }
    }
}

impl<F> hyper::rt::Executor<F> for Tasks
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, work: F) {
        let cancel = self.cancel.clone();
        self.tracker.spawn(async move {
            tokio::select! {
                () = cancel.cancelled() => {}
                () = work => {}
            }
        });
    }
}

/// Where services lead.
#[async_trait]
pub trait ServiceEndpoints: std::fmt::Debug + Send + Sync {
    /// A ready address behind the service's port, or the outside name of an ExternalName service.
    ///
    /// # Errors
    /// Why there is none, in the words of kube-apiserver.
    async fn endpoint(
        &self,
        namespace: &str,
        name: &str,
        port: u16,
    ) -> Result<(String, u16), String>;

    /// To which addresses services may lead.
    fn reach(&self) -> DialPolicy;
}

/// The clients of the webhooks that API objects configure.
pub struct Webhooks {
    services: Arc<dyn ServiceEndpoints>,
    tasks: Tasks,
    clients: Mutex<HashMap<(ClientConfig, bool), Arc<Client>>>,
}

impl std::fmt::Debug for Webhooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Webhooks({} clients)", self.clients.lock().len())
    }
}

impl Webhooks {
    /// Clients that find services by `services`; their connections end with `cancel`.
    pub fn new(services: Arc<dyn ServiceEndpoints>, cancel: CancellationToken) -> Self {
        Self {
            services,
            tasks: Tasks::new(cancel),
            clients: Mutex::new(HashMap::new()),
        }
    }

    /// What drives connections, for clients made by hand.
    pub fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// How services are resolved, for clients made by hand.
    pub fn services(&self) -> &Arc<dyn ServiceEndpoints> {
        &self.services
    }

    /// The client for a `clientConfig`, with the credentials that `credentials` has for its host.
    /// The same configuration gets the same client, and so the same connections.
    ///
    /// # Errors
    /// When the configuration cannot be used (its URL, its authorities).
    pub fn client(
        &self,
        config: &ClientConfig,
        credentials: Option<&HostCredentials>,
    ) -> Result<Arc<Client>, CallError> {
        let key = (config.clone(), credentials.is_some());
        if let Some(client) = self.clients.lock().get(&key) {
            return Ok(Arc::clone(client));
        }
        let settings = config.settings(&self.services, credentials)?;
        let client = Arc::new(Client::new(settings, self.tasks.clone())?);
        let mut clients = self.clients.lock();
        if clients.len() >= MAX_CLIENTS {
            clients.clear();
        }
        clients.insert(key, Arc::clone(&client));
        Ok(client)
    }
}
