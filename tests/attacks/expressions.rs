//! Expressions (CEL) that whoever may write a claim writes: what compiling and evaluating them takes is bounded, whatever
//! they cost by the reference implementation's count, and nobody else waits for it.

use crate::harness::Cluster;
use http::Request;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(60);
/// What the whole program may take meanwhile.
const MEMORY: usize = 900 << 20;
const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
const PODS: &str = "/api/v1/namespaces/default/pods";

struct Target {
    cluster: Cluster,
    admin: kube::Client,
}

impl Target {
    async fn up() -> Self {
        let cluster = tokio::task::block_in_place(|| Cluster::up(&["--no-node"]));
        let admin = davit_client::from_kubeconfig(&cluster.kubeconfig).await;
        Self {
            admin: admin.unwrap(),
            cluster,
        }
    }

    async fn get(&self, path: &str) -> Value {
        let request = Request::get(path).body(Vec::new()).unwrap();
        self.admin.request(request).await.unwrap()
    }

    async fn write(&self, method: &str, path: &str, object: &Value) -> Result<Value, kube::Error> {
        let kind = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", kind)
            .body(object.to_string().into_bytes());
        self.admin.request(request.unwrap()).await
    }

    async fn post(&self, path: &str, object: &Value) -> Value {
        self.write("POST", path, object).await.unwrap()
    }

