//! Items 1–11 and 20–29: errors, limits, headers.

use serde_json::{Value, json};

use crate::cluster::*;

#[tokio::test]
async fn item_001_unknown_path_is_the_404_page() {
    let c = Cluster::new().await;
    for path in ["/nothing", "/apis/nope/v1/things", "/apis/nope"] {
        let answer = c.get(path).await;
        assert_eq!(answer.code, 404, "{path}");
        assert!(answer.text().contains("404 page not found"), "{path}");
    }
    for path in [
        "/api/v1/nopes",
        "/api/v2/pods",
        "/api/v2",
        "/apis/apps/v9",
        "/apis/apps/v1/namespaces/default/deployments/x/nope",
        "/api/v1/namespaces/default/nodes",
    ] {
        let status = c.get(path).await.error(404, "NotFound");
        let why = "the server could not find the requested resource";
        assert_eq!(status["message"], why, "{path}");
        assert_eq!(status["details"], json!({}), "{path}");
    }
}

#[tokio::test]
async fn item_002_missing_pod_is_not_found_with_details() {
    let c = Cluster::new().await;
    let status = c.get(&format!("{PODS}/x")).await.error(404, "NotFound");
    assert_eq!(status["message"], "pods \"x\" not found");
    assert_eq!(status["details"], json!({"name": "x", "kind": "pods"}));
    let status = c
        .get(&format!("{DEPLOYMENTS}/x"))
        .await
        .error(404, "NotFound");
    assert_eq!(status["message"], "deployments.apps \"x\" not found");
}

#[tokio::test]
async fn item_004_existing_name_already_exists() {
    let c = Cluster::new().await;
    c.config_map("x", &json!({})).await;
    let status = c.post(CONFIG_MAPS, &config_map("x", &json!({}))).await;
    let status = status.error(409, "AlreadyExists");
    assert_eq!(status["message"], "configmaps \"x\" already exists");
}

#[tokio::test]
async fn item_005_put_with_stale_rv_conflicts() {
    let c = Cluster::new().await;
    let first = c.config_map("x", &json!({"a": "1"})).await;
    let mut second = first.clone();
    second["data"]["a"] = json!("2");
    c.put(&format!("{CONFIG_MAPS}/x"), &second).await.ok(200);
    let status = c
        .put(&format!("{CONFIG_MAPS}/x"), &first)
        .await
        .error(409, "Conflict");
    assert_eq!(
        status["message"],
        "Operation cannot be fulfilled on configmaps \"x\": the object has been modified; please \
         apply your changes to the latest version and try again"
    );
}

#[tokio::test]
async fn item_006_and_007_all_faults_are_reported_with_paths() {
    let c = Cluster::new().await;
    c.service_account().await;
    let mut bad = pod("x");
    bad["spec"]["containers"] = json!([{"name": "A_b", "image": ""}, {"image": "x"}]);
    let status = c.post(PODS, &bad).await.error(422, "Invalid");
    assert_eq!(status["details"]["kind"], "Pod");
    let causes = status["details"]["causes"].as_array().unwrap();
    let has = |field: &str, reason: &str| {
        causes
            .iter()
            .any(|cause| cause["field"] == field && cause["reason"] == reason)
    };
    assert!(
        has("spec.containers[0].name", "FieldValueInvalid"),
        "{status}"
    );
    assert!(
        has("spec.containers[0].image", "FieldValueRequired"),
        "{status}"
    );
    assert!(
        has("spec.containers[1].name", "FieldValueRequired"),
        "{status}"
    );
    assert!(
        status["message"]
            .as_str()
            .unwrap()
            .starts_with("Pod \"x\" is invalid: [")
    );
}

#[tokio::test]
async fn item_008_wrong_method_is_not_allowed() {
    let c = Cluster::new().await;
    let status = c
        .put(CONFIG_MAPS, &json!({}))
        .await
        .error(405, "MethodNotAllowed");
    assert_eq!(status["details"], json!({}));
    c.post("/api/v1/pods", &pod("x"))
        .await
        .error(405, "MethodNotAllowed");
    c.delete("/api/v1/namespaces", &json!(null))
        .await
        .error(405, "MethodNotAllowed");
}

