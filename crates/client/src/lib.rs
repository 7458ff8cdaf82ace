//! How davit's components reach an API server: over HTTPS by kubeconfig, or in process, without being able to tell.
//!
//! The client itself is [`kube::Client`]. This crate adds what every component needs around it: [`Informer`] (list and
//! watch into an indexed store), [`Feed`] (the same without a store), [`WorkQueue`] (client-go's queue semantics), [`EventRecorder`], [`LeaderElector`] and [`Candidacy`],
//! [`Reviews`] of callers by the API server, [`certificate`]s by request, the one reader of who they are about ([`subject`]), the key
//! that signs tokens ([`signing`]), clients of service accounts ([`ServiceAccounts`]), tokens by which machines join ([`bootstrap_token`]) how these find the cluster ([`discovery`]), which kinds a
//! server has ([`served_kinds`]) how their [`scale`]s are reached,
//! and those that do not answer ([`slow_kinds`]).
#![forbid(unsafe_code)]

mod bearer;
pub mod bootstrap_token;
mod candidacy;
pub mod certificate;
mod connect;
mod counted;
pub mod discovery;
mod events;
mod exec_credentials;
mod feed;
mod informer;
mod leader;
mod lines;
mod object_paths;
mod pages;
mod pause;
mod queue;
mod received;
mod reviews;
pub mod scale;
pub mod served_entries;
pub mod served_kinds;
mod service_account;
pub mod signing;
pub mod slow_kinds;
pub mod subject;
mod throttle;

pub use candidacy::{Candidacy, is_pinged};
pub use connect::{
    Rotation, from_config, from_kubeconfig, in_process, kubeconfig, rotating, settled,
};
pub use counted::RestRequests;
pub use events::{EventRecorder, event_name, object_ref};
pub use exec_credentials::ExecPluginError;
pub use feed::{Feed, FeedEvent};
pub use informer::{Change, IndexValue, Informer, Object, ObjectKey, Subscription, Trim};
pub use kube::Client;
pub use leader::LeaderElector;
pub use object_paths::path_segment;
pub use pages::list_in_pages;
pub use queue::{WorkQueue, register_queue_metrics};
pub use reviews::{AccessAttributes, Reviewed, Reviews};
pub use service_account::{AccountTokenError, ServiceAccounts};
pub use throttle::{RequestRate, Throttle, throttled};

/// What the API server said, for events, conditions and logs: the client's own error shows the whole Status besides.
#[must_use]
pub fn message_of(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        error => error.to_string(),
    }
}

/// Why a client could not be made or did not become ready.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kubeconfig file is missing or not usable.
    #[error("kubeconfig {path} cannot be used")]
    Kubeconfig {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong with it.
        #[source]
        source: kube::config::KubeconfigError,
    },
    /// The client could not be built from the configuration.
    #[error("cannot build a client for {server}")]
    Client {
        /// The server's URL.
        server: String,
        /// What is wrong.
        #[source]
        source: Box<kube::Error>,
    },
    /// A program that is to say the credentials has not.
    #[error("the credentials cannot be used that {command:?} is to say")]
    Plugin {
        /// The program.
        command: String,
        /// Why.
        #[source]
        source: ExecPluginError,
    },
    /// An informer did not list its objects in time.
    #[error("{kind} were not listed within {after:?}")]
    NotSynced {
        /// Plural name of the kind.
        kind: String,
        /// How long was waited.
        after: std::time::Duration,
    },
}
