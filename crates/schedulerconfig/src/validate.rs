//! What is wrong with a configuration, field by field, with the texts of kube-scheduler.

mod args;

use std::collections::BTreeSet;

use davit_api::field::{ErrorList, FieldError, Path};
use davit_api::names;
use serde_json::{Value, json};

use super::args::{PluginArgs, WITH_ARGS};
use super::duration::show;
use super::types::{
    ExtenderConfiguration, KubeSchedulerConfiguration, KubeSchedulerProfile,
    LeaderElectionConfiguration,
};
use super::{API_VERSION, ConfigurationError};

/// Plugins that there are no more.
const REMOVED: [&str; 4] = [
    "AzureDiskLimits",
    "CinderLimits",
    "EBSLimits",
    "GCEPDLimits",
];

impl KubeSchedulerConfiguration {
    /// Whether the scheduler can run with this.
    ///
    /// # Errors
    /// All faults that were found.
    pub fn validate(&self) -> Result<(), ConfigurationError> {
        match self.faults() {
            faults if faults.is_empty() => Ok(()),
            faults => Err(ConfigurationError::Invalid(faults)),
        }
    }

    fn faults(&self) -> ErrorList {
        let mut faults = Vec::new();
        let connection = Path::new("clientConnection");
        if self.client_connection.burst < 0 {
            faults.push(FieldError::invalid(
                &connection.child("burst"),
                self.client_connection.burst,
                "must be non-negative",
            ));
        }
        leader_election(&self.leader_election, &mut faults);
        if self.parallelism <= 0 {
            faults.push(FieldError::invalid(
                &Path::new("parallelism"),
                self.parallelism,
                "should be an integer value greater than zero",
            ));
        }
        profiles(&self.profiles, &mut faults);
        percentage(
            &Path::new("percentageOfNodesToScore"),
            Some(self.percentage_of_nodes_to_score),
            &mut faults,
        );
        if self.pod_initial_backoff_seconds <= 0 {
            faults.push(FieldError::invalid(
                &Path::new("podInitialBackoffSeconds"),
                self.pod_initial_backoff_seconds,
                "must be greater than 0",
            ));
        }
        if self.pod_max_backoff_seconds < self.pod_initial_backoff_seconds {
            faults.push(FieldError::invalid(
                &Path::new("podMaxBackoffSeconds"),
                self.pod_max_backoff_seconds,
                "must be greater than or equal to PodInitialBackoffSeconds",
            ));
        }
        extenders(&self.extenders, &mut faults);
        faults
    }
}

impl LeaderElectionConfiguration {
    /// Whether a component can stand for election with this.
    ///
    /// # Errors
    /// All faults that were found.
    pub fn validate(&self) -> Result<(), ConfigurationError> {
        let mut faults = Vec::new();
        leader_election(self, &mut faults);
        match faults.is_empty() {
            true => Ok(()),
            false => Err(ConfigurationError::Invalid(faults)),
        }
    }
}

fn leader_election(config: &LeaderElectionConfiguration, faults: &mut ErrorList) {
    if !config.leader_elect {
        return;
    }
    let path = Path::new("leaderElection");
    for (field, duration) in [
        ("leaseDuration", config.lease_duration),
        ("renewDeadline", config.renew_deadline),
        ("retryPeriod", config.retry_period),
    ] {
        if duration.is_zero() || duration.is_negative() {
            faults.push(FieldError::invalid(
                &path.child(field),
                show(duration),
                "must be greater than zero",
            ));
        }
    }
    if config.lease_duration <= config.renew_deadline {
        faults.push(FieldError::invalid(
            &path.child("leaseDuration"),
            show(config.renew_deadline),
            "must be greater than `RenewDeadline`",
        ));
    }
    if config.resource_lock != "leases" {
        faults.push(FieldError::invalid(
            &path.child("resourceLock"),
            config.resource_lock.as_str(),
            "resourceLock value must be \"leases\"",
        ));
    }
    for (field, value) in [
        ("resourceNamespace", &config.resource_namespace),
        ("resourceName", &config.resource_name),
    ] {
        if value.is_empty() {
            faults.push(FieldError::required(&path.child(field), ""));
        }
    }
}

fn percentage(path: &Path, value: Option<i32>, faults: &mut ErrorList) {
    if let Some(value) = value.filter(|v| !(0..=100).contains(v)) {
        faults.push(FieldError::invalid(
            path,
            value,
            "not in valid range [0-100]",
        ));
    }
}

fn profiles(profiles: &[KubeSchedulerProfile], faults: &mut ErrorList) {
    let path = Path::new("profiles");
    let Some(first) = profiles.first() else {
        return faults.push(FieldError::required(&path, ""));
    };
    for (i, profile) in profiles.iter().enumerate() {
        let at = path.index(i);
        if profile.name().is_empty() {
            faults.push(FieldError::required(&at.child("schedulerName"), ""));
        }
        percentage(
            &at.child("percentageOfNodesToScore"),
            profile.percentage_of_nodes_to_score,
            faults,
        );
        removed_plugins(&at.child("plugins"), profile, faults);
        plugin_config(&at.child("pluginConfig"), profile, faults);
        // The last one of the same name is shown.
        let other = profiles[..i]
            .iter()
            .rposition(|p| p.name() == profile.name());
        if let Some(other) = other {
            let shown = path.index(other).child("schedulerName");
            faults.push(FieldError::duplicate(
                &at.child("schedulerName"),
                shown.as_str(),
            ));
        }
    }
    queue_sort(&path, first, &profiles[1..], faults);
}

