//! Who goes first, and what is said about it.

use super::measure::OnDisk;
use super::signals::{Condition, Signal, Threshold};
use super::state::Observations;
use davit_pods::pod::PodExt;
use davit_pods::resources::{amount, pod_requests};
use k8s_openapi::api::core::v1::Pod;
use std::cmp::{Ordering, Reverse};
use std::sync::Arc;

/// Pods of this priority are critical; they are not evicted.
pub(crate) const CRITICAL: i32 = 2_000_000_000;

/// What one container uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Name.
    pub container: String,
    /// Working set in bytes.
    pub memory: i64,
    /// Writable layer and logs. Inodes are the layer's.
    pub disk: OnDisk,
}

/// A pod that could go.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    /// The pod.
    pub pod: Arc<Pod>,
    /// What its containers use; `None` when nobody knows.
    pub containers: Option<Vec<Usage>>,
    /// What its volumes use.
    pub volumes: OnDisk,
    /// Its process numbers, where those ran short.
    pub processes: Option<i64>,
}

/// Whether a pod may not be evicted.
pub(crate) use davit_pods::resources::is_critical;

impl Candidate {
    fn sum(&self, of: impl Fn(&Usage) -> i64) -> Option<i64> {
        Some(self.containers.as_ref()?.iter().map(of).sum())
    }

    /// All it has on the node's disks.
    fn on_disk(&self) -> Option<OnDisk> {
        let containers = self.containers.as_ref()?.iter();
        Some(containers.fold(self.volumes, |sum, usage| sum.with(usage.disk)))
    }

    /// Whether it uses more of what ran short than anybody could count: containers decide how long that takes.
    fn is_beyond_counting(&self, signal: Signal) -> bool {
        signal.condition() == Condition::Disk && self.on_disk().is_some_and(|all| all.in_part)
    }

    /// What the pod uses of what ran short.
    fn usage(&self, signal: Signal) -> Option<i64> {
        match signal {
            Signal::MemoryAvailable => self.sum(|u| u.memory),
            Signal::NodefsAvailable | Signal::ImagefsAvailable => Some(self.on_disk()?.bytes),
            Signal::NodefsInodesFree | Signal::ImagefsInodesFree => Some(self.on_disk()?.inodes),
            Signal::PidAvailable => self.processes,
        }
    }

    /// What it asked for of it. Inodes and processes cannot be asked for.
    fn request(&self, signal: Signal) -> i64 {
        match signal.resource() {
            name @ ("memory" | "ephemeral-storage") => {
                pod_requests(&self.pod).get(name).copied().unwrap_or(0)
            }
            _ => 0,
        }
    }
}

/// Orders pods: those beyond their requests first, then by priority, then those that use most beyond their requests. What
/// cannot be counted is more than anything that can.
pub(crate) fn sort(candidates: &mut [Candidate], signal: Signal) {
    let key = |c: &Candidate| {
        let (usage, request) = (c.usage(signal), c.request(signal));
        let priority = c.pod.pod_spec().priority.unwrap_or(0);
        // One of whom nothing is known goes first.
        let known = usage.is_some();
        let beyond = usage.map_or(0, |usage| usage.saturating_sub(request));
        let uncounted = c.is_beyond_counting(signal);
        let exceeds = uncounted || (signal != Signal::PidAvailable && beyond > 0);
        let most = Reverse((uncounted, beyond));
        (known, Reverse(exceeds), priority, most)
    };
    candidates.sort_by(|a, b| match key(a).cmp(&key(b)) {
        Ordering::Equal => a.pod.uid().cmp(b.pod.uid()),
        other => other,
    });
}

