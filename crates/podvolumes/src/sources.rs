//! What the volumes of a pod are made of, for one time that they are made or brought up to date: each object is read once,
//! however many sources name it. A pod has room for ten thousand of them.

use davit_pods::objects::{Error, ObjectSource};
use k8s_openapi::api::certificates::v1beta1::ClusterTrustBundle;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::OnceCell;

/// Bytes of the objects that all volumes of a pod are made of, and of their files, together: objects count as often as they
/// are named, and a pod has room for thousands of volumes.
pub(super) const MAX_OF_POD: usize = 256 << 20;

/// What the volumes of a pod may still take.
pub(super) struct PodBudget(AtomicUsize);

impl Default for PodBudget {
    fn default() -> Self {
        Self(AtomicUsize::new(MAX_OF_POD))
    }
}

impl PodBudget {
    /// Takes so many bytes, if there are as many left.
    pub(super) fn take(&self, bytes: usize) -> bool {
        let less = |left: usize| left.checked_sub(bytes);
        let taken = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        taken.is_ok()
    }
}

/// Answers by name; who asks while another one does waits for his answer.
type Once<T> = Mutex<HashMap<String, Arc<OnceCell<Arc<T>>>>>;

async fn once<T>(
    known: &Once<T>,
    name: &str,
    read: impl Future<Output = Result<T, Error>>,
) -> Result<Arc<T>, Error> {
    let answer = Arc::clone(known.lock().entry(name.to_owned()).or_default());
    let found = answer.get_or_try_init(|| async { read.await.map(Arc::new) });
    found.await.cloned()
}

/// The objects of a pod's volumes, and what room there is for them.
pub(super) struct Sources<'a> {
    pub(super) budget: PodBudget,
    objects: &'a dyn ObjectSource,
    namespace: &'a str,
    config_maps: Once<Option<ConfigMap>>,
    secrets: Once<Option<Secret>>,
    bundles: Once<Option<ClusterTrustBundle>>,
    of_signers: Once<Vec<ClusterTrustBundle>>,
}

impl<'a> Sources<'a> {
    /// Objects of a namespace, of which none is known.
    pub(super) fn new(objects: &'a dyn ObjectSource, namespace: &'a str) -> Self {
        Self {
            budget: PodBudget::default(),
            objects,
            namespace,
            config_maps: Once::default(),
            secrets: Once::default(),
            bundles: Once::default(),
            of_signers: Once::default(),
        }
    }

    /// A ConfigMap; nothing where there is none.
    pub(super) async fn config_map(&self, name: &str) -> Result<Arc<Option<ConfigMap>>, Error> {
        let read = self.objects.config_map(self.namespace, name);
        once(&self.config_maps, name, read).await
    }

    /// A Secret; nothing where there is none.
    pub(super) async fn secret(&self, name: &str) -> Result<Arc<Option<Secret>>, Error> {
        let read = self.objects.secret(self.namespace, name);
        once(&self.secrets, name, read).await
    }

    /// A ClusterTrustBundle; nothing where there is none.
    pub(super) async fn trust_bundle(
        &self,
        name: &str,
    ) -> Result<Arc<Option<ClusterTrustBundle>>, Error> {
        once(&self.bundles, name, self.objects.trust_bundle(name)).await
    }

    /// All ClusterTrustBundles of a signer.
    pub(super) async fn trust_bundles_of(
        &self,
        signer: &str,
    ) -> Result<Arc<Vec<ClusterTrustBundle>>, Error> {
        let read = self.objects.trust_bundles_of(signer);
        once(&self.of_signers, signer, read).await
    }
}
