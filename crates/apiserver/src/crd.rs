//! Custom kinds: rows of the registry made from CustomResourceDefinitions.
//!
//! [`controller`] follows the definitions, keeps their conditions, and adds, replaces and removes
//! rows. A version of a definition is a [`CustomVersion`]: its schema, columns and paths. Objects
//! are stored in one version; each served version has a [`View`] on the storage that converts,
//! prunes and defaults what it reads, and converts what it writes, so that everything above it
//! (handlers, admission, validation) sees objects of the version of the request only.
//!
//! <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/>

mod columns;
mod controller;
mod convert;
mod definition;
mod names;
mod strategy;
mod view;

pub(crate) use controller::Controller;
pub use convert::check_conversion_answer;
pub(crate) use definition::{CustomVersion, Scale, TERMINATING_VERBS};
pub(crate) use view::{Normal, View};

/// The group of definitions.
pub(crate) const GROUP: &str = "apiextensions.k8s.io";
/// The resource of definitions.
pub(crate) const PLURAL: &str = "customresourcedefinitions";
/// Holds a deleted definition until its objects are gone.
pub(crate) const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";
