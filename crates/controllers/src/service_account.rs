//! Every active namespace has the service account `default`.

use async_trait::async_trait;
use davit_client::ObjectKey;
use davit_reconcile::{
    Context, Error, Informers, Next, Reconcile, Spawner, cluster_key, exists_is_none,
};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::PostParams;

const NAME: &str = "default";

struct ServiceAccounts {
    client: kube::Client,
    informers: Informers,
}

pub(crate) fn spawn(spawner: &mut Spawner<'_>) {
    let Some(spawner) = &mut spawner.start("serviceaccount-controller") else {
        return;
    };
    let informers = spawner.informers.clone();
    let queue = spawner.controller(ServiceAccounts {
        client: spawner.client.clone(),
        informers: informers.clone(),
    });
    spawner.feed(&informers.namespaces, &queue, |ns: &Namespace| {
        vec![ObjectKey::of(ns)]
    });
    spawner.feed(
        &informers.service_accounts,
        &queue,
        |account: &ServiceAccount| {
            account
                .metadata
                .namespace
                .iter()
                .map(|ns| cluster_key(ns))
                .collect()
        },
    );
}

/// Whether objects may still be made in the namespace.
pub(crate) fn is_active(namespace: &Namespace) -> bool {
    namespace.metadata.deletion_timestamp.is_none()
}

#[async_trait]
impl Reconcile for ServiceAccounts {
    const NAME: &'static str = "serviceaccount";

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let namespace = self.informers.namespaces.get(None, &key.name);
        let wanted = namespace.is_some_and(|ns| is_active(&ns));
        if !wanted
            || self
                .informers
                .service_accounts
                .get(Some(&key.name), NAME)
                .is_some()
        {
            return Ok(Next::Wait);
        }
        let mut account = ServiceAccount::default();
        account.metadata.name = Some(NAME.to_owned());
        let api: kube::Api<ServiceAccount> = kube::Api::namespaced(self.client.clone(), &key.name);
        exists_is_none(api.create(&PostParams::default(), &account).await)
            .context(|| format!("create service account {}/{NAME}", key.name))?;
        Ok(Next::Wait)
    }
}
