//! From a service to an address behind it.

use std::sync::Arc;

use async_trait::async_trait;
use davit_registry::Registry;
use davit_registry::storage::{self, Storage};
use davit_store::ListOptions;
use davit_webhook::{DialPolicy, ServiceEndpoints};
use rand::seq::IndexedRandom;
use serde_json::Value;

const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Looks up services and their endpoints.
#[derive(Debug, Clone)]
pub(crate) struct StoredEndpoints {
    services: Option<Arc<Storage>>,
    endpoints: Option<Arc<Storage>>,
    slices: Option<Arc<Storage>>,
    reach: DialPolicy,
}

impl StoredEndpoints {
    /// Those that `registry` serves, as far as `reach` goes.
    pub(crate) fn new(registry: &Registry, reach: DialPolicy) -> Self {
        let snapshot = registry.snapshot();
        let of = |group, plural| {
            snapshot
                .by_group_resource(group, plural)
                .map(|info| Arc::clone(&info.storage))
        };
        Self {
            services: of("", "services"),
            endpoints: of("", "endpoints"),
            slices: of("discovery.k8s.io", "endpointslices"),
            reach,
        }
    }

    async fn slice_addresses(
        &self,
        namespace: &str,
        service: &str,
        port_name: &str,
    ) -> Result<Vec<(String, u16)>, String> {
        let Some(slices) = &self.slices else {
            return Ok(Vec::new());
        };
        let listing = slices
            .list(Some(namespace), ListOptions::default())
            .await
            .map_err(|error| error.to_string())?;
        let mut found = Vec::new();
        for pair in &listing.items {
            let Ok(slice) = storage::decode(pair) else {
                continue;
            };
            let slice = slice.value;
            let label = davit_api::meta::labels(&slice).and_then(|labels| labels.get(SERVICE_NAME));
            if label.and_then(Value::as_str) == Some(service) {
                found.extend(from_slice(&slice, port_name));
            }
        }
        Ok(found)
    }
}

#[async_trait]
impl ServiceEndpoints for StoredEndpoints {
    async fn endpoint(
        &self,
        namespace: &str,
        name: &str,
        port: u16,
    ) -> Result<(String, u16), String> {
        let service = read(self.services.as_ref(), namespace, name).await?;
        let Some(service) = service else {
            return Err(format!("service \"{name}\" not found"));
        };
        if service.pointer("/spec/type").and_then(Value::as_str) == Some("ExternalName") {
            let host = service
                .pointer("/spec/externalName")
                .and_then(Value::as_str);
            return Ok((host.unwrap_or_default().to_owned(), port));
        }
        let ports = service.pointer("/spec/ports").and_then(Value::as_array);
        let chosen = ports
            .into_iter()
            .flatten()
            .find(|candidate| candidate["port"].as_u64() == Some(u64::from(port)));
        let Some(chosen) = chosen else {
            return Err(format!(
                "no service port {port} found for service \"{name}\""
            ));
        };
        let port_name = chosen["name"].as_str().unwrap_or_default();
        let mut found = self.slice_addresses(namespace, name, port_name).await?;
        if found.is_empty() {
            let endpoints = read(self.endpoints.as_ref(), namespace, name).await?;
            found = endpoints
                .as_ref()
                .map(|endpoints| from_endpoints(endpoints, port_name))
                .unwrap_or_default();
        }
        // names are judged by what they resolve to
        found.retain(|(host, _)| host.parse().map_or(true, |ip| self.reach.permits(ip)));
        found
            .choose(&mut rand::rng())
            .cloned()
            .ok_or_else(|| format!("no endpoints available for service \"{name}\""))
    }

    fn reach(&self) -> DialPolicy {
        self.reach
    }
}

async fn read(
    storage: Option<&Arc<Storage>>,
    namespace: &str,
    name: &str,
) -> Result<Option<Value>, String> {
    let Some(storage) = storage else {
        return Ok(None);
    };
    let found = storage.get(namespace, name).await;
    found
        .map(|stored| stored.map(|stored| stored.value))
        .map_err(|error| error.to_string())
}

fn port_of(ports: &Value, name: &str) -> Option<u16> {
    let found = ports
        .as_array()?
        .iter()
        .find(|port| port["name"].as_str().unwrap_or_default() == name)?;
    found["port"]
        .as_u64()
        .and_then(|port| u16::try_from(port).ok())
}

fn from_slice(slice: &Value, port_name: &str) -> Vec<(String, u16)> {
    let Some(port) = port_of(&slice["ports"], port_name) else {
        return Vec::new();
    };
    let ready = |endpoint: &&Value| {
        endpoint
            .pointer("/conditions/ready")
            .and_then(Value::as_bool)
            != Some(false)
    };
    let endpoints = slice["endpoints"].as_array().into_iter().flatten();
    endpoints
        .filter(ready)
        .filter_map(|endpoint| endpoint["addresses"].get(0)?.as_str())
        .map(|address| (address.to_owned(), port))
        .collect()
}

fn from_endpoints(endpoints: &Value, port_name: &str) -> Vec<(String, u16)> {
    let subsets = endpoints["subsets"].as_array().into_iter().flatten();
    subsets
        .filter_map(|subset| Some((subset, port_of(&subset["ports"], port_name)?)))
        .flat_map(|(subset, port)| {
            let addresses = subset["addresses"].as_array().into_iter().flatten();
            addresses
                .filter_map(|address| address["ip"].as_str())
                .map(move |ip| (ip.to_owned(), port))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_ready_endpoints_of_the_named_port_count() {
        let slice = json!({
            "ports": [{ "name": "metrics", "port": 1 }, { "name": "https", "port": 9443 }],
            "endpoints": [
                { "addresses": ["10.0.0.1"], "conditions": { "ready": true } },
                { "addresses": ["10.0.0.2"], "conditions": { "ready": false } },
                { "addresses": ["10.0.0.3"] },
            ],
        });
        let found = from_slice(&slice, "https");
        assert_eq!(
            found,
            [("10.0.0.1".to_owned(), 9443), ("10.0.0.3".to_owned(), 9443)]
        );
        assert!(from_slice(&slice, "").is_empty());
        let endpoints = json!({ "subsets": [
            { "addresses": [{ "ip": "10.0.0.9" }], "ports": [{ "port": 80 }] },
        ] });
        assert_eq!(
            from_endpoints(&endpoints, ""),
            [("10.0.0.9".to_owned(), 80)]
        );
    }
}
