//! The objects of a custom kind, seen in one of its versions.

use std::sync::Arc;

use davit_api::status::Status;
use davit_watchcache::CachedObject;
use serde_json::{Value, json};

use super::convert::Converter;
use super::definition::{Conversion, CustomVersion};
use super::recent::RecentConversions;

/// What stands between the storage and the users of one version.
pub struct View {
    version: Arc<CustomVersion>,
    /// The version objects are stored in.
    storage: Arc<CustomVersion>,
    /// All versions that are served or stored.
    versions: Arc<[Arc<CustomVersion>]>,
    storage_api_version: String,
    converter: Converter,
    recent: RecentConversions,
}

impl View {
    /// The objects stored as `storage` says, seen in `version`; `versions` are all that are served or stored.
    pub fn new(
        version: Arc<CustomVersion>,
        storage: Arc<CustomVersion>,
        versions: Arc<[Arc<CustomVersion>]>,
        converter: Converter,
    ) -> Self {
        Self {
            versions,
            storage_api_version: storage.api_version.clone(),
            version,
            storage,
            converter,
            recent: RecentConversions::default(),
        }
    }

    /// The version seen.
    pub(crate) fn version(&self) -> &Arc<CustomVersion> {
        &self.version
    }

    /// The version stored.
    pub(crate) fn storage_version(&self) -> &'static str {
        self.storage.version
    }

    /// Whether a stored object is in the version in which objects are stored now.
    pub(crate) fn is_of_storage_version(&self, stored: &Value) -> bool {
        stored["apiVersion"] == self.storage_api_version.as_str()
    }

    /// Whether objects of the storage version can be shown as they are cached.
    pub fn shows_stored(&self) -> bool {
        self.version.is_storage()
    }

    /// Stored objects in the version seen: with the defaults of the version they were stored in, converted, and without
    /// what the version seen does not know.
    ///
    /// # Errors
    /// When the conversion fails.
    pub async fn read(&self, mut objects: Vec<Value>) -> Result<Vec<Value>, Status> {
        let wanted = &self.version.api_version;
        let mut foreign = Vec::with_capacity(objects.len());
        for object in &mut objects {
            let is_foreign = object["apiVersion"] != wanted.as_str();
            foreign.push(is_foreign);
            let stored_as = if is_foreign {
                self.stored_as(object)
            } else {
                Some(&self.version)
            };
            if let Some(version) = stored_as {
                version.schema().refresh(object);
            }
        }
        let mut objects = self.converter.convert(objects, wanted).await?;
        let converted = objects.iter_mut().zip(foreign);
        for (object, _) in converted.filter(|(_, is_foreign)| *is_foreign) {
            self.version.schema().trim(object);
        }
        Ok(objects)
    }

    /// The version an object is in, if it is known.
    fn stored_as(&self, object: &Value) -> Option<&Arc<CustomVersion>> {
        let version = object["apiVersion"].as_str()?;
        self.versions
            .iter()
            .find(|known| known.api_version == version)
    }

    /// As [`View::read`] for one object.
    ///
    /// # Errors
    /// When the conversion fails.
    pub async fn read_one(&self, object: Value) -> Result<Value, Status> {
        let mut objects = self.read(vec![object]).await?;
        objects
            .pop()
            .ok_or_else(|| Status::internal("a conversion lost an object"))
    }

    /// As [`View::read_one`] for an object that many want at once.
    ///
    /// # Errors
    /// When the conversion fails.
    pub async fn read_cached(&self, object: &CachedObject) -> Result<Value, Status> {
        let read = async {
            let value = serde_json::from_slice(&object.json()).map_err(Status::internal)?;
            self.read_one(value).await
        };
        self.recent.get(object, read).await
    }

    /// An object of the version seen as it is stored.
    ///
    /// # Errors
    /// When the conversion fails.
    pub(crate) async fn write(&self, object: &Value) -> Result<Value, Status> {
        if self.version.is_storage() {
            return Ok(object.clone());
        }
        let objects = vec![object.clone()];
        let wanted = &self.storage_api_version;
        let mut objects = self.converter.convert(objects, wanted).await?;
        let mut object = objects
            .pop()
            .ok_or_else(|| Status::internal("a conversion lost an object"))?;
        self.storage.schema().trim(&mut object);
        Ok(object)
    }

    /// What the watch cache keeps of a stored object: the storage version with all defaults, when
    /// that can be had without asking anybody.
    pub(crate) fn normalize(&self, object: &mut Value) -> Normal {
        let foreign = object["apiVersion"] != self.storage_api_version.as_str();
        if foreign && self.storage.definition.conversion != Conversion::None {
            return Normal::Foreign;
        }
        if !foreign {
            return if self.storage.schema().refresh(object) {
                Normal::Changed
            } else {
                Normal::Same
            };
        }
        match self.stored_as(object) {
            Some(version) => version.schema().refresh(object),
            None => false,
        };
        object["apiVersion"] = json!(self.storage_api_version);
        self.storage.schema().trim(object);
        Normal::Changed
    }
}

/// What became of an object on its way into the watch cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Normal {
    /// It is as it was stored.
    Same,
    /// It is complete now, or has lost what is unknown.
    Changed,
    /// It is of another version, into which only a webhook could bring it.
    Foreign,
}

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "View({})", self.version.api_version)
    }
}
