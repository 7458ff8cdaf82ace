//! The Service `kube-system/kube-dns`, and as its endpoints the DNS servers that nodes have at the gateways of their pods
//! (spec network.md 6.6, 6.7).
//!
//! Who brings DNS of his own puts his Service in the place of this one: as soon as it selects pods, davit's slice goes.

use async_trait::async_trait;
use davit_client::ObjectKey;
use davit_netplan::{Family, range_of};
use davit_reconcile::{
    Context, Error, Informers, Next, Reconcile, Spawner, exists_is_none, gone_is_none,
};
use k8s_openapi::api::core::v1::{Endpoints, Node, Service, ServicePort};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};
use std::net::IpAddr;

const NAMESPACE: &str = "kube-system";
const NAME: &str = "kube-dns";
/// The name of the slice of a family.
fn slice_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "kube-dns-davit",
        Family::V6 => "kube-dns-davit-ipv6",
    }
}

const SERVICE_NAME: &str = "kubernetes.io/service-name";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const SKIP_MIRROR: &str = "endpointslice.kubernetes.io/skip-mirror";
const ENDPOINTS_MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const MANAGER: &str = "cluster-dns.davit.dev";
/// Nodes with this annotation answer at the gateway of their pods.
const SERVES: &str = "davit.dev/cluster-dns";
const PORT: u16 = 53;
const METRICS_PORT: i32 = 9153;
/// What the Service is called by, whoever answers.
const CALLED: &str = "kubernetes.io/name";

struct ClusterDns {
    client: kube::Client,
    informers: Informers,
    /// One, or one of each family.
    addresses: Vec<IpAddr>,
}

pub(crate) fn spawn(spawner: &mut Spawner<'_>, addresses: Vec<IpAddr>) {
    let Some(spawner) = &mut spawner.start("cluster-dns-controller") else {
        return;
    };
    let informers = spawner.informers.clone();
    let queue = spawner.controller(ClusterDns {
        client: spawner.client.clone(),
        informers: informers.clone(),
        addresses,
    });
    let key = || ObjectKey {
        namespace: NAMESPACE.to_owned(),
        name: NAME.to_owned(),
    };
    queue.add(key());
    spawner.feed(&informers.services, &queue, move |service: &Service| {
        let found = ObjectKey::of(service);
        (found == key()).then_some(found).into_iter().collect()
    });
    spawner.feed(
        &informers.endpoint_slices,
        &queue,
        move |slice: &EndpointSlice| {
            let found = ObjectKey::of(slice);
            let names = Family::ALL.map(slice_name);
            let ours = found.namespace == NAMESPACE && names.contains(&found.name.as_str());
            ours.then(key).into_iter().collect()
        },
    );
    spawner.feed(
        &informers.endpoints,
        &queue,
        move |endpoints: &Endpoints| {
            let found = ObjectKey::of(endpoints);
            (found == key()).then_some(found).into_iter().collect()
        },
    );
    let endpoints = |node: &Node| Family::ALL.map(|family| endpoint(node, family));
    let matters = move |old: &Node, new: &Node| endpoints(old) != endpoints(new);
    spawner.feed_changes(&informers.nodes, &queue, matters, move |_: &Node| {
        vec![key()]
    });
}

/// The node's server as an endpoint.
fn endpoint(node: &Node, family: Family) -> Option<Value> {
    let annotations = node.metadata.annotations.as_ref()?;
    let serves = annotations.get(SERVES).is_some_and(|value| value == "true");
    let gateway = range_of(node, family)?.gateway();
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    let ready = conditions.any(|c| c.type_ == "Ready" && c.status == "True");
    let name = node.metadata.name.as_ref()?;
    serves.then(|| {
        json!({
            "addresses": [gateway],
            "nodeName": name,
            "conditions": { "ready": ready, "serving": ready, "terminating": false },
            // Each node asks its own server as long as that is ready.
            "hints": { "forNodes": [{ "name": name }] },
        })
    })
}

