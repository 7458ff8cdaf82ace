//! Listing: selectors, pages, and how fresh the answer is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use davit_api::status::Status;
use davit_registry::storage::Storage;
use davit_registry::{ResourceInfo, convert, errors, selection};
use davit_watchcache::{
    CacheError, CachedObject, FRESHNESS_TIMEOUT, Filter, Freshness, PageOptions, Snapshot,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::options::{ListQuery, VersionMatch};
use crate::context::{Context, HandlerResult};
use crate::negotiate::Offer;
use crate::respond::{self, Item, ListMeta};

const FRESH_WAIT: Duration = Duration::from_secs(3);
const FRESH_PAUSE: Duration = Duration::from_millis(25);
const TOKEN_VERSION: &str = "meta.k8s.io/v1";

/// Where the next page starts.
#[derive(Debug, Serialize, Deserialize)]
struct Token {
    #[serde(default)]
    v: String,
    /// The revision of all pages; -1 goes on at the latest state.
    #[serde(default)]
    rv: i64,
    /// The first key, relative to the resource's prefix.
    #[serde(default)]
    start: String,
}

impl Token {
    fn encode(&self) -> String {
        // three plain fields always serialize
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }

    fn decode(text: &str) -> Result<Self, Status> {
        let malformed = |why: String| {
            Status::bad_request(format!(
                "invalid continue token: continue key is not valid: {why}"
            ))
        };
        let bytes = URL_SAFE_NO_PAD
            .decode(text.trim_end_matches('='))
            .map_err(|error| malformed(error.to_string()))?;
        let token: Self =
            serde_json::from_slice(&bytes).map_err(|error| malformed(error.to_string()))?;
        if token.v != TOKEN_VERSION {
            let why = format!("server does not recognize this encoded version {}", token.v);
            return Err(malformed(why));
        }
        if token.rv == 0 || token.start.is_empty() {
            return Err(malformed(
                "incorrect encoded start resourceVersion".to_owned(),
            ));
        }
        if token
            .start
            .split('/')
            .any(|part| part == ".." || part == ".")
        {
            return Err(malformed(token.start));
        }
        Ok(token)
    }
}

/// `GET` on a collection.
pub(super) async fn list(context: &Context, resource: &ResourceInfo) -> HandlerResult {
    let accepted = respond::accepted_for(context, resource, Offer::Objects)?;
    let query = ListQuery::parse(context, false)?;
    let found = find(context, resource, &query).await?;
    let items = match found.shown {
        Some(items) => items,
        None => items(resource, &found.items).await?,
    };
    respond::list(context, accepted, resource, items, &found.meta)
}

/// Objects in the version that was asked for; those of a custom kind that must be converted are
/// converted together.
async fn items(
    resource: &ResourceInfo,
    objects: &[Arc<CachedObject>],
) -> Result<Vec<Item>, Status> {
    errors::readable(objects.iter().map(|object| &**object), resource)?;
    let Some(view) = resource.storage.view() else {
        return objects
            .iter()
            .map(|object| item(resource, object))
            .collect();
    };
    let is_ready = |object: &CachedObject| view.shows_stored() && !object.header().foreign;
    let rest = objects.iter().filter(|object| !is_ready(object));
    let rest = rest.map(|object| serde_json::from_slice(&object.json()).map_err(Status::internal));
    let rest: Vec<Value> = rest.collect::<Result<_, _>>()?;
    let mut rest = view.read(rest).await?.into_iter();
    let item = |object: &Arc<CachedObject>| {
        if is_ready(object) {
            return Ok(Item::Cached(Arc::clone(object)));
        }
        let value = rest.next();
        let lost = || Status::internal("a conversion lost an object");
        value.map(Item::Value).ok_or_else(lost)
    };
    objects.iter().map(item).collect()
}

/// An object in the version that was asked for; the cache's own bytes when that is the stored one.
fn item(resource: &ResourceInfo, object: &Arc<CachedObject>) -> Result<Item, Status> {
    if !resource.is_converted() {
        return Ok(Item::Cached(Arc::clone(object)));
    }
    let value = serde_json::from_slice(&object.json()).map_err(Status::internal)?;
    convert::from_storage(resource, value).map(Item::Value)
}

/// Objects of the storage version.
pub(crate) struct StoredPage {
    pub(crate) items: Vec<Arc<CachedObject>>,
    /// The same in the version that was asked for, if they had to be converted to be found.
    shown: Option<Vec<Item>>,
    pub(crate) meta: ListMeta,
}

/// The objects a query asks for.
pub(crate) async fn find(
    context: &Context,
    resource: &ResourceInfo,
    query: &ListQuery,
) -> Result<StoredPage, Status> {
    let namespace = context
        .info
        .namespace
        .as_deref()
        .filter(|_| resource.row.namespaced);
    let selection = selection::select(resource, namespace, &query.labels, &query.fields)?;
    let mut found = candidates(resource, query, &selection.filter).await?;
    if let Some(fields) = &selection.converted {
        let kept = fields.retain(std::mem::take(&mut found.items)).await?;
        let mut shown = Vec::new();
        for (object, value) in kept {
            shown.push(match value {
                Some(value) => Item::Value(value),
                None => Item::Cached(Arc::clone(&object)),
            });
            found.items.push(object);
        }
        found.shown = Some(shown);
        // How many of the rest match is not known.
        found.meta.remaining = None;
    }
    Ok(found)
}

/// The objects that the cache's filter lets pass.
async fn candidates(
    resource: &ResourceInfo,
    query: &ListQuery,
    filter: &Filter,
) -> Result<StoredPage, Status> {
    let cache = resource.storage.cache();
    // who asks for one object gets it or nothing, but no further page
    let has_place = filter.namespace.is_some() || !resource.row.namespaced;
    let limit = query.limit.filter(|_| !(is_single(filter) && has_place));
    let deadline = tokio::time::Instant::now() + FRESHNESS_TIMEOUT;
    let fail = |error| errors::cache(error, resource);
    let options = match (&query.continue_token, query.resource_version) {
        (Some(text), _) => {
            let token = Token::decode(text)?;
            let start = format!("{}{}", resource.storage.prefix(), token.start);
            let revision = u64::try_from(token.rv).ok();
            PageOptions {
                start: Some(start),
                limit,
                revision,
            }
        }
        (None, Some(0)) => {
            // "any" is answered from memory, whole
            let list = cache
                .list(Freshness::Any, filter, deadline)
                .await
                .map_err(fail)?;
            return Ok(whole(list));
        }
        (None, Some(version)) => {
            let exact = query.version_match == VersionMatch::Exact
                || (query.version_match == VersionMatch::Unset && limit.is_some());
            if !exact && limit.is_none() {
                let fresh = Freshness::AtLeast(version);
                return Ok(whole(
                    cache.list(fresh, filter, deadline).await.map_err(fail)?,
                ));
            }
            if !exact {
                wait_for_revision(&resource.storage, version).await?;
            }
            let revision = exact.then_some(version);
            PageOptions {
                start: None,
                limit,
                revision,
            }
        }
        (None, None) if limit.is_none() && !is_single(filter) => {
            let list = cache
                .list(Freshness::Latest, filter, deadline)
                .await
                .map_err(fail)?;
            return Ok(whole(list));
        }
        (None, None) => PageOptions {
            start: None,
            limit,
            revision: None,
        },
    };
    page(resource, filter, options, deadline).await
}

/// Whether at most one object can match, which is not worth starting a cache for.
fn is_single(filter: &Filter) -> bool {
    filter.name.is_some()
}

fn whole(list: Snapshot) -> StoredPage {
    let meta = ListMeta {
        revision: list.revision,
        ..ListMeta::default()
    };
    StoredPage {
        items: list.items,
        shown: None,
        meta,
    }
}

async fn page(
    resource: &ResourceInfo,
    filter: &Filter,
    options: PageOptions,
    deadline: tokio::time::Instant,
) -> Result<StoredPage, Status> {
    let storage = &resource.storage;
    let start = options.start.clone();
    let page = match storage.cache().page(options, filter, deadline).await {
        Ok(page) => page,
        Err(CacheError::Expired { .. }) if start.is_some() => {
            return Err(expired_token(storage.prefix(), start.as_deref()));
        }
        Err(CacheError::Expired { .. }) => {
            return Err(Status::expired(
                "The resourceVersion for the provided list is too old.",
            ));
        }
        Err(error) => return Err(errors::cache(error, resource)),
    };
    let next = page
        .next
        .as_deref()
        .map(|key| key.strip_prefix(storage.prefix()).unwrap_or(key));
    let remaining = page.remaining.filter(|_| next.is_some());
    let meta = ListMeta {
        revision: page.revision,
        continue_token: next.map(|key| next_token(page.revision, key)),
        remaining: remaining.map(|count| count as u64),
    };
    Ok(StoredPage {
        items: page.items,
        shown: None,
        meta,
    })
}

fn next_token(revision: u64, key: &str) -> String {
    Token {
        v: TOKEN_VERSION.to_owned(),
        rv: i64::try_from(revision).unwrap_or(i64::MAX),
        start: key.to_owned(),
    }
    .encode()
}

fn expired_token(prefix: &str, start: Option<&str>) -> Status {
    let mut status = Status::expired(
        "The provided continue parameter is too old to display a consistent list result. You can \
         start a new list without the continue parameter, or use the continue token in this \
         response to retrieve the remainder of the results. Continuing with the provided token \
         results in an inconsistent list - objects that were created, modified, or deleted between \
         the time the first chunk was returned and now may show up in the list.",
    );
    if let Some(start) = start.and_then(|start| start.strip_prefix(prefix)) {
        let token = Token {
            v: TOKEN_VERSION.to_owned(),
            rv: -1,
            start: start.to_owned(),
        };
        status.metadata.continue_token = token.encode();
    }
    status
}

/// Waits a moment for a revision that does not exist yet (another server's write).
pub(crate) async fn wait_for_revision(storage: &Storage, wanted: u64) -> Result<(), Status> {
    let until = Instant::now() + FRESH_WAIT;
    let store = storage.store();
    loop {
        if store.revision() >= wanted {
            return Ok(());
        }
        let current = store.current_revision().await.map_err(Status::internal)?;
        if current >= wanted {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(Status::too_large_resource_version(wanted, current));
        }
        tokio::time::sleep(FRESH_PAUSE).await;
    }
}
