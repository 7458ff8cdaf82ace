//! Device classes.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::resource::v1::DeviceClass;

/// A device class; equal ones are the same object.
pub type Class = Arc<DeviceClass>;

/// Classes by name, and by the extended resource they stand for. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Classes {
    by_name: Arc<HashMap<String, Class>>,
    by_resource: Arc<HashMap<String, Class>>,
}

/// Prefix of the extended resource every class stands for without naming one.
const IMPLICIT: &str = "deviceclass.resource.kubernetes.io/";

impl Classes {
    /// These classes. Of several for one extended resource the newest counts, of equally old ones
    /// the one whose name comes first.
    pub fn new(classes: impl IntoIterator<Item = Class>) -> Self {
        let mut by_name = HashMap::new();
        let mut by_resource: HashMap<String, Class> = HashMap::new();
        let name = |c: &Class| c.metadata.name.clone().unwrap_or_default();
        let born = |c: &Class| c.metadata.creation_timestamp.as_ref().map(|t| t.0);
        for class in classes {
            if let Some(resource) = &class.spec.extended_resource_name {
                let better = by_resource.get(resource).is_none_or(|other| {
                    born(&class) > born(other)
                        || (born(&class) == born(other) && name(&class) < name(other))
                });
                if better {
                    by_resource.insert(resource.clone(), class.clone());
                }
            }
            by_name.insert(name(&class), class);
        }
        Self {
            by_name: Arc::new(by_name),
            by_resource: Arc::new(by_resource),
        }
    }

    /// The class of this name.
    pub fn get(&self, name: &str) -> Option<&Class> {
        self.by_name.get(name)
    }

    /// The class that stands for an extended resource.
    pub fn of_resource(&self, resource: &str) -> Option<&Class> {
        match resource.strip_prefix(IMPLICIT) {
            Some(class) => self.by_name.get(class),
            None => self.by_resource.get(resource),
        }
    }
}
