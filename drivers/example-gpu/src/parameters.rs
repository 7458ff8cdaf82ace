//! What users may write into classes and claims for this driver.

use davit_sdk::dra::{AllocatedClaim, AllocatedDevice, Refusal};
use serde::Deserialize;

/// Group and version of the parameters.
pub(crate) const API_VERSION: &str = "gpu.davit.dev/v1";

/// How a GPU is shared among the containers of a claim.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct GpuConfig {
    api_version: String,
    kind: String,
    #[serde(default)]
    pub(crate) sharing: Sharing,
}

/// See [`GpuConfig`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Sharing {
    #[serde(default)]
    pub(crate) strategy: Strategy,
    #[serde(default)]
    pub(crate) time_slice: Option<TimeSlice>,
    #[serde(default)]
    pub(crate) partition_count: Option<u32>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub(crate) enum Strategy {
    #[default]
    TimeSlicing,
    SpacePartitioning,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub(crate) enum TimeSlice {
    #[default]
    Default,
    Short,
    Medium,
    Long,
}

impl GpuConfig {
    /// The parameters that hold for a device, checked.
    pub(crate) fn of(claim: &AllocatedClaim, device: &AllocatedDevice) -> Result<Sharing, Refusal> {
        let mut sharing = Sharing::default();
        // All are checked, so that a mistake does not hide behind what overrides it.
        for parameters in claim.parameters(device) {
            let config: Self = parameters.decode()?;
            sharing = config.checked()?;
        }
        Ok(sharing)
    }

    fn checked(self) -> Result<Sharing, Refusal> {
        if self.api_version != API_VERSION || self.kind != "GpuConfig" {
            let (version, kind) = (self.api_version, self.kind);
            return Err(Refusal::new(format!(
                "opaque parameters: {version} {kind} is not {API_VERSION} GpuConfig"
            )));
        }
        let sharing = self.sharing;
        let wrong = match sharing.strategy {
            Strategy::TimeSlicing => sharing.partition_count.map(|_| "partitionCount"),
            Strategy::SpacePartitioning => sharing.time_slice.map(|_| "timeSlice"),
        };
        if let Some(field) = wrong {
            let strategy = sharing.strategy;
            return Err(Refusal::new(format!(
                "opaque parameters: {field} does not go with the strategy {strategy:?}"
            )));
        }
        if sharing.partition_count == Some(0) {
            return Err(Refusal::new("opaque parameters: partitionCount is 0"));
        }
        Ok(sharing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn check(sharing: &Value) -> Result<Sharing, String> {
        let config = json!({"apiVersion": API_VERSION, "kind": "GpuConfig", "sharing": sharing});
        let config: GpuConfig = serde_json::from_value(config).map_err(|e| e.to_string())?;
        config.checked().map_err(|e| e.0)
    }

    #[test]
    fn parameters_are_checked() {
        let short = check(&json!({"timeSlice": "Short"})).unwrap();
        assert_eq!(short.time_slice, Some(TimeSlice::Short));
        let parts = json!({"strategy": "SpacePartitioning", "partitionCount": 2});
        assert_eq!(check(&parts).unwrap().partition_count, Some(2));
        let mixed = check(&json!({"strategy": "SpacePartitioning", "timeSlice": "Long"}));
        assert!(mixed.unwrap_err().contains("timeSlice does not go"));
        assert!(check(&json!({"timeslice": "Short"})).is_err());
        assert!(check(&json!({"strategy": "Luck"})).is_err());
    }
}
