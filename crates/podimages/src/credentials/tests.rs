//! Plugins here are shell scripts (checklist 10.11, 151).

use super::*;
use davit_pods::objects::FixedObjects;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;

struct Bench {
    dir: tempfile::TempDir,
    providers: CredentialProviders,
    objects: FixedObjects,
}

/// Counts its calls, keeps what it was asked, and answers with a user by the number of the call.
const PLUGIN: &str = r#"#!/bin/sh
cat > "$0.in"
echo x >> "$0.calls"
sleep ${SLOW:-0}
sed "s/USER/user$(wc -l < "$0.calls")/; s/ARGS/$*/" "$0.out"
"#;

fn response(version: &str, key: &str, duration: Option<&str>, pattern: &str) -> Value {
    let mut out = json!({
        "apiVersion": format!("credentialprovider.kubelet.k8s.io/{version}"),
        "kind": "CredentialProviderResponse",
        "cacheKeyType": key,
        "auth": {pattern: {"username": "USER", "password": "ARGS"}},
    });
    if let Some(duration) = duration {
        out["cacheDuration"] = json!(duration);
    }
    out
}

impl Bench {
    fn new(provider: &str, answer: &Value) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let bin = dir.path().join("bin");
        fs::create_dir(&bin).unwrap();
        fs::write(bin.join("helper"), PLUGIN).unwrap();
        fs::set_permissions(bin.join("helper"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(bin.join("helper.out"), answer.to_string()).unwrap();
        let file = dir.path().join("config.yaml");
        let text = format!(
            "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- name: helper\n{provider}"
        );
        fs::write(&file, text).unwrap();
        let providers = read(&file, &bin).unwrap();
        let providers = CredentialProviders::new(CredentialOptions {
            providers,
            bin_dir: bin,
        });
        let objects = FixedObjects::from_json(&[json!({
            "kind": "ServiceAccount",
            "metadata": {"name": "builder", "namespace": "default", "uid": "sa-1",
                "annotations": {"role": "puller", "zone": "z", "other": "o"}},
        })]);
        Self {
            dir,
            providers,
            objects,
        }
    }

    async fn users(&self, image: &str, pod: &Pod) -> Vec<String> {
        let found = self.providers.lookup(image, pod, &self.objects).await;
        found
            .into_iter()
            .map(|(_, auth)| auth.auth.username)
            .collect()
    }

    fn request(&self) -> Value {
        let text = fs::read(self.dir.path().join("bin/helper.in")).unwrap();
        serde_json::from_slice(&text).unwrap()
    }
}

fn pod(uid: &str, account: Option<&str>) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "default", "uid": uid},
        "spec": {"containers": [], "serviceAccountName": account},
    }))
    .unwrap()
}

const PLAIN: &str = "  matchImages: ['*.example.com', 'localhost:5000/team']\n  defaultCacheDuration: 10m\n  \
                     apiVersion: credentialprovider.kubelet.k8s.io/v1\n  args: [get, now]\n  \
                     env: [{name: SLOW, value: '0.2'}]\n";

#[tokio::test]
async fn a_plugin_is_asked_for_what_it_matches() {
    let bench = Bench::new(PLAIN, &response("v1", "Image", None, "*.example.com"));
    let pod = pod("u", None);
    for other in [
        "a.b.example.com/x",
        "example.com/x",
        "localhost:5000/x",
        "localhost:5001/team/x",
        "busybox",
    ] {
        assert!(bench.users(other, &pod).await.is_empty(), "{other}");
    }
    let found = bench
        .providers
        .lookup("reg.example.com/app:1.2", &pod, &bench.objects)
        .await;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].0, "*.example.com");
    assert_eq!(
        (
            found[0].1.auth.username.as_str(),
            found[0].1.auth.password.as_str()
        ),
        ("user1", "get now")
    );
    assert_eq!(
        bench.request(),
        json!({
            "kind": "CredentialProviderRequest",
            "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
            "image": "reg.example.com/app",
        })
    );
}

#[tokio::test]
async fn answers_are_kept_by_image_by_registry_or_for_all() {
    let pod = pod("u", None);
    for (key, expected) in [
        ("Image", ["user1", "user2", "user3"]),
        ("Registry", ["user1", "user1", "user2"]),
        ("Global", ["user1", "user1", "user1"]),
    ] {
        let bench = Bench::new(PLAIN, &response("v1", key, None, "r"));
        for _ in 0..2 {
            let images = ["a.example.com/x:1", "a.example.com/y", "b.example.com/x"];
            for (image, user) in images.iter().zip(expected) {
                assert_eq!(bench.users(image, &pod).await, [user], "{key} {image}");
            }
        }
    }
}

#[tokio::test]
async fn a_duration_of_zero_is_not_kept_but_calls_at_once_are_one() {
    let bench = Bench::new(PLAIN, &response("v1", "Global", Some("0s"), "r"));
    let pod = pod("u", None);
    let ask = || bench.users("a.example.com/x", &pod);
    let (a, b, c) = tokio::join!(ask(), ask(), ask());
    assert_eq!([a, b, c], [["user1"]; 3]);
    assert_eq!(ask().await, ["user2"]);
}

