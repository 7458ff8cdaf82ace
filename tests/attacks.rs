//! Attacks against the real binary, each by the way in that it once was or might have been: from a pod, a node, a role in
//! one namespace, a local account, a stranger on the network. docs/security.md says which boundary each of them tests.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "attacks/access.rs"]
mod access;
#[path = "attacks/containers.rs"]
mod containers;
mod harness;
#[path = "attacks/joining.rs"]
mod joining;
#[path = "attacks/load.rs"]
mod load;
#[path = "attacks/node.rs"]
mod node;
mod node_harness;
#[path = "attacks/paths.rs"]
mod paths;
#[path = "attacks/requests.rs"]
mod requests;
#[path = "attacks/sessions.rs"]
mod sessions;
#[path = "attacks/traces.rs"]
mod traces;
