//! The acceptance items of the API machinery, driven through the in-process entry: the same
//! pipeline as on the wire, over the embedded store in a temporary directory.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(
    clippy::needless_pass_by_value,
    reason = "tests hand over what they write in place"
)]

mod admission;
mod aggregation;
mod apply;
mod authn;
mod cluster;
mod crds;
mod custom_kinds;
mod delete;
mod devices;
mod discovery;
mod dual_stack;
mod extended_resources;
mod full_disk;
mod history;
mod hook;
mod identity;
mod kubectl;
mod likeness;
mod list_watch;
mod metadata;
mod negotiation;
mod nodes;
mod pod_groups;
mod policies;
mod protection;
mod rbac;
mod routes;
mod serve;
mod service_addresses;
mod services;
mod subresources;
mod unreadable;
mod webhooks;
mod wire;
mod write_routes;
mod writes;
