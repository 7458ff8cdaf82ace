//! Names of objects in the paths of requests.
//!
//! `kube` writes the name that a caller gives into the path as it is. Names come from what users write (an owner reference, the
//! volume of a claim), and one like `b/pods/victim/proxy/x?` would turn the look at an object into any request, with the rights
//! of whoever looks. Requests of this crate's clients are therefore held to what their method asks for ([`ObjectPaths`]), and
//! [`path_segment`] is for those who write a path themselves.

use crate::lines::Lines;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Uri, header};
use http_body::Body;
use http_body_util::{Either, Full, Limited};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use tower::{BoxError, Layer, Service};

/// What stands in a segment of a path as it is (RFC 3986 3.3).
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b':')
    .remove(b'@');

/// A name as one segment of a path; `None` for what names no object: it is empty, `.`, `..`, or holds `/` or `%`
/// (apimachinery's `IsValidPathSegmentName`).
pub fn path_segment(name: &str) -> Option<Cow<'_, str>> {
    if matches!(name, "" | "." | "..") || name.contains(['/', '%']) {
        return None;
    }
    Some(utf8_percent_encode(name, ENCODED).into())
}

/// Bytes of the answer about one object, at most: several times what an API server stores.
const OBJECT_BYTES: usize = 32 << 20;
/// Bytes of an answer to a request that no method of `kube` made.
const OTHER_BYTES: usize = 256 << 20;
/// Bytes of what a server says of itself.
const WORDS_BYTES: usize = 1 << 20;
/// The only such answer that is as long as the cluster is large.
const BACKUP: &str = "/davit.dev/backup";

/// Bytes of a list of what may be another server's, in the place of the API server's own kinds.
const FOREIGN_BYTES: usize = 256 << 20;
const METRICS: &str = "metrics.k8s.io";
/// Values of such a list, or of one event of a watch: each takes up to two hundred bytes when it is read.
const FOREIGN_VALUES: usize = 2_000_000;
/// Bytes of one event of a watch.
const EVENT_BYTES: usize = OBJECT_BYTES;

/// Bytes of what a node's own server answers, whose length the API server does not know before it passes it on.
const NODE_BYTES: usize = 64 << 20;

/// The table of a node's devices.
const TABLE: &str = "/proxy/devices";

/// Parameters that methods about one object have.
const PARAMETERS: [&str; 5] = [
    "resourceVersion",
    "dryRun",
    "fieldManager",
    "fieldValidation",
    "force",
];

/// Those of methods for logs.
const OF_LOGS: [&str; 9] = [
    "container",
    "follow",
    "limitBytes",
    "pretty",
    "previous",
    "sinceSeconds",
    "sinceTime",
    "tailLines",
    "timestamps",
];

/// Methods that are about no single object, and get no name.
const OF_MANY: [&str; 6] = [
    "create",
    "delete_collection",
    "list",
    "list_metadata",
    "watch",
    "watch_metadata",
];

/// How many segments there are after the version, in which a resource, a name and a subresource stand.
fn segments_of(method: &str) -> Option<usize> {
    Some(match method {
        "get" | "get_metadata" | "delete" | "patch" | "patch_metadata" | "replace" | "restart"
        | "cordon" => 2,
        "get_scale"
        | "patch_scale"
        | "replace_scale"
        | "get_status"
        | "patch_status"
        | "replace_status"
        | "get_subresource"
        | "create_subresource"
        | "patch_subresource"
        | "replace_subresource"
        | "get_resize"
        | "patch_resize"
        | "replace_resize"
        | "approval"
        | "create_token_request"
        | "evict"
        | "logs"
        | "log_stream"
        | "get_ephemeralcontainers"
        | "patch_ephemeralcontainers"
        | "replace_ephemeralcontainers" => 3,
        _ => return None,
    })
}

/// Whether a request about one object is for an object. The path of one in a namespace is that of a namespace, too, of which a
/// caller has not looked at the name. A method that is not known here, of a newer `kube`, goes nowhere until it is.
fn is_of_object(method: &str, uri: &Uri) -> bool {
    let Some(wanted) = segments_of(method) else {
        return OF_MANY.contains(&method);
    };
    let parameters: &[&str] = match method {
        "logs" | "log_stream" => &OF_LOGS,
        _ => &PARAMETERS,
    };
    let mut segments = uri.path().split('/').skip(1);
    let prefix = match segments.next() {
        Some("api") => 1,
        Some("apis") => 2,
        _ => return false,
    };
    let segments: Vec<&str> = segments.skip(prefix).collect();
    let count = match segments.first() {
        Some(&"namespaces") if segments.len() > 3 => segments.len() - 2,
        _ => segments.len(),
    };
    let odd = |segment: &&str| matches!(*segment, "" | "." | "..");
    let known = |pair: &str| {
        let name = pair.split('=').next().unwrap_or_default();
        pair.is_empty() || parameters.contains(&name)
    };
    count == wanted
        && !segments.iter().any(odd)
        && uri.query().is_none_or(|query| query.split('&').all(known))
}

