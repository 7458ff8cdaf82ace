//! Pods and nodes as the scheduler sees them: what plugins look at, computed once when an object changes.
#![forbid(unsafe_code)]

pub mod node;
pub mod pod;

mod signature;

pub use signature::Signature;
