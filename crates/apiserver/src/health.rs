//! `/healthz`, `/livez`, `/readyz`.

use std::fmt::Write as _;
use std::time::Duration;

use http::StatusCode;

use crate::context::{Context, HandlerResult};
use crate::respond;
use crate::server::ApiServer;

const STORE_DEADLINE: Duration = Duration::from_secs(2);

/// The names of an endpoint's checks.
pub(crate) fn checks(endpoint: &str) -> &'static [&'static str] {
    match endpoint {
        "readyz" => &[
            "ping",
            "log",
            "etcd",
            "etcd-readiness",
            "informer-sync",
            "poststarthook/bootstrap-objects",
            "shutdown",
        ],
        _ => &["ping", "log", "etcd", "poststarthook/bootstrap-objects"],
    }
}

async fn passes(server: &ApiServer, check: &str) -> bool {
    match check {
        "etcd" | "etcd-readiness" => {
            let asked = server.store().current_revision();
            matches!(tokio::time::timeout(STORE_DEADLINE, asked).await, Ok(Ok(_)))
        }
        "shutdown" => !server.is_stopping() && !server.shutdown().is_cancelled(),
        "poststarthook/bootstrap-objects" | "informer-sync" => {
            server.is_ready() || server.shutdown().is_cancelled()
        }
        _ => true,
    }
}

/// Answers a health request for all checks, or for the one named `single`.
pub(crate) async fn answer(
    server: &ApiServer,
    context: &Context,
    endpoint: &str,
    single: &str,
) -> HandlerResult {
    let all = checks(endpoint);
    let chosen: Vec<&str> = if single.is_empty() {
        let excluded: Vec<&str> = context.query.all("exclude").collect();
        all.iter()
            .copied()
            .filter(|check| !excluded.contains(check))
            .collect()
    } else if let Some(check) = all.iter().copied().find(|check| *check == single) {
        vec![check]
    } else {
        return Ok(respond::page_not_found());
    };
    let mut lines = String::new();
    let mut failed = false;
    for check in chosen {
        if passes(server, check).await {
            let _ = writeln!(lines, "[+]{check} ok");
        } else {
            failed = true;
            let _ = writeln!(lines, "[-]{check} failed: reason withheld");
        }
    }
    for check in context
        .query
        .all("exclude")
        .filter(|check| all.contains(check))
    {
        let _ = writeln!(lines, "[+]{check} excluded: ok");
    }
    if failed {
        let _ = writeln!(lines, "{endpoint} check failed");
        return Ok(respond::text(StatusCode::INTERNAL_SERVER_ERROR, lines));
    }
    if context.query.get("verbose").is_some() && single.is_empty() {
        let _ = writeln!(lines, "{endpoint} check passed");
        return Ok(respond::text(StatusCode::OK, lines));
    }
    Ok(respond::text(StatusCode::OK, "ok"))
}