    /// A node and a device of it.
    async fn furnish(&self) {
        self.post("/api/v1/nodes", &json!({"metadata": {"name": "n"}}))
            .await;
        let status = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"cpu": "4", "memory": "4Gi", "pods": "100"},
            "capacity": {"cpu": "4", "memory": "4Gi", "pods": "100"}}});
        let patched = self.write("PATCH", "/api/v1/nodes/n/status", &status).await;
        patched.unwrap();
        let group = "/apis/resource.k8s.io/v1";
        let class = json!({"metadata": {"name": "any"}, "spec": {}});
        self.post(&format!("{group}/deviceclasses"), &class).await;
        let slice = json!({"metadata": {"name": "s"}, "spec": {"driver": "x.example", "nodeName": "n",
            "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "d"}]}});
        self.post(&format!("{group}/resourceslices"), &slice).await;
    }

    async fn claim(&self, name: &str, selectors: &[String]) -> Result<Value, kube::Error> {
        let requests: Vec<Value> = selectors
            .chunks(32)
            .enumerate()
            .map(|(n, some)| {
                let some = some.iter().map(|text| json!({"cel": {"expression": text}}));
                json!({"name": format!("r{n}"), "exactly": {"deviceClassName": "any", "selectors": some.collect::<Vec<_>>()}})
            })
            .collect();
        let claim =
            json!({"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}});
        self.write("POST", CLAIMS, &claim).await
    }

    async fn pod(&self, name: &str, claim: Option<&str>) {
        let claims = claim.map(|name| json!([{"name": "c", "resourceClaimName": name}]));
        let pod = json!({"metadata": {"name": name}, "spec": {"resourceClaims": claims,
            "tolerations": [{"operator": "Exists"}], "automountServiceAccountToken": false,
            "containers": [{"name": "c", "image": "i", "resources": {"claims": claim.map(|_| json!([{"name": "c"}]))}}]}});
        self.post(PODS, &pod).await;
    }

    /// The message that tells why the pod has no node, or the node.
    async fn placed(&self, name: &str) -> String {
        let until = Instant::now() + SOON;
        loop {
            let pod = self.get(&format!("{PODS}/{name}")).await;
            let node = pod["spec"]["nodeName"].as_str();
            let why = pod["status"]["conditions"][0]["message"].as_str();
            if let Some(found) = node.or(why) {
                return found.to_owned();
            }
            assert!(
                Instant::now() < until,
                "{name}: {pod} {}",
                self.cluster.log()
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// The most that the program has taken, bytes.
    fn peak(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.cluster.pid()));
        let status = status.expect("it goes on");
        let line = status.lines().find(|line| line.starts_with("VmHWM:"));
        let kilobytes = line.and_then(|line| line.split_whitespace().nth(1));
        kilobytes.unwrap().parse::<usize>().unwrap() * 1024
    }
}

/// A policy that refuses whatever it sees, and tells what that is.
async fn policies_see_no_reviews(t: &Target) {
    let group = "/apis/admissionregistration.k8s.io/v1";
    let policy = json!({"metadata": {"name": "all"}, "spec": {
        "matchConstraints": {"resourceRules": [{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["CREATE"],
            "resources": ["*"]}]},
        "validations": [{"expression": "false", "messageExpression":
            "'seen: ' + (has(object.spec) && has(object.spec.token) ? object.spec.token : 'something')"}]}});
    let policies = format!("{group}/validatingadmissionpolicies");
    t.post(&policies, &policy).await;
    let binding = json!({"metadata": {"name": "all"}, "spec": {"policyName": "all", "validationActions": ["Deny"]}});
    let bindings = format!("{group}/validatingadmissionpolicybindings");
    t.post(&bindings, &binding).await;
    let until = Instant::now() + SOON;
    let map = json!({"metadata": {"generateName": "m"}});
    loop {
        let made = t
            .write("POST", "/api/v1/namespaces/default/configmaps", &map)
            .await;
        if let Err(refused) = made {
            assert!(refused.to_string().contains("seen: something"), "{refused}");
            break;
        }
        assert!(Instant::now() < until, "the policy is in force");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let access = json!({"spec": {"user": "somebody", "nonResourceAttributes": {"path": "/", "verb": "get"}}});
    for (group, plural, review) in [
        (
            "authentication.k8s.io",
            "tokenreviews",
            json!({"spec": {"token": "secret"}}),
        ),
        ("authentication.k8s.io", "selfsubjectreviews", json!({})),
        ("authorization.k8s.io", "subjectaccessreviews", access),
    ] {
        let answer = t.post(&format!("/apis/{group}/v1/{plural}"), &review).await;
        assert!(answer["status"].is_object(), "{answer}");
    }
    t.write("DELETE", &format!("{policies}/all"), &json!({}))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn selectors_take_no_more_than_there_is() {
    let t = Target::up().await;
    t.furnish().await;

    // Each costs some hundred, and has room for some terabytes.
    let list = format!("size([[1, 1]]{}[0]) > 0", ".map(x, x + x)".repeat(40));
    let tree = format!("[1]{}", ".map(x, [x, x])".repeat(40));
    let text = (0..13)
        .rev()
        .fold("t13.replace('a', t13).size() > 0".to_owned(), |inner, n| {
            format!("cel.bind(t{}, t{n} + t{n}, {inner})", n + 1)
        });
    let text = format!("cel.bind(t0, 'aaaaaaaaaa', {text})");
    let shown = format!("'%s'.format([{tree}]).size() > 0");
    let equal = format!("{tree} == {tree}");
    for (n, expression) in [list, text, shown, equal].into_iter().enumerate() {
        let name = format!("large-{n}");
        t.claim(&name, &[expression]).await.unwrap();
        t.pod(&name, Some(&name)).await;
    }
    t.pod("another", None).await;
    assert_eq!(t.placed("another").await, "n");
    for n in 0..4 {
        let why = t.placed(&format!("large-{n}")).await;
        assert!(why.contains("cost limit exceeded"), "{n}: {why}");
    }

    // The types of one have more parts than there is memory for.
    let types = (1..45).rev().fold("true".to_owned(), |inner, n| {
        let before = n - 1;
        format!("cel.bind(v{n}, {{v{before}: v{before}}}, {inner})")
    });
    let types = format!("cel.bind(v0, {{1: 1}}, {types})");
    let refused = t.claim("types", &[types]).await.unwrap_err().to_string();
    assert!(refused.contains("expression is too complex"), "{refused}");

    // Some letters each, and a part of a second.
    let patterns = |n: usize| {
        let one = |k: usize| format!("device.driver.matches('.{{{}}}{n}')", 700 + k);
        (0..200).map(one).collect::<Vec<_>>().join(" || ")
    };
    let selectors: Vec<String> = (0..200).map(patterns).collect();
    let begun = Instant::now();
    let refused = t.claim("patterns", &selectors).await.unwrap_err();
    assert!(
        matches!(&refused, kube::Error::Api(status) if status.code == 422),
        "{refused}"
    );
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());

    policies_see_no_reviews(&t).await;

    let peak = t.peak();
    assert!(peak < MEMORY, "{} MiB", peak >> 20);
}
