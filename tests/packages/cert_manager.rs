//! Item 183: cert-manager, installed from its own chart. Its programs run beside the cluster as the chart's accounts.

use crate::harness::{Cluster, any_kubectl, eventually, kubectl, kubectl_stdin, output, run};
use crate::packages::helm::{helm_binary, helm_command};
use crate::packages::programs::{Program, account, backend, free_port, module, package};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

const NAMESPACE: &str = "cert-manager";
const SOON: Duration = Duration::from_secs(90);

const SELF_SIGNED: &str = "
apiVersion: cert-manager.io/v1
kind: Issuer
metadata: {name: self}
spec: {selfSigned: {}}
";

const CERTIFICATES: &str = "
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {name: authority}
spec:
  isCA: true
  commonName: authority
  secretName: authority
  privateKey: {algorithm: ECDSA, size: 256}
  issuerRef: {name: self}
---
apiVersion: cert-manager.io/v1
kind: Issuer
metadata: {name: authority}
spec: {ca: {secretName: authority}}
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {name: leaf}
spec:
  dnsNames: [leaf.example.com]
  secretName: leaf
  privateKey: {algorithm: ECDSA, size: 256, rotationPolicy: Always}
  issuerRef: {name: authority}
";

fn certificate(text: &str) -> String {
    format!(
        "apiVersion: cert-manager.io/v1\nkind: Certificate\nmetadata: {{name: wrong}}\nspec: {{secretName: wrong, issuerRef: {{name: self}}{text}}}\n"
    )
}

/// What kubectl says to a manifest that may be refused.
fn applied(c: &Cluster, k: &Path, manifest: &str) -> (bool, String) {
    let file = c.dir.path().join("manifest.yaml");
    std::fs::write(&file, manifest).unwrap();
    let out = output(c.kubectl(k).args(["apply", "-f"]).arg(&file));
    let text = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    (out.status.success(), text.into_owned())
}

#[test]
fn item_183_cert_manager_signs_certificates_and_its_webhook_answers() {
    let (Some(program), Some(helm), Some(k)) = (
        package("cert-manager", ".", "cert-manager"),
        helm_binary(),
        any_kubectl(),
    ) else {
        return;
    };
    let source = module("cert-manager", "github.com/cert-manager/cert-manager").unwrap();
    let c = Cluster::up(&["--no-node", "--allow-loopback-endpoints"]);
    let chart = source.join("deploy/charts/cert-manager");
    run(helm_command(&helm, &c)
        .args(["install", "cert-manager"])
        .arg(&chart)
        .args(["--namespace", NAMESPACE, "--create-namespace"])
        .args(["--set", "crds.enabled=true,startupapicheck.enabled=false"]));
    let crd = "crd/certificates.cert-manager.io";
    let established = "--for=condition=Established";
    kubectl(&c, &k, ["wait", established, crd, "--timeout=20s"]);
    let (taken, told) = applied(&c, &k, SELF_SIGNED);
    assert!(!taken, "{told}");
    assert!(
        told.contains("failed calling webhook \"webhook.cert-manager.io\"")
            && told.contains("no endpoints available for service \"cert-manager-webhook\""),
        "{told}"
    );

    let port = free_port();
    let start = |part: &str, name: &str, more: &[String]| {
        let config = account(&c, &k, NAMESPACE, name);
        let mut args = vec![
            part.to_owned(),
            format!("--kubeconfig={}", config.display()),
        ];
        args.extend_from_slice(more);
        Program::start(&program, &args, &c.dir.path().join(format!("{part}.log")))
    };
    let _controllers = start("controller", "cert-manager", &[]);
    let _injector = start("cainjector", "cert-manager-cainjector", &[]);
    let _webhook = start(
        "webhook",
        "cert-manager-webhook",
        &[format!("--port={port}")],
    );
    backend(&c, &k, NAMESPACE, "cert-manager-webhook", "https", port);
    eventually(
        "the webhook answers by its injected authority",
        SOON,
        || applied(&c, &k, SELF_SIGNED).0,
    );
    let ready = "--for=condition=Ready";
    kubectl(&c, &k, ["wait", ready, "issuer/self", "--timeout=60s"]);
    kubectl_stdin(&c, &k, &["apply", "-f", "-"], CERTIFICATES);
    for name in [
        "certificate/authority",
        "issuer/authority",
        "certificate/leaf",
    ] {
        kubectl(&c, &k, ["wait", ready, name, "--timeout=90s"]);
    }
    let get = |args: &[&str]| kubectl(&c, &k, [&["get"], args].concat());
    let keys = get(&[
        "secret",
        "leaf",
        "-o",
        "jsonpath={.type} {.data['ca\\.crt']}",
    ]);
    let authority = get(&["secret", "authority", "-o", "jsonpath={.data['tls\\.crt']}"]);
    assert_eq!(keys, format!("kubernetes.io/tls {authority}"));
    // the mutating webhook enters who asks
    let requests: Value =
        serde_json::from_str(&get(&["certificaterequests", "-o", "json"])).unwrap();
    let request = &requests["items"][0];
    let asker = "system:serviceaccount:cert-manager:cert-manager";
    assert_eq!(request["spec"]["username"], asker, "{requests}");
    let listed = get(&["certificates"]);
    assert!(
        listed.starts_with("NAME        READY   SECRET      AGE\n"),
        "{listed}"
    );
    refusals(&c, &k, request["metadata"]["name"].as_str().unwrap());
    // a key that goes is made again
    kubectl(&c, &k, ["delete", "secret", "leaf"]);
    eventually("the certificate is signed again", SOON, || {
        output(c.kubectl(&k).args(["get", "secret", "leaf"]))
            .status
            .success()
    });
    let lease = "cert-manager-cainjector-leader-election";
    get(&["-n", "kube-system", "lease", lease]);
    // Go's HTTP/2 client tells of what breaks its rules, such as a body that follows HEAD
    let log = std::fs::read_to_string(c.dir.path().join("controller.log")).unwrap();
    assert!(!log.contains("protocol error"), "{log}");
}

/// What the validating webhook says.
fn refusals(c: &Cluster, k: &Path, request: &str) {
    let (taken, told) = applied(c, k, &certificate(""));
    assert!(!taken, "{told}");
    assert!(
        told.contains(
            "admission webhook \"webhook.cert-manager.io\" denied the request: spec: Invalid value"
        ),
        "{told}"
    );
    let (taken, told) = applied(c, k, &certificate(", commonName: a, duration: 5m"));
    assert!(!taken && told.contains("spec.duration"), "{told}");
    let (taken, told) = applied(c, k, &certificate(", commonName: a, isCA: perhaps"));
    assert!(!taken && told.contains("isCA"), "{told}");
    let patch = r#"{"spec":{"username":"mallory"}}"#;
    let patch = [
        "patch",
        "certificaterequest",
        request,
        "--type=merge",
        "-p",
        patch,
    ];
    let out = output(c.kubectl(k).args(patch));
    let told = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success(), "the identity was changed");
    assert!(told.contains("webhook.cert-manager.io"), "{told}");
}
