//! CPUs for exclusive use: the machine's CPUs by core, cache, NUMA node and socket, the choice of
//! CPUs, and the hints for them (KEP-3570, KEP-2625, KEP-2902, KEP-3327, KEP-4800, KEP-4176).

mod distribute;
mod policy;
mod take;
mod topology;

pub use distribute::take_distributed;
pub use policy::{CpuError, CpuOptions, CpuPolicy, CpuRequest, SmtAlignment};
pub use take::{Sorting, TakeError, take_packed};
pub use topology::{CpuPlace, CpuTopology};

#[cfg(test)]
mod tests;
