//! What a container's process is given, and how it ends.

use super::*;

pub(super) async fn exit_codes(setup: Setup) {
    let pod = Pod::run(&setup).await;
    for (script, code, reason) in [
        ("true", 0, "Completed"),
        ("exit 7", 7, "Error"),
        ("kill -9 $$ ; sleep 9", 137, "Error"),
    ] {
        // A first process cannot kill itself, a child of it can.
        let script = if code == 137 {
            "sh -c 'kill -9 $$'; exit $?"
        } else {
            script
        };
        let before = crate::monitor::now_nanos();
        let id = pod.start(pod.container(shell(script))).await;
        let status = pod.wait(&id).await;
        assert_eq!(
            (status.exit_code, status.reason.as_str()),
            (code, reason),
            "{script}"
        );
        assert!(
            before <= status.started_at && status.finished_at <= crate::monitor::now_nanos(),
            "{status:?}"
        );
        // containerd writes down the start of a very short container after its end.
        let slack = 100_000_000;
        assert!(
            status.started_at <= status.finished_at + slack
                && status.created_at <= status.started_at
        );
    }
    pod.remove().await;
}

pub(super) async fn environment(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let mut config = pod.container(shell(
        "echo $A-$B-$HOME; echo $PATH; [ $(hostname) = $HOSTNAME ] && echo same",
    ));
    config.envs = vec![
        cri::KeyValue::new("A", "1"),
        cri::KeyValue::new("B", "x=y z"),
        cri::KeyValue::new("A", "2"),
    ];
    let (code, text) = pod.output(config).await;
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((code, lines[0], lines[2]), (0, "2-x=y z-/", "same"));
    assert!(lines[1].contains("/bin"), "{text}");
    pod.remove().await;
}

pub(super) async fn arguments(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let mut config = pod.container(vec!["/bin/echo".into(), "a b".into()]);
    config.args = vec!["c".into()];
    assert_eq!(pod.output(config).await, (0, "a b c\n".to_owned()));
    let mut config = pod.container(Vec::new());
    config.args = shell("echo from args");
    assert_eq!(pod.output(config).await, (0, "from args\n".to_owned()));
    pod.remove().await;
}

pub(super) async fn working_directory(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let mut config = pod.container(shell("pwd"));
    config.working_dir = "/new/place".to_owned();
    assert_eq!(pod.output(config).await, (0, "/new/place\n".to_owned()));
    pod.remove().await;
}

pub(super) async fn users(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let mut config = pod.container(shell(
        "id -u; id -g; id -G; touch /x 2>/dev/null && echo may write",
    ));
    let context = security(&mut config);
    context.run_as_user = Some(cri::Int64Value { value: 1234 });
    context.run_as_group = Some(cri::Int64Value { value: 2345 });
    context.supplemental_groups = vec![3456];
    let (_, text) = pod.output(config).await;
    assert_eq!(text, "1234\n2345\n2345 3456\n");
    pod.remove().await;
}

pub(super) async fn capabilities(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let caps = "grep -E 'CapEff|NoNewPrivs' /proc/self/status | tr -d '\\t' | tr '\\n' ' '";
    let (_, text) = pod.script(caps).await;
    assert!(text.contains("CapEff:00000000a80425fb"), "{text}");
    let mut config = pod.container(shell(caps));
    let context = security(&mut config);
    context.capabilities = Some(cri::Capability {
        add_capabilities: vec!["NET_ADMIN".into()],
        drop_capabilities: vec!["ALL".into()],
        ..cri::Capability::default()
    });
    context.no_new_privs = true;
    let (_, text) = pod.output(config).await;
    assert!(
        text.contains("CapEff:0000000000001000") && text.contains("NoNewPrivs:1"),
        "{text}"
    );
    pod.remove().await;
}

