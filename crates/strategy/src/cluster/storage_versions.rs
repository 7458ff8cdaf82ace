//! In which version objects are stored, and their migration to another one.

use std::collections::{HashMap, HashSet};

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use serde_json::Value;

use super::super::fields::required;
use super::super::json::{at, list_at, repeats, str_at};
use super::super::{KindInfo, Strategy, meta, status_conditions};

/// Which versions each server writes and reads of one resource.
pub(super) struct StorageVersion(pub(super) KindInfo);

/// Faults of a name, or of what one is made from; none of what is not there.
fn name_faults(name: &str) -> Vec<String> {
    let Some((group, resource)) = name.rsplit_once('.') else {
        let why = "name must be in the form of <group>.<resource>".to_owned();
        return Some(why).filter(|_| !name.is_empty()).into_iter().collect();
    };
    let group = names::check_dns1123_subdomain(group).into_iter();
    let group = group.map(|why| format!("the group segment {why}"));
    let resource = names::check_dns1035_label(resource).into_iter();
    let resource = resource.map(|why| format!("the resource segment {why}"));
    group.chain(resource).collect()
}

impl Strategy for StorageVersion {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        for key in ["generateName", "name"] {
            let name = str_at(obj, &["metadata", key]);
            let path = Path::new("metadata").child(key);
            errors.extend(invalid_each(&path, name, name_faults(name)));
        }
        errors
    }

    fn validate_status_update(&self, new: &Value, _old: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        storage_status(at(new, &["status"]), &mut errors);
        errors
    }
}

fn storage_status(status: &Value, errors: &mut ErrorList) {
    let path = Path::new("status");
    let servers = list_at(status, &["storageVersions"]);
    let twins = repeats(servers.iter().map(|s| str_at(s, &["apiServerID"])));
    for ((i, server), is_twin) in servers.iter().enumerate().zip(twins) {
        let path = path.child("storageVersions").index(i);
        let id = str_at(server, &["apiServerID"]);
        let at_id = path.child("apiServerID");
        if is_twin {
            errors.push(FieldError::duplicate(&at_id, id));
        }
        errors.extend(invalid_each(&at_id, id, names::check_dns1123_subdomain(id)));
        versions(server, &path, errors);
    }
    let encoding = |server: &Value| str_at(server, &["encodingVersion"]).to_owned();
    let common = servers.first().map(encoding);
    let common = common.filter(|first| servers.iter().all(|server| encoding(server) == *first));
    let said = at(status, &["commonEncodingVersion"]);
    let fault = match &common {
        None if said.is_null() => None,
        None => Some(
            "should be nil if servers do not agree on the same encoding version, or if there is no server reporting the \
             supported versions yet"
                .to_owned(),
        ),
        Some(common) if said.is_null() => Some(format!("the common encoding version is {common}")),
        Some(common) if said != common.as_str() => {
            Some(format!("the actual common encoding version is {common}"))
        }
        Some(_) => None,
    };
    if let Some(fault) = fault {
        let path = path.child("commonEncodingVersion");
        errors.push(FieldError::invalid(&path, said.clone(), fault));
    }
    conditions(list_at(status, &["conditions"]), &path, errors);
}

/// So many versions that can be decoded are shown with each that cannot.
const SHOWN: usize = 100;

