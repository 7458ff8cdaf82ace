//! The OpenAPI endpoints.
//!
//! Documents are made when first asked for and kept compressed: together they are some megabytes
//! that most clients read once.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::sync::Arc;

use bytes::Bytes;
use davit_api::kinds;
use davit_api::status::Status;
use davit_registry::{ResourceInfo, Snapshot};
use davit_schema::openapi::{self, CustomDocument};
use http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, EXPIRES, HeaderValue, IF_NONE_MATCH,
    LOCATION, VARY,
};
use http::{HeaderMap, Response, StatusCode};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha512};
use tokio::sync::OnceCell;

use crate::aggregation::AggregationView;
use crate::body::ResponseBody;
use crate::context::{Context, HandlerResult};
use crate::discovery::upper_hex;
use crate::negotiate::{clauses, takes_gzip};
use crate::respond;
use crate::server::ApiServer;
use crate::version::GIT_VERSION;

/// What the answer is called.
const V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
/// What clients ask for: the `@` makes it no media type at all, so it is never answered.
const V2_PROTOBUF_ASKED: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
const YEAR_SECONDS: u64 = 365 * 24 * 3600;

/// A compressed document.
#[derive(Debug)]
pub(crate) struct Document {
    gzip: Bytes,
    /// Upper-case hex SHA-512 of the uncompressed document.
    pub(crate) hash: String,
}

impl Document {
    pub(crate) fn new(body: &[u8]) -> Self {
        let hash = upper_hex(&Sha512::digest(body));
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        // writing to a Vec cannot fail
        let gzip = encoder
            .write_all(body)
            .and_then(|()| encoder.finish())
            .unwrap_or_default();
        Self {
            gzip: Bytes::from(gzip),
            hash,
        }
    }

    fn plain(&self) -> Result<Vec<u8>, Status> {
        let mut body = Vec::new();
        flate2::read::GzDecoder::new(self.gzip.as_ref())
            .read_to_end(&mut body)
            .map_err(Status::internal)?;
        Ok(body)
    }
}

/// Documents of version 3 by their path.
type Documents = BTreeMap<String, Arc<Document>>;

/// The documents made so far.
#[derive(Debug, Default)]
pub(crate) struct OpenApiCache {
    /// Built-in kinds do not change.
    v3: OnceCell<Arc<Documents>>,
    custom: Mutex<Option<Arc<State>>>,
}

/// The documents of one state of the registry.
#[derive(Debug)]
struct State {
    generation: u64,
    /// Of what backends say.
    aggregation: u64,
    v2: OnceCell<Arc<Document>>,
    v2_protobuf: OnceCell<Arc<Document>>,
    v3: OnceCell<Arc<Documents>>,
    /// What the version 3 documents of custom kinds were made from, to keep those that stay.
    custom: Mutex<CustomDocuments>,
}

/// A custom kind as documents are made from it.
struct Kind {
    info: Arc<ResourceInfo>,
    schema: Value,
    selectable: Vec<&'static str>,
}

fn custom_kinds(infos: &[Arc<ResourceInfo>]) -> Vec<Kind> {
    let kind = |info: &Arc<ResourceInfo>| {
        let schema = info.custom.as_ref().and_then(|custom| custom.raw_schema());
        let selectable = info.custom.iter().flat_map(|custom| &custom.selectable);
        Kind {
            info: Arc::clone(info),
            schema: schema.unwrap_or_default(),
            selectable: selectable.map(|(path, _)| *path).collect(),
        }
    };
    infos.iter().map(kind).collect()
}

fn documents(kinds: &[Kind]) -> Vec<CustomDocument<'_>> {
    fn document(kind: &Kind) -> CustomDocument<'_> {
        let Kind {
            info,
            schema,
            selectable,
        } = kind;
        let list_kind = info.custom.as_ref().map(|c| c.definition.list_kind);
        CustomDocument {
            row: &info.row,
            list_kind: list_kind.unwrap_or_default(),
            schema,
            selectable,
        }
    }
    kinds.iter().map(document).collect()
}

async fn build<T: Send + 'static>(make: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
    tokio::task::spawn_blocking(make)
        .await
        .map_err(Status::internal)
}

impl OpenApiCache {
    /// The documents of the present state of the registry.
    fn state(&self, snapshot: &Snapshot, view: &AggregationView) -> Arc<State> {
        let mut held = self.custom.lock();
        if let Some(state) = held.as_ref()
            && state.generation >= snapshot.generation()
            && state.aggregation >= view.generation
        {
            return Arc::clone(state);
        }
        let kept = held
            .take()
            .map(|old| std::mem::take(&mut *old.custom.lock()));
        let state = Arc::new(State {
            generation: snapshot.generation(),
            aggregation: view.generation,
            v2: OnceCell::new(),
            v2_protobuf: OnceCell::new(),
            v3: OnceCell::new(),
            custom: Mutex::new(kept.unwrap_or_default()),
        });
        *held = Some(Arc::clone(&state));
        state
    }

