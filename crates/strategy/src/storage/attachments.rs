//! Attachments of volumes to nodes.

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use serde_json::Value;

use super::super::fields;
use super::super::json::{at, entries_at, has, str_at};
use super::super::{KindInfo, Strategy, meta, persistent_volumes};

/// Most bytes of what a driver says of an attachment.
const METADATA_MAX: usize = 256 << 10;
const MESSAGE_MAX: usize = 1024;

pub(super) struct VolumeAttachment(pub(super) KindInfo);

impl Strategy for VolumeAttachment {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        attachment(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        attachment(new, &mut errors);
        meta::immutable_at(new, old, &["spec"], &mut errors);
        errors
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> ErrorList {
        self.validate_update(new, old)
    }
}

fn attachment(obj: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec");
    let spec = at(obj, &["spec"]);
    let driver = str_at(spec, &["attacher"]);
    fields::driver_name(driver, &path.child("attacher"), errors);
    source(at(spec, &["source"]), &path.child("source"), errors);
    let node = str_at(spec, &["nodeName"]);
    let faults = names::check_dns1123_subdomain(node);
    errors.extend(invalid_each(&path.child("nodeName"), node, faults));
    status(at(obj, &["status"]), errors);
}

fn source(source: &Value, path: &Path, errors: &mut ErrorList) {
    const ONE: &str = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    let inline = at(source, &["inlineVolumeSpec"]);
    let name = at(source, &["persistentVolumeName"]).as_str();
    let at_name = path.child("persistentVolumeName");
    match (inline.is_null(), name) {
        (true, None) => errors.push(FieldError::required(path, ONE)),
        (false, Some(_)) => errors.push(FieldError::forbidden(path, ONE)),
        (true, Some("")) => {
            let why = "must specify non empty persistentVolumeName";
            errors.push(FieldError::required(&at_name, why));
        }
        (true, Some(_)) => {}
        (false, None) => {
            persistent_volumes::inline(inline, &path.child("inlineVolumeSpec"), errors);
        }
    }
    if let Some(name) = name {
        let faults = names::check_dns1123_subdomain(name);
        errors.extend(invalid_each(&at_name, name, faults));
    }
}

fn status(status: &Value, errors: &mut ErrorList) {
    let path = Path::new("status");
    let bytes: usize = entries_at(status, &["attachmentMetadata"])
        .map(|(key, value)| key.len() + value.as_str().unwrap_or_default().len())
        .sum();
    if bytes > METADATA_MAX {
        let path = path.child("attachmentMetadata");
        errors.push(FieldError::too_long(&path, METADATA_MAX));
    }
    for key in ["attachError", "detachError"] {
        let path = path.child(key);
        if str_at(status, &[key, "message"]).len() > MESSAGE_MAX {
            // the original names the other limit
            errors.push(FieldError::too_long(&path.child("message"), METADATA_MAX));
        }
        if has(status, &[key, "errorCode"]) {
            let code = at(status, &[key, "errorCode"]).as_i64().unwrap_or(0);
            if code < 0 {
                let fault = names::range_text(0, i64::from(i32::MAX));
                errors.push(FieldError::invalid(&path.child("errorCode"), code, fault));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::testing::faults;

    #[test]
    fn faults_of_attachments() {
        let of = |source: Value| json!({"metadata": {"name": "a"}, "spec": {"attacher": "d.example.com", "nodeName": "n", "source": source}});
        let one = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
        let cases = [
            (json!({}), format!("spec.source: Required value: {one}")),
            (json!({"persistentVolumeName": "a", "inlineVolumeSpec": {}}), format!("spec.source: Forbidden: {one}")),
            (json!({"inlineVolumeSpec": {"accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}}),
                "spec.source.inlineVolumeSpec.csi: Required value: has to be specified in the context of inline volumes".to_owned()),
            (json!({"persistentVolumeName": "a"}), String::new()),
        ];
        for (source, wanted) in cases {
            assert_eq!(
                faults("storage.k8s.io", "v1", "VolumeAttachment", &of(source)),
                wanted
            );
        }
        let mut obj = of(json!({"persistentVolumeName": "a"}));
        obj["spec"]["attacher"] = json!("");
        assert_eq!(
            faults("storage.k8s.io", "v1", "VolumeAttachment", &obj),
            "spec.attacher: Required value"
        );
    }
}
