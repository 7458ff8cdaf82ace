//! Each controller is a service account of its own, with the rights of its role alone (CIS 1.3.3).

use super::{SOON, names};
use crate::harness::{Cluster, any_kubectl, eventually, kubectl};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

const EVERYTHING_OF_CHANGES: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  verbs: [create, update, patch, delete]
";

/// Who has made what, by the audit log: users and resources.
fn makers(log: &Path) -> BTreeSet<(String, String)> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let events = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let made = events.filter(|event: &Value| event["verb"] == "create");
    made.map(|event| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (
            text(&event["user"]["username"]),
            text(&event["objectRef"]["resource"]),
        )
    })
    .collect()
}

#[test]
fn each_controller_has_the_rights_of_its_role_alone() {
    let Some(k) = any_kubectl() else { return };
    let files = tempfile::tempdir().unwrap();
    let (policy, log) = (files.path().join("policy"), files.path().join("log"));
    std::fs::write(&policy, EVERYTHING_OF_CHANGES).unwrap();
    let text = |path: &Path| path.display().to_string();
    let cluster = Cluster::up(&[
        "--no-node",
        "--audit-policy-file",
        &text(&policy),
        "--audit-log-path",
        &text(&log),
    ]);
    // What all of them could do together is gone, and nobody misses it.
    kubectl(
        &cluster,
        &k,
        ["delete", "clusterrolebinding", "davit:controllers"],
    );
    kubectl(
        &cluster,
        &k,
        ["create", "deployment", "web", "--image=i", "--replicas=2"],
    );
    eventually("two pods", SOON, || {
        names(&cluster, &k, &["pods"]).len() == 2
    });
    let account = |name: &str| format!("system:serviceaccount:kube-system:{name}");
    eventually("what the audit log has", SOON, || {
        let makers = makers(&log);
        [
            ("deployment-controller", "replicasets"),
            ("replicaset-controller", "pods"),
        ]
        .iter()
        .all(|(name, made)| makers.contains(&(account(name), (*made).to_owned())))
    });
    let path = "jsonpath={.items[*].metadata.managedFields[*].manager}";
    let managers = kubectl(
        &cluster,
        &k,
        ["get", "rs", "--show-managed-fields", "-o", path],
    );
    assert!(
        managers
            .split(' ')
            .all(|name| name == "kube-controller-manager"),
        "owners of fields have one name for all controllers: {managers}"
    );
    // One controller cannot do another's work: without its role it does nothing.
    let binding = "system:controller:deployment-controller";
    kubectl(&cluster, &k, ["delete", "clusterrolebinding", binding]);
    kubectl(&cluster, &k, ["create", "deployment", "more", "--image=i"]);
    let job = ["create", "job", "one", "--image=i"];
    kubectl(&cluster, &k, job);
    let of = |selector: &str| names(&cluster, &k, &["pods", "-l", selector]).len();
    eventually("the pod of the job", SOON, || of("job-name=one") == 1);
    assert_eq!(
        of("app=more"),
        0,
        "the deployment controller has no rights any more"
    );
}
