//! `POST /davit.dev/backup`: all objects at one revision, while the server goes on.
//!
//! It is a POST because roles that may read all paths that are no resources (`nonResourceURLs: ["*"]`, verb get) are
//! given to monitors: here are the Secrets, too.

use bytes::Bytes;
use davit_api::status::Status;
use davit_store::backup::BackupEncoder;
use davit_store::{Error, ListOptions};
use futures::Stream;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};

use crate::body::ResponseBody;
use crate::context::HandlerResult;
use crate::server::{ApiServer, OF_SERVERS};
use crate::stored_form::StoredForm;

/// The path, without slashes at its ends.
pub(crate) const PATH: &str = "davit.dev/backup";

/// Pairs in one piece.
const PAGE: usize = 500;

/// Where the next piece begins.
enum Next {
    Beginning,
    Pairs {
        encoder: BackupEncoder,
        start: Option<String>,
    },
    Over,
}

/// Answers with a backup, in davit's own form whatever the store's. Values that are encrypted at rest are so in the backup.
pub(crate) async fn answer(server: &ApiServer) -> HandlerResult {
    if server.registry().stores().are_several() {
        let why = "objects are in several etcds (--etcd-servers-overrides), and a backup is of one: take a snapshot of each";
        return Err(Status::bad_request(why));
    }
    let store = server.store();
    let revision = store.current_revision().await.map_err(Status::internal)?;
    let mut response = Response::new(ResponseBody::stream(pieces(
        server.stored().main().clone(),
        revision,
    )));
    *response.status_mut() = StatusCode::OK;
    let kind = HeaderValue::from_static("application/octet-stream");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    Ok(response)
}

type Piece = Result<Bytes, Box<dyn std::error::Error + Send + Sync>>;

fn pieces(stored: StoredForm, revision: u64) -> impl Stream<Item = Piece> + Send + 'static {
    futures::stream::unfold(Next::Beginning, move |next| {
        let stored = stored.clone();
        async move {
            match next {
                Next::Beginning => {
                    let (encoder, first) = BackupEncoder::begin(revision);
                    let pairs = Next::Pairs {
                        encoder,
                        start: None,
                    };
                    Some((Ok(first), pairs))
                }
                Next::Pairs { encoder, start } => {
                    Some(match page(&stored, revision, encoder, start).await {
                        Ok(piece) => (Ok(piece.0), piece.1),
                        // The client sees a file that is cut short, and says so.
                        Err(error) => {
                            tracing::warn!(%error, "a backup was broken off");
                            (Err(error.into()), Next::Over)
                        }
                    })
                }
                Next::Over => None,
            }
        }
    })
}

async fn page(
    stored: &StoredForm,
    revision: u64,
    mut encoder: BackupEncoder,
    start: Option<String>,
) -> Result<(Bytes, Next), Error> {
    let options = ListOptions {
        start,
        limit: Some(PAGE),
        revision: Some(revision),
    };
    let listing = stored.backup_store().list("", options).await?;
    let last = listing.items.last().filter(|_| listing.more);
    let start = last.map(|last| format!("{}\0", last.key));
    let mut items = Vec::with_capacity(listing.items.len());
    let of_cluster = listing.items.into_iter();
    for pair in of_cluster.filter(|pair| !is_of_servers(&pair.key)) {
        let pair = stored.for_backup(pair).await;
        items.push(pair.map_err(|error| Error::Io {
            action: "encrypt a value of the backup",
            detail: error.to_string(),
        })?);
    }
    let pairs = encoder.pairs(&items);
    if start.is_none() {
        return Ok(([pairs, encoder.end()].concat().into(), Next::Over));
    }
    Ok((pairs, Next::Pairs { encoder, start }))
}

/// What servers say of themselves is none of the cluster that is made of the backup.
fn is_of_servers(key: &str) -> bool {
    OF_SERVERS.iter().any(|prefix| key.starts_with(prefix))
}
