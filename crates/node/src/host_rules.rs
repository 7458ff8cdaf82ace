//! What a node asks of its machine, and how it holds containers to their CPUs and off its swap, as configured.

use davit_machine::{MachineFacts, set_oom_score, set_open_files, unprotected_settings};
use davit_pods::resources::{CpuQuotas, SwapBehavior};
use std::path::Path;

/// What is asked of the machine and of this process before a node begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostRules {
    /// Whether a machine that swaps is refused (`failSwapOn`; the kubelet's default is to).
    pub fail_swap_on: bool,
    /// Whether a machine with cgroups v1 is refused (`failCgroupV1`; the kubelet's default is to).
    pub fail_cgroup_v1: bool,
    /// Whether a kernel with other settings than the kubelet's is refused (`protectKernelDefaults`).
    pub protect_kernel_defaults: bool,
    /// `oom_score_adj` of this process; it stays as it is without (`oomScoreAdj`).
    pub oom_score: Option<i32>,
    /// How many files this process may have open; it stays as it is without (`maxOpenFiles`).
    pub open_files: Option<u64>,
    /// Who may swap (`memorySwap.swapBehavior`).
    pub swap: SwapBehavior,
    /// How limits of CPU become quotas (`cpuCFSQuota`, `cpuCFSQuotaPeriod`).
    pub quotas: CpuQuotas,
    /// Whether out of memory ends one process of a container and not all; as the tree of cgroups has it without
    /// (`singleProcessOOMKill`).
    pub single_process_oom_kill: Option<bool>,
}

/// Why a machine is refused.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// It swaps.
    #[error(
        "running with swap on is not supported, please disable swap or set failSwapOn to false"
    )]
    SwapOn,
    /// It has cgroups v1.
    #[error("failCgroupV1: this machine has cgroups v1")]
    CgroupV1,
    /// Version 1 has no such switch.
    #[error("singleProcessOOMKill must not be explicitly set to false when using cgroup v1")]
    GroupKill,
    /// Settings of the kernel.
    #[error("protectKernelDefaults: {}", .0.join("; "))]
    Kernel(Vec<String>),
}

impl HostRules {
    /// Compares the machine with what is asked of it, and sets what is asked of this process; what the kernel refuses of that
    /// is said in the log, as by the kubelet.
    ///
    /// # Errors
    /// The machine is refused.
    pub(crate) fn apply(&self, machine: &MachineFacts) -> Result<(), HostError> {
        if self.fail_cgroup_v1 && !machine.unified_cgroup {
            return Err(HostError::CgroupV1);
        }
        if self.single_process_oom_kill == Some(false) && !machine.unified_cgroup {
            return Err(HostError::GroupKill);
        }
        if self.fail_swap_on && machine.swaps {
            return Err(HostError::SwapOn);
        }
        if self.protect_kernel_defaults {
            let odd = unprotected_settings(Path::new("/proc/sys"));
            if !odd.is_empty() {
                return Err(HostError::Kernel(odd));
            }
        }
        if let Some(score) = self.oom_score
            && let Err(error) = set_oom_score(score)
        {
            tracing::warn!(%error, score, "oomScoreAdj cannot be set");
        }
        if let Some(most) = self.open_files
            && let Err(error) = set_open_files(most)
        {
            tracing::warn!(%error, most, "maxOpenFiles cannot be set");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_may_be_refused() {
        let mut machine = MachineFacts::discover(Path::new("/"));
        (machine.swaps, machine.unified_cgroup) = (true, false);
        let rules = HostRules::default();
        rules.apply(&machine).unwrap();
        let refused = |rules: HostRules| rules.apply(&machine).unwrap_err();
        let swap = HostRules {
            fail_swap_on: true,
            ..rules
        };
        assert!(matches!(refused(swap), HostError::SwapOn));
        let v1 = HostRules {
            fail_cgroup_v1: true,
            ..rules
        };
        assert!(matches!(refused(v1), HostError::CgroupV1));
        let all = HostRules {
            single_process_oom_kill: Some(false),
            ..rules
        };
        assert!(matches!(refused(all), HostError::GroupKill));
        (machine.swaps, machine.unified_cgroup) = (false, true);
        for rules in [swap, v1, all] {
            rules.apply(&machine).unwrap();
        }
    }
}
