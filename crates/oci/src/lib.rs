//! The embedded container runtime, and the client for external ones, behind one trait.

pub mod caps;
pub mod cgroup;
#[cfg(feature = "test-support")]
#[allow(clippy::unwrap_used)] // a test body
pub mod contract;
pub mod cri;
mod embedded;
pub mod image;
pub mod monitor;
pub mod network;
pub mod runtime;
pub mod seccomp;
mod sys;

pub use embedded::{Embedded, EmbeddedOptions};
pub use runtime::Runtime;
