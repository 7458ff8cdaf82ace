//! What happens to pods whose devices break: ignore, mark, restart or evict, by resource.

use std::collections::BTreeMap;
use std::str::FromStr;

use super::inventory::{Health, Presence};
use super::manager::Manager;

/// What happens to a pod one of whose devices is unhealthy or vanishes. Its status names the
/// device in any case (`allocatedResourcesStatus`). The loss of a plugin is not the loss of its
/// devices: pods stay as they are then.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UnhealthyPolicy {
    /// Nothing more.
    Ignore,
    /// Events on the pod say so, and say when the device is back. As the kubelet, with events.
    #[default]
    Mark,
    /// The containers that hold the device are killed too, once; what their restart policy says
    /// follows.
    Restart,
    /// The pod ends with the reason `UnhealthyDevice`; its controller makes another one.
    Evict,
}

/// A text that names no policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is none of ignore, mark, restart, evict")]
pub struct UnknownPolicy(String);

impl FromStr for UnhealthyPolicy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        match text {
            "ignore" => Ok(Self::Ignore),
            "mark" => Ok(Self::Mark),
            "restart" => Ok(Self::Restart),
            "evict" => Ok(Self::Evict),
            _ => Err(UnknownPolicy(text.to_owned())),
        }
    }
}

/// The policies of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnhealthyPolicies {
    /// Of resources that have none of their own.
    pub default: UnhealthyPolicy,
    /// By resource.
    pub resources: BTreeMap<String, UnhealthyPolicy>,
}

impl UnhealthyPolicies {
    /// The policy of a resource.
    pub fn of(&self, resource: &str) -> UnhealthyPolicy {
        self.resources
            .get(resource)
            .copied()
            .unwrap_or(self.default)
    }

    /// Takes in `POLICY` for all resources, or `RESOURCE=POLICY` for one.
    ///
    /// # Errors
    /// It names no policy.
    pub fn set(&mut self, text: &str) -> Result<(), UnknownPolicy> {
        match text.split_once('=') {
            Some((resource, policy)) => {
                self.resources.insert(resource.to_owned(), policy.parse()?);
            }
            None => self.default = text.parse()?,
        }
        Ok(())
    }
}

/// A device in a container's hands.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeldDevice {
    /// The container.
    pub container: String,
    /// The resource.
    pub resource: String,
    /// The device's ID.
    pub device: String,
    /// Why it cannot be used; nothing while it can, or while its plugin is away.
    pub broken: Option<&'static str>,
}

impl HeldDevice {
    /// The device in a sentence.
    pub fn describe(&self) -> String {
        format!("device {} of {}", self.device, self.resource)
    }
}

impl Manager {
    /// What the containers of a pod hold of device plugins whose word counts now: while a plugin
    /// is away nothing is known of its devices, and they are left out.
    pub(crate) fn held_devices(&self, uid: &str) -> Vec<HeldDevice> {
        let mut held: Vec<HeldDevice> = self.ledger.read(|t| {
            let containers = t.pods().get(uid).into_iter().flat_map(|p| &p.containers);
            let devices = containers.flat_map(|(container, c)| {
                c.devices.iter().flat_map(move |(resource, devices)| {
                    devices.devices.keys().map(move |id| HeldDevice {
                        container: container.clone(),
                        resource: resource.clone(),
                        device: id.as_str().to_owned(),
                        broken: None,
                    })
                })
            });
            devices.collect()
        });
        let state = self.state.lock();
        held.retain_mut(|device| {
            if state.inventory.presence(&device.resource) != Some(Presence::Live) {
                return false;
            }
            let id = device.device.as_str().into();
            device.broken = match state.inventory.health(&device.resource, &id) {
                Health::Healthy | Health::PluginGone => None,
                Health::Unhealthy => Some("the plugin says so"),
                Health::Unknown => Some("the plugin does not list it any more"),
            };
            true
        });
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_set_for_all_or_for_one() {
        let mut policies = UnhealthyPolicies::default();
        assert_eq!(policies.of("a.com/x"), UnhealthyPolicy::Mark);
        policies.set("ignore").unwrap();
        policies.set("a.com/x=evict").unwrap();
        assert_eq!(policies.of("a.com/x"), UnhealthyPolicy::Evict);
        assert_eq!(policies.of("a.com/y"), UnhealthyPolicy::Ignore);
        assert!(policies.set("a.com/x=kill").is_err() && policies.set("").is_err());
    }
}
