//! Admission: what may change or refuse a write after authorization.
//!
//! Two lists, run in order: mutating plugins see and may change the object before it is
//! validated, validating plugins see the final object. Webhooks and policies will join the lists.

mod namespace_lifecycle;
mod pod_tolerations;
mod priority;
mod service_account;

use async_trait::async_trait;
use davit_api::status::Status;
use serde_json::Value;

use crate::registry::ResourceInfo;
use crate::server::ApiServer;
use crate::user::UserInfo;

pub(crate) use priority::SYSTEM_CLASSES;

/// What is being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// A new object.
    Create,
    /// A change, also by patch and through a subresource.
    Update,
    /// A deletion.
    Delete,
    /// A connection (exec, attach, port-forward, proxy).
    Connect,
}

/// The attributes of a write.
pub struct Attributes<'a> {
    /// The server, to look up other objects.
    pub server: &'a ApiServer,
    /// What is being done.
    pub operation: Operation,
    /// The resource of the path.
    pub resource: &'a ResourceInfo,
    /// The subresource, or empty.
    pub subresource: &'a str,
    /// The namespace, or empty.
    pub namespace: &'a str,
    /// The name; empty while it is still to be generated.
    pub name: &'a str,
    /// Who does it.
    pub user: &'a UserInfo,
    /// Nothing will be stored.
    pub dry_run: bool,
    /// The object before the write.
    pub old: Option<&'a Value>,
}

impl Attributes<'_> {
    /// Whether this is about a resource itself, in the storage version of the group given.
    pub fn is(&self, group: &str, plural: &str) -> bool {
        self.subresource.is_empty()
            && self.resource.row.group == group
            && self.resource.row.plural == plural
    }
}

/// A plugin that may change the object.
#[async_trait]
pub trait Mutating: Send + Sync {
    /// Changes or refuses. `object` is none on delete.
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&mut Value>,
    ) -> Result<(), Status>;
}

/// A plugin that only refuses.
#[async_trait]
pub trait Validating: Send + Sync {
    /// Refuses or not. `object` is none on delete.
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status>;
}

/// The configured plugins.
pub struct Chain {
    mutating: Vec<Box<dyn Mutating>>,
    validating: Vec<Box<dyn Validating>>,
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Chain({} mutating, {} validating)",
            self.mutating.len(),
            self.validating.len()
        )
    }
}

impl Chain {
    /// Runs the given plugins in their order.
    pub fn new(mutating: Vec<Box<dyn Mutating>>, validating: Vec<Box<dyn Validating>>) -> Self {
        Self {
            mutating,
            validating,
        }
    }

    /// The plugins that are on without configuration.
    pub fn standard() -> Self {
        Self {
            mutating: vec![
                Box::new(namespace_lifecycle::NamespaceLifecycle),
                Box::new(service_account::ServiceAccount),
                Box::new(priority::Priority),
                Box::new(pod_tolerations::DefaultTolerationSeconds),
            ],
            validating: vec![Box::new(priority::OneDefaultClass)],
        }
    }

    /// Runs the mutating plugins.
    ///
    /// # Errors
    /// The first refusal.
    pub async fn mutate(
        &self,
        attributes: &Attributes<'_>,
        mut object: Option<&mut Value>,
    ) -> Result<(), Status> {
        for plugin in &self.mutating {
            plugin.admit(attributes, object.as_deref_mut()).await?;
        }
        Ok(())
    }

    /// Runs the validating plugins.
    ///
    /// # Errors
    /// The first refusal.
    pub async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        for plugin in &self.validating {
            plugin.validate(attributes, object).await?;
        }
        Ok(())
    }
}

/// A refusal in the usual form: `pods "x" is forbidden: why`.
fn forbidden(
    attributes: &Attributes<'_>,
    object: Option<&Value>,
    why: impl Into<String>,
) -> Status {
    let mut name = attributes.name;
    if name.is_empty()
        && let Some(object) = object
    {
        let of = |pointer| {
            object
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        name = of("/metadata/name");
        if name.is_empty() {
            name = of("/metadata/generateName");
        }
    }
    Status::forbidden(attributes.resource.qualified(), name, why.into())
}