#[tokio::test]
async fn a_plugin_that_fails_costs_its_credentials_only() {
    let pod = pod("u", None);
    let fine = response("v1", "Image", None, "r");
    for (key, value) in [
        (
            "apiVersion",
            json!("credentialprovider.kubelet.k8s.io/v1beta1"),
        ),
        ("kind", json!("Secret")),
        ("cacheKeyType", json!("Never")),
        ("cacheDuration", json!("soon")),
    ] {
        let mut wrong = fine.clone();
        wrong[key] = value;
        let bench = Bench::new(PLAIN, &wrong);
        assert!(
            bench.users("a.example.com/x", &pod).await.is_empty(),
            "{key}"
        );
    }
    let beta = PLAIN.replace("k8s.io/v1", "k8s.io/v1beta1");
    let bench = Bench::new(&beta, &response("v1beta1", "Image", None, "r"));
    assert_eq!(bench.users("a.example.com/x", &pod).await, ["user1"]);
}

fn with_token(cache: &str, rest: &str) -> String {
    format!(
        "{PLAIN}  tokenAttributes: {{serviceAccountTokenAudience: registry, cacheType: {cache}, \
         requireServiceAccount: true, {rest}}}\n"
    )
}

#[tokio::test]
async fn service_account_tokens() {
    let keys = "requiredServiceAccountAnnotationKeys: [role], optionalServiceAccountAnnotationKeys: [zone, none]";
    let bench = Bench::new(
        &with_token("ServiceAccount", keys),
        &response("v1", "Image", None, "r"),
    );
    let image = "a.example.com/x";
    assert!(bench.users(image, &pod("u", None)).await.is_empty());
    assert_eq!(
        bench.users(image, &pod("u1", Some("builder"))).await,
        ["user1"]
    );
    let request = bench.request();
    assert_eq!(request["serviceAccountToken"], "registry.u1");
    assert_eq!(
        request["serviceAccountAnnotations"],
        json!({"role": "puller", "zone": "z"})
    );
    // By account: another pod of it shares the answer. By token: it does not.
    assert_eq!(
        bench.users(image, &pod("u2", Some("builder"))).await,
        ["user1"]
    );
    let bench = Bench::new(
        &with_token("Token", keys),
        &response("v1", "Image", None, "r"),
    );
    assert_eq!(
        bench.users(image, &pod("u1", Some("builder"))).await,
        ["user1"]
    );
    assert_eq!(
        bench.users(image, &pod("u1", Some("builder"))).await,
        ["user1"]
    );
    assert_eq!(
        bench.users(image, &pod("u2", Some("builder"))).await,
        ["user2"]
    );
    // An annotation that is not there: the plugin is not for this pod.
    let missing = "requiredServiceAccountAnnotationKeys: [absent]";
    let bench = Bench::new(
        &with_token("Token", missing),
        &response("v1", "Image", None, "r"),
    );
    assert!(
        bench
            .users(image, &pod("u1", Some("builder")))
            .await
            .is_empty()
    );
}

#[tokio::test]
async fn a_token_may_be_the_password_only_where_it_is_the_key() {
    let mut answer = response("v1", "Image", None, "r");
    answer["auth"]["r"]["password"] = json!("registry.u1");
    let pod = pod("u1", Some("builder"));
    let bench = Bench::new(&with_token("ServiceAccount", ""), &answer);
    assert!(bench.users("a.example.com/x", &pod).await.is_empty());
    let bench = Bench::new(&with_token("Token", ""), &answer);
    assert_eq!(bench.users("a.example.com/x", &pod).await, ["user1"]);
}

#[test]
fn configurations() {
    let dir = tempfile::tempdir().unwrap();
    for plugin in ["one", "two"] {
        fs::write(dir.path().join(plugin), "").unwrap();
    }
    let config = dir.path().join("config");
    fs::create_dir(&config).unwrap();
    let error = || read(&config, dir.path()).unwrap_err().to_string();
    assert!(error().contains("no configuration files found in directory"));
    let file = |name: &str, plugin: &str, version: &str| {
        let text = json!({
            "apiVersion": format!("kubelet.config.k8s.io/{version}"),
            "kind": "CredentialProviderConfig",
            "providers": [{"name": plugin, "matchImages": ["x.io"], "defaultCacheDuration": "1m",
                "apiVersion": "credentialprovider.kubelet.k8s.io/v1"}],
        });
        fs::write(config.join(name), text.to_string()).unwrap();
    };
    file("b.json", "one", "v1");
    file("a.yaml", "two", "v1beta1");
    fs::write(config.join("c.txt"), "not read").unwrap();
    let names: Vec<String> = read(&config, dir.path())
        .unwrap()
        .into_iter()
        .map(|p| p.name)
        .collect();
    assert_eq!(names, ["two", "one"]);
    file("c.yml", "one", "v1");
    assert_eq!(
        error(),
        "failed to validate config: providers.name: Duplicate value: \"one\""
    );
    file("c.yml", "three", "v1");
    assert!(error().starts_with("plugin binary executable"));
    file("c.yml", "one", "v2");
    assert!(error().contains("is not CredentialProviderConfig"));
    let empty = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders: [{name: ../x}]\n";
    fs::write(config.join("c.yml"), empty).unwrap();
    for part in [
        "not a file name",
        "apiVersion is required",
        "matchImages is required",
        "defaultCacheDuration is required",
    ] {
        assert!(error().contains(part), "{part}: {}", error());
    }
}
