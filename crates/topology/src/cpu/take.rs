//! Taking CPUs so that they are close together and what remains stays whole.

use crate::cpuset::CpuSet;

use super::topology::{CpuTopology, Level};

/// How single CPUs are ordered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sorting {
    /// Core after core.
    #[default]
    Packed,
    /// One thread of each core before the second of any (`distribute-cpus-across-cores`).
    Spread,
}

/// Too few CPUs. The texts are part of the pod's rejection message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TakeError {
    /// Fewer are free than asked for.
    #[error(
        "not enough cpus available to satisfy request: requested={requested}, available={available}"
    )]
    NotEnough {
        /// CPUs asked for.
        requested: usize,
        /// CPUs free.
        available: usize,
    },
}

/// Takes `count` CPUs of `available`: whole NUMA nodes and sockets first (the larger unit first),
/// then whole caches if `by_cache`, then whole cores, then single CPUs. Units with few free CPUs
/// go first, ties by number.
///
/// # Errors
/// Fewer are available.
pub fn take_packed(
    topology: &CpuTopology,
    available: &CpuSet,
    count: usize,
    sorting: Sorting,
    by_cache: bool,
) -> Result<CpuSet, TakeError> {
    let mut taker = Taker::new(topology, available, count)?;
    let (first, second) = if taker.nodes_are_larger() {
        (Level::Node, Level::Socket)
    } else {
        (Level::Socket, Level::Node)
    };
    taker.take_whole(first);
    taker.take_whole(second);
    if by_cache {
        taker.take_caches();
    }
    if sorting == Sorting::Packed {
        taker.take_whole(Level::Core);
    }
    taker.take_single(sorting);
    Ok(taker.taken)
}

/// CPUs on their way from free to taken.
pub(super) struct Taker<'a> {
    topology: &'a CpuTopology,
    pub(super) free: CpuSet,
    pub(super) taken: CpuSet,
    pub(super) need: usize,
}

impl<'a> Taker<'a> {
    pub(super) fn new(
        topology: &'a CpuTopology,
        available: &CpuSet,
        count: usize,
    ) -> Result<Self, TakeError> {
        let free = available.intersection(topology.all());
        if free.len() < count {
            return Err(TakeError::NotEnough {
                requested: count,
                available: free.len(),
            });
        }
        Ok(Self {
            topology,
            free,
            taken: CpuSet::new(),
            need: count,
        })
    }

    fn nodes_are_larger(&self) -> bool {
        self.topology.socket_count() >= self.topology.node_count()
    }

    pub(super) fn take(&mut self, cpus: &CpuSet) {
        self.need = self.need.saturating_sub(cpus.len());
        self.free = self.free.difference(cpus);
        self.taken = self.taken.union(cpus);
    }

    pub(super) fn free_in(&self, level: Level, id: u32) -> CpuSet {
        self.topology
            .units(level)
            .get(&id)
            .map_or_else(CpuSet::new, |cpus| cpus.intersection(&self.free))
    }

    /// Units of a level that have free CPUs inside `within`, those with fewest first.
    fn sorted_in(&self, level: Level, within: &CpuSet) -> Vec<u32> {
        let mut units: Vec<(usize, u32)> = self
            .topology
            .units(level)
            .iter()
            .filter(|(_, cpus)| !cpus.intersection(&self.free).is_disjoint(within))
            .map(|(id, cpus)| (cpus.intersection(&self.free).len(), *id))
            .collect();
        units.sort_unstable();
        units.into_iter().map(|(_, id)| id).collect()
    }

    fn nested(&self, outer: Vec<u32>, of: Level, inner: Level) -> Vec<u32> {
        let mut found = Vec::new();
        for id in outer {
            for unit in self.sorted_in(inner, &self.free_in(of, id)) {
                if !found.contains(&unit) {
                    found.push(unit);
                }
            }
        }
        found
    }

    pub(super) fn nodes(&self) -> Vec<u32> {
        if self.nodes_are_larger() {
            return self.sorted_in(Level::Node, &self.free);
        }
        self.nested(
            self.sorted_in(Level::Socket, &self.free),
            Level::Socket,
            Level::Node,
        )
    }

    fn sockets(&self) -> Vec<u32> {
        if !self.nodes_are_larger() {
            return self.sorted_in(Level::Socket, &self.free);
        }
        self.nested(self.nodes(), Level::Node, Level::Socket)
    }

    /// Units of a level in the order in which they are tried.
    fn sorted(&self, level: Level) -> Vec<u32> {
        match level {
            Level::Node => self.nodes(),
            Level::Socket => self.sockets(),
            Level::Cache => self.nested(self.nodes(), Level::Node, Level::Cache),
            Level::Core if self.nodes_are_larger() => {
                self.nested(self.sockets(), Level::Socket, Level::Core)
            }
            Level::Core => self.nested(self.nodes(), Level::Node, Level::Core),
        }
    }

    fn is_whole(&self, level: Level, id: u32) -> bool {
        self.topology
            .units(level)
            .get(&id)
            .is_some_and(|cpus| cpus.is_subset(&self.free))
    }

    /// Takes units that are completely free and not larger than what is needed.
    fn take_whole(&mut self, level: Level) {
        if self.need == 0 {
            return;
        }
        let whole: Vec<u32> = self
            .sorted(level)
            .into_iter()
            .filter(|id| self.is_whole(level, *id))
            .collect();
        for id in whole {
            let cpus = self.free_in(level, id);
            if self.need >= cpus.len() {
                self.take(&cpus);
            }
            if self.need == 0 {
                return;
            }
        }
    }

    /// Whole caches, then whole cores of one cache that has enough of them.
    fn take_caches(&mut self) {
        let caches = self.sorted(Level::Cache);
        self.take_whole(Level::Cache);
        for cache in caches {
            if self.need == 0 {
                return;
            }
            self.take_part_of_cache(cache);
        }
    }

    /// Takes all that is still needed from one cache, in whole cores but for an odd last CPU; or
    /// nothing.
    fn take_part_of_cache(&mut self, cache: u32) {
        let per_core = self.topology.cpus_per_core();
        let cores = self.need.div_ceil(per_core);
        let in_cache = self.free_in(Level::Cache, cache);
        let mut cpus: Vec<u32> = self
            .sorted_in(Level::Core, &in_cache)
            .into_iter()
            .filter(|core| self.is_whole(Level::Core, *core))
            .take(cores)
            .flat_map(|core| self.free_in(Level::Core, core).iter().collect::<Vec<_>>())
            .collect();
        if cpus.len() > self.need && !self.need.is_multiple_of(per_core) {
            cpus.truncate(self.need);
        }
        if cpus.len() == self.need {
            self.take(&cpus.into_iter().collect());
        }
    }

    fn take_single(&mut self, sorting: Sorting) {
        if self.need == 0 {
            return;
        }
        let cores: Vec<Vec<u32>> = self
            .sorted(Level::Core)
            .into_iter()
            .map(|core| self.free_in(Level::Core, core).iter().collect())
            .collect();
        let order: Vec<u32> = match sorting {
            Sorting::Packed => cores.into_iter().flatten().collect(),
            Sorting::Spread => {
                let most = cores.iter().map(Vec::len).max().unwrap_or(0);
                (0..most)
                    .flat_map(|i| cores.iter().filter_map(move |c| c.get(i).copied()))
                    .collect()
            }
        };
        self.take(&order.into_iter().take(self.need).collect());
    }
}
