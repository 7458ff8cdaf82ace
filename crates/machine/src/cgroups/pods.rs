//! The cgroups above containers: all pods, the classes of service, each pod.

use super::{CgroupDriver, Keeper, ReservedError, ReservedShare, limits};
use davit_oci::cgroup::{Cgroup, Error, Hierarchies, Limits};
use davit_pods::resources::{Amounts, CpuQuotas, Qos};
use k8s_openapi::api::core::v1::Pod;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::time::{Duration, Instant};

/// How long the end of a pod's last processes is waited for before its cgroup goes.
const PATIENCE: Duration = Duration::from_secs(1);

/// What an agent does with the cgroups above containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupOptions {
    /// Whether all pods together are held to what the system leaves (`enforceNodeAllocatable`).
    pub enforce_pods: bool,
    /// What the system is left (`systemReserved`).
    pub system: ReservedShare,
    /// What the node agent is left (`kubeReserved`).
    pub kube: ReservedShare,
    /// How many hundredths of the memory that pods of better classes request others may not have (`qosReserved`).
    pub qos_reserved: Option<i64>,
    /// The machine's memory in bytes; 0 where that is not to be counted on.
    pub memory: i64,
    /// How limits of CPU become quotas.
    pub quotas: CpuQuotas,
    /// Processes and threads a pod may have (`podPidsLimit`).
    pub pod_pids: Option<i64>,
    /// Sizes of the machine's huge pages in bytes.
    pub huge_pages: Vec<u64>,
}

impl Default for CgroupOptions {
    fn default() -> Self {
        Self {
            enforce_pods: true,
            system: ReservedShare::default(),
            kube: ReservedShare::default(),
            qos_reserved: None,
            memory: 0,
            quotas: CpuQuotas::default(),
            pod_pids: None,
            huge_pages: Vec::new(),
        }
    }
}

impl CgroupOptions {
    /// What pods may not have, by resource name.
    #[must_use]
    pub fn reserved(&self) -> Amounts {
        let mut both = self.system.amounts.clone();
        for (name, amount) in &self.kube.amounts {
            *both.entry(name.clone()).or_default() += amount;
        }
        both
    }
}

/// Sets the limits of the cgroups above containers. Names and values are the kubelet's.
#[derive(Debug, Clone)]
pub struct PodCgroups {
    hierarchies: Hierarchies,
    root: String,
    options: CgroupOptions,
    took: Family<CgroupOperation, Histogram, fn() -> Histogram>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CgroupOperation {
    operation_type: &'static str,
}

/// 5 ms to 10 s, as the kubelet's.
fn seconds() -> Histogram {
    Histogram::new([
        0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    ])
}

impl PodCgroups {
    /// The groups below `root`.
    ///
    /// # Errors
    /// The machine has no cgroups.
    pub fn new(root: &str, options: CgroupOptions) -> Result<Self, Error> {
        Ok(Self {
            hierarchies: Hierarchies::detect()?,
            root: root.to_owned(),
            options,
            took: Family::new_with_constructor(seconds as fn() -> Histogram),
        })
    }

    /// Adds how long making, limiting and removing groups takes to a registry that gives it its prefix.
    pub fn register_metrics(&self, registry: &mut Registry) {
        registry.register(
            "cgroup_manager_duration_seconds",
            "Duration in seconds for cgroup manager operations. Broken down by method.",
            self.took.clone(),
        );
    }

    fn measure<T>(&self, operation_type: &'static str, operation: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let done = operation();
        let took = begun.elapsed().as_secs_f64();
        let labels = CgroupOperation { operation_type };
        self.took.get_or_create(&labels).observe(took);
        done
    }

    /// Whether all pods together are limited.
    pub fn enforces(&self) -> bool {
        self.options.enforce_pods
    }

    fn group(&self, class: Qos, uid: Option<&str>) -> Cgroup {
        // With systemd the groups are its own, and set by asking it.
        let path = CgroupDriver::Cgroupfs.path(&self.root, class, uid);
        self.hierarchies.cgroup(&path)
    }

    fn set(&self, group: &Cgroup, limits: &Limits) -> Result<(), Error> {
        if !group.missing().is_empty() {
            self.measure("create", || group.create())?;
        }
        self.measure("update", || group.apply(limits))
    }

