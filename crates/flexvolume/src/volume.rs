//! A volume as its object describes it, and the options that drivers are given about it.

use crate::{DriverName, InvalidDriverName};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{FlexVolumeSource, PersistentVolume, Secret};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// The secret has another type than the driver's name; its values are not for the driver.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot get secret of type {0}")]
pub struct WrongSecretType(DriverName);

/// The pod that a volume is mounted for.
#[derive(Debug, Clone, Copy)]
pub struct MountingPod<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its namespace.
    pub namespace: &'a str,
    /// Its UID.
    pub uid: &'a str,
    /// The name of its service account.
    pub service_account: &'a str,
    /// The group of its volumes.
    pub fs_group: Option<u32>,
}

/// A volume of a driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlexVolume {
    /// How it is called where it is attached and mounted: the PersistentVolume's name. Of an in-line volume its name in the
    /// pod and, after a `~`, a digest of what it says: those of two pods that only have a name in common, or one called as a
    /// PersistentVolume, are others.
    pub name: String,
    /// The PersistentVolume's name, or the in-line volume's in the pod.
    pub told: String,
    /// The driver.
    pub driver: DriverName,
    /// The file system; empty where nothing is said.
    pub fs_type: String,
    /// Whether it is only to be read.
    pub read_only: bool,
    /// The user's options.
    pub options: BTreeMap<String, String>,
    /// The name of the secret for `mount`.
    pub secret: Option<String>,
    /// The secret's namespace; the pod's where nothing is said.
    pub secret_namespace: Option<String>,
}

impl FlexVolume {
    /// A volume that a pod describes itself.
    ///
    /// # Errors
    /// No driver can have this name.
    pub fn inline(name: &str, source: &FlexVolumeSource) -> Result<Self, InvalidDriverName> {
        let secret = source.secret_ref.as_ref().map(|secret| secret.name.clone());
        let driver = DriverName::new(&source.driver)?;
        let fs_type = source.fs_type.clone().unwrap_or_default();
        let options = source.options.clone().unwrap_or_default();
        Ok(Self {
            name: format!("{name}~{}", digest(&driver, &fs_type, &options)),
            told: name.to_owned(),
            driver,
            fs_type,
            read_only: source.read_only.unwrap_or_default(),
            options,
            secret: secret.filter(|name| !name.is_empty()),
            secret_namespace: None,
        })
    }

    /// A PersistentVolume, which a pod may want `read_only`; `None` for those of other kinds.
    ///
    /// # Errors
    /// No driver can have this name.
    pub fn persistent(
        volume: &PersistentVolume,
        read_only: bool,
    ) -> Option<Result<Self, InvalidDriverName>> {
        let source = volume.spec.as_ref()?.flex_volume.as_ref()?;
        let reference = source.secret_ref.clone().unwrap_or_default();
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        let name = volume.metadata.name.clone().unwrap_or_default();
        Some(DriverName::new(&source.driver).map(|driver| Self {
            name: name.clone(),
            told: name,
            driver,
            fs_type: source.fs_type.clone().unwrap_or_default(),
            read_only: read_only || source.read_only.unwrap_or_default(),
            options: source.options.clone().unwrap_or_default(),
            secret: given(reference.name),
            secret_namespace: given(reference.namespace),
        }))
    }

    /// The options of all commands but `mount`, as JSON.
    pub fn options(&self) -> String {
        self.options_with(BTreeMap::new())
    }

    /// The options of `mount`, as JSON. `secrets` are those of [`secret_values`].
    pub fn mount_options(
        &self,
        pod: &MountingPod<'_>,
        secrets: &BTreeMap<String, ByteString>,
    ) -> String {
        let mut more = BTreeMap::from(
            [
                ("kubernetes.io/pod.name", pod.name),
                ("kubernetes.io/pod.namespace", pod.namespace),
                ("kubernetes.io/pod.uid", pod.uid),
                ("kubernetes.io/serviceAccount.name", pod.service_account),
            ]
            .map(|(key, value)| (key.to_owned(), value.to_owned())),
        );
        let encoded = secrets.iter().map(|(key, value)| {
            let key = format!("kubernetes.io/secret/{key}");
            (key, STANDARD.encode(&value.0))
        });
        more.extend(encoded);
        if let Some(group) = pod.fs_group {
            let key = "kubernetes.io/mounterArgs.FsGroup".to_owned();
            more.insert(key, group.to_string());
        }
        self.options_with(more)
    }

    /// The user's options win over those that are made here.
    fn options_with(&self, mut options: BTreeMap<String, String>) -> String {
        let access = if self.read_only { "ro" } else { "rw" };
        for (key, value) in [
            ("kubernetes.io/fsType", self.fs_type.as_str()),
            ("kubernetes.io/readwrite", access),
            ("kubernetes.io/pvOrVolumeName", &self.told),
        ] {
            options.insert(key.to_owned(), value.to_owned());
        }
        options.extend(self.options.clone());
        serde_json::json!(options).to_string()
    }
}

