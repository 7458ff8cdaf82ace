//! Structural schema of kinds: decode, prune, default, validate, patch, OpenAPI, table columns.
#![forbid(unsafe_code)]

pub mod openapi;
pub mod table;
