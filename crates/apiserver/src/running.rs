//! A server at work: how it comes up ([`start`]), listens ([`serve`]), is called in process ([`in_process`]), and what it
//! does by itself meanwhile. Here everything is put together; nothing else of the crate knows of it.

mod bootstrap;
mod endpoints;
mod identity_lease;
mod in_process;
mod joining;
mod listen;
mod publish;
mod reload;
mod renewal;
mod roles;
mod serve;
mod shared_keys;
mod start;
mod view;

pub use in_process::InProcess;