#[tokio::test]
async fn item_009_large_bodies_are_refused() {
    let c = Cluster::new().await;
    let big = json!({"a": "x".repeat(4 * 1024 * 1024)});
    let status = c.post(CONFIG_MAPS, &config_map("x", &big)).await;
    let status = status.error(413, "RequestEntityTooLarge");
    assert_eq!(
        status["message"],
        "Request entity too large: limit is 3145728"
    );
    c.config_map("y", &json!({})).await;
    let operations: Vec<_> = (0..10_001)
        .map(|_| json!({"op": "test", "path": "/kind", "value": "ConfigMap"}))
        .collect();
    let status = c
        .patch(&format!("{CONFIG_MAPS}/y"), "json", &json!(operations))
        .await;
    status.error(413, "RequestEntityTooLarge");
}

#[tokio::test]
async fn item_010_unknown_body_type_is_415() {
    let c = Cluster::new().await;
    let answer = c
        .request("POST", CONFIG_MAPS, &[("content-type", "text/plain")], "{}")
        .await;
    let status = answer.error(415, "UnsupportedMediaType");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains("accepted media types include: application/json"),
        "{message}"
    );
    let unknown = [("content-type", "application/patch")];
    let url = format!("{CONFIG_MAPS}/x");
    let answer = c.request("PATCH", &url, &unknown, "{}").await;
    let status = answer.error(415, "UnsupportedMediaType");
    assert_eq!(status["message"], "415: Unsupported Media Type");
}

#[tokio::test]
async fn malformed_and_deep_bodies_are_bad_requests() {
    let c = Cluster::new().await;
    let json = [("content-type", "application/json")];
    c.request("POST", CONFIG_MAPS, &json, "{\"kind\": \"Conf")
        .await
        .error(400, "BadRequest");
    let deep = format!("{{\"data\":{}", "[".repeat(100_000));
    c.request("POST", CONFIG_MAPS, &json, deep)
        .await
        .error(400, "BadRequest");
    let wrong = json!({"metadata": {"name": "x"}, "data": "text"});
    let status = c.post(CONFIG_MAPS, &wrong).await.error(400, "BadRequest");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.starts_with(
            "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: json: cannot unmarshal \
             string into Go struct field"
        ),
        "{message}"
    );
    let other = json!({"apiVersion": "v2", "kind": "ConfigMap", "metadata": {"name": "x"}});
    let status = c.post(CONFIG_MAPS, &other).await.error(400, "BadRequest");
    assert_eq!(
        status["message"],
        "the API version in the data (v2) does not match the expected API version (v1)"
    );
}

#[tokio::test]
async fn item_020_large_answers_are_compressed_on_demand() {
    let c = Cluster::new().await;
    c.config_map("x", &json!({"a": "x".repeat(200_000)})).await;
    let url = format!("{CONFIG_MAPS}/x");
    let gzip = [("accept-encoding", "gzip")];
    let answer = c.request("GET", &url, &gzip, "").await;
    assert_eq!(answer.header("content-encoding"), "gzip");
    assert_eq!(answer.header("vary"), "Accept-Encoding");
    assert!(answer.body.len() < 10_000);
    assert_eq!(c.get(&url).await.header("content-encoding"), "");
    let small = c.request("GET", "/api/v1/namespaces", &gzip, "").await;
    assert_eq!(small.header("content-encoding"), "");
}

#[tokio::test]
async fn item_021_audit_ids_are_echoed_or_made() {
    let c = Cluster::new().await;
    let answer = c
        .request("GET", "/version", &[("audit-id", "mine")], "")
        .await;
    assert_eq!(answer.header("audit-id"), "mine");
    assert_eq!(c.get("/version").await.header("audit-id").len(), 36);
    assert_eq!(
        c.get("/version").await.header("cache-control"),
        "no-cache, private"
    );
}

