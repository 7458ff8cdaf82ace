//! Asking a cluster.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::IpAddr;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use http::Request;
use http_body_util::{BodyExt as _, Limited};
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::Client;
use kube::api::{Api, ListParams};
use kube::client::Body;
use kube::config::AuthInfo;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::ClusterOptions;
use super::facts::{Attempt, Facts, Seen, Tried};
use super::probes::{Control, harmless};

/// Objects of a page of a list.
const PAGE: u32 = 500;
/// Pages of a list: a check is no reason to hold more in memory.
const PAGES: usize = 1000;
/// Requests under way at once.
const AT_ONCE: usize = 8;
/// As much of an answer as is read.
const MOST: usize = 4 << 20;
/// The port of node agents without TLS, where it is open.
const OPEN_PORT: u16 = 10255;
/// What is asked for without credentials.
const PATHS: [&str; 16] = [
    "/healthz",
    "/livez",
    "/readyz",
    "/version",
    "/api",
    "/apis",
    "/api/v1/namespaces",
    "/api/v1/nodes",
    "/api/v1/pods",
    "/api/v1/namespaces/kube-system/secrets",
    "/api/v1/namespaces/kube-system/configmaps",
    "/apis/certificates.k8s.io/v1/certificatesigningrequests",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/openapi/v2",
    "/metrics",
    "/debug/pprof/",
];

/// Asks everything.
pub(super) async fn facts(config: kube::Config, options: &ClusterOptions) -> Result<Facts, String> {
    let tls = config.cluster_url.scheme_str() == Some("https") && !config.accept_invalid_certs;
    let mut nobody = config.clone();
    nobody.auth_info = AuthInfo::default();
    nobody.headers.clear();
    let anonymous = client(nobody)?;
    let asker = Asker {
        client: client(config)?,
        patience: options.patience,
    };
    // A server that does not answer, or does not know who asks, is no cluster with findings.
    let (code, body) = asker.get("/version").await?;
    if code == 401 {
        return Err(format!(
            "the API server refuses the credentials: {}",
            body["message"]
        ));
    }
    let nodes: Seen<Vec<Node>> = asker.all().await;
    let namespaces: Seen<Vec<Namespace>> = asker.all().await;
    let mut tried = asker
        .effects(options, nodes.as_deref().unwrap_or_default())
        .await;
    tried.tls = tls;
    tried.anonymous = asker.stranger(anonymous).await;
    if options.nodes {
        let nodes = nodes.iter().flatten();
        asker.kubelet_ports(nodes, &mut tried).await;
    }
    let mut facts = Facts {
        namespaces,
        pods: asker.all().await,
        services: asker.all().await,
        accounts: asker.all().await,
        network_policies: asker.all().await,
        roles: asker.all().await,
        role_bindings: asker.all().await,
        cluster_roles: asker.all().await,
        cluster_role_bindings: asker.all().await,
        kubelets: asker.configurations(nodes.iter().flatten()).await,
        nodes,
        exempt: options.exempt.clone(),
        tried,
    };
    if options.dry_run {
        facts.tried.admits = asker.admissions(&facts, options.most_namespaces).await;
    }
    Ok(facts)
}

fn client(config: kube::Config) -> Result<Client, String> {
    Client::try_from(config).map_err(|e| e.to_string())
}

struct Asker {
    client: Client,
    patience: Duration,
}

impl Asker {
    async fn get(&self, path: &str) -> Seen<(u16, Value)> {
        self.send(Request::get(path), Value::Null).await
    }

    async fn post(&self, path: &str, body: Value) -> Seen<(u16, Value)> {
        self.send(Request::post(path), body).await
    }

    async fn send(&self, request: http::request::Builder, body: Value) -> Seen<(u16, Value)> {
        send(&self.client, self.patience, request, body).await
    }

