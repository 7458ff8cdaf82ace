//! Being a driver of dynamic resource allocation (KEP-4381).
//!
//! A driver has two halves, which usually live in one process on each node:
//!
//! * A [`Publisher`] tells the API server in ResourceSlices which devices there are. The scheduler
//!   allocates them to claims; the driver has no part in that.
//! * A [`NodePlugin`] serves a [`Driver`] to the node agent, which has it prepare each claim
//!   before the first container that uses it, and undo that after the last.
//!
//! ```no_run
//! use davit_sdk::async_trait;
//! use davit_sdk::dra::cdi::{CDI_DIR, CdiFiles, Edits};
//! use davit_sdk::dra::{
//!     AllocatedClaim, ClaimId, DeviceExt as _, Driver, NodePlugin, Pool, PreparedDevice, Publisher,
//!     Refusal, Resources, Scope, device,
//! };
//!
//! const NAME: &str = "gpu.example.com";
//!
//! struct Gpus {
//!     files: CdiFiles,
//! }
//!
//! #[async_trait]
//! impl Driver for Gpus {
//!     async fn prepare(&self, claim: &AllocatedClaim) -> Result<Vec<PreparedDevice>, Refusal> {
//!         let edits = claim.devices().iter().map(|d| {
//!             let edits = Edits::new().device(format!("/dev/{}", d.device), format!("/dev/{}", d.device), "rw");
//!             (d.device.clone(), edits)
//!         });
//!         let names = self.files.write(&claim.id().uid, edits).map_err(Refusal::because)?;
//!         let given = claim.devices().iter();
//!         Ok(given.map(|d| PreparedDevice::of(d).cdi(&names[&d.device])).collect())
//!     }
//!
//!     async fn unprepare(&self, claim: &ClaimId) -> Result<(), Refusal> {
//!         self.files.remove(&claim.uid).map_err(Refusal::because)
//!     }
//! }
//!
//! # async fn example(client: davit_sdk::kube::Client) -> Result<(), Box<dyn std::error::Error>> {
//! let driver = Gpus { files: CdiFiles::new(CDI_DIR, NAME) };
//! let plugin = NodePlugin::new(NAME, client.clone(), driver).start()?;
//! let gpu = device("gpu-0").text("model", "A1").int("numa", 0).capacity("memory", "40Gi");
//! let pool = Pool::new([gpu]);
//! let publisher = Publisher::new(client, NAME, Scope::node("node-1"))
//!     .start(Resources::new().pool("node-1", pool))?;
//! # let end = std::future::pending::<()>();
//! end.await;
//! publisher.stop().await;
//! plugin.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! What a driver has to keep to, because agent, driver and machine may be restarted at any time:
//!
//! 1. Preparing a claim again gives the same answer.
//! 2. Undoing a claim that is not known succeeds.
//! 3. A claim may have to be prepared anew after a reboot, when CDI files are gone.
//! 4. A device that is prepared for one claim is refused to another one, unless it may be shared.
//!
//! [`cdi::CdiFiles`] is enough to remember what is prepared; `drivers/example-gpu` shows how.
//! All of this works with davit and with a kubelet of 1.32 or later; claims are read in
//! `resource.k8s.io/v1`, which API servers have since 1.34.

pub mod cdi;
mod claim;
mod devices;
mod metadata;
mod plan;
mod plugin;
mod publisher;
mod service;
mod status;
mod turns;

pub use claim::{AllocatedClaim, AllocatedDevice, ClaimError, ClaimId, Parameters};
pub use devices::{DeviceExt, Invalid, Pool, Reach, Resources, counters, device};
pub use plugin::{Error, NodePlugin, Running};
pub use publisher::{Problem, Published, Publisher, Publishing, Scope};
pub use status::{StatusError, report_status};

/// Why a driver does not prepare or undo a claim. The text becomes part of an event of the pod.
pub use crate::deviceplugin::Refusal;
/// The agent's answer to a registration.
pub use crate::deviceplugin::State;
/// What [`Resources`] consist of.
pub use k8s_openapi::api::resource::v1::{CounterSet, Device, DeviceAttribute, DeviceTaint};

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::sync::watch;

