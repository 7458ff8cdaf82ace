//! Objects in etcd as kube-apiserver 1.36 keeps them, so that both can work on the same etcd.
//!
//! The API server's keys and values are davit's: `/registry/{group or core}/{plural}/[{namespace}/]{name}` and the JSON of
//! davit's storage version. [`KubeStore`] puts them into another store under kube-apiserver's keys ([`keys`]), built-in kinds
//! as protobuf in kube-apiserver's storage version ([`Codec`]), and reads whatever kube-apiserver may have written. Keys and
//! values are translated by functions without I/O.

#![forbid(unsafe_code)]

mod codec;
pub mod keys;
mod store;

pub use codec::{Codec, CodecError, MediaType, MediaTypeError, PROTOBUF};
pub use keys::KubeNaming;
pub use store::KubeStore;
