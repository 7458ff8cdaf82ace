//! The hint a container's devices, CPUs and memory are to honour, and the choice of the latter
//! two: one decision over everything the container (or pod) asks for.

use std::collections::{BTreeMap, BTreeSet};

use davit_topology::cpu::CpuError;
use davit_topology::devices::{DeviceMap, DeviceSet, HintInput, ReuseTable, device_hints};
use davit_topology::memory::MemoryState;
use davit_topology::{NumaMask, PolicyKind, ProviderHints, TopologyHint};

use super::admission::{Draft, Failure};
use super::manager::Manager;
use super::requests::{self, ClaimPlace, Request, pod_total};
use crate::allocation::{PodName, Table};
use crate::answer::Rejection;
use crate::compute::{ComputeError, Desk, Misfit, Need, Part};

impl Manager {
    /// Decides where the container's resources come from and chooses its CPUs and memory.
    /// `requests` are those of the whole pod.
    ///
    /// # Errors
    /// The policy refuses the best placement there is, or there is too little.
    pub(super) fn decide(
        &self,
        pod: &PodName,
        request: &Request,
        requests: &[Request],
        draft: &mut Draft<'_>,
    ) -> Result<Option<NumaMask>, Failure> {
        let mut desk = self.compute.desk(&self.ledger, &draft.ticket, &pod.uid);
        let hint = self.hint(pod, request, requests, draft, &desk)?;
        let before = desk.cpus_of(&request.container).cloned();
        let given = desk.give(pod, request, hint, &mut draft.compute_reuse);
        self.metrics.pinned(
            self.compute.cpu().is_some() && request.cpus > 0,
            self.compute.memory().is_some() && !request.memory.is_empty(),
            given.as_ref().err(),
        );
        if let Err(error) = given {
            if matches!(&error, ComputeError::Cpu(CpuError::Smt(_))) {
                self.metrics.aligned("container", "physical_cpu", false);
            }
            let misfit = self.misfit(&desk, Some(request), std::slice::from_ref(request));
            drop(desk);
            let rejection = Rejection {
                misfit: Some(Box::new(misfit)),
                ..refusal(request, &error)
            };
            return Err(self.refuse_or_wait(rejection));
        }
        if self.guarantees_alignment() && !self.compute.pod_scope {
            self.metrics.aligned("container", "numa_node", true);
        }
        let chosen = desk
            .cpus_of(&request.container)
            .filter(|now| before.as_ref() != Some(now));
        if let (Some(policy), Some(cpus)) = (self.compute.cpu(), chosen) {
            if policy.options.full_pcpus_only {
                self.metrics.aligned("container", "physical_cpu", true);
            }
            if policy.options.prefer_uncore_cache {
                let aligned = policy.topology.cache_count(cpus) == 1;
                self.metrics.aligned("container", "uncore_cache", aligned);
            }
        }
        Ok(hint.mask)
    }

    /// Whether what is admitted is on one NUMA node.
    fn guarantees_alignment(&self) -> bool {
        self.compute.topology.kind == PolicyKind::SingleNumaNode
    }

    fn hint(
        &self,
        pod: &PodName,
        request: &Request,
        requests: &[Request],
        draft: &mut Draft<'_>,
        desk: &Desk<'_>,
    ) -> Result<TopologyHint, Failure> {
        let (policy, machine) = (self.compute.topology, &self.compute.machine);
        if policy.kind == PolicyKind::None || machine.nodes().is_empty() {
            return Ok(TopologyHint::any(false));
        }
        let pod_scope = self.compute.pod_scope;
        if let Some(hint) = draft.pod_hint.filter(|_| pod_scope) {
            return Ok(hint);
        }
        let (devices, others) = if pod_scope {
            (
                self.pod_device_hints(&pod.uid, requests),
                desk.pod_hints(requests),
            )
        } else {
            (
                self.container_device_hints(&pod.uid, request, &draft.reuse),
                desk.hints(request, &draft.compute_reuse),
            )
        };
        let (container, concerned) = if pod_scope {
            (None, requests)
        } else {
            (Some(request), std::slice::from_ref(request))
        };
        let claims = requests::claims(concerned);
        let mut providers = vec![devices];
        providers.extend(others);
        if !claims.is_empty() {
            providers.push(claim_hints(&claims));
        }
        let merged = policy.merge(machine, &providers);
        self.metrics.topology_request(merged.admit);
        if self.guarantees_alignment() && (pod_scope || !merged.admit) {
            let scope = if pod_scope { "pod" } else { "container" };
            self.metrics.aligned(scope, "numa_node", merged.admit);
        }
        if !merged.admit {
            let mut message = "Resources cannot be allocated with Topology locality".to_owned();
            if !claims.is_empty() {
                let fixed: Vec<String> = claims.iter().map(where_it_is).collect();
                message = format!("{message}: {}", fixed.join("; "));
            }
            return Err(self.refuse_or_wait(Rejection {
                reason: "TopologyAffinityError".to_owned(),
                message,
                container: container.map(|r| r.container.clone()),
                resource: None,
                misfit: Some(Box::new(self.misfit(desk, container, concerned))),
            }));
        }
        draft.pod_hint = Some(merged.hint);
        Ok(merged.hint)
    }

