//! The configuration's types but for the arguments of plugins.

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

use super::args::PluginArgs;
use super::duration;
use super::plugin_sets::PluginSets;
use super::{API_VERSION, KIND};

/// The configuration of a scheduler.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KubeSchedulerConfiguration {
    /// [`API_VERSION`]
    pub api_version: String,
    /// [`KIND`]
    pub kind: String,
    /// How many nodes kube-scheduler looks at in parallel; davit looks at one after the other.
    pub parallelism: i32,
    /// How one of several replicas is chosen to work.
    pub leader_election: LeaderElectionConfiguration,
    /// How the API server is reached.
    pub client_connection: ClientConnectionConfiguration,
    /// Profiling over HTTP, which davit does not have.
    pub enable_profiling: bool,
    /// Profiling of locks; `None`: as `enable_profiling`.
    pub enable_contention_profiling: Option<bool>,
    /// Share of the nodes to be looked for, in percent; 0: by the size of the cluster.
    pub percentage_of_nodes_to_score: i32,
    /// First pause of a pod that could not be scheduled, in seconds.
    pub pod_initial_backoff_seconds: i64,
    /// Longest pause, in seconds.
    pub pod_max_backoff_seconds: i64,
    /// The schedulers that run in this one, by scheduler name.
    pub profiles: Vec<KubeSchedulerProfile>,
    /// HTTP servers that take part in decisions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extenders: Vec<ExtenderConfiguration>,
    /// Whether a follower watches nothing. davit's followers never do.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub delay_cache_until_active: bool,
}

impl Default for KubeSchedulerConfiguration {
    fn default() -> Self {
        Self {
            api_version: API_VERSION.to_owned(),
            kind: KIND.to_owned(),
            parallelism: 16,
            leader_election: LeaderElectionConfiguration::default(),
            client_connection: ClientConnectionConfiguration::default(),
            enable_profiling: true,
            enable_contention_profiling: None,
            percentage_of_nodes_to_score: 0,
            pod_initial_backoff_seconds: 1,
            pod_max_backoff_seconds: 10,
            profiles: Vec::new(),
            extenders: Vec::new(),
            delay_cache_until_active: false,
        }
    }
}

/// How one of several replicas is chosen to work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaderElectionConfiguration {
    /// Whether replicas stand for election at all.
    pub leader_elect: bool,
    /// How long a leader that is silent stays one.
    #[serde(with = "duration")]
    pub lease_duration: SignedDuration,
    /// How long a leader that cannot renew goes on.
    #[serde(with = "duration")]
    pub renew_deadline: SignedDuration,
    /// Between tries.
    #[serde(with = "duration")]
    pub retry_period: SignedDuration,
    /// The kind of lock; there is only `leases`.
    pub resource_lock: String,
    /// Name of the Lease.
    pub resource_name: String,
    /// Namespace of the Lease.
    pub resource_namespace: String,
}

impl Default for LeaderElectionConfiguration {
    fn default() -> Self {
        Self {
            leader_elect: true,
            lease_duration: SignedDuration::ZERO,
            renew_deadline: SignedDuration::ZERO,
            retry_period: SignedDuration::ZERO,
            resource_lock: String::new(),
            resource_name: String::new(),
            resource_namespace: String::new(),
        }
    }
}

/// How the API server is reached.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientConnectionConfiguration {
    /// File with server and credentials.
    pub kubeconfig: String,
    /// What kinds of answers are taken; davit's client takes JSON.
    pub accept_content_types: String,
    /// What requests are written in; davit's client writes JSON.
    pub content_type: String,
    /// Requests a second; davit's client has no limit of its own.
    pub qps: f32,
    /// Requests at once above that.
    pub burst: i32,
}

