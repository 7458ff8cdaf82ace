//! Files that tell containers what they have of a claim (KEP-5304): which driver, pool and device serve each request, and
//! what the driver says of them.
//!
//! A file is written for each request when the claim is prepared, mounted by a CDI file of its own, and removed when the
//! claim is undone.

use std::io;
use std::path::{Path, PathBuf};

use davit_api::names::check_dns1123_label;
use serde_json::{Value, json};

use super::cdi::{self, Edits};
use super::claim::main_request;
use super::{AllocatedClaim, ClaimId, PreparedDevice};

/// Below the driver's own folder.
const DIR: &str = "dra-device-metadata";
/// Where containers find them.
const IN_CONTAINER: &str = "/var/run/kubernetes.io/dra-device-attributes";
const API_VERSION: &str = "metadata.resource.k8s.io/v1alpha1";
/// On generated claims: the name by which the pod calls it.
const POD_CLAIM: &str = "resource.kubernetes.io/pod-claim-name";

/// The metadata files of a driver.
#[derive(Debug)]
pub(super) struct MetadataFiles {
    pub(super) driver: String,
    /// The driver's own folder.
    pub(super) data_dir: PathBuf,
    pub(super) cdi_dir: PathBuf,
}

impl MetadataFiles {
    /// Writes what there is to tell of a claim, and gives its devices the CDI names that mount it.
    pub(super) fn write(
        &self,
        claim: &AllocatedClaim,
        devices: &mut [PreparedDevice],
    ) -> io::Result<()> {
        let mut requests: Vec<String> = Vec::new();
        for request in claim.devices().iter().map(|d| &d.request) {
            if !requests.contains(request) {
                requests.push(request.clone());
            }
        }
        for request in requests {
            let main = main_request(&request);
            let serves = |d: &PreparedDevice| {
                d.requests.is_empty() || d.requests.iter().any(|r| main_request(r) == main)
            };
            let served = devices.iter().filter(|d| serves(d));
            let told: Vec<Value> = served.map(|d| self.device(d)).collect();
            let object = metadata(claim, &request, &told);
            let name = self.write_request(claim, main, &object)?;
            for device in devices.iter_mut().filter(|d| serves(d)) {
                device.cdi.push(name.clone());
            }
        }
        Ok(())
    }

    /// Removes everything of a claim; that there is nothing is fine.
    pub(super) fn remove(&self, claim: &ClaimId) -> io::Result<()> {
        let prefix = self.cdi_prefix(&claim.uid);
        let entries = match std::fs::read_dir(&self.cdi_dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            entries => Some(entries?),
        };
        for entry in entries.into_iter().flatten() {
            let entry = entry?;
            let name = entry.file_name();
            if name.to_str().is_some_and(|n| n.starts_with(&prefix)) {
                missing_is_fine(std::fs::remove_file(entry.path()))?;
            }
        }
        missing_is_fine(std::fs::remove_dir_all(self.claim_dir(claim)))
    }

    fn device(&self, device: &PreparedDevice) -> Value {
        let mut told = json!({"driver": self.driver, "pool": device.pool, "name": device.device});
        if !device.attributes.is_empty() {
            told["attributes"] = json!(device.attributes);
        }
        told
    }

    fn write_request(
        &self,
        claim: &AllocatedClaim,
        request: &str,
        object: &Value,
    ) -> io::Result<String> {
        let file = self
            .claim_dir(claim.id())
            .join(request)
            .join("metadata.json");
        // A stream of objects, one for each version that is known.
        let mut bytes = serde_json::to_vec(object).map_err(io::Error::other)?;
        bytes.push(b'\n');
        cdi::write_atomically(&file, &bytes)?;
        let uid = &claim.id().uid;
        let mut edits = Edits::new();
        edits.mounts.push(cdi::Mount {
            host_path: file.display().to_string(),
            container_path: self.container_path(claim, request),
            options: vec!["ro".to_owned(), "bind".to_owned()],
        });
        let (kind, name) = (
            format!("{}/metadata", self.driver),
            format!("{uid}_{request}"),
        );
        let spec = json!({"cdiVersion": "0.5.0", "kind": kind, "devices": [
            {"name": name, "containerEdits": edits}]});
        let path = format!("{}{request}.json", self.cdi_prefix(uid));
        let bytes = serde_json::to_vec(&spec).map_err(io::Error::other)?;
        cdi::write_atomically(&self.cdi_dir.join(path), &bytes)?;
        Ok(format!("{kind}={name}"))
    }

    fn container_path(&self, claim: &AllocatedClaim, request: &str) -> String {
        let claim = match pod_claim(claim) {
            Some(entry) => format!("resourceclaimtemplates/{entry}"),
            None => format!("resourceclaims/{}", claim.id().name),
        };
        format!(
            "{IN_CONTAINER}/{claim}/{request}/{}-metadata.json",
            self.driver
        )
    }

    fn claim_dir(&self, claim: &ClaimId) -> PathBuf {
        let name = format!("{}_{}", claim.namespace, claim.name);
        Path::new(&self.data_dir).join(DIR).join(name)
    }