    async fn v2(
        &self,
        snapshot: &Snapshot,
        view: &AggregationView,
        protobuf: bool,
    ) -> Result<Arc<Document>, Status> {
        let state = self.state(snapshot, view);
        let cell = if protobuf {
            &state.v2_protobuf
        } else {
            &state.v2
        };
        let infos: Vec<_> = custom_rows(snapshot).cloned().collect();
        let remote = view.versions.iter();
        let foreign: Vec<_> = remote.filter_map(|v| v.openapi_v2.clone()).collect();
        let made = cell.get_or_try_init(|| {
            build(move || {
                let table = kinds::builtin();
                let kinds = custom_kinds(&infos);
                let custom = documents(&kinds);
                let body = if protobuf {
                    openapi::v2_protobuf(table, &custom, &foreign, GIT_VERSION)
                } else {
                    openapi::v2_json(table, &custom, &foreign, GIT_VERSION)
                };
                Arc::new(Document::new(&body))
            })
        });
        made.await.cloned()
    }

    async fn v3(
        &self,
        snapshot: &Snapshot,
        view: &AggregationView,
    ) -> Result<Arc<Documents>, Status> {
        let built_in = self.built_in_v3().await?;
        let state = self.state(snapshot, view);
        let mut groups: BTreeMap<String, Vec<Arc<ResourceInfo>>> = BTreeMap::new();
        for info in custom_rows(snapshot) {
            let path = format!("apis/{}/{}", info.row.group, info.row.version);
            groups.entry(path).or_default().push(Arc::clone(info));
        }
        if groups.is_empty() {
            return Ok(Arc::clone(built_in));
        }
        let (built_in, state) = (Arc::clone(built_in), &state);
        let kept = std::mem::take(&mut *state.custom.lock());
        let made = state.v3.get_or_try_init(|| async move {
            let made = build(move || custom_v3(groups, kept)).await?;
            let mut all = (*built_in).clone();
            for (path, (_, document)) in &made {
                all.entry(path.clone())
                    .or_insert_with(|| Arc::clone(document));
            }
            *state.custom.lock() = made;
            Ok(Arc::new(all))
        });
        made.await.cloned()
    }

    async fn built_in_v3(&self) -> Result<&Arc<Documents>, Status> {
        self.v3
            .get_or_try_init(|| {
                build(|| {
                    let table = kinds::builtin();
                    let documents = openapi::v3_paths(table).into_iter().filter_map(|path| {
                        let (group, version) = split(&path)?;
                        let body = openapi::v3_json(table, group, version, GIT_VERSION)?;
                        let document = Arc::new(Document::new(&body));
                        Some((path, document))
                    });
                    Arc::new(documents.collect())
                })
            })
            .await
    }
}

fn custom_rows(snapshot: &Snapshot) -> impl Iterator<Item = &Arc<ResourceInfo>> {
    snapshot.all().filter(|info| info.custom.is_some())
}

type CustomDocuments = BTreeMap<String, (Vec<Arc<ResourceInfo>>, Arc<Document>)>;

/// Makes the documents of custom kinds; those whose rows are the same are kept.
fn custom_v3(
    groups: BTreeMap<String, Vec<Arc<ResourceInfo>>>,
    mut kept: CustomDocuments,
) -> CustomDocuments {
    let same = |a: &[Arc<ResourceInfo>], b: &[Arc<ResourceInfo>]| {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(a, b))
    };
    let document = |(path, infos): (String, Vec<Arc<ResourceInfo>>)| {
        if let Some((rows, document)) = kept.remove(&path)
            && same(&rows, &infos)
        {
            return (path, (rows, document));
        }
        let kinds = custom_kinds(&infos);
        let body = openapi::v3_custom_json(kinds::builtin(), &documents(&kinds), GIT_VERSION);
        (path, (infos, Arc::new(Document::new(&body))))
    };
    groups.into_iter().map(document).collect()
}

/// `api/v1` or `apis/{group}/{version}` as group and version.
fn split(path: &str) -> Option<(&str, &str)> {
    if let Some(version) = path.strip_prefix("api/") {
        return Some(("", version));
    }
    path.strip_prefix("apis/")?.split_once('/')
}

