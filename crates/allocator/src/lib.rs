//! Structured allocation of devices to resource claims (KEP-4381 and those that build on it).
//!
//! Inventory, usage and claims in; devices or the reasons against them out. No I/O, no clock, no
//! randomness: time budgets and share ids are given by the caller. With equal input the devices are
//! those that kube-scheduler 1.36 chooses with its default feature gates, in the same order; where
//! this differs on purpose, docs/differences.md says so.
//!
//! - [`Inventory`] holds the slices, indexed by pool and node.
//! - [`Usage`] holds what allocated claims hold.
//! - [`Allocator`] looks for devices for the claims of a pod on one node after the other.
//! - [`Answers`] keeps what nodes answered, for as long as it holds; nodes with the same [`NodeSignature`] give
//!   the same answer.
//! - [`explain`](Allocator::explain) says for every device why it was not chosen.
#![forbid(unsafe_code)]

mod allocate;
mod answers;
mod call;
mod capacity;
mod cel;
mod classes;
mod constraint;
mod device;
mod error;
mod excerpt;
mod features;
mod fingerprint;
mod inventory;
mod named;
mod node;
mod node_resources;
mod plan;
mod pool;
mod refusal;
mod result;
mod search;
mod selector;
mod signature;
mod support;
mod taint;
mod usage;

pub use allocate::Allocator;
pub use answers::{Answer, Answers, Moment, Picture, Question};
pub use call::{Call, Stop};
pub use cel::{COST_LIMIT, EXPRESSION_LIMIT, Selector, check_selector};
pub use classes::{Class, Classes};
pub use device::{
    Attribute, Capacity, CapacityPolicy, Device, DeviceId, DeviceView, NodeResourceMapping, PoolId,
    Slice, SliceError,
};
pub use error::AllocateError;
pub use features::Features;
pub use inventory::Inventory;
pub use named::Named;
pub use node::{NodeMatcher, NodeSelectorError, NodeView};
pub use node_resources::NodeResourcesError;
pub use plan::Plan;
pub use refusal::{Cause, DeviceRefusal, PoolFault, Refusal, RequestRefusal};
pub use result::Allocation;
pub use selector::{CompileSelector, EvaluateSelector, Selectors};
pub use signature::NodeSignature;
pub use support::Support;
pub use taint::{Effect, Taint, TaintRule, Toleration};
pub use usage::{DeviceUse, Usage, node_of};

/// Most devices that one claim can be given.
pub const MOST_RESULTS: usize = 32;
