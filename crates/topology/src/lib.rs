//! Device, CPU and memory placement on one node: pure decisions.
//!
//! Nothing here does I/O, reads a clock or waits. The node agent feeds in what it knows (which
//! devices exist, where they sit, what is taken) and gets back a decision that a test can build and
//! compare; the scheduler runs the same code on what nodes publish.
//!
//! * [`cpuset`]: sets of logical CPUs in the kernel's list format.
//! * [`numa`]: masks of NUMA nodes and the machine's distances.
//! * [`hints`]: topology hints and the merge of the four topology manager policies (KEP-693).
//! * [`devices`]: hints for devices, the split by affinity and the choice of device IDs (KEP-693,
//!   KEP-3573 and the device plugin API v1beta1).
//! * [`hardware`]: what a machine is made of.
//! * [`pod`], [`published`]: what a pod asks for, what a node publishes, and whether it would take it.
//! * [`claims`]: where the devices of resource claims are.
//! * [`cpu`], [`memory`]: the static policies of the CPU and memory managers (KEP-3570, KEP-1769).
#![forbid(unsafe_code)]

pub mod claims;
pub mod cpu;
pub mod cpuset;
pub mod devices;
pub mod hardware;
pub mod hints;
pub mod memory;
pub mod numa;
pub mod pod;
pub mod published;

/// The processor time of this thread, by which tests judge costs: what else the machine does is none of ours.
#[cfg(test)]
fn spent() -> rustix::time::Timespec {
    rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime)
}

pub use cpuset::CpuSet;
pub use devices::{Choice, ChoiceError, ChoiceInput, DeviceId, ReuseTable, Step};
pub use hardware::Hardware;
pub use hints::{Merged, Policy, PolicyKind, ProviderHints, TopologyHint};
pub use numa::{Machine, NumaMask};
