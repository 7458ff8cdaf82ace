//! Volumes and environment.

use crate::pods::{Kube, pod};
use base64::Engine;
use std::path::Path;
use std::time::{Duration, Instant};

const OBJECTS: &str = "apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {color: blue, size: large}
---
apiVersion: v1
kind: Secret
metadata: {name: keys}
stringData: {password: sesame}
---
";

const READER: &str = "apiVersion: v1
kind: Pod
metadata: {name: reader, labels: {app: reader}, annotations: {note: hello}}
spec:
  terminationGracePeriodSeconds: 1
  volumes:
  - {name: shared, emptyDir: {}}
  - {name: memory, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
  - {name: heap, emptyDir: {medium: Memory}}
  - {name: settings, configMap: {name: settings}}
  - {name: keys, secret: {secretName: keys, defaultMode: 0400, items: [{key: password, path: deep/pass}]}}
  - {name: host, hostPath: {path: HOST, type: DirectoryOrCreate}}
  - name: about
    downwardAPI:
      items:
      - {path: labels, fieldRef: {fieldPath: metadata.labels}}
      - {path: memory, resourceFieldRef: {containerName: main, resource: limits.memory, divisor: 1Mi}}
  - name: token
    projected:
      sources:
      - serviceAccountToken: {path: token, audience: vault, expirationSeconds: 3600}
      - configMap: {name: settings, items: [{key: size, path: size}]}
  containers:
  - name: main
    image: davit.local/host
    command: [/bin/sh, -c, 'echo written >/shared/file; exec sleep 1000']
    resources: {limits: {memory: 64Mi, cpu: 500m}}
    envFrom:
    - configMapRef: {name: settings}
    - {prefix: SECRET_, secretRef: {name: keys}}
    env:
    - {name: COLOR, valueFrom: {configMapKeyRef: {name: settings, key: color}}}
    - {name: PASSWORD, valueFrom: {secretKeyRef: {name: keys, key: password}}}
    - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: WHERE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    - {name: NOTE, valueFrom: {fieldRef: {fieldPath: \"metadata.annotations['note']\"}}}
    - {name: CPU, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1m}}}
    - {name: BOTH, value: $(POD) is $(COLOR)}
    volumeMounts:
    - {name: shared, mountPath: /shared}
    - {name: memory, mountPath: /memory}
    - {name: memory, mountPath: /part, subPath: new/part}
    - {name: heap, mountPath: /heap}
    - {name: settings, mountPath: /settings}
    - {name: shared, mountPath: /settings/more.d}
    - {name: settings, mountPath: /single/color, subPath: color}
    - {name: keys, mountPath: /keys, readOnly: true}
    - {name: host, mountPath: /host}
    - {name: about, mountPath: /about}
    - {name: token, mountPath: /token}
    - {name: about, mountPath: /token/about/inner}
  - name: other
    image: davit.local/host
    command: [/bin/sh, -c, 'while [ ! -e /shared/file ]; do sleep 0.1; done; cat /shared/file; exec sleep 1000']
    resources: {limits: {memory: 16Mi}}
    volumeMounts: [{name: shared, mountPath: /shared, readOnly: true}]
";

pub(crate) fn scenario(kube: &Kube) {
    kube.create(OBJECTS);
    let host = kube.dir().join("made/by/kubelet");
    kube.create(&READER.replace("HOST", &host.display().to_string()));
    kube.create(&pod(
        "unmet",
        "Always",
        "true",
        "envFrom: [{configMapRef: {name: missing}}]",
    ));
    kube.wait_ready("reader");
    files(kube, &host);
    environment(kube);
    service_account(kube);
    changed_pod(kube);
    unmet(kube);
}

fn files(kube: &Kube, host: &Path) {
    kube.eventually("the shared file", || {
        kube.run(["logs", "reader", "-c", "other"]) == "written\n"
    });
    // What is in memory has no more room than the pod may have of it.
    let sizes = kube.exec(
        "reader",
        "df -k /memory /heap | tail -n 2 | tr -s \" \" | cut -d\" \" -f2",
    );
    assert_eq!(sizes, "1024\n81920\n");
    // Nor are one user's files there another's to remove, also in a part of it that was made for the pod.
    let modes = kube.exec("reader", "stat -c %a /shared /memory /part");
    assert_eq!(modes, "777\n1777\n1777\n");
    let denied = kube
        .try_run(["exec", "reader", "-c", "other", "--", "touch", "/shared/x"])
        .unwrap_err();
    assert!(denied.contains("Read-only file system"), "{denied}");
    assert_eq!(
        kube.exec("reader", "cat /settings/color /settings/size /single/color"),
        "bluelargeblue"
    );
    assert_eq!(
        kube.exec(
            "reader",
            "cat /keys/deep/pass; stat -Lc ' %a' /keys/deep/pass"
        ),
        "sesame 400\n"
    );
    assert!(
        kube.try_run(["exec", "reader", "-c", "main", "--", "touch", "/settings/x"])
            .is_err(),
        "configMaps are read-only"
    );
    kube.exec("reader", "echo from inside >/host/file");
    assert_eq!(
        std::fs::read_to_string(host.join("file")).unwrap(),
        "from inside\n"
    );
    assert_eq!(
        kube.exec("reader", "cat /about/labels; echo; cat /about/memory"),
        "app=\"reader\"\n64"
    );
    assert_eq!(
        kube.exec(
            "reader",
            "cat /settings/more.d/file /token/about/inner/memory"
        ),
        "written\n64",
        "mounts inside volumes of files"
    );
    assert_eq!(kube.exec("reader", "stat -fc %T /memory").trim(), "tmpfs");
    assert_eq!(kube.exec("reader", "cat /token/size"), "large");
    assert_eq!(
        kube.exec("reader", "tail -1 /etc/hosts")
            .split_whitespace()
            .last(),
        Some("reader")
    );
    assert_eq!(kube.exec("reader", "hostname"), "reader\n");
}

fn environment(kube: &Kube) {
    let env = kube.exec("reader", "env");
    let expected = [
        "color=blue",
        "size=large",
        "SECRET_password=sesame",
        "COLOR=blue",
        "PASSWORD=sesame",
        "POD=reader",
        "WHERE=node-1",
        "NOTE=hello",
        "CPU=500",
        "BOTH=reader is blue",
        "KUBERNETES_SERVICE_PORT=443",
    ];
    for line in expected {
        assert!(env.lines().any(|l| l == line), "{line} is missing:\n{env}");
    }
}

/// A pod that changes has its volumes brought up to date at once, not at the next minute: what it shows of itself, and of
/// the objects that have changed meanwhile.
/// <https://kubernetes.io/docs/tasks/configure-pod-container/configure-pod-configmap/#mounted-configmaps-are-updated-automatically>
fn changed_pod(kube: &Kube) {
    let shows = |what: &str, file: &str, wanted: &str| {
        let begun = Instant::now();
        kube.eventually(what, || {
            kube.exec("reader", &format!("cat {file}")) == wanted
        });
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(15), "{what} took {took:?}");
    };
    // Whatever brought the volumes up to date before is over.
    std::thread::sleep(Duration::from_secs(2));
    kube.run(["label", "pod", "reader", "stage=two"]);
    shows(
        "the new label in the pod's file",
        "/about/labels",
        "app=\"reader\"\nstage=\"two\"",
    );
    let patch = r#"{"data":{"color":"green"}}"#;
    kube.run(["patch", "configmap", "settings", "-p", patch]);
    kube.run(["annotate", "pod", "reader", "look=again"]);
    shows("the new color", "/settings/color", "green");
}

fn claims(token: &str) -> serde_json::Value {
    let body = token.trim().split('.').nth(1).unwrap();
    let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD
        .decode(body)
        .unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

fn service_account(kube: &Kube) {
    let mounted = "/var/run/secrets/kubernetes.io/serviceaccount";
    assert_eq!(
        kube.exec("reader", &format!("cat {mounted}/namespace")),
        "default"
    );
    assert!(
        kube.exec("reader", &format!("cat {mounted}/ca.crt"))
            .starts_with("-----BEGIN CERTIFICATE-----")
    );
    let token = kube.exec("reader", &format!("cat {mounted}/token"));
    let claims_of_pod = claims(&token);
    assert_eq!(
        claims_of_pod["sub"],
        "system:serviceaccount:default:default"
    );
    assert_eq!(claims_of_pod["kubernetes.io"]["pod"]["name"], "reader");
    let review = |token: &str| {
        let manifest = format!(
            "apiVersion: authentication.k8s.io/v1\nkind: TokenReview\nspec: {{token: {}}}\n",
            token.trim()
        );
        let out = kube.pipe(&["create", "-o", "json", "-f", "-"], manifest.as_bytes());
        assert!(out.status.success(), "{out:?}");
        serde_json::from_slice::<serde_json::Value>(&out.stdout).unwrap()["status"].clone()
    };
    let status = review(&token);
    assert_eq!(status["authenticated"], true, "{status}");
    assert_eq!(
        status["user"]["username"],
        "system:serviceaccount:default:default"
    );
    // A call with the token is the service account's, which may not do much.
    let who = [
        "--kubeconfig=/dev/null",
        "--server",
        &kube.cluster.server,
        "--insecure-skip-tls-verify",
        "--token",
        token.trim(),
    ];
    let version = kube.run(who.iter().chain(&["get", "--raw", "/version"]));
    assert!(version.contains("gitVersion"), "{version}");
    // A token for others is not one for the API server.
    let other = kube.exec("reader", "cat /token/token");
    assert_eq!(claims(&other)["aud"], serde_json::json!(["vault"]));
    assert_ne!(review(&other)["authenticated"], true);
}

fn unmet(kube: &Kube) {
    kube.wait_status("unmet", "CreateContainerConfigError");
    let message = kube.field(
        "unmet",
        ".status.containerStatuses[0].state.waiting.message",
    );
    assert_eq!(message, "configmap \"missing\" not found");
    kube.run(["create", "configmap", "missing", "--from-literal=a=b"]);
    kube.eventually("a start once the config map is there", || {
        kube.field("unmet", ".status.containerStatuses[0].restartCount")
            .parse::<u32>()
            .is_ok_and(|n| n >= 1)
            || kube.field(
                "unmet",
                ".status.containerStatuses[0].lastState.terminated.reason",
            ) == "Completed"
    });
}
