//! Empties namespaces that are being deleted, pods first and then kind by kind, and lets them go when nothing is left.

mod emptying;

use async_trait::async_trait;
use davit_client::ObjectKey;
use davit_reconcile::{Context, Error, Informers, Next, Reconcile, Spawner, gone_is_none};
use emptying::{Remains, empty};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::PostParams;
use std::time::Duration;

/// The finalizer that this controller owns.
const FINALIZER: &str = "kubernetes";
/// How soon to look again while objects are still going.
const RETRY: Duration = Duration::from_secs(1);

struct Namespaces {
    client: kube::Client,
    informers: Informers,
}

pub(crate) fn spawn(spawner: &mut Spawner<'_>) {
    let Some(spawner) = &mut spawner.start("namespace-controller") else {
        return;
    };
    let informers = spawner.informers.clone();
    let queue = spawner.controller(Namespaces {
        client: spawner.client.clone(),
        informers: informers.clone(),
    });
    spawner.feed(&informers.namespaces, &queue, |ns: &Namespace| {
        vec![ObjectKey::of(ns)]
    });
}

#[async_trait]
impl Reconcile for Namespaces {
    const NAME: &'static str = "namespace";
    // As upstream: namespaces with objects of a kind whose server does not answer take their whole time.
    const WORKERS: usize = 10;

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let Some(namespace) = self.informers.namespaces.get(None, &key.name) else {
            return Ok(Next::Wait);
        };
        let finalizers = namespace
            .spec
            .as_ref()
            .and_then(|s| s.finalizers.clone())
            .unwrap_or_default();
        if is_deleted(&namespace) && finalizers.iter().any(|f| f == FINALIZER) {
            let remains = empty(&self.client, &key.name).await;
            if !remains.is_empty() {
                self.report(&namespace, &remains).await?;
                return Ok(Next::After(RETRY));
            }
            self.finalize(&namespace).await?;
        }
        Ok(Next::Wait)
    }
}

fn is_deleted(namespace: &Namespace) -> bool {
    namespace.metadata.deletion_timestamp.is_some()
}

impl Namespaces {
    async fn report(&self, namespace: &Namespace, remains: &Remains) -> Result<(), Error> {
        let name = namespace.metadata.name.clone().unwrap_or_default();
        let mut conditions = remains.conditions();
        let known = namespace
            .status
            .as_ref()
            .and_then(|s| s.conditions.clone())
            .unwrap_or_default();
        for condition in &mut conditions {
            if let Some(same) = known
                .iter()
                .find(|k| k.type_ == condition.type_ && k.status == condition.status)
            {
                condition
                    .last_transition_time
                    .clone_from(&same.last_transition_time);
            }
        }
        if conditions == known {
            return Ok(());
        }
        let mut changed = namespace.clone();
        changed.status.get_or_insert_default().conditions = Some(conditions);
        let api: kube::Api<Namespace> = kube::Api::all(self.client.clone());
        gone_is_none(
            api.replace_status(&name, &PostParams::default(), &changed)
                .await,
        )
        .context(|| format!("update status of namespace {name}"))?;
        Ok(())
    }

    async fn finalize(&self, namespace: &Namespace) -> Result<(), Error> {
        let name = namespace.metadata.name.clone().unwrap_or_default();
        let mut changed = namespace.clone();
        if let Some(finalizers) = changed.spec.as_mut().and_then(|s| s.finalizers.as_mut()) {
            finalizers.retain(|f| f != FINALIZER);
        }
        let failed =
            |error: String| Error::Invalid(format!("cannot finalize namespace {name}: {error}"));
        let body = serde_json::to_vec(&changed).map_err(|e| failed(e.to_string()))?;
        let request = http::Request::put(format!("/api/v1/namespaces/{name}/finalize"))
            .header("content-type", "application/json")
            .body(body)
            .map_err(|e| failed(e.to_string()))?;
        gone_is_none(self.client.request::<Namespace>(request).await)
            .context(|| format!("finalize namespace {name}"))?;
        Ok(())
    }
}
