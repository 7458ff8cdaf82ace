//! The cgroups of the machine's own that are held to what is kept for them (`enforceNodeAllocatable`).
//! <https://kubernetes.io/docs/tasks/administer-cluster/reserve-compute-resources/>

use davit_oci::cgroup::{Cgroup, Hierarchies, Limits};
use davit_pods::resources::{Amounts, cpu_shares, hugepage_size_of, hugepage_size_text};
use std::fmt;
use std::path::PathBuf;

/// For whom something is kept from pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeper {
    /// The system (`systemReserved`).
    System,
    /// The node agent (`kubeReserved`).
    Kube,
}

impl fmt::Display for Keeper {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::System => "System Reserved",
            Self::Kube => "Kube Reserved",
        })
    }
}

/// To how much of what is kept for it a cgroup is held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Enforced {
    /// To nothing.
    #[default]
    Nothing,
    /// To its weight of CPU.
    Compressible,
    /// To all.
    All,
}

/// What is kept for the system or for the agent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReservedShare {
    /// Amounts by resource name.
    pub amounts: Amounts,
    /// The cgroup that is held to it, which somebody has made; none where it is empty.
    pub cgroup: String,
    /// To what.
    pub enforced: Enforced,
}

/// Why a cgroup of the machine's own is not held to its share.
#[derive(Debug, thiserror::Error)]
pub enum ReservedError {
    /// It is not there, or not for all controllers.
    #[error(
        "failed to enforce {keeper} cgroup limits on {cgroup:?}: it has some missing paths: {}",
        paths(missing)
    )]
    Missing {
        /// Whose it is.
        keeper: Keeper,
        /// Its path.
        cgroup: String,
        /// The directories that are not there.
        missing: Vec<PathBuf>,
    },
    /// The kernel refuses.
    #[error("failed to enforce {keeper} cgroup limits on {cgroup:?}")]
    Refused {
        /// Whose it is.
        keeper: Keeper,
        /// Its path.
        cgroup: String,
        /// Why.
        source: davit_oci::cgroup::Error,
    },
}

fn paths(missing: &[PathBuf]) -> String {
    let shown: Vec<String> = missing.iter().map(|p| p.display().to_string()).collect();
    shown.join(", ")
}

impl ReservedShare {
    /// Holds the cgroup to its share, if it is to be; whether it is.
    ///
    /// # Errors
    /// The cgroup is not there, or cannot be limited.
    pub(super) fn enforce(
        &self,
        hierarchies: &Hierarchies,
        keeper: Keeper,
    ) -> Result<bool, ReservedError> {
        if self.enforced == Enforced::Nothing {
            return Ok(false);
        }
        let group: Cgroup = hierarchies.cgroup(&self.cgroup);
        let (cgroup, missing) = (self.cgroup.clone(), group.missing());
        if !missing.is_empty() {
            return Err(ReservedError::Missing {
                keeper,
                cgroup,
                missing,
            });
        }
        match group.apply(&self.limits()) {
            Ok(()) => Ok(true),
            Err(source) => Err(ReservedError::Refused {
                keeper,
                cgroup,
                source,
            }),
        }
    }

    fn limits(&self) -> Limits {
        let amount = |name: &str| self.amounts.get(name).copied();
        let weight = Limits {
            cpu_shares: amount("cpu").and_then(|milli| u64::try_from(cpu_shares(milli)).ok()),
            ..Limits::default()
        };
        if self.enforced == Enforced::Compressible {
            return weight;
        }
        let pages = self.amounts.iter().filter_map(|(name, amount)| {
            let size = hugepage_size_of(name)?;
            Some((hugepage_size_text(size), *amount))
        });
        Limits {
            memory: amount("memory"),
            pids: amount("pid"),
            hugepages: pages.collect(),
            ..weight
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_limits_of_its_cgroup() {
        let amounts = [
            ("cpu", 500),
            ("memory", 1 << 30),
            ("pid", 1000),
            ("hugepages-2Mi", 4 << 20),
            ("ephemeral-storage", 1),
        ];
        let share = |enforced| ReservedShare {
            amounts: amounts.map(|(k, v)| (k.to_owned(), v)).into(),
            cgroup: "/system".to_owned(),
            enforced,
        };
        let all = share(Enforced::All).limits();
        assert_eq!((all.cpu_shares, all.memory), (Some(512), Some(1 << 30)));
        assert_eq!(all.pids, Some(1000));
        assert_eq!(all.hugepages, [("2MB".to_owned(), 4 << 20)]);
        let weight = share(Enforced::Compressible).limits();
        assert_eq!((weight.cpu_shares, weight.memory), (Some(512), None));
        assert_eq!((weight.pids, weight.hugepages.len()), (None, 0));
        assert_eq!(ReservedShare::default().limits(), Limits::default());
    }
}
