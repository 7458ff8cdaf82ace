//! Static pods that change.

use super::*;

/// As in the kubelet and its test in `test/e2e_node`: the mirror stays until its pod has ended, and of two contents of a
/// manifest the second waits for the end of the first.
#[tokio::test]
async fn static_pods_of_one_name_run_one_after_the_other() {
    let mut node = Node::start().await;
    let dir = node.dir.path().join("manifests");
    std::fs::create_dir_all(&dir).unwrap();
    let manifest = |image: &str| {
        let text = format!(
            "kind: Pod\nmetadata:\n  name: web\nspec:\n  containers:\n  - name: c\n    image: {image}\n    \
             lifecycle: {{preStop: {{sleep: {{seconds: 5}}}}}}\n"
        );
        std::fs::write(dir.join("web.yaml"), text).unwrap();
    };
    manifest("sleep");
    let path = "/api/v1/namespaces/default/pods/web-n1";
    let of =
        |mirror: &Value| mirror["metadata"]["annotations"]["kubernetes.io/config.mirror"].clone();
    let first = of(&node.phase(path, "Running").await);
    assert!(first.is_string());
    manifest("sleep2");
    tokio::time::sleep(Duration::from_millis(2500)).await;
    manifest("sleep3");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mirror = node.api.get(path).unwrap();
    assert_eq!(of(&mirror), first);
    assert_eq!(mirror["status"]["phase"], "Running");
    let starts = |calls: Vec<String>| calls.iter().filter(|c| c.starts_with("start ")).count();
    assert_eq!(starts(node.runtime.calls()), 1);
    let api = node.api.clone();
    let image = wait("the last content is mirrored", || {
        let mirror = api.get(path)?;
        let runs = mirror["status"]["phase"] == "Running" && of(&mirror) != first;
        runs.then(|| mirror["spec"]["containers"][0]["image"].clone())
    })
    .await;
    assert_eq!(image, "sleep3");
    assert_eq!(starts(node.runtime.calls()), 2);
    node.stop().await;
}

/// `test/e2e_node/mirror_pod_test.go`, "when create a mirror pod without changes": the kubelet hears of it by inotify.
#[tokio::test]
async fn a_manifest_that_is_back_at_once_is_begun_anew() {
    let mut node = Node::start().await;
    let dir = node.dir.path().join("manifests");
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join("web.yaml");
    let text =
        "kind: Pod\nmetadata:\n  name: web\nspec:\n  containers:\n  - name: c\n    image: sleep\n";
    std::fs::write(&file, text).unwrap();
    let path = "/api/v1/namespaces/default/pods/web-n1";
    let first = node.phase(path, "Running").await["status"]["podIP"].clone();
    assert!(first.is_string());
    tokio::time::sleep(Duration::from_secs(3)).await;
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, text).unwrap();
    let starts = |calls: Vec<String>| calls.iter().filter(|c| c.starts_with("start ")).count();
    let runtime = node.runtime.clone();
    wait("its container is started again", || {
        (starts(runtime.calls()) == 2).then_some(())
    })
    .await;
    // The mirror is still that of the pod before, and has its addresses.
    let api = node.api.clone();
    let ips = wait("the mirror has the new pod's address", || {
        let status = api.get(path)?["status"].clone();
        (status["podIP"] != first).then(|| status["podIPs"].clone())
    })
    .await;
    assert_eq!(ips.as_array().map(Vec::len), Some(1), "{ips}");
    node.phase(path, "Running").await;
    // Saved as editors do it, with the same content, nothing happens.
    std::fs::write(dir.join(".web"), text).unwrap();
    std::fs::rename(dir.join(".web"), &file).unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(starts(node.runtime.calls()), 2);
    node.stop().await;
}
