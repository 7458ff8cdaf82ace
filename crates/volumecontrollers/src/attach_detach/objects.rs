//! Claims, volumes and drivers as the informers know them.

use super::wanted::StorageObjects;
use davit_client::{Informer, ObjectKey};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::CSIDriver;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What volumes are looked up in.
pub(super) struct StorageInformers {
    pub(super) claims: Informer<PersistentVolumeClaim>,
    pub(super) volumes: Informer<PersistentVolume>,
    pub(super) drivers: Informer<CSIDriver>,
    /// Whether volumes of FlexVolume drivers are attached, as far as these have been found.
    pub(super) flex_drivers: BTreeMap<String, bool>,
}

impl StorageObjects for StorageInformers {
    fn claim(&self, key: &ObjectKey) -> Option<Arc<PersistentVolumeClaim>> {
        self.claims.get(Some(&key.namespace), &key.name)
    }

    fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>> {
        self.volumes.get(None, name)
    }

    fn is_attachable(&self, driver: &str) -> bool {
        let driver = self.drivers.get(None, driver);
        driver.is_none_or(|driver| driver.spec.attach_required != Some(false))
    }

    fn is_flex_attachable(&self, driver: &str) -> bool {
        self.flex_drivers.get(driver) == Some(&true)
    }
}
