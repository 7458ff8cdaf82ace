//! The API server's side: a node, and claims as the scheduler leaves them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::answers::Device;

const NAMESPACE: &str = "default";
/// The request of every claim.
pub(super) const REQUEST: &str = "device";
const POLL: Duration = Duration::from_millis(200);

/// A claim that was made for the check.
#[derive(Debug, Clone)]
pub(super) struct Claim {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) uid: String,
}

/// Whose parameters they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Claim,
    Class,
}

/// Opaque parameters for a driver.
#[derive(Debug, Clone)]
pub(super) struct Config {
    pub(super) source: Source,
    pub(super) driver: String,
    pub(super) parameters: Value,
}

impl Config {
    fn opaque(&self) -> Value {
        json!({"driver": self.driver, "parameters": self.parameters})
    }
}

/// The API server as the check needs it.
pub(super) struct Cluster {
    client: Client,
    node: String,
    made: AtomicUsize,
}

fn kind(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

fn object(of: &Value) -> Result<DynamicObject, String> {
    serde_json::from_value(of.clone()).map_err(|e| e.to_string())
}

impl Cluster {
    pub(super) fn new(client: Client, node: &str) -> Self {
        Self {
            client,
            node: node.to_owned(),
            made: AtomicUsize::new(0),
        }
    }

    fn claims(&self) -> Api<DynamicObject> {
        let kind = kind("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims");
        Api::namespaced_with(self.client.clone(), NAMESPACE, &kind)
    }

    fn slices(&self) -> Api<DynamicObject> {
        let kind = kind("resource.k8s.io", "v1", "ResourceSlice", "resourceslices");
        Api::all_with(self.client.clone(), &kind)
    }

    /// Makes the node, if it is not there.
    pub(super) async fn add_node(&self) -> Result<(), String> {
        let nodes: Api<DynamicObject> =
            Api::all_with(self.client.clone(), &kind("", "v1", "Node", "nodes"));
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.node}});
        match nodes.create(&PostParams::default(), &object(&node)?).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            Err(error) => Err(format!("making the node {}: {error}", self.node)),
        }
    }

    /// The slices of a driver.
    pub(super) async fn slices_of(&self, driver: &str) -> Result<Vec<Value>, String> {
        let selected = ListParams::default().fields(&format!("spec.driver={driver}"));
        let found = self.slices().list(&selected).await;
        let found = found.map_err(|e| format!("listing slices: {e}"))?;
        let values = found.items.iter().map(serde_json::to_value);
        values.collect::<Result<_, _>>().map_err(|e| e.to_string())
    }

    /// Waits until the slices of a driver are as `fits` wants them; else what it says of the last ones.
    pub(super) async fn await_slices<T>(
        &self,
        driver: &str,
        limit: Duration,
        fits: impl Fn(&[Value]) -> Result<T, String>,
    ) -> Result<(T, Vec<Value>), String> {
        let until = Instant::now() + limit;
        loop {
            let slices = self.slices_of(driver).await?;
            match fits(&slices) {
                Ok(said) => return Ok((said, slices)),
                Err(why) if Instant::now() >= until => {
                    return Err(format!("{why}, after {} s", limit.as_secs()));
                }
                Err(_) => sleep(POLL).await,
            }
        }
    }

    pub(super) async fn delete_slice(&self, name: &str) -> Result<(), String> {
        let deleted = self.slices().delete(name, &DeleteParams::default()).await;
        deleted.map_err(|e| format!("deleting slice {name}: {e}"))?;
        Ok(())
    }

    /// A claim without an allocation.
    pub(super) async fn claim(&self) -> Result<Claim, String> {
        self.wish(&[]).await
    }

    /// A claim that says this to drivers; what classes say is not in it.
    async fn wish(&self, configs: &[Config]) -> Result<Claim, String> {
        let n = self.made.fetch_add(1, Ordering::Relaxed);
        let name = format!("davit-lab-{}-{n}", std::process::id());
        let own = configs
            .iter()
            .filter(|config| config.source == Source::Claim);
        let own: Vec<Value> = own.map(|c| json!({"opaque": c.opaque()})).collect();
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"devices": {"requests": [{"name": REQUEST, "exactly": {"deviceClassName": "davit-lab"}}],
                "config": own}},
        });
        let (claims, new) = (self.claims(), object(&claim)?);
        let made = claims.create(&PostParams::default(), &new).await;
        let made = made.map_err(|e| format!("making claim {name}: {e}"))?;
        Ok(Claim {
            name,
            namespace: NAMESPACE.to_owned(),
            uid: made.metadata.uid.unwrap_or_default(),
        })
    }

    /// A claim to which a device is allocated, in use by a pod of the node.
    pub(super) async fn allocated(&self, driver: &str, device: &Device) -> Result<Claim, String> {
        self.configured(driver, device, &[]).await
    }

    /// The same with parameters, of the claim or of a class.
    pub(super) async fn configured(
        &self,
        driver: &str,
        device: &Device,
        configs: &[Config],
    ) -> Result<Claim, String> {
        let claim = self.wish(configs).await?;
        let mut result = json!({"request": REQUEST, "driver": driver, "pool": device.pool, "device": device.name});
        if device.shareable {
            result["shareID"] = json!(share_id(&claim.uid));
            result["consumedCapacity"] = json!(device.capacity);
        }
        let config = |config: &Config| {
            let source = match config.source {
                Source::Claim => "FromClaim",
                Source::Class => "FromClass",
            };
            json!({"source": source, "opaque": config.opaque()})
        };
        let configs: Vec<Value> = configs.iter().map(config).collect();
        let status = json!({
            "allocation": {
                "devices": {"results": [result], "config": configs},
                "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [
                    {"key": "metadata.name", "operator": "In", "values": [self.node]}]}]},
            },
            "reservedFor": [{"resource": "pods", "name": "davit-lab", "uid": claim.uid}],
        });
        let what = |e: kube::Error| format!("allocating {}/{}: {e}", device.pool, device.name);
        let claims = self.claims();
        let mut held = claims.get(&claim.name).await.map_err(what)?;
        held.data["status"] = status;
        let options = PostParams::default();
        let written = claims.replace_status(&claim.name, &options, &held).await;
        written.map_err(what)?;
        Ok(claim)
    }

    /// Deletes a claim; one that is gone is.
    pub(super) async fn delete(&self, claim: &Claim) -> Result<(), String> {
        match self
            .claims()
            .delete(&claim.name, &DeleteParams::default())
            .await
        {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(format!("deleting claim {}: {error}", claim.name)),
        }
    }
}

/// A share of a device is named like a UID; that of the claim will do for its one share.
fn share_id(uid: &str) -> String {
    uid.to_ascii_lowercase()
}
