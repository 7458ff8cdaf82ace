//! The objects that a container's variables refer to, each read once: an object of a megabyte may be named by as many
//! variables as a pod has room for, and reading it for each would take the node and the API server minutes.

use crate::env::Error;
use crate::objects::ObjectSource;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use std::collections::HashMap;
use std::sync::Arc;

/// Bytes of all objects of one environment; ten times what can be started with.
const MAX_BYTES: usize = 64 << 20;

/// Reads ConfigMaps and Secrets of one namespace.
pub(crate) struct References<'a> {
    objects: &'a dyn ObjectSource,
    namespace: &'a str,
    config_maps: HashMap<String, Option<Arc<ConfigMap>>>,
    secrets: HashMap<String, Option<Arc<Secret>>>,
    left: usize,
}

impl<'a> References<'a> {
    pub(crate) fn new(objects: &'a dyn ObjectSource, namespace: &'a str) -> Self {
        Self {
            objects,
            namespace,
            config_maps: HashMap::new(),
            secrets: HashMap::new(),
            left: MAX_BYTES,
        }
    }

    /// A ConfigMap; nothing where there is none.
    ///
    /// # Errors
    /// The API server could not be asked, or all are more than [`MAX_BYTES`].
    pub(crate) async fn config_map(&mut self, name: &str) -> Result<Option<Arc<ConfigMap>>, Error> {
        if let Some(known) = self.config_maps.get(name) {
            return Ok(known.clone());
        }
        let found = self.objects.config_map(self.namespace, name).await?;
        let texts = found.iter().flat_map(|map| map.data.iter().flatten());
        let texts: usize = texts.map(|(key, value)| key.len() + value.len()).sum();
        let bytes = found
            .iter()
            .flat_map(|map| map.binary_data.iter().flatten());
        let bytes: usize = bytes.map(|(key, value)| key.len() + value.0.len()).sum();
        self.take(texts + bytes)?;
        let found = found.map(Arc::new);
        self.config_maps.insert(name.to_owned(), found.clone());
        Ok(found)
    }

    /// A Secret; nothing where there is none.
    ///
    /// # Errors
    /// The API server could not be asked, or all are more than [`MAX_BYTES`].
    pub(crate) async fn secret(&mut self, name: &str) -> Result<Option<Arc<Secret>>, Error> {
        if let Some(known) = self.secrets.get(name) {
            return Ok(known.clone());
        }
        let found = self.objects.secret(self.namespace, name).await?;
        let bytes = found.iter().flat_map(|secret| secret.data.iter().flatten());
        let bytes: usize = bytes.map(|(key, value)| key.len() + value.0.len()).sum();
        self.take(bytes)?;
        let found = found.map(Arc::new);
        self.secrets.insert(name.to_owned(), found.clone());
        Ok(found)
    }

    fn take(&mut self, bytes: usize) -> Result<(), Error> {
        let left = self.left.checked_sub(bytes);
        self.left = left.ok_or(Error::TooMuch(MAX_BYTES))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::FixedObjects;
    use serde_json::json;

    #[tokio::test]
    async fn an_object_counts_once_and_all_together_have_an_end() {
        let map = |n: usize| {
            json!({"kind": "ConfigMap", "metadata": {"namespace": "n", "name": format!("m{n}")},
                "data": {"large": "x".repeat(1 << 20), "small": "1"}})
        };
        let objects: Vec<_> = (0..70).map(map).collect();
        let objects = FixedObjects::from_json(&objects);
        let mut references = References::new(&objects, "n");
        for _ in 0..1000 {
            let found = references.config_map("m0").await.unwrap();
            assert!(found.is_some());
            assert!(references.secret("m0").await.unwrap().is_none());
        }
        let mut read = 1;
        let error = loop {
            match references.config_map(&format!("m{read}")).await {
                Ok(found) => assert!(found.is_some(), "{read}"),
                Err(error) => break error,
            }
            read += 1;
        };
        assert!(matches!(error, Error::TooMuch(_)), "{error}");
        assert_eq!(read, 63);
    }
}
