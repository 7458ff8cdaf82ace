//! The plugins by name, in the order in which they run.

use super::config::{Config, ConfigError};
use super::{Plugin, namespace_lifecycle, pod_tolerations, priority, service_account, webhooks};

type Make = fn(&Config) -> Result<Plugin, ConfigError>;

/// A known plugin.
struct Known {
    name: &'static str,
    /// On without configuration.
    on: bool,
    make: Make,
}

/// All plugins in the order of kube-apiserver: webhooks, quota and AlwaysDeny last.
const KNOWN: &[Known] = &[
    on("NamespaceLifecycle", |_| {
        Ok(Plugin::mutating(
            "NamespaceLifecycle",
            namespace_lifecycle::NamespaceLifecycle,
        ))
    }),
    on("ServiceAccount", |_| {
        Ok(Plugin::mutating(
            "ServiceAccount",
            service_account::ServiceAccount,
        ))
    }),
    on("Priority", |_| {
        Ok(Plugin::mutating("Priority", priority::Priority)
            .and_validating(priority::OneDefaultClass))
    }),
    on("DefaultTolerationSeconds", |_| {
        Ok(Plugin::mutating(
            "DefaultTolerationSeconds",
            pod_tolerations::DefaultTolerationSeconds,
        ))
    }),
    on("MutatingAdmissionWebhook", |config| {
        Ok(Plugin::mutating(
            "MutatingAdmissionWebhook",
            webhooks::Mutators::new(config)?,
        ))
    }),
    on("ValidatingAdmissionWebhook", |config| {
        Ok(Plugin::validating(
            "ValidatingAdmissionWebhook",
            webhooks::Validators::new(config)?,
        ))
    }),
];

const fn on(name: &'static str, make: Make) -> Known {
    Known {
        name,
        on: true,
        make,
    }
}

/// The names of all plugins in their order, and whether each is on without configuration.
pub fn names() -> impl Iterator<Item = (&'static str, bool)> {
    KNOWN.iter().map(|known| (known.name, known.on))
}

pub(super) fn standard() -> Vec<Plugin> {
    let config = Config::default();
    // without configuration there is nothing that could be wrong
    KNOWN
        .iter()
        .filter(|known| known.on)
        .filter_map(|known| (known.make)(&config).ok())
        .collect()
}

pub(super) fn configured(config: &Config) -> Result<Vec<Plugin>, ConfigError> {
    config.check_names(|name| KNOWN.iter().any(|known| known.name == name))?;
    KNOWN
        .iter()
        .filter(|known| config.is_on(known.name, known.on))
        .map(|known| (known.make)(config))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_plugin_that_is_on_can_be_made_without_configuration() {
        let on = KNOWN.iter().filter(|known| known.on).count();
        assert_eq!(standard().len(), on);
        for plugin in standard() {
            assert!(KNOWN.iter().any(|known| known.name == plugin.name));
        }
    }

    #[test]
    fn plugins_are_switched_by_name() {
        let config = Config {
            disable: vec!["Priority".to_owned()],
            ..Config::default()
        };
        let chain = configured(&config).unwrap();
        assert!(chain.iter().all(|plugin| plugin.name != "Priority"));
        let config = Config {
            enable: vec!["Nonsense".to_owned()],
            ..Config::default()
        };
        let error = configured(&config).err().map(|error| error.to_string());
        assert_eq!(
            error.as_deref(),
            Some("enable-admission-plugins plugin \"Nonsense\" is unknown")
        );
    }
}