/// What the pod's status and event say, and the event's annotations.
#[must_use]
pub(crate) fn message(
    candidate: &Candidate,
    threshold: &Threshold,
    observations: &Observations,
) -> (String, Vec<(&'static str, String)>) {
    let resource = threshold.signal.resource();
    let mut text = format!("The node was low on resource: {resource}. ");
    if let Some(seen) = observations.get(&threshold.signal) {
        let wanted = threshold.value.of(seen.capacity);
        let (wanted, available) = (binary(wanted), binary(seen.available));
        text += &format!("Threshold quantity: {wanted}, available: {available}. ");
    }
    let (mut names, mut amounts) = (Vec::new(), Vec::new());
    for usage in candidate.containers.iter().flatten() {
        let used = match resource {
            "memory" => usage.memory,
            "ephemeral-storage" => usage.disk.bytes,
            _ => continue,
        };
        let Some((_, container)) = candidate.pod.container(&usage.container) else {
            continue;
        };
        let requests = container
            .resources
            .as_ref()
            .and_then(|r| r.requests.as_ref());
        let request = requests.and_then(|r| r.get(resource));
        if used > request.map_or(0, |q| amount(resource, q)) {
            let request = request.map_or("0", |q| q.0.as_str());
            let (name, used) = (&usage.container, binary(used));
            text += &format!(
                "Container {name} was using {used}, request is {request}, has larger consumption of {resource}. "
            );
            names.push(name.clone());
            amounts.push(used);
        }
    }
    let annotations = vec![
        ("offending_containers", names.join(",")),
        ("offending_containers_usage", amounts.join(",")),
        ("starved_resource", resource.to_owned()),
    ];
    (text, annotations)
}

/// An amount as Go writes it: by the largest power of 1024 that divides it.
pub(super) fn binary(amount: i64) -> String {
    let (mut rest, mut unit) = (amount, 0);
    const UNITS: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    while rest != 0 && rest % 1024 == 0 && unit + 1 < UNITS.len() {
        rest /= 1024;
        unit += 1;
    }
    format!("{rest}{}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::super::signals::Value;
    use super::super::state::Observation;
    use super::*;
    use serde_json::json;
    use std::time::Duration;

    fn candidate(name: &str, priority: i32, request: &str, memory: Option<i64>) -> Candidate {
        let pod = serde_json::from_value(json!({
            "metadata": {"name": name, "uid": name},
            "spec": {"priority": priority, "containers": [
                {"name": "c", "resources": {"requests": {"memory": request}}}]},
        }));
        let usage = |memory| Usage {
            container: "c".to_owned(),
            memory,
            ..Usage::default()
        };
        Candidate {
            pod: Arc::new(pod.unwrap()),
            containers: memory.map(|memory| vec![usage(memory)]),
            volumes: OnDisk::default(),
            processes: None,
        }
    }

    #[test]
    fn order_of_eviction() {
        let mut all = vec![
            candidate("modest", 0, "100", Some(50)),
            candidate("greedy", 0, "100", Some(300)),
            candidate("greedier", 0, "100", Some(400)),
            candidate("important", 9, "100", Some(900)),
            candidate("unknown", 9, "100", None),
        ];
        sort(&mut all, Signal::MemoryAvailable);
        let names: Vec<&str> = all.iter().map(|c| c.pod.uid()).collect();
        assert_eq!(
            names,
            ["unknown", "greedier", "greedy", "important", "modest"]
        );
        // Of process numbers nothing can be asked for: after the priority the number decides.
        let processes = |name: &str, priority, processes| Candidate {
            processes: Some(processes),
            ..candidate(name, priority, "1", Some(1))
        };
        let mut all = vec![
            processes("important", 9, 900),
            processes("few", 0, 3),
            processes("many", 0, 400),
        ];
        sort(&mut all, Signal::PidAvailable);
        let names: Vec<&str> = all.iter().map(|c| c.pod.uid()).collect();
        assert_eq!(names, ["many", "few", "important"]);
        assert!(is_critical(&candidate("s", CRITICAL, "1", None).pod));
    }

    /// Who makes so many files that nobody counts them all is no small one.
    #[test]
    fn what_cannot_be_counted_is_more_than_what_can() {
        let on_disk = |bytes, in_part| OnDisk {
            bytes,
            inodes: bytes,
            in_part,
        };
        let has = |name: &str, priority, layer: OnDisk, volumes: OnDisk| {
            let mut candidate = candidate(name, priority, "1", Some(1));
            candidate.containers.as_mut().unwrap()[0].disk = layer;
            Candidate {
                volumes,
                ..candidate
            }
        };
        let all = [
            has("large", 0, on_disk(900, false), OnDisk::default()),
            has("layer", 0, on_disk(3, true), OnDisk::default()),
            has("volume", 0, OnDisk::default(), on_disk(4, true)),
            has("important", 9, on_disk(5, true), OnDisk::default()),
            has("nothing", 0, OnDisk::default(), OnDisk::default()),
        ];
        for signal in [Signal::NodefsAvailable, Signal::ImagefsInodesFree] {
            let mut all = all.clone();
            sort(&mut all, signal);
            let names: Vec<&str> = all.iter().map(|c| c.pod.uid()).collect();
            let wanted = ["volume", "layer", "large", "important", "nothing"];
            assert_eq!(names, wanted, "{signal:?}");
        }
        // Of memory that says nothing.
        let mut all = all.to_vec();
        sort(&mut all, Signal::MemoryAvailable);
        assert_eq!(all[0].pod.uid(), "large");
    }

    #[test]
    fn the_message_is_the_kubelets() {
        let threshold = Threshold {
            signal: Signal::MemoryAvailable,
            value: Value::Amount(100 << 20),
            grace: Duration::ZERO,
            min_reclaim: None,
        };
        let seen = Observation {
            available: 50 << 10,
            capacity: 1 << 30,
        };
        let observations = [(Signal::MemoryAvailable, seen)].into();
        let pod = candidate("p", 0, "1Mi", Some(5 << 20));
        let (text, annotations) = message(&pod, &threshold, &observations);
        assert_eq!(
            text,
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Ki. \
             Container c was using 5Mi, request is 1Mi, has larger consumption of memory. "
        );
        assert_eq!(annotations[0], ("offending_containers", "c".to_owned()));
        assert_eq!(annotations[2].1, "memory");
    }
}
