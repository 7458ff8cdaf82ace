//! The loop that all controllers share.
//!
//! A controller observes through informers, is handed one key at a time by a work queue, reads the latest state, plans
//! what is missing and applies it ([`Reconcile`]); it is level-triggered and idempotent. [`Spawner`] starts it, with
//! back-off, a deadline for each key, and a panic being that key's failure alone.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::needless_pass_by_value,
        reason = "tests hand over what they write in place"
    )
)]

mod controller;
pub mod finalizers;
mod informers;
pub mod nodes;
mod notices;
pub mod owners;
pub mod pods;
mod selection;
mod status;

pub use controller::{
    AccountClients, COMPONENT, Context, Error, Next, Reconcile, Spawner, attempt, cause_of,
    cluster_key, exists_is_none, gone_is_none,
};
pub use informers::{Informers, LEASE_NAMESPACE, ROOT_CA_MAP};
pub use notices::{Notices, Tone};
pub use selection::{ControllerSelection, SelectionError, controller_names};
pub use status::write_status;
