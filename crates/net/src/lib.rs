//! The kernel's network by netlink: links, addresses, routes and limits (rtnetlink(7)), nf_tables, conntrack.
//!
//! Calls block, but for microseconds: the kernel answers at once. Nothing here knows of pods or Services.
#![forbid(unsafe_code)]

pub mod conntrack;
mod message;
mod namespace;
pub mod nft;
pub mod route;
pub mod shaping;
mod socket;
pub mod tunnel;

pub use namespace::within;
