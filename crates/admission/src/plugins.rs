//! The plugins by name, in the order in which they run.

use super::config::{Config, ConfigError};
use super::{
    Plugin, certificates, defaults, event_rate_limit, image_policy, limit_ranger,
    namespace_lifecycle, node_restriction, nodes, owners, placement, pod_fields, pod_groups,
    pod_security, pod_tolerations, policies, priority, quota, service_account, switches, webhooks,
};

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
    off("AlwaysAdmit", |_| {
        Ok(Plugin::validating("AlwaysAdmit", switches::AlwaysAdmit))
    }),
    off("NamespaceAutoProvision", |_| {
        Ok(Plugin::mutating(
            "NamespaceAutoProvision",
            switches::NamespaceAutoProvision,
        ))
    }),
    on("NamespaceLifecycle", |_| {
        Ok(Plugin::mutating(
            "NamespaceLifecycle",
            namespace_lifecycle::NamespaceLifecycle,
        ))
    }),
    off("NamespaceExists", |_| {
        Ok(Plugin::validating(
            "NamespaceExists",
            switches::NamespaceExists,
        ))
    }),
    off("LimitPodHardAntiAffinityTopology", |_| {
        Ok(Plugin::validating(
            "LimitPodHardAntiAffinityTopology",
            switches::LimitPodHardAntiAffinityTopology,
        ))
    }),
    on("LimitRanger", |_| {
        Ok(Plugin::mutating("LimitRanger", limit_ranger::LimitRanger)
            .and_validating(limit_ranger::LimitRanger))
    }),
    // does nothing unless the Node authorizer is configured
    on("NodeRestriction", |_| {
        Ok(Plugin::mutating(
            "NodeRestriction",
            node_restriction::NodeRestriction,
        ))
    }),
    on("ServiceAccount", |_| {
        Ok(
            Plugin::mutating("ServiceAccount", service_account::ServiceAccount)
                .and_validating(service_account::ServiceAccount),
        )
    }),
    on("TaintNodesByCondition", |_| {
        Ok(Plugin::mutating(
            "TaintNodesByCondition",
            nodes::TaintNodesByCondition,
        ))
    }),
    off("AlwaysPullImages", |_| {
        Ok(
            Plugin::mutating("AlwaysPullImages", pod_fields::AlwaysPullImages)
                .and_validating(pod_fields::AlwaysPullImages),
        )
    }),
    off("ImagePolicyWebhook", |config| {
        let plugin = image_policy::ImagePolicy::new(config)?;
        Ok(Plugin::mutating("ImagePolicyWebhook", plugin.clone()).and_validating(plugin))
    }),
    on("PodSecurity", |config| {
        Ok(Plugin::validating(
            "PodSecurity",
            pod_security::PodSecurity::new(config)?,
        ))
    }),
    off("PodNodeSelector", |config| {
        let plugin = placement::PodNodeSelector::new(config)?;
        Ok(Plugin::mutating("PodNodeSelector", plugin.clone()).and_validating(plugin))
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
    off("PodTolerationRestriction", |config| {
        let plugin = placement::PodTolerationRestriction::new(config);
        Ok(Plugin::mutating("PodTolerationRestriction", plugin.clone()).and_validating(plugin))
    }),
    off("EventRateLimit", |config| {
        Ok(Plugin::validating(
            "EventRateLimit",
            event_rate_limit::EventRateLimit::new(config)?,
        ))
    }),
    off("ExtendedResourceToleration", |_| {
        Ok(Plugin::mutating(
            "ExtendedResourceToleration",
            pod_fields::ExtendedResourceToleration,
        ))
    }),
    on("DefaultStorageClass", |_| {
        Ok(Plugin::mutating(
            "DefaultStorageClass",
            defaults::DefaultStorageClass,
        ))
    }),
    on("StorageObjectInUseProtection", |_| {
        Ok(Plugin::mutating(
            "StorageObjectInUseProtection",
            defaults::StorageObjectInUseProtection,
        ))
    }),
    on("PodGroupProtection", |_| {
        Ok(Plugin::mutating(
            "PodGroupProtection",
            pod_groups::PodGroupProtection,
        ))
    }),
    off("OwnerReferencesPermissionEnforcement", |_| {
        Ok(Plugin::validating(
            "OwnerReferencesPermissionEnforcement",
            owners::OwnerReferences,
        ))
    }),
    on("PersistentVolumeClaimResize", |_| {
        Ok(Plugin::validating(
            "PersistentVolumeClaimResize",
            defaults::PersistentVolumeClaimResize,
        ))
    }),
    on("RuntimeClass", |_| {
        Ok(Plugin::mutating("RuntimeClass", pod_fields::RuntimeClass)
            .and_validating(pod_fields::RuntimeClass))
    }),
    on("CertificateApproval", |_| {
        Ok(
            Plugin::mutating("CertificateApproval", certificates::Approval)
                .and_validating(certificates::Approval),
        )
    }),
    on("CertificateSigning", |_| {
        Ok(Plugin::validating(
            "CertificateSigning",
            certificates::Signing,
        ))
    }),
    on("ClusterTrustBundleAttest", |_| {
        Ok(Plugin::mutating(
            "ClusterTrustBundleAttest",
            owners::ClusterTrustBundleAttest,
        ))
    }),
    on("CertificateSubjectRestriction", |_| {
        Ok(Plugin::validating(
            "CertificateSubjectRestriction",
            certificates::SubjectRestriction,
        ))
    }),
    on("DefaultIngressClass", |_| {
        Ok(Plugin::mutating(
            "DefaultIngressClass",
            defaults::DefaultIngressClass,
        ))
    }),
    off("DenyServiceExternalIPs", |_| {
        Ok(Plugin::validating(
            "DenyServiceExternalIPs",
            switches::DenyServiceExternalIps,
        ))
    }),
    on("PodTopologyLabels", |_| {
        Ok(Plugin::mutating(
            "PodTopologyLabels",
            nodes::PodTopologyLabels,
        ))
    }),
    on("PodGroupWorkloadExists", |_| {
        Ok(Plugin::validating(
            "PodGroupWorkloadExists",
            pod_groups::PodGroupWorkloadExists,
        ))
    }),
    on("NodeDeclaredFeatureValidator", |_| {
        Ok(Plugin::validating(
            "NodeDeclaredFeatureValidator",
            nodes::DeclaredFeatures,
        ))
    }),
    on("JobValidation", |_| {
        Ok(Plugin::validating(
            "JobValidation",
            pod_groups::JobValidation,
        ))
    }),
    on("PodResizeValidator", |_| {
        Ok(Plugin::validating("PodResizeValidator", nodes::PodResize))
    }),
    on("MutatingAdmissionPolicy", |_| {
        Ok(Plugin::mutating(
            "MutatingAdmissionPolicy",
            policies::Mutators::new(),
        ))
    }),
    on("MutatingAdmissionWebhook", |config| {
        Ok(Plugin::mutating(
            "MutatingAdmissionWebhook",
            webhooks::Mutators::new(config)?,
        ))
    }),
    on("ValidatingAdmissionPolicy", |_| {
        Ok(Plugin::validating(
            "ValidatingAdmissionPolicy",
            policies::Validators::new(),
        ))
    }),
    on("ValidatingAdmissionWebhook", |config| {
        Ok(Plugin::validating(
            "ValidatingAdmissionWebhook",
            webhooks::Validators::new(config)?,
        ))
    }),
    on("ResourceQuota", |config| {
        Ok(Plugin::validating(
            "ResourceQuota",
            quota::ResourceQuota::new(config)?,
        ))
    }),
    off("AlwaysDeny", |_| {
        Ok(Plugin::mutating("AlwaysDeny", switches::AlwaysDeny))
    }),
];

const fn on(name: &'static str, make: Make) -> Known {
    Known {
        name,
        on: true,
        make,
    }
}

const fn off(name: &'static str, make: Make) -> Known {
    Known {
        name,
        on: false,
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
#[allow(
    clippy::field_reassign_with_default,
    reason = "a field of the configuration is private"
)]
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
        let mut config = Config::default();
        config.disable = vec!["Priority".to_owned()];
        let chain = configured(&config).unwrap();
        assert!(chain.iter().all(|plugin| plugin.name != "Priority"));
        let mut config = Config::default();
        config.enable = vec!["Nonsense".to_owned()];
        let error = configured(&config).err().map(|error| error.to_string());
        assert_eq!(
            error.as_deref(),
            Some("enable-admission-plugins plugin \"Nonsense\" is unknown")
        );
    }
}
