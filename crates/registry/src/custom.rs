//! The rows of custom kinds, made from CustomResourceDefinitions; [`crate::crd`] follows the definitions.
//!
//! A version of a definition is a [`CustomVersion`]: its schema, columns and paths. Objects
//! are stored in one version; each served version has a [`View`] on the storage that converts,
//! prunes and defaults what it reads, and converts what it writes, so that everything above it
//! (handlers, admission, validation) sees objects of the version of the request only.

mod columns;
mod convert;
mod definition;
mod strategy;
mod view;

pub(crate) use convert::Converter;
pub use convert::check_conversion_answer;
pub(crate) use definition::{
    CustomVersion, Definition, Scale, Served, TERMINATING_VERBS, Versions,
};
pub(crate) use view::{Normal, View};
