//! The built-in admission plugins.

use davit_admission::{Chain, Config};
use serde_json::{Value, json};

use crate::cluster::*;
use crate::hook::Hook;

const LIMITS: &str = "/api/v1/namespaces/default/limitranges";
const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";

async fn labelled(c: &Cluster, labels: &Value) -> Vec<String> {
    let url = "/api/v1/namespaces/default";
    let answer = c
        .patch(url, "merge", &json!({ "metadata": { "labels": labels } }))
        .await;
    let warnings = answer.warnings();
    answer.ok(200);
    warnings
}

fn with(config: Config) -> impl FnOnce(&mut davit_apiserver::Options) {
    move |options| options.admission = Chain::configured(&config).unwrap()
}

#[tokio::test]
async fn item_177_limit_ranges_fill_in_and_bound() {
    let c = Cluster::new().await;
    c.service_account().await;
    let range = json!({ "metadata": { "name": "r" }, "spec": { "limits": [
        { "type": "Container", "default": { "cpu": "200m" }, "max": { "cpu": "500m" } },
        { "type": "PersistentVolumeClaim", "max": { "storage": "1Gi" } },
    ] } });
    c.post(LIMITS, &range).await.ok(201);
    let made = c.pod("a").await;
    assert_eq!(
        made["spec"]["containers"][0]["resources"]["limits"]["cpu"],
        "200m"
    );
    assert_eq!(
        made["spec"]["containers"][0]["resources"]["requests"]["cpu"],
        "200m"
    );
    let mut large = pod("b");
    large["spec"]["containers"][0]["resources"] = json!({ "limits": { "cpu": "1" } });
    let status = c.post(PODS, &large).await.error(403, "Forbidden");
    assert_eq!(
        status["message"],
        "pods \"b\" is forbidden: [maximum cpu usage per Container is 500m, but limit is 1]"
            .replace(['[', ']'], "")
    );
    let claim = json!({ "metadata": { "name": "c" }, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "2Gi" } },
    } });
    let url = "/api/v1/namespaces/default/persistentvolumeclaims";
    let status = c.post(url, &claim).await.error(403, "Forbidden");
    assert_eq!(
        status["message"],
        "persistentvolumeclaims \"c\" is forbidden: maximum storage usage per PersistentVolumeClaim is 1Gi, but request is 2Gi"
    );
}

#[tokio::test]
async fn item_177_quotas_refuse_what_is_too_much() {
    let c = Cluster::new().await;
    c.service_account().await;
    let quota = json!({ "metadata": { "name": "q" }, "spec": { "hard": {
        "pods": "5", "requests.vendor.com/device": "5", "count/configmaps": "1",
        "gpu.deviceclass.resource.k8s.io/devices": "2",
    } } });
    c.post(QUOTAS, &quota).await.ok(201);
    let device = |name: &str, count: &str| {
        let mut made = pod(name);
        made["spec"]["containers"][0]["resources"] =
            json!({ "limits": { "vendor.com/device": count } });
        made
    };
    c.post(PODS, &device("a", "4")).await.ok(201);
    let status = c
        .post(PODS, &device("b", "2"))
        .await
        .error(403, "Forbidden");
    assert_eq!(
        status["message"],
        "pods \"b\" is forbidden: exceeded quota: q, requested: requests.vendor.com/device=2, used: requests.vendor.com/device=4, limited: requests.vendor.com/device=5"
    );
    // a dry run is judged and not charged
    let dry = format!("{PODS}?dryRun=All");
    c.post(&dry, &device("c", "1")).await.ok(201);
    c.post(PODS, &device("c", "1")).await.ok(201);
    c.config_map("x", &json!({})).await;
    let status = c
        .post(CONFIG_MAPS, &config_map("y", &json!({})))
        .await
        .error(403, "Forbidden");
    assert_eq!(
        status["message"],
        "configmaps \"y\" is forbidden: exceeded quota: q, requested: count/configmaps=1, used: count/configmaps=1, limited: count/configmaps=1"
    );
    let claim = |name: &str, count: i64| {
        json!({ "metadata": { "name": name }, "spec": { "devices": { "requests": [
            { "name": "r", "exactly": { "deviceClassName": "gpu", "count": count } },
        ] } } })
    };
    let claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
    c.post(claims, &claim("a", 2)).await.ok(201);
    let status = c.post(claims, &claim("b", 1)).await.error(403, "Forbidden");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.ends_with("exceeded quota: q, requested: gpu.deviceclass.resource.k8s.io/devices=1, used: gpu.deviceclass.resource.k8s.io/devices=2, limited: gpu.deviceclass.resource.k8s.io/devices=2"),
        "{message}"
    );
    let held = c.get(&format!("{QUOTAS}/q")).await.ok(200);
    assert_eq!(held["status"]["used"]["pods"], "2");
    assert_eq!(held["status"]["used"]["requests.vendor.com/device"], "5");
}

