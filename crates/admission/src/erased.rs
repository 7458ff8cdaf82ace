//! Plugins behind pointers.
//!
//! The traits that plugins implement have plain async methods. `#[async_trait]` would spare this module, but the bounds
//! it puts on lifetimes make the compiler prove anew for every plugin that each future may be sent, through all types of
//! the API server: seconds a plugin, minutes for all.

use davit_api::status::Status;
use futures::future::BoxFuture;
use serde_json::Value;

use super::{Attributes, Mutating, Validating};

/// A [`Mutating`] plugin of any type.
pub(super) trait AnyMutating: Send + Sync {
    fn admit<'a>(
        &'a self,
        attributes: &'a Attributes<'a>,
        object: Option<&'a mut Value>,
    ) -> BoxFuture<'a, Result<(), Status>>;
}

impl<P: Mutating> AnyMutating for P {
    fn admit<'a>(
        &'a self,
        attributes: &'a Attributes<'a>,
        object: Option<&'a mut Value>,
    ) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(Mutating::admit(self, attributes, object))
    }
}

/// A [`Validating`] plugin of any type.
pub(super) trait AnyValidating: Send + Sync {
    fn validate<'a>(
        &'a self,
        attributes: &'a Attributes<'a>,
        object: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<(), Status>>;
}

impl<P: Validating> AnyValidating for P {
    fn validate<'a>(
        &'a self,
        attributes: &'a Attributes<'a>,
        object: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(Validating::validate(self, attributes, object))
    }
}