fn service(addresses: &[IpAddr]) -> Value {
    let policy = match addresses {
        [_] => "SingleStack",
        _ => "PreferDualStack",
    };
    json!({
        "metadata": {
            "name": NAME, "namespace": NAMESPACE,
            "labels": {
                "k8s-app": NAME,
                "kubernetes.io/cluster-service": "true",
                CALLED: "CoreDNS",
            },
        },
        "spec": {
            "clusterIP": addresses.first(),
            "clusterIPs": addresses,
            "ipFamilyPolicy": policy,
            "ports": [
                { "name": "dns", "port": PORT, "protocol": "UDP", "targetPort": PORT },
                { "name": "dns-tcp", "port": PORT, "protocol": "TCP", "targetPort": PORT },
                { "name": "metrics", "port": METRICS_PORT, "protocol": "TCP", "targetPort": METRICS_PORT },
            ],
        },
    })
}

/// Whether the Service had no such port, and is one of davit's.
fn add_metrics_port(service: &mut Service) -> bool {
    let labels = service.metadata.labels.as_ref();
    let is_ours = labels
        .and_then(|l| l.get(CALLED))
        .is_some_and(|l| l == "CoreDNS");
    let Some(spec) = service.spec.as_mut().filter(|_| is_ours) else {
        return false;
    };
    let ports = spec.ports.get_or_insert_default();
    let is_metrics = |port: &ServicePort| port.port == METRICS_PORT;
    if ports.iter().any(is_metrics) {
        return false;
    }
    ports.push(ServicePort {
        name: Some("metrics".to_owned()),
        port: METRICS_PORT,
        protocol: Some("TCP".to_owned()),
        target_port: Some(IntOrString::Int(METRICS_PORT)),
        ..ServicePort::default()
    });
    true
}

fn slice(family: Family, endpoints: &[Value]) -> Value {
    json!({
        "metadata": {
            "name": slice_name(family), "namespace": NAMESPACE,
            "labels": { SERVICE_NAME: NAME, MANAGED_BY: MANAGER },
        },
        "addressType": family.name(),
        "ports": [
            { "name": "dns", "port": PORT, "protocol": "UDP" },
            { "name": "dns-tcp", "port": PORT, "protocol": "TCP" },
            { "name": "metrics", "port": METRICS_PORT, "protocol": "TCP" },
        ],
        "endpoints": endpoints,
    })
}

/// The same as Endpoints of v1, for those who read no slices: of the Service's first family, as everywhere.
fn endpoints_of(endpoints: &[Value]) -> Value {
    let addresses = |ready: bool| {
        let of = endpoints
            .iter()
            .filter(move |endpoint| endpoint["conditions"]["ready"] == ready);
        let addresses: Vec<Value> = of
            .map(|endpoint| json!({ "ip": endpoint["addresses"][0], "nodeName": endpoint["nodeName"] }))
            .collect();
        (!addresses.is_empty()).then_some(addresses)
    };
    let subset = json!({
        "addresses": addresses(true),
        "notReadyAddresses": addresses(false),
        "ports": slice(Family::V4, &[])["ports"],
    });
    json!({
        "metadata": {
            "name": NAME, "namespace": NAMESPACE,
            // its slices are davit's own
            "labels": { SKIP_MIRROR: "true", ENDPOINTS_MANAGED_BY: MANAGER },
        },
        "subsets": if endpoints.is_empty() { Value::Null } else { json!([subset]) },
    })
}

/// Whether Endpoints are davit's own.
fn is_managed(endpoints: &Endpoints) -> bool {
    let labels = endpoints.metadata.labels.as_ref();
    labels.is_some_and(|labels| {
        labels
            .get(ENDPOINTS_MANAGED_BY)
            .is_some_and(|by| by == MANAGER)
    })
}

fn parsed<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, Error> {
    serde_json::from_value(value).map_err(|error| Error::Invalid(error.to_string()))
}

impl ClusterDns {
    fn endpoints(&self, family: Family) -> Vec<Value> {
        let nodes = self.informers.nodes.list();
        let endpoints = nodes.iter().filter_map(|node| endpoint(node, family));
        endpoints.collect()
    }

