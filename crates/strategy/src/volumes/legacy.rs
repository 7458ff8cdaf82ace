//! Volumes of clouds and storage systems from before there were drivers: nothing here mounts them, but what is written
//! of them is checked.

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use serde_json::Value;

use super::super::fields;
use super::super::fields::{optional_choice, required};
use super::super::json::{at, has, int_at, list_at, str_at};

/// What must be given of each.
const REQUIRED: [(&str, &[&str]); 13] = [
    ("gitRepo", &["repository"]),
    ("gcePersistentDisk", &["pdName"]),
    ("awsElasticBlockStore", &["volumeID"]),
    ("glusterfs", &["endpoints", "path"]),
    ("rbd", &["image"]),
    ("cinder", &["volumeID"]),
    ("azureFile", &["secretName", "shareName"]),
    ("azureDisk", &["diskName", "diskURI"]),
    ("vsphereVolume", &["volumePath"]),
    ("photonPersistentDisk", &["pdID"]),
    ("portworxVolume", &["volumeID"]),
    ("scaleIO", &["gateway", "system", "volumeName"]),
    ("quobyte", &["volume"]),
];

/// What the field of a source is called where its faults are told.
pub(crate) fn field(kind: &str) -> &str {
    match kind {
        "gcePersistentDisk" => "persistentDisk",
        kind => kind,
    }
}

/// What the field of a source is called that stands beside another one.
pub(crate) fn other(kind: &str) -> &str {
    match kind {
        "cephfs" => "cephFS",
        kind => kind,
    }
}

/// Faults of a source of one of the old kinds; others have none.
pub(crate) fn validate(kind: &str, source: &Value, path: &Path, errors: &mut ErrorList) {
    if matches!(kind, "rbd" | "cephfs") && list_at(source, &["monitors"]).is_empty() {
        errors.push(FieldError::required(&path.child("monitors"), ""));
    }
    let needs = REQUIRED.iter().find(|(name, _)| *name == kind);
    for key in needs.into_iter().flat_map(|(_, keys)| keys.iter()) {
        required(source, key, path, errors);
    }
    match kind {
        "gitRepo" => {
            let target = str_at(source, &["directory"]);
            super::descending_path(target, &path.child("directory"), errors);
        }
        "gcePersistentDisk" | "awsElasticBlockStore" => partition(source, path, errors),
        "flocker" => flocker(source, path, errors),
        "quobyte" => quobyte(source, path, errors),
        "azureDisk" => azure_disk(source, path, errors),
        "storageos" => {
            let check = names::check_dns1123_label;
            fields::name(source, "volumeName", check, path, errors);
            fields::optional_name(source, "volumeNamespace", check, path, errors);
            secret(source, path, errors);
        }
        "cinder" => secret(source, path, errors),
        "fc" => fibre_channel(source, path, errors),
        _ => {}
    }
}

/// Faults of a source of a persistent volume, whose secret may be in any namespace.
pub(crate) fn of_persistent_volume(
    kind: &str,
    source: &Value,
    path: &Path,
    errors: &mut ErrorList,
) {
    validate(kind, source, path, errors);
    match kind {
        "cinder" | "storageos" if has(source, &["secretRef"]) => {
            let secret = at(source, &["secretRef"]);
            required(secret, "namespace", &path.child("secretRef"), errors);
        }
        "azureFile" if has(source, &["secretNamespace"]) => {
            required(source, "secretNamespace", path, errors);
        }
        "glusterfs" if has(source, &["endpointsNamespace"]) => {
            endpoints_namespace(source, path, errors);
        }
        _ => {}
    }
}

fn endpoints_namespace(source: &Value, path: &Path, errors: &mut ErrorList) {
    let (path, given) = (
        path.child("endpointsNamespace"),
        str_at(source, &["endpointsNamespace"]),
    );
    if given.is_empty() {
        let fault = "if the endpointnamespace is set, it must be a valid namespace name";
        errors.push(FieldError::invalid(&path, given, fault));
    } else {
        let faults = names::check_dns1123_label(given);
        errors.extend(invalid_each(&path, given, faults));
    }
}

fn secret(source: &Value, path: &Path, errors: &mut ErrorList) {
    let secret = at(source, &["secretRef"]);
    if !secret.is_null() {
        required(secret, "name", &path.child("secretRef"), errors);
    }
}

fn partition(source: &Value, path: &Path, errors: &mut ErrorList) {
    let number = int_at(source, &["partition"]).unwrap_or(0);
    if !(0..=255).contains(&number) {
        let fault = "must be between 1 and 255, inclusive";
        let path = path.child("partition");
        errors.push(FieldError::invalid(&path, number, fault));
    }
}

fn flocker(source: &Value, path: &Path, errors: &mut ErrorList) {
    let [name, uuid] = ["datasetName", "datasetUUID"].map(|key| str_at(source, &[key]));
    match (name.is_empty(), uuid.is_empty()) {
        (true, true) => {
            let why = "one of datasetName and datasetUUID is required";
            errors.push(FieldError::required(path, why));
        }
        (false, false) => {
            let fault = "datasetName and datasetUUID can not be specified simultaneously";
            errors.push(FieldError::invalid(path, "resource", fault));
        }
        _ => {}
    }
    if name.contains('/') {
        let path = path.child("datasetName");
        errors.push(FieldError::invalid(&path, name, "must not contain '/'"));
    }
}

