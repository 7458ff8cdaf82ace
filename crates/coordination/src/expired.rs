//! Candidates that are none any more are deleted.

use crate::election::is_expired;
use davit_client::{Informer, message_of};
use k8s_openapi::api::coordination::v1beta1::LeaseCandidate;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Preconditions};
use std::time::Duration;

/// How often it is looked for them.
const EVERY: Duration = Duration::from_secs(30 * 60);
/// How long a call may take.
const CALL: Duration = Duration::from_secs(30);

/// Deletes candidates that have expired, now and then, for ever.
pub(crate) async fn sweep(client: kube::Client, candidates: Informer<LeaseCandidate>) {
    loop {
        let now = Timestamp::now();
        let gone = candidates.list().into_iter();
        for candidate in gone.filter(|candidate| is_expired(candidate, now)) {
            match tokio::time::timeout(CALL, delete(&client, &candidate)).await {
                Ok(Ok(())) | Err(_) => {}
                Ok(Err(error)) => {
                    let (name, cause) = (&candidate.metadata.name, message_of(&error));
                    tracing::debug!(
                        candidate = name,
                        cause,
                        "a candidate that has expired stays"
                    );
                }
            }
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// Deletes a candidate as it was seen: one that has come back meanwhile stays.
async fn delete(client: &kube::Client, candidate: &LeaseCandidate) -> Result<(), kube::Error> {
    let meta = &candidate.metadata;
    let (Some(name), Some(namespace)) = (&meta.name, &meta.namespace) else {
        return Ok(());
    };
    let api: kube::Api<LeaseCandidate> = kube::Api::namespaced(client.clone(), namespace);
    let seen = Preconditions {
        resource_version: meta.resource_version.clone(),
        uid: meta.uid.clone(),
    };
    api.delete(name, &DeleteParams::default().preconditions(seen))
        .await?;
    Ok(())
}