#[tokio::test]
async fn item_022_timeouts_are_parsed_and_kept() {
    let c = Cluster::new().await;
    let status = c
        .get("/api/v1/pods?timeout=1x")
        .await
        .error(400, "BadRequest");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.starts_with("invalid timeout specified in the request URL"),
        "{message}"
    );
    // waiting for a revision that does not come is slow
    c.get("/api/v1/pods?resourceVersion=1000000&timeout=1ms")
        .await
        .error(504, "Timeout");
}

#[tokio::test]
async fn item_024_deprecated_versions_warn() {
    let c = Cluster::new().await;
    let bundles =
        |version: &str| format!("/apis/certificates.k8s.io/{version}/clustertrustbundles");
    let warnings = c.get(&bundles("v1alpha1")).await.warnings();
    assert_eq!(
        warnings,
        [
            "299 - \"certificates.k8s.io/v1alpha1 ClusterTrustBundle is deprecated in v1.34+, \
          unavailable in v1.37+\""
        ]
    );
    for (path, told) in [
        (
            "coordination.k8s.io/v1beta1/leasecandidates",
            "coordination.k8s.io/v1beta1 LeaseCandidate is deprecated in v1.36+, unavailable in v1.39+",
        ),
        (
            "storage.k8s.io/v1beta1/volumeattributesclasses",
            "storage.k8s.io/v1beta1 VolumeAttributesClass is deprecated in v1.34+, unavailable in v1.37+; \
             use storage.k8s.io/v1 VolumeAttributesClass",
        ),
    ] {
        let warnings = c.get(&format!("/apis/{path}")).await.warnings();
        assert_eq!(warnings, [format!("299 - \"{told}\"")]);
    }
    assert!(c.get(&bundles("v1beta1")).await.warnings().is_empty());
}

#[tokio::test]
async fn item_025_root_lists_sorted_paths() {
    let c = Cluster::new().await;
    let root = c.get("/").await.ok(200);
    let paths: Vec<&str> = root["paths"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| p.as_str().unwrap())
        .collect();
    assert!(paths.is_sorted());
    for path in [
        "/api",
        "/api/v1",
        "/apis/apps/v1",
        "/healthz",
        "/openapi/v3",
        "/version",
    ] {
        assert!(paths.contains(&path), "{path}");
    }
}

#[tokio::test]
async fn item_028_every_listed_path_answers() {
    let c = Cluster::new().await;
    c.ready().await;
    let root = c.get("/").await.ok(200);
    for path in root["paths"].as_array().unwrap() {
        let path = path.as_str().unwrap();
        let answer = c.get(path).await;
        assert_eq!(answer.code, 200, "{path}: {:?}", answer.body);
    }
}

/// Falls over any config map called `boom`.
struct Falls;

impl davit_admission::Validating for Falls {
    async fn validate(
        &self,
        _: &davit_admission::Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), davit_api::status::Status> {
        let name = object.and_then(|object| object["metadata"]["name"].as_str());
        assert_ne!(name, Some("boom"), "a fault of the plugin");
        Ok(())
    }
}

#[tokio::test]
async fn item_026_a_panic_is_one_requests_trouble() {
    use davit_admission::{Chain, Plugin};
    let falls = || Chain::new(vec![Plugin::validating("Falls", Falls)]);
    let c = Cluster::with(|options| options.admission = falls()).await;
    let mut watch = c.watch(&format!("{CONFIG_MAPS}?watch=1")).await;
    let answer = c.post(CONFIG_MAPS, &config_map("boom", &json!({}))).await;
    let status = answer.error(500, "InternalError");
    let message = status["message"].as_str().unwrap();
    assert!(
        !message.contains("a fault of the plugin"),
        "insides are not told: {message}"
    );
    c.config_map("fine", &json!({})).await;
    assert_eq!(
        watch.summary().await,
        ("ADDED".to_owned(), "fine".to_owned())
    );
    assert_eq!(c.get(&format!("{CONFIG_MAPS}/boom")).await.code, 404);
}
