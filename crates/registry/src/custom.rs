//! The rows of custom kinds, made from CustomResourceDefinitions; the API server follows the definitions.
//!
//! A version of a definition is a [`CustomVersion`]: its schema, columns and paths. Objects
//! are stored in one version; each served version has a [`View`] on the storage that converts,
//! prunes and defaults what it reads, and converts what it writes, so that everything above it
//! (handlers, admission, validation) sees objects of the version of the request only.

mod columns;
mod convert;
mod definition;
mod metrics;
mod recent;
mod strategy;
mod view;

pub use columns::Columns;
pub use convert::{Converter, check_conversion_answer};
pub(crate) use definition::TERMINATING_VERBS;
pub use definition::{CustomVersion, Definition, Scale, Served, Versions};
pub use metrics::ConversionMetrics;
pub use strategy::CustomStrategy;
pub(crate) use view::Normal;
pub use view::View;
