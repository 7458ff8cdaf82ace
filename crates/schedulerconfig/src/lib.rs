//! `KubeSchedulerConfiguration` (kubescheduler.config.k8s.io/v1): what profiles, plugins, their arguments and extenders a
//! scheduler runs with. Pure: text in, configuration or a list of faults out, with the texts of kube-scheduler.
//! <https://kubernetes.io/docs/reference/config-api/kube-scheduler-config.v1/>
//!
//! The way of a file: `strict` reads it and finds unknown and repeated fields, serde gives it types, `defaults` fills
//! in what it leaves open and merges its plugins with those of the default profile (`plugin_sets`), `validate` judges
//! the result. The scheduler makes plugins of it.
#![forbid(unsafe_code)]

mod args;
mod defaults;
mod duration;
mod effect;
mod plugin_sets;
mod shapes;
mod strict;
mod types;
mod validate;

pub use args::{
    BalancedAllocationArgs, CapacityRatio, DefaultPreemptionArgs, DynamicResourcesTimeouts,
    FitStrategy, InterPodAffinityArgs, NodeAffinityArgs, NodeResourcesFitArgs, PluginArgs,
    PodTopologySpreadArgs, ResourceWeight, UtilizationShapePoint, VolumeBindingArgs,
};
pub use plugin_sets::{
    DEFAULT_PLUGINS, EnabledPlugin, ExtensionPoint, PluginSet, PluginSets, expand,
};
pub use types::{
    ClientConnectionConfiguration, ExtenderConfiguration, ExtenderTls, KubeSchedulerConfiguration,
    KubeSchedulerProfile, LeaderElectionConfiguration, ManagedResource, PluginConfiguration,
};

use davit_api::features::Features;
use davit_api::field::{FieldError, aggregate};

/// Group and version of the configuration.
pub const API_VERSION: &str = "kubescheduler.config.k8s.io/v1";
/// Its kind.
pub const KIND: &str = "KubeSchedulerConfiguration";
/// The scheduler that takes pods which name none.
pub const DEFAULT_SCHEDULER_NAME: &str = "default-scheduler";

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    /// Neither YAML nor JSON, or a value of the wrong type.
    #[error("{0}")]
    Syntax(String),
    /// `apiVersion` or `kind` is missing.
    #[error("Object '{field}' is missing in the scheduler configuration")]
    Missing {
        /// Which of them, as Kubernetes writes it.
        field: &'static str,
    },
    /// A version or kind that is not known.
    #[error("no kind {kind:?} is registered for version {version:?}")]
    NotRegistered {
        /// `kind`.
        kind: String,
        /// `apiVersion`.
        version: String,
    },
    /// A known kind, but not a configuration.
    #[error("couldn't decode as KubeSchedulerConfiguration, got {version}, Kind={kind}: ")]
    Kind {
        /// `kind`.
        kind: String,
        /// `apiVersion`.
        version: String,
    },
    /// Arguments of a plugin that have the kind of another one.
    #[error(
        "decoding .profiles[{profile}].pluginConfig[{entry}]: args for plugin {plugin} were not of type \
         {plugin}Args.kubescheduler.config.k8s.io, got {kind}"
    )]
    ArgsKind {
        /// Place of the profile.
        profile: usize,
        /// Place of the entry.
        entry: usize,
        /// The plugin.
        plugin: String,
        /// The kind they have, with its group.
        kind: String,
    },
    /// Arguments of a plugin that cannot be read.
    #[error(
        "decoding .profiles[{profile}].pluginConfig[{entry}]: decoding args for plugin {plugin}: {cause}"
    )]
    Args {
        /// Place of the profile.
        profile: usize,
        /// Place of the entry.
        entry: usize,
        /// The plugin.
        plugin: String,
        /// What is wrong.
        cause: String,
    },
    /// Unknown or repeated fields.
    #[error("strict decoding error: {}", .0.join(", "))]
    Strict(Vec<String>),
    /// Values that make no sense.
    #[error("{}", aggregate(.0))]
    Invalid(Vec<FieldError>),
}

impl KubeSchedulerConfiguration {
    /// Reads a configuration, YAML or JSON, and fills in what it leaves open. It may still be [invalid](Self::validate).
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn parse(text: &str) -> Result<Self, ConfigurationError> {
        Self::parse_with(text, &Features::default())
    }

    /// The same where these feature gates are on, which have plugins of their own.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn parse_with(text: &str, features: &Features) -> Result<Self, ConfigurationError> {
        let mut configuration = strict::decode(text)?;
        configuration.set_defaults(features);
        Ok(configuration)
    }

    /// The configuration in force, as YAML that kube-scheduler reads as well.
    ///
    /// # Errors
    /// When it cannot be written as YAML, which no configuration that was read can be.
    pub fn to_yaml(&self) -> Result<String, ConfigurationError> {
        let document = serde_json::to_value(self);
        let document = document.map_err(|e| ConfigurationError::Syntax(e.to_string()))?;
        serde_saphyr::to_string(&document).map_err(|e| ConfigurationError::Syntax(e.to_string()))
    }
}

#[cfg(test)]
mod tests;
