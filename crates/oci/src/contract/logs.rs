//! The logs of containers.

use super::*;

/// Item 150 of the node's checklist, with `log_rotation` and the tests of `nodelogs`.
pub(super) async fn logs(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let config = pod.container(shell("echo one; echo two >&2; printf three"));
    let (_, text) = pod.output(config.clone()).await;
    // Two streams come in any order.
    for line in ["one\n", "two\n", "three"] {
        assert!(text.contains(line), "{text:?}");
    }
    let raw = std::fs::read_to_string(pod.logs.join(&config.log_path)).unwrap();
    assert!(
        raw.lines().any(|l| l.ends_with(" stdout F one"))
            && raw.lines().any(|l| l.ends_with(" stderr F two")),
        "{raw}"
    );
    assert!(raw.lines().any(|l| l.ends_with(" stdout P three")), "{raw}");
    pod.remove().await;
}

pub(super) async fn log_rotation(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let config = pod.container(shell(
        "echo before; while [ ! -e /tmp/go ]; do sleep 0.05; done; echo after; sleep 60",
    ));
    let id = pod.start(config.clone()).await;
    eventually(|| pod.log(&config) == "before\n").await;
    let file = pod.logs.join(&config.log_path);
    std::fs::rename(&file, file.with_extension("old")).unwrap();
    setup.runtime.reopen_container_log(&id).await.unwrap();
    run(&setup, &id, "mkdir -p /tmp; touch /tmp/go").await;
    eventually(|| pod.log(&config) == "after\n").await;
    pod.remove().await;
}
