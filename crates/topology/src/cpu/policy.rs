//! The static CPU manager policy (KEP-3570) with its options.

use crate::cpuset::CpuSet;
use crate::devices::{Group, subset_hints};
use crate::hints::TopologyHint;
use crate::numa::NumaMask;

use super::distribute::take_distributed;
use super::take::{Sorting, TakeError, take_packed};
use super::topology::CpuTopology;

/// Options of the static policy; the names are those of `cpuManagerPolicyOptions`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuOptions {
    /// `full-pcpus-only`: whole cores or nothing.
    pub full_pcpus_only: bool,
    /// `distribute-cpus-across-numa`: equal shares where one NUMA node is not enough.
    pub distribute_across_numa: bool,
    /// `align-by-socket`: hints prefer few sockets instead of few NUMA nodes.
    pub align_by_socket: bool,
    /// `distribute-cpus-across-cores`: threads of different cores first.
    pub distribute_across_cores: bool,
    /// `strict-cpu-reservation`: the shared pool leaves the reserved CPUs out.
    pub strict_reservation: bool,
    /// `prefer-align-cpus-by-uncorecache`: whole caches where possible.
    pub prefer_uncore_cache: bool,
}

/// A request that does not fit cores (`full-pcpus-only`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SmtAlignment {
    /// The number is not a multiple of a core's threads.
    #[error(
        "SMT Alignment Error: requested {requested} cpus not multiple cpus per core = {per_core}"
    )]
    NotMultiple {
        /// CPUs asked for.
        requested: usize,
        /// Threads a core.
        per_core: usize,
    },
    /// Too few whole cores are free.
    #[error(
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = {available}, requested CPUs = {requested}, CPUs per core = {per_core}"
    )]
    NotEnough {
        /// CPUs on free cores.
        available: usize,
        /// CPUs asked for.
        requested: usize,
        /// Threads a core.
        per_core: usize,
    },
}

/// Why a container does not get its CPUs. The texts are part of pod status messages.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CpuError {
    /// Refused with reason `SMTAlignmentError`.
    #[error(transparent)]
    Smt(#[from] SmtAlignment),
    /// Too few CPUs are free.
    #[error(transparent)]
    Take(#[from] TakeError),
}

/// One container's request.
#[derive(Debug, Clone)]
pub struct CpuRequest<'a> {
    /// CPUs asked for.
    pub count: usize,
    /// CPUs of nobody: neither reserved nor held.
    pub free: &'a CpuSet,
    /// CPUs of ordinary init containers of the same pod.
    pub reusable: &'a CpuSet,
}

/// The policy on one machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuPolicy {
    /// The machine's CPUs.
    pub topology: CpuTopology,
    /// Options.
    pub options: CpuOptions,
    /// CPUs that are never given out.
    pub reserved: CpuSet,
}

impl CpuPolicy {
    /// The CPUs that `count` reserved ones are taken from when no set was named: the first by
    /// the policy's own order.
    ///
    /// # Errors
    /// The machine has fewer.
    pub fn reserve(topology: &CpuTopology, count: usize) -> Result<CpuSet, TakeError> {
        take_packed(topology, topology.all(), count, Sorting::Packed, false)
    }

    /// CPUs that can be given out at all.
    pub fn allocatable(&self) -> CpuSet {
        self.topology.all().difference(&self.reserved)
    }

    /// The shared pool while `held` are given out.
    pub fn shared(&self, held: &CpuSet) -> CpuSet {
        let all = self.topology.all().difference(held);
        if self.options.strict_reservation {
            all.difference(&self.reserved)
        } else {
            all
        }
    }

    /// CPUs that can be given out while `held` are; whole cores only with `full-pcpus-only`.
    pub fn free(&self, held: &CpuSet) -> CpuSet {
        let free = self.allocatable().difference(held);
        if self.options.full_pcpus_only {
            // A core that is half reserved cannot be given out whole.
            free.difference(&self.topology.with_siblings(&self.reserved))
        } else {
            free
        }
    }

