//! What is kept from pods, and how pods are held to the rest.

use super::{ConfigError, KubeletConfig, bytes, value, wrong};
use crate::options::NodeOptions;
use davit_api::quantity::Quantity;
use davit_pods::resources::Amounts;
use davit_topology::CpuSet;
use davit_topology::memory::MEMORY;

/// What pods may not have, by resource name.
pub(super) struct Reserved {
    /// `reservedSystemCPUs`.
    pub(super) cpus: Option<CpuSet>,
    /// What is kept for the system and the agent.
    pub(super) system: Amounts,
    /// That, and what eviction keeps free: it comes out of the node's allocatable amounts, but pods that use it are
    /// evicted rather than stopped by the kernel.
    pub(super) all: Amounts,
}

impl KubeletConfig {
    pub(super) fn reserved(&self) -> Result<Reserved, ConfigError> {
        let mut system = Amounts::new();
        for (field, list) in [
            ("kubeReserved", &self.kube_reserved),
            ("systemReserved", &self.system_reserved),
        ] {
            for (name, text) in list {
                let quantity: Quantity = value(field, text.parse())?;
                let amount = if name == "cpu" {
                    quantity.milli_value()
                } else {
                    quantity.value()
                };
                *system.entry(name.clone()).or_default() += amount;
            }
        }
        let cpus: Option<CpuSet> = match &self.reserved_system_cpus {
            Some(text) if !text.is_empty() => {
                let set: CpuSet = value("reservedSystemCPUs", text.parse())?;
                // It stands in the place of what the other two reserve.
                system.insert("cpu".to_owned(), set.len() as i64 * 1000);
                Some(set)
            }
            _ => None,
        };
        let mut all = system.clone();
        let memory = self.memory_static()?;
        if let Some(bytes) = self.eviction_memory(memory.is_some())? {
            *all.entry(MEMORY.to_owned()).or_default() += i64::try_from(bytes).unwrap_or(i64::MAX);
        }
        Ok(Reserved { cpus, system, all })
    }

    /// The hard eviction threshold for memory, which is not allocatable. The kubelet's default of
    /// 100 MiB counts where memory is divided, so that its configurations add up here too.
    fn eviction_memory(&self, divided: bool) -> Result<Option<u64>, ConfigError> {
        let Some(signals) = &self.eviction_hard else {
            return Ok(divided.then_some(100 << 20));
        };
        let threshold = signals.get("memory.available");
        // A part of the memory is known only where the machine is.
        threshold
            .filter(|text| !text.trim().ends_with('%'))
            .map(|text| bytes("evictionHard", text))
            .transpose()
    }

    /// How the cgroups above containers are limited.
    pub(super) fn cgroups(
        &self,
        reserved: &Reserved,
        options: &mut NodeOptions,
    ) -> Result<(), ConfigError> {
        let enforce = self.enforced()?;
        let pids = self.pod_pids_limit.filter(|n| *n > 0);
        let Some(groups) = &mut options.cgroups else {
            return match pids {
                Some(_) => Err(wrong("podPidsLimit", "limits need root")),
                None => Ok(()),
            };
        };
        groups.reserved.clone_from(&reserved.system);
        groups.enforce_pods = enforce;
        groups.pod_pids = pids;
        Ok(())
    }

    /// `enforceNodeAllocatable`: whether it names the pods.
    fn enforced(&self) -> Result<bool, ConfigError> {
        const FIELD: &str = "enforceNodeAllocatable";
        let Some(names) = self.enforce_node_allocatable.as_deref() else {
            return Ok(true);
        };
        for name in names {
            match name.as_str() {
                "pods" => {}
                "none" if names.len() == 1 => {}
                "none" => return Err(wrong(FIELD, "none stands alone")),
                "system-reserved"
                | "system-reserved-compressible"
                | "kube-reserved"
                | "kube-reserved-compressible" => {
                    return Err(ConfigError::NotBuilt(format!("{FIELD}: {name}")));
                }
                _ => {
                    let text = format!(
                        "unknown value {name:?}; valid are \"pods\", \"system-reserved\", \"kube-reserved\" and \"none\""
                    );
                    return Err(wrong(FIELD, text));
                }
            }
        }
        Ok(names.iter().any(|name| name == "pods"))
    }
}
