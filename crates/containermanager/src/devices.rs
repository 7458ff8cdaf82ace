//! The device manager: plugins, their devices, and which container gets which.
//!
//! Three parts with one owner each: the inventory knows what plugins say (pure state under
//! one lock), the allocation log ([`crate::allocation`]) knows who holds what, and
//! admission brings them together. Calls to plugins are made outside any lock and have
//! deadlines. A plugin connection is an instance with a number of its own: what an old
//! instance still says, or its end, never touches a newer one. Follows KEP-3573 and the
//! kubelet's device manager; where it differs, docs/differences.md says so.

mod admission;
mod affinity;
mod checkpoint;
mod endpoint;
mod health;
mod holdings;
mod inventory;
mod lists;
mod manager;
mod metrics;
mod names;
mod options;
mod policy;
mod registration;
mod requests;

pub(crate) use manager::Manager;
pub(crate) use metrics::{PluginLabel, Rising};
pub use names::InvalidName;
pub use names::check as check_resource_name;
pub(crate) use names::check as check_name;
pub use policy::{HeldDevice, UnhealthyPolicies, UnhealthyPolicy, UnknownPolicy};
pub(crate) use registration::serve;
pub(crate) use requests::{Request, pod_total};

/// The devices of a ListAndWatch message, with whether they are healthy, as the manager takes them in; `None` when it is
/// not one. For trying out what plugins may say.
pub fn read_list(message: &[u8]) -> Option<Vec<(String, bool)>> {
    let list = lists::read(message).ok()?;
    let devices = list.iter();
    Some(devices.map(|(id, d)| (id.to_string(), d.healthy)).collect())
}

/// How much of an Allocate answer containers are given, and how much of it contradicts itself; `None` when it is not one.
/// For trying out what plugins may say.
pub fn read_allocation(answer: &[u8]) -> Option<(usize, usize)> {
    let answer: davit_proto::deviceplugin::v1beta1::AllocateResponse =
        prost::Message::decode(answer).ok()?;
    let answers = answer.container_responses.into_iter();
    let merged = options::merge(answers.map(|answer| ("example.com/a", answer)));
    let given = &merged.options;
    let count = given.envs.len()
        + given.mounts.len()
        + given.devices.len()
        + given.annotations.len()
        + given.cdi_devices.len();
    Some((count, merged.conflicts.len()))
}

/// The folder of plugin sockets and the checkpoint, below the agent's root.
const DEVICE_PLUGINS_DIR: &str = "device-plugins";
