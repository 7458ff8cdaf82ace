//! Conformance checks: playing the other side to a program and reporting what it did.
//!
//! [`device_plugin`] plays the node agent to a device plugin, [`podresources_client`] plays it to
//! a monitor, [`dra_driver`] to a driver of dynamic resource allocation; [`cluster()`] looks at a whole
//! cluster by the CIS benchmark. Each check has a stable id, a verdict, what was expected and what was seen.

mod agent;
mod answers;
mod cluster;
mod driver;
mod kubelet;
mod monitor;
mod plugin;
mod report;
mod streams;
mod subject;

pub use cluster::{CLUSTER_CHECKS, ClusterCheck, ClusterOptions, cluster};
pub use driver::{
    Api, DRIVER_CHECKS, DriverOptions, Invalid, Parameters, ParametersError, Valid, dra_driver,
};
pub use monitor::{MONITOR_CHECKS, MonitorOptions, podresources_client};
pub use plugin::{PLUGIN_CHECKS, PluginOptions, Target, device_plugin};
pub use report::{Check, CheckResult, Expectation, Report, Summary};
pub use subject::{Ended, KubeletDirectory, Life, Process, Subject};
