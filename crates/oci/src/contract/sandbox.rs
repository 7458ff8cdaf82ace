//! Sandboxes: life, lists, shared namespaces.

use super::*;

pub(super) async fn versions(setup: Setup) {
    let version = setup.runtime.version().await.unwrap();
    assert_eq!(version.runtime_api_version, "v1");
    let status = setup.runtime.status().await.unwrap().status.unwrap();
    assert!(
        status
            .conditions
            .iter()
            .any(|c| c.r#type == "RuntimeReady" && c.status),
        "{status:?}"
    );
}

pub(super) async fn sandbox_life(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let status = setup.runtime.pod_sandbox_status(&pod.id).await.unwrap();
    assert_eq!(status.state, cri::PodSandboxState::SandboxReady as i32);
    assert_eq!(status.metadata, pod.config.metadata);
    assert_eq!(status.labels, pod.config.labels);
    let filter = cri::PodSandboxFilter {
        label_selector: pod.config.labels.clone(),
        ..Default::default()
    };
    let listed = setup
        .runtime
        .list_pod_sandboxes(Some(filter))
        .await
        .unwrap();
    assert_eq!(listed.iter().map(|s| &s.id).collect::<Vec<_>>(), [&pod.id]);
    setup.runtime.stop_pod_sandbox(&pod.id).await.unwrap();
    setup.runtime.stop_pod_sandbox(&pod.id).await.unwrap();
    let status = setup.runtime.pod_sandbox_status(&pod.id).await.unwrap();
    assert_eq!(status.state, cri::PodSandboxState::SandboxNotready as i32);
    let id = pod.id.clone();
    pod.remove().await;
    assert!(matches!(
        setup.runtime.pod_sandbox_status(&id).await,
        Err(Error::NotFound(_))
    ));
    setup.runtime.remove_pod_sandbox(&id).await.unwrap();
}

pub(super) async fn listing(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let (one, two) = (
        pod.container(shell("sleep 60")),
        pod.container(shell("true")),
    );
    let running = pod.start(one.clone()).await;
    let ended = pod.start(two).await;
    pod.wait(&ended).await;
    let created = pod.create(pod.container(shell("true"))).await;
    let list = async |change: fn(&mut cri::ContainerFilter)| {
        let mut filter = cri::ContainerFilter {
            pod_sandbox_id: pod.id.clone(),
            ..Default::default()
        };
        change(&mut filter);
        let mut ids: Vec<_> = setup
            .runtime
            .list_containers(Some(filter))
            .await
            .unwrap()
            .into_iter()
            .map(|c| (c.id, c.state))
            .collect();
        ids.sort();
        ids
    };
    assert_eq!(list(|_| ()).await.len(), 3);
    assert_eq!(
        list(|f| f.state = Some(cri::ContainerStateValue { state: 1 })).await,
        [(running.clone(), 1)]
    );
    assert_eq!(
        list(|f| f.state = Some(cri::ContainerStateValue { state: 0 })).await,
        [(created.clone(), 0)]
    );
    let filter = cri::ContainerFilter {
        id: ended.clone(),
        ..Default::default()
    };
    let found = setup.runtime.list_containers(Some(filter)).await.unwrap();
    assert_eq!(
        found.iter().map(|c| (&c.id, c.state)).collect::<Vec<_>>(),
        [(&ended, 2)]
    );
    let filter = cri::ContainerFilter {
        label_selector: one.labels.clone(),
        pod_sandbox_id: pod.id.clone(),
        ..Default::default()
    };
    let found = setup.runtime.list_containers(Some(filter)).await.unwrap();
    assert_eq!(found.iter().map(|c| &c.id).collect::<Vec<_>>(), [&running]);
    pod.remove().await;
}

pub(super) async fn shared_memory(setup: Setup) {
    let pod = Pod::run(&setup).await;
    assert_eq!(pod.script("echo shared > /dev/shm/x").await.0, 0);
    assert_eq!(
        pod.script("cat /dev/shm/x").await,
        (0, "shared\n".to_owned())
    );
    pod.remove().await;
}

pub(super) async fn isolated_network(setup: Setup) {
    let pod = Pod::run_isolated(&setup).await;
    let id = pod
        .start(pod.container(shell("while true; do echo hello | nc -l -p 8080; done")))
        .await;
    let deadline = Instant::now() + Duration::from_secs(10);
    // 0x1F90 is 8080, 0A is LISTEN
    while !run(&setup, &id, "cat /proc/net/tcp /proc/net/tcp6")
        .await
        .contains(":1F90 ")
    {
        assert!(Instant::now() < deadline, "nobody listens");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(
        tokio::net::TcpStream::connect("127.0.0.1:8080")
            .await
            .is_err(),
        "not in the host's network"
    );
    assert!(run(&setup, &id, "cat /proc/net/dev").await.contains("lo:"));
    assert_eq!(
        run(&setup, &id, "hostname; echo $HOSTNAME").await,
        "contract\ncontract\n"
    );
    let request = cri::PortForwardRequest {
        pod_sandbox_id: pod.id.clone(),
        port: vec![8080],
    };
    if let Streaming::Direct(dialer) = setup.runtime.port_forward(request).await.unwrap() {
        let mut stream = dialer.dial(8080).await.unwrap();
        let mut text = String::new();
        // The other side waits for our end; what it says comes first.
        let mut buffer = [0; 16];
        let count = stream.read(&mut buffer).await.unwrap();
        text.push_str(&String::from_utf8_lossy(&buffer[..count]));
        assert_eq!(text, "hello\n");
        assert!(dialer.dial(9).await.is_err());
    }
    pod.remove().await;
}

pub(super) async fn shared_processes(setup: Setup) {
    let pod = Pod::run_with(&setup, |config| {
        namespace_options(config).pid = cri::NamespaceMode::Pod as i32;
    })
    .await;
    let id = pod.start(pod.container(shell("sleep 61"))).await;
    let other = pod.start(pod.container(shell("sleep 62"))).await;
    let seen = run(&setup, &other, "ps").await;
    assert!(
        seen.contains("sleep 61") && seen.contains("sleep 62"),
        "{seen}"
    );
    setup
        .runtime
        .stop_container(&id, Duration::ZERO)
        .await
        .unwrap();
    assert_eq!(pod.wait(&id).await.exit_code, 137);
    let seen = run(&setup, &other, "ps").await;
    assert!(
        !seen.contains("sleep 61") && seen.contains("sleep 62"),
        "{seen}"
    );
    pod.remove().await;
}

pub(super) async fn removal(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let id = pod.start(pod.container(shell("sleep 60"))).await;
    setup.runtime.remove_container(&id).await.unwrap();
    setup.runtime.remove_container(&id).await.unwrap();
    assert!(matches!(
        setup.runtime.container_status(&id).await,
        Err(Error::NotFound(_))
    ));
    pod.remove().await;
}
