//! What is kept from pods, and how pods are held to the rest.

use super::{ConfigError, KubeletConfig, bytes, value, wrong};
use crate::options::NodeOptions;
use davit_api::quantity::Quantity;
use davit_machine::{Enforced, ReservedShare};
use davit_pods::resources::Amounts;
use davit_topology::CpuSet;
use davit_topology::memory::MEMORY;
use std::collections::BTreeMap;

/// What pods may not have, by resource name.
pub(super) struct Reserved {
    /// `reservedSystemCPUs`.
    pub(super) cpus: Option<CpuSet>,
    /// What is kept for the system.
    pub(super) system: Amounts,
    /// What is kept for the agent.
    pub(super) kube: Amounts,
    /// That, and what eviction keeps free: it comes out of the node's allocatable amounts, but pods that use it are
    /// evicted rather than stopped by the kernel.
    pub(super) all: Amounts,
}

impl KubeletConfig {
    pub(super) fn reserved(&self) -> Result<Reserved, ConfigError> {
        let mut system = amounts("systemReserved", &self.system_reserved)?;
        let mut kube = amounts("kubeReserved", &self.kube_reserved)?;
        let cpus: Option<CpuSet> = match &self.reserved_system_cpus {
            Some(text) if !text.is_empty() => {
                let set: CpuSet = value("reservedSystemCPUs", text.parse())?;
                // It stands in the place of what the other two reserve.
                system.insert("cpu".to_owned(), set.len() as i64 * 1000);
                kube.remove("cpu");
                Some(set)
            }
            _ => None,
        };
        let mut all = system.clone();
        for (name, amount) in &kube {
            *all.entry(name.clone()).or_default() += amount;
        }
        let memory = self.memory_static()?;
        if let Some(bytes) = self.eviction_memory(memory.is_some())? {
            *all.entry(MEMORY.to_owned()).or_default() += i64::try_from(bytes).unwrap_or(i64::MAX);
        }
        Ok(Reserved {
            cpus,
            system,
            kube,
            all,
        })
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
        let qos_reserved = self.qos_reserved()?;
        let Some(groups) = &mut options.cgroups else {
            return match pids {
                Some(_) => Err(wrong("podPidsLimit", "limits need root")),
                None => Ok(()),
            };
        };
        let share = |amounts: &Amounts, cgroup: &Option<String>, enforced| ReservedShare {
            amounts: amounts.clone(),
            cgroup: cgroup.clone().unwrap_or_default(),
            enforced,
        };
        groups.system = share(
            &reserved.system,
            &self.system_reserved_cgroup,
            enforce.system,
        );
        groups.kube = share(&reserved.kube, &self.kube_reserved_cgroup, enforce.kube);
        groups.enforce_pods = enforce.pods;
        groups.pod_pids = pids;
        groups.qos_reserved = qos_reserved;
        Ok(())
    }

    /// `enforceNodeAllocatable`.
    fn enforced(&self) -> Result<Enforcement, ConfigError> {
        let has = |cgroup: &Option<String>| cgroup.as_ref().is_some_and(|path| !path.is_empty());
        let (system, kube) = (
            has(&self.system_reserved_cgroup),
            has(&self.kube_reserved_cgroup),
        );
        let cpus = self.reserved_system_cpus.as_ref();
        if cpus.is_some_and(|cpus| !cpus.is_empty()) && (system || kube) {
            let text = "cannot be used with systemReservedCgroup or kubeReservedCgroup";
            return Err(wrong("reservedSystemCPUs", text));
        }
        let Some(names) = self.enforce_node_allocatable.as_deref() else {
            return Ok(Enforcement {
                pods: true,
                ..Enforcement::default()
            });
        };
        let mut out = Enforcement::default();
        for (at, name) in names.iter().enumerate() {
            if names[..at].contains(name) {
                return Err(wrong(ENFORCE, format!("{name:?} is named twice")));
            }
            match name.as_str() {
                "pods" => out.pods = true,
                "none" if names.len() == 1 => {}
                "none" => return Err(wrong(ENFORCE, "none stands alone")),
                "system-reserved" | "system-reserved-compressible" => {
                    set(&mut out.system, name, system, "systemReservedCgroup")?;
                }
                "kube-reserved" | "kube-reserved-compressible" => {
                    set(&mut out.kube, name, kube, "kubeReservedCgroup")?;
                }
                _ => {
                    let text = format!(
                        "unknown value {name:?}; valid are \"pods\", \"system-reserved\", \"system-reserved-compressible\", \"kube-reserved\", \"kube-reserved-compressible\" and \"none\""
                    );
                    return Err(wrong(ENFORCE, text));
                }
            }
        }
        Ok(out)
    }
}

const ENFORCE: &str = "enforceNodeAllocatable";

/// What `enforceNodeAllocatable` names.
#[derive(Default)]
struct Enforcement {
    pods: bool,
    system: Enforced,
    kube: Enforced,
}

/// Notes to what a cgroup is held, which `field` has to name.
fn set(slot: &mut Enforced, name: &str, named: bool, field: &str) -> Result<(), ConfigError> {
    if !named {
        return Err(wrong(ENFORCE, format!("{name} needs {field}")));
    }
    if *slot != Enforced::Nothing {
        return Err(wrong(
            ENFORCE,
            format!("{name} stands beside its other form"),
        ));
    }
    *slot = match name.ends_with("-compressible") {
        true => Enforced::Compressible,
        false => Enforced::All,
    };
    Ok(())
}

fn amounts(field: &'static str, list: &BTreeMap<String, String>) -> Result<Amounts, ConfigError> {
    let amount = |(name, text): (&String, &String)| {
        let quantity: Quantity = value(field, text.parse())?;
        let amount = match name.as_str() {
            "cpu" => quantity.milli_value(),
            _ => quantity.value(),
        };
        Ok((name.clone(), amount))
    };
    list.iter().map(amount).collect()
}
