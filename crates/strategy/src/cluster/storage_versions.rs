//! In which version objects are stored, and their migration to another one.

use davit_api::field::{ErrorList, FieldError, Path};
use davit_api::names;
use serde_json::Value;

use super::super::json::{at, str_at};
use super::super::{KindInfo, Strategy, meta};

pub(super) struct StorageVersionMigration(pub(super) KindInfo);

impl Strategy for StorageVersionMigration {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        migration(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        migration(new, &mut errors);
        meta::immutable_at(new, old, &["spec"], &mut errors);
        errors
    }
}

fn migration(obj: &Value, errors: &mut ErrorList) {
    let of = at(obj, &["spec", "resource"]);
    let path = Path::new("spec").child("resource");
    let resource = str_at(of, &["resource"]);
    let at_resource = path.child("resource");
    let faults = names::check_dns1035_label(resource);
    if resource.is_empty() {
        let why = "resource is required to be set";
        errors.push(FieldError::required(&at_resource, why));
    } else if !faults.is_empty() {
        errors.push(FieldError::invalid(
            &at_resource,
            resource,
            faults.join(","),
        ));
    }
    let group = str_at(of, &["group"]);
    let faults = names::check_dns1123_subdomain(group);
    if !group.is_empty() && !faults.is_empty() {
        let path = path.child("group");
        errors.push(FieldError::invalid(&path, group, faults.join(",")));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::testing::{faults, update_faults};

    const KIND: (&str, &str, &str) = (
        "storagemigration.k8s.io",
        "v1beta1",
        "StorageVersionMigration",
    );

    #[test]
    fn faults_of_migrations() {
        let of =
            |resource: Value| json!({"metadata": {"name": "m"}, "spec": {"resource": resource}});
        let found = faults(KIND.0, KIND.1, KIND.2, &of(json!({})));
        assert_eq!(
            found,
            "spec.resource.resource: Required value: resource is required to be set"
        );
        let good = of(json!({"group": "apps", "resource": "deployments"}));
        assert_eq!(faults(KIND.0, KIND.1, KIND.2, &good), "");
        let found = update_faults(
            KIND.0,
            KIND.1,
            KIND.2,
            &of(json!({"resource": "pods"})),
            &good,
        );
        assert!(found.starts_with("spec: Invalid value"), "{found}");
    }
}