pub(super) async fn seccomp(setup: Setup) {
    use cri::security_profile::ProfileType;
    let pod = Pod::run(&setup).await;
    for (kind, mode) in [
        (ProfileType::RuntimeDefault, "2"),
        (ProfileType::Unconfined, "0"),
    ] {
        let mut config = pod.container(shell("sleep 60"));
        security(&mut config).seccomp = Some(cri::SecurityProfile {
            profile_type: kind as i32,
            localhost_ref: String::new(),
        });
        let id = pod.start(config).await;
        let status = run(
            &setup,
            &id,
            "grep Seccomp: /proc/1/status /proc/self/status",
        )
        .await;
        assert_eq!(
            status
                .lines()
                .filter(|l| l.ends_with(&format!("\t{mode}")))
                .count(),
            2,
            "{kind:?}: {status}"
        );
        let unshare = setup
            .runtime
            .exec_sync(
                &id,
                shell("unshare -U true"),
                Duration::from_secs(5),
                1 << 20,
            )
            .await
            .unwrap();
        if kind == ProfileType::RuntimeDefault {
            assert_ne!(unshare.exit_code, 0, "a new user namespace is refused");
        }
    }
    pod.remove().await;
}

pub(super) async fn readonly_root(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let mut config = pod.container(shell(
        "touch /x 2>/dev/null && echo bad; echo y > /dev/shm/y && echo shm",
    ));
    security(&mut config).readonly_rootfs = true;
    assert_eq!(pod.output(config).await.1, "shm\n");
    pod.remove().await;
}

pub(super) async fn masked_paths(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let script = "cat /proc/version | wc -c; ls /proc/acpi /sys/firmware 2>/dev/null | grep -v : | tr -d '\\n'; \
        echo 1 2>/dev/null > /proc/sys/kernel/core_uses_pid || echo protected";
    let mut config = pod.container(shell(script));
    let context = security(&mut config);
    context.masked_paths = ["/proc/version", "/proc/acpi", "/sys/firmware", "/no/such"]
        .map(str::to_owned)
        .to_vec();
    context.readonly_paths = ["/proc/sys", "/no/such"].map(str::to_owned).to_vec();
    let (_, text) = pod.output(config).await;
    assert!(
        text.starts_with("0\n") && text.trim_end().ends_with("protected"),
        "{text:?}"
    );
    pod.remove().await;
}

pub(super) async fn stop_gracefully(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let config = pod.container(shell(
        "trap 'echo bye; exit 9' TERM; echo ready; while true; do sleep 0.05; done",
    ));
    let id = pod.start(config.clone()).await;
    eventually(|| pod.log(&config).contains("ready")).await;
    setup
        .runtime
        .stop_container(&id, Duration::from_secs(20))
        .await
        .unwrap();
    let status = pod.wait(&id).await;
    assert_eq!(status.exit_code, 9);
    assert!(pod.log(&config).contains("bye"));
    setup
        .runtime
        .stop_container(&id, Duration::from_secs(20))
        .await
        .unwrap();
    pod.remove().await;
}

pub(super) async fn stop_stubborn(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let config = pod.container(shell(
        "trap '' TERM; echo ready; sleep 60 & sleep 60; sleep 60",
    ));
    let id = pod.start(config.clone()).await;
    eventually(|| pod.log(&config).contains("ready")).await;
    let begin = Instant::now();
    setup
        .runtime
        .stop_container(&id, Duration::from_secs(1))
        .await
        .unwrap();
    assert!(
        begin.elapsed() >= Duration::from_millis(900) && begin.elapsed() < Duration::from_secs(8)
    );
    assert_eq!(pod.wait(&id).await.exit_code, 137);
    pod.remove().await;
}

pub(super) async fn start_errors(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let id = pod
        .create(pod.container(vec!["no-such-program".into()]))
        .await;
    let error = setup.runtime.start_container(&id).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("executable file not found in $PATH"),
        "{error}"
    );
    let status = setup.runtime.container_status(&id).await.unwrap();
    assert_eq!(
        (status.exit_code, status.reason.as_str()),
        (128, "StartError"),
        "{status:?}"
    );
    assert!(status.message.contains("no-such-program"), "{status:?}");
    let mut config = pod.container(shell("true"));
    config.image.as_mut().unwrap().image = "contract.test/no/such:image".to_owned();
    assert!(
        setup
            .runtime
            .create_container(&pod.id, config, pod.config.clone())
            .await
            .is_err()
    );
    assert!(
        setup
            .runtime
            .start_container("no-such-container")
            .await
            .is_err()
    );
    pod.remove().await;
}