    /// Makes the groups of all pods and of the classes on a machine with these many thousandths of CPUs and bytes.
    ///
    /// # Errors
    /// A group cannot be made or limited.
    pub fn set_up(&self, cpus: i64, memory: i64) -> Result<(), Error> {
        let all = self.group(Qos::Guaranteed, None);
        all.create()?;
        if self.options.enforce_pods {
            all.apply(&limits::of_all_pods(cpus, memory, &self.options.reserved()))?;
        }
        self.set(
            &self.group(Qos::BestEffort, None),
            &limits::of_best_effort(),
        )?;
        self.group(Qos::Burstable, None).create()
    }

    /// Holds the system's and the agent's cgroups to what is kept for them, where they are to be; those that are.
    ///
    /// # Errors
    /// One of them is not there, or cannot be limited.
    pub fn enforce_reserved(&self) -> Result<Vec<(Keeper, &str)>, ReservedError> {
        let mut held = Vec::new();
        for (keeper, share) in [
            (Keeper::System, &self.options.system),
            (Keeper::Kube, &self.options.kube),
        ] {
            if share.enforce(&self.hierarchies, keeper)? {
                held.push((keeper, share.cgroup.as_str()));
            }
        }
        Ok(held)
    }

    /// Gives the burstable pods together the weight of their requests, and leaves them and those that request nothing the memory
    /// that is not kept for others.
    ///
    /// # Errors
    /// A group cannot be made or limited.
    pub fn weigh<'a>(&self, pods: impl Iterator<Item = &'a Pod> + Clone) -> Result<(), Error> {
        let weight = limits::of_burstable(pods.clone());
        self.set(&self.group(Qos::Burstable, None), &weight)?;
        let (Some(percent), true) = (self.options.qos_reserved, self.options.memory > 0) else {
            return Ok(());
        };
        let reserved = self.options.reserved();
        let memory = self.options.memory - reserved.get("memory").copied().unwrap_or(0);
        let [burstable, best_effort] = limits::of_classes(memory, percent, pods);
        for (class, limits) in [(Qos::Burstable, burstable), (Qos::BestEffort, best_effort)] {
            // More is in use than they may have: nobody else is to suffer from that.
            if let Err(error) = self.set(&self.group(class, None), &limits) {
                tracing::warn!(%error, class = class.as_str(), "memory is not kept for pods of better classes");
            }
        }
        Ok(())
    }

    /// Whether classes of pods are held to memory that depends on what the others request.
    #[must_use]
    pub fn keeps_memory(&self) -> bool {
        self.options.qos_reserved.is_some()
    }

    /// Makes a pod's group, or brings its limits to what the pod has now. `unthrottled` as a container of it has CPUs
    /// to itself.
    ///
    /// # Errors
    /// The group cannot be made or limited.
    pub fn ensure(&self, pod: &Pod, unthrottled: bool) -> Result<(), Error> {
        self.set(&self.group_of(pod), &self.limits(pod, unthrottled))
    }

    /// Gives a pod room for containers of the one size and of the other.
    ///
    /// # Errors
    /// The group cannot be made or limited.
    pub fn widen(&self, from: &Pod, to: &Pod, unthrottled: bool) -> Result<(), Error> {
        let of = |pod| self.limits(pod, unthrottled);
        self.set(&self.group_of(to), &limits::either(&of(from), &of(to)))
    }

    fn limits(&self, pod: &Pod, unthrottled: bool) -> Limits {
        Limits {
            hugepages: limits::huge_pages(pod, &self.options.huge_pages),
            ..limits::of_pod(pod, unthrottled, self.options.pod_pids, self.options.quotas)
        }
    }

    /// The cgroup of all pods.
    pub fn of_all(&self) -> Cgroup {
        self.group(Qos::Guaranteed, None)
    }

    /// The cgroup that this process is in, where it has one to itself.
    pub fn own(&self) -> Option<Cgroup> {
        self.hierarchies.own()
    }

    /// The cgroup of that path as it is now; nothing is made.
    pub fn at(&self, path: &str) -> Cgroup {
        self.hierarchies.cgroup(path)
    }

    fn group_of(&self, pod: &Pod) -> Cgroup {
        let path = CgroupDriver::Cgroupfs.pod_cgroup(&self.root, pod);
        self.hierarchies.cgroup(&path)
    }

    /// Removes the group of a pod that has ended, of whichever class it was.
    ///
    /// # Errors
    /// Something is still in it.
    pub fn remove(&self, uid: &str) -> Result<(), Error> {
        self.measure("destroy", || {
            for class in [Qos::Guaranteed, Qos::Burstable, Qos::BestEffort] {
                self.group(class, Some(uid)).remove(PATIENCE)?;
            }
            Ok(())
        })
    }
}
