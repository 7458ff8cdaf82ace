//! The embedded container runtime, and the client for external ones, behind one trait.

pub mod caps;
pub mod cgroup;
pub mod monitor;
pub mod runtime;
pub mod seccomp;
mod sys;
