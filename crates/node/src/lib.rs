//! The node agent: pod workers, admission, volumes, images, probes, status, eviction, the node's server.
#![forbid(unsafe_code)]

pub mod admission;
pub mod agent;
pub mod backoff;
pub mod cgroups;
pub mod container_config;
pub mod context;
mod csi;
pub mod dial;
pub mod dns;
pub mod durations;
pub mod env;
pub mod eviction;
pub mod expansion;
pub mod hooks;
pub mod host_ports;
pub mod images;
pub mod kubelet_config;
mod local_volumes;
pub mod logs;
pub mod machine;
pub mod metrics;
pub mod network_abilities;
pub mod objects;
pub mod paths;
pub mod plan;
pub mod pod;
pub mod pod_table;
pub mod podsapi;
pub mod probes;
pub mod resize;
pub mod resources;
pub mod restart_all;
pub mod runtime_conditions;
pub mod runtime_state;
pub mod security;
pub mod server;
pub mod shutdown;
pub mod status;
pub mod status_manager;
pub mod sysctls;
mod termination;
pub mod users;
pub mod volumes;
mod worker;

pub use agent::{NodeAgent, NodeOptions};
