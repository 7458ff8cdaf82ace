//! OpenAPI documents.
//!
//! They are made when first asked for and kept compressed: together they are some megabytes
//! that most clients read once.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::sync::Arc;

use bytes::Bytes;
use davit_api::kinds;
use davit_api::status::Status;
use davit_registry::{ResourceInfo, Snapshot};
use davit_schema::openapi::{self, CustomDocument};
use parking_lot::Mutex;
use serde_json::Value;
use sha2::{Digest, Sha512};
use tokio::sync::OnceCell;

use crate::aggregation::AggregationView;
use crate::body::ResponseBody;
use crate::discovery::upper_hex;
use crate::version::GIT_VERSION;

/// Bytes of a document that are unpacked at a time.
const PIECE: usize = 64 << 10;

/// A compressed document.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) gzip: Bytes,
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

    /// The document as it is, unpacked as it is taken: that of a backend has any size.
    pub(crate) fn plain(&self) -> ResponseBody {
        let packed = std::io::Cursor::new(self.gzip.clone());
        let mut unpacked = flate2::read::GzDecoder::new(packed);
        let pieces = std::iter::from_fn(move || {
            let mut piece = vec![0; PIECE];
            match unpacked.read(&mut piece) {
                Ok(0) => None,
                Ok(length) => {
                    piece.truncate(length);
                    Some(Ok(Bytes::from(piece)))
                }
                Err(error) => Some(Err(error.into())),
            }
        });
        ResponseBody::stream(futures::stream::iter(pieces))
    }
}

/// Documents of version 3 by their path.
pub(crate) type Documents = BTreeMap<String, Arc<Document>>;

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

    pub(crate) async fn v2(
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

    pub(crate) async fn v3(
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
                        let (group, version) = group_version(&path)?;
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
pub(crate) fn group_version(path: &str) -> Option<(&str, &str)> {
    if let Some(version) = path.strip_prefix("api/") {
        return Some(("", version));
    }
    path.strip_prefix("apis/")?.split_once('/')
}
