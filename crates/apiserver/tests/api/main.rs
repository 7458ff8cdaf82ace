//! The acceptance items of the API machinery, driven through the in-process entry: the same
//! pipeline as on the wire, over the embedded store in a temporary directory.

mod cluster;
mod delete;
mod discovery;
mod identity;
mod list_watch;
mod metadata;
mod negotiation;
mod nodes;
mod serve;
mod subresources;
mod wire;
mod writes;
