//! Attacks against the real binary, each by the way in that it once was or might have been: from a pod, a node, a role in
//! one namespace, a local account, a stranger on the network. docs/security.md says which boundary each of them tests.

mod access;
mod backends;
mod containers;
mod expressions;
mod extensions;
mod huge_pages;
mod joining;
mod load;
mod node;
mod paths;
mod requests;
mod sessions;
mod traces;
