//! Simulated devices: an inventory by a file, served by real device plugins.
//!
//! ```yaml
//! resources:
//! - name: hardware-vendor.example/foo
//!   count: 4
//!   numaNodes: [0, 1]
//!   latency: { allocate: 200ms }
//!   script:
//!   - at: 5s
//!     unhealthy: [foo-1]
//!   - at: 10s
//!     crash: 3s
//! ```
//!
//! The plugins are made with the SDK and speak gRPC over real sockets: a node agent cannot tell
//! them from others.

mod inventory;
mod plugin;
mod run;

pub(crate) use inventory::is_on;
pub use inventory::{
    CallFault, Device, Fault, Faults, Gives, Inventory, InventoryError, Latency, ListFault, Manner,
    Preference, Resource, RouteKind, Step,
};
pub use run::{Error, serve};