    /// Chooses CPUs, those on the nodes of `affinity` first.
    ///
    /// # Errors
    /// See [`CpuError`].
    pub fn choose(
        &self,
        request: &CpuRequest<'_>,
        affinity: Option<NumaMask>,
    ) -> Result<CpuSet, CpuError> {
        let usable = request.free.union(request.reusable);
        if self.options.full_pcpus_only {
            self.check_cores(request.count, &usable)?;
        }
        let mut chosen = CpuSet::new();
        // What init containers of the pod held is taken first, it is of no use to anybody else.
        let reusable = request.reusable;
        let fits = affinity.is_none_or(|m| reusable.is_subset(&self.aligned(m)));
        if fits && !self.options.distribute_across_numa {
            chosen = self.take(reusable, request.count.min(reusable.len()))?;
        }
        if let Some(mask) = affinity {
            let aligned = self.aligned(mask).intersection(&usable).difference(&chosen);
            let count = (request.count - chosen.len()).min(aligned.len());
            chosen = chosen.union(&self.take(&aligned, count)?);
        }
        let rest = self.take(&usable.difference(&chosen), request.count - chosen.len())?;
        Ok(chosen.union(&rest))
    }

    fn check_cores(&self, requested: usize, usable: &CpuSet) -> Result<(), SmtAlignment> {
        let per_core = self.topology.cpus_per_core();
        if !requested.is_multiple_of(per_core) {
            return Err(SmtAlignment::NotMultiple {
                requested,
                per_core,
            });
        }
        let available = usable.len();
        if requested > available {
            return Err(SmtAlignment::NotEnough {
                available,
                requested,
                per_core,
            });
        }
        Ok(())
    }

    /// CPUs that count as aligned with a mask: its nodes', or with `align-by-socket` all of the
    /// sockets it touches.
    fn aligned(&self, mask: NumaMask) -> CpuSet {
        if !self.options.align_by_socket {
            return self.topology.in_nodes(mask);
        }
        self.topology
            .sockets_of(mask)
            .into_iter()
            .fold(CpuSet::new(), |all, s| {
                all.union(&self.topology.in_socket(s))
            })
    }

    fn take(&self, from: &CpuSet, count: usize) -> Result<CpuSet, TakeError> {
        let sorting = if self.options.distribute_across_cores {
            Sorting::Spread
        } else {
            Sorting::Packed
        };
        if self.options.distribute_across_numa {
            let unit = if self.options.full_pcpus_only {
                self.topology.cpus_per_core()
            } else {
                1
            };
            return take_distributed(&self.topology, from, count, unit, sorting);
        }
        let by_cache = self.options.prefer_uncore_cache;
        take_packed(&self.topology, from, count, sorting, by_cache)
    }

    /// Hints for `count` CPUs. `held` are those the container (or pod) has already, if it has any.
    pub fn hints(&self, request: &CpuRequest<'_>, held: Option<&CpuSet>) -> Vec<TopologyHint> {
        let none = CpuSet::new();
        let (free, reusable) = match held {
            Some(held) if held.len() != request.count => return Vec::new(),
            Some(held) => (held, &none),
            None => (request.free, request.reusable),
        };
        let groups = self.topology.node_mask().iter().map(|node| {
            let nodes = NumaMask::from_bits(1 << node);
            let cpus = self.topology.in_nodes(nodes);
            Group {
                nodes,
                all: cpus.len(),
                available: cpus.intersection(&free.difference(reusable)).len(),
                reusable: cpus.intersection(reusable).len(),
            }
        });
        let groups: Vec<Group> = groups.collect();
        let (mut hints, least) = subset_hints(self.topology.node_mask(), &groups, request.count);
        if self.options.align_by_socket {
            for hint in &mut hints {
                hint.preferred |= hint.mask.is_some_and(|m| self.fits_sockets(m, least));
            }
        }
        hints
    }

    /// Whether a mask touches no more sockets than the narrowest placement has to.
    fn fits_sockets(&self, mask: NumaMask, least: u32) -> bool {
        let per_socket = self.topology.node_count() / self.topology.socket_count().max(1);
        per_socket > 0
            && self.topology.sockets_of(mask).len() == (least as usize).div_ceil(per_socket)
    }
}
