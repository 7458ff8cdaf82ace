//! The plugins that profiles can name, and what plugins are made with.
//!
//! A program that adds plugins of its own [registers](PluginRegistry::register) a factory for each, and enables them in its
//! configuration like any other; `pluginConfig` of that name is handed to the factory as JSON.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use crate::config::PluginArgs;
use crate::devices::Devices;
use crate::extender::Extenders;
use crate::framework::Plugin;
use crate::plugins::{self, Budgets};
use crate::pod_groups::PodGroups;
use crate::topology::Topologies;
use crate::waiting::WaitingPods;
use crate::workloads::Workloads;
use davit_volumecache::VolumeCache;

/// What a plugin is made with. Cheap to clone.
#[derive(Clone)]
pub struct FrameworkHandle {
    /// The scheduler name of the profile.
    pub profile: Arc<str>,
    /// The client for the cluster; without one the profile decides, but neither binds nor preempts.
    pub client: Option<kube::Client>,
    /// What is known of devices.
    pub devices: Devices,
    /// What is known of storage.
    pub volumes: VolumeCache,
    /// The pods that wait at Permit.
    pub waiting: WaitingPods,
    /// The disruption budgets.
    pub budgets: Budgets,
    /// What nodes publish of their NUMA nodes.
    pub topologies: Topologies,
    /// What pods belong to.
    pub workloads: Workloads,
    /// The groups in which pods are scheduled together.
    pub pod_groups: PodGroups,
    /// The extenders, none by default.
    pub extenders: Extenders,
}

impl FrameworkHandle {
    /// A handle for a profile that knows nothing of the cluster yet.
    pub fn new(profile: &str, client: Option<kube::Client>, devices: Devices) -> Self {
        Self {
            profile: profile.into(),
            client,
            devices,
            volumes: VolumeCache::default(),
            waiting: WaitingPods::default(),
            budgets: Budgets::default(),
            topologies: Topologies::default(),
            workloads: Workloads::default(),
            pod_groups: PodGroups::default(),
            extenders: Extenders::default(),
        }
    }

    /// The same for another profile.
    #[must_use]
    pub fn of_profile(&self, profile: &str) -> Self {
        Self {
            profile: profile.into(),
            ..self.clone()
        }
    }
}

impl fmt::Debug for FrameworkHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameworkHandle")
            .field("profile", &self.profile)
            .finish_non_exhaustive()
    }
}

/// Why a plugin cannot be made, in words of the plugin.
pub type PluginError = Box<dyn std::error::Error + Send + Sync>;

/// Makes a plugin of its arguments, which are null if there are none.
pub type PluginFactory =
    Arc<dyn Fn(&FrameworkHandle, &Value) -> Result<Arc<dyn Plugin>, PluginError> + Send + Sync>;

/// The plugins that profiles can name: those in the tree, and others that are registered. Cheap to clone.
#[derive(Clone, Default)]
pub struct PluginRegistry {
    others: BTreeMap<String, PluginFactory>,
}

impl fmt::Debug for PluginRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.others.keys()).finish()
    }
}

/// A name that is taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a plugin named {0} already exists")]
pub struct PluginExists(pub String);

impl PluginRegistry {
    /// Adds a plugin under the name by which configurations enable it, which must also be the plugin's own.
    ///
    /// # Errors
    /// When there is a plugin of this name.
    pub fn register<F>(&mut self, name: &str, factory: F) -> Result<(), PluginExists>
    where
        F: Fn(&FrameworkHandle, &Value) -> Result<Arc<dyn Plugin>, PluginError>
            + Send
            + Sync
            + 'static,
    {
        if plugins::BUILT_IN.contains(&name) || self.others.contains_key(name) {
            return Err(PluginExists(name.to_owned()));
        }
        self.others.insert(name.to_owned(), Arc::new(factory));
        Ok(())
    }

    /// Makes a plugin; `None` if there is none of this name.
    pub(crate) fn make(
        &self,
        name: &str,
        args: Option<&PluginArgs>,
        handle: &FrameworkHandle,
    ) -> Option<Result<Arc<dyn Plugin>, PluginError>> {
        if let Some(factory) = self.others.get(name) {
            let args = match args {
                Some(PluginArgs::Other(args)) => args,
                _ => &Value::Null,
            };
            return Some(factory(handle, args));
        }
        let default = || PluginArgs::default_of(name);
        let args = args.cloned().or_else(default);
        plugins::built_in(name, args.as_ref(), handle).map(Ok)
    }
}
