//! Who makes a request and whether he may: authentication, authorization, service account tokens.
//!
//! [`authn::Authenticator`] finds the user of a request from its connection and headers, the
//! [`authz::Chain`] decides about what [`RequestInfo`] read from method and path. Both see the
//! server by the narrow traits [`authn::TokenView`] and [`StoredObjects`], so that they know nothing
//! of what serves, nor of kinds beyond those that they decide by.

#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::needless_pass_by_value,
        reason = "tests hand over what they write in place"
    )
)]
// every error of a request is a Status, which is made once and moved a few times on a cold path
#![allow(clippy::result_large_err)]

pub mod authn;
pub mod authz;
mod lookup;
mod metrics;
pub mod query;
mod request_info;
pub mod tokens;
mod user;
mod warnings;

pub use lookup::{FindObjects, Lookup, ObjectsUnreadable, StoredObjects};
pub use metrics::AccessMetrics;
pub use request_info::RequestInfo;
pub use user::{
    ANONYMOUS, AUTHENTICATED, KUBELET_CLIENT, MASTERS, NODE_PREFIX, NODES, UNAUTHENTICATED,
    UserInfo,
};
pub use warnings::Warnings;
