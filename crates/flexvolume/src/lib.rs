//! FlexVolume: volumes that an executable in a directory of the machine attaches and mounts.
//!
//! [`FlexDrivers`] finds executables by the names of drivers and has each say once what it can do; [`FlexDriver`] has one
//! method a command. Both do I/O. All else is pure: [`DriverName`] says where a driver is, [`FlexVolume`] makes the options
//! of a call from objects, [`paths`] says where volumes are mounted.
//! Specification: pkg/volume/flexvolume of Kubernetes 1.36.
#![forbid(unsafe_code)]

mod answer;
mod driver;
mod drivers;
mod error;
mod name;
pub mod paths;
pub mod process;
mod volume;

pub use answer::{DriverAnswer, DriverCapabilities};
pub use driver::{AttachWait, CALL_LIMIT, CallLimits, FlexDriver};
pub use drivers::FlexDrivers;
pub use error::{Error, Outcome};
pub use name::{DriverName, InvalidDriverName};
pub use volume::{FlexVolume, MountingPod, WrongSecretType, secret_values};

/// Where executables are looked for if nobody says otherwise; the kubelet's directory.
pub const DEFAULT_PLUGIN_DIR: &str = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/";
