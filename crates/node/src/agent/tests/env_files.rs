//! Variables that files of volumes say (KEP-3721).

use super::*;

#[tokio::test]
async fn a_container_waits_for_the_file_that_says_its_variable() {
    let mut node = Node::start().await;
    let of = |path: &str, optional: bool| json!({"fileKeyRef": {"volumeName": "v", "path": path, "key": "A", "optional": optional}});
    let mut main = container("main", "sleep");
    main["env"] = json!([
        {"name": "GIVEN", "valueFrom": of("env", false)},
        {"name": "MAYBE", "valueFrom": of("none", true)},
        {"name": "BOTH", "value": "$(GIVEN) $(MAYBE)"},
    ]);
    // As with the kubelet a volume that no container mounts is not made.
    main["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
    let spec = json!({"containers": [main], "volumes": [{"name": "v", "emptyDir": {}}]});
    let path = node.pod("a", spec);
    let api = node.api.clone();
    let waiting = wait("the container waits", || {
        let status = api.get(&path)?["status"]["containerStatuses"][0].clone();
        let waiting = status["state"]["waiting"].clone();
        (waiting["reason"] == "CreateContainerConfigError").then_some(waiting)
    })
    .await;
    let message = waiting["message"].as_str().unwrap();
    assert!(
        message.contains("env file \"env\" of volume \"v\""),
        "{message}"
    );
    let volume = "kubelet/pods/uid-a/volumes/kubernetes.io~empty-dir/v";
    let file = node.dir.path().join(volume).join("env");
    std::fs::write(file, "A='of the file'\n").unwrap();
    node.phase(&path, "Running").await;
    let (_, made) = node.runtime.running().remove(0);
    let value = |name: &str| {
        let mut envs = made.config.envs.iter();
        let found = envs.find(|e| e.key == name);
        found.map(|e| e.text().into_owned())
    };
    assert_eq!(value("GIVEN").as_deref(), Some("of the file"));
    assert_eq!(value("MAYBE"), None);
    assert_eq!(value("BOTH").as_deref(), Some("of the file $(MAYBE)"));
    node.stop().await;
}
