//! What the API server serves, and where it is kept: a row for each group, version and plural name, the storage of its
//! objects, and the rows that definitions of custom kinds come to.
//!
//! Rows are data. Handlers and admission ask a [`ResourceInfo`] what its objects look like ([`codec::Shape`]), how they
//! are stored ([`storage::Storage`]), in which version ([`convert`]) and which of them somebody means ([`selection`]); what
//! fails below becomes an answer in [`errors`].

#![forbid(unsafe_code)]
// every error of a request is a Status, which is made once and moved a few times on a cold path
#![allow(clippy::result_large_err)]

pub mod codec;
pub mod convert;
pub mod custom;
pub mod errors;
pub mod object;
mod registry;
pub mod selection;
pub mod storage;
mod stores;

pub use registry::{Establishing, Registry, ResourceInfo, Snapshot, group_priority};
pub use stores::{StoreOverride, Stores};
