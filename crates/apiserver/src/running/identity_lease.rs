//! The Lease by which this server is known among those of its cluster, as kube-apiserver keeps one: renewed while it runs, and
//! those of servers that are gone are deleted.
//! <https://kubernetes.io/docs/concepts/architecture/leases/#api-server-identity>

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use davit_api::status::{Reason, Status};
use davit_registry::{Snapshot, object};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::ownership::Tracking;
use crate::server::{ApiServer, NAME};
use crate::writes::{Author, DeleteOptions, Preconditions, Writer};
use davit_pki::host_name;

const GROUP: &str = "coordination.k8s.io";
const LEASES: &str = "leases";
const NAMESPACE: &str = "kube-system";
/// Whose lease it is (a label).
const IDENTITY: &str = "apiserver.kubernetes.io/identity";
/// How long a server counts that does not renew its lease, and between looks for such ones.
const LIFE: i64 = 3600;
const RENEW: Duration = Duration::from_secs(10);
const SWEEP: Duration = Duration::from_secs(3600);

/// Keeps the lease until the server stops.
pub(super) async fn keep(server: &Arc<ApiServer>) {
    let (name, host) = (server.identity(), host_name().unwrap_or_default());
    let mut holder = name.to_owned();
    // writing to a String cannot fail
    let _ = write!(holder, "_{}", uuid::Uuid::new_v4());
    let mut swept: Option<Instant> = None;
    loop {
        if let Err(status) = renew(server, name, &host, &holder).await {
            tracing::warn!(name, error = status.message, "the lease of this API server");
        }
        if swept.is_none_or(|at| at.elapsed() >= SWEEP) {
            swept = Some(Instant::now());
            if let Err(status) = sweep(server).await {
                tracing::warn!(
                    error = status.message,
                    "leases of API servers that are gone"
                );
            }
        }
        tokio::select! {
            () = server.shutdown().cancelled() => return,
            () = tokio::time::sleep(RENEW) => {}
        }
    }
}

async fn renew(
    server: &Arc<ApiServer>,
    name: &str,
    host: &str,
    holder: &str,
) -> Result<(), Status> {
    let now = jiff::Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%S%.6fZ")
        .to_string();
    let labels = json!({ IDENTITY: NAME, "kubernetes.io/hostname": host });
    let snapshot = server.registry().snapshot();
    let author = Author::apiserver();
    let Some(writer) = writer(server, &snapshot, &author) else {
        return Ok(());
    };
    let held = server.object(GROUP, LEASES, NAMESPACE, name).await?;
    if held.is_none() {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": name, "namespace": NAMESPACE, "labels": labels },
            "spec": {
                "holderIdentity": holder, "leaseDurationSeconds": LIFE, "renewTime": now,
            },
        });
        return match writer.create(lease).await {
            Err(status) if status.reason == Reason::AlreadyExists => Ok(()),
            made => made.map(drop),
        };
    }
    let mut renewed = |current: &Value| {
        let mut lease = current.clone();
        for (key, value) in labels.as_object().into_iter().flatten() {
            lease["metadata"]["labels"][key.as_str()] = value.clone();
        }
        lease["spec"]["holderIdentity"] = json!(holder);
        lease["spec"]["leaseDurationSeconds"] = json!(LIFE);
        lease["spec"]["renewTime"] = json!(now);
        Ok(lease)
    };
    writer.update(name, "", &mut renewed).await.map(drop)
}

fn writer<'a>(
    server: &'a ApiServer,
    snapshot: &'a Snapshot,
    author: &'a Author,
) -> Option<Writer<'a>> {
    let resource = snapshot.by_group_resource(GROUP, LEASES)?;
    let tracking = Tracking::Update(NAME.to_owned());
    Some(author.writer(server, resource, NAMESPACE, tracking))
}

/// Deletes the leases of servers that have not renewed them.
async fn sweep(server: &Arc<ApiServer>) -> Result<(), Status> {
    let now = jiff::Timestamp::now();
    let snapshot = server.registry().snapshot();
    let author = Author::apiserver();
    let Some(writer) = writer(server, &snapshot, &author) else {
        return Ok(());
    };
    for lease in server.objects(GROUP, LEASES, Some(NAMESPACE)).await? {
        if lease["metadata"]["labels"][IDENTITY] != NAME || !is_over(&lease, now) {
            continue;
        }
        // not if it is renewed meanwhile
        let options = DeleteOptions {
            preconditions: Preconditions {
                uid: None,
                resource_version: Some(object::resource_version(&lease).to_owned()),
            },
            ..DeleteOptions::default()
        };
        match writer.delete(object::name(&lease), &options).await {
            Err(status) if !matches!(status.reason, Reason::NotFound | Reason::Conflict) => {
                return Err(status);
            }
            _ => tracing::info!(lease = object::name(&lease), "an API server is gone"),
        }
    }
    Ok(())
}

/// Whether a lease has run out; one that does not say is no server's.
fn is_over(lease: &Value, now: jiff::Timestamp) -> bool {
    let renewed = lease["spec"]["renewTime"].as_str();
    let renewed = renewed.and_then(|text| text.parse::<jiff::Timestamp>().ok());
    let life = lease["spec"]["leaseDurationSeconds"].as_i64();
    renewed
        .zip(life)
        .is_none_or(|(renewed, life)| renewed.as_second().saturating_add(life) < now.as_second())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_run_out() {
        let now: jiff::Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let lease =
            |renewed: &str| json!({ "spec": { "renewTime": renewed, "leaseDurationSeconds": 60 } });
        assert!(!is_over(&lease("2026-01-01T00:59:30.000000Z"), now));
        assert!(is_over(&lease("2026-01-01T00:58:30.000000Z"), now));
        assert!(is_over(&json!({ "spec": {} }), now));
    }
}
