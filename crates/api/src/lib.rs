//! Words of the Kubernetes API: kinds table, quantities, selectors, names, Status errors.
//!
//! Everything here is pure: no I/O, no clock, no async.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::needless_pass_by_value,
        reason = "tests hand over what they write in place"
    )
)]

pub mod access_review;
mod addresses;
pub mod amounts;
pub mod app_armor;
mod architecture;
pub mod classic;
pub mod config_shape;
pub mod declared_features;
pub mod devices;
pub mod features;
pub mod field;
pub mod fields;
pub mod flowcontrol;
pub mod host_port;
pub mod jobs;
pub mod json_values;
pub mod kinds;
pub mod labels;
pub mod meta;
pub mod names;
pub mod pod_groups;
pub mod quantity;
pub mod quota;
pub mod references;
pub mod resource_claims;
pub mod runtime_config;
pub mod schedule;
pub mod selector;
mod sorted_values;
pub mod status;
pub mod taint;
mod text;
pub mod time;

pub use architecture::architecture;
pub use sorted_values::SortedValues;

/// The typed kinds of API level 1.36.
pub use k8s_openapi;
