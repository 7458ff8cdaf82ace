//! Which controllers run is said by name, as to kube-controller-manager.

use super::{SOON, names};
use crate::harness::{Cluster, DAVIT, any_kubectl, eventually, kubectl, output};
use std::process::Command;

#[test]
fn controllers_are_left_out_by_name() {
    let Some(k) = any_kubectl() else { return };
    let cluster = Cluster::up(&[
        "--no-node",
        "--controllers=*,-deployment,-taint-eviction-controller",
    ]);
    let run = |args: &[&str]| kubectl(&cluster, &k, args);
    run(&["create", "deployment", "web", "--image=i"]);
    run(&["create", "job", "work", "--image=i"]);
    eventually("the job's pod", SOON, || {
        names(&cluster, &k, &["pods"]).len() == 1
    });
    assert_eq!(
        names(&cluster, &k, &["replicasets"]),
        [] as [&str; 0],
        "nobody makes them for a deployment"
    );
    let refused = output(Command::new(DAVIT).args([
        "up",
        "--no-node",
        "--ephemeral",
        "--controllers=*,-deploymint",
    ]));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success());
    assert!(
        said.contains("\"deploymint\" is not in the list of known controllers"),
        "{said}"
    );
}
