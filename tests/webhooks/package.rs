//! Item 183: what the packages of certificate managers and policy engines bring is installed, works, and goes again:
//! definitions, accounts with their roles, a service with its webhooks, and an injector that enters the authority of a
//! certificate made later.

use super::{SOON, hook, kubectls, said};
use crate::harness::{Cluster, eventually, kubectl, kubectl_stdin, output, run};
use crate::webhooks::hook::{allow, patch, review};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tokio::runtime::Runtime;

const PACKAGE: &str = r#"
apiVersion: v1
kind: Namespace
metadata:
  name: warden
  labels: {warden.example.com/ignore: "true"}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: passes.warden.example.com
  annotations: {warden.example.com/inject-ca-from: warden/webhook}
spec:
  group: warden.example.com
  scope: Namespaced
  names: {plural: passes, singular: pass, kind: Pass, categories: [warden]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        required: [spec]
        properties:
          spec:
            type: object
            required: [holder]
            properties:
              holder: {type: string}
              days: {type: integer}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
    additionalPrinterColumns:
    - {name: Holder, type: string, jsonPath: .spec.holder}
    - {name: Days, type: integer, jsonPath: .spec.days}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: injector, namespace: warden}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: warden-injector}
rules:
- apiGroups: [admissionregistration.k8s.io]
  resources: [validatingwebhookconfigurations, mutatingwebhookconfigurations]
  verbs: [get, list, watch, update, patch]