    /// What is lacking may be in the hands of pods that are ending: then it is waited for.
    fn refuse_or_wait(&self, rejection: Rejection) -> Failure {
        // Nothing that anybody gives back helps a request that can never be met.
        let misfit = rejection.misfit.as_ref();
        let possible = misfit.is_none_or(|m| m.options.iter().any(|o| o.possible && !o.is_met()));
        let ending = self.ending_pods();
        let holds = |t: &Table| ending.iter().any(|uid| t.pods().contains_key(uid));
        if possible && !ending.is_empty() && self.ledger.read(holds) {
            Failure::Held(rejection)
        } else {
            Failure::Rejected(rejection)
        }
    }

    fn container_device_hints(
        &self,
        uid: &str,
        request: &Request,
        reuse: &ReuseTable,
    ) -> ProviderHints {
        let hints = request.resources.iter().filter_map(|(resource, &count)| {
            let held: Option<DeviceSet> = self.ledger.read(|t| {
                let held = t.held(uid, &request.container, resource)?;
                Some(held.devices.keys().cloned().collect())
            });
            self.resource_hints(resource, count, held.as_ref(), &reuse.reusable(resource))
        });
        hints.collect()
    }

    fn pod_device_hints(&self, uid: &str, requests: &[Request]) -> ProviderHints {
        let names: BTreeSet<&String> = requests.iter().flat_map(|r| r.resources.keys()).collect();
        let hints = names.into_iter().filter_map(|resource| {
            let of = |r: &Request| r.resources.get(resource).copied().unwrap_or(0);
            let count = pod_total(requests.iter().map(|r| (r.kind, of(r))));
            let held: DeviceSet = self.ledger.read(|t| {
                let containers = t.pods().get(uid).into_iter().flat_map(|p| &p.containers);
                let held = containers.filter_map(|(_, c)| c.devices.get(resource));
                held.flat_map(|h| h.devices.keys().cloned()).collect()
            });
            let held = (!held.is_empty()).then_some(&held);
            self.resource_hints(resource, count, held, &DeviceSet::new())
        });
        hints.collect()
    }

    fn resource_hints(
        &self,
        resource: &str,
        request: usize,
        held: Option<&DeviceSet>,
        reusable: &DeviceSet,
    ) -> Option<(String, Option<Vec<TopologyHint>>)> {
        let list = self.list_of(resource)?;
        let devices: DeviceMap = list.iter().map(|(id, d)| (id.clone(), d.numa)).collect();
        let free: DeviceSet = self.free(resource).into_keys().collect();
        let input = HintInput {
            machine: &self.compute.machine,
            devices: &devices,
            available: &free,
            reusable,
            held,
            request,
        };
        Some((resource.to_owned(), device_hints(input)))
    }

    /// What is lacking where, for the people who have to free it.
    fn misfit(&self, desk: &Desk<'_>, container: Option<&Request>, requests: &[Request]) -> Misfit {
        let mut needs = Vec::new();
        let total =
            |of: &dyn Fn(&Request) -> u64| pod_total(requests.iter().map(|r| (r.kind, of(r))));
        let cpus = total(&|r| r.cpus as u64);
        let kinds: BTreeSet<&String> = requests.iter().flat_map(|r| r.memory.keys()).collect();
        let names: BTreeSet<&String> = requests.iter().flat_map(|r| r.resources.keys()).collect();
        self.ledger.read(|t| {
            if cpus > 0 && self.compute.cpu().is_some() {
                needs.push(self.cpu_need(desk, t, cpus));
            }
            for kind in kinds.into_iter().filter(|_| desk.memory().is_some()) {
                let requested = total(&|r| r.memory.get(kind).copied().unwrap_or(0));
                needs.push(memory_need(desk, t, kind, requested));
            }
        });
        for resource in names {
            let requested = total(&|r| r.resources.get(resource).map_or(0, |n| *n as u64));
            needs.push(self.device_need(resource, requested));
        }
        needs.extend(requests::claims(requests).iter().map(claim_need));
        Misfit::new(
            self.compute.topology.kind,
            container.is_none(),
            container.map(|r| r.container.clone()),
            self.compute.machine.nodes(),
            &needs,
        )
    }