/// Whether a request is for a node's own server, which may be anybody's, and its answer comes to an end.
fn is_of_node(uri: &Uri) -> bool {
    let of_node = uri.path().strip_prefix("/api/v1/nodes/");
    let rest = of_node.and_then(|path| path.split_once('/'));
    let follows = |query: &str| query.split('&').any(|pair| pair == "watch=true");
    rest.is_some_and(|(_, rest)| rest.starts_with("proxy/")) && !uri.query().is_some_and(follows)
}

/// Whether a server is asked about itself: which it is, and how.
fn is_of_server(uri: &Uri) -> bool {
    let first = uri.path().split('/').nth(1).unwrap_or_default();
    matches!(first, "version" | "healthz" | "livez" | "readyz")
}

/// Whether a request is for a group that is none of Kubernetes' own, whose server may be anybody's.
fn is_of_others(uri: &Uri) -> bool {
    let group = uri.path().strip_prefix("/apis/");
    let group = group.and_then(|rest| rest.split('/').next());
    group.is_some_and(|group| {
        let mut known = davit_api::kinds::builtin().resources.iter();
        // What measures pods is often another server's, though this one has it, too.
        group == METRICS || !group.is_empty() && !known.any(|row| row.group == group)
    })
}

/// Whether an answer has no end: its events have one.
fn is_watch(method: Option<&str>, uri: &Uri) -> bool {
    let mut parameters = uri.query().unwrap_or_default().split('&');
    matches!(method, Some("watch" | "watch_metadata"))
        || parameters.any(|pair| matches!(pair, "watch=true" | "watch=1" | "watch=True"))
}

/// Holds requests about one object to one object, and answers to a size.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ObjectPaths;

impl<S> Layer<S> for ObjectPaths {
    type Service = Checked<S>;

    fn layer(&self, inner: S) -> Checked<S> {
        Checked { inner }
    }
}

/// See [`ObjectPaths`].
#[derive(Debug, Clone)]
pub(crate) struct Checked<S> {
    inner: S,
}

/// The body of an answer: its own, or that of a refusal.
pub(crate) type CheckedBody<B> = Either<Limited<Lines<B>>, Full<Bytes>>;

impl<S, In, B> Service<Request<In>> for Checked<S>
where
    S: Service<Request<In>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<CheckedBody<B>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<In>) -> Self::Future {
        // `kube` notes there which of its methods makes the request.
        let method = request.extensions().get::<&'static str>().copied();
        if !method.is_none_or(|method| is_of_object(method, request.uri())) {
            let refusal = refusal(request.method());
            return Box::pin(async { Ok(refusal) });
        }
        let uri = request.uri();
        let is_watch = is_watch(method, uri);
        let line = if is_watch { EVENT_BYTES } else { usize::MAX };
        let limit = match method {
            // A log has any length.
            Some("logs" | "log_stream") => usize::MAX,
            Some(method) if segments_of(method).is_some() => OBJECT_BYTES,
            _ if is_watch => usize::MAX,
            _ if is_of_others(uri) => FOREIGN_BYTES,
            None if is_of_node(uri) => NODE_BYTES,
            None if is_of_server(uri) => WORDS_BYTES,
            None if uri.path() != BACKUP => OTHER_BYTES,
            _ => usize::MAX,
        };
        let values = match is_of_others(uri) || uri.path().ends_with(TABLE) {
            true => FOREIGN_VALUES,
            false => usize::MAX,
        };
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await.map_err(Into::into)?;
            let limited = |body| Limited::new(Lines::new(body, line, values), limit);
            Ok(answer.map(|body| Either::Left(limited(body))))
        })
    }
}

