//! Items 130–141: discovery, OpenAPI, health, metrics.

use serde_json::{Value, json};

use crate::cluster::*;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

#[tokio::test]
async fn item_130_aggregated_discovery_has_its_type_and_tag() {
    let c = Cluster::new().await;
    let accept = format!("{AGGREGATED},application/json");
    let answer = c.request("GET", "/apis", &[("accept", &accept)], "").await;
    assert_eq!(answer.header("content-type"), AGGREGATED);
    let tag = answer.header("etag");
    assert_eq!(tag.len(), 130);
    let list = answer.ok(200);
    assert_eq!(list["kind"], "APIGroupDiscoveryList");
    assert_eq!(list["apiVersion"], "apidiscovery.k8s.io/v2");
    let again = [("accept", accept.as_str()), ("if-none-match", tag.as_str())];
    let same = c.request("GET", "/apis", &again, "").await;
    assert_eq!((same.code, same.body.len()), (304, 0));
    let core = c
        .request("GET", "/api", &[("accept", &accept)], "")
        .await
        .ok(200);
    assert_eq!(core["items"][0]["metadata"], json!({}));
    assert_eq!(core["items"][0]["versions"][0]["version"], "v1");
}

#[tokio::test]
async fn item_131_plain_discovery_is_the_fallback() {
    let c = Cluster::new().await;
    let beta = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
    let accept = format!("{beta},application/json");
    let answer = c.request("GET", "/apis", &[("accept", &accept)], "").await;
    assert_eq!(answer.ok(200)["apiVersion"], "apidiscovery.k8s.io/v2beta1");
    let old =
        "application/json;g=apidiscovery.k8s.io;v=v9;as=APIGroupDiscoveryList,application/json";
    let answer = c
        .request("GET", "/apis", &[("accept", old)], "")
        .await
        .ok(200);
    assert_eq!(answer["kind"], "APIGroupList");
    let core = c.get("/api").await.ok(200);
    assert_eq!(core["versions"], json!(["v1"]));
}