    /// All objects of a kind.
    async fn all<K>(&self) -> Seen<Vec<K>>
    where
        K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let api: Api<K> = Api::all(self.client.clone());
        let mut all = Vec::new();
        let mut params = ListParams::default().limit(PAGE);
        let refused = |why: String| format!("cannot list {}: {why}", K::plural(&()));
        for _ in 0..PAGES {
            let page = timeout(self.patience, api.list(&params)).await;
            let page = page.map_err(|_| refused("no answer in time".to_owned()))?;
            let page = page.map_err(|e| refused(told(e)))?;
            all.extend(page.items);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(all),
            }
        }
        Err(refused("there are too many".to_owned()))
    }

    /// What is answered without credentials.
    async fn stranger(&self, client: Client) -> Seen<BTreeMap<String, u16>> {
        let mut seen = BTreeMap::new();
        for path in PATHS {
            let (code, _) = send(&client, self.patience, Request::get(path), Value::Null).await?;
            seen.insert(path.to_owned(), code);
        }
        Ok(seen)
    }

    /// What tells how the API server is configured.
    async fn effects(&self, options: &ClusterOptions, nodes: &[Node]) -> Tried {
        let mut answers = BTreeMap::new();
        let mut keep = |attempt, answer: Seen<(u16, Value)>| {
            if let Ok(answer) = answer {
                answers.insert(attempt, answer);
            }
        };
        keep(
            Attempt::ReviewOfNobody,
            self.review("davit-lab-nobody", None, SECRETS).await,
        );
        let node = nodes.first().and_then(|n| n.metadata.name.as_deref());
        let node = format!("system:node:{}", node.unwrap_or("davit-lab-node"));
        keep(
            Attempt::ReviewOfNode,
            self.review(&node, Some("system:nodes"), SECRET).await,
        );
        keep(
            Attempt::ReviewOfScheduler,
            self.review("system:kube-scheduler", None, PODS).await,
        );
        keep(Attempt::Profiler, self.get("/debug/pprof/").await);
        let no_dry_run = (!options.dry_run).then(|| "without dry runs".to_owned());
        if options.dry_run {
            keep(Attempt::Pod, self.post(&pods("default"), harmless()).await);
            keep(
                Attempt::NoNamespace,
                self.post(&pods("davit-lab-no-namespace"), harmless()).await,
            );
            keep(
                Attempt::ExternalAddress,
                self.post(SERVICES, external()).await,
            );
            keep(Attempt::OtherNode, self.other_node().await);
        }
        Tried {
            own_groups: self.own_groups().await,
            anonymous: Err("not tried".to_owned()),
            kubelet_port: BTreeMap::new(),
            kubelet_open_port: BTreeMap::new(),
            admits: BTreeMap::new(),
            answers,
            no_dry_run,
            tls: false,
        }
    }

    async fn review(
        &self,
        user: &str,
        group: Option<&str>,
        (verb, namespace, resource, name): (&str, &str, &str, &str),
    ) -> Seen<(u16, Value)> {
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": user,
                "groups": group,
                "resourceAttributes":
                    {"verb": verb, "namespace": namespace, "resource": resource, "name": name},
            },
        });
        let mut review = review;
        review["spec"]["groups"] = group.into_iter().collect();
        self.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
            .await
    }

    /// One node makes another.
    async fn other_node(&self) -> Seen<(u16, Value)> {
        let request = Request::post("/api/v1/nodes?dryRun=All")
            .header("impersonate-user", "system:node:davit-lab-node")
            .header("impersonate-group", "system:nodes");
        let other = json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "davit-lab-other-node"},
        });
        self.send(request, other).await
    }

    async fn own_groups(&self) -> Seen<Vec<String>> {
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
        let (_, body) = self.post(path, review).await?;
        let groups = body["status"]["userInfo"]["groups"].as_array();
        let groups = groups.ok_or_else(|| "it is not told who asks".to_owned())?;
        Ok(groups
            .iter()
            .filter_map(|g| g.as_str().map(str::to_owned))
            .collect())
    }

    /// The configurations of node agents, through the API server.
    async fn configurations(
        &self,
        nodes: impl Iterator<Item = &Node>,
    ) -> BTreeMap<String, Seen<Value>> {
        let names = nodes.filter_map(|node| node.metadata.name.clone());
        let asked = stream::iter(names).map(|name| async {
            let answer = self
                .get(&format!("/api/v1/nodes/{name}/proxy/configz"))
                .await;
            let config = answer.and_then(|(code, mut body)| match code {
                200 if body["kubeletconfig"].is_object() => Ok(body["kubeletconfig"].take()),
                404 => Err("its node agent has no page /configz".to_owned()),
                code => Err(format!("/configz: HTTP {code}")),
            });
            (name, config)
        });
        asked.buffer_unordered(AT_ONCE).collect().await
    }

    /// Asks node agents without credentials, at the addresses that the API tells.
    async fn kubelet_ports(&self, nodes: impl Iterator<Item = &Node>, tried: &mut Tried) {
        let reached = nodes.filter_map(|node| Some((node.metadata.name.clone()?, place(node)?)));
        let asked = stream::iter(reached).map(|(name, (address, port))| async move {
            let closed = self.port("https", address, port).await;
            let open = self.port("http", address, OPEN_PORT).await;
            (name, closed, open)
        });
        let answers: Vec<_> = asked.buffer_unordered(AT_ONCE).collect().await;
        for (name, closed, open) in answers {
            tried.kubelet_port.insert(name.clone(), closed);
            tried.kubelet_open_port.insert(name, open);
        }
    }

    async fn port(&self, scheme: &str, address: IpAddr, port: u16) -> Option<u16> {
        let host = std::net::SocketAddr::new(address, port);
        let url = format!("{scheme}://{host}").parse().ok()?;
        let mut config = kube::Config::new(url);
        // Nothing secret is sent: who it is does not matter.
        config.accept_invalid_certs = true;
        config.connect_timeout = Some(self.patience);
        config.default_retry = false;
        let client = client(config).ok()?;
        let answer = send(&client, self.patience, Request::get("/pods"), Value::Null).await;
        answer.ok().map(|(code, _)| code)
    }

    /// What namespaces of users would admit.
    async fn admissions(
        &self,
        facts: &Facts,
        most: usize,
    ) -> BTreeMap<String, Seen<BTreeMap<Control, bool>>> {
        let namespaces = facts.user_namespaces().unwrap_or_default();
        let names = namespaces
            .iter()
            .filter_map(|n| n.metadata.name.clone())
            .take(most);
        let asked = stream::iter(names).map(|name| async {
            let admits = self.admits(&name).await;
            (name, admits)
        });
        asked.buffer_unordered(AT_ONCE).collect().await
    }

    async fn admits(&self, namespace: &str) -> Seen<BTreeMap<Control, bool>> {
        let path = pods(namespace);
        let (code, body) = self.post(&path, harmless()).await?;
        if code >= 300 {
            let why = body["message"].as_str().unwrap_or_default();
            return Err(format!("even a harmless pod is refused: {why}"));
        }
        let mut admits = BTreeMap::new();
        for control in Control::ALL {
            let (code, _) = self.post(&path, control.offender()).await?;
            // 422: the pod itself was at fault, which tells nothing.
            if code < 300 || code == 403 {
                admits.insert(control, code < 300);
            }
        }
        Ok(admits)
    }
}