    fn cdi_prefix(&self, uid: &str) -> String {
        format!("{}_metadata_{uid}_", self.driver)
    }
}

/// As pods call the claim: who makes a claim writes its annotations, and what is no name would be another path in the container.
fn pod_claim(claim: &AllocatedClaim) -> Option<&String> {
    let annotations = claim.object().metadata.annotations.as_ref()?;
    let is_name = |entry: &&String| check_dns1123_label(entry).is_empty();
    annotations.get(POD_CLAIM).filter(is_name)
}

fn metadata(claim: &AllocatedClaim, request: &str, devices: &[Value]) -> Value {
    let id = claim.id();
    let mut object = json!({"kind": "DeviceMetadata", "apiVersion": API_VERSION,
        "metadata": {"name": id.name, "namespace": id.namespace, "uid": id.uid, "generation": 1},
        "requests": [{"name": request, "devices": devices}]});
    if let Some(entry) = pod_claim(claim) {
        object["podClaimName"] = json!(entry);
    }
    object
}

fn missing_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::resource::v1::{DeviceAttribute, ResourceClaim};

    const DRIVER: &str = "gpu.example.com";

    fn claim(annotation: bool) -> AllocatedClaim {
        called(annotation.then_some("gpus"))
    }

    fn called(name: Option<&str>) -> AllocatedClaim {
        let result = |request: &str, device: &str| json!({"request": request, "driver": DRIVER, "pool": "n", "device": device});
        let mut object = json!({
            "metadata": {"namespace": "ns", "name": "c", "uid": "u"}, "spec": {},
            "status": {"allocation": {"devices": {"results": [result("a/big", "0"), result("b", "1"), result("b", "2")]}}}});
        if let Some(name) = name {
            object["metadata"]["annotations"] = json!({POD_CLAIM: name});
        }
        let object: ResourceClaim = serde_json::from_value(object).unwrap();
        let id = ClaimId {
            namespace: "ns".into(),
            name: "c".into(),
            uid: "u".into(),
        };
        AllocatedClaim::new(object, &id, DRIVER).unwrap()
    }

    #[test]
    fn a_claim_is_mounted_by_a_name_and_no_path() {
        for hostile in ["../../../../../etc", "a/b", "", ".."] {
            assert_eq!(pod_claim(&called(Some(hostile))), None, "{hostile}");
        }
        assert!(pod_claim(&called(Some("gpus"))).is_some());
    }

    #[test]
    fn item_125_files_are_written_mounted_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let files = MetadataFiles {
            driver: DRIVER.to_owned(),
            data_dir: dir.path().join("data"),
            cdi_dir: dir.path().join("cdi"),
        };
        for annotation in [false, true] {
            let claim = claim(annotation);
            let prepared = claim.devices().iter().map(PreparedDevice::of);
            let model = DeviceAttribute {
                string: Some("A1".to_owned()),
                ..DeviceAttribute::default()
            };
            let mut devices: Vec<_> = prepared.map(|d| d.attribute("model", &model)).collect();
            files.write(&claim, &mut devices).unwrap();
            let names: Vec<&str> = devices.iter().map(|d| d.cdi[0].as_str()).collect();
            let (a, b) = (
                "gpu.example.com/metadata=u_a",
                "gpu.example.com/metadata=u_b",
            );
            assert_eq!(names, [a, b, b]);
            let read = |path: &str| -> Value {
                let bytes = std::fs::read(dir.path().join(path)).unwrap();
                serde_json::from_slice(&bytes).unwrap()
            };
            let told = read("data/dra-device-metadata/ns_c/b/metadata.json");
            assert_eq!(told["apiVersion"], API_VERSION);
            assert_eq!(told["metadata"]["uid"], "u");
            assert_eq!(told["podClaimName"].as_str(), annotation.then_some("gpus"));
            let device = |n: &str| json!({"driver": DRIVER, "pool": "n", "name": n, "attributes": {"model": {"string": "A1"}}});
            assert_eq!(
                told["requests"],
                json!([{"name": "b", "devices": [device("1"), device("2")]}])
            );
            let alternative = read("data/dra-device-metadata/ns_c/a/metadata.json");
            assert_eq!(alternative["requests"][0]["name"], "a/big");
            let spec = read("cdi/gpu.example.com_metadata_u_a.json");
            let mount = &spec["devices"][0]["containerEdits"]["mounts"][0];
            let place = if annotation {
                "resourceclaimtemplates/gpus"
            } else {
                "resourceclaims/c"
            };
            assert_eq!(
                mount["containerPath"],
                format!(
                    "/var/run/kubernetes.io/dra-device-attributes/{place}/a/gpu.example.com-metadata.json"
                )
            );
            files.remove(claim.id()).unwrap();
            files.remove(claim.id()).unwrap();
            assert_eq!(
                std::fs::read_dir(dir.path().join("cdi")).unwrap().count(),
                0
            );
            assert!(!dir.path().join("data/dra-device-metadata/ns_c").exists());
        }
    }
}
