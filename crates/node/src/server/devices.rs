//! `/devices`: the device table of the node, once or after each change.

use super::{flag, query, set_type, text};
use crate::context::Context;
use bytes::Bytes;
use davit_api::devices::NodeDevices;
use davit_streaming::Body;
use futures::stream;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use std::sync::Arc;
use std::time::Duration;

/// Changes that follow one another within this time make one line.
const SETTLE: Duration = Duration::from_millis(50);

/// The table as JSON; with `?watch=true` as one JSON document a line, a new one after each change, until the client goes.
pub(super) fn serve<B>(ctx: &Arc<Context>, request: &Request<B>) -> Response<Body> {
    if !flag(&query(request.uri()), &["watch"]) {
        let mut response = text(StatusCode::OK, line(ctx, 0));
        set_type(&mut response, "application/json");
        return response;
    }
    // The first line is the table as it is now, whatever changed before.
    let mut changes = ctx.devices.subscribe();
    changes.mark_changed();
    let lines = stream::unfold(
        (ctx.clone(), changes, 0u64),
        |(ctx, mut changes, generation)| async move {
            // An error means that the container manager has gone, and the node agent with it.
            changes.changed().await.ok()?;
            tokio::time::sleep(SETTLE).await;
            changes.borrow_and_update();
            let frame = Frame::data(line(&ctx, generation));
            Some((
                Ok::<_, std::io::Error>(frame),
                (ctx, changes, generation + 1),
            ))
        },
    );
    let mut response = Response::new(StreamBody::new(lines).boxed_unsync());
    set_type(&mut response, "application/json;stream=watch");
    response
}

fn line(ctx: &Context, generation: u64) -> Bytes {
    let table = NodeDevices {
        node: ctx.options.node_name.clone(),
        generation,
        devices: ctx.devices.devices(),
        held: ctx.devices.holdings(),
        empty: ctx.devices.empty_resources(),
        numa: ctx.devices.numa_places(),
    };
    // A struct of strings and numbers always serialises.
    let mut json = serde_json::to_vec(&table).unwrap_or_default();
    json.push(b'\n');
    json.into()
}