#[tokio::test]
async fn item_177_a_pod_that_gets_a_deadline_counts_in_other_quotas() {
    let c = Cluster::new().await;
    c.service_account().await;
    for scope in ["Terminating", "NotTerminating"] {
        let quota = json!({ "metadata": { "name": scope.to_lowercase() }, "spec": {
            "hard": { "pods": "1" }, "scopes": [scope],
        } });
        c.post(QUOTAS, &quota).await.ok(201);
    }
    let every = json!({ "metadata": { "name": "every" }, "spec": { "hard": { "pods": "2" } } });
    c.post(QUOTAS, &every).await.ok(201);
    let used = async |name: &str| {
        let quota = c.get(&format!("{QUOTAS}/{name}")).await.ok(200);
        quota["status"]["used"]["pods"].clone()
    };
    c.pod("a").await;
    let deadline = json!({ "spec": { "activeDeadlineSeconds": 3600 } });
    c.patch(&format!("{PODS}/a"), "merge", &deadline)
        .await
        .ok(200);
    assert_eq!(used("terminating").await, "1");
    assert_eq!(used("every").await, "1", "it was counted there already");
    let mut second = pod("b");
    second["spec"]["activeDeadlineSeconds"] = json!(60);
    let status = c.post(PODS, &second).await.error(403, "Forbidden");
    assert_eq!(
        status["message"],
        "pods \"b\" is forbidden: exceeded quota: terminating, requested: pods=1, used: pods=1, limited: pods=1"
    );
}

#[tokio::test]
async fn item_177_quotas_demand_requests_and_look_at_scopes() {
    let c = Cluster::new().await;
    c.service_account().await;
    let quota = json!({ "metadata": { "name": "q" }, "spec": {
        "hard": { "requests.cpu": "1" },
    } });
    c.post(QUOTAS, &quota).await.ok(201);
    let status = c.post(PODS, &pod("a")).await.error(403, "Forbidden");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.starts_with(
            "pods \"a\" is forbidden: failed quota: q: must specify requests.cpu for: "
        ),
        "{message}"
    );
    c.delete(&format!("{QUOTAS}/q"), &Value::Null).await.ok(200);
    let quota = json!({ "metadata": { "name": "best" }, "spec": {
        "hard": { "pods": "1" }, "scopes": ["BestEffort"],
    } });
    c.post(QUOTAS, &quota).await.ok(201);
    c.pod("b").await;
    c.post(PODS, &pod("c")).await.error(403, "Forbidden");
    let mut burstable = pod("d");
    burstable["spec"]["containers"][0]["resources"] = json!({ "requests": { "cpu": "1m" } });
    c.post(PODS, &burstable).await.ok(201);
}

#[tokio::test]
async fn item_177_quotas_hold_against_many_writers_at_once() {
    let c = Cluster::new().await;
    let quota =
        json!({ "metadata": { "name": "q" }, "spec": { "hard": { "count/secrets": "7" } } });
    c.post(QUOTAS, &quota).await.ok(201);
    let url = "/api/v1/namespaces/default/secrets";
    let bodies: Vec<Value> = (0..20)
        .map(|i| json!({ "metadata": { "name": format!("s{i}") } }))
        .collect();
    let writes = bodies.iter().map(|body| c.post(url, body));
    let codes = futures::future::join_all(writes).await;
    let made = codes.iter().filter(|answer| answer.code == 201).count();
    assert_eq!(made, 7);
    assert!(codes.iter().all(|answer| matches!(answer.code, 201 | 403)));
}