fn was_removed(path: &Path, name: &str, faults: &mut ErrorList) -> bool {
    let removed = REMOVED.contains(&name);
    if removed {
        let text = format!(
            "was invalid in version \"v1\" (KubeSchedulerConfiguration is version {API_VERSION:?})"
        );
        faults.push(FieldError::invalid(path, name, text));
    }
    removed
}

fn removed_plugins(path: &Path, profile: &KubeSchedulerProfile, faults: &mut ErrorList) {
    for (point, set) in profile.plugins.named() {
        for (i, plugin) in set.enabled.iter().enumerate() {
            let at = path.child(point).child("enabled").index(i);
            was_removed(&at, &plugin.name, faults);
        }
    }
}

fn plugin_config(path: &Path, profile: &KubeSchedulerProfile, faults: &mut ErrorList) {
    let mut seen = BTreeSet::new();
    for (i, entry) in profile.plugin_config.iter().enumerate() {
        let (at, name) = (path.index(i), entry.name.as_str());
        if !seen.insert(name) {
            faults.push(FieldError::duplicate(&at, name));
        }
        if was_removed(&at, name, faults) {
            continue;
        }
        match &entry.args {
            // Made by hand: what was read has the kind of its plugin.
            PluginArgs::Other(args) if WITH_ARGS.contains(&name) => {
                faults.push(FieldError::invalid(
                    &at.child("args"),
                    args.clone(),
                    "has to match plugin args",
                ));
            }
            known => args::check(&at.child("args"), known, faults),
        }
    }
}

/// All profiles share one queue.
fn queue_sort(
    path: &Path,
    first: &KubeSchedulerProfile,
    others: &[KubeSchedulerProfile],
    faults: &mut ErrorList,
) {
    let canon = &first.plugins.queue_sort;
    if canon.enabled.len() > 1 {
        faults.push(FieldError::invalid(
            &path
                .index(0)
                .child("plugins")
                .child("queueSort")
                .child("Enabled"),
            canon.enabled.len(),
            "only one queue sort plugin can be enabled",
        ));
    }
    let plugin = canon.enabled.first().map(|p| p.name.as_str());
    let args = plugin.and_then(|p| first.args(p));
    for (i, other) in others.iter().enumerate() {
        let at = path.index(i + 1);
        if other.plugins.queue_sort != *canon {
            faults.push(FieldError::invalid(
                &at.child("plugins").child("queueSort"),
                json!(other.plugins.queue_sort),
                "must be the same for all profiles",
            ));
        }
        let theirs = plugin.and_then(|p| other.args(p));
        if theirs.is_some() && theirs != args {
            faults.push(FieldError::invalid(
                &at.child("pluginConfig").child("args"),
                theirs.map_or(Value::Null, |a| json!(a)),
                "queueSort must be the same for all profiles",
            ));
        }
    }
}

fn extenders(extenders: &[ExtenderConfiguration], faults: &mut ErrorList) {
    let path = Path::new("extenders");
    let mut managed = BTreeSet::new();
    for (i, extender) in extenders.iter().enumerate() {
        let at = path.index(i);
        if !extender.prioritize_verb.is_empty() && extender.weight <= 0 {
            faults.push(FieldError::invalid(
                &at.child("weight"),
                extender.weight,
                "must have a positive weight applied to it",
            ));
        }
        if extender.http_timeout.is_negative() {
            faults.push(FieldError::invalid(
                &at.child("httpTimeout"),
                show(extender.http_timeout),
                "must be zero or positive",
            ));
        }
        for (j, resource) in extender.managed_resources.iter().enumerate() {
            let (at, name) = (
                at.child("managedResources").index(j).child("name"),
                resource.name.as_str(),
            );
            let texts = names::check_qualified_name(name);
            if texts.is_empty() && !names::is_extended_resource(name) {
                faults.push(FieldError::invalid(
                    &at,
                    name,
                    "is an invalid extended resource name",
                ));
            }
            faults.extend(texts.into_iter().map(|t| FieldError::invalid(&at, name, t)));
            if !managed.insert(name) {
                faults.push(FieldError::invalid(
                    &at,
                    name,
                    "duplicate extender managed resource name",
                ));
            }
        }
        tls(&at, extender, faults);
    }
    let binders = extenders.iter().filter(|e| !e.bind_verb.is_empty()).count();
    if binders > 1 {
        faults.push(FieldError::invalid(
            &path,
            format!("found {binders} extenders implementing bind"),
            "only one extender can implement bind",
        ));
    }
}

/// What kube-scheduler passes over: it would believe any certificate, or fail at the first call.
fn tls(at: &Path, extender: &ExtenderConfiguration, faults: &mut ErrorList) {
    let url = extender.url_prefix.parse::<http::Uri>();
    let scheme = url.as_ref().ok().and_then(|u| u.scheme_str());
    if !matches!(scheme, Some("http" | "https")) {
        faults.push(FieldError::invalid(
            &at.child("urlPrefix"),
            extender.url_prefix.as_str(),
            "must be a URL with scheme http or https",
        ));
    }
    let config = extender.tls_config.clone().unwrap_or_default();
    let authority = !config.ca_data.is_empty() || !config.ca_file.is_empty();
    let path = at.child("tlsConfig");
    if scheme == Some("https") && !authority && !config.insecure {
        faults.push(FieldError::required(
            &path,
            "an authority (caFile, caData) or insecure must be given for https",
        ));
    }
    if authority && config.insecure {
        faults.push(FieldError::forbidden(
            &path.child("insecure"),
            "must not be given together with an authority",
        ));
    }
    let certificate = !config.cert_data.is_empty() || !config.cert_file.is_empty();
    let key = !config.key_data.is_empty() || !config.key_file.is_empty();
    if certificate != key {
        faults.push(FieldError::required(
            &path,
            "a certificate and its key must be given together",
        ));
    }
}
