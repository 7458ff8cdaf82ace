//! A simulated plugin: devices that are only a list, answers by the file, and faults.

use std::sync::Arc;

use davit_sdk::deviceplugin::{
    Allocation, Device, DevicePlugin, Offer, Refusal, Status, Tamper, wire,
};
use davit_sdk::{async_trait, watch};
use parking_lot::Mutex;

use super::inventory::{Faults, Gives, Latency, ListFault, Preference, Resource};
use crate::behaviour::{Behaviour, Turn, variable};

/// A device node that no machine has.
const NO_DEVICE: &str = "/dev/davit-lab-no-such-device";
/// A device ID that no plugin offers.
const NO_ID: &str = "davit-lab-not-offered";

/// What changes while the plugin runs. The SDK's plugin, the tampering and the script share it.
#[derive(Debug)]
pub(super) struct Shared {
    resource: String,
    gives: Gives,
    preferred: Preference,
    pre_start: bool,
    pub(super) devices: watch::Sender<Vec<Device>>,
    pub(super) behaviour: Behaviour<Latency, Faults>,
}

impl Shared {
    pub(super) fn new(resource: &Resource) -> Self {
        Self {
            resource: resource.name.clone(),
            gives: resource.gives.clone(),
            preferred: resource.preferred,
            pre_start: resource.pre_start,
            devices: watch::Sender::new(resource.initial()),
            behaviour: Behaviour::new(&resource.name, resource.latency, resource.faults.clone()),
        }
    }

    pub(super) fn set_faults(&self, faults: Faults) {
        self.behaviour.set_faults(faults);
        // Lists may look different from now on.
        self.devices.send_modify(|_| {});
    }

    fn give(&self, ids: &[String]) -> Allocation {
        let all = ids.join(",");
        let fill = |text: &str, id: &str| text.replace("{ids}", &all).replace("{id}", id);
        // What does not speak of a device is there once.
        let each = |of_device: bool| -> Vec<&str> {
            let every = ids.iter().map(String::as_str);
            if of_device {
                every.collect()
            } else {
                every.take(1).collect()
            }
        };
        let first = ids.first().map_or("", String::as_str);
        let mut given = Allocation::new();
        for (name, value) in &self.gives.env {
            given = given.env(name, fill(value, first));
        }
        for (key, value) in &self.gives.annotations {
            given = given.annotation(key, fill(value, first));
        }
        for node in &self.gives.devices {
            for id in each(node.host.contains("{id}") || node.container.contains("{id}")) {
                given = given.device(
                    fill(&node.host, id),
                    fill(&node.container, id),
                    &node.permissions,
                );
            }
        }
        for mount in &self.gives.mounts {
            for id in each(mount.host.contains("{id}") || mount.container.contains("{id}")) {
                let (host, container) = (fill(&mount.host, id), fill(&mount.container, id));
                given = if mount.read_only {
                    given.read_only_mount(host, container)
                } else {
                    given.mount(host, container)
                };
            }
        }
        for name in &self.gives.cdi {
            for id in each(name.contains("{id}")) {
                given = given.cdi(fill(name, id));
            }
        }
        if self.gives == Gives::default() {
            // So that it can be seen in the container.
            given = given.env(devices_variable(&self.resource), all);
        }
        given
    }
}

/// `hardware-vendor.example/foo` is seen as `FOO_DEVICES`.
fn devices_variable(resource: &str) -> String {
    let name = resource.rsplit('/').next().unwrap_or_default();
    variable(name) + "_DEVICES"
}

/// What goes wrong on the wire only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Wire {
    #[default]
    Fine,
    Empty,
}

/// The plugin as the SDK sees it, and what tampers with its messages.
#[derive(Debug)]
pub(super) struct Simulated {
    shared: Arc<Shared>,
    allocated: Mutex<Wire>,
    preferred: Mutex<Wire>,
}

impl Simulated {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            allocated: Mutex::default(),
            preferred: Mutex::default(),
        }
    }
}

/// One value in two roles: the SDK takes the plugin by value and the tampering by reference.
#[derive(Debug, Clone)]
pub(super) struct Handle(pub(super) Arc<Simulated>);

