//! What becomes of a pod one of whose devices breaks.

use super::Worker;
use crate::runtime_state::{PodRuntime, State};
use crate::status::NodeDecision;
use davit_containermanager::devices::{HeldDevice, UnhealthyPolicy};
use davit_pods::pod::PodExt;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What a pod's worker has seen of the pod's devices.
#[derive(Debug, Default)]
pub(super) struct Watched(BTreeMap<(String, String, String), bool>);

/// A change of one device.
#[derive(Debug, PartialEq, Eq)]
struct Change {
    device: HeldDevice,
    /// It worked before; otherwise it was broken when it was first seen.
    seen_working: bool,
}

impl Watched {
    /// Takes in what is known now; returns what has changed, breaks and mends.
    fn look(&mut self, held: Vec<HeldDevice>) -> Vec<Change> {
        let mut changes = Vec::new();
        for device in held {
            let key = (
                device.container.clone(),
                device.resource.clone(),
                device.device.clone(),
            );
            let works = device.broken.is_none();
            let before = self.0.insert(key, works);
            if before != Some(works) && (before.is_some() || !works) {
                changes.push(Change {
                    seen_working: before == Some(true),
                    device,
                });
            }
        }
        changes
    }
}

/// What the pod's devices make necessary.
pub(super) enum Outcome {
    /// Nothing that the rest has to know of.
    GoOn,
    /// Containers were killed.
    Killed,
    /// The pod is over.
    Over(NodeDecision),
}

impl Worker {
    /// Looks at the pod's devices and does what the policies of their resources say.
    pub(super) async fn heed_devices(&mut self, runtime: &PodRuntime) -> Outcome {
        let held = self.ctx.devices.held_devices(&self.uid);
        let policies = &self.ctx.options.unhealthy_devices;
        let evicting = held
            .iter()
            .find(|d| d.broken.is_some() && policies.of(&d.resource) == UnhealthyPolicy::Evict);
        if let Some(device) = evicting {
            let why = device.broken.unwrap_or_default();
            let message = format!("The {} is unhealthy: {why}", device.describe());
            self.ctx
                .recorder
                .warning(&self.pod.reference(), "UnhealthyDevice", &message);
            return Outcome::Over(NodeDecision {
                reason: "UnhealthyDevice".to_owned(),
                message,
                disruption: true,
            });
        }
        let mut restart: BTreeMap<String, String> = BTreeMap::new();
        for change in self.devices.look(held) {
            let Change {
                device,
                seen_working,
            } = change;
            let policy = self.ctx.options.unhealthy_devices.of(&device.resource);
            if policy == UnhealthyPolicy::Ignore {
                continue;
            }
            self.tell(&device);
            // One that was broken when the node agent started has had its restart.
            if device.broken.is_some() && policy == UnhealthyPolicy::Restart && seen_working {
                let message = format!(
                    "Container {} holds the unhealthy {}",
                    device.container,
                    device.describe()
                );
                restart.entry(device.container).or_insert(message);
            }
        }
        if restart.is_empty() {
            return Outcome::GoOn;
        }
        let grace = self
            .pod
            .pod_spec()
            .termination_grace_period_seconds
            .unwrap_or(30);
        let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
        let mut killed = BTreeSet::new();
        for record in runtime
            .containers
            .iter()
            .filter(|c| c.state == State::Running)
        {
            if let Some(message) = restart.get(&record.name) {
                self.kill_container(runtime, record, grace, Some(message))
                    .await;
                killed.insert(&record.name);
            }
        }
        if killed.is_empty() {
            Outcome::GoOn
        } else {
            Outcome::Killed
        }
    }

    /// An event on the pod about one device.
    fn tell(&self, device: &HeldDevice) {
        let reference = self.pod.reference();
        let what = device.describe();
        match device.broken {
            Some(why) => {
                let text = format!("The {what} is unhealthy: {why}");
                self.ctx
                    .recorder
                    .warning(&reference, "UnhealthyDevice", text);
            }
            None => {
                let text = format!("The {what} is healthy again");
                self.ctx.recorder.normal(&reference, "HealthyDevice", text);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(broken: &[bool]) -> Vec<HeldDevice> {
        let device = |(n, broken): (usize, &bool)| HeldDevice {
            container: "main".to_owned(),
            resource: "a.com/x".to_owned(),
            device: n.to_string(),
            broken: broken.then_some("so"),
        };
        broken.iter().enumerate().map(device).collect()
    }

    fn seen(changes: &[Change]) -> Vec<(&str, bool, bool)> {
        let one = |c: &Change| (c.device.broken.is_some(), c.seen_working);
        changes
            .iter()
            .map(|c| (c.device.device.as_str(), one(c).0, one(c).1))
            .collect()
    }

    #[test]
    fn each_change_is_seen_once() {
        let mut watched = Watched::default();
        // Broken when first seen: told, but not taken for a change under the pod.
        assert_eq!(
            seen(&watched.look(held(&[false, true]))),
            [("1", true, false)]
        );
        assert_eq!(seen(&watched.look(held(&[false, true]))), []);
        assert_eq!(
            seen(&watched.look(held(&[true, true]))),
            [("0", true, true)]
        );
        // While the plugin is away nothing is known.
        assert_eq!(seen(&watched.look(Vec::new())), []);
        assert_eq!(
            seen(&watched.look(held(&[true, false]))),
            [("1", false, false)]
        );
        assert_eq!(
            seen(&watched.look(held(&[true, true]))),
            [("1", true, true)]
        );
    }
}
