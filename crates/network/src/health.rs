//! What the proxy says of its health (spec network.md 3.6): whether what was told to it stands in the kernel, whether new
//! connections should come to this node, and to load balancers whether a Service has endpoints here.

use crate::http::{Page, Pages};
use crate::metrics::ProxyMetrics;
use davit_client::{EventRecorder, ObjectKey};
use davit_netplan::HealthCheck;
use http::{HeaderValue, StatusCode};
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// How long something may wait to stand in the kernel: twice kube-proxy's `syncPeriod`.
const QUEUED: Duration = Duration::from_secs(60);
/// Between tries to listen at a port of a Service.
const RETRY: Duration = Duration::from_secs(5);
/// Nodes with this taint are about to go (KEP-3836).
const GOING: &str = "ToBeDeletedByClusterAutoscaler";

/// How the proxy is.
#[derive(Debug)]
pub(crate) struct Health {
    state: Mutex<State>,
    pub(crate) metrics: ProxyMetrics,
}

#[derive(Debug)]
struct State {
    /// Since when something waits.
    queued: Option<Instant>,
    updated: Option<Timestamp>,
    eligible: bool,
}

impl Health {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                // The first write counts as well.
                queued: Some(Instant::now()),
                updated: None,
                eligible: true,
            }),
            metrics: ProxyMetrics::default(),
        })
    }

    /// Something is to be written.
    pub(crate) fn queued(&self) {
        self.metrics.queued();
        self.state.lock().queued.get_or_insert_with(Instant::now);
    }

    /// Everything stands in the kernel.
    pub(crate) fn updated(&self) {
        self.metrics.updated();
        let mut state = self.state.lock();
        state.queued = None;
        state.updated = Some(Timestamp::now());
    }

    /// Whether new connections should come to the node.
    pub(crate) fn see(&self, node: Option<&Node>) {
        let taints = node.and_then(|node| node.spec.as_ref()?.taints.as_ref());
        let is_going = taints.into_iter().flatten().any(|taint| taint.key == GOING);
        let is_gone = node.is_some_and(|node| node.metadata.deletion_timestamp.is_some());
        self.state.lock().eligible = !is_going && !is_gone;
    }

    fn is_healthy(&self) -> bool {
        let state = self.state.lock();
        state.queued.is_none_or(|since| since.elapsed() < QUEUED)
    }

    /// `/healthz` and `/livez`, as at kube-proxy's port 10256.
    pub(crate) fn pages(self: &Arc<Self>) -> Pages {
        let health = self.clone();
        Arc::new(move |path| {
            let asks_node = match path {
                "/healthz" => true,
                "/livez" => false,
                _ => return None,
            };
            let page = health.page(asks_node);
            health.metrics.asked(asks_node, page.status.as_u16());
            Some(page)
        })
    }

    fn page(&self, asks_node: bool) -> Page {
        let healthy = self.is_healthy();
        let (updated, eligible) = {
            let state = self.state.lock();
            (state.updated, state.eligible)
        };
        let text = |time: Option<Timestamp>| time.map(|time| time.to_string());
        let updated = text(updated);
        let families = self.metrics.family_names();
        let status: serde_json::Map<String, serde_json::Value> = families
            .map(|family| {
                let said = json!({ "lastUpdated": updated, "healthy": healthy });
                (family.to_owned(), said)
            })
            .collect();
        let mut said = json!({
            "lastUpdated": updated,
            "currentTime": Timestamp::now().to_string(),
            "healthy": healthy,
            "status": status,
        });
        if asks_node {
            said["nodeEligible"] = json!(eligible);
        }
        let status = if healthy && (eligible || !asks_node) {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        Page::json(status, &said)
    }
}

/// The Services whose load balancers ask, by the port at which they do.
pub(crate) type Checks = BTreeMap<ObjectKey, HealthCheck>;

/// What load balancers are answered at the ports of Services.
pub(crate) struct CheckPorts {
    pub(crate) node: String,
    pub(crate) health: Arc<Health>,
    pub(crate) checks: watch::Receiver<Checks>,
    /// Where nodes' ports are.
    pub(crate) addresses: watch::Receiver<BTreeSet<IpAddr>>,
    pub(crate) events: EventRecorder,
}

impl CheckPorts {
    /// Listens where Services say, until `cancel`.
    pub(crate) async fn run(mut self, cancel: CancellationToken) {
        let mut listening: HashMap<SocketAddr, AbortOnDropHandle<()>> = HashMap::new();
        loop {
            let wanted = self.wanted();
            listening.retain(|address, _| wanted.contains_key(address));
            let mut is_whole = true;
            for (address, service) in &wanted {
                if listening.contains_key(address) {
                    continue;
                }
                match TcpListener::bind(address).await {
                    Ok(listener) => {
                        let pages = self.pages(address.port());
                        let serving = crate::http::serve(listener, pages, cancel.clone());
                        let serving = AbortOnDropHandle::new(tokio::spawn(serving));
                        listening.insert(*address, serving);
                    }
                    Err(error) => {
                        is_whole = false;
                        self.tell(service, *address, &error);
                    }
                }
            }
            let again = async {
                match is_whole {
                    true => std::future::pending().await,
                    false => tokio::time::sleep(RETRY).await,
                }
            };
            tokio::select! {
                () = cancel.cancelled() => return,
                Ok(()) = self.checks.changed() => {}
                Ok(()) = self.addresses.changed() => {}
                () = again => {}
            }
        }
    }

