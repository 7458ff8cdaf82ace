//! The allocation log: which container holds what, durable before the runtime is asked.
//!
//! `Ledger` is the only way to change an allocation. A change is written to an append-only
//! file and synced before it counts; changes of many pods at once share one sync. The table
//! in memory ([`Table`]) is what the log says, plus claims of admissions under way. Invariant:
//! one device never has two exclusive owners; `Table::claim` is where that is enforced.
//!
//! Recorded are devices of plugins, and CPUs and memory for exclusive use. Claims of dynamic
//! resource allocation get a variant of [`Change`] and a field of `ContainerHoldings` of their
//! own; the file format carries them without change.

#[cfg(test)]
mod crash_tests;
mod file;
mod ledger;
#[cfg(test)]
mod power_tests;
mod record;
mod table;

pub use file::{Error, LogSummary, summarize};
pub(crate) use ledger::{CommitError, Ledger, Reservation};
pub(crate) use record::base64_bytes;
pub use record::{
    Change, ClaimDriver, ClaimHold, ClaimName, ComputeHold, DeviceHold, PodName, PreparedDevice,
};
pub(crate) use table::PodHoldings;
pub use table::{Conflict, Table};
