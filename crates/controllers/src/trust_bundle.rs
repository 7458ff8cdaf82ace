//! The ClusterTrustBundle with which pods can verify the API server, named after its content
//! ([KEP-3257](https://kep.k8s.io/3257)). Those of former certificates of the authority are removed.

use async_trait::async_trait;
use davit_client::{Informer, ObjectKey};
use davit_reconcile::{
    COMPONENT, Context, ControllerSelection, Error, Next, Reconcile, Spawner, cluster_key,
    gone_is_none,
};
use davit_task::Tasks;
use k8s_openapi::api::certificates::v1beta1::{ClusterTrustBundle, ClusterTrustBundleSpec};
use kube::api::{DeleteParams, PostParams};
use kube::runtime::watcher;
use ring::digest::{SHA256, digest};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

/// Whose bundle it is.
const SIGNER: &str = "kubernetes.io/kube-apiserver-serving";
const API: &str = "certificates.k8s.io/v1beta1";
/// Between looks whether the API server has the kind.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
const SYNC: Duration = Duration::from_secs(30);

struct Publisher {
    client: kube::Client,
    bundles: Informer<ClusterTrustBundle>,
    ca: String,
}

/// Publishes `ca`, PEM, once the API server has the kind: elsewhere it may be off.
pub(crate) fn spawn(spawner: &mut Spawner<'_>, ca: String) {
    let Some(spawner) =
        &mut spawner.start("kube-apiserver-serving-clustertrustbundle-publisher-controller")
    else {
        return;
    };
    let (client, shared) = (spawner.client.clone(), spawner.shared.clone());
    let (informers, cancel) = (spawner.informers.clone(), spawner.cancel.clone());
    spawner.task("trust-bundle", async move {
        while !is_served(&shared).await {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        let mut tasks = Tasks::new(COMPONENT, cancel.clone());
        let (queue, bundles) = start(
            &mut Spawner {
                client,
                shared,
                accounts: None,
                selection: ControllerSelection::default(),
                concurrency: Arc::default(),
                workers: None,
                informers,
                tasks: &mut tasks,
                cancel,
            },
            ca,
        );
        // the informer tells when it knows all, so that nothing is written twice
        while bundles.wait_synced(SYNC).await.is_err() {
            tracing::warn!("the trust bundle publisher waits for the API server");
        }
        queue.add(cluster_key(SIGNER));
        // with it this task ends, and with that the controllers
        tasks.failed().await;
    });
}

fn start(
    spawner: &mut Spawner<'_>,
    ca: String,
) -> (
    davit_client::WorkQueue<ObjectKey>,
    Informer<ClusterTrustBundle>,
) {
    let bundles = Informer::spawn(
        kube::Api::all(spawner.shared.clone()),
        watcher::Config::default().fields(&format!("spec.signerName={SIGNER}")),
        spawner.tasks.set(),
        spawner.cancel.clone(),
    );
    let queue = spawner.controller(Publisher {
        client: spawner.client.clone(),
        bundles: bundles.clone(),
        ca,
    });
    spawner.feed(&bundles, &queue, |_: &ClusterTrustBundle| {
        vec![cluster_key(SIGNER)]
    });
    (queue, bundles)
}

async fn is_served(client: &kube::Client) -> bool {
    match client.list_api_group_resources(API).await {
        Ok(list) => list
            .resources
            .iter()
            .any(|resource| resource.name == "clustertrustbundles"),
        Err(error) => {
            tracing::debug!(%error, "no trust bundle is published yet");
            false
        }
    }
}

/// The bundle's name: the signer, and the beginning of the hash of what it holds.
fn name_of(ca: &str) -> String {
    let mut name = format!("{}:", SIGNER.replace('/', ":"));
    for byte in &digest(&SHA256, ca.as_bytes()).as_ref()[..12] {
        // writing to a String cannot fail
        let _ = write!(name, "{byte:02x}");
    }
    name
}

#[async_trait]
impl Reconcile for Publisher {
    const NAME: &'static str = "kube-apiserver-serving-clustertrustbundle-publisher";
    const WORKERS: usize = 1;

    async fn sync(&self, _key: &ObjectKey) -> Result<Next, Error> {
        if !self.bundles.is_synced() {
            // whoever started this adds the key when it is
            return Ok(Next::Wait);
        }
        let api: kube::Api<ClusterTrustBundle> = kube::Api::all(self.client.clone());
        let name = name_of(&self.ca);
        let of = |verb: &str, name: &str| format!("{verb} cluster trust bundle {name}");
        match self.bundles.get(None, &name) {
            None => {
                let mut bundle = ClusterTrustBundle {
                    spec: ClusterTrustBundleSpec {
                        signer_name: Some(SIGNER.to_owned()),
                        trust_bundle: self.ca.clone(),
                    },
                    ..ClusterTrustBundle::default()
                };
                bundle.metadata.name = Some(name.clone());
                api.create(&PostParams::default(), &bundle)
                    .await
                    .context(|| of("create", &name))?;
            }
            Some(bundle) if bundle.spec.trust_bundle != self.ca => {
                let mut bundle = (*bundle).clone();
                bundle.spec.trust_bundle.clone_from(&self.ca);
                api.replace(&name, &PostParams::default(), &bundle)
                    .await
                    .context(|| of("restore", &name))?;
            }
            Some(_) => {}
        }
        for former in self.bundles.list() {
            let Some(former) = former.metadata.name.as_ref().filter(|n| **n != name) else {
                continue;
            };
            let deleted = api.delete(former, &DeleteParams::default()).await;
            gone_is_none(deleted).context(|| of("remove", former))?;
        }
        Ok(Next::Wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_from_the_content() {
        // sha256 of nothing begins with e3b0c44298fc1c149afbf4c8
        let empty = "kubernetes.io:kube-apiserver-serving:e3b0c44298fc1c149afbf4c8";
        assert_eq!(name_of(""), empty);
        assert_ne!(name_of("a"), empty);
    }
}
