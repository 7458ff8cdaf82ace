//! StorageVersions say in which version each API server of a cluster writes a resource. What a server said that is gone is taken
//! out of them; one of which nothing is left is deleted ([KEP-2339](https://kep.k8s.io/2339)).

use async_trait::async_trait;
use davit_client::{ObjectKey, list_in_pages};
use davit_reconcile::{Context, Error, Next, Reconcile, Spawner, cluster_key, gone_is_none};
use k8s_openapi::api::apiserverinternal::v1alpha1::{
    StorageVersion, StorageVersionCondition, StorageVersionStatus,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions};
use std::collections::BTreeSet;
use std::time::Duration;

/// By which API servers are known: leases in `kube-system`.
const IDENTITIES: &str = "apiserver.kubernetes.io/identity=kube-apiserver";
const ALL_EQUAL: &str = "AllEncodingVersionsEqual";
/// Between looks, and between looks whether an API server that does not have the kind has it meanwhile.
const LOOK: Duration = Duration::from_secs(10);
const IS_SERVED: Duration = Duration::from_secs(5 * 60);

struct StorageVersionCollector {
    /// Acts as the controller's account, and lists as all controllers.
    client: kube::Client,
    shared: kube::Client,
}

pub(crate) fn spawn(spawner: &mut Spawner<'_>) {
    let Some(spawner) = &mut spawner.start("storageversion-garbage-collector-controller") else {
        return;
    };
    let queue = spawner.controller(StorageVersionCollector {
        client: spawner.client.clone(),
        shared: spawner.shared.clone(),
    });
    queue.add_after(cluster_key("look"), LOOK);
}

/// What is to be done about an object.
#[derive(Debug, PartialEq)]
enum Plan {
    Nothing,
    Delete,
    Write(StorageVersionStatus),
}

/// `servers` are the API servers that there are.
fn plan(version: &StorageVersion, servers: &BTreeSet<String>, now: Timestamp) -> Plan {
    let mut status = version.status.clone().unwrap_or_default();
    let said = status.storage_versions.take().unwrap_or_default();
    let before = said.len();
    let mut left = said;
    left.retain(|said| servers.contains(&said.api_server_id));
    if left.len() == before {
        return Plan::Nothing;
    }
    let Some(first) = left.first() else {
        return Plan::Delete;
    };
    let encoding = &first.encoding_version;
    let common = left.iter().all(|s| s.encoding_version == *encoding);
    let common = common.then(|| encoding.clone());
    let generation = version.metadata.generation;
    let condition = condition(&status, common.as_deref(), generation, now);
    let conditions = status.conditions.get_or_insert_default();
    conditions.retain(|c| c.type_ != ALL_EQUAL);
    conditions.push(condition);
    status.common_encoding_version = common;
    status.storage_versions = Some(left);
    Plan::Write(status)
}

/// Whether all servers write the same version; since when, if that was so before.
fn condition(
    before: &StorageVersionStatus,
    common: Option<&str>,
    generation: Option<i64>,
    now: Timestamp,
) -> StorageVersionCondition {
    let (status, reason, message) = match common {
        Some(_) => (
            "True",
            "CommonEncodingVersionSet",
            "Common encoding version set",
        ),
        None => (
            "False",
            "CommonEncodingVersionUnset",
            "Common encoding version unset",
        ),
    };
    let mut known = before.conditions.iter().flatten();
    let known = known.find(|c| c.type_ == ALL_EQUAL);
    // Another version that all have is a change, too.
    let is_same = before.common_encoding_version.is_none()
        || before.common_encoding_version.as_deref() == common;
    let since = known.filter(|c| c.status == status && is_same);
    let since = since.and_then(|c| c.last_transition_time.clone());
    StorageVersionCondition {
        type_: ALL_EQUAL.to_owned(),
        status: status.to_owned(),
        observed_generation: generation,
        last_transition_time: Some(since.unwrap_or(Time(now))),
        reason: reason.to_owned(),
        message: message.to_owned(),
    }
}

impl StorageVersionCollector {
    /// The API servers that there are.
    async fn servers(&self) -> Result<BTreeSet<String>, Error> {
        let leases: kube::Api<Lease> = kube::Api::namespaced(self.shared.clone(), "kube-system");
        let leases = list_in_pages(&leases, ListParams::default().labels(IDENTITIES)).await;
        let leases = leases.context(|| "list the leases of API servers".to_owned())?;
        let names = leases.items.into_iter();
        Ok(names.filter_map(|lease| lease.metadata.name).collect())
    }