#[tokio::test]
async fn item_180_pod_security_enforces_warns_and_audits() {
    let c = Cluster::new().await;
    c.service_account().await;
    let host = |name: &str| {
        let mut made = pod(name);
        made["spec"]["hostNetwork"] = json!(true);
        made
    };
    c.post(PODS, &host("before")).await.ok(201);
    let warnings = labelled(
        &c,
        &json!({ "pod-security.kubernetes.io/enforce": "baseline" }),
    )
    .await;
    assert_eq!(
        warnings,
        [
            "299 - \"existing pods in namespace \\\"default\\\" violate the new PodSecurity enforce level \\\"baseline:latest\\\"\"",
            "299 - \"before: host namespaces\"",
        ]
    );
    let status = c.post(PODS, &host("a")).await.error(403, "Forbidden");
    assert_eq!(
        status["message"],
        "pods \"a\" is forbidden: violates PodSecurity \"baseline:latest\": host namespaces (hostNetwork=true)"
    );
    labelled(
        &c,
        &json!({
            "pod-security.kubernetes.io/enforce": "privileged",
            "pod-security.kubernetes.io/warn": "baseline",
        }),
    )
    .await;
    let answer = c.post(PODS, &host("b")).await;
    assert_eq!(
        answer.warnings(),
        [
            "299 - \"would violate PodSecurity \\\"baseline:latest\\\": host namespaces (hostNetwork=true)\""
        ]
    );
    answer.ok(201);
    let wrong = json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": "x" } } });
    let status = c
        .patch("/api/v1/namespaces/default", "merge", &wrong)
        .await
        .error(422, "Invalid");
    assert_eq!(
        status["message"],
        "Namespace \"default\" is invalid: metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: \"x\": must be one of privileged, baseline, restricted"
    );
}

fn image_config(dir: &std::path::Path, hook: &Hook, default_allow: bool) -> Config {
    std::fs::write(dir.join("ca.pem"), &hook.pem).unwrap();
    let kubeconfig = format!(
        "clusters: [{{name: c, cluster: {{server: 'https://{}/image', certificate-authority: ca.pem}}}}]\n\
         users: [{{name: u, user: {{}}}}]\ncontexts: [{{name: k, context: {{cluster: c, user: u}}}}]\ncurrent-context: k\n",
        hook.address
    );
    std::fs::write(dir.join("kubeconfig"), kubeconfig).unwrap();
    let config = format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n\
         - name: ImagePolicyWebhook\n  configuration:\n    imagePolicy: {{kubeConfigFile: kubeconfig, retryBackoff: 1, defaultAllow: {default_allow}}}\n"
    );
    let file = dir.join("admission.yaml");
    std::fs::write(&file, config).unwrap();
    let mut config = Config::switched(vec!["ImagePolicyWebhook".to_owned()], Vec::new());
    config.read_file(&file).unwrap();
    config
}

