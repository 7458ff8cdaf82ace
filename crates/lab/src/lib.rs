//! The laboratory: what authors of device plugins and monitors need on a machine without the
//! hardware.
//!
//! * [`devices`]: inventories of simulated devices by a file, with faults and a script, served by
//!   real device plugins to a real device manager.
//! * [`drivers`]: the same for drivers of dynamic resource allocation.
//! * [`check`]: plays the other side to a device plugin or to a monitor and reports what it saw.
//! * [`exporter`]: Prometheus metrics of devices from any node agent's podresources socket.
//! * [`nodes`]: simulated nodes, many in one process.

#![forbid(unsafe_code)]

mod behaviour;
pub mod check;
pub mod devices;
pub mod drivers;
pub mod exporter;
pub mod nodes;
mod player;
mod script;
pub mod span;

/// What the laboratory tells while it works, a line at a time.
pub type Say = std::sync::Arc<dyn Fn(&str) + Send + Sync>;
