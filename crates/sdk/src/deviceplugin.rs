//! Serving devices to a node agent (device plugin API v1beta1).
//!
//! ```no_run
//! use davit_sdk::deviceplugin::{Allocation, Device, DevicePlugin, PluginServer, Refusal};
//! use davit_sdk::{async_trait, watch};
//!
//! struct Foo {
//!     devices: watch::Sender<Vec<Device>>,
//! }
//!
//! #[async_trait]
//! impl DevicePlugin for Foo {
//!     fn devices(&self) -> watch::Receiver<Vec<Device>> {
//!         self.devices.subscribe()
//!     }
//!
//!     async fn allocate(&self, ids: &[String]) -> Result<Allocation, Refusal> {
//!         let mut given = Allocation::new().env("FOO_DEVICES", ids.join(","));
//!         for id in ids {
//!             given = given.device(format!("/dev/foo-{id}"), format!("/dev/foo/{id}"), "rw");
//!         }
//!         Ok(given)
//!     }
//! }
//!
//! # async fn example() -> Result<(), davit_sdk::deviceplugin::Error> {
//! let devices = watch::Sender::new(vec![Device::healthy("0"), Device::healthy("1").on_numa_node(1)]);
//! let plugin = Foo { devices: devices.clone() };
//! let running = PluginServer::new("hardware-vendor.example/foo", plugin).start()?;
//! // A device breaks: the agent hears of it at once.
//! devices.send_modify(|all| all[0].healthy = false);
//! running.stop().await;
//! # Ok(())
//! # }
//! ```

mod allocation;
mod server;
mod service;

pub use crate::agent::State;
pub use allocation::Allocation;
pub use server::{Error, PluginServer, Route, Running};

use async_trait::async_trait;
use tokio::sync::watch;

/// The messages of the API, for [`Tamper`].
pub use davit_proto::deviceplugin::v1beta1 as wire;
/// A gRPC error, for [`Tamper`].
pub use tonic::Status;

/// Where the agent's registration socket and the plugins' sockets are by default.
pub const DEVICE_PLUGINS_DIR: &str = "/var/lib/kubelet/device-plugins";
/// Where sockets of plugins that are found by the agent are by default.
pub const PLUGINS_REGISTRY_DIR: &str = "/var/lib/kubelet/plugins_registry";

/// A device as the agent gets to know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its ID: unique in the resource, stable over restarts, at most 63 characters.
    pub id: String,
    /// Whether it may be given to containers.
    pub healthy: bool,
    /// NUMA nodes it is local to; empty when that does not matter.
    pub numa_nodes: Vec<i64>,
}

impl Device {
    /// A healthy device without NUMA node.
    pub fn healthy(id: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            healthy: true,
            numa_nodes: Vec::new(),
        }
    }

    /// The same device, local to one more NUMA node.
    #[must_use]
    pub fn on_numa_node(mut self, node: i64) -> Self {
        self.numa_nodes.push(node);
        self
    }
}

/// Why a plugin refuses a call. The text becomes part of the message of the pod that fails by it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

impl Refusal {
    /// A refusal with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// A refusal with the text of an error.
    pub fn because(cause: impl std::fmt::Display) -> Self {
        Self(cause.to_string())
    }
}

/// What the agent lets the plugin choose from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// Devices to choose from, those of `must_include` among them.
    pub available: Vec<String>,
    /// Devices that are taken already.
    pub must_include: Vec<String>,
    /// How many devices the container gets in all.
    pub size: usize,
}

/// A device plugin: what differs from one kind of device to the next.
#[async_trait]
pub trait DevicePlugin: Send + Sync + 'static {
    /// The devices there are. Each change of the value is sent to the agent; quick successions
    /// are sent as one.
    fn devices(&self) -> watch::Receiver<Vec<Device>>;

    /// Gives devices to one container: what its configuration needs for them. Called once when
    /// the pod is admitted, not again when the container restarts. The IDs are known ones.
    async fn allocate(&self, ids: &[String]) -> Result<Allocation, Refusal>;

    /// Whether [`preferred`](Self::preferred) is to be asked.
    fn has_preference(&self) -> bool {
        false
    }

    /// Which devices to give when there is a choice. Advice only; may be shorter or empty.
    async fn preferred(&self, offer: Offer) -> Result<Vec<String>, Refusal> {
        Ok(offer.must_include)
    }

    /// Whether [`pre_start`](Self::pre_start) is to be called.
    fn wants_pre_start(&self) -> bool {
        false
    }

    /// Called before every start of a container that holds these devices, for instance to
    /// reset them. A refusal delays the start. The agent waits 30 seconds.
    async fn pre_start(&self, ids: &[String]) -> Result<(), Refusal> {
        let _ = ids;
        Ok(())
    }
}

/// Changes what a plugin sends, so that it breaks rules that [`DevicePlugin`] cannot break. A
/// node agent has to survive all of it; see [`PluginServer::tampered`].
#[async_trait]
pub trait Tamper: std::fmt::Debug + Send + Sync + 'static {
    /// Before the options are answered; an error is answered instead.
    async fn options(&self) -> Result<(), Status> {
        Ok(())
    }

    /// A device list.
    fn list(&self, list: &mut wire::ListAndWatchResponse) {
        let _ = list;
    }

    /// The answer to Allocate.
    fn allocated(&self, answer: &mut wire::AllocateResponse) {
        let _ = answer;
    }

    /// The answer to GetPreferredAllocation.
    fn preferred(&self, answer: &mut wire::PreferredAllocationResponse) {
        let _ = answer;
    }
}