const SERVICES: &str = "/api/v1/namespaces/default/services?dryRun=All";
const SECRETS: (&str, &str, &str, &str) = ("list", "", "secrets", "");
const SECRET: (&str, &str, &str, &str) = ("get", "kube-system", "secrets", "davit-lab-no-secret");
const PODS: (&str, &str, &str, &str) = ("list", "", "pods", "");

fn pods(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods?dryRun=All")
}

/// A Service at an address of a documentation network.
fn external() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "davit-lab-check"},
        "spec": {"ports": [{"port": 80}], "externalIPs": ["192.0.2.1"]},
    })
}

/// Where a node agent listens, unless nothing may listen there.
fn place(node: &Node) -> Option<(IpAddr, u16)> {
    let status = node.status.as_ref()?;
    let mut addresses = status.addresses.iter().flatten();
    let address = addresses.find(|a| a.type_ == "InternalIP")?;
    let address: IpAddr = address.address.parse().ok()?;
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    if link_local || address.is_multicast() || address.is_unspecified() {
        return None;
    }
    let endpoints = status.daemon_endpoints.as_ref()?;
    let port = endpoints.kubelet_endpoint.as_ref()?.port;
    Some((address, u16::try_from(port).ok().filter(|p| *p != 0)?))
}

fn told(error: kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message,
        other => other.to_string(),
    }
}

async fn send(
    client: &Client,
    patience: Duration,
    request: http::request::Builder,
    body: Value,
) -> Seen<(u16, Value)> {
    let body = match body {
        Value::Null => Vec::new(),
        body => body.to_string().into_bytes(),
    };
    let request = request.header(http::header::CONTENT_TYPE, "application/json");
    let request = request.body(Body::from(body)).map_err(|e| e.to_string())?;
    let path = request.uri().path().to_owned();
    let exchange = async {
        let response = client.send(request).await.map_err(told)?;
        let code = response.status().as_u16();
        let bytes = Limited::new(response.into_body(), MOST).collect().await;
        let bytes = bytes
            .map(http_body_util::Collected::to_bytes)
            .unwrap_or_default();
        Ok((code, serde_json::from_slice(&bytes).unwrap_or_default()))
    };
    let late = |_| Err(format!("{path}: no answer within {} s", patience.as_secs()));
    timeout(patience, exchange).await.unwrap_or_else(late)
}
