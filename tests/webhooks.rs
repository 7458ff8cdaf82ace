//! Webhooks of a whole cluster as an unmodified kubectl and the audit log show them: what they may change and refuse,
//! and that one that is down, slow, lying or recursive harms only those who asked for it.

#[path = "../crates/apiserver/tests/api/hook.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with other tests")]
mod hook;
mod package;

use crate::harness;
use harness::{Cluster, eventually, kubectl, kubectl_binary, kubectl_stdin, output};
use hook::{Hook, Said, allow, patch, review};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

const SOON: Duration = Duration::from_secs(30);

fn kubectls() -> impl Iterator<Item = PathBuf> {
    ["1.27", "1.36"]
        .into_iter()
        .filter_map(kubectl_binary)
        .inspect(|k| println!("{}", k.display()))
}

/// What kubectl wrote to standard output and standard error, whatever came of it.
fn said(command: &mut Command) -> String {
    let out = output(command);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}{}", text(&out.stdout), text(&out.stderr))
}

/// What kubectl said to a manifest that was refused.
fn refused(c: &Cluster, k: &Path, args: &[&str], manifest: &str) -> String {
    let file = c.dir.path().join("refused.yaml");
    std::fs::write(&file, manifest).unwrap();
    let out = output(c.kubectl(k).args(args).arg("-f").arg(&file));
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success(), "{args:?} was not refused: {text}");
    text
}

fn hook<S: Into<Said>>(
    runtime: &Runtime,
    says: impl Fn(&Value) -> S + Send + Sync + 'static,
) -> Hook {
    runtime.block_on(Hook::new(&["hook.hooks.svc", "webhook.warden.svc"], says))
}

/// A webhook for config maps of namespaces that want it.
fn webhook(hook: &Hook, name: &str) -> Value {
    json!({
        "name": name, "clientConfig": hook.by_url(), "sideEffects": "None",
        "admissionReviewVersions": ["v1"], "timeoutSeconds": 5,
        "namespaceSelector": {"matchLabels": {"hooks": "on"}},
        "rules": [{"operations": ["CREATE", "UPDATE", "DELETE"], "apiGroups": [""], "apiVersions": ["v1"],
            "resources": ["configmaps"]}],
    })
}

fn configure(c: &Cluster, k: &Path, kind: &str, name: &str, webhooks: &[Value]) {
    let manifest = json!({"apiVersion": "admissionregistration.k8s.io/v1",
        "kind": format!("{kind}WebhookConfiguration"), "metadata": {"name": name}, "webhooks": webhooks});
    kubectl_stdin(c, k, &["apply", "-f", "-"], &manifest.to_string());
}

/// A namespace whose config maps are put to the webhooks.
fn hooked(c: &Cluster, k: &Path) {
    kubectl(c, k, ["create", "namespace", "hooked"]);
    kubectl(c, k, ["label", "namespace", "hooked", "hooks=on"]);
}

fn create(c: &Cluster, k: &Path, name: &str) -> Command {
    let mut command = c.kubectl(k);
    let args = ["-n", "hooked", "create", "cm", name, "--from-literal=a=b"];
    command.args(args);
    command
}

/// Writes a policy that records everything about config maps; the flags that use it.
fn audit_policy(dir: &Path) -> String {
    let path = dir.join("policy.yaml");
    let policy = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Request
  resources: [{group: '', resources: [configmaps]}]
";
    std::fs::write(&path, policy).unwrap();
    format!("--audit-policy-file={}", path.display())
}

/// A kubeconfig for a server that is a hook.
fn kubeconfig(dir: &Path, hook: &Hook, path: &str) -> PathBuf {
    std::fs::write(dir.join("hook.pem"), &hook.pem).unwrap();
    let text = format!(
        "apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: 'https://{}{path}', certificate-authority: hook.pem}}}}]
users: [{{name: u, user: {{}}}}]
contexts: [{{name: k, context: {{cluster: c, user: u}}}}]
current-context: k
",
        hook.address
    );
    let file = dir.join("hook.kubeconfig");
    std::fs::write(&file, text).unwrap();
    file
}

/// Adds an entry to the data of a config map; of one that is deleted there is nothing to change.
fn adds(request: &Value, key: &str, value: &str) -> Value {
    if request["request"]["object"].is_null() {
        return allow(request);
    }
    let path = format!("/data/{key}");
    patch(
        request,
        &json!([{"op": "add", "path": path, "value": value}]),
    )
}

