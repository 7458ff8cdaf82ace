use super::*;
use http::{Method, Request, Response};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;

/// An API server that has one Lease.
fn server(lease: &Arc<Mutex<Value>>) -> kube::Client {
    let lease = lease.clone();
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let lease = lease.clone();
        async move {
            if request.method() == Method::PUT {
                let body = request.into_body().collect_bytes().await.unwrap();
                *lease.lock() = serde_json::from_slice(&body).unwrap();
            }
            let body = kube::client::Body::from(lease.lock().to_string().into_bytes());
            Ok::<_, Infallible>(Response::new(body))
        }
    });
    kube::Client::new(service, "default")
}

fn lease(spec: &Value) -> Arc<Mutex<Value>> {
    Arc::new(Mutex::new(json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "l", "namespace": "kube-system"},
        "spec": spec,
    })))
}

fn elector(lease: &Arc<Mutex<Value>>) -> LeaderElector {
    LeaderElector::new(server(lease), "kube-system", "l", "me").coordinated()
}

/// Whether it leads within a minute, and what became of that.
async fn leads(elector: LeaderElector) -> bool {
    let (began, mut has_begun) = tokio::sync::oneshot::channel();
    let run = elector.run(CancellationToken::new(), async |term| {
        began.send(()).unwrap();
        term.cancelled().await;
    });
    let limit = Duration::from_secs(60);
    let _runs_on = tokio::time::timeout(limit, run).await;
    has_begun.try_recv().is_ok()
}

#[tokio::test(start_paused = true)]
async fn a_coordinated_lease_is_not_taken() {
    for spec in [
        json!({"holderIdentity": "", "leaseDurationSeconds": 1}),
        json!({"holderIdentity": "other", "leaseDurationSeconds": 1, "renewTime": "2020-01-01T00:00:00.000000Z"}),
    ] {
        let lease = lease(&spec);
        assert!(!leads(elector(&lease)).await);
        assert_eq!(lease.lock()["spec"], spec);
    }
}

#[tokio::test(start_paused = true)]
async fn a_coordinated_leader_leads_when_it_is_entered_and_gives_way_to_the_preferred() {
    let lease = lease(&json!({
        "holderIdentity": "me", "leaseDurationSeconds": 5, "strategy": "OldestEmulationVersion",
    }));
    let elector = elector(&lease);
    let (begin, begun) = tokio::sync::oneshot::channel();
    let began = Instant::now();
    let run = tokio::spawn(async move {
        let lead = async |term: CancellationToken| {
            begin.send(()).unwrap();
            term.cancelled().await;
        };
        elector.run(CancellationToken::new(), lead).await;
    });
    begun.await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!run.is_finished());
    {
        let mut lease = lease.lock();
        assert_eq!(lease["spec"]["leaseDurationSeconds"], 15);
        assert_eq!(lease["spec"]["strategy"], "OldestEmulationVersion");
        assert!(lease["spec"]["acquireTime"].is_string());
        lease["spec"]["preferredHolder"] = json!("other");
    }
    run.await.unwrap();
    // at once, not when the lease has run out
    assert!(
        began.elapsed() < Duration::from_secs(66),
        "{:?}",
        began.elapsed()
    );
    let lease = lease.lock();
    assert_eq!(lease["spec"]["holderIdentity"], "");
    assert_eq!(lease["spec"]["preferredHolder"], "other");
}