    async fn carry_out(&self, version: &StorageVersion, plan: Plan) -> Result<(), Error> {
        let versions: kube::Api<StorageVersion> = kube::Api::all(self.client.clone());
        let name = version.metadata.name.as_deref().unwrap_or_default();
        match plan {
            Plan::Nothing => {}
            Plan::Delete => {
                // A server that has come meanwhile has written it.
                let params = DeleteParams::default().preconditions(Preconditions {
                    uid: version.metadata.uid.clone(),
                    resource_version: version.metadata.resource_version.clone(),
                });
                let deleted = versions.delete(name, &params).await;
                gone_is_none(deleted).context(|| format!("delete StorageVersion {name}"))?;
            }
            Plan::Write(status) => {
                let version = StorageVersion {
                    status: Some(status),
                    ..version.clone()
                };
                let params = PostParams::default();
                let written = versions.replace_status(name, &params, &version).await;
                gone_is_none(written)
                    .context(|| format!("write the status of StorageVersion {name}"))?;
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Reconcile for StorageVersionCollector {
    const NAME: &'static str = "storage-version-garbage-collector";
    const WORKERS: usize = 1;

    async fn sync(&self, _key: &ObjectKey) -> Result<Next, Error> {
        let versions: kube::Api<StorageVersion> = kube::Api::all(self.shared.clone());
        let listed = list_in_pages(&versions, ListParams::default()).await;
        let listed = gone_is_none(listed).context(|| "list StorageVersions".to_owned())?;
        let Some(listed) = listed else {
            return Ok(Next::After(IS_SERVED));
        };
        // Servers after what they say: one that comes in between must not look gone.
        let servers = match listed.items.is_empty() {
            true => BTreeSet::new(),
            false => self.servers().await?,
        };
        for version in &listed.items {
            let plan = plan(version, &servers, Timestamp::now());
            self.carry_out(version, plan).await?;
        }
        Ok(Next::After(LOOK))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn version(
        servers: &[(&str, &str)],
        conditions: Value,
        common: Option<&str>,
    ) -> StorageVersion {
        let said = servers.iter().map(|(id, version)| {
            json!({"apiServerID": id, "encodingVersion": version, "decodableVersions": [version]})
        });
        serde_json::from_value(json!({"metadata": {"name": "apps.deployments"}, "spec": {}, "status": {
            "storageVersions": said.collect::<Vec<Value>>(), "conditions": conditions, "commonEncodingVersion": common}}))
        .unwrap()
    }

    fn decide(version: &StorageVersion) -> Plan {
        let servers = ["a", "b"].map(str::to_owned).into();
        plan(version, &servers, "2026-01-02T00:00:00Z".parse().unwrap())
    }

    #[test]
    fn what_servers_said_that_are_gone_goes() {
        let two = version(&[("a", "v1"), ("b", "v2")], json!([]), None);
        assert_eq!(decide(&two), Plan::Nothing);
        assert_eq!(decide(&version(&[], json!([]), None)), Plan::Nothing);
        let gone = version(&[("c", "v1")], json!([]), Some("v1"));
        assert_eq!(decide(&gone), Plan::Delete);
        let Plan::Write(status) = decide(&version(&[("a", "v1"), ("c", "v2")], json!([]), None))
        else {
            panic!("one is left");
        };
        assert_eq!(status.storage_versions.unwrap().len(), 1);
        assert_eq!(status.common_encoding_version.as_deref(), Some("v1"));
        assert_eq!(status.conditions.unwrap()[0].status, "True");
    }

    #[test]
    fn conditions_keep_their_time_while_nothing_changes() {
        let before = json!([{"type": ALL_EQUAL, "status": "True", "reason": "r", "message": "m",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        let since = |common| {
            let version = version(&[("a", "v1"), ("c", "v1")], before.clone(), Some(common));
            let Plan::Write(status) = decide(&version) else {
                panic!("one is gone");
            };
            let condition = status.conditions.unwrap().remove(0);
            condition.last_transition_time.unwrap().0.to_string()
        };
        assert_eq!(since("v1"), "2026-01-01T00:00:00Z");
        assert_eq!(since("v0"), "2026-01-02T00:00:00Z");
    }
}