#[test]
fn items_170_171_174_webhooks_change_refuse_warn_and_are_recorded() {
    for k in kubectls() {
        let runtime = Runtime::new().unwrap();
        let files = harness::temp_dir();
        let log = files.path().join("audit.log");
        let c = Cluster::up(&[
            "--no-node",
            &audit_policy(files.path()),
            &format!("--audit-log-path={}", log.display()),
        ]);
        hooked(&c, &k);
        let first = hook(&runtime, |r| adds(r, "first", "1"));
        let second = hook(&runtime, |r| adds(r, "second", "2"));
        let judge = hook(&runtime, |r| {
            let request = &r["request"];
            if request["name"] == "bad" {
                let status = json!({"code": 403, "reason": "Forbidden", "message": "not today"});
                return review(r, json!({"allowed": false, "status": status}));
            }
            let annotations = json!({"saw": request["object"]["data"].to_string()});
            review(
                r,
                json!({"allowed": true, "warnings": ["look out"], "auditAnnotations": annotations}),
            )
        });
        let mut again = webhook(&first, "first.example.com");
        again["reinvocationPolicy"] = json!("IfNeeded");
        configure(&c, &k, "Mutating", "a-first", &[again]);
        configure(
            &c,
            &k,
            "Mutating",
            "b-second",
            &[webhook(&second, "second.example.com")],
        );
        let mut chosen = webhook(&judge, "judge.example.com");
        chosen["matchConditions"] =
            json!([{"name": "not-ours", "expression": "!request.name.startsWith('free')"}]);
        configure(&c, &k, "Validating", "judge", &[chosen]);

        let told = said(&mut create(&c, &k, "good"));
        assert!(told.contains("Warning: look out"), "{told}");
        assert!(told.contains("configmap/good created"), "{told}");
        let data = "jsonpath={.data}";
        let stored = kubectl(&c, &k, ["-n", "hooked", "get", "cm", "good", "-o", data]);
        assert_eq!(stored, r#"{"a":"b","first":"1","second":"2"}"#);
        assert_eq!(
            first.heard().len(),
            2,
            "once more after the second's change"
        );
        assert_eq!(second.heard().len(), 1);

        let told = said(&mut create(&c, &k, "bad"));
        assert_eq!(
            told.trim(),
            "error: failed to create configmap: admission webhook \"judge.example.com\" denied the request: not today"
        );
        let told = said(&mut create(&c, &k, "free"));
        assert!(!told.contains("Warning"), "{told}");
        let before = judge.heard().len();
        kubectl(&c, &k, ["create", "cm", "elsewhere", "--from-literal=a=b"]);
        assert_eq!(judge.heard().len(), before, "another namespace");

        kubectl(&c, &k, ["-n", "hooked", "delete", "cm", "good"]);
        let asked = judge.heard().pop().unwrap();
        assert_eq!(asked["operation"], "DELETE");
        assert_eq!(asked["oldObject"]["data"]["second"], "2");

        eventually("the audit log has it", SOON, || {
            let annotations = annotations_of(&log, "create", "good");
            annotations["judge.example.com/saw"] == r#"{"a":"b","first":"1","second":"2"}"#
        });
        let recorded = annotations_of(&log, "create", "good");
        let mutated = |key: &str| {
            let text = recorded[format!("mutation.webhook.admission.k8s.io/{key}")].as_str();
            serde_json::from_str::<Value>(text.unwrap()).unwrap()
        };
        assert_eq!(
            mutated("round_0_index_1"),
            json!({"configuration": "b-second", "mutated": true, "webhook": "second.example.com"})
        );
        assert_eq!(mutated("round_1_index_0")["mutated"], false);
    }
}

/// The annotations of the recorded request, null if it has not been recorded.
fn annotations_of(log: &Path, verb: &str, name: &str) -> Value {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .find(|event| event["verb"] == verb && event["objectRef"]["name"] == name)
        .map_or(Value::Null, |event| event["annotations"].clone())
}

/// What a definition takes with it is nobody's request: as with kube-apiserver, a webhook that went before (or that its program
/// configured itself, so that no manifest removes it) does not keep the definition.
#[test]
fn a_definition_goes_without_its_webhook() {
    for k in kubectls() {
        let runtime = Runtime::new().unwrap();
        let c = Cluster::up(&["--no-node"]);
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "queues.left.example"},
            "spec": {"group": "left.example", "scope": "Cluster", "names": {"plural": "queues", "kind": "Queue"},
                "versions": [{"name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": {"type": "object"}}}]},
        });
        kubectl_stdin(&c, &k, &["apply", "-f", "-"], &definition.to_string());
        let queue =
            json!({"apiVersion": "left.example/v1", "kind": "Queue", "metadata": {"name": "root"}});
        eventually("the kind is served", SOON, || {
            let mut create = c.kubectl(&k);
            let file = c.dir.path().join("queue.json");
            std::fs::write(&file, queue.to_string()).unwrap();
            output(create.args(["apply", "-f"]).arg(&file))
                .status
                .success()
        });
        let down = hook(&runtime, allow);
        let mut config = webhook(&down, "down.example.com");
        drop(down);
        config["namespaceSelector"] = json!({});
        config["rules"] = json!([{"operations": ["DELETE"], "apiGroups": ["left.example"], "apiVersions": ["*"],
            "resources": ["queues"]}]);
        configure(&c, &k, "Validating", "down", std::slice::from_ref(&config));
        configure(&c, &k, "Mutating", "down", &[config]);
        // One's own request is refused.
        eventually("the webhook is asked", SOON, || {
            said(
                c.kubectl(&k)
                    .args(["delete", "queue", "root", "--dry-run=server"]),
            )
            .contains("failed calling webhook")
        });
        let delete = ["delete", "crd", "queues.left.example", "--timeout=20s"];
        kubectl(&c, &k, delete);
    }
}

