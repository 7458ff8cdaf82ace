//! Devices that ordinary init containers hand on inside their pod.

use std::collections::BTreeMap;

use super::DeviceSet;

/// Which kind of container an allocation was for; decides whether later containers may take its
/// devices over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerKind {
    /// Runs to its end before the next container starts: its devices are free for those.
    Init,
    /// An init container with restart policy Always: keeps its devices.
    Sidecar,
    /// An ordinary container: keeps its devices.
    App,
}

/// The devices of the pod under admission that later containers of the same pod may take over, by
/// resource. It knows one pod at a time.
#[derive(Debug, Default)]
pub struct ReuseTable {
    pod: String,
    resources: BTreeMap<String, DeviceSet>,
}

impl ReuseTable {
    /// Begins with a pod, by UID; entries of any other pod are forgotten.
    pub fn begin(&mut self, pod: &str) {
        if self.pod != pod {
            pod.clone_into(&mut self.pod);
            self.resources.clear();
        }
    }

    /// What may be taken over for `resource`.
    pub fn reusable(&self, resource: &str) -> DeviceSet {
        self.resources.get(resource).cloned().unwrap_or_default()
    }

    /// Books an allocation of the pod's next container. Containers are booked in the order in which
    /// they start.
    pub fn allocated(&mut self, resource: &str, kind: ContainerKind, devices: &DeviceSet) {
        let entry = self.resources.entry(resource.to_owned()).or_default();
        match kind {
            ContainerKind::Init => entry.extend(devices.iter().cloned()),
            ContainerKind::Sidecar | ContainerKind::App => {
                entry.retain(|id| !devices.contains(id));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ids: &[&str]) -> DeviceSet {
        ids.iter().map(|&id| id.into()).collect()
    }

    #[test]
    fn item_054_056_init_devices_are_handed_on_until_somebody_keeps_them() {
        let mut table = ReuseTable::default();
        table.begin("pod-1");
        table.allocated("r", ContainerKind::Sidecar, &set(&["a"]));
        assert_eq!(table.reusable("r"), set(&[]));
        table.allocated("r", ContainerKind::Init, &set(&["b", "c"]));
        assert_eq!(table.reusable("r"), set(&["b", "c"]));
        assert_eq!(table.reusable("other"), set(&[]));
        table.allocated("r", ContainerKind::App, &set(&["b"]));
        assert_eq!(table.reusable("r"), set(&["c"]));
        table.begin("pod-1");
        assert_eq!(table.reusable("r"), set(&["c"]));
        table.begin("pod-2");
        assert_eq!(table.reusable("r"), set(&[]));
    }
}
