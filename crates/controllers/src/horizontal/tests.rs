//! The autoscaler against an API server of canned answers.

use super::*;
use http::{Method, Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const SCALE: &str = "/apis/apps/v1/namespaces/n/deployments/d/scale";
const USE: &str = "/apis/metrics.k8s.io/v1beta1/namespaces/n/pods";
const STATUS: &str = "/apis/autoscaling/v2/namespaces/n/horizontalpodautoscalers/h/status";

/// Answers by path; writes are kept by path.
#[derive(Clone, Default)]
struct Fake {
    answers: Arc<Mutex<BTreeMap<String, Value>>>,
    written: Arc<Mutex<BTreeMap<String, Value>>>,
}

impl Fake {
    fn set(&self, path: &str, answer: Value) {
        self.answers.lock().insert(path.to_owned(), answer);
    }

    fn written(&self, path: &str) -> Option<Value> {
        self.written.lock().remove(path)
    }

    fn client(&self) -> kube::Client {
        let fake = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let fake = fake.clone();
            async move { Ok::<_, std::convert::Infallible>(fake.answer(request).await) }
        });
        davit_client::in_process(service, "default")
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path().to_owned();
        if parts
            .uri
            .query()
            .is_some_and(|query| query.contains("watch="))
        {
            // nothing changes
            std::future::pending::<()>().await;
        }
        let answer = if parts.method == Method::GET {
            let held = self.answers.lock().get(&path).cloned();
            held.unwrap_or_else(|| json!({ "metadata": { "resourceVersion": "1" }, "items": [] }))
        } else {
            let bytes = body.collect_bytes().await.unwrap();
            let value: Value = serde_json::from_slice(&bytes).unwrap();
            self.written.lock().insert(path, value.clone());
            value
        };
        let code = answer["code"]
            .as_u64()
            .and_then(|code| u16::try_from(code).ok());
        Response::builder()
            .status(code.unwrap_or(200))
            .body(Body::from(answer.to_string().into_bytes()))
            .unwrap()
    }
}

fn list(items: Value) -> Value {
    json!({ "metadata": { "resourceVersion": "1" }, "items": items })
}

fn hpa(spec: Value) -> Value {
    let mut full = json!({
        "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "d" },
        "minReplicas": 1, "maxReplicas": 10,
        "metrics": [{ "type": "Resource", "resource": { "name": "cpu",
            "target": { "type": "Utilization", "averageUtilization": 50 } } }],
    });
    for (key, value) in spec.as_object().into_iter().flatten() {
        full[key.as_str()] = value.clone();
    }
    json!({ "metadata": { "name": "h", "namespace": "n", "uid": "u", "generation": 3 }, "spec": full })
}

fn pod(name: &str) -> Value {
    let at = "2020-01-01T00:00:00Z";
    json!({
        "metadata": { "name": name, "namespace": "n", "uid": name, "labels": { "app": "d" } },
        "spec": { "containers": [{ "name": "c", "resources": { "requests": { "cpu": "1" } } }] },
        "status": { "phase": "Running", "startTime": at,
            "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": at }] },
    })
}

fn using(milli: [i64; 2]) -> Value {
    let of = |name: &str, milli: i64| {
        json!({ "metadata": { "name": name }, "timestamp": Timestamp::now().to_string(),
            "window": "30s", "containers": [{ "name": "c", "usage": { "cpu": format!("{milli}m") } }] })
    };
    json!({ "items": [of("a", milli[0]), of("b", milli[1])] })
}

fn cluster(hpa_spec: Value) -> Fake {
    let fake = Fake::default();
    fake.set(
        "/apis/autoscaling/v2/horizontalpodautoscalers",
        list(json!([hpa(hpa_spec)])),
    );
    fake.set("/api/v1/pods", list(json!([pod("a"), pod("b")])));
    fake.set(
        "/apis/apps/v1",
        json!({ "kind": "APIResourceList", "groupVersion": "apps/v1", "resources": [
            { "name": "deployments", "singularName": "deployment", "namespaced": true,
              "kind": "Deployment", "verbs": ["get"] },
            { "name": "deployments/scale", "singularName": "", "namespaced": true,
              "group": "autoscaling", "version": "v1", "kind": "Scale", "verbs": ["get", "update"] },
        ] }),
    );
    fake.set(
        SCALE,
        json!({ "apiVersion": "autoscaling/v1", "kind": "Scale",
            "metadata": { "name": "d", "namespace": "n", "resourceVersion": "7" },
            "spec": { "replicas": 2 }, "status": { "replicas": 2, "selector": "app=d" } }),
    );
    fake
}

