//! The node agent: pod workers, admission, volumes, images, probes, status, eviction, the node's server.
#![forbid(unsafe_code)]

mod admission;
pub mod agent;
mod backoff;
mod cgroups;
mod container_config;
mod context;
mod csi;
mod dial;
mod dns;
mod durations;
mod env;
mod eviction;
mod expansion;
mod hooks;
mod host_ports;
pub mod images;
pub mod kubelet_config;
mod local_volumes;
mod logs;
mod machine;
mod metrics;
pub mod network_abilities;
mod objects;
mod paths;
mod plan;
pub mod pod;
mod pod_table;
mod podsapi;
mod probes;
mod resize;
pub mod resources;
mod restart_all;
mod runtime_conditions;
mod runtime_state;
mod security;
mod server;
pub mod shutdown;
mod status;
mod status_manager;
mod sysctls;
mod termination;
mod users;
mod volumes;
mod worker;

pub use agent::{NodeAgent, NodeOptions};
