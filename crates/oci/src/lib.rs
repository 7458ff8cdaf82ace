//! The embedded container runtime, and the client for external ones, behind one trait.
//!
//! [`Embedded`] runs pods as Linux containers with system calls of its own (Linux 5.12 or newer), [`cri::Remote`] speaks
//! CRI to containerd or CRI-O; a node holds either as [`Runtime`]. A binary that uses [`Embedded`] calls
//! [`monitor::main_if_invoked`] first in `main`. The contract both keep is in `contract` (feature `test-support`).

pub mod caps;
pub mod cdi;
pub mod cgroup;
pub mod cni;
#[cfg(feature = "test-support")]
#[allow(clippy::unwrap_used)] // a test body
pub mod contract;
pub mod cri;
mod deleted_files;
mod embedded;
pub mod hollow;
pub mod host_ids;
pub mod image;
mod kernel;
pub mod measured;
pub mod monitor;
mod netdev;
pub mod network;
mod rdt;
pub mod read_only;
pub mod runtime;
pub mod seccomp;
mod sys;

pub use cni::{Cni, CniOptions};
pub use deleted_files::deleted_files;
pub use embedded::{Embedded, EmbeddedOptions, OpenFiles};
pub use hollow::Hollow;
pub use image::Images;
pub use runtime::Runtime;
