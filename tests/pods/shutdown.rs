//! SIGTERM where pods have time for it: the machine goes down.

use std::process::Command;
use std::time::Duration;

use crate::pods::Kube;
use nix::sys::signal::{Signal, kill};

pub(crate) fn scenario() {
    let Some(mut kube) = Kube::up("1.36", &["--shutdown-grace-period", "20s"]) else {
        return;
    };
    let script = "trap 'echo told to end; exit 0' TERM; while :; do sleep 0.1; done";
    kube.create(&crate::pods::pod("guest", "Always", script, ""));
    kube.wait_ready("guest");
    let davit = nix::unistd::Pid::from_raw(i32::try_from(kube.cluster.pid()).unwrap());
    kill(davit, Signal::SIGTERM).unwrap();
    let log = kube.dir().join("root/var/log/pods");
    crate::harness::eventually("the container is told", Duration::from_secs(30), || {
        let mut grep = Command::new("grep");
        grep.args(["-r", "told to end"]).arg(&log);
        grep.output().unwrap().status.success()
    });
    assert!(kube.cluster.ended().success());
    kube.cluster.start_again();
    kube.wait_phase("guest", "Failed");
    assert_eq!(kube.field("guest", ".status.reason"), "Terminated");
    let target = ".status.conditions[?(@.type==\"DisruptionTarget\")].reason";
    assert_eq!(kube.field("guest", target), "TerminationByKubelet");
    kube.clean_up();
}
