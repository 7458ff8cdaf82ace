//! Volumes of pods and templates.

use std::collections::HashSet;

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use davit_api::quantity::Quantity;
use serde_json::Value;

use super::fields::{optional_choice, required};
use super::json::{at, int_at, list_at, str_at};

/// Bytes of the name of a file system.
const MAX_FS_TYPE: usize = 63;

pub(super) mod env_files;
pub(super) mod iscsi;
pub(super) mod legacy;
mod projected;

pub(super) use projected::user_annotations;

/// The sources of volumes in the order in which they are looked at: the first one counts.
const SOURCES: [&str; 30] = [
    "emptyDir",
    "hostPath",
    "gitRepo",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "secret",
    "nfs",
    "iscsi",
    "glusterfs",
    "flocker",
    "persistentVolumeClaim",
    "rbd",
    "cinder",
    "cephfs",
    "quobyte",
    "downwardAPI",
    "fc",
    "flexVolume",
    "configMap",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "storageos",
    "projected",
    "scaleIO",
    "csi",
    "ephemeral",
    "image",
];

const BACKSTEPS: &str = "must not contain '..'";

/// Faults of the volumes of a pod spec.
pub(super) fn all(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let mut taken = HashSet::new();
    for (i, volume) in list_at(spec, &["volumes"]).iter().enumerate() {
        let path = path.child("volumes").index(i);
        let name = str_at(volume, &["name"]);
        let at_name = path.child("name");
        if name.is_empty() {
            errors.push(FieldError::required(&at_name, ""));
        } else {
            errors.extend(invalid_each(
                &at_name,
                name,
                names::check_dns1123_label(name),
            ));
            if !taken.insert(name) {
                errors.push(FieldError::duplicate(&at_name, name));
            }
        }
        source(volume, &path, errors);
    }
}

fn source(volume: &Value, path: &Path, errors: &mut ErrorList) {
    let mut given = 0;
    for kind in SOURCES {
        let source = at(volume, &[kind]);
        if source.is_null() {
            continue;
        }
        given += 1;
        if given > 1 {
            let why = "may not specify more than 1 volume type";
            errors.push(FieldError::forbidden(&path.child(legacy::other(kind)), why));
        } else {
            of_kind(kind, source, &path.child(legacy::field(kind)), errors);
        }
    }
    if given == 0 {
        errors.push(FieldError::required(path, "must specify a volume type"));
    }
}

fn of_kind(kind: &str, source: &Value, path: &Path, errors: &mut ErrorList) {
    match kind {
        "hostPath" => host_path(source, path, errors),
        "emptyDir" => {
            let size = at(source, &["sizeLimit"]);
            if Quantity::from_json(size).is_ok_and(|q| q.signum() < 0) {
                let why = "SizeLimit field must be a valid resource quantity";
                errors.push(FieldError::forbidden(&path.child("sizeLimit"), why));
            }
        }
        "configMap" => {
            required(source, "name", path, errors);
            files(source, path, errors);
        }
        "secret" => {
            required(source, "secretName", path, errors);
            files(source, path, errors);
        }
        "downwardAPI" => {
            mode(source, "defaultMode", path, errors);
            downward(list_at(source, &["items"]), &path.child("items"), errors);
        }
        "projected" => projected::validate(source, path, errors),
        "persistentVolumeClaim" => required(source, "claimName", path, errors),
        "csi" => required(source, "driver", path, errors),
        "flexVolume" => flex_volume(source, path, errors),
        "nfs" => nfs(source, path, errors),
        "iscsi" => iscsi::validate(source, None, path, errors),
        "image" => {
            optional_choice(
                source,
                "pullPolicy",
                &["Always", "IfNotPresent", "Never"],
                path,
                errors,
            );
            required(source, "reference", path, errors);
        }
        "ephemeral" => {
            if at(source, &["volumeClaimTemplate"]).is_null() {
                errors.push(FieldError::required(&path.child("volumeClaimTemplate"), ""));
            } else {
                let path = path.child("volumeClaimTemplate").child("spec");
                super::claims::claim_spec(
                    at(source, &["volumeClaimTemplate", "spec"]),
                    &path,
                    errors,
                );
            }
        }
        kind => legacy::validate(kind, source, path, errors),
    }
}