#[tokio::test]
async fn item_134_openapi_v3_documents_have_hash_urls() {
    let c = Cluster::new().await;
    let index = c.get("/openapi/v3").await.ok(200);
    let url = index["paths"]["apis/apps/v1"]["serverRelativeURL"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(url.starts_with("/openapi/v3/apis/apps/v1?hash="), "{url}");
    let answer = c.get(&url).await;
    assert_eq!(answer.header("cache-control"), "public, immutable");
    assert!(answer.headers.contains_key("expires"));
    let document = answer.ok(200);
    assert!(document["components"]["schemas"]["io.k8s.api.apps.v1.Deployment"].is_object());
    let wrong = c.get("/openapi/v3/apis/apps/v1?hash=0").await;
    assert_eq!((wrong.code, wrong.header("location")), (301, url));
}

#[tokio::test]
async fn item_137_openapi_v2_comes_as_json_and_protobuf() {
    let c = Cluster::new().await;
    let document = c.get("/openapi/v2").await.ok(200);
    assert_eq!(document["swagger"], "2.0");
    let accept = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
    let answer = c
        .request("GET", "/openapi/v2", &[("accept", accept)], "")
        .await;
    assert_eq!(answer.code, 200);
    assert_eq!(
        answer.header("content-type"),
        "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
    );
}

#[tokio::test]
async fn item_138_and_139_groups_are_ordered_and_subresources_have_their_kinds() {
    let c = Cluster::new().await;
    let groups = c.get("/apis").await.ok(200);
    let names: Vec<&str> = groups["groups"]
        .as_array()
        .unwrap()
        .iter()
        .map(|g| g["name"].as_str().unwrap())
        .collect();
    let place = |name: &str| names.iter().position(|n| *n == name).unwrap();
    assert!(place("apps") < place("batch") && place("batch") < place("storage.k8s.io"));
    let core = c.get("/api/v1").await.ok(200);
    let resources = core["resources"].as_array().unwrap();
    let resource = |name: &str| resources.iter().find(|r| r["name"] == name).unwrap();
    let eviction = resource("pods/eviction");
    assert_eq!(
        (&eviction["group"], &eviction["version"]),
        (&json!("policy"), &json!("v1"))
    );
    assert_eq!(eviction["kind"], "Eviction");
    assert_eq!(resource("pods")["shortNames"], json!(["po"]));
    assert_eq!(resource("pods/log")["singularName"], "");
    let pods = resource("pods");
    assert_eq!(pods["storageVersionHash"], "xPOwRZ+Yhw8=");
}

#[tokio::test]
async fn item_140_health_endpoints_behave() {
    let c = Cluster::new().await;
    c.ready().await;
    for endpoint in ["healthz", "livez", "readyz"] {
        let verbose = c.get(&format!("/{endpoint}?verbose")).await.text();
        for check in [
            "autoregister-completion",
            "poststarthook/rbac/bootstrap-roles",
            "poststarthook/start-apiserver-admission-initializer",
        ] {
            assert!(verbose.contains(&format!("[+]{check} ok\n")), "{verbose}");
        }
        assert!(!verbose.contains("kms-providers"));
    }
    for endpoint in ["healthz", "livez", "readyz"] {
        assert_eq!(c.get(&format!("/{endpoint}")).await.text(), "ok");
        let verbose = c.get(&format!("/{endpoint}?verbose")).await.text();
        assert!(verbose.contains("[+]ping ok\n"), "{verbose}");
        assert!(
            verbose.ends_with(&format!("{endpoint} check passed\n")),
            "{verbose}"
        );
        assert_eq!(c.get(&format!("/{endpoint}/etcd")).await.text(), "ok");
        assert_eq!(c.get(&format!("/{endpoint}/nope")).await.code, 404);
    }
    c.server.shut_down();
    let answer = c.get("/readyz").await;
    assert_eq!(answer.code, 500);
    assert!(
        answer
            .text()
            .contains("[-]shutdown failed: reason withheld")
    );
    assert_eq!(c.get("/readyz?exclude=shutdown").await.code, 200);
    assert_eq!(c.get("/livez").await.code, 200);
}

#[tokio::test]
async fn item_141_metrics_are_exposed() {
    let c = Cluster::new().await;
    c.get("/api/v1/pods").await.ok(200);
    c.get("/apis/apps/v1/replicasets").await.ok(200);
    c.config_map("one", &json!({})).await;
    c.config_map("two", &json!({})).await;
    c.get(CONFIG_MAPS).await.ok(200);
    c.get("/api/v1/namespaces/default/nonsense-resource").await;
    let text = c.get("/metrics").await.text();
    assert!(text.contains("apiserver_request_total{verb=\"LIST\",dry_run=\"\",group=\"\",version=\"v1\",resource=\"pods\""));
    assert!(text.contains("process_resident_memory_bytes"));
    assert!(!text.contains("nonsense-resource"));

    let value = |series: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(series));
        line.map(|value| value.trim().parse().unwrap())
    };
    let maps = "group=\"\",resource=\"configmaps\"";
    assert!(
        value(&format!("apiserver_resource_objects{{{maps}}}")).is_some_and(|count| count >= 2)
    );
    let sets = value("apiserver_storage_objects{resource=\"replicasets.apps\"}");
    assert_eq!(sets, Some(0));
    let unseen = value("apiserver_storage_objects{resource=\"cronjobs.batch\"}");
    assert_eq!(unseen, None);
    let size = value("apiserver_storage_size_bytes{storage_cluster_id=\"etcd-0\"}");
    assert!(size.is_some_and(|bytes| bytes > 4096), "{size:?}");
}

#[tokio::test]
async fn version_is_the_api_level() {
    let c = Cluster::new().await;
    let version: Value = c.get("/version").await.ok(200);
    assert_eq!(
        (&version["major"], &version["minor"]),
        (&json!("1"), &json!("36"))
    );
    assert_eq!(version["gitVersion"], "v1.36.0+davit");
}