#[tokio::test]
async fn item_181_image_policies_are_asked_and_kept() {
    let hook = Hook::new(&[], |review: &Value| {
        let image = review["spec"]["containers"][0]["image"]
            .as_str()
            .unwrap_or_default();
        let allowed = !image.contains("bad");
        json!({ "apiVersion": "imagepolicy.k8s.io/v1alpha1", "kind": "ImageReview",
            "status": { "allowed": allowed, "reason": "bad image" } })
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    let c = Cluster::with(with(image_config(dir.path(), &hook, false))).await;
    c.service_account().await;
    let of = |name: &str, image: &str| {
        let mut made = pod(name);
        made["spec"]["containers"][0]["image"] = json!(image);
        made["metadata"]["annotations"] =
            json!({ "mine.image-policy.k8s.io/ticket": "1", "other": "2" });
        made
    };
    c.post(PODS, &of("a", "good")).await.ok(201);
    let (path, review) = hook.calls()[0].clone();
    assert_eq!(path, "/image");
    assert_eq!(review["kind"], "ImageReview");
    assert_eq!(review["apiVersion"], "imagepolicy.k8s.io/v1alpha1");
    assert_eq!(
        review["spec"],
        json!({
            "containers": [{ "image": "good" }], "namespace": "default",
            "annotations": { "mine.image-policy.k8s.io/ticket": "1" },
        })
    );
    c.post(PODS, &of("b", "good")).await.ok(201);
    assert_eq!(hook.calls().len(), 1, "the answer is kept");
    let status = c.post(PODS, &of("c", "bad")).await.error(403, "Forbidden");
    assert_eq!(
        status["message"],
        "pods \"c\" is forbidden: image policy webhook backend denied one or more images: bad image"
    );
    drop(hook);
    c.post(PODS, &of("d", "good")).await.ok(201);
    c.post(PODS, &of("e", "new")).await.error(403, "Forbidden");
}

#[tokio::test]
async fn item_181_without_an_answer_the_default_decides() {
    let dir = tempfile::tempdir().unwrap();
    let hook = Hook::new(&[], |_: &Value| json!({ "status": {} })).await;
    let config = image_config(dir.path(), &hook, true);
    drop(hook);
    let c = Cluster::with(with(config)).await;
    c.service_account().await;
    let made = c.pod("a").await;
    assert_eq!(
        made["metadata"]["annotations"]["alpha.image-policy.k8s.io/failed-open"],
        "true"
    );
}

#[tokio::test]
async fn item_182_extended_resources_are_tolerated_when_switched_on() {
    let config = Config::switched(vec!["ExtendedResourceToleration".to_owned()], Vec::new());
    let c = Cluster::with(with(config)).await;
    c.service_account().await;
    let mut wanted = pod("a");
    wanted["spec"]["containers"][0]["resources"] =
        json!({ "limits": { "vendor.com/device": "1" } });
    let made = c.post(PODS, &wanted).await.ok(201);
    let tolerations = made["spec"]["tolerations"].as_array().unwrap();
    let wanted = json!({
        "key": "vendor.com/device", "operator": "Exists", "effect": "NoSchedule",
    });
    assert!(tolerations.contains(&wanted), "{tolerations:?}");
}

#[tokio::test]
async fn pods_wait_five_minutes_for_their_node_also_when_they_are_updated() {
    let c = Cluster::new().await;
    c.service_account().await;
    let made = c.post(PODS, &pod("a")).await.ok(201);
    let count = |pod: &Value| pod["spec"]["tolerations"].as_array().map_or(0, Vec::len);
    assert_eq!(count(&made), 2);
    // what an update leaves out is put back, where validation would refuse the loss of it
    let mut bare = made.clone();
    bare["spec"].as_object_mut().unwrap().remove("tolerations");
    let updated = c.put(&format!("{PODS}/a"), &bare).await.ok(200);
    assert_eq!(updated["spec"]["tolerations"], made["spec"]["tolerations"]);
}

#[tokio::test]
async fn classes_are_filled_in_and_runtime_classes_must_exist() {
    let c = Cluster::new().await;
    c.service_account().await;
    let class = |name: &str, default: bool| {
        json!({ "metadata": { "name": name, "annotations": {
            "storageclass.kubernetes.io/is-default-class": default.to_string(),
        } }, "provisioner": "x.example.com" })
    };
    c.post(
        "/apis/storage.k8s.io/v1/storageclasses",
        &class("slow", false),
    )
    .await
    .ok(201);
    c.post(
        "/apis/storage.k8s.io/v1/storageclasses",
        &class("fast", true),
    )
    .await
    .ok(201);
    let claim = json!({ "metadata": { "name": "c" }, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "2Gi" } },
    } });
    let made = c
        .post("/api/v1/namespaces/default/persistentvolumeclaims", &claim)
        .await
        .ok(201);
    assert_eq!(made["spec"]["storageClassName"], "fast");
    assert_eq!(
        made["metadata"]["finalizers"],
        json!(["kubernetes.io/pvc-protection"])
    );
    let mut special = pod("a");
    special["spec"]["runtimeClassName"] = json!("vm");
    let status = c.post(PODS, &special).await.error(403, "Forbidden");
    assert_eq!(
        status["message"],
        "pods \"a\" is forbidden: pod rejected: RuntimeClass \"vm\" not found"
    );
    let class = json!({
        "metadata": { "name": "vm" }, "handler": "vm",
        "overhead": { "podFixed": { "memory": "64Mi" } },
        "scheduling": { "nodeSelector": { "vm": "yes" } },
    });
    c.post("/apis/node.k8s.io/v1/runtimeclasses", &class)
        .await
        .ok(201);
    let made = c.post(PODS, &special).await.ok(201);
    assert_eq!(made["spec"]["overhead"], json!({ "memory": "64Mi" }));
    assert_eq!(made["spec"]["nodeSelector"], json!({ "vm": "yes" }));
    let node = json!({ "metadata": { "name": "n" } });
    let made = c.post("/api/v1/nodes", &node).await.ok(201);
    assert_eq!(
        made["spec"]["taints"],
        json!([{ "key": "node.kubernetes.io/not-ready", "effect": "NoSchedule" }])
    );
}