/// Where the data folders of drivers are by default.
pub const PLUGINS_DIR: &str = "/var/lib/kubelet/plugins";

/// A device that is ready for containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreparedDevice {
    /// The requests it was prepared for; none means all of the claim. Names of alternatives
    /// (`request/alternative`) are cut off before the agent sees them.
    pub requests: Vec<String>,
    /// Its pool.
    pub pool: String,
    /// Its name in the pool.
    pub device: String,
    /// Full names of the CDI devices that containers get.
    pub cdi: Vec<String>,
    /// The share, as the allocation has it.
    pub share_id: Option<String>,
    /// What containers are told of it, as JSON of device attributes, if
    /// [`NodePlugin::device_metadata`] is on.
    pub attributes: BTreeMap<String, serde_json::Value>,
}

impl PreparedDevice {
    /// A device as it was allocated, without CDI devices.
    pub fn of(allocated: &AllocatedDevice) -> Self {
        Self {
            requests: vec![allocated.request.clone()],
            pool: allocated.pool.clone(),
            device: allocated.device.clone(),
            cdi: Vec::new(),
            share_id: allocated.share_id.clone(),
            attributes: BTreeMap::new(),
        }
    }

    /// With one more attribute for its metadata file; see [`NodePlugin::device_metadata`].
    #[must_use]
    pub fn attribute(mut self, name: impl Into<String>, value: &DeviceAttribute) -> Self {
        // Attributes are numbers and texts under known names: they always have a JSON form.
        let json = serde_json::to_value(value).unwrap_or_default();
        self.attributes.insert(name.into(), json);
        self
    }

    /// With one more CDI device, by its full name.
    #[must_use]
    pub fn cdi(mut self, name: impl Into<String>) -> Self {
        self.cdi.push(name.into());
        self
    }
}

/// Whether a device works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// It does.
    Healthy,
    /// It does not. Pods that hold it are marked, not ended.
    Unhealthy,
    /// Nobody knows.
    Unknown,
}

/// Health of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceHealth {
    /// Its pool.
    pub pool: String,
    /// Its name in the pool.
    pub device: String,
    /// How it is.
    pub condition: Condition,
    /// Why, at most 1024 bytes of which the agent shows.
    pub message: String,
    /// When that was found out; `None` means that it is known at any time, so that the value
    /// stands for as long as the driver runs.
    pub checked: Option<SystemTime>,
    /// After so long without news the agent takes the health for unknown; its default is 30 s.
    pub timeout: Option<Duration>,
}

impl DeviceHealth {
    /// A device that is as it should be.
    pub fn healthy(pool: impl Into<String>, device: impl Into<String>) -> Self {
        Self {
            pool: pool.into(),
            device: device.into(),
            condition: Condition::Healthy,
            message: String::new(),
            checked: None,
            timeout: None,
        }
    }

    /// The same device, broken.
    #[must_use]
    pub fn broken(mut self, message: impl Into<String>) -> Self {
        self.condition = Condition::Unhealthy;
        self.message = message.into();
        self
    }
}

/// The node half of a driver: what differs from one kind of device to the next.
///
/// Calls for one claim never overlap, also over several instances of the driver, and go on to
/// their end when the agent has lost patience.
#[async_trait]
pub trait Driver: Send + Sync + 'static {
    /// Makes the driver's devices of a claim ready. The claim was read from the API server and
    /// is the one the agent means. Called again after restarts of the agent, and after errors.
    async fn prepare(&self, claim: &AllocatedClaim) -> Result<Vec<PreparedDevice>, Refusal>;

    /// Undoes [`prepare`](Self::prepare). The claim may be gone from the API server, and may be
    /// unknown. An error keeps the pod that ends from being gone, and leads to another call.
    async fn unprepare(&self, claim: &ClaimId) -> Result<(), Refusal>;

    /// Health of the devices, if the driver watches over it. Asked once, at the start.
    fn health(&self) -> Option<watch::Receiver<Vec<DeviceHealth>>> {
        None
    }
}
