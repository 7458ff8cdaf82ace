//! Kinds that are in an etcd of their own (spec scale-out.md 2.1).

use super::server::Server;
use super::{Kube, key_count};
use crate::harness::{self, Cluster, any_kubectl, kubectl_stdin};
use std::path::Path;

const EVENTS: &str = "/registry/events/";
const LEASES: &str = "/registry/leases/";
const MAPS: &str = "/registry/configmaps/";

const EVENT: &str = "
apiVersion: v1
kind: Event
metadata: {name: told, namespace: default}
involvedObject: {kind: Pod, name: p, namespace: default}
reason: Told
message: once
type: Normal
";

#[test]
fn kinds_are_kept_in_an_etcd_of_their_own() {
    let (Some(binary), Some(curl)) = (any_kubectl(), harness::program("curl")) else {
        return;
    };
    let (Some(main), Some(mut other)) = (Server::start(), Server::start()) else {
        return;
    };
    let (url, others) = (main.url().to_string(), other.url().to_string());
    let overrides = format!("/events#{others},coordination.k8s.io/leases#{others}");
    let flags = [
        "--no-node",
        "--etcd-servers",
        &url,
        "--etcd-servers-overrides",
        &overrides,
    ];
    let mut kube = Kube {
        cluster: Cluster::up(&flags),
        binary,
    };
    kubectl_stdin(&kube.cluster, &kube.binary, &["apply", "-f", "-"], EVENT);
    kube.run(&["create", "configmap", "made"]);
    let count = |server: &Server, prefix: &str| key_count(server, Path::new(&curl), prefix);
    for (prefix, has, has_not) in [
        (EVENTS, &other, &main),
        (LEASES, &other, &main),
        (MAPS, &main, &other),
    ] {
        assert!(count(has, prefix) > 0, "{prefix}");
        assert_eq!(count(has_not, prefix), 0, "{prefix}");
    }

    // revisions are those of the kind's own etcd, in both of its groups
    let version = |kube: &Kube, resource: &str| -> u64 {
        let path = "jsonpath={.metadata.resourceVersion}";
        kube.run(&["get", resource, "-o", path]).parse().unwrap()
    };
    let told = version(&kube, "event/told");
    for round in 0..20 {
        let data = format!(r#"{{"data":{{"round":"{round}"}}}}"#);
        kube.run(&["patch", "configmap", "made", "--type=merge", "-p", &data]);
    }
    assert_eq!(version(&kube, "event.events.k8s.io/told"), told);
    let from = |version: u64| {
        format!("/api/v1/namespaces/default/events?resourceVersion={version}&limit=5")
    };
    assert!(kube.run(&["get", "--raw", &from(told)]).contains("once"));
    kube.run(&[
        "patch",
        "event",
        "told",
        "--type=merge",
        "-p",
        r#"{"count":2}"#,
    ]);
    let watch = format!(
        "/api/v1/namespaces/default/events?watch=1&resourceVersion={told}&timeoutSeconds=1"
    );
    assert!(kube.run(&["get", "--raw", &watch]).contains(r#""count":2"#));
    let statuses = kube.run(&["get", "componentstatuses"]);
    assert!(
        statuses.contains("etcd-0") && statuses.contains("etcd-1"),
        "{statuses}"
    );

    // a backup is of one etcd
    let file = kube.cluster.dir.path().join("backup");
    let kubeconfig = &kube.cluster.kubeconfig;
    let backup = std::process::Command::new(harness::DAVIT)
        .args(["backup", "--kubeconfig"])
        .arg(kubeconfig)
        .arg(&file)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&backup.stderr).into_owned();
    assert!(
        !backup.status.success() && error.contains("snapshot"),
        "{error}"
    );

    // each etcd is needed for its own kinds
    other.kill();
    kube.eventually("readyz to fail", || {
        kube.try_run(&["get", "--raw", "/readyz"]).is_err()
    });
    kube.run(&["get", "configmap", "made"]);
    kube.try_run(&["get", "event", "told"]).unwrap_err();
    other.run();
    kube.eventually("readyz", || {
        kube.try_run(&["get", "--raw", "/readyz"]).is_ok()
    });
    kube.cluster.kill();
    kube.cluster.start_again();
    kube.eventually("the event after a restart", || {
        kube.try_run(&["get", "event", "told"]).is_ok()
    });
}
