//! Structural schema of kinds: decode, prune, default, convert, validate, patch, OpenAPI, table columns.
#![forbid(unsafe_code)]

pub mod apply;
pub mod convert;
pub mod decode;
pub mod defaults;
pub mod gates;
pub mod jsonpath;
pub mod openapi;
pub mod ordered;
pub mod patch;
pub mod protobuf;

mod raw;
pub mod structural;
pub mod table;
pub mod validate;
