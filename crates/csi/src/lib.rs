//! The node's side of the Container Storage Interface: which drivers are registered, the calls made on them, what goes
//! into these calls, and what is kept on disk about volumes.
//!
//! [`Drivers`] and [`DriverClient`] do I/O on the drivers' sockets, [`vol_data`] on its files. All else is pure:
//! [`CsiVolume`] and [`request`] make requests of objects, [`registration`] says what a registered driver changes in Node
//! and CSINode, [`fs_group`] who gives files to a group, [`paths`] and [`names`] where things are and how they are called.
//! Specification: CSI 1.12 and 1.13, and pkg/volume/csi of Kubernetes 1.36.
#![forbid(unsafe_code)]

mod capabilities;
mod connection;
mod driver;
mod drivers;
mod error;
pub mod fs_group;
pub mod names;
pub mod paths;
pub mod registration;
pub mod request;
pub mod secrets;
mod settings;
mod stats;
mod version;
pub mod vol_data;
mod volume;

pub use capabilities::Capabilities;
pub use driver::{CALL_LIMIT, DriverClient};
pub use drivers::{Drivers, InvalidDriver, Removed, VersionsRefused};
pub use error::{Class, Error, NotRegistered};
pub use settings::{DriverSettings, UnsupportedLifecycle};
pub use stats::VolumeStats;
pub use version::{CsiVersion, VersionError};
pub use volume::{CsiVolume, LifecycleMode};

/// Name of the plugin in directories and messages.
pub const PLUGIN_NAME: &str = "kubernetes.io/csi";
