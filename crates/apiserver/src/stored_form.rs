//! In which form objects are in the store: as they are, encrypted, as kube-apiserver has them, or both.

use std::sync::Arc;

use davit_encryption::{EncryptedStore, Encryption, EncryptionError, Naming, OwnNaming};
use davit_kubestore::{Codec, KubeNaming, KubeStore, MediaType, keys};
use davit_registry::storage::Storage;
use davit_registry::{StoreOverride, Stores};
use davit_store::{KeyValue, Result, Store};

/// How kube-apiserver keeps objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KubernetesForm {
    /// What the store puts before all keys (`--etcd-prefix`): ciphers authenticate whole keys.
    pub prefix: String,
    /// In which form built-in kinds are written (`--storage-media-type`).
    pub media: MediaType,
}

/// The layers over each of a server's stores.
pub(crate) struct StoredForms {
    main: StoredForm,
    others: Vec<(StoreOverride, StoredForm)>,
}

impl StoredForms {
    pub(crate) fn new(
        stores: Stores,
        encryption: Option<&Arc<Encryption>>,
        form: Option<&KubernetesForm>,
    ) -> Self {
        let layers = |store| StoredForm::new(store, encryption.cloned(), form.cloned());
        let (main, others) = stores.into_parts();
        let others = others.into_iter().map(|mut other| {
            let layers = layers(other.store);
            other.store = layers.store();
            (other, layers)
        });
        Self {
            others: others.collect(),
            main: layers(main),
        }
    }

    /// Those over the store of everything that has no other.
    pub(crate) fn main(&self) -> &StoredForm {
        &self.main
    }

    /// Those over the store of these objects.
    pub(crate) fn of(&self, storage: &Storage) -> &StoredForm {
        let mut others = self.others.iter();
        let own = others.find(|(other, _)| other.is_of(storage.group(), storage.plural()));
        own.map_or(&self.main, |(_, layers)| layers)
    }

    /// The stores with davit's own keys and values.
    pub(crate) fn stores(&self) -> Stores {
        let others = self.others.iter().map(|(other, _)| other.clone());
        Stores::new(self.main.store(), others.collect())
    }
}

/// The layers over one store.
#[derive(Clone)]
pub(crate) struct StoredForm {
    store: Arc<dyn Store>,
    encrypted: Option<Arc<EncryptedStore>>,
    encryption: Option<Arc<Encryption>>,
    kube: Option<Arc<KubeStore>>,
}

impl StoredForm {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        encryption: Option<Arc<Encryption>>,
        form: Option<KubernetesForm>,
    ) -> Self {
        let naming: Arc<dyn Naming> = match &form {
            Some(form) => Arc::new(KubeNaming::new(&form.prefix)),
            None => Arc::new(OwnNaming),
        };
        let encrypted = encryption.as_ref().map(|encryption| {
            let (store, encryption) = (Arc::clone(&store), Arc::clone(encryption));
            Arc::new(EncryptedStore::named(store, encryption, naming))
        });
        let below = match &encrypted {
            Some(encrypted) => Arc::clone(encrypted) as Arc<dyn Store>,
            None => store,
        };
        let kube = form.map(|form| {
            let codec = Codec::new(form.media);
            Arc::new(KubeStore::new(Arc::clone(&below), codec))
        });
        Self {
            store: match &kube {
                Some(kube) => Arc::clone(kube) as Arc<dyn Store>,
                None => below,
            },
            encrypted,
            encryption,
            kube,
        }
    }

    /// The store with davit's own keys and values.
    pub(crate) fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }

    /// Whether the plugins that keep keys are well; none when there are none.
    pub(crate) fn plugins_are_well(&self) -> Option<bool> {
        self.encrypted.as_ref()?.plugins_are_well()
    }

    /// Whether the value of a key would be stored otherwise if it were written now: with another encryption, or in another
    /// form or version.
    pub(crate) async fn is_stale(&self, key: &str) -> Result<bool> {
        if let Some(encrypted) = &self.encrypted {
            let below = self.kube.as_ref().and_then(|_| keys::to_kubernetes(key));
            if encrypted.is_stale(below.as_deref().unwrap_or(key)).await? {
                return Ok(true);
            }
        }
        match &self.kube {
            Some(kube) => kube.is_stale(key).await,
            None => Ok(false),
        }
    }

    /// Where a backup is read: values are as they are kept, unless they are kept as kube-apiserver does.
    pub(crate) fn backup_store(&self) -> Arc<dyn Store> {
        match &self.encrypted {
            Some(encrypted) if self.kube.is_none() => encrypted.inner(),
            _ => self.store(),
        }
    }

    /// A pair of [`StoredForm::backup_store`] as the embedded engine would have it: a backup is the same whatever the store,
    /// and holds in the clear nothing that the store does not.
    pub(crate) async fn for_backup(&self, mut pair: KeyValue) -> Result<KeyValue, EncryptionError> {
        let Some(encryption) = self.encryption.as_ref().filter(|_| self.kube.is_some()) else {
            return Ok(pair);
        };
        let named = OwnNaming.named(&pair.key);
        encryption.prepare(&named).await?;
        let value = encryption.encrypt_as(&named, std::mem::take(&mut pair.value))?;
        pair.value = value;
        Ok(pair)
    }
}