#[test]
fn item_172_a_webhook_that_is_down_or_slow_is_contained() {
    for k in kubectls() {
        let runtime = Runtime::new().unwrap();
        let c = Cluster::up(&["--no-node"]);
        hooked(&c, &k);
        let down = hook(&runtime, allow);
        let config = webhook(&down, "down.example.com");
        let address = down.address;
        drop(down);
        configure(&c, &k, "Validating", "down", std::slice::from_ref(&config));
        let told = said(&mut create(&c, &k, "x"));
        let why = format!(
            "error: failed to create configmap: Internal error occurred: failed calling webhook \"down.example.com\": \
             failed to call webhook: Post \"https://{address}/hook?timeout=5s\": dial tcp {address}: connect: connection refused"
        );
        assert_eq!(told.trim(), why);
        // Nobody else is harmed.
        kubectl(&c, &k, ["create", "cm", "x", "--from-literal=a=b"]);
        kubectl(&c, &k, ["-n", "hooked", "create", "serviceaccount", "x"]);
        let mut open = config;
        open["failurePolicy"] = json!("Ignore");
        configure(&c, &k, "Validating", "down", &[open]);
        harness::run(&mut create(&c, &k, "x"));
        let metrics = kubectl(&c, &k, ["get", "--raw", "/metrics"]);
        let counted = "apiserver_admission_webhook_fail_open_count{name=\"down.example.com\",type=\"validating\"} 1";
        assert!(metrics.contains(counted), "the open failure is counted");
        kubectl(&c, &k, ["delete", "validatingwebhookconfiguration", "down"]);

        let slow = hook(&runtime, |r| Said {
            after: Duration::from_secs(60),
            ..allow(r).into()
        });
        let mut config = webhook(&slow, "slow.example.com");
        config["timeoutSeconds"] = json!(1);
        configure(&c, &k, "Mutating", "slow", std::slice::from_ref(&config));
        let began = Instant::now();
        let told = said(&mut create(&c, &k, "y"));
        assert!(told.contains("context deadline exceeded"), "{told}");
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "{:?}",
            began.elapsed()
        );
        // Many writers that wait for it hold up nobody else.
        let waiting: Vec<_> = (0..8)
            .map(|n| {
                let mut command = create(&c, &k, &format!("y{n}"));
                command.stdout(Stdio::null()).stderr(Stdio::null());
                command.spawn().unwrap()
            })
            .collect();
        kubectl(&c, &k, ["create", "cm", "meanwhile", "--from-literal=a=b"]);
        for mut child in waiting {
            assert!(!child.wait().unwrap().success());
        }
        config["failurePolicy"] = json!("Ignore");
        configure(&c, &k, "Mutating", "slow", &[config]);
        harness::run(&mut create(&c, &k, "y"));
    }
}

#[test]
fn item_172_a_webhook_that_lies_is_not_believed() {
    let Some(k) = kubectls().last() else { return };
    let runtime = Runtime::new().unwrap();
    let c = Cluster::up(&["--no-node"]);
    hooked(&c, &k);
    let text = |code: u16, body: String| Said {
        code,
        body,
        after: Duration::ZERO,
    };
    let liar = hook(&runtime, move |r| {
        match r["request"]["name"].as_str().unwrap_or_default() {
            "another" => {
                let mut answer = allow(r);
                answer["response"]["uid"] = json!("someone-else");
                answer.into()
            }
            "version" => {
                let mut answer = allow(r);
                answer["apiVersion"] = json!("admission.k8s.io/v2");
                answer.into()
            }
            "page" => text(200, "<html>It works!</html>".to_owned()),
            "empty" => text(200, String::new()),
            "broken" => text(503, "no".to_owned()),
            "flood" => text(200, format!("{{\"x\":\"{}\"}}", "x".repeat(64 << 20))),
            "half" => text(200, "{\"kind\":\"AdmissionReview\",".to_owned()),
            "patch" => adds(r, "x", "y").into(),
            "200" => review(r, json!({"allowed": false, "status": {"code": 200}})).into(),
            _ => allow(r).into(),
        }
    });
    configure(
        &c,
        &k,
        "Validating",
        "liar",
        &[webhook(&liar, "liar.example.com")],
    );
    for (name, why) in [
        ("another", "expected response.uid="),
        (
            "version",
            "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got admission.k8s.io/v2, Kind=AdmissionReview",
        ),
        ("page", "failed to call webhook: "),
        ("empty", "failed to call webhook: "),
        ("broken", "failed to call webhook: "),
        ("flood", "is longer than"),
        ("half", "failed to call webhook: "),
        ("patch", "validating webhook may not return response.patch"),
    ] {
        let told = said(&mut create(&c, &k, name));
        assert!(told.contains(why), "{name}: {told}");
        assert!(
            told.contains("failed calling webhook \"liar.example.com\": "),
            "{name}: {told}"
        );
    }
    let told = said(&mut create(&c, &k, "200"));
    assert!(
        told.contains("denied the request without explanation"),
        "{told}"
    );
    harness::run(&mut create(&c, &k, "honest"));
    // A patch that cannot be applied, one that makes an invalid object, one that is none.
    kubectl(&c, &k, ["delete", "validatingwebhookconfiguration", "liar"]);
    let butcher = hook(&runtime, |r| {
        let operations = match r["request"]["name"].as_str().unwrap_or_default() {
            "missing" => json!([{"op": "remove", "path": "/data/none"}]),
            "invalid" => json!([{"op": "add", "path": "/data", "value": 7}]),
            "names" => json!([{"op": "add", "path": "/data/no~1name", "value": "x"}]),
            "nothing" => json!(null),
            _ => json!({"op": "none"}),
        };
        patch(r, &operations)
    });
    configure(
        &c,
        &k,
        "Mutating",
        "butcher",
        &[webhook(&butcher, "butcher.example.com")],
    );
    for name in ["missing", "invalid", "names", "no-list"] {
        let told = said(&mut create(&c, &k, name));
        assert!(
            told.contains("failed to create configmap"),
            "{name}: {told}"
        );
    }
    // Knative's webhooks, tekton's for one, answer so when there is nothing to change.
    harness::run(&mut create(&c, &k, "nothing"));
    let told = said(&mut create(&c, &k, "no-list"));
    let why = "failed calling webhook \"butcher.example.com\": received undecodable patch in webhook response: ";
    assert!(told.contains(why), "{told}");
    // Such an answer is no better than none: the policy decides.
    let mut lenient = webhook(&butcher, "butcher.example.com");
    lenient["failurePolicy"] = json!("Ignore");
    configure(&c, &k, "Mutating", "butcher", &[lenient]);
    eventually("the policy of the webhook", Duration::from_secs(30), || {
        output(&mut create(&c, &k, "let-pass")).status.success()
    });
    let told = said(&mut create(&c, &k, "missing"));
    assert!(told.contains("failed to create configmap"), "{told}");
    let left = kubectl(&c, &k, ["-n", "hooked", "get", "cm", "-o", "name"]);
    let left: Vec<&str> = left
        .lines()
        .filter(|line| !line.ends_with("kube-root-ca.crt"))
        .collect();
    assert_eq!(
        left,
        [
            "configmap/honest",
            "configmap/let-pass",
            "configmap/nothing"
        ],
        "nothing of the refused is kept"
    );
    let metrics = kubectl(&c, &k, ["get", "--raw", "/metrics"]);
    assert!(
        metrics.contains("error_type=\"calling_webhook_error\"")
            && metrics.contains("liar.example.com"),
        "what it did is counted"
    );
}