fn quobyte(source: &Value, path: &Path, errors: &mut ErrorList) {
    const PAIRS: &str = "must be a host:port pair or multiple pairs separated by commas";
    const TENANT_MAX: usize = 64;
    let registry = str_at(source, &["registry"]);
    let at_registry = path.child("registry");
    if registry.is_empty() {
        errors.push(FieldError::required(&at_registry, PAIRS));
    } else if str_at(source, &["tenant"]).len() > TENANT_MAX {
        let why = "must be a UUID and may not exceed a length of 64 characters";
        errors.push(FieldError::required(&path.child("tenant"), why));
    } else {
        let is_pair = |pair: &str| match pair.rsplit_once(':') {
            Some((host, _)) if host.starts_with('[') => host.ends_with(']'),
            Some((host, _)) => !host.contains(':'),
            None => false,
        };
        for _ in registry.split(',').filter(|pair| !is_pair(pair)) {
            errors.push(FieldError::invalid(&at_registry, registry, PAIRS));
        }
    }
}

fn azure_disk(source: &Value, path: &Path, errors: &mut ErrorList) {
    const MANAGED: &str = "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}";
    const BLOB: &str =
        "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd";
    let modes = ["None", "ReadOnly", "ReadWrite"];
    optional_choice(source, "cachingMode", &modes, path, errors);
    let kinds = ["Dedicated", "Managed", "Shared"];
    optional_choice(source, "kind", &kinds, path, errors);
    let uri = str_at(source, &["diskURI"]);
    let (start, form) = match at(source, &["kind"]).as_str() {
        None => return,
        Some("Managed") => ("/subscriptions/", MANAGED),
        Some(_) => ("https://", BLOB),
    };
    if !uri.starts_with(start) {
        let path = path.child("diskURI");
        errors.push(FieldError::not_supported(&path, uri, &[form]));
    }
}

fn fibre_channel(source: &Value, path: &Path, errors: &mut ErrorList) {
    let targets = list_at(source, &["targetWWNs"]);
    let is_wide = !list_at(source, &["wwids"]).is_empty();
    let at_targets = path.child("targetWWNs");
    if targets.is_empty() && !is_wide {
        let why = "must specify either targetWWNs or wwids, but not both";
        errors.push(FieldError::required(&at_targets, why));
    }
    if targets.is_empty() {
        return;
    }
    if is_wide {
        let fault = "targetWWNs and wwids can not be specified simultaneously";
        errors.push(FieldError::invalid(&at_targets, targets.to_vec(), fault));
    }
    if !has(source, &["lun"]) {
        let why = "lun is required if targetWWNs is specified";
        errors.push(FieldError::required(&path.child("lun"), why));
    } else if let Some(lun) = int_at(source, &["lun"]).filter(|lun| !(0..=255).contains(lun)) {
        let fault = "must be between 0 and 255, inclusive";
        errors.push(FieldError::invalid(&path.child("lun"), lun, fault));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn faults_of_old_volumes() {
        let path = |kind: &str| {
            Path::new("spec")
                .child("volumes")
                .index(0)
                .child(field(kind))
        };
        let cases = [
            (
                "gitRepo",
                json!({}),
                "spec.volumes[0].gitRepo.repository: Required value",
            ),
            (
                "gcePersistentDisk",
                json!({"partition": -1}),
                "spec.volumes[0].persistentDisk.pdName: Required value\n\
                 spec.volumes[0].persistentDisk.partition: Invalid value: -1: must be between 1 and 255, inclusive",
            ),
            (
                "flocker",
                json!({}),
                "spec.volumes[0].flocker: Required value: one of datasetName and datasetUUID is required",
            ),
            (
                "rbd",
                json!({"monitors": ["a"]}),
                "spec.volumes[0].rbd.image: Required value",
            ),
            (
                "azureDisk",
                json!({"diskName": "d", "diskURI": "x", "kind": "Managed"}),
                "spec.volumes[0].azureDisk.diskURI: Unsupported value: \"x\": supported values: \"/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}\"",
            ),
            (
                "quobyte",
                json!({"registry": "a", "volume": "v"}),
                "spec.volumes[0].quobyte.registry: Invalid value: \"a\": must be a host:port pair or multiple pairs separated by commas",
            ),
            (
                "fc",
                json!({"targetWWNs": ["a"]}),
                "spec.volumes[0].fc.lun: Required value: lun is required if targetWWNs is specified",
            ),
            ("emptyDir", json!({}), ""),
        ];
        for (kind, source, wanted) in cases {
            let mut errors = ErrorList::new();
            validate(kind, &source, &path(kind), &mut errors);
            assert_eq!(crate::testing::lines(&errors), wanted);
        }
    }
}
