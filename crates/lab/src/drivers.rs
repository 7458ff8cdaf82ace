//! Simulated drivers of dynamic resource allocation: devices by the inventory's file, published in
//! ResourceSlices and prepared for claims by real node plugins.
//!
//! ```yaml
//! drivers:
//! - name: gpu.vendor.example
//!   devices:
//!   - name: gpu-{n}
//!     count: 4
//!     attributes: { model: A100, index: "{n}", numaNode: 0 }
//!     capacity: { memory: 40Gi }
//!   latency: { prepare: 200ms }
//!   script:
//!   - at: 5s
//!     unhealthy: [gpu-1]
//! ```

mod file;
mod plugin;
mod run;

pub use file::{DeviceGroup, DriverFaults, DriverFile, DriverLatency, DriverStep, Taint};
pub use run::{DriverPaths, Error, serve};