/// A scheduler name with its plugins.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KubeSchedulerProfile {
    /// The name by which pods choose the profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduler_name: Option<String>,
    /// Overrides the configuration's share of nodes, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percentage_of_nodes_to_score: Option<i32>,
    /// Which plugins take part where.
    pub plugins: PluginSets,
    /// The arguments of plugins.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub plugin_config: Vec<PluginConfiguration>,
}

impl KubeSchedulerProfile {
    /// The scheduler name; empty if there is none.
    pub fn name(&self) -> &str {
        self.scheduler_name.as_deref().unwrap_or_default()
    }

    /// The arguments of a plugin.
    pub fn args(&self, plugin: &str) -> Option<&PluginArgs> {
        let mut entries = self.plugin_config.iter();
        entries.find(|c| c.name == plugin).map(|c| &c.args)
    }
}

/// The arguments of one plugin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "super::args::UntypedConfiguration")]
pub struct PluginConfiguration {
    /// The plugin.
    pub name: String,
    /// Its arguments.
    pub args: PluginArgs,
}

/// An HTTP server that takes part in decisions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExtenderConfiguration {
    /// Where it is reached; a verb is appended with a slash.
    pub url_prefix: String,
    /// Verb of the call that leaves out nodes; empty: there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub filter_verb: String,
    /// Verb of the call that judges preemption.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub preempt_verb: String,
    /// Verb of the call that scores nodes.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub prioritize_verb: String,
    /// What its scores are multiplied by.
    #[serde(skip_serializing_if = "is_no_weight")]
    pub weight: i64,
    /// Verb of the call that binds.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub bind_verb: String,
    /// Whether certificates are configured without an own section. The scheme of the URL decides what is spoken.
    #[serde(rename = "enableHTTPS", skip_serializing_if = "std::ops::Not::not")]
    pub enable_https: bool,
    /// Certificates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_config: Option<ExtenderTls>,
    /// How long a whole call may take; zero: 5 s.
    #[serde(rename = "httpTimeout", with = "duration")]
    pub http_timeout: SignedDuration,
    /// Whether it knows the nodes itself and is sent names only.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub node_cache_capable: bool,
    /// It is asked only about pods that ask for one of these; empty: about all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub managed_resources: Vec<ManagedResource>,
    /// Whether pods are scheduled without it when it fails.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ignorable: bool,
}

impl Default for ExtenderConfiguration {
    fn default() -> Self {
        Self {
            url_prefix: String::new(),
            filter_verb: String::new(),
            preempt_verb: String::new(),
            prioritize_verb: String::new(),
            weight: 0,
            bind_verb: String::new(),
            enable_https: false,
            tls_config: None,
            http_timeout: SignedDuration::ZERO,
            node_cache_capable: false,
            managed_resources: Vec::new(),
            ignorable: false,
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_no_weight(weight: &i64) -> bool {
    *weight == 0
}

/// Certificates of and for an extender. Data wins over files.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExtenderTls {
    /// Whether any server certificate is believed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub insecure: bool,
    /// The name that the server's certificate must have, if it is not the URL's.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub server_name: String,
    /// File with the certificate that is shown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cert_file: String,
    /// File with its key.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key_file: String,
    /// File with the authorities of the server's certificate.
    #[serde(rename = "caFile", skip_serializing_if = "String::is_empty")]
    pub ca_file: String,
    /// The certificate that is shown: PEM in base64.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cert_data: String,
    /// Its key: PEM in base64.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key_data: String,
    /// The authorities of the server's certificate: PEM in base64.
    #[serde(rename = "caData", skip_serializing_if = "String::is_empty")]
    pub ca_data: String,
}

impl std::fmt::Debug for ExtenderTls {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExtenderTls")
            .field("insecure", &self.insecure)
            .field("server_name", &self.server_name)
            .finish_non_exhaustive()
    }
}

/// A resource that an extender looks after.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ManagedResource {
    /// Name of the extended resource.
    pub name: String,
    /// Whether the plugin NodeResourcesFit leaves the resource to the extender.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ignored_by_scheduler: bool,
}