    /// The families of the Service.
    fn families(&self) -> impl Iterator<Item = Family> {
        self.addresses.iter().copied().map(Family::of)
    }

    async fn write_slice(&self, family: Family) -> Result<(), Error> {
        let name = slice_name(family);
        let slices: Api<EndpointSlice> = Api::namespaced(self.client.clone(), NAMESPACE);
        let wanted: EndpointSlice = parsed(slice(family, &self.endpoints(family)))?;
        let held = self.informers.endpoint_slices.get(Some(NAMESPACE), name);
        let what = || format!("endpoint slice {NAMESPACE}/{name}");
        match held {
            None => {
                let made = slices.create(&PostParams::default(), &wanted).await;
                exists_is_none(made).context(|| format!("create {}", what()))?;
            }
            Some(held) if held.endpoints != wanted.endpoints || held.ports != wanted.ports => {
                let mut new = (*held).clone();
                (new.endpoints, new.ports) = (wanted.endpoints, wanted.ports);
                let written = slices.replace(name, &PostParams::default(), &new).await;
                gone_is_none(written).context(|| format!("write {}", what()))?;
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// Those of somebody else stay.
    async fn write_endpoints(&self) -> Result<(), Error> {
        let family = self.families().next().unwrap_or(Family::V4);
        let wanted: Endpoints = parsed(endpoints_of(&self.endpoints(family)))?;
        let all: Api<Endpoints> = Api::namespaced(self.client.clone(), NAMESPACE);
        let what = || format!("endpoints {NAMESPACE}/{NAME}");
        match self.informers.endpoints.get(Some(NAMESPACE), NAME) {
            None => {
                let made = all.create(&PostParams::default(), &wanted).await;
                exists_is_none(made).context(|| format!("create {}", what()))?;
            }
            Some(held) if is_managed(&held) && held.subsets != wanted.subsets => {
                let mut new = (*held).clone();
                new.subsets = wanted.subsets;
                let written = all.replace(NAME, &PostParams::default(), &new).await;
                gone_is_none(written).context(|| format!("write {}", what()))?;
            }
            Some(_) => {}
        }
        Ok(())
    }

    async fn remove_endpoints(&self) -> Result<(), Error> {
        let held = self.informers.endpoints.get(Some(NAMESPACE), NAME);
        if held.is_some_and(|held| is_managed(&held)) {
            let all: Api<Endpoints> = Api::namespaced(self.client.clone(), NAMESPACE);
            let deleted = all.delete(NAME, &DeleteParams::default()).await;
            gone_is_none(deleted).context(|| format!("delete endpoints {NAMESPACE}/{NAME}"))?;
        }
        Ok(())
    }

    /// A Service that an older davit has made has no port of metrics.
    async fn add_metrics(&self, held: &Service) -> Result<(), Error> {
        let mut new = held.clone();
        if !add_metrics_port(&mut new) {
            return Ok(());
        }
        let services: Api<Service> = Api::namespaced(self.client.clone(), NAMESPACE);
        let written = services.replace(NAME, &PostParams::default(), &new).await;
        gone_is_none(written).context(|| format!("write service {NAMESPACE}/{NAME}"))?;
        Ok(())
    }

    /// Somebody else's server answers.
    async fn remove_slice(&self, family: Family) -> Result<(), Error> {
        let name = slice_name(family);
        if self
            .informers
            .endpoint_slices
            .get(Some(NAMESPACE), name)
            .is_some()
        {
            let slices: Api<EndpointSlice> = Api::namespaced(self.client.clone(), NAMESPACE);
            let deleted = slices.delete(name, &DeleteParams::default()).await;
            gone_is_none(deleted)
                .context(|| format!("delete endpoint slice {NAMESPACE}/{name}"))?;
        }
        Ok(())
    }
}

#[async_trait]
impl Reconcile for ClusterDns {
    const NAME: &'static str = "cluster-dns";
    const WORKERS: usize = 1;

    async fn sync(&self, _: &ObjectKey) -> Result<Next, Error> {
        let Some(held) = self.informers.services.get(Some(NAMESPACE), NAME) else {
            // Nodes that answer are what makes it worth a Service.
            if self
                .families()
                .all(|family| self.endpoints(family).is_empty())
            {
                return Ok(Next::Wait);
            }
            let services: Api<Service> = Api::namespaced(self.client.clone(), NAMESPACE);
            // Asked for, because one that was just made already has the address.
            let held = services.get_opt(NAME).await;
            let held = held.context(|| format!("read service {NAMESPACE}/{NAME}"))?;
            if held.is_none() {
                let wanted: Service = parsed(service(&self.addresses))?;
                let made = services.create(&PostParams::default(), &wanted).await;
                exists_is_none(made).context(|| format!("create service {NAMESPACE}/{NAME}"))?;
            }
            return Ok(Next::Wait);
        };
        let selector = held.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        if selector.is_some_and(|selector| !selector.is_empty()) {
            for family in self.families() {
                self.remove_slice(family).await?;
            }
            self.remove_endpoints().await?;
        } else {
            self.add_metrics(&held).await?;
            for family in self.families() {
                self.write_slice(family).await?;
            }
            self.write_endpoints().await?;
        }
        Ok(Next::Wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_answer_are_endpoints() {
        let node = |serves: &str, range: Option<&str>, ready: &str| -> Node {
            serde_json::from_value(json!({
                "metadata": { "name": "n", "annotations": { SERVES: serves } },
                "spec": { "podCIDR": range },
                "status": { "conditions": [{ "type": "Ready", "status": ready }] },
            }))
            .unwrap()
        };
        let of_four = |node: &Node| endpoint(node, Family::V4);
        let found = of_four(&node("true", Some("10.244.3.0/24"), "True")).unwrap();
        assert_eq!(found["addresses"], json!(["10.244.3.1"]));
        assert_eq!(found["conditions"]["ready"], true);
        let lost = of_four(&node("true", Some("10.244.3.0/24"), "Unknown")).unwrap();
        assert_eq!(lost["conditions"]["ready"], false);
        assert_eq!(of_four(&node("false", Some("10.244.3.0/24"), "True")), None);
        assert_eq!(of_four(&node("true", None, "True")), None);
        let mut made: Service = parsed(service(&["10.96.0.10".parse().unwrap()])).unwrap();
        assert!(!add_metrics_port(&mut made));
        let ports = made.spec.as_mut().unwrap().ports.as_mut().unwrap();
        let metrics = ports.pop();
        assert!(add_metrics_port(&mut made), "of an older davit");
        assert_eq!(made.spec.unwrap().ports.unwrap().pop(), metrics);
        let both: Endpoints = parsed(endpoints_of(&[found.clone(), lost])).unwrap();
        assert!(is_managed(&both));
        let [subset] = &both.subsets.unwrap()[..] else {
            panic!("one subset expected")
        };
        let ready = &subset.addresses.as_ref().unwrap()[0];
        assert_eq!(
            (ready.ip.as_str(), ready.node_name.as_deref()),
            ("10.244.3.1", Some("n"))
        );
        assert_eq!(subset.not_ready_addresses.as_ref().unwrap().len(), 1);
        assert_eq!(subset.ports.as_ref().unwrap().len(), 3);
        let none: Endpoints = parsed(endpoints_of(&[])).unwrap();
        assert_eq!(none.subsets, None);
        parsed::<EndpointSlice>(slice(Family::V4, &[found])).unwrap();
        let six = endpoint(
            &node("true", Some("fd00:10:244:3::/64"), "True"),
            Family::V6,
        );
        assert_eq!(six.unwrap()["addresses"], json!(["fd00:10:244:3::1"]));
        let both = ["fd00:10:96::a", "10.96.0.10"].map(|text| text.parse().unwrap());
        let both: Service = parsed(service(&both)).unwrap();
        assert_eq!(
            both.spec.unwrap().ip_family_policy.as_deref(),
            Some("PreferDualStack")
        );
    }
}
