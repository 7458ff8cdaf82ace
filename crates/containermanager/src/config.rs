//! What a container manager is made with, and why it does not start.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use crate::compute::{Settings, SettingsError, StateError};
use crate::plugin_handler::PluginHandler;
use crate::rate::Rate;
use crate::{allocation, dra};

/// The pods of this node, as its pod workers know them.
pub trait ActivePods: Send + Sync + 'static {
    /// Pods that may hold resources: not terminal, or terminal (or deleted) with containers
    /// that have not ended yet. A pod that is being admitted is among them.
    fn active_pods(&self) -> Vec<Arc<Pod>>;

    /// UIDs of active pods that are being deleted or are gone from the API: what they hold is
    /// about to be free.
    fn ending_pods(&self) -> BTreeSet<String>;

    /// All pods known to the node, terminal ones included.
    fn all_pods(&self) -> Vec<Arc<Pod>>;
}

/// How the container manager works; [`Config::new`] gives the defaults.
#[derive(Debug, Clone)]
pub struct Config {
    /// The agent's folder, `/var/lib/kubelet` by default.
    pub root_dir: PathBuf,
    /// How long admission waits for a plugin that the allocation log knows but that is not
    /// connected, counted from the loss of the plugin or the agent's start. Zero refuses at
    /// once, as the kubelet does.
    pub plugin_wait: Duration,
    /// How long capacity is kept after a plugin went away, and devices are not yet called
    /// unhealthy in pod status.
    pub grace: Duration,
    /// Limit of connecting to a plugin that registers.
    pub dial_timeout: Duration,
    /// Limit of GetDevicePluginOptions.
    pub options_timeout: Duration,
    /// Limit of one GetPreferredAllocation call.
    pub preferred_timeout: Duration,
    /// Limit of one Allocate call.
    pub allocate_timeout: Duration,
    /// Limit of one PreStartContainer call.
    pub pre_start_timeout: Duration,
    /// The machine, and what the CPU, memory and topology managers are to do with it.
    pub resources: Settings,
    /// Dynamic resource allocation; without it drivers and claims are refused.
    pub dra: Option<dra::Options>,
    /// Takes CSI drivers in; without it they are refused.
    pub csi: Option<Arc<dyn PluginHandler>>,
    /// The podresources socket lists pods that have ended, too.
    pub list_ended: bool,
    /// How many calls the podresources socket takes.
    pub podresources_rate: Rate,
}

impl Config {
    /// The defaults, for an agent with this folder.
    pub fn new(root_dir: impl Into<PathBuf>) -> Self {
        Self {
            root_dir: root_dir.into(),
            plugin_wait: Duration::from_secs(5 * 60),
            grace: Duration::from_secs(5 * 60),
            dial_timeout: Duration::from_secs(10),
            options_timeout: Duration::from_secs(10),
            preferred_timeout: Duration::from_secs(30),
            allocate_timeout: Duration::from_secs(60),
            pre_start_timeout: Duration::from_secs(30),
            resources: Settings::default(),
            dra: None,
            csi: None,
            list_ended: false,
            podresources_rate: Rate::default(),
        }
    }
}

/// Why the container manager does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The allocation log cannot be opened.
    #[error(transparent)]
    Log(#[from] allocation::Error),
    /// A socket cannot be served.
    #[error(transparent)]
    Socket(#[from] davit_proto::unix::Error),
    /// The settings do not fit the machine.
    #[error(transparent)]
    Resources(#[from] SettingsError),
    /// A state file does not fit the settings or the machine.
    #[error(transparent)]
    State(#[from] StateError),
}
