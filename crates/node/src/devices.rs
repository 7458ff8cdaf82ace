//! The device manager: plugins, their devices, and which container gets which.
//!
//! Three parts with one owner each: the [`inventory`] knows what plugins say (pure state under
//! one lock), the allocation log ([`crate::allocation::Ledger`]) knows who holds what, and
//! admission brings them together. Calls to plugins are made outside any lock and have
//! deadlines. A plugin connection is an instance with a number of its own: what an old
//! instance still says, or its end, never touches a newer one. Follows KEP-3573 and the
//! kubelet's device manager; where it differs, docs/differences.md says so.

mod admission;
mod affinity;
mod checkpoint;
mod endpoint;
mod health;
mod inventory;
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

/// The folder of plugin sockets and the checkpoint, below the agent's root.
pub const DEVICE_PLUGINS_DIR: &str = "device-plugins";