/// Rules name one version of a kind, requests come in another: that is no way past webhooks and policies for custom kinds
/// either. kyverno's rules name a version of its policies that nobody uses any more.
#[test]
fn a_custom_kind_is_seen_in_whatever_version_it_is_written() {
    let Some(k) = kubectls().last() else { return };
    let runtime = Runtime::new().unwrap();
    let c = Cluster::up(&["--no-node"]);
    hooked(&c, &k);
    let version = |name: &str, storage: bool| {
        json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": {
            "type": "object", "x-kubernetes-preserve-unknown-fields": true}}})
    };
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "lamps.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"kind": "Lamp", "plural": "lamps"},
            "versions": [version("v1", true), version("v1beta1", false)]}});
    kubectl_stdin(&c, &k, &["apply", "-f", "-"], &definition.to_string());
    let established = ["--for=condition=Established", "crd/lamps.example.com"];
    kubectl(&c, &k, [&["wait"], established.as_slice()].concat());
    let lamp = |name: &str| {
        json!({"apiVersion": "example.com/v1", "kind": "Lamp",
            "metadata": {"name": name, "namespace": "hooked"}, "spec": {}})
        .to_string()
    };
    let rules = json!([{"operations": ["CREATE"], "apiGroups": ["example.com"], "apiVersions": ["v1beta1"],
        "resources": ["lamps/*"]}]);
    let told = |r: &Value| {
        let r = &r["request"];
        let versions = [
            &r["kind"]["version"],
            &r["requestKind"]["version"],
            &r["object"]["apiVersion"],
        ];
        versions.map(|v| v.as_str().unwrap_or_default()).join(" ")
    };
    let warden = hook(&runtime, move |r| {
        review(r, json!({"allowed": false, "status": {"message": told(r)}}))
    });
    let mut config = webhook(&warden, "warden.example.com");
    config["rules"] = rules.clone();
    configure(&c, &k, "Validating", "warden", &[config.clone()]);
    let why = refused(&c, &k, &["create"], &lamp("refused"));
    assert!(why.contains("v1beta1 v1 example.com/v1beta1"), "{why}");
    config["matchPolicy"] = json!("Exact");
    configure(&c, &k, "Validating", "warden", &[config]);
    eventually("who wants that version only is not asked", SOON, || {
        output(c.kubectl(&k).args(["get", "lamp", "exact", "-n", "hooked"]))
            .status
            .success()
            || {
                let file = c.dir.path().join("exact.json");
                std::fs::write(&file, lamp("exact")).unwrap();
                output(c.kubectl(&k).args(["create", "-f"]).arg(&file))
                    .status
                    .success()
            }
    });
    // What a webhook changes comes back in the version of the request.
    let painter = hook(&runtime, |r| {
        patch(
            r,
            &json!([{"op": "add", "path": "/spec/color", "value": r["request"]["object"]["apiVersion"]}]),
        )
    });
    let mut config = webhook(&painter, "painter.example.com");
    config["rules"] = rules.clone();
    configure(&c, &k, "Mutating", "painter", &[config]);
    let made = kubectl_stdin(
        &c,
        &k,
        &["create", "-o", "json", "-f", "-"],
        &lamp("painted"),
    );
    let made: Value = serde_json::from_str(&made).unwrap();
    assert_eq!(made["apiVersion"], "example.com/v1");
    assert_eq!(made["spec"]["color"], "example.com/v1beta1");
    // So it is with policies.
    let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "lamps"},
        "spec": {"matchConstraints": {"resourceRules": rules}, "validations": [
            {"expression": "object.apiVersion != 'example.com/v1beta1'", "message": "seen as v1beta1"}]}});
    let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "lamps"}, "spec": {"policyName": "lamps", "validationActions": ["Deny"]}});
    for object in [policy, binding] {
        kubectl_stdin(&c, &k, &["apply", "-f", "-"], &object.to_string());
    }
    let mut number = 0;
    eventually("the policy sees it", SOON, || {
        number += 1;
        let file = c.dir.path().join("lamp.json");
        std::fs::write(&file, lamp(&format!("policed-{number}"))).unwrap();
        let told = said(c.kubectl(&k).args(["create", "-f"]).arg(&file));
        told.contains("seen as v1beta1")
    });
}