/// The answer to a request for what cannot be an object: there is none of that name.
fn refusal<B>(method: &Method) -> Response<CheckedBody<B>> {
    let (code, reason) = match *method {
        Method::GET => (StatusCode::NOT_FOUND, "NotFound"),
        _ => (StatusCode::BAD_REQUEST, "BadRequest"),
    };
    let status = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": reason,
        "message": "no object can have this name", "code": code.as_u16(),
    });
    let mut response = Response::new(Either::Right(Full::new(status.to_string().into())));
    *response.status_mut() = code;
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::StreamExt as _;
    use http_body::Frame;
    use http_body_util::StreamBody;
    use k8s_openapi::api::apps::v1::Deployment;
    use k8s_openapi::api::authentication::v1::TokenRequest;
    use k8s_openapi::api::autoscaling::v1::Scale;
    use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
    use k8s_openapi::api::core::v1::{
        ConfigMap, Namespace, Node, PersistentVolume, Pod, ServiceAccount,
    };
    use kube::api::{
        Api, DeleteParams, EvictParams, GetParams, ListParams, LogParams, Patch, PatchParams,
        PostParams, WatchParams,
    };
    use kube::core::PartialObjectMetaExt;
    use parking_lot::Mutex;
    use std::sync::Arc;

    #[test]
    fn a_segment_stands_for_its_name() {
        for (name, segment) in [
            ("web-0", Some("web-0")),
            ("system:node", Some("system:node")),
            ("a?b#c", Some("a%3Fb%23c")),
            ("", None),
            (".", None),
            ("..", None),
            ("a/b", None),
            ("a%2Fb", None),
        ] {
            assert_eq!(path_segment(name).as_deref(), segment, "{name}");
        }
    }

    /// A client and what it sends. All is answered with an empty object.
    fn recording() -> (kube::Client, Arc<Mutex<Vec<String>>>) {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let to = sent.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            to.lock().push(request.uri().to_string());
            async {
                Ok::<_, BoxError>(Response::new(Full::new(Bytes::from_static(
                    b"{\"items\":[],\"metadata\":{}}",
                ))))
            }
        });
        (crate::in_process(service, "default"), sent)
    }

    const NAMES: [&str; 8] = [
        "?watch=1",
        "b/pods/victim/proxy/x?y=",
        "kube-system/configmaps?watch=1&x=",
        "web/proxy/x",
        "..",
        ".",
        "a/b",
        "x?dryRun=All&timeoutSeconds=1",
    ];

    /// A client of a server whose answers have no end, and how many bytes it has sent.
    fn endless() -> (kube::Client, Arc<Mutex<usize>>) {
        let sent = Arc::new(Mutex::new(0_usize));
        let counted = sent.clone();
        let service = tower::service_fn(move |_: Request<kube::client::Body>| {
            let counted = counted.clone();
            async move {
                let piece = Bytes::from(vec![b' '; 1 << 16]);
                let pieces = futures::stream::repeat(piece).map(move |p| {
                    *counted.lock() += p.len();
                    Ok::<_, BoxError>(Frame::data(p))
                });
                Ok::<_, BoxError>(Response::new(StreamBody::new(pieces)))
            }
        });
        (
            kube::Client::new(ObjectPaths.layer(service), "default"),
            sent,
        )
    }

    #[tokio::test]
    async fn a_node_does_not_answer_without_end() {
        let (client, _) = endless();
        let ask = |path: &str| Request::get(path).body(Vec::new()).unwrap();
        let answer = client.request_text(ask("/api/v1/nodes/n/proxy/stats/summary"));
        let answer = tokio::time::timeout(std::time::Duration::from_secs(60), answer).await;
        assert!(answer.unwrap().is_err());
        // What is followed goes on.
        for path in [
            "/api/v1/nodes/n/proxy/devices?watch=true",
            "/api/v1/nodes/n",
            "/metrics",
        ] {
            assert!(!is_of_node(&path.parse().unwrap()), "{path}");
        }
    }

    /// Whoever asks a cluster that is not his what it is gets no more than can be that.
    #[tokio::test]
    async fn a_server_does_not_tell_of_itself_without_end() {
        let (client, sent) = endless();
        for path in ["/version", "/readyz?verbose", "/livez/ping", "/healthz"] {
            let request = Request::get(path).body(Vec::new()).unwrap();
            client.request_text(request).await.unwrap_err();
        }
        assert!(*sent.lock() < 8 * WORDS_BYTES);
        let request = Request::get("/configz").body(Vec::new()).unwrap();
        client.request_text(request).await.unwrap_err();
        assert!(*sent.lock() < 2 * OTHER_BYTES);
    }

    /// A server behind an APIService answers whoever follows all kinds.
    #[tokio::test]
    async fn servers_of_others_do_not_answer_without_end() {
        let (client, sent) = endless();
        let kind = kube::api::GroupVersionKind::gvk("g.test", "v1", "Gauge");
        let resource = kube::discovery::ApiResource::from_gvk(&kind);
        let all: Api<kube::api::DynamicObject> = Api::all_with(client.clone(), &resource);
        let watch = all.watch(&WatchParams::default(), "0").await.unwrap();
        let mut watch = std::pin::pin!(watch);
        watch.next().await.unwrap().unwrap_err();
        assert!(*sent.lock() < 2 * EVENT_BYTES);
        all.list_metadata(&ListParams::default()).await.unwrap_err();
        let metrics = Request::get("/apis/metrics.k8s.io/v1beta1/pods");
        let metrics = metrics.body(Vec::new()).unwrap();
        client.request_text(metrics).await.unwrap_err();
        assert!(*sent.lock() < 4 * FOREIGN_BYTES);
        // Nor with more values than there is memory for.
        let service = tower::service_fn(|_: Request<kube::client::Body>| async {
            let items = "{\"metadata\":{}},".repeat(FOREIGN_VALUES / 3);
            let list = format!("{{\"metadata\":{{}},\"items\":[{items}{{}}]}}");
            let event = format!("{{\"type\":\"ADDED\",\"object\":{list}}}\n");
            Ok::<_, BoxError>(Response::new(Full::new(Bytes::from(event))))
        });
        let client = kube::Client::new(ObjectPaths.layer(service), "default");
        let all: Api<kube::api::DynamicObject> = Api::all_with(client, &resource);
        all.list_metadata(&ListParams::default()).await.unwrap_err();
        let watch = all.watch(&WatchParams::default(), "0").await.unwrap();
        let mut watch = std::pin::pin!(watch);
        watch.next().await.unwrap().unwrap_err();
        assert!(!is_of_others(&"/apis/apps/v1/deployments".parse().unwrap()));
        assert!(!is_of_others(&"/api/v1/pods".parse().unwrap()));
    }

    #[tokio::test]
    async fn no_name_makes_another_request() {
        let (client, sent) = recording();
        let pods: Api<Pod> = Api::namespaced(client.clone(), "a");
        let volumes: Api<PersistentVolume> = Api::all(client.clone());
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let patch = Patch::Merge(serde_json::json!({}));
        for name in NAMES {
            assert_eq!(pods.get_opt(name).await.unwrap(), None, "{name}");
            assert!(
                volumes.get_metadata_opt(name).await.unwrap().is_none(),
                "{name}"
            );
            // What is in a namespace looks like it to a path.
            if name != "web/proxy/x" {
                assert_eq!(namespaces.get_opt(name).await.unwrap(), None, "{name}");
            }
            let params = PatchParams::default();
            assert!(pods.patch(name, &params, &patch).await.is_err());
            assert!(pods.patch_status(name, &params, &patch).await.is_err());
            assert!(pods.delete(name, &DeleteParams::default()).await.is_err());
        }
        assert!(sent.lock().is_empty(), "{:?}", sent.lock());
    }

    /// All that `kube` asks about one object: as many requests for a name as it should be, none for what is none.
    async fn all_methods(client: &kube::Client, name: &str) {
        let pods: Api<Pod> = Api::namespaced(client.clone(), "a");
        let sets: Api<Deployment> = Api::namespaced(client.clone(), "a");
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "a");
        let nodes: Api<Node> = Api::all(client.clone());
        let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
        let patch = Patch::Merge(serde_json::json!({}));
        let partial = Patch::Merge(kube::core::ObjectMeta::default().into_request_partial::<Pod>());
        let (how, post) = (PatchParams::default(), PostParams::default());
        let mut pod = Pod::default();
        pod.metadata.resource_version = Some("1".to_owned());
        let body = serde_json::json!({});
        let _ = pods.get(name).await;
        let _ = pods.get_opt(name).await;
        let _ = pods.get_with(name, &GetParams::at("1")).await;
        let _ = pods.get_metadata(name).await;
        let _ = pods.get_metadata_opt(name).await;
        let _ = pods.get_metadata_with(name, &GetParams::any()).await;
        let _ = pods.get_metadata_opt_with(name, &GetParams::any()).await;
        let _ = pods.delete(name, &DeleteParams::default()).await;
        let _ = pods.patch(name, &how, &patch).await;
        let _ = pods.patch_metadata(name, &how, &partial).await;
        let _ = pods.replace(name, &post, &pod).await;
        let _ = pods.get_status(name).await;
        let _ = pods.patch_status(name, &how, &patch).await;
        let _ = pods.replace_status(name, &post, &pod).await;
        let _ = pods.get_subresource("status", name).await;
        let made = pods.create_subresource("x", name, &post, &body);
        let _: kube::Result<Pod> = made.await;
        let _ = pods.patch_subresource("status", name, &how, &patch).await;
        let _ = pods.replace_subresource("status", name, &post, &body).await;
        let _ = pods.get_ephemeral_containers(name).await;
        let _ = pods.patch_ephemeral_containers(name, &how, &patch).await;
        let _ = pods.replace_ephemeral_containers(name, &post, &pod).await;
        let _ = pods.get_resize(name).await;
        let _ = pods.patch_resize(name, &how, &patch).await;
        let _ = pods.replace_resize(name, &post, &pod).await;
        let _ = pods.evict(name, &EvictParams::default()).await;
        let logs = LogParams {
            container: Some("c".to_owned()),
            follow: true,
            limit_bytes: Some(1),
            pretty: true,
            previous: true,
            tail_lines: Some(1),
            timestamps: true,
            ..LogParams::default()
        };
        let _ = pods.logs(name, &logs).await;
        let _ = pods.log_stream(name, &logs).await;
        let _ = sets.get_scale(name).await;
        let _ = sets.patch_scale(name, &how, &patch).await;
        let _ = sets.replace_scale(name, &post, &Scale::default()).await;
        let _ = sets.restart(name).await;
        let _ = nodes.cordon(name).await;
        let _ = nodes.uncordon(name).await;
        let _ = requests.get_approval(name).await;
        let _ = requests.patch_approval(name, &how, &patch).await;
        let asked = TokenRequest::default();
        let _ = accounts.create_token_request(name, &post, &asked).await;
    }

    #[tokio::test]
    async fn all_methods_of_kube_are_held_to_one_object() {
        let (client, sent) = recording();
        for name in [
            "?watch=1",
            "b/pods/x/proxy/y?z=",
            "../secrets/s",
            "..",
            "x/y",
        ] {
            all_methods(&client, name).await;
        }
        assert!(sent.lock().is_empty(), "{:?}", sent.lock());
        all_methods(&client, "p").await;
        assert_eq!(sent.lock().len(), 36, "{:?}", sent.lock());
        sent.lock().clear();
        let maps: Api<ConfigMap> = Api::namespaced(client, "a");
        let all = ListParams::default();
        let _ = maps.list(&all).await;
        let _ = maps.list_metadata(&all).await;
        let _ = maps
            .create(&PostParams::default(), &ConfigMap::default())
            .await;
        let _ = maps.delete_collection(&DeleteParams::default(), &all).await;
        let watch = WatchParams::default();
        let _ = maps.watch(&watch, "0").await.map(drop);
        let _ = maps.watch_metadata(&watch, "0").await.map(drop);
        assert_eq!(sent.lock().len(), 6, "{:?}", sent.lock());
    }

    /// What a newer `kube` has more of its own.
    #[test]
    fn methods_that_nobody_has_looked_at_go_nowhere() {
        let uri = Uri::from_static("/api/v1/namespaces/a/pods/p");
        assert!(is_of_object("get", &uri));
        assert!(!is_of_object("get_something_new", &uri));
    }

    #[tokio::test]
    async fn what_methods_make_goes_through() {
        let (client, sent) = recording();
        let pods: Api<Pod> = Api::namespaced(client.clone(), "a");
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let maps: Api<ConfigMap> = Api::default_namespaced(client);
        let patch = Patch::Apply(serde_json::json!({}));
        let params = PatchParams::apply("me").force();
        let dry = PostParams {
            dry_run: true,
            field_manager: Some("me".to_owned()),
        };
        let _ = pods.get("p").await;
        let _ = pods.get_metadata("p").await;
        let _ = pods.patch("p", &params, &patch).await;
        let _ = pods.patch_status("p", &params, &patch).await;
        let _ = pods.replace("p", &dry, &Pod::default()).await;
        let _ = pods.evict("p", &EvictParams::default()).await;
        let _ = namespaces.get("n").await;
        let _ = namespaces.patch_status("n", &params, &patch).await;
        let _ = maps.list(&ListParams::default().labels("a=b")).await;
        let _ = maps.create(&dry, &ConfigMap::default()).await;
        let sent = sent.lock();
        assert_eq!(sent.len(), 10, "{sent:?}");
        assert_eq!(sent[0], "/api/v1/namespaces/a/pods/p");
    }
}
