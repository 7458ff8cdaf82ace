//! Which addresses of nodes Services of type LoadBalancer have, on machines without a cloud (spec network.md 2.5).

mod assign;
mod places;
mod pool;

pub use assign::{BalanceVerdict, Balanced, balance};
pub use places::{
    BalancerAddress, BalancerAddresses, BalancerPort, balancer_addresses_of, host_ports,
    nodes_with_endpoints,
};
pub use pool::{BalancerPool, BalancerPoolError, Pooled, balance_from};

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::collections::BTreeSet;

/// How an object is named in words.
fn named(object: &ObjectMeta) -> String {
    let namespace = object.namespace.as_deref().unwrap_or_default();
    format!("{namespace}/{}", object.name.as_deref().unwrap_or_default())
}

/// Whether a Service is of type LoadBalancer, and no other load balancer's by its class.
#[must_use]
pub fn wants_balancer(service: &Service) -> bool {
    let Some(spec) = &service.spec else {
        return false;
    };
    spec.type_.as_deref() == Some("LoadBalancer")
        && spec.load_balancer_class.is_none()
        && service.metadata.deletion_timestamp.is_none()
}

/// Whether only nodes with endpoints lead to a Service (`externalTrafficPolicy`).
#[must_use]
pub fn keeps_to_nodes(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    let policy = spec.and_then(|spec| spec.external_traffic_policy.as_deref());
    policy == Some("Local")
}

/// The addresses, or host names, that a Service has from a load balancer.
#[must_use]
pub fn balanced_at(service: &Service) -> BTreeSet<String> {
    let status = service.status.as_ref();
    let balancer = status.and_then(|status| status.load_balancer.as_ref());
    let ingress = balancer.and_then(|balancer| balancer.ingress.as_ref());
    let ingress = ingress.into_iter().flatten();
    ingress
        .filter_map(|at| at.ip.clone().or(at.hostname.clone()))
        .collect()
}

/// Whether `manager` has written the addresses that a Service has, by its `managedFields`.
#[must_use]
pub fn is_balanced_by(service: &Service, manager: &str) -> bool {
    let managed = service.metadata.managed_fields.iter().flatten();
    let ingress = "/f:status/f:loadBalancer/f:ingress";
    managed
        .filter(|entry| entry.manager.as_deref() == Some(manager))
        .filter_map(|entry| entry.fields_v1.as_ref())
        .any(|fields| fields.0.pointer(ingress).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn whose_a_service_is() {
        let service = |spec: Value, manager: &str| -> Service {
            let fields = json!({ "f:status": { "f:loadBalancer": { "f:ingress": {} } } });
            let managed = json!([{ "manager": manager, "fieldsV1": fields }]);
            serde_json::from_value(json!({
                "metadata": { "name": "s", "namespace": "n", "managedFields": managed },
                "spec": spec,
                "status": { "loadBalancer": { "ingress": [{ "ip": "192.0.2.1" }, { "hostname": "h" }] } },
            }))
            .unwrap()
        };
        let plain = service(json!({ "type": "LoadBalancer" }), "one");
        assert!(wants_balancer(&plain) && !keeps_to_nodes(&plain));
        assert!(is_balanced_by(&plain, "one") && !is_balanced_by(&plain, "two"));
        assert_eq!(balanced_at(&plain), ["192.0.2.1".into(), "h".into()].into());
        let local = json!({ "type": "LoadBalancer", "externalTrafficPolicy": "Local" });
        assert!(keeps_to_nodes(&service(local, "one")));
        let class = json!({ "type": "LoadBalancer", "loadBalancerClass": "example.com/lb" });
        for other in [class, json!({ "type": "NodePort" })] {
            assert!(!wants_balancer(&service(other, "one")));
        }
    }
}