#[test]
fn item_172_a_webhook_that_calls_itself_is_contained() {
    const DEEP: usize = 12;
    let Some(k) = kubectls().last() else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(DEEP + 4)
        .enable_all()
        .build()
        .unwrap();
    let c = Cluster::up(&["--no-node"]);
    hooked(&c, &k);
    let calls = Arc::new(AtomicUsize::new(0));
    let (program, config, count) = (k.clone(), c.kubeconfig.clone(), Arc::clone(&calls));
    // Each review writes another object of the kind before it answers.
    let recursive = hook(&runtime, move |r| {
        let depth = count.fetch_add(1, Ordering::SeqCst);
        if depth < DEEP {
            let name = format!("deeper-{depth}");
            let mut command = Command::new(&program);
            command.args(["-n", "hooked", "create", "cm", &name]);
            let _refused = output(command.env("KUBECONFIG", &config));
        }
        allow(r)
    });
    let mut config = webhook(&recursive, "recursive.example.com");
    config["timeoutSeconds"] = json!(1);
    configure(&c, &k, "Validating", "recursive", &[config.clone()]);
    let began = Instant::now();
    let told = said(&mut create(&c, &k, "x"));
    if told.contains("created") {
        // The machine was fast enough for all levels; they ended by the test's bound.
        assert_eq!(calls.load(Ordering::SeqCst), DEEP + 1);
    } else {
        assert!(told.contains("context deadline exceeded"), "{told}");
    }
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "{:?}",
        began.elapsed()
    );
    let free = Instant::now();
    assert_eq!(kubectl(&c, &k, ["get", "--raw", "/readyz"]), "ok");
    kubectl(&c, &k, ["create", "cm", "free", "--from-literal=a=b"]);
    assert!(
        free.elapsed() < Duration::from_secs(10),
        "{:?}",
        free.elapsed()
    );
    // Item 175: what configures webhooks is never put to them, so that a mistake can be undone.
    config["rules"] = json!([{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}]);
    config["namespaceSelector"] = json!({});
    configure(&c, &k, "Validating", "recursive", &[config]);
    kubectl(
        &c,
        &k,
        ["delete", "validatingwebhookconfiguration", "recursive"],
    );
    eventually("the levels are done", SOON, || {
        calls.load(Ordering::SeqCst) > DEEP || output(&mut create(&c, &k, "after")).status.success()
    });
}

#[test]
fn items_173_174_dry_run_and_a_service_in_front() {
    for k in kubectls() {
        let runtime = Runtime::new().unwrap();
        let c = Cluster::up(&["--no-node", "--allow-loopback-endpoints"]);
        hooked(&c, &k);
        let careful = hook(&runtime, |r| {
            adds(r, "dry", &r["request"]["dryRun"].to_string())
        });
        let mut config = webhook(&careful, "careful.example.com");
        config["sideEffects"] = json!("NoneOnDryRun");
        // A service whose endpoints are outside of the cluster.
        config["clientConfig"] = json!({"caBundle": careful.bundle(),
            "service": {"namespace": "hooks", "name": "hook", "path": "/mutate", "port": 8443}});
        kubectl(&c, &k, ["create", "namespace", "hooks"]);
        let service = json!({"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "hook", "namespace": "hooks"},
                "spec": {"ports": [{"name": "https", "port": 8443, "targetPort": careful.address.port()}]}},
            {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {"name": "hook-1", "namespace": "hooks",
                    "labels": {"kubernetes.io/service-name": "hook"}},
                "addressType": "FQDN",
                "endpoints": [{"addresses": ["localhost"], "conditions": {"ready": true}}],
                "ports": [{"name": "https", "port": careful.address.port()}]}]});
        kubectl_stdin(&c, &k, &["apply", "-f", "-"], &service.to_string());
        configure(&c, &k, "Mutating", "careful", std::slice::from_ref(&config));
        let mut dry = create(&c, &k, "x");
        let shown = harness::run(dry.args(["--dry-run=server", "-o", "jsonpath={.data.dry}"]));
        assert_eq!(shown, "true");
        let gone = output(c.kubectl(&k).args(["-n", "hooked", "get", "cm", "x"]));
        assert!(!gone.status.success(), "a dry run stores nothing");
        let mut wet = create(&c, &k, "x");
        assert_eq!(
            harness::run(wet.args(["-o", "jsonpath={.data.dry}"])),
            "false"
        );
        assert_eq!(careful.calls()[0].0, "/mutate?timeout=5s");
        // kubectl diff is a dry run too
        let changed = "apiVersion: v1
