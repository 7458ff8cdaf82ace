//! Where choices are made, one at a time.

use std::collections::BTreeMap;

use davit_topology::cpu::CpuRequest;
use davit_topology::devices::ContainerKind;
use davit_topology::hints::{ProviderHints, TopologyHint};
use davit_topology::memory::{
    MemoryAmounts, MemoryBlock, MemoryReuse, MemoryState, offer, take_over,
};
use davit_topology::{CpuSet, NumaMask};
use parking_lot::MutexGuard;

use super::{Compute, ComputeError, Pending, held_cpus};
use crate::allocation::{Change, ComputeHold, Ledger, PodName, Table};
use crate::devices::{Request, pod_total};

/// What later containers of a pod can have of its ordinary init containers.
#[derive(Debug, Default)]
pub(crate) struct Reuse {
    cpus: CpuSet,
    memory: MemoryReuse,
    inits: Vec<(String, Vec<MemoryBlock>)>,
}

/// The choices of one admission; they count until it is dropped.
pub(crate) struct Ticket<'a> {
    compute: &'a Compute,
    number: u64,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.compute.pending.lock().drafts.remove(&self.number);
    }
}

impl Ticket<'_> {
    /// What was chosen, as changes for the log.
    pub(crate) fn changes(&self) -> Vec<Change> {
        let pending = self.compute.pending.lock();
        let drafts = pending.drafts.get(&self.number).into_iter().flatten();
        // Those that hand on come first.
        let mut holds: Vec<&ComputeHold> = drafts.map(|(_, h)| h).collect();
        holds.sort_by_key(|h| h.kind != ContainerKind::Init);
        holds.into_iter().cloned().map(Change::Compute).collect()
    }
}

impl Compute {
    /// Begins an admission.
    pub(crate) fn begin(&self) -> Ticket<'_> {
        let mut pending = self.pending.lock();
        pending.next += 1;
        let number = pending.next;
        pending.drafts.insert(number, BTreeMap::new());
        Ticket {
            compute: self,
            number,
        }
    }

    /// Opens the desk: nobody else chooses until it is dropped. Not to be held over a wait.
    pub(crate) fn desk<'a>(&'a self, ledger: &Ledger, ticket: &Ticket<'a>, uid: &str) -> Desk<'a> {
        let pending = self.pending.lock();
        let mut desk = Desk {
            compute: self,
            number: ticket.number,
            held: CpuSet::new(),
            memory: self.memory.clone(),
            own: BTreeMap::new(),
            pending,
        };
        ledger.read(|table| desk.fill(table, uid));
        desk
    }
}

/// One moment in which everything that is taken is known.
pub(crate) struct Desk<'a> {
    compute: &'a Compute,
    number: u64,
    /// CPUs in anybody's hands.
    held: CpuSet,
    memory: Option<MemoryState>,
    /// What containers of the pod hold by the log or by this admission.
    own: BTreeMap<String, ComputeHold>,
    pending: MutexGuard<'a, Pending>,
}

