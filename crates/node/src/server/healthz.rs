//! Whether the agent is well.

use super::{not_found, text};
use crate::context::Context;
use davit_streaming::Body;
use http::{Response, StatusCode};

/// The answer to a path below `/healthz`.
pub(super) fn answer(ctx: &Context, path: &[&str]) -> Response<Body> {
    match path {
        ["healthz"] => whole(ctx),
        ["healthz", "ping" | "log" | "syncloop"] => text(StatusCode::OK, "ok"),
        _ => not_found(),
    }
}

/// All checks.
fn whole(ctx: &Context) -> Response<Body> {
    let serves_plugins = ctx.devices.healthy();
    for (check, passed) in [
        ("ping", true),
        ("log", true),
        ("syncloop", true),
        ("device-plugin", serves_plugins),
    ] {
        ctx.metrics.health.count("healthz", check, passed);
    }
    match serves_plugins {
        true => text(StatusCode::OK, "ok"),
        false => text(
            StatusCode::INTERNAL_SERVER_ERROR,
            "device-plugin registration server is not serving",
        ),
    }
}
