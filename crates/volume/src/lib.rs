//! Claims, volumes and classes of storage: which fit one another, what a binding writes, and the names that are made
//! from them. Pure decisions that the PersistentVolume controller, the scheduler and the attach/detach controller share.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::needless_pass_by_value,
        reason = "tests hand over what they write in place"
    )
)]

pub mod annotations;
pub mod binding;
pub mod class;
pub mod local;
pub mod matching;
pub mod names;
pub mod pod;
pub mod provisioning;

#[cfg(test)]
mod tests;