impl Desk<'_> {
    fn fill(&mut self, table: &Table, uid: &str) {
        self.held = held_cpus(table, |_| true);
        // A draft stands in for what the log says of the same container.
        let mut holds: BTreeMap<(String, String), ComputeHold> = BTreeMap::new();
        for (pod, name, c) in table.containers() {
            if c.cpus.is_empty() && c.memory.is_empty() {
                continue;
            }
            let hold = ComputeHold {
                pod: pod.clone(),
                container: name.clone(),
                kind: c.kind,
                cpus: c.cpus.clone(),
                memory: c.memory.clone(),
                since: c.compute_since,
            };
            holds.insert((pod.uid.clone(), name.clone()), hold);
        }
        for hold in self.pending.drafts.values().flat_map(BTreeMap::values) {
            self.held = self.held.union(&hold.cpus);
            let key = (hold.pod.uid.clone(), hold.container.clone());
            holds.insert(key, hold.clone());
        }
        if let Some(memory) = &mut self.memory {
            for hold in holds.values() {
                hold.memory.iter().for_each(|b| memory.book(b));
            }
        }
        self.own = holds
            .into_iter()
            .filter(|((pod, _), _)| pod == uid)
            .map(|((_, container), hold)| (container, hold))
            .collect();
    }

    /// CPUs that could be given out.
    pub(crate) fn free_cpus(&self) -> CpuSet {
        let policy = self.compute.cpu.as_ref();
        policy.map_or_else(CpuSet::new, |p| p.free(&self.held))
    }

    /// CPUs that a container of the pod holds or was just given.
    pub(crate) fn cpus_of(&self, container: &str) -> Option<&CpuSet> {
        let hold = self.own.get(container)?;
        Some(&hold.cpus).filter(|cpus| !cpus.is_empty())
    }

    /// Memory as it is booked.
    pub(crate) fn memory(&self) -> Option<&MemoryState> {
        self.memory.as_ref()
    }

    /// Hints for one container, the CPU manager's and the memory manager's.
    pub(crate) fn hints(&self, request: &Request, reuse: &Reuse) -> Vec<ProviderHints> {
        let own = self.own.get(&request.container);
        let mut providers = Vec::new();
        if let Some(policy) = self.compute.cpu.as_ref().filter(|_| request.cpus > 0) {
            let free = policy.free(&self.held);
            let wanted = CpuRequest {
                count: request.cpus,
                free: &free,
                reusable: &reuse.cpus,
            };
            let held = own.map(|h| &h.cpus).filter(|c| !c.is_empty());
            providers.push(one("cpu", policy.hints(&wanted, held)));
        }
        if let Some(memory) = self.memory.as_ref().filter(|_| !request.memory.is_empty()) {
            let held = own.map(|h| h.memory.as_slice()).filter(|b| !b.is_empty());
            providers.push(memory_hints(memory, &request.memory, held, &reuse.memory));
        }
        providers
    }

    /// Hints for a whole pod (scope `pod`).
    pub(crate) fn pod_hints(&self, requests: &[Request]) -> Vec<ProviderHints> {
        let mut providers = Vec::new();
        let count = pod_total(requests.iter().map(|r| (r.kind, r.cpus)));
        if let Some(policy) = self.compute.cpu.as_ref().filter(|_| count > 0) {
            let free = policy.free(&self.held);
            let mismatch = requests.iter().any(|r| {
                let held = self.own.get(&r.container).map(|h| h.cpus.len());
                held.is_some_and(|n| n > 0 && n != r.cpus)
            });
            let own = self
                .own
                .values()
                .fold(CpuSet::new(), |all, h| all.union(&h.cpus));
            let wanted = CpuRequest {
                count,
                free: &free,
                reusable: &own,
            };
            let hints = if mismatch {
                Vec::new()
            } else if own.len() == count {
                policy.hints(&wanted, Some(&own))
            } else {
                policy.hints(&wanted, None)
            };
            providers.push(one("cpu", hints));
        }
        let kinds: std::collections::BTreeSet<&String> =
            requests.iter().flat_map(|r| r.memory.keys()).collect();
        if let Some(memory) = self.memory.as_ref().filter(|_| !kinds.is_empty()) {
            let of_kind = |kind: &String| {
                let each = requests
                    .iter()
                    .map(|r| (r.kind, r.memory.get(kind).copied().unwrap_or(0)));
                (kind.clone(), pod_total(each))
            };
            let total: MemoryAmounts = kinds.into_iter().map(of_kind).collect();
            let held = self.own.values().find(|h| !h.memory.is_empty());
            providers.push(match held {
                // The mask is one for all containers of the pod.
                Some(h) => total
                    .keys()
                    .map(|kind| {
                        let hint = TopologyHint::new(h.memory[0].nodes, true);
                        (kind.clone(), Some(vec![hint]))
                    })
                    .collect(),
                None => memory_hints(memory, &total, None, &MemoryReuse::new()),
            });
        }
        providers
    }

    /// Chooses CPUs and memory for one container; what it holds already stays.
    ///
    /// # Errors
    /// There are too few.
    pub(crate) fn give(
        &mut self,
        pod: &PodName,
        request: &Request,
        hint: TopologyHint,
        reuse: &mut Reuse,
    ) -> Result<(), ComputeError> {
        let own = self.own.get(&request.container).cloned();
        let mut hold = own.clone().unwrap_or_else(|| ComputeHold {
            pod: pod.clone(),
            container: request.container.clone(),
            kind: request.kind,
            cpus: CpuSet::new(),
            memory: Vec::new(),
            since: jiff::Timestamp::now().as_millisecond(),
        });
        if !request.finished {
            if hold.cpus.is_empty() {
                hold.cpus = self.choose_cpus(request, hint.mask, reuse)?;
            }
            if hold.memory.is_empty() {
                hold.memory = self.choose_memory(request, hint, reuse)?;
            }
        }
        match request.kind {
            ContainerKind::Init => {
                reuse.cpus = reuse.cpus.union(&hold.cpus);
                offer(&mut reuse.memory, &hold.memory);
                let blocks = hold.memory.clone();
                reuse.inits.push((request.container.clone(), blocks));
            }
            ContainerKind::Sidecar | ContainerKind::App => {
                reuse.cpus = reuse.cpus.difference(&hold.cpus);
                if own.as_ref().is_none_or(|o| o.memory.is_empty()) {
                    take_over(&mut reuse.memory, &mut reuse.inits, &hold.memory);
                    self.shrink_inits(reuse);
                }
            }
        }
        let nothing = hold.cpus.is_empty() && hold.memory.is_empty();
        if own.as_ref() != Some(&hold) && !nothing {
            self.draft(hold);
        }
        Ok(())
    }

    fn choose_cpus(
        &self,
        request: &Request,
        mask: Option<NumaMask>,
        reuse: &Reuse,
    ) -> Result<CpuSet, ComputeError> {
        let Some(policy) = self.compute.cpu.as_ref().filter(|_| request.cpus > 0) else {
            return Ok(CpuSet::new());
        };
        let wanted = CpuRequest {
            count: request.cpus,
            free: &policy.free(&self.held),
            reusable: &reuse.cpus,
        };
        Ok(policy.choose(&wanted, mask)?)
    }

    fn choose_memory(
        &self,
        request: &Request,
        hint: TopologyHint,
        reuse: &Reuse,
    ) -> Result<Vec<MemoryBlock>, ComputeError> {
        let Some(memory) = self.memory.as_ref().filter(|_| !request.memory.is_empty()) else {
            return Ok(Vec::new());
        };
        Ok(memory.choose(&request.memory, &reuse.memory, hint)?)
    }

    /// Records that init containers have given memory up.
    fn shrink_inits(&mut self, reuse: &Reuse) {
        for (container, blocks) in &reuse.inits {
            let Some(old) = self.own.get(container).filter(|h| h.memory != *blocks) else {
                continue;
            };
            let hold = ComputeHold {
                memory: blocks.clone(),
                ..old.clone()
            };
            self.draft(hold);
        }
    }

    fn draft(&mut self, hold: ComputeHold) {
        self.own.insert(hold.container.clone(), hold.clone());
        if let Some(drafts) = self.pending.drafts.get_mut(&self.number) {
            drafts.insert(hold.container.clone(), hold);
        }
    }
}

fn one(resource: &str, hints: Vec<TopologyHint>) -> ProviderHints {
    ProviderHints::from([(resource.to_owned(), Some(hints))])
}

fn memory_hints(
    memory: &MemoryState,
    request: &MemoryAmounts,
    held: Option<&[MemoryBlock]>,
    reuse: &MemoryReuse,
) -> ProviderHints {
    let Some(held) = held else {
        let hints = memory.hints(request, reuse);
        let kinds = request.keys();
        return kinds.map(|k| (k.clone(), Some(hints.clone()))).collect();
    };
    let of_kind = |(kind, size): (&String, &u64)| {
        // An init container that has handed memory on holds less than it asked for.
        let block = held.iter().find(|b| b.kind == *kind && b.size <= *size);
        let hints = block.map(|b| TopologyHint::new(b.nodes, true));
        (kind.clone(), Some(hints.into_iter().collect()))
    };
    request.iter().map(of_kind).collect()
}