/// Which volume an in-line volume means, 128 bits in hexadecimal: whoever says the same means the same.
fn digest(driver: &DriverName, fs_type: &str, options: &BTreeMap<String, String>) -> String {
    let said = serde_json::json!([driver.as_str(), fs_type, options]).to_string();
    let digest = Sha256::digest(said.as_bytes());
    digest[..16].iter().map(|b| format!("{b:02x}")).collect()
}

/// The values of a secret that is meant for a driver.
///
/// # Errors
/// It is another's.
pub fn secret_values(
    driver: &DriverName,
    secret: &Secret,
) -> Result<BTreeMap<String, ByteString>, WrongSecretType> {
    if secret.type_.as_deref() != Some(driver.as_str()) {
        return Err(WrongSecretType(driver.clone()));
    }
    Ok(secret.data.clone().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(options: &str) -> Value {
        serde_json::from_str(options).unwrap()
    }

    fn inline(source: Value) -> FlexVolume {
        FlexVolume::inline("data", &serde_json::from_value(source).unwrap()).unwrap()
    }

    #[test]
    fn item_100_options_have_the_keys_of_upstream() {
        let volume = inline(
            json!({"driver": "acme/mem", "fsType": "ext4", "readOnly": true,
            "options": {"size": "1", "kubernetes.io/fsType": "xfs"}}),
        );
        assert_eq!(
            read(&volume.options()),
            json!({"kubernetes.io/fsType": "xfs", "kubernetes.io/readwrite": "ro",
                "kubernetes.io/pvOrVolumeName": "data", "size": "1"})
        );
        let pod = MountingPod {
            name: "p",
            namespace: "n",
            uid: "u",
            service_account: "default",
            fs_group: Some(2000),
        };
        let secrets = BTreeMap::from([("key".to_owned(), ByteString(b"a\xff".to_vec()))]);
        let volume = inline(json!({"driver": "acme/mem"}));
        assert_eq!(
            read(&volume.mount_options(&pod, &secrets)),
            json!({"kubernetes.io/fsType": "", "kubernetes.io/readwrite": "rw",
                "kubernetes.io/pvOrVolumeName": "data", "kubernetes.io/pod.name": "p",
                "kubernetes.io/pod.namespace": "n", "kubernetes.io/pod.uid": "u",
                "kubernetes.io/serviceAccount.name": "default",
                "kubernetes.io/mounterArgs.FsGroup": "2000", "kubernetes.io/secret/key": "Yf8="})
        );
    }

    #[test]
    fn a_name_alone_makes_no_two_volumes_one() {
        let volume = inline(json!({"driver": "acme/mem", "options": {"lun": "1"}}));
        let same = inline(json!({"driver": "acme/mem", "readOnly": true, "options": {"lun": "1"}}));
        assert_eq!(volume.name, same.name);
        assert!(
            volume.name.starts_with("data~"),
            "no name of a volume has a ~"
        );
        for other in [
            json!({"driver": "acme/mem", "options": {"lun": "2"}}),
            json!({"driver": "acme/mem", "fsType": "xfs", "options": {"lun": "1"}}),
            json!({"driver": "acme/mem"}),
        ] {
            assert_ne!(volume.name, inline(other).name);
        }
    }

    #[test]
    fn secrets_are_the_drivers_own() {
        let driver = DriverName::new("acme/mem").unwrap();
        let secret = |kind: &str| {
            serde_json::from_value::<Secret>(json!({"type": kind, "data": {"k": "eA=="}})).unwrap()
        };
        assert_eq!(
            secret_values(&driver, &secret("Opaque"))
                .unwrap_err()
                .to_string(),
            "cannot get secret of type acme/mem"
        );
        assert_eq!(
            secret_values(&driver, &secret("acme/mem")).unwrap()["k"].0,
            b"x"
        );
    }

    #[test]
    fn persistent_volumes_name_the_secrets_namespace() {
        let volume = |source: Value| {
            let volume = json!({"metadata": {"name": "pv"}, "spec": {"flexVolume": source}});
            let volume = serde_json::from_value(volume).unwrap();
            FlexVolume::persistent(&volume, false).unwrap()
        };
        let found = volume(json!({"driver": "acme/mem", "readOnly": true,
            "secretRef": {"name": "s", "namespace": "other"}}))
        .unwrap();
        assert_eq!(found.secret.as_deref(), Some("s"));
        assert_eq!(found.secret_namespace.as_deref(), Some("other"));
        assert!(found.read_only);
        assert!(volume(json!({"driver": "../x"})).is_err());
        assert!(FlexVolume::persistent(&PersistentVolume::default(), true).is_none());
    }
}
