//! Watching: a stream of events, as JSON lines or WebSocket messages.

mod frames;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use davit_api::status::Status;
use davit_registry::selection::ConvertedFields;
use davit_registry::{ResourceInfo, errors, selection};
use davit_watchcache::{
    CacheError, Delivery, FRESHNESS_TIMEOUT, Freshness, Watch, WatchItem, WatchOptions, WatchStart,
};
use futures::Stream;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response};
use rand::Rng;
use serde_json::Value;
use tokio::time::Instant;

use super::options::ListQuery;
use crate::body::{BoxError, RequestBody, ResponseBody};
use crate::components::Presence;
use crate::context::{Context, HandlerResult};
use crate::metrics::LongRunning;
use crate::negotiate::Offer;
use crate::respond;
use crate::server::ApiServer;
use crate::websocket::{self, Encoding};
use frames::Frames;

/// How long a client may take for an event that is told over a WebSocket; elsewhere the connection knows.
const PATIENCE: Duration = Duration::from_secs(60);
/// No watch is longer, whatever it asks for.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// `GET …?watch=true`.
pub(super) async fn watch(
    server: &Arc<ApiServer>,
    context: &Context,
    resource: &ResourceInfo,
    mut request: Request<RequestBody>,
) -> HandlerResult {
    let accepted = respond::accepted_for(context, resource, Offer::Stream)?;
    let query = ListQuery::parse(context, true)?;
    let namespace = context
        .info
        .namespace
        .as_deref()
        .filter(|_| resource.row.namespaced);
    let selection = selection::select(resource, namespace, &query.labels, &query.fields)?;
    let least = server.min_request_timeout().as_secs().max(1);
    let seconds = query
        .timeout_seconds
        .unwrap_or_else(|| rand::rng().random_range(least..2 * least));
    let options = WatchOptions {
        start: start(&query),
        filter: selection.filter,
        bookmarks: query.bookmarks,
        deadline: Some(Instant::now() + Duration::from_secs(seconds).min(LONGEST)),
    };
    let frames = Frames::new(context, accepted, resource)?;
    let deadline = Instant::now() + FRESHNESS_TIMEOUT;
    let opened = match resource.storage.cache().watch(options, deadline).await {
        Ok(watch) => Ok(watch),
        // too old is told inside the stream, like everything later
        Err(error @ CacheError::Expired { .. }) => Err(errors::cache(error, resource)),
        Err(error) => return Err(errors::cache(error, resource)),
    };
    let content_type = frames.content_type();
    let gauge = server.metrics().long_running(&context.info, "watch");
    let source = Source {
        server: Arc::clone(server),
        watch: opened.map_err(Some),
        fields: selection.converted,
        frames,
        _gauge: gauge,
        _presence: server.components().watches(&context.user.name),
    };
    if websocket::is_wanted(&context.headers) {
        return over_websocket(&mut request, source);
    }
    let mut response = Response::new(ResponseBody::stream(stream(source)));
    let content_type = HeaderValue::from_static(content_type);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    Ok(response)
}

fn start(query: &ListQuery) -> WatchStart {
    let freshness = match query.resource_version {
        None => Freshness::Latest,
        Some(0) => Freshness::Any,
        Some(version) => Freshness::AtLeast(version),
    };
    match (query.send_initial_events, query.resource_version) {
        (Some(true), _) | (None, None | Some(0)) => WatchStart::Initial(freshness),
        (Some(false), None | Some(0)) => WatchStart::Latest,
        (_, Some(version)) => WatchStart::After(version),
    }
}

/// A watch and how its events are written.
struct Source {
    server: Arc<ApiServer>,
    /// The watch; an error still to be told; nothing any more.
    watch: Result<Watch, Option<Status>>,
    /// What the cache could not judge.
    fields: Option<ConvertedFields>,
    frames: Frames,
    _gauge: LongRunning,
    _presence: Option<Presence>,
}

/// Sends the events as messages, without the line ends that part them in a stream.
fn over_websocket(request: &mut Request<RequestBody>, source: Source) -> HandlerResult {
    const PROTOCOLS: [(&str, Encoding); 1] = [("text.kubernetes.io", Encoding::Text)];
    let session = websocket::accept(request, &PROTOCOLS, Encoding::Text)?;
    let server = Arc::clone(&source.server);
    let events = futures::stream::unfold(source, |mut source| async move {
        let event = source.next().await?;
        let end = event.len() - usize::from(event.ends_with(b"\n"));
        Some((event.slice(..end), source))
    });
    let (response, work) = session.start(events, PATIENCE);
    server.nodes().track(work);
    Ok(response)
}

impl Source {
    /// The next piece of the stream.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let watch = match &mut self.watch {
                Ok(watch) => watch,
                Err(status) => return status.take().map(|status| self.frames.error(&status)),
            };
            let item = tokio::select! {
                item = watch.next() => item?,
                () = self.server.shutdown().cancelled() => return None,
            };
            let frame = match item {
                Ok(item) => self.frame(item).await,
                Err(error) => Err(errors::cache(error, self.frames.resource())),
            };
            match frame {
                Ok(None) => {}
                Ok(Some(frame)) => {
                    let resource = self.frames.resource();
                    self.server.metrics().watch_event(&resource.row);
                    return Some(frame);
                }
                Err(status) => {
                    self.watch = Err(None);
                    return Some(self.frames.error(&status));
                }
            }
        }
    }

    /// An item as the client gets it; nothing for an event about an object that it did not ask for.
    async fn frame(&mut self, item: WatchItem) -> Result<Option<Bytes>, Status> {
        let (item, value) = match (item, &self.fields) {
            (WatchItem::Event(delivery), Some(fields)) => match judged(fields, delivery).await? {
                Some((delivery, value)) => (WatchItem::Event(delivery), value),
                None => return Ok(None),
            },
            (item, _) => {
                let value = converted(self.frames.resource(), &item).await?;
                (item, value)
            }
        };
        self.frames.encode(item, value).map(Some)
    }
}

/// The event as a watcher sees it that selects by fields of another version than the cached one, with the object in
/// that version.
async fn judged(
    fields: &ConvertedFields,
    delivery: Delivery,
) -> Result<Option<(Delivery, Option<Value>)>, Status> {
    let (before, after) = delivery.sides();
    let (mut shown_before, mut shown_after, mut value) = (None, None, None);
    if let Some(before) = before {
        let (shown, converted) = fields.judge(&before).await?;
        if shown {
            (shown_before, value) = (Some(before), converted);
        }
    }
    if let Some(after) = after {
        let (shown, converted) = fields.judge(&after).await?;
        if shown {
            (shown_after, value) = (Some(after), converted);
        }
    }
    let seen = delivery.seen(shown_before, shown_after);
    Ok(seen.map(|delivery| (delivery, value)))
}

/// The object of an event of a custom kind in the version that is watched, when the cache has it in
/// another.
async fn converted(resource: &ResourceInfo, item: &WatchItem) -> Result<Option<Value>, Status> {
    let (Some(view), WatchItem::Event(delivery)) = (resource.storage.view(), item) else {
        return Ok(None);
    };
    let object = delivery.object();
    if view.shows_stored() && !object.header().foreign {
        return Ok(None);
    }
    view.read_cached(object).await.map(Some)
}

fn stream(source: Source) -> impl Stream<Item = Result<Bytes, BoxError>> + Send {
    futures::stream::unfold(source, |mut source| async move {
        let frame = source.next().await?;
        Some((Ok(frame), source))
    })
}
