//! What the CSIDriver object says about a driver.

use crate::LifecycleMode;
use crate::fs_group::FsGroupPolicy;
use k8s_openapi::api::storage::v1::{CSIDriver, TokenRequest};
use std::time::Duration;

/// The fields of a CSIDriver that a node goes by, with the defaults that also hold without an object.
#[derive(Debug, Clone, PartialEq)]
pub struct DriverSettings {
    /// Whether volumes are attached by VolumeAttachments first.
    pub attach_required: bool,
    /// Whether the driver is told which pod a volume is for.
    pub pod_info_on_mount: bool,
    /// Who gives files to a pod's fsGroup.
    pub fs_group_policy: FsGroupPolicy,
    /// Tokens of the pod's service account that the driver wants.
    pub token_requests: Vec<TokenRequest>,
    /// Whether these tokens are among the secrets instead of in the volume's context.
    pub tokens_in_secrets: bool,
    /// Whether volumes are published again from time to time.
    pub requires_republish: bool,
    /// Whether volumes can be mounted with a SELinux label.
    pub se_linux_mount: bool,
    /// How often NodeGetInfo is asked for the number of volumes, in seconds.
    pub allocatable_update_period_seconds: Option<i64>,
    /// Nothing when there is no object.
    lifecycle_modes: Option<Vec<String>>,
}

/// A driver is not made for volumes of this kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("volume mode \"{mode}\" not supported by driver {driver} ({})", supported(modes.as_deref()))]
pub struct UnsupportedLifecycle {
    driver: String,
    mode: LifecycleMode,
    modes: Option<Vec<String>>,
}

impl DriverSettings {
    /// The settings of a driver with or without an object.
    pub fn of(object: Option<&CSIDriver>) -> Self {
        let Some(object) = object else {
            return Self {
                attach_required: true,
                pod_info_on_mount: false,
                fs_group_policy: FsGroupPolicy::default(),
                token_requests: Vec::new(),
                tokens_in_secrets: false,
                requires_republish: false,
                se_linux_mount: false,
                allocatable_update_period_seconds: None,
                lifecycle_modes: None,
            };
        };
        let spec = &object.spec;
        let on = |field: Option<bool>| field.unwrap_or(false);
        let persistent = || vec![LifecycleMode::Persistent.to_string()];
        Self {
            attach_required: spec.attach_required.unwrap_or(true),
            pod_info_on_mount: on(spec.pod_info_on_mount),
            fs_group_policy: FsGroupPolicy::parse(spec.fs_group_policy.as_deref()),
            token_requests: spec.token_requests.clone().unwrap_or_default(),
            tokens_in_secrets: on(spec.service_account_token_in_secrets),
            requires_republish: on(spec.requires_republish),
            se_linux_mount: on(spec.se_linux_mount),
            allocatable_update_period_seconds: spec.node_allocatable_update_period_seconds,
            lifecycle_modes: Some(
                spec.volume_lifecycle_modes
                    .clone()
                    .unwrap_or_else(persistent),
            ),
        }
    }

    /// How long after one question for the number of volumes the next one comes, if it does.
    pub fn allocatable_update_period(&self) -> Option<Duration> {
        let seconds = u64::try_from(self.allocatable_update_period_seconds?).ok()?;
        (seconds > 0).then(|| Duration::from_secs(seconds))
    }

    /// Whether the driver serves such volumes; drivers without an object serve PersistentVolumes.
    ///
    /// # Errors
    /// It does not. The object may change, so the volume is tried again.
    pub fn check_lifecycle(
        &self,
        driver: &str,
        mode: LifecycleMode,
    ) -> Result<(), UnsupportedLifecycle> {
        let serves = match &self.lifecycle_modes {
            None => mode == LifecycleMode::Persistent,
            Some(modes) => modes.iter().any(|m| *m == mode.to_string()),
        };
        if serves {
            return Ok(());
        }
        Err(UnsupportedLifecycle {
            driver: driver.to_owned(),
            mode,
            modes: self.lifecycle_modes.clone(),
        })
    }
}

fn supported(modes: Option<&[String]>) -> String {
    let Some(modes) = modes else {
        return "no CSIDriver object".to_owned();
    };
    let quoted: Vec<String> = modes.iter().map(|m| format!("{m:?}")).collect();
    format!("only supports [{}]", quoted.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifecycle_modes_and_their_texts() {
        let check = |object: Option<&CSIDriver>, mode| {
            DriverSettings::of(object)
                .check_lifecycle("d", mode)
                .map_err(|e| e.to_string())
        };
        let mut object = CSIDriver::default();
        assert_eq!(check(None, LifecycleMode::Persistent), Ok(()));
        assert_eq!(
            check(None, LifecycleMode::Ephemeral).unwrap_err(),
            "volume mode \"Ephemeral\" not supported by driver d (no CSIDriver object)"
        );
        assert_eq!(
            check(Some(&object), LifecycleMode::Ephemeral).unwrap_err(),
            "volume mode \"Ephemeral\" not supported by driver d (only supports [\"Persistent\"])"
        );
        object.spec.volume_lifecycle_modes = Some(vec!["Ephemeral".to_owned()]);
        assert_eq!(check(Some(&object), LifecycleMode::Ephemeral), Ok(()));
        assert!(check(Some(&object), LifecycleMode::Persistent).is_err());
    }

    #[test]
    fn an_empty_object_has_the_settings_of_none() {
        let (none, empty) = (
            DriverSettings::of(None),
            DriverSettings::of(Some(&CSIDriver::default())),
        );
        assert!(none.attach_required);
        assert_eq!(
            none,
            DriverSettings {
                lifecycle_modes: None,
                ..empty
            }
        );
    }
}
