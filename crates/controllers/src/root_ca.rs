//! Every active namespace has the ConfigMap `kube-root-ca.crt` with the CA that API server certificates are signed by.

use crate::service_account::is_active;
use async_trait::async_trait;
use davit_client::ObjectKey;
use davit_reconcile::{
    Context, Error, Informers, Next, ROOT_CA_MAP as NAME, Reconcile, Spawner, cluster_key,
    exists_is_none,
};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::PostParams;
use std::collections::BTreeMap;

const KEY: &str = "ca.crt";
const DESCRIPTION: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal \
                           endpoints such as the internal service IP or kubernetes.default.svc.";

struct RootCa {
    client: kube::Client,
    informers: Informers,
    ca: String,
}

pub(crate) fn spawn(spawner: &mut Spawner<'_>, ca: String) {
    let Some(spawner) = &mut spawner.start("root-ca-certificate-publisher-controller") else {
        return;
    };
    let informers = spawner.informers.clone();
    let queue = spawner.controller(RootCa {
        client: spawner.client.clone(),
        informers: informers.clone(),
        ca,
    });
    spawner.feed(&informers.namespaces, &queue, |ns: &Namespace| {
        vec![ObjectKey::of(ns)]
    });
    spawner.feed(&informers.root_ca_maps, &queue, |map: &ConfigMap| {
        map.metadata
            .namespace
            .iter()
            .map(|ns| cluster_key(ns))
            .collect()
    });
}

#[async_trait]
impl Reconcile for RootCa {
    const NAME: &'static str = "root-ca-certificate-publisher";

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        if !self
            .informers
            .namespaces
            .get(None, &key.name)
            .is_some_and(|ns| is_active(&ns))
        {
            return Ok(Next::Wait);
        }
        let api: kube::Api<ConfigMap> = kube::Api::namespaced(self.client.clone(), &key.name);
        let wanted = BTreeMap::from([(KEY.to_owned(), self.ca.clone())]);
        match self.informers.root_ca_maps.get(Some(&key.name), NAME) {
            None => {
                let mut map = ConfigMap {
                    data: Some(wanted),
                    ..ConfigMap::default()
                };
                map.metadata.name = Some(NAME.to_owned());
                let about = (
                    "kubernetes.io/description".to_owned(),
                    DESCRIPTION.to_owned(),
                );
                map.metadata.annotations = Some(BTreeMap::from([about]));
                exists_is_none(api.create(&PostParams::default(), &map).await)
                    .context(|| format!("create config map {}/{NAME}", key.name))?;
            }
            Some(map) if map.data.as_ref() != Some(&wanted) => {
                let map = ConfigMap {
                    data: Some(wanted),
                    ..(*map).clone()
                };
                api.replace(NAME, &PostParams::default(), &map)
                    .await
                    .context(|| format!("restore config map {}/{NAME}", key.name))?;
            }
            Some(_) => {}
        }
        Ok(Next::Wait)
    }
}
