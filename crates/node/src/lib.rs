//! The node agent: pod workers, admission, probes, status, eviction, the node's server.
#![forbid(unsafe_code)]

mod access;
mod addresses;
mod admission;
pub mod agent;
mod container_config;
mod context;
mod csi;
mod csi_drivers;
mod dial;
mod dns;
mod eviction;
mod hooks;
pub mod host_rules;
pub mod kubelet_config;
mod local_volumes;
mod metrics;
pub mod network_abilities;
mod options;
mod plan;
mod pod_table;
mod podsapi;
mod probes;
pub mod reporting;
mod resize;
mod restart_all;
mod runtime_conditions;
mod runtime_state;
mod se_linux;
mod security;
mod served;
mod server;
pub mod shutdown;
mod status;
mod status_manager;
mod sysctls;
mod termination;
mod users;
mod worker;
mod worker_input;

pub use agent::NodeAgent;
pub use options::NodeOptions;
pub use served::ServedPaths;