/// The versions of one server.
fn versions(server: &Value, path: &Path, errors: &mut ErrorList) {
    let texts = |key: &str| {
        let list = list_at(server, &[key]).iter();
        list.map(|v| v.as_str().unwrap_or_default())
            .collect::<Vec<_>>()
    };
    let encoding = str_at(server, &["encodingVersion"]);
    let (decodable, served) = (texts("decodableVersions"), texts("servedVersions"));
    let mut check = |text: &str, path: &Path| {
        let faults = api_version_faults(text);
        if !faults.is_empty() {
            errors.push(FieldError::invalid(path, text, faults.join(",")));
        }
    };
    check(encoding, &path.child("encodingVersion"));
    for (i, version) in decodable.iter().enumerate() {
        check(version, &path.child("decodableVersions").index(i));
    }
    for (i, version) in served.iter().enumerate() {
        check(version, &path.child("servedVersions").index(i));
    }
    if !decodable.contains(&encoding) {
        let path = path.child("decodableVersions");
        let why = format!("decodableVersions must include encodingVersion {encoding}");
        errors.push(FieldError::invalid(
            &path,
            at(server, &["decodableVersions"]).clone(),
            why,
        ));
    }
    let all: HashSet<&str> = decodable.iter().copied().collect();
    // Each fault shows them.
    let shown = decodable.iter().take(SHOWN).copied().collect::<Vec<_>>();
    let shown = shown.join(" ");
    for (i, version) in served.iter().enumerate() {
        if !all.contains(version) {
            let why = format!(
                "individual served version : {version} must be included in decodableVersions : [{shown}]"
            );
            let path = path.child("servedVersions").index(i);
            errors.push(FieldError::invalid(&path, *version, why));
        }
    }
}

/// Their places are said without the name of the list, as in the original.
fn conditions(conditions: &[Value], path: &Path, errors: &mut ErrorList) {
    let mut seen = HashMap::new();
    for (i, condition) in conditions.iter().enumerate() {
        let path = path.index(i);
        let kind = str_at(condition, &["type"]);
        if let Some(first) = seen.insert(kind, i) {
            let why = format!(
                "the type of the condition is not unique, it also appears in conditions[{first}]"
            );
            errors.push(FieldError::invalid(&path.child("type"), kind, why));
        }
        for key in ["type", "status"] {
            let text = str_at(condition, &[key]);
            errors.extend(invalid_each(
                &path.child(key),
                text,
                names::check_qualified_name(text),
            ));
        }
        required(condition, "reason", &path, errors);
        required(condition, "message", &path, errors);
    }
}

fn api_version_faults(version: &str) -> Vec<String> {
    const TEXT: &str = "a DNS-1035 label, which must consist of lower case alphanumeric characters or '-', start with an \
                        alphabetic character, and end with an alphanumeric character";
    let parts: Vec<&str> = version.split('/').collect();
    let (group, version) = match parts[..] {
        [version] => (None, version),
        [group, version] => (Some(group), version),
        _ => {
            let format =
                names::regex_text(TEXT, "[a-z]([-a-z0-9]*[a-z0-9])?", &["my-name", "abc-123"]);
            return vec![format!(
                "an apiVersion is {format} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyVersion')"
            )];
        }
    };
    let part = |name: &str, text: &str, faults: Vec<String>| {
        let faults = if text.is_empty() {
            vec!["must be non-empty".to_owned()]
        } else {
            faults
        };
        faults
            .into_iter()
            .map(|why| format!("{name} part: {why}"))
            .collect::<Vec<_>>()
    };
    let group = group.map(|group| part("group", group, names::check_dns1123_subdomain(group)));
    let version = part("version", version, names::check_dns1035_label(version));
    [group.unwrap_or_default(), version].concat()
}

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

    fn validate_status_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        migration_status(new, old, &mut errors);
        errors
    }
}

