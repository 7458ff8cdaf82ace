//! The store on etcd 3.5.13 and newer (spec scale-out.md 2 and 3).
//!
//! Every call is one that kube-apiserver makes, too: ranges, transactions that compare one key, a watch for each prefix,
//! the compactor's protocol. What is read is linearizable. Calls go to one member and on to the next when it does not
//! answer; a watch that breaks is opened again where it was, so that its consumer sees every change once.
//!
//! One server owns the keys below a prefix at a time, or several share them and say so ([`owner`]).
//! Every write compares the key that says so, so that a server that was cut off and replaced cannot write any more.

#![forbid(unsafe_code)]

mod calls;
mod compactor;
mod endpoint;
mod layout;
mod leases;
mod members;
mod owner;
mod parts;
mod store;
mod tls;
mod watch;

pub use endpoint::{EndpointError, EndpointUrl};
pub use store::{EtcdOptions, EtcdStore};
pub use tls::{TlsError, TlsFiles};