    fn wanted(&mut self) -> BTreeMap<SocketAddr, ObjectReference> {
        let addresses = self.addresses.borrow_and_update();
        let checks = self.checks.borrow_and_update();
        let mut wanted = BTreeMap::new();
        for (service, check) in checks.iter() {
            for address in addresses.iter() {
                let at = SocketAddr::new(*address, check.port);
                wanted
                    .entry(at)
                    .or_insert_with(|| reference(service, check));
            }
        }
        wanted
    }

    fn tell(&self, service: &ObjectReference, address: SocketAddr, error: &std::io::Error) {
        let name = |part: &Option<String>| part.clone().unwrap_or_default();
        let words = format!(
            "node {} failed to start healthcheck \"{}/{}\" on port {}: listen {address}: {error}",
            self.node,
            name(&service.namespace),
            name(&service.name),
            address.port()
        );
        let reason = "FailedToStartServiceHealthcheck";
        self.events.warning(service, reason, words);
    }

    /// The same for every path.
    fn pages(&self, port: u16) -> Pages {
        let (checks, health) = (self.checks.clone(), self.health.clone());
        Arc::new(move |_| {
            let checks = checks.borrow();
            let mut found = checks.iter().filter(|(_, check)| check.port == port);
            let (service, check) = found.next()?;
            Some(answer(service, check.endpoints, health.is_healthy()))
        })
    }
}

/// The Service as events name it.
fn reference(service: &ObjectKey, check: &HealthCheck) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Service".to_owned()),
        namespace: Some(service.namespace.clone()),
        name: Some(service.name.clone()),
        uid: Some(check.uid.clone()),
        ..ObjectReference::default()
    }
}

fn answer(service: &ObjectKey, endpoints: usize, healthy: bool) -> Page {
    let status = if endpoints > 0 && healthy {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let said = json!({
        "service": { "namespace": service.namespace, "name": service.name },
        "localEndpoints": endpoints,
        "serviceProxyHealthy": healthy,
    });
    let mut page = Page::json(status, &said);
    let weight = HeaderValue::from(endpoints);
    page.headers
        .push(("x-load-balancing-endpoint-weight", weight));
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(taint: &str) -> Node {
        let node = json!({ "spec": { "taints": [{ "key": taint, "effect": "NoSchedule" }] } });
        serde_json::from_value(node).unwrap()
    }

    #[test]
    fn a_node_that_goes_is_alive_and_wants_nothing_new() {
        let health = Health::new();
        health.updated();
        let pages = health.pages();
        let ask = |path: &str| pages(path).map(|page| (page.status.as_u16(), page.body));
        let (status, body) = ask("/healthz").unwrap();
        let said: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!((status, &said["nodeEligible"]), (200, &json!(true)));
        assert_eq!(said["status"]["IPv4"]["healthy"], true);
        assert!(said["lastUpdated"].is_string() && said["currentTime"].is_string());
        health.see(Some(&node(GOING)));
        let (status, body) = ask("/healthz").unwrap();
        assert!(
            status == 503 && body.contains("\"nodeEligible\":false"),
            "{body}"
        );
        let (status, body) = ask("/livez").unwrap();
        assert!(status == 200 && !body.contains("nodeEligible"), "{body}");
        health.see(Some(&node("other")));
        assert_eq!(ask("/healthz").unwrap().0, 200);
        assert!(ask("/").is_none());
    }

    #[test]
    fn what_waits_too_long_is_unhealthy() {
        let health = Health::new();
        health.updated();
        health.queued();
        assert!(health.is_healthy(), "for a while");
        health.state.lock().queued = Instant::now().checked_sub(QUEUED);
        assert!(!health.is_healthy());
        assert_eq!(health.page(false).status, 503);
        health.queued();
        assert!(!health.is_healthy(), "the first counts");
        health.updated();
        assert!(health.is_healthy());
    }

    #[test]
    fn load_balancers_are_told_of_endpoints() {
        let service = ObjectKey {
            namespace: "n".to_owned(),
            name: "s".to_owned(),
        };
        for (endpoints, healthy, status) in [(2, true, 200), (0, true, 503), (2, false, 503)] {
            let page = answer(&service, endpoints, healthy);
            assert_eq!(page.status, status);
            let weight = page.headers.last().unwrap();
            assert_eq!(weight.1, endpoints.to_string());
            let said: serde_json::Value = serde_json::from_str(&page.body).unwrap();
            let expected = json!({
                "service": { "namespace": "n", "name": "s" },
                "localEndpoints": endpoints, "serviceProxyHealthy": healthy,
            });
            assert_eq!(said, expected);
        }
    }
}