fn migration_status(new: &Value, old: &Value, errors: &mut ErrorList) {
    let path = Path::new("status");
    let version = str_at(new, &["status", "resourceVersion"]);
    let at_version = path.child("resourceVersion");
    let is_number = version.bytes().all(|b| b.is_ascii_digit()) && !version.starts_with('0');
    if !version.is_empty() && !is_number {
        let why = format!("resource version is not well formed: {version}");
        errors.push(FieldError::invalid(&at_version, version, why));
    }
    let list = list_at(new, &["status", "conditions"]);
    let at_conditions = path.child("conditions");
    status_conditions::validate(list, &at_conditions, errors);
    let before = str_at(old, &["status", "resourceVersion"]);
    if !before.is_empty() && before != version {
        errors.push(FieldError::invalid(
            &at_version,
            version,
            "field is immutable",
        ));
    }
    let is = |obj: &Value, kind: &str| {
        let mut list = list_at(obj, &["status", "conditions"]).iter();
        list.find(|c| str_at(c, &["type"]) == kind)
            .is_some_and(|c| str_at(c, &["status"]) == "True")
    };
    let mut refuse = |holds: bool, why: &str| {
        if holds {
            errors.push(FieldError::invalid(&at_conditions, list.to_vec(), why));
        }
    };
    let [succeeded, failed] = ["Succeeded", "Failed"].map(|kind| (is(old, kind), is(new, kind)));
    refuse(
        succeeded.1 && failed.1,
        "Both success and failed conditions cannot be true at the same time",
    );
    refuse(
        succeeded.0 && !succeeded.1,
        "Success condition cannot be set to false once it is true",
    );
    refuse(
        failed.0 && !failed.1,
        "Failed condition cannot be set to false once it is true",
    );
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

    use crate::testing::{faults, status_faults, update_faults};

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

    #[test]
    fn faults_of_the_status_of_migrations() {
        let of = |status: Value| json!({"metadata": {"name": "m"}, "spec": {"resource": {"group": "apps", "resource": "deployments"}}, "status": status});
        let condition = |kind: &str, status: &str| json!({"type": kind, "status": status, "reason": "R", "lastTransitionTime": "2024-01-01T00:00:00Z"});
        let faults =
            |new: Value, old: Value| status_faults(KIND.0, KIND.1, KIND.2, &of(new), &of(old));
        assert_eq!(faults(json!({"resourceVersion": "7"}), json!({})), "");
        assert_eq!(
            faults(json!({"resourceVersion": "x"}), json!({})),
            "status.resourceVersion: Invalid value: \"x\": resource version is not well formed: x"
        );
        let done = json!({"conditions": [condition("Succeeded", "True")]});
        let undone = json!({"conditions": [condition("Succeeded", "False")]});
        assert!(faults(undone, done).contains("Success condition cannot be set to false"));
    }

    #[test]
    fn faults_of_storage_versions() {
        const KIND: (&str, &str, &str) =
            ("internal.apiserver.k8s.io", "v1alpha1", "StorageVersion");
        let named = |name: &str| json!({"metadata": {"name": name}, "spec": {}});
        assert_eq!(
            faults(KIND.0, KIND.1, KIND.2, &named("apps.deployments")),
            ""
        );
        let why = "Invalid value: \"v:1\": name must be in the form of <group>.<resource>";
        assert_eq!(
            faults(KIND.0, KIND.1, KIND.2, &named("v:1")),
            format!("metadata.name: {why}")
        );
        let mut base = named("apps.deployments");
        base["metadata"]["generateName"] = json!("v:1");
        assert_eq!(
            faults(KIND.0, KIND.1, KIND.2, &base),
            format!("metadata.generateName: {why}")
        );
        let of = |status: Value| {
            let mut object = named("apps.deployments");
            object["status"] = status;
            status_faults(KIND.0, KIND.1, KIND.2, &object, &named("apps.deployments"))
        };
        let server =
            json!({"apiServerID": "a", "encodingVersion": "v1", "decodableVersions": ["v1"]});
        assert_eq!(
            of(json!({"storageVersions": [server], "commonEncodingVersion": "v1"})),
            ""
        );
        let found = of(
            json!({"storageVersions": [server, {"apiServerID": "a", "encodingVersion": "a/b/c"}]}),
        );
        for fault in [
            "[1].apiServerID: Duplicate",
            "an apiVersion is a DNS-1035",
            "must include encodingVersion",
        ] {
            assert!(found.contains(fault), "{fault}: {found}");
        }
    }
}
