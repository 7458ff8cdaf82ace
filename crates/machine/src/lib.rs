//! The machine a node is on: what it has, and the cgroups that hold its pods and its system to their share.

#![forbid(unsafe_code)]

mod cgroups;
mod machine;

pub use cgroups::{CgroupDriver, CgroupOptions, PodCgroups};
pub use machine::{MachineFacts, VERSION, read_hardware};
