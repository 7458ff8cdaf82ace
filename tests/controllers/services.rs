//! Ranges of Services' addresses, and what is repaired (spec network.md, items 15 to 18).

use super::{SOON, value};
use crate::harness::{Cluster, any_kubectl, eventually, kubectl, kubectl_stdin, output};
use std::path::Path;

fn events(cluster: &Cluster, k: &Path, of: &str) -> String {
    let about = format!("--field-selector=involvedObject.name={of}");
    let columns = "jsonpath={range .items[*]}{.reason}: {.message}{\"\\n\"}{end}";
    kubectl(cluster, k, ["get", "events", "-A", &about, "-o", columns])
}

fn exists(cluster: &Cluster, k: &Path, object: &str) -> bool {
    output(cluster.kubectl(k).args(["get", object]))
        .status
        .success()
}

#[test]
fn items_015_to_018_ranges_and_claims_are_looked_after() {
    let Some(k) = any_kubectl() else { return };
    let cluster = Cluster::up(&["--no-node", "--no-scheduler"]);
    let ready = |range: &str| {
        let condition = ".status.conditions[?(@.type==\"Ready\")]";
        let of = |field: &str| {
            value(
                &cluster,
                &k,
                &format!("servicecidr/{range}"),
                &format!("{condition}.{field}"),
            )
        };
        format!("{} {} {}", of("status"), of("reason"), of("message"))
    };
    let range = "apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: added}
spec: {cidrs: [203.0.113.0/28]}
";
    kubectl_stdin(&cluster, &k, &["apply", "-f", "-"], range);
    eventually("the range is ready", SOON, || {
        ready("added").starts_with("True")
    });
    let finalizers = value(&cluster, &k, "servicecidr/added", ".metadata.finalizers");
    assert!(
        finalizers.contains("networking.k8s.io/service-cidr-finalizer"),
        "{finalizers}"
    );
    kubectl(
        &cluster,
        &k,
        [
            "create",
            "service",
            "clusterip",
            "s",
            "--clusterip=203.0.113.7",
            "--tcp=80",
        ],
    );
    // It stays while the address is in no other range.
    kubectl(
        &cluster,
        &k,
        ["delete", "servicecidr", "added", "--wait=false"],
    );
    let terminating = "False Terminating There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR";
    eventually("the range waits", SOON, || ready("added") == terminating);

    // A claim that somebody deletes is made again.
    kubectl(&cluster, &k, ["delete", "ipaddress", "203.0.113.7"]);
    eventually("the claim is back", SOON, || {
        exists(&cluster, &k, "ipaddress/203.0.113.7")
    });
    let parent = value(
        &cluster,
        &k,
        "ipaddress/203.0.113.7",
        ".spec.parentRef.name",
    );
    assert_eq!(parent, "s");
    eventually("the Service's event", SOON, || {
        events(&cluster, &k, "s").contains(
            "ClusterIPNotAllocated: Cluster IP [IPv4]: 203.0.113.7 is not allocated; repairing",
        )
    });
    // One that its Service knows nothing of goes; one that others manage is none of ours.
    let claims = "apiVersion: networking.k8s.io/v1
kind: IPAddress
metadata:
  name: 203.0.113.8
  labels: {ipaddress.kubernetes.io/managed-by: ipallocator.k8s.io, ipaddress.kubernetes.io/ip-family: IPv4}
spec: {parentRef: {resource: services, namespace: default, name: s}}
---
apiVersion: networking.k8s.io/v1
kind: IPAddress
metadata: {name: 203.0.113.9, labels: {ipaddress.kubernetes.io/managed-by: example.com}}
spec: {parentRef: {resource: services, namespace: default, name: s}}
";
    kubectl_stdin(&cluster, &k, &["apply", "-f", "-"], claims);
    eventually("the wrong claim is gone", SOON, || {
        !exists(&cluster, &k, "ipaddress/203.0.113.8")
    });
    eventually("its event", SOON, || {
        events(&cluster, &k, "203.0.113.8").contains("IPAddressWrongReference")
    });
    assert!(exists(&cluster, &k, "ipaddress/203.0.113.9"));

    kubectl(&cluster, &k, ["delete", "service", "s"]);
    assert!(!exists(&cluster, &k, "ipaddress/203.0.113.7"));
    eventually("the range is gone", SOON, || {
        !exists(&cluster, &k, "servicecidr/added")
    });
}
