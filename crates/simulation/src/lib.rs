//! A whole cluster on a simulated clock in one thread, with faults by seed.
//!
//! API server, scheduler and controllers are the real ones; nodes are hollow, the store is in memory. One thread runs them
//! on tokio's paused clock, which jumps to the next timer when nothing else is to be done; [`world`] makes the process's own
//! clocks and random numbers follow. So a seed decides everything: which faults there are and when ([`faults`]), what users do
//! ([`workload`]), and every choice that the code under test makes by chance. After each change of the store [`checks`] looks
//! whether what must hold does, at the end [`settled`] whether all came to rest.
//!
//! `tests/seeds.rs` runs seeds; docs/simulation.md says how to read what it prints.
#![deny(unsafe_code)]

pub mod caller;
pub mod checks;
pub mod cluster;
pub mod faults;
pub mod kubelet;
pub mod machine;
pub mod run;
pub mod settled;
pub mod store;
pub mod trace;
pub mod transport;
pub mod watch_check;
pub mod workload;
pub mod world;