kind: ConfigMap
metadata: {name: x, namespace: hooked}
data: {a: c}
";
        let before = careful.heard().len();
        let file = c.dir.path().join("changed.yaml");
        std::fs::write(&file, changed).unwrap();
        let diff = output(c.kubectl(&k).args(["diff", "-f"]).arg(&file));
        assert_eq!(diff.status.code(), Some(1), "there is a difference");
        let heard = careful.heard();
        assert!(heard.len() > before && heard[before..].iter().all(|r| r["dryRun"] == true));
        config["sideEffects"] = json!("Some");
        let manifest = json!({"apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration", "metadata": {"name": "careless"}, "webhooks": [config]});
        let told = refused(&c, &k, &["create"], &manifest.to_string());
        assert!(
            told.contains("webhooks[0].sideEffects: Unsupported value: \"Some\""),
            "{told}"
        );
    }
}

/// The flags that switch the image policy on, with its files.
fn image_policy(dir: &Path, hook: &Hook, default_allow: bool) -> [String; 2] {
    let kubeconfig = kubeconfig(dir, hook, "/images");
    let config = format!(
        "apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: ImagePolicyWebhook
  configuration:
    imagePolicy:
      kubeConfigFile: {}
      allowTTL: 60
      denyTTL: -1
      retryBackoff: 1
      defaultAllow: {default_allow}
",
        kubeconfig.display()
    );
    let file = dir.join("admission.yaml");
    std::fs::write(&file, config).unwrap();
    [
        "--enable-admission-plugins=ImagePolicyWebhook".to_owned(),
        format!("--admission-control-config-file={}", file.display()),
    ]
}

#[test]
fn item_181_images_are_put_to_the_image_policy() {
    for k in kubectls() {
        let runtime = Runtime::new().unwrap();
        let files = harness::temp_dir();
        let judge = hook(&runtime, |r| {
            let images = r["spec"]["containers"].as_array().unwrap();
            let bad = images
                .iter()
                .any(|c| c["image"].as_str().unwrap().contains("bad"));
            json!({"apiVersion": "imagepolicy.k8s.io/v1alpha1", "kind": "ImageReview",
                "status": {"allowed": !bad, "reason": "no signature"}})
        });
        let flags = image_policy(files.path(), &judge, false);
        let c = Cluster::up(&["--no-node", &flags[0], &flags[1]]);
        let account = || {
            let found = output(c.kubectl(&k).args(["get", "serviceaccount", "default"]));
            found.status.success()
        };
        eventually("the default service account", SOON, account);
        let ticket = "--annotations=ticket.image-policy.k8s.io/number=7";
        kubectl(&c, &k, ["run", "good", "--image=x.test/good", ticket]);
        assert_eq!(
            judge.calls()[0].1["spec"],
            json!({"containers": [{"image": "x.test/good"}], "namespace": "default",
                "annotations": {"ticket.image-policy.k8s.io/number": "7"}})
        );
        let told = said(c.kubectl(&k).args(["run", "evil", "--image=x.test/bad"]));
        assert_eq!(
            told.trim(),
            "Error from server (Forbidden): pods \"evil\" is forbidden: image policy webhook backend denied one or \
             more images: no signature"
        );
        let told = said(
            c.kubectl(&k)
                .args(["set", "image", "pod/good", "good=x.test/bad"]),
        );
        assert!(told.contains("denied one or more images"), "{told}");
        // A workload tells why it has no pods.
        kubectl(
            &c,
            &k,
            ["create", "deployment", "web", "--image=x.test/bad"],
        );
        eventually("the refusal is an event", SOON, || {
            let events = kubectl(&c, &k, ["get", "events"]);
            events.contains("denied one or more images: no signature")
        });
        drop(judge);
        kubectl(&c, &k, ["run", "again", "--image=x.test/good", ticket]);
        let told = said(c.kubectl(&k).args(["run", "new", "--image=x.test/new"]));
        assert!(told.contains("Error from server (Forbidden)"), "{told}");
    }
}

#[test]
fn audit_events_are_sent_in_batches_and_a_dead_receiver_slows_nobody() {
    let Some(k) = kubectls().last() else { return };
    let runtime = Runtime::new().unwrap();
    let files = harness::temp_dir();
    let receiver = hook(&runtime, |_| json!({}));
    let config = kubeconfig(files.path(), &receiver, "/audit");
    let flags = [
        audit_policy(files.path()),
        format!("--audit-webhook-config-file={}", config.display()),
    ];
    let mut c = Cluster::up(&["--no-node", &flags[0], &flags[1]]);
    kubectl(&c, &k, ["create", "cm", "seen", "--from-literal=a=b"]);
    // What waits is sent when the server ends.
    assert!(c.interrupt().success());
    let (path, list) = receiver.calls().pop().unwrap();
    assert!(path.starts_with("/audit"), "{path}");
    assert_eq!(list["kind"], "EventList");
    assert_eq!(list["apiVersion"], "audit.k8s.io/v1");
    let events: Vec<Value> = receiver
        .calls()
        .iter()
        .flat_map(|(_, list)| list["items"].as_array().cloned().unwrap_or_default())
        .collect();
    let seen = events
        .iter()
        .find(|e| e["verb"] == "create" && e["objectRef"]["name"] == "seen")
        .unwrap();
    assert_eq!(seen["level"], "Request");
    assert_eq!(seen["stage"], "ResponseComplete");
    assert_eq!(seen["responseStatus"]["code"], 201);
    assert_eq!(seen["requestObject"]["data"]["a"], "b");
    assert!(seen["userAgent"].as_str().unwrap().starts_with("kubectl"));
    drop(receiver);
    c.start_again();
    let began = Instant::now();
    for n in 0..5 {
        let name = format!("unseen-{n}");
        kubectl(&c, &k, ["create", "cm", &name, "--from-literal=a=b"]);
    }
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "{:?}",
        began.elapsed()
    );
}

