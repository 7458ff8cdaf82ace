//! What the parts of a node read of pods: the questions they ask of the object ([`pod`]), what it asks for and how the
//! runtime is told ([`resources`]), the environment of its containers ([`env`], [`expansion`]), the objects it refers to
//! ([`objects`]), where its files are on the node ([`paths`]), and which ports of the node it takes ([`host_ports`]). Beside that two small things that several parts share: how
//! long they wait before they try again ([`backoff`]), and durations as configuration files write them ([`durations`]).

#![forbid(unsafe_code)]

pub mod backoff;
pub mod durations;
pub mod env;
pub mod env_files;
pub mod expansion;
pub mod host_ports;
pub mod objects;
pub mod paths;
pub mod pod;
mod references;
pub mod resources;
