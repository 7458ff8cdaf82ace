//! Mounts, devices and limits.

use super::*;

pub(super) async fn mounts(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let dir = setup.dir.join(format!("volume-{}", pod.id));
    std::fs::create_dir_all(dir.join("sub")).unwrap();
    std::fs::write(dir.join("file"), "content\n").unwrap();
    let mount = |target: &str, source: PathBuf, readonly| cri::Mount {
        container_path: target.to_owned(),
        host_path: source.to_string_lossy().into_owned(),
        readonly,
        ..cri::Mount::default()
    };
    let script = "cat /ro/file /etc/one; echo x > /ro/file && echo bad; echo y > /rw/new; echo z > /rw/deep/er/f; ls /rw";
    let mut config = pod.container(shell(script));
    // The child is listed before its parent.
    config.mounts = vec![
        mount("/rw/deep/er", dir.join("sub"), false),
        mount("/ro", dir.clone(), true),
        mount("/rw", dir.clone(), false),
        mount("/etc/one", dir.join("file"), true),
    ];
    let (_, text) = pod.output(config).await;
    // Standard error has a pipe of its own: its lines may come before.
    let shown = text.lines().filter(|line| *line == "content").count();
    assert!(shown == 2 && !text.contains("bad"), "{text}");
    assert_eq!(std::fs::read_to_string(dir.join("new")).unwrap(), "y\n");
    assert_eq!(std::fs::read_to_string(dir.join("sub/f")).unwrap(), "z\n");
    pod.remove().await;
    assert!(dir.join("file").exists(), "volumes outlive pods");
}

pub(super) async fn devices(setup: Setup) {
    if !std::path::Path::new("/dev/fuse").exists() {
        eprintln!("skipped: no /dev/fuse to hand over");
        return;
    }
    let pod = Pod::run(&setup).await;
    // Item 86 of the node's checklist: without `m` there is no right to make nodes.
    // Subshells, because a shell ends when a redirection of its own commands fails.
    let script = "head -c 2 /dev/zero | wc -c; echo x > /dev/null && echo null; \
        mknod /dev/evil c 1 11; (: < /dev/evil) && echo escaped; \
        [ -c /dev/given ] && echo given; (: < /dev/given) && echo readable; (: > /dev/given) || echo not writable; \
        mknod /tmpnode c 10 229; (: < /tmpnode) && echo same device";
    let mut config = pod.container(shell(script));
    config.devices = vec![cri::Device {
        container_path: "/dev/given".to_owned(),
        host_path: "/dev/fuse".to_owned(),
        permissions: "r".to_owned(),
    }];
    let (_, text) = pod.output(config).await;
    let has = |line: &str| text.lines().any(|l| l == line);
    assert!(
        has("2") && has("null") && has("given") && has("readable") && has("not writable"),
        "{text}"
    );
    assert!(has("same device") && !has("escaped"), "{text}");
    pod.remove().await;
}

pub(super) async fn memory_limit(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let mut config = pod.container(shell(
        "x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo ${#x}",
    ));
    let limits = resources(&mut config);
    limits.memory_limit_in_bytes = 32 << 20;
    limits.memory_swap_limit_in_bytes = 32 << 20;
    limits.oom_score_adj = 500;
    let id = pod.start(config).await;
    let status = pod.wait(&id).await;
    assert_eq!(status.reason, "OOMKilled", "{status:?}");
    pod.remove().await;
}

pub(super) async fn cpu_limit(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let mut config = pod.container(shell("sleep 60"));
    let limits = resources(&mut config);
    (limits.cpu_period, limits.cpu_quota, limits.cpu_shares) = (100_000, 50_000, 512);
    limits.memory_limit_in_bytes = 64 << 20;
    let id = pod.start(config).await;
    let read = "cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us 2>/dev/null || cut -d' ' -f1 /sys/fs/cgroup/cpu.max";
    let own = setup.runtime.version().await.unwrap().runtime_name == "davit";
    if own {
        assert_eq!(run(&setup, &id, read).await, "50000\n");
    }
    let update = cri::LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: 70_000,
        ..Default::default()
    };
    setup
        .runtime
        .update_container_resources(&id, update)
        .await
        .unwrap();
    if own {
        assert_eq!(run(&setup, &id, read).await, "70000\n");
    }
    let stats = setup.runtime.container_stats(&id).await.unwrap();
    assert!(stats.cpu.unwrap().usage_core_nano_seconds.unwrap().value > 0);
    assert!(stats.memory.unwrap().working_set_bytes.unwrap().value > 0);
    pod.remove().await;
}