/// Faults of a volume of a FlexVolume driver.
pub(super) fn flex_volume(source: &Value, path: &Path, errors: &mut ErrorList) {
    required(source, "driver", path, errors);
    fs_type(source, path, errors);
    let options = at(source, &["options"]).as_object();
    for (key, _) in options.into_iter().flatten() {
        let namespace = key.split('/').next().unwrap_or_default().to_lowercase();
        let is_of = |domain| {
            let rest = namespace.strip_suffix(domain);
            rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        if is_of("kubernetes.io") || is_of("k8s.io") {
            let path = path.child("options").key(key);
            let why = "kubernetes.io and k8s.io namespaces are reserved";
            errors.push(FieldError::invalid(&path, key.as_str(), why));
        }
    }
}

/// Faults of the type of a file system that the node makes and mounts: it becomes the name of a program there.
pub(super) fn fs_type(source: &Value, path: &Path, errors: &mut ErrorList) {
    let wish = str_at(source, &["fsType"]);
    let is_good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if wish.len() > MAX_FS_TYPE || wish.starts_with(['-', '.']) || !wish.bytes().all(is_good) {
        let why = "must be the name of a file system: letters, digits, '-', '_' and '.'";
        errors.push(FieldError::invalid(&path.child("fsType"), wish, why));
    }
}

/// Faults of a host path.
pub(super) fn host_path(source: &Value, path: &Path, errors: &mut ErrorList) {
    const TYPES: [&str; 7] = [
        "BlockDevice",
        "CharDevice",
        "Directory",
        "DirectoryOrCreate",
        "File",
        "FileOrCreate",
        "Socket",
    ];
    let host = str_at(source, &["path"]);
    if host.is_empty() {
        errors.push(FieldError::required(&path.child("path"), ""));
    } else if host.split('/').any(|part| part == "..") {
        errors.push(FieldError::invalid(&path.child("path"), host, BACKSTEPS));
    }
    let kind = str_at(source, &["type"]);
    if !kind.is_empty() && !TYPES.contains(&kind) {
        errors.push(FieldError::not_supported(&path.child("type"), kind, &TYPES));
    }
}

fn mode(of: &Value, key: &str, path: &Path, errors: &mut ErrorList) {
    if let Some(mode) = int_at(of, &[key]).filter(|m| !(0..=0o777).contains(m)) {
        let fault = "must be a number between 0 and 0777 (octal), both inclusive";
        errors.push(FieldError::invalid(&path.child(key), mode, fault));
    }
}

/// Faults of `items` (key to path) and of the default mode.
fn files(source: &Value, path: &Path, errors: &mut ErrorList) {
    mode(source, "defaultMode", path, errors);
    for (i, item) in list_at(source, &["items"]).iter().enumerate() {
        let path = path.child("items").index(i);
        required(item, "key", &path, errors);
        required(item, "path", &path, errors);
        not_stepping_out(str_at(item, &["path"]), &path.child("path"), errors);
        mode(item, "mode", &path, errors);
    }
}

/// Faults of a path below a directory that must not leave it; empty is fine.
pub(super) fn descending_path(target: &str, path: &Path, errors: &mut ErrorList) {
    if target.starts_with('/') {
        errors.push(FieldError::invalid(path, target, "must be a relative path"));
    }
    if target.split('/').any(|part| part == "..") {
        errors.push(FieldError::invalid(path, target, BACKSTEPS));
    }
}

/// As [`descending_path`], and no first part that begins with two dots.
fn not_stepping_out(target: &str, path: &Path, errors: &mut ErrorList) {
    descending_path(target, path, errors);
    if target.starts_with("..") && !target.starts_with("../") && target != ".." {
        errors.push(FieldError::invalid(
            path,
            target,
            "must not start with '..'",
        ));
    }
}

fn downward(items: &[Value], path: &Path, errors: &mut ErrorList) {
    for (i, item) in items.iter().enumerate() {
        let path = path.index(i);
        required(item, "path", &path, errors);
        not_stepping_out(str_at(item, &["path"]), &path.child("path"), errors);
        let (field, resource) = (at(item, &["fieldRef"]), at(item, &["resourceFieldRef"]));
        match (field.is_null(), resource.is_null()) {
            (false, false) => {
                let fault = "fieldRef and resourceFieldRef can not be specified simultaneously";
                errors.push(FieldError::invalid(&path, "resource", fault));
            }
            (false, true) => field_ref(field, false, &path.child("fieldRef"), errors),
            (true, false) => {
                resource_field_ref(resource, false, &path.child("resourceFieldRef"), errors);
            }
            (true, true) => {
                let why = "one of fieldRef and resourceFieldRef is required";
                errors.push(FieldError::required(&path.child("fieldRef"), why));
            }
        }
        mode(item, "mode", &path, errors);
    }
}

/// Faults of a reference to a field of the pod; in the environment more fields are allowed than
/// in files, but no whole maps.
pub(super) fn field_ref(of: &Value, env: bool, path: &Path, errors: &mut ErrorList) {
    const ENV: [&str; 9] = [
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "spec.nodeName",
        "spec.serviceAccountName",
        "status.hostIP",
        "status.hostIPs",
        "status.podIP",
        "status.podIPs",
    ];
    const FILES: [&str; 5] = [
        "metadata.annotations",
        "metadata.labels",
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
    ];
    required(of, "apiVersion", path, errors);
    let field = str_at(of, &["fieldPath"]);
    let at_field = path.child("fieldPath");
    if field.is_empty() {
        errors.push(FieldError::required(&at_field, ""));
        return;
    }
    if let Some((map, key)) = field.strip_suffix("']").and_then(|f| f.split_once("['")) {
        match map {
            "metadata.labels" => {
                errors.extend(invalid_each(
                    &at_field,
                    key,
                    names::check_qualified_name(key),
                ));
            }
            "metadata.annotations" => {
                let faults = names::check_qualified_name(&key.to_lowercase());
                errors.extend(invalid_each(&at_field, key, faults));
            }
            _ => {
                let fault = "does not support subscript";
                errors.push(FieldError::invalid(&at_field, field, fault));
            }
        }
        return;
    }
    let supported: &[&str] = if env { &ENV } else { &FILES };
    if !supported.contains(&field) {
        if ENV.contains(&field) || FILES.contains(&field) {
            errors.push(FieldError::not_supported(&at_field, field, supported));
        } else {
            let fault = format!("error converting fieldPath: field label not supported: {field}");
            errors.push(FieldError::invalid(&at_field, field, fault));
        }
    }
}

/// Faults of a reference to a resource of a container.
pub(super) fn resource_field_ref(of: &Value, env: bool, path: &Path, errors: &mut ErrorList) {
    const SUPPORTED: [&str; 6] = [
        "limits.cpu",
        "limits.ephemeral-storage",
        "limits.memory",
        "requests.cpu",
        "requests.ephemeral-storage",
        "requests.memory",
    ];
    if !env {
        required(of, "containerName", path, errors);
    }
    let resource = str_at(of, &["resource"]);
    let huge = ["limits.hugepages-", "requests.hugepages-"]
        .iter()
        .any(|p| resource.starts_with(p));
    if resource.is_empty() {
        errors.push(FieldError::required(&path.child("resource"), ""));
    } else if !SUPPORTED.contains(&resource) && !huge {
        errors.push(FieldError::not_supported(
            &path.child("resource"),
            resource,
            &SUPPORTED,
        ));
    }
}

pub(super) fn nfs(source: &Value, path: &Path, errors: &mut ErrorList) {
    required(source, "server", path, errors);
    required(source, "path", path, errors);
    let target = str_at(source, &["path"]);
    if !target.starts_with('/') {
        let fault = "must be an absolute path";
        errors.push(FieldError::invalid(&path.child("path"), target, fault));
    }
}

/// Faults of the mode of a volume (file system or block device).
pub(super) fn volume_mode(of: &Value, path: &Path, errors: &mut ErrorList) {
    optional_choice(of, "volumeMode", &["Block", "Filesystem"], path, errors);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn flex_volumes_have_drivers_and_options_of_their_own() {
        let faults = |source: Value| {
            let mut errors = ErrorList::new();
            flex_volume(&source, &Path::new("flexVolume"), &mut errors);
            let texts = errors.iter().map(|e| format!("{}: {}", e.field, e.body()));
            texts.collect::<Vec<_>>()
        };
        let good = json!({"driver": "a/b", "options": {"size": "1", "example.com/k8s.io": "x", "my-k8s.io/x": ""}});
        assert!(faults(good).is_empty());
        for wish in ["../../proc", "ext4 -F", "-x", "ext4\n", &"x".repeat(64)] {
            let bad = faults(json!({"driver": "a/b", "fsType": wish}));
            assert!(
                bad.len() == 1 && bad[0].starts_with("flexVolume.fsType: "),
                "{bad:?}"
            );
        }
        assert!(faults(json!({"driver": "a/b", "fsType": "fuse.s3fs"})).is_empty());
        let bad = json!({"options": {"a.Kubernetes.io/x": "", "k8s.io": ""}});
        assert_eq!(
            faults(bad),
            [
                "flexVolume.driver: Required value",
                "flexVolume.options[a.Kubernetes.io/x]: Invalid value: \"a.Kubernetes.io/x\": kubernetes.io and k8s.io \
                 namespaces are reserved",
                "flexVolume.options[k8s.io]: Invalid value: \"k8s.io\": kubernetes.io and k8s.io namespaces are reserved",
            ]
        );
    }
}
