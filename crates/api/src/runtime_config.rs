//! Versions of built-in kinds that are served only where they are asked for (`--runtime-config`).

use std::collections::BTreeSet;
use std::str::FromStr;

use crate::features::{Features, GENERIC_WORKLOAD};
use crate::kinds::{self, ResourceRow, api_version};

/// Group and version, and the feature gate that has to be on as well. All other versions are always served.
const OPTIONAL: &[(&str, &str)] = &[("scheduling.k8s.io/v1alpha2", GENERIC_WORKLOAD)];

/// Which of these versions are served.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeConfig {
    on: BTreeSet<&'static str>,
}

/// Why versions cannot be switched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuntimeConfigError {
    /// The value is no bool.
    #[error("invalid value of {key}={value}: it is neither true nor false")]
    NoBool {
        /// What was to be switched.
        key: String,
        /// What it was to be.
        value: String,
    },
    /// There is no such version.
    #[error("unknown API version {0}; single resources cannot be switched")]
    Unknown(String),
    /// It is always there.
    #[error("{0} is always served and cannot be switched off")]
    Always(String),
}

impl RuntimeConfig {
    /// Whether a kind is served where these gates are on.
    #[must_use]
    pub fn serves(&self, row: &ResourceRow, features: &Features) -> bool {
        let version = api_version(row.group, row.version);
        let optional = OPTIONAL.iter().find(|(name, _)| *name == version);
        optional.is_none_or(|(name, gate)| self.on.contains(name) && features.is_on(gate))
    }

    fn switch(&mut self, key: &str, on: bool) -> Result<(), RuntimeConfigError> {
        let meant: Vec<&'static str> = OPTIONAL
            .iter()
            .map(|(name, _)| *name)
            .filter(|name| *name == key || matches!(key, "api/all" | "api/alpha"))
            .collect();
        if on {
            self.on.extend(&meant);
        } else {
            self.on.retain(|name| !meant.contains(name));
        }
        let exact = meant == [key];
        let known = matches!(key, "api/all" | "api/alpha" | "api/beta" | "api/ga")
            || kinds::builtin()
                .resources
                .iter()
                .any(|row| api_version(row.group, row.version) == key);
        match (known, on || exact) {
            (false, _) => Err(RuntimeConfigError::Unknown(key.to_owned())),
            (true, false) => Err(RuntimeConfigError::Always(key.to_owned())),
            (true, true) => Ok(()),
        }
    }
}

impl FromStr for RuntimeConfig {
    type Err = RuntimeConfigError;

    /// `GROUP/VERSION=BOOL,…`, and `api/all`, `api/alpha` for all of them; single versions win over these.
    fn from_str(list: &str) -> Result<Self, RuntimeConfigError> {
        let mut entries = Vec::new();
        for entry in list.split(',').map(str::trim).filter(|e| !e.is_empty()) {
            let (key, value) = entry.split_once('=').unwrap_or((entry, "true"));
            let on = match value.trim() {
                "true" | "" => true,
                "false" => false,
                _ => {
                    return Err(RuntimeConfigError::NoBool {
                        key: key.to_owned(),
                        value: value.to_owned(),
                    });
                }
            };
            entries.push((key.trim(), on));
        }
        entries.sort_by_key(|(key, _)| !key.starts_with("api/"));
        let mut config = Self::default();
        for (key, on) in entries {
            config.switch(key, on)?;
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(config: &str, gates: &str) -> bool {
        let config: RuntimeConfig = config.parse().unwrap();
        let mut rows = kinds::builtin().resources.iter();
        let row = rows.find(|row| row.kind == "PodGroup").unwrap();
        config.serves(row, &gates.parse().unwrap())
    }

    #[test]
    fn item_58_groups_need_their_gate_and_their_version() {
        let (gate, version) = ("GenericWorkload=true", "scheduling.k8s.io/v1alpha2=true");
        assert!(served(version, gate) && served("api/all=true", gate));
        assert!(!served(version, "") && !served("", gate));
        assert!(!served(
            "scheduling.k8s.io/v1alpha2=false,api/alpha=true",
            gate
        ));
    }

    #[test]
    fn what_cannot_be_switched_is_refused() {
        let fault = |list: &str| list.parse::<RuntimeConfig>().unwrap_err().to_string();
        assert_eq!(
            fault("apps/v1=false"),
            "apps/v1 is always served and cannot be switched off"
        );
        assert_eq!(
            fault("batch/v9"),
            "unknown API version batch/v9; single resources cannot be switched"
        );
        assert!(fault("apps/v1=maybe").starts_with("invalid value of apps/v1=maybe"));
        assert_eq!("apps/v1=true,v1".parse(), Ok(RuntimeConfig::default()));
    }
}