struct Running {
    autoscaler: Autoscaler,
    fake: Fake,
    _tasks: JoinSet<()>,
}

async fn running(fake: &Fake) -> Running {
    let (client, cancel) = (fake.client(), CancellationToken::new());
    let mut tasks = JoinSet::new();
    let informers = Informers::spawn(&client, &mut tasks, &cancel);
    let hpas = Informer::spawn(
        kube::Api::all(client.clone()),
        watcher::Config::default(),
        &mut tasks,
        cancel.clone(),
    );
    informers
        .wait_synced(Duration::from_secs(10))
        .await
        .unwrap();
    hpas.wait_synced(Duration::from_secs(10)).await.unwrap();
    let autoscaler = Autoscaler {
        scales: Scales::new(client.clone()),
        lane: Lane::default(),
        metrics: Metrics::new(client.clone()),
        informers,
        hpas,
        events: EventRecorder::spawn(client.clone(), COMPONENT, "", &mut tasks, cancel),
        history: Mutex::default(),
        selectors: Selectors::default(),
        settings: AutoscalerSettings::default(),
        client,
    };
    Running {
        autoscaler,
        fake: fake.clone(),
        _tasks: tasks,
    }
}

impl Running {
    /// One look: what was written of the scale and of the status.
    async fn look(&self) -> (Option<i64>, Value) {
        let key = ObjectKey {
            namespace: "n".to_owned(),
            name: "h".to_owned(),
        };
        let next = self.autoscaler.sync(&key).await.unwrap();
        assert_eq!(next, Next::After(AutoscalerSettings::default().sync_period));
        let scale = self.fake.written(SCALE);
        let status = self.fake.written(STATUS).unwrap_or_default();
        (
            scale.and_then(|s| s["spec"]["replicas"].as_i64()),
            status["status"].clone(),
        )
    }
}

fn condition(status: &Value, kind: &str) -> (String, String, String) {
    let conditions = status["conditions"].as_array().unwrap();
    let found = conditions.iter().find(|c| c["type"] == kind).unwrap();
    let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"), text("message"))
}

#[tokio::test]
async fn the_scale_follows_the_use_of_cpu() {
    let fake = cluster(json!({}));
    fake.set(USE, using([900, 700]));
    let cluster = running(&fake).await;
    let (scale, status) = cluster.look().await;
    assert_eq!(scale, Some(4), "{status}");
    assert_eq!(
        (&status["currentReplicas"], &status["desiredReplicas"]),
        (&json!(2), &json!(4))
    );
    assert_eq!(status["observedGeneration"], 3);
    let current = &status["currentMetrics"][0]["resource"]["current"];
    assert_eq!(
        current,
        &json!({ "averageUtilization": 80, "averageValue": "800m" })
    );
    let able = condition(&status, "AbleToScale");
    assert_eq!((&*able.0, &*able.1), ("True", "SucceededRescale"));
    assert_eq!(
        able.2,
        "the HPA controller was able to update the target scale to 4"
    );
    let active = condition(&status, "ScalingActive");
    assert_eq!(
        active.2,
        "the HPA was able to successfully calculate a replica count from cpu resource utilization \
         (percentage of request)"
    );
    assert_eq!(condition(&status, "ScalingLimited").1, "DesiredWithinRange");
    assert!(status["lastScaleTime"].is_string());
}

#[tokio::test]
async fn without_metrics_nothing_changes_and_the_reason_is_told() {
    let fake = cluster(json!({}));
    fake.set(
        USE,
        json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
            "reason": "NotFound", "message": "the server could not find the requested resource" }),
    );
    let (scale, status) = running(&fake).await.look().await;
    assert_eq!(scale, None);
    let active = condition(&status, "ScalingActive");
    assert_eq!(
        (&*active.0, &*active.1),
        ("False", "FailedGetResourceMetric")
    );
    assert_eq!(
        active.2,
        "the HPA was unable to compute the replica count: failed to get cpu utilization: unable to \
         get metrics for resource cpu: unable to fetch metrics from resource metrics API: the \
         server could not find the requested resource"
    );
}

