//! What a configuration leaves open.

use davit_api::features::Features;
use jiff::SignedDuration;

use super::DEFAULT_SCHEDULER_NAME;
use super::args::PluginArgs;
use super::plugin_sets::PluginSets;
use super::types::{
    ClientConnectionConfiguration, KubeSchedulerConfiguration, KubeSchedulerProfile,
    LeaderElectionConfiguration, PluginConfiguration,
};

impl KubeSchedulerConfiguration {
    /// The configuration of a scheduler that is given none.
    pub fn with_defaults() -> Self {
        Self::with_defaults_of(&Features::default())
    }

    /// The same where these feature gates are on.
    pub fn with_defaults_of(features: &Features) -> Self {
        let mut configuration = Self::default();
        configuration.set_defaults(features);
        configuration
    }

    /// Fills in what is left open.
    pub(super) fn set_defaults(&mut self, features: &Features) {
        if self.profiles.is_empty() {
            self.profiles.push(KubeSchedulerProfile::default());
        }
        // Of several profiles each has to have a name of its own.
        if let [only] = &mut self.profiles[..] {
            let name = || DEFAULT_SCHEDULER_NAME.to_owned();
            only.scheduler_name.get_or_insert_with(name);
        }
        for profile in &mut self.profiles {
            profile.set_defaults(features);
        }
        self.enable_contention_profiling
            .get_or_insert(self.enable_profiling);
        self.leader_election.set_defaults();
        self.client_connection.set_defaults();
    }
}

impl KubeSchedulerProfile {
    /// Merges the plugins with the default ones and gives each the arguments it lacks.
    fn set_defaults(&mut self, features: &Features) {
        self.plugins = PluginSets::defaults(features).merged(&self.plugins);
        let missing: Vec<PluginConfiguration> = self
            .plugins
            .enabled()
            .into_iter()
            .filter(|name| self.args(name).is_none())
            .filter_map(|name| {
                Some(PluginConfiguration {
                    name: name.to_owned(),
                    args: PluginArgs::default_of(name)?,
                })
            })
            .collect();
        self.plugin_config.extend(missing);
    }
}

impl LeaderElectionConfiguration {
    /// Of a component that is no scheduler: with a Lease of this name, and without an election unless somebody wants one.
    pub fn of_component(lease: &str) -> Self {
        let mut configuration = Self {
            leader_elect: false,
            resource_name: lease.to_owned(),
            ..Self::default()
        };
        configuration.set_defaults();
        configuration
    }

    fn set_defaults(&mut self) {
        for (field, seconds) in [
            (&mut self.lease_duration, 15),
            (&mut self.renew_deadline, 10),
            (&mut self.retry_period, 2),
        ] {
            if field.is_zero() {
                *field = SignedDuration::from_secs(seconds);
            }
        }
        for (field, default) in [
            (&mut self.resource_lock, "leases"),
            (&mut self.resource_name, "kube-scheduler"),
            (&mut self.resource_namespace, "kube-system"),
        ] {
            if field.is_empty() {
                default.clone_into(field);
            }
        }
    }
}

impl ClientConnectionConfiguration {
    fn set_defaults(&mut self) {
        if self.content_type.is_empty() {
            "application/vnd.kubernetes.protobuf".clone_into(&mut self.content_type);
        }
        if self.qps == 0.0 {
            self.qps = 50.0;
        }
        if self.burst == 0 {
            self.burst = 100;
        }
    }
}
