//! Words of the Kubernetes API: kinds table, quantities, selectors, names, Status errors.
//!
//! Everything here is pure: no I/O, no clock, no async.
#![forbid(unsafe_code)]

pub mod kinds;
pub mod quantity;
mod text;

/// The typed kinds of API level 1.36.
pub use k8s_openapi;