#[tokio::test]
async fn bounds_hold_without_metrics_and_zero_is_left_alone() {
    let fake = cluster(json!({ "minReplicas": 3 }));
    assert_eq!(running(&fake).await.look().await.0, Some(3));
    let fake = cluster(json!({ "maxReplicas": 1 }));
    assert_eq!(running(&fake).await.look().await.0, Some(1));
    let fake = cluster(json!({}));
    fake.set(
        SCALE,
        json!({ "metadata": {}, "spec": { "replicas": 0 }, "status": { "replicas": 0, "selector": "app=d" } }),
    );
    let (scale, status) = running(&fake).await.look().await;
    assert_eq!(scale, None);
    assert_eq!(condition(&status, "ScalingActive").1, "ScalingDisabled");
}

#[tokio::test]
async fn a_target_of_an_unknown_kind_is_told_of() {
    let fake = cluster(
        json!({ "scaleTargetRef": { "apiVersion": "x.test/v1", "kind": "No", "name": "d" } }),
    );
    fake.set(
        "/apis/x.test/v1",
        json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": 404, "reason": "NotFound", "message": "no such page" }),
    );
    let (scale, status) = running(&fake).await.look().await;
    assert_eq!(scale, None);
    let able = condition(&status, "AbleToScale");
    assert_eq!((&*able.0, &*able.1), ("False", "FailedGetScale"));
    assert!(
        able.2
            .contains("no matches for kind \"No\" in version \"x.test/v1\""),
        "{}",
        able.2
    );
}

#[tokio::test]
async fn external_and_object_metrics_are_asked_for() {
    let fake = cluster(json!({ "metrics": [
        { "type": "External", "external": { "metric": { "name": "queue" },
            "target": { "type": "AverageValue", "averageValue": "10" } } },
        { "type": "Object", "object": { "metric": { "name": "hits" },
            "describedObject": { "apiVersion": "v1", "kind": "Namespace", "name": "n" },
            "target": { "type": "Value", "value": "100" } } },
        { "type": "Pods", "pods": { "metric": { "name": "load" },
            "target": { "type": "AverageValue", "averageValue": "1" } } },
    ] }));
    fake.set(
        "/apis/external.metrics.k8s.io/v1beta1/namespaces/n/queue",
        json!({ "items": [{ "value": "25" }, { "value": "10" }] }),
    );
    fake.set(
        "/apis/custom.metrics.k8s.io",
        json!({ "preferredVersion": { "version": "v1beta2" } }),
    );
    let value = |name: &str, value: &str| json!({ "describedObject": { "name": name }, "timestamp": "2026-01-01T00:00:00Z", "value": value });
    fake.set(
        "/apis/custom.metrics.k8s.io/v1beta2/namespaces/n/metrics/hits",
        json!({ "items": [value("n", "90")] }),
    );
    fake.set(
        "/apis/custom.metrics.k8s.io/v1beta2/namespaces/n/pods/*/load",
        json!({ "items": [value("a", "1"), value("b", "1")] }),
    );
    let (scale, status) = running(&fake).await.look().await;
    // the external metric asks for most: 35 in parts of 10
    assert_eq!(scale, Some(4), "{status}");
    let metrics = status["currentMetrics"].as_array().unwrap();
    assert_eq!(
        metrics[0]["external"]["current"],
        json!({ "averageValue": "17500m" })
    );
    assert_eq!(metrics[1]["object"]["current"], json!({ "value": "90" }));
    assert_eq!(
        metrics[2]["pods"]["current"],
        json!({ "averageValue": "1" })
    );
}

#[tokio::test]
async fn pods_of_two_autoscalers_are_left_alone() {
    let fake = cluster(json!({}));
    fake.set(USE, using([900, 700]));
    let cluster = running(&fake).await;
    let other = ObjectKey {
        namespace: "n".to_owned(),
        name: "other".to_owned(),
    };
    let selector = Selector::parse("app in (d, e)").unwrap();
    cluster.autoscaler.selectors.put(&other, selector);
    let (scale, status) = cluster.look().await;
    assert_eq!(scale, None);
    let active = condition(&status, "ScalingActive");
    assert_eq!((&*active.0, &*active.1), ("False", "AmbiguousSelector"));
    assert_eq!(
        active.2,
        "pods by selector app=d are controlled by multiple HPAs: [{h n} {other n}]"
    );
    // the other goes: this one decides again
    let gone = cluster.autoscaler.sync(&other).await.unwrap();
    assert_eq!(gone, Next::Wait);
    assert_eq!(cluster.look().await.0, Some(4));
}