    fn cpu_need(&self, desk: &Desk<'_>, table: &Table, requested: u64) -> Need {
        let mut need = Need {
            name: "cpu".to_owned(),
            requested,
            ..Need::default()
        };
        let Some(policy) = self.compute.cpu() else {
            return need;
        };
        let free = desk.free_cpus();
        for node in policy.topology.node_mask().iter() {
            let nodes = NumaMask::from_bits(1 << node);
            let cpus = policy.topology.in_nodes(nodes);
            let mut add = |amount: usize, holder| {
                if amount > 0 {
                    need.parts.push(Part {
                        nodes,
                        amount: amount as u64,
                        holder,
                    });
                }
            };
            add(free.intersection(&cpus).len(), None);
            for (pod, name, held) in table.containers() {
                let who = (pod.namespace.clone(), pod.name.clone(), name.clone());
                add(held.cpus.intersection(&cpus).len(), Some(who));
            }
        }
        need
    }

    fn device_need(&self, resource: &str, requested: u64) -> Need {
        let mut holders = BTreeMap::new();
        self.ledger.read(|t| {
            for (pod, name, held) in t.containers() {
                for id in held
                    .devices
                    .get(resource)
                    .iter()
                    .flat_map(|h| h.devices.keys())
                {
                    let who = (pod.namespace.clone(), pod.name.clone(), name.clone());
                    holders.insert(id.clone(), who);
                }
            }
        });
        let healthy = self.healthy_of(resource).into_iter();
        let part = |(id, nodes)| Part {
            nodes,
            amount: 1,
            holder: holders.remove(&id),
        };
        Need {
            name: resource.to_owned(),
            requested,
            parts: healthy.map(part).collect(),
            fixed: None,
        }
    }
}

/// One fixed hint a claim.
fn claim_hints(claims: &[ClaimPlace]) -> ProviderHints {
    let hint = |claim: &ClaimPlace| {
        let hints = vec![TopologyHint::new(claim.nodes(), true)];
        (claim.claim.clone(), Some(hints))
    };
    claims.iter().map(hint).collect()
}

/// `claim C holds DRIVER/POOL/DEVICE on NUMA node N, …`.
fn where_it_is(claim: &ClaimPlace) -> String {
    let devices = claim.devices.iter().map(|(device, nodes)| {
        let nodes: Vec<String> = nodes.iter().map(|n| n.to_string()).collect();
        format!("{device} on NUMA node {}", nodes.join(","))
    });
    let devices: Vec<String> = devices.collect();
    format!("claim {} holds {}", claim.claim, devices.join(", "))
}

fn claim_need(claim: &ClaimPlace) -> Need {
    let part = |nodes: &NumaMask| Part {
        nodes: *nodes,
        amount: 1,
        holder: None,
    };
    Need {
        name: format!("claim {}", claim.claim),
        requested: claim.devices.len() as u64,
        parts: claim.devices.values().map(part).collect(),
        fixed: Some(where_it_is(claim)),
    }
}

fn memory_need(desk: &Desk<'_>, table: &Table, kind: &str, requested: u64) -> Need {
    let nodes = desk.memory().into_iter().flat_map(MemoryState::nodes);
    let free = nodes.filter_map(|(id, n)| {
        Some(Part {
            nodes: NumaMask::single(*id).ok()?,
            amount: n.memory.get(kind)?.free,
            holder: None,
        })
    });
    let held = table.containers().flat_map(|(pod, name, c)| {
        let blocks = c.memory.iter().filter(|b| b.kind == kind && b.size > 0);
        blocks.map(move |b| Part {
            nodes: b.nodes,
            amount: b.size,
            holder: Some((pod.namespace.clone(), pod.name.clone(), name.clone())),
        })
    });
    Need {
        name: kind.to_owned(),
        requested,
        parts: free.chain(held).collect(),
        fixed: None,
    }
}

fn refusal(request: &Request, error: &ComputeError) -> Rejection {
    use davit_topology::cpu::CpuError;
    let (reason, message) = match error {
        ComputeError::Cpu(CpuError::Smt(e)) => ("SMTAlignmentError", e.to_string()),
        e => (
            "UnexpectedAdmissionError",
            format!("Allocate failed due to {e}, which is unexpected"),
        ),
    };
    let resource = match error {
        ComputeError::Cpu(_) => "cpu",
        ComputeError::Memory(_) => "memory",
    };
    Rejection {
        reason: reason.to_owned(),
        message,
        container: Some(request.container.clone()),
        resource: Some(resource.to_owned()),
        misfit: None,
    }
}