/// A kind of two versions that differ: `v1` says `spec.host`, `v2` says `spec.address.host`.
fn doors(converter: &Hook) -> Value {
    let schema = |spec: Value| json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": spec}}}});
    let text = json!({"type": "string"});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "doors.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "doors", "kind": "Door"},
            "versions": [
                {"name": "v1", "served": true, "storage": true, "schema": schema(json!({"host": text}))},
                {"name": "v2", "served": true, "storage": false,
                    "schema": schema(json!({"address": {"type": "object", "properties": {"host": text}}})),
                    "additionalPrinterColumns": [{"name": "Host", "type": "string", "jsonPath": ".spec.address.host"}]}],
            "conversion": {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
                "clientConfig": {"url": format!("https://{}/convert", converter.address), "caBundle": converter.bundle()}}}},
    })
}

/// What an honest converter answers.
fn converted(question: &Value) -> Value {
    let wanted = question["request"]["desiredAPIVersion"].as_str().unwrap();
    let objects = question["request"]["objects"].as_array().unwrap();
    let objects: Vec<Value> = objects
        .iter()
        .map(|object| {
            let mut object = object.clone();
            object["apiVersion"] = json!(wanted);
            object["spec"] = if wanted.ends_with("v2") {
                json!({"address": {"host": object["spec"]["host"]}})
            } else {
                json!({"host": object["spec"]["address"]["host"]})
            };
            object
        })
        .collect();
    answer(question, &objects)
}

fn answer(question: &Value, objects: &[Value]) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": {
        "uid": question["request"]["uid"], "result": {"status": "Success"}, "convertedObjects": objects}})
}

/// A name field of a version is not one of the stored version: what is asked for is judged after the conversion.
#[test]
fn fields_are_selected_in_the_version_that_is_asked_for() {
    for k in kubectls() {
        let runtime = Runtime::new().unwrap();
        let converter = hook(&runtime, converted);
        let c = Cluster::up(&["--no-node"]);
        let mut definition = doors(&converter);
        let versions = definition["spec"]["versions"].as_array_mut().unwrap();
        for version in versions {
            let field = match version["name"].as_str() {
                Some("v1") => ".spec.host",
                _ => ".spec.address.host",
            };
            version["selectableFields"] = json!([{"jsonPath": field}]);
        }
        kubectl_stdin(&c, &k, &["create", "-f", "-"], &definition.to_string());
        let name = "crd/doors.example.com";
        kubectl(
            &c,
            &k,
            ["wait", "--for=condition=Established", name, "--timeout=10s"],
        );
        let door = |name: &str, host: &str| {
            let door = json!({"apiVersion": "example.com/v1", "kind": "Door",
                "metadata": {"name": name}, "spec": {"host": host}});
            kubectl_stdin(&c, &k, &["apply", "-f", "-"], &door.to_string());
        };
        door("one", "a");
        door("two", "b");
        door("three", "a");
        let names = |kind: &str, selector: &str| {
            let args = [
                "get",
                kind,
                "--field-selector",
                selector,
                "-o",
                "name",
                "--chunk-size=2",
            ];
            kubectl(&c, &k, args)
                .replace("door.example.com/", "")
                .replace('\n', " ")
        };
        assert_eq!(names("doors.v1.example.com", "spec.host=a"), "one three ");
        assert_eq!(
            names("doors.v2.example.com", "spec.address.host=a"),
            "one three "
        );
        assert_eq!(
            names("doors.v2.example.com", "spec.address.host!=a"),
            "two "
        );
        let both = "spec.address.host=a,metadata.name=three";
        assert_eq!(names("doors.v2.example.com", both), "three ");
        let args = [
            "get",
            "doors.v2.example.com",
            "--field-selector",
            "spec.host=a",
        ];
        let told = said(c.kubectl(&k).args(args));
        assert!(
            told.contains("field label not supported: spec.host"),
            "{told}"
        );

        let path = "/apis/example.com/v2/namespaces/default/doors?watch=true&timeoutSeconds=60&fieldSelector=";
        let mut watch = c
            .kubectl(&k)
            .args(["get", "--raw", &format!("{path}spec.address.host%3Da")])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let seen = BufReader::new(watch.stdout.take().unwrap()).lines();
        let mut seen = seen.map(|line| {
            let event: Value = serde_json::from_str(&line.unwrap()).unwrap();
            let object = &event["object"];
            assert_eq!(object["apiVersion"], "example.com/v2");
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let name = text(&object["metadata"]["name"]);
            let host = text(&object["spec"]["address"]["host"]);
            format!("{} {name} {host}", text(&event["type"]))
        });
        // what is there, then what happens
        let mut events: Vec<String> = seen.by_ref().take(2).collect();
        door("one", "c");
        door("two", "a");
        kubectl(&c, &k, ["label", "doors", "three", "x=y"]);
        door("four", "d");
        kubectl(&c, &k, ["delete", "doors", "two"]);
        events.extend(seen.take(4));
        let _gone = watch.kill();
        watch.wait().unwrap();
        let wanted = [
            "ADDED one a",
            "ADDED three a",
            "DELETED one a",
            "ADDED two a",
            "MODIFIED three a",
            "DELETED two a",
        ];
        assert_eq!(events, wanted);

        let args = [
            "delete",
            "doors.v2.example.com",
            "--field-selector",
            "spec.address.host=a",
        ];
        kubectl(&c, &k, args);
        assert_eq!(
            kubectl(&c, &k, ["get", "doors", "-o", "name"]),
            "door.example.com/four\ndoor.example.com/one\n"
        );
    }
}