- apiGroups: [apiregistration.k8s.io]
  resources: [apiservices]
  verbs: [get, list, watch, update, patch]
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  verbs: [get, list, watch, update, patch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: warden-injector}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: warden-injector}
subjects: [{kind: ServiceAccount, name: injector, namespace: warden}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: warden-edit
  labels: {rbac.authorization.k8s.io/aggregate-to-edit: "true"}
rules:
- {apiGroups: [warden.example.com], resources: [passes], verbs: ["*"]}
---
apiVersion: v1
kind: Service
metadata: {name: webhook, namespace: warden}
spec:
  type: ClusterIP
  selector: {app: warden}
  ports: [{name: https, port: 443, protocol: TCP, targetPort: https}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: webhook, namespace: warden, labels: {app: warden}}
spec:
  replicas: 1
  selector: {matchLabels: {app: warden}}
  template:
    metadata: {labels: {app: warden}}
    spec:
      serviceAccountName: injector
      securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
      containers:
      - name: webhook
        image: example.test/warden:1
        args: [--secure-port=10250, --dynamic-serving-dns-names=webhook.warden.svc]
        ports: [{name: https, containerPort: 10250, protocol: TCP}]
        livenessProbe: {httpGet: {path: /livez, port: 6080, scheme: HTTP}, initialDelaySeconds: 60}
        env: [{name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata:
  name: warden
  annotations: {warden.example.com/inject-ca-from: warden/webhook}
webhooks:
- name: mutate.warden.example.com
  rules:
  - {apiGroups: [warden.example.com], apiVersions: [v1], operations: [CREATE, UPDATE], resources: ["*/*"], scope: "*"}
  admissionReviewVersions: [v1]
  matchPolicy: Equivalent
  timeoutSeconds: 10
  failurePolicy: Fail
  sideEffects: None
  clientConfig: {service: {name: webhook, namespace: warden, path: /mutate}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata:
  name: warden
  annotations: {warden.example.com/inject-ca-from: warden/webhook}
webhooks:
- name: validate.warden.example.com
  namespaceSelector:
    matchExpressions:
    - {key: warden.example.com/ignore, operator: NotIn, values: ["true"]}
  rules:
  - {apiGroups: [warden.example.com], apiVersions: [v1], operations: [CREATE, UPDATE], resources: ["*/*"], scope: "*"}
  - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps], scope: "*"}
  admissionReviewVersions: [v1]
  matchPolicy: Equivalent
  timeoutSeconds: 10
  failurePolicy: Fail
  sideEffects: None
  clientConfig: {service: {name: webhook, namespace: warden, path: /validate}}
"#;

fn a_pass(holder: &str) -> String {
    format!(
        "apiVersion: warden.example.com/v1\nkind: Pass\nmetadata: {{name: {holder}}}\nspec: {{holder: {holder}}}\n"
    )
}

/// A kubeconfig for the injector's account.
fn injector(c: &Cluster, k: &Path) -> PathBuf {
    let token = kubectl(c, k, ["create", "token", "injector", "-n", "warden"]);
    let config = c.dir.path().join("injector.kubeconfig");
    std::fs::copy(&c.kubeconfig, &config).unwrap();
    let token = format!("--token={}", token.trim());
    for args in [
        ["config", "set-credentials", "injector", token.as_str()],
        ["config", "set-context", "--current", "--user=injector"],
    ] {
        run(c.kubectl(k).env("KUBECONFIG", &config).args(args));
    }
    config
}

#[test]
fn item_183_a_package_with_webhooks_is_installed_works_and_goes() {
    for k in kubectls() {
        let runtime = Runtime::new().unwrap();
        let server = hook(&runtime, |r: &Value| {
            let spec = &r["request"]["object"]["spec"];
            let mutating = r["request"]["resource"]["resource"] == "passes"
                && spec["days"].is_null()
                && spec["holder"].is_string();
            if mutating {
                return patch(
                    r,
                    &json!([{"op": "add", "path": "/spec/days", "value": 30}]),
                );
            }
            if spec["holder"] == "mallory" {
                let status =
                    json!({"code": 422, "reason": "Invalid", "message": "no pass for mallory"});
                return review(r, json!({"allowed": false, "status": status}));
            }
            allow(r)
        });
        let c = Cluster::up(&["--no-node", "--allow-loopback-endpoints"]);
        kubectl_stdin(&c, &k, &["apply", "-f", "-"], PACKAGE);
        let again = kubectl_stdin(&c, &k, &["apply", "-f", "-"], PACKAGE);
        assert!(
            again.lines().all(|line| line.ends_with("unchanged")),
            "{again}"
        );
        let crd = "crd/passes.warden.example.com";
        kubectl(
            &c,
            &k,
            ["wait", "--for=condition=Established", crd, "--timeout=10s"],
        );
        let manifest = c.dir.path().join("pass.yaml");
        std::fs::write(&manifest, a_pass("alice")).unwrap();
        let create = || {
            let mut command = c.kubectl(&k);
            command.args(["apply", "-f"]).arg(&manifest);
            said(&mut command)
        };
        // Before its server runs.
        let told = create();
        assert!(
            told.contains("no endpoints available for service \"webhook\""),
            "{told}"
        );
        let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "FQDN",
            "metadata": {"name": "webhook-1", "namespace": "warden",
                "labels": {"kubernetes.io/service-name": "webhook"}},
            "endpoints": [{"addresses": ["localhost"], "conditions": {"ready": true}}],
            "ports": [{"name": "https", "port": server.address.port()}]});
        kubectl_stdin(&c, &k, &["create", "-f", "-"], &slice.to_string());
        // Before its authority is known.
        let told = create();
        assert!(told.contains("failed to verify certificate"), "{told}");
        let config = injector(&c, &k);
        let as_injector = |args: &[&str]| {
            let mut command = c.kubectl(&k);
            command.env("KUBECONFIG", &config).args(args);
            output(&mut command)
        };
        let bundle = json!([{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": server.bundle()}]);
        for kind in [
            "mutatingwebhookconfiguration",
            "validatingwebhookconfiguration",
        ] {
            let patched = as_injector(&[
                "patch",
                kind,
                "warden",
                "--type=json",
                "-p",
                &bundle.to_string(),
            ]);
            assert!(patched.status.success(), "{patched:?}");
        }
        let refused = as_injector(&["delete", "pods", "--all"]);
        assert!(String::from_utf8_lossy(&refused.stderr).contains("forbidden"));
        eventually("the webhooks answer", SOON, || create().contains("created"));
        assert_eq!(
            kubectl(&c, &k, ["get", "passes"]),
            "NAME    HOLDER   DAYS\nalice   alice    30\n"
        );
        // Applied again, what the injector entered stays.
        kubectl_stdin(&c, &k, &["apply", "-f", "-"], PACKAGE);
        std::fs::write(&manifest, a_pass("mallory")).unwrap();
        let told = create();
        assert!(
            told.contains(
                "admission webhook \"validate.warden.example.com\" denied the request: no pass for mallory"
            ),
            "{told}"
        );
        // Its roles are part of `edit` now.
        kubectl(
            &c,
            &k,
            [
                "create",
                "rolebinding",
                "bob",
                "--clusterrole=edit",
                "--user=bob",
            ],
        );
        eventually("edit has the package's rules", SOON, || {
            let args = [
                "auth",
                "can-i",
                "create",
                "passes.warden.example.com",
                "--as=bob",
            ];
            said(c.kubectl(&k).args(args)).trim() == "yes"
        });
        let file = c.dir.path().join("package.yaml");
        std::fs::write(&file, PACKAGE).unwrap();
        let file = file.display().to_string();
        kubectl(
            &c,
            &k,
            [
                "delete",
                "-f",
                &file,
                "--ignore-not-found",
                "--timeout=120s",
            ],
        );
        eventually("nothing of it is left", SOON, || {
            let kinds =
                "namespaces,crds,mutatingwebhookconfigurations,validatingwebhookconfigurations";
            let left = kubectl(&c, &k, ["get", kinds, "-o", "name"]);
            !left.contains("warden")
        });
        kubectl(&c, &k, ["create", "cm", "after", "--from-literal=a=b"]);
    }
}
