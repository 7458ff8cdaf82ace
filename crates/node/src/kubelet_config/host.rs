//! The fields about the machine and about this process: swap, quotas of CPU, settings of the kernel.

use std::time::Duration;

use serde::Deserialize;

use super::{ConfigError, KubeletConfig, value, wrong};
use crate::host_rules::HostRules;
use davit_pods::durations;
use davit_pods::resources::{CpuQuotas, SwapBehavior};

/// `memorySwap`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(super) struct MemorySwap {
    swap_behavior: String,
}

/// What periods of quotas may be.
const PERIODS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(1);

impl KubeletConfig {
    pub(super) fn host(&self) -> Result<HostRules, ConfigError> {
        let score = self.oom_score_adj;
        if score.is_some_and(|score| !(-1000..=1000).contains(&score)) {
            let text = "must be between -1000 and 1000, inclusive";
            return Err(wrong("oomScoreAdj", text));
        }
        let files = u64::try_from(self.max_open_files.unwrap_or(0));
        let files = files.map_err(|_| wrong("maxOpenFiles", "must not be negative"))?;
        Ok(HostRules {
            fail_swap_on: self.fail_swap_on.unwrap_or(false),
            fail_cgroup_v1: self.fail_cgroup_v1.unwrap_or(false),
            protect_kernel_defaults: self.protect_kernel_defaults.unwrap_or(false),
            oom_score: score,
            open_files: Some(files).filter(|files| *files > 0),
            swap: match self.memory_swap.swap_behavior.as_str() {
                "" | "NoSwap" => SwapBehavior::NoSwap,
                "LimitedSwap" => SwapBehavior::LimitedSwap,
                other => {
                    let text =
                        format!("{other:?} must be one of \"\", \"LimitedSwap\" or \"NoSwap\"");
                    return Err(wrong("memorySwap.swapBehavior", text));
                }
            },
            quotas: self.quotas()?,
            single_process_oom_kill: self.single_process_oom_kill,
        })
    }

    fn quotas(&self) -> Result<CpuQuotas, ConfigError> {
        const FIELD: &str = "cpuCFSQuotaPeriod";
        let mut quotas = CpuQuotas {
            enforced: self.cpu_cfs_quota.unwrap_or(true),
            ..CpuQuotas::default()
        };
        if let Some(text) = &self.cpu_cfs_quota_period {
            let period = value(FIELD, durations::parse(text))?;
            if !PERIODS.contains(&period) {
                return Err(wrong(FIELD, "must be between 1ms and 1s, inclusive"));
            }
            quotas.period = i64::try_from(period.as_micros()).unwrap_or(quotas.period);
        }
        Ok(quotas)
    }

    /// How many hundredths of memory `qosReserved` keeps.
    pub(super) fn qos_reserved(&self) -> Result<Option<i64>, ConfigError> {
        const FIELD: &str = "qosReserved";
        let mut percent = None;
        for (name, text) in &self.qos_reserved {
            if name != "memory" {
                return Err(wrong(FIELD, format!("cannot reserve {name:?}")));
            }
            let number = text.strip_suffix('%').and_then(|n| n.parse::<i64>().ok());
            let number = number.filter(|n| (0..=100).contains(n));
            percent = Some(number.ok_or_else(|| {
                wrong(
                    FIELD,
                    format!("{text:?} is no percentage between 0% and 100%"),
                )
            })?);
        }
        // without its gate the kubelet passes over it
        Ok(percent.filter(|_| self.features().is_ok_and(|f| f.is_on("QOSReserved"))))
    }
}