/// `GET /openapi/v2`.
pub(crate) async fn v2(server: &ApiServer, context: &Context) -> HandlerResult {
    let wanted = clauses(&context.headers);
    let mut form = None;
    for clause in &wanted {
        form = match clause.media.as_str() {
            V2_PROTOBUF | V2_PROTOBUF_ASKED => Some((true, V2_PROTOBUF)),
            "application/json" | "*/*" | "application/*" => Some((false, "application/json")),
            _ => None,
        };
        if form.is_some() {
            break;
        }
    }
    let Some((protobuf, content_type)) =
        form.or_else(|| wanted.is_empty().then_some((false, "application/json")))
    else {
        return Err(Status::not_acceptable(&["application/json", V2_PROTOBUF]));
    };
    let snapshot = server.registry().snapshot();
    let view = server.aggregation().view();
    let document = server.openapi().v2(&snapshot, &view, protobuf).await?;
    let mut response = send(&context.headers, &document, content_type)?;
    response
        .headers_mut()
        .append(VARY, HeaderValue::from_static("Accept"));
    Ok(response)
}

/// `GET /openapi/v3`.
pub(crate) async fn v3_index(server: &ApiServer, context: &Context) -> HandlerResult {
    let snapshot = server.registry().snapshot();
    let view = server.aggregation().view();
    let documents = server.openapi().v3(&snapshot, &view).await?;
    let mut paths = Map::new();
    for (path, document) in documents.iter() {
        let url = document_url(path, &document.hash);
        paths.insert(path.clone(), json!({ "serverRelativeURL": url }));
    }
    for remote in &view.versions {
        let path = format!("apis/{}/{}", remote.group, remote.version);
        match &remote.openapi {
            Some(document) => {
                let url = document_url(&path, &document.hash);
                paths.insert(path, json!({ "serverRelativeURL": url }));
            }
            None => {
                paths.remove(&path);
            }
        }
    }
    respond::document(
        context,
        StatusCode::OK,
        &json!({ "paths": Value::Object(paths) }),
    )
}

fn document_url(path: &str, hash: &str) -> String {
    format!("/openapi/v3/{path}?hash={hash}")
}

/// `GET /openapi/v3/{path}`.
pub(crate) async fn v3_document(
    server: &ApiServer,
    context: &Context,
    path: &str,
) -> HandlerResult {
    let snapshot = server.registry().snapshot();
    let view = server.aggregation().view();
    let documents = server.openapi().v3(&snapshot, &view).await?;
    let remote = split(path).and_then(|(group, version)| view.find(group, version));
    let found = match remote {
        Some(remote) => remote.openapi.as_deref(),
        None => documents.get(path).map(|document| &**document),
    };
    let Some(document) = found else {
        return Ok(respond::page_not_found());
    };
    let asked = context.query.text("hash");
    if asked.is_some_and(|hash| hash != document.hash) {
        let mut response = Response::new(ResponseBody::empty());
        *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
        if let Ok(url) = HeaderValue::from_str(&document_url(path, &document.hash)) {
            response.headers_mut().insert(LOCATION, url);
        }
        return Ok(response);
    }
    let acceptable = clauses(&context.headers);
    let json = acceptable.is_empty()
        || acceptable.iter().any(|c| {
            matches!(
                c.media.as_str(),
                "application/json" | "*/*" | "application/*"
            )
        });
    if !json {
        return Err(Status::not_acceptable(&["application/json"]));
    }
    let mut response = send(&context.headers, document, "application/json")?;
    if asked.is_some() {
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
        let until = std::time::SystemTime::now() + std::time::Duration::from_secs(YEAR_SECONDS);
        if let Ok(value) = HeaderValue::from_str(&http_date(until)) {
            headers.insert(EXPIRES, value);
        }
    }
    Ok(response)
}

fn http_date(at: std::time::SystemTime) -> String {
    jiff::Timestamp::try_from(at)
        .unwrap_or_else(|_| jiff::Timestamp::now())
        .strftime("%a, %d %b %Y %H:%M:%S GMT")
        .to_string()
}

fn send(
    request: &HeaderMap,
    document: &Document,
    content_type: &'static str,
) -> Result<Response<ResponseBody>, Status> {
    let etag = format!("\"{}\"", document.hash);
    let known = request
        .get(IF_NONE_MATCH)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value == etag);
    let gzip = takes_gzip(request);
    let mut response = if known {
        let mut response = Response::new(ResponseBody::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else if gzip {
        let mut response = Response::new(document.gzip.clone().into());
        response
            .headers_mut()
            .insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        response
    } else {
        Response::new(document.plain()?.into())
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
    if let Ok(value) = HeaderValue::from_str(&etag) {
        headers.insert(ETAG, value);
    }
    Ok(response)
}
