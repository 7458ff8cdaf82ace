//! The node agent: pod workers, admission, resource managers, podresources, volumes, probes, status.
#![forbid(unsafe_code)]

pub mod admission;
pub mod agent;
pub mod allocation;
pub mod backoff;
pub mod cgroups;
pub mod compute;
pub mod container_config;
pub mod containermanager;
pub mod context;
pub mod devices;
pub mod dial;
pub mod dns;
pub mod dra;
pub mod durations;
pub mod env;
pub mod eviction;
pub mod expansion;
pub mod hooks;
pub mod images;
pub mod kubelet_config;
pub mod logs;
pub mod machine;
pub mod metrics;
pub mod objects;
pub mod paths;
pub mod plan;
pub mod plugins;
pub mod pod;
pub mod pod_table;
pub mod podresources;
pub mod podsapi;
pub mod probes;
pub mod resize;
pub mod resources;
pub mod runtime_conditions;
pub mod runtime_state;
pub mod security;
pub mod server;
pub mod shutdown;
pub mod status;
pub mod status_manager;
pub mod sysctls;
pub mod volumes;
mod worker;

pub use agent::{NodeAgent, NodeOptions};
