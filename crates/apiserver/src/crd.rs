//! Custom kinds: rows of the registry made from CustomResourceDefinitions.
//!
//! [`controller`] follows the definitions, keeps their conditions, and adds, replaces and removes
//! rows, which are those of [`davit_registry::custom`].
//!
//! <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/>

mod controller;
mod names;

pub(crate) use controller::follow;

/// The group of definitions.
pub(crate) const GROUP: &str = "apiextensions.k8s.io";
/// The resource of definitions.
pub(crate) const PLURAL: &str = "customresourcedefinitions";
/// Holds a deleted definition until its objects are gone.
pub(crate) const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";