#[test]
fn item_154_a_conversion_webhook_is_asked_once_for_a_list_and_watched_for_lies() {
    for k in kubectls() {
        let runtime = Runtime::new().unwrap();
        let lie = Arc::new(parking_lot::Mutex::new(""));
        let mood = Arc::clone(&lie);
        let converter = hook(&runtime, move |question| {
            let mut given = converted(question);
            let objects = given["response"]["convertedObjects"]
                .as_array_mut()
                .unwrap();
            match *mood.lock() {
                "order" => objects.reverse(),
                "count" => drop(objects.pop()),
                "uid" => objects[0]["metadata"]["uid"] = json!("another"),
                "kind" => objects[0]["kind"] = json!("Window"),
                "failed" => {
                    given["response"]["result"] = json!({"status": "Failed", "message": "jammed"});
                }
                _ => {}
            }
            given
        });
        let c = Cluster::up(&["--no-node"]);
        let definition = doors(&converter);
        kubectl_stdin(&c, &k, &["create", "-f", "-"], &definition.to_string());
        let name = "crd/doors.example.com";
        kubectl(
            &c,
            &k,
            ["wait", "--for=condition=Established", name, "--timeout=10s"],
        );
        for n in 1..=3 {
            let door = json!({"apiVersion": "example.com/v1", "kind": "Door",
                "metadata": {"name": format!("door-{n}")}, "spec": {"host": format!("host-{n}")}});
            kubectl_stdin(&c, &k, &["create", "-f", "-"], &door.to_string());
        }
        // Controllers that watch every kind list this one as well, once, when they find it.
        let mut lists = Vec::new();
        for _ in 0..5 {
            let before = converter.calls().len();
            let table = kubectl(&c, &k, ["get", "doors.v2.example.com", "--no-headers"]);
            assert_eq!(table, "door-1   host-1\ndoor-2   host-2\ndoor-3   host-3\n");
            lists = converter.calls().split_off(before);
            if lists.len() == 1 {
                break;
            }
        }
        assert_eq!(lists.len(), 1, "one call for the list");
        let (path, last) = lists.pop().unwrap();
        assert_eq!(path, "/convert?timeout=30s");
        assert_eq!(last["request"]["objects"].as_array().unwrap().len(), 3);
        assert_eq!(last["request"]["desiredAPIVersion"], "example.com/v2");
        // Written and changed in the version that is not stored.
        let door = json!({"apiVersion": "example.com/v2", "kind": "Door",
            "metadata": {"name": "door-4"}, "spec": {"address": {"host": "host-4"}}});
        kubectl_stdin(&c, &k, &["apply", "-f", "-"], &door.to_string());
        let again = kubectl_stdin(&c, &k, &["apply", "-f", "-"], &door.to_string());
        assert!(again.contains("unchanged"), "{again}");
        let host = "jsonpath={.spec.host}";
        assert_eq!(
            kubectl(
                &c,
                &k,
                ["get", "doors.v1.example.com", "door-4", "-o", host]
            ),
            "host-4"
        );
        for (kind, why) in [
            ("order", "must have the same name: door-1 != door-4"),
            ("count", "returned 3 objects, expected 4"),
            ("uid", "must have the same UID"),
            ("kind", "invalid kind (expected Door, received Window)"),
            (
                "failed",
                "conversion webhook for example.com/v1, Kind=Door failed: jammed",
            ),
        ] {
            *lie.lock() = kind;
            let told = said(c.kubectl(&k).args(["get", "doors.v2.example.com"]));
            assert!(told.contains(why), "{kind}: {told}");
            // The stored version needs nobody.
            kubectl(&c, &k, ["get", "doors.v1.example.com"]);
        }
        *lie.lock() = "";
        kubectl(&c, &k, ["get", "doors.v2.example.com"]);
        drop(converter);
        let told = said(c.kubectl(&k).args(["get", "doors.v2.example.com"]));
        let why = "conversion webhook for example.com/v1, Kind=Door failed: Post";
        assert!(told.contains(why), "{told}");
        kubectl(&c, &k, ["get", "doors.v1.example.com"]);
        // With a converter that is gone the kind can still be deleted.
        kubectl(&c, &k, ["delete", name, "--timeout=60s"]);
    }
}
