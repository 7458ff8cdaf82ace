//! The machine a node is on: what it has, and the cgroups that hold its pods and its system to their share.

#![forbid(unsafe_code)]

mod cgroups;
mod kernel;
mod machine;

pub use cgroups::{
    CgroupDriver, CgroupOptions, Enforced, Keeper, PodCgroups, ReservedError, ReservedShare,
};
pub use kernel::{set_oom_score, set_open_files, unprotected_settings};
pub use machine::{MachineFacts, VERSION, read_hardware};