#[async_trait]
impl DevicePlugin for Handle {
    fn devices(&self) -> watch::Receiver<Vec<Device>> {
        self.0.shared.devices.subscribe()
    }

    async fn allocate(&self, ids: &[String]) -> Result<Allocation, Refusal> {
        let turn =
            self.0
                .shared
                .behaviour
                .turn("Allocate", |l| l.allocate.0, |f| f.allocate.clone());
        match turn.await? {
            Turn::Go => Ok(self.0.shared.give(ids)),
            Turn::Empty => {
                *self.0.allocated.lock() = Wire::Empty;
                Ok(Allocation::new())
            }
            Turn::Lie => Ok(Allocation::new().device(NO_DEVICE, NO_DEVICE, "rw")),
        }
    }

    fn has_preference(&self) -> bool {
        self.0.shared.preferred != Preference::None
    }

    async fn preferred(&self, offer: Offer) -> Result<Vec<String>, Refusal> {
        let shared = &self.0.shared;
        let turn = shared.behaviour.turn(
            "GetPreferredAllocation",
            |l| l.preferred.0,
            |f| f.preferred.clone(),
        );
        match turn.await? {
            Turn::Go => {}
            Turn::Empty => {
                *self.0.preferred.lock() = Wire::Empty;
                return Ok(Vec::new());
            }
            Turn::Lie => return Ok(vec![NO_ID.to_owned(); offer.size + 1]),
        }
        // The order of the list, which is that of the numbers.
        let list = shared.devices.borrow();
        let mut ids: Vec<String> = list
            .iter()
            .map(|d| d.id.clone())
            .filter(|id| offer.available.contains(id) && !offer.must_include.contains(id))
            .collect();
        if shared.preferred == Preference::Last {
            ids.reverse();
        }
        let mut chosen = offer.must_include;
        chosen.extend(ids);
        chosen.truncate(offer.size);
        Ok(chosen)
    }

    fn wants_pre_start(&self) -> bool {
        self.0.shared.pre_start
    }

    async fn pre_start(&self, _: &[String]) -> Result<(), Refusal> {
        let turn = self.0.shared.behaviour.turn(
            "PreStartContainer",
            |l| l.pre_start.0,
            |f| f.pre_start.clone(),
        );
        turn.await.map(drop)
    }
}

#[async_trait]
impl Tamper for Simulated {
    async fn options(&self) -> Result<(), Status> {
        let turn = self.shared.behaviour.turn(
            "GetDevicePluginOptions",
            |l| l.options.0,
            |f| f.options.clone(),
        );
        turn.await
            .map(drop)
            .map_err(|refusal| Status::unknown(refusal.0))
    }

    fn list(&self, list: &mut wire::ListAndWatchResponse) {
        match self.shared.behaviour.faults(|f| f.list) {
            ListFault::None => {}
            ListFault::Empty => list.devices.clear(),
            ListFault::NoTopology => list.devices.iter_mut().for_each(|d| d.topology = None),
            ListFault::OddHealth => {
                list.devices
                    .iter_mut()
                    .for_each(|d| d.health = "Feverish".to_owned());
            }
            ListFault::WrongNuma => {
                let topology = wire::TopologyInfo {
                    nodes: vec![wire::NumaNode { id: 4096 }],
                };
                list.devices
                    .iter_mut()
                    .for_each(|d| d.topology = Some(topology.clone()));
            }
            ListFault::Duplicates => {
                let mut again = list.devices.clone();
                again
                    .iter_mut()
                    .for_each(|d| d.health = wire::UNHEALTHY.to_owned());
                list.devices.append(&mut again);
            }
        }
    }

    fn allocated(&self, answer: &mut wire::AllocateResponse) {
        if std::mem::take(&mut *self.allocated.lock()) == Wire::Empty {
            answer.container_responses.clear();
        }
    }

    fn preferred(&self, answer: &mut wire::PreferredAllocationResponse) {
        if std::mem::take(&mut *self.preferred.lock()) == Wire::Empty {
            answer.container_responses.clear();
        }
    }
}
