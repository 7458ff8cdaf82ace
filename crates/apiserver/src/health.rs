//! `/healthz`, `/livez`, `/readyz`.

use std::fmt::Write as _;
use std::time::Duration;

use davit_store::Error as StoreError;
use http::StatusCode;

use crate::context::{Context, HandlerResult};
use crate::respond;
use crate::server::ApiServer;

/// The plugins that keep keys of encryption at rest; a check only when there are any.
const KMS: &str = "kms-providers";
const STORE_DEADLINE: Duration = Duration::from_secs(2);

/// What every endpoint looks at first.
const BASICS: &[&str] = &["ping", "log", "etcd"];
/// What must have happened since the start, by the names of kube-apiserver.
const STARTED: &[&str] = &[
    "poststarthook/start-apiserver-admission-initializer",
    "poststarthook/generic-apiserver-start-informers",
    "poststarthook/storage-readiness",
    "poststarthook/priority-and-fairness-config-consumer",
    "poststarthook/priority-and-fairness-config-producer",
    "poststarthook/priority-and-fairness-filter",
    "poststarthook/start-apiextensions-informers",
    "poststarthook/start-apiextensions-controllers",
    "poststarthook/crd-informer-synced",
    "poststarthook/start-system-namespaces-controller",
    "poststarthook/start-cluster-authentication-info-controller",
    "poststarthook/start-legacy-token-tracking-controller",
    "poststarthook/rbac/bootstrap-roles",
    "poststarthook/scheduling/bootstrap-system-priority-classes",
    "poststarthook/bootstrap-controller",
    "poststarthook/start-service-ip-repair-controllers",
    "poststarthook/start-kube-aggregator-informers",
    "poststarthook/apiservice-status-local-available-controller",
    "poststarthook/apiservice-status-remote-available-controller",
    "poststarthook/apiservice-registration-controller",
    "poststarthook/apiservice-discovery-controller",
    "poststarthook/kube-apiserver-autoregistration",
    "autoregister-completion",
    "poststarthook/apiservice-openapi-controller",
    "poststarthook/apiservice-openapiv3-controller",
];

/// The names of an endpoint's checks.
pub(crate) fn checks(endpoint: &str) -> impl Iterator<Item = &'static str> {
    let (before, after): (&[_], &[_]) = match endpoint {
        "readyz" => (&["etcd-readiness", "informer-sync"], &["shutdown"]),
        _ => (&[], &[]),
    };
    [BASICS, before, STARTED, after]
        .into_iter()
        .flatten()
        .copied()
}

/// What the stores say of themselves, if they say anything in time. A full disk is no reason to start the server again, but one
/// not to send it requests.
async fn store_health(server: &ApiServer) -> Option<Result<(), StoreError>> {
    let asked = async {
        for store in server.registry().stores().all() {
            store.current_revision().await?;
            store.health().await?;
        }
        Ok(())
    };
    tokio::time::timeout(STORE_DEADLINE, asked).await.ok()
}

async fn passes(server: &ApiServer, check: &str) -> bool {
    match check {
        "etcd" => matches!(
            store_health(server).await,
            Some(Ok(()) | Err(StoreError::Full))
        ),
        "etcd-readiness" => matches!(store_health(server).await, Some(Ok(()))),
        KMS => server.stored().main().plugins_are_well().unwrap_or(true),
        "shutdown" => !server.is_stopping() && !server.shutdown().is_cancelled(),
        // the APIServices are kept by the last of these, after everything else has begun
        "autoregister-completion"
        | "poststarthook/apiservice-status-local-available-controller"
        | "poststarthook/apiservice-registration-controller"
        | "poststarthook/kube-apiserver-autoregistration" => {
            server.aggregation().is_registered() || server.shutdown().is_cancelled()
        }
        // what these stand for has happened when the server says that it is ready
        check if check.starts_with("poststarthook/") || check == "informer-sync" => {
            server.is_ready() || server.shutdown().is_cancelled()
        }
        _ => true,
    }
}

/// Answers a health request for all checks, or for the one named `single`.
pub(crate) async fn answer(
    server: &ApiServer,
    context: &Context,
    endpoint: &'static str,
    single: &str,
) -> HandlerResult {
    let has_plugins = server.stored().main().plugins_are_well();
    let kms: &[&'static str] = if has_plugins.is_some() { &[KMS] } else { &[] };
    let all: Vec<&'static str> = checks(endpoint).chain(kms.iter().copied()).collect();
    let chosen: Vec<&'static str> = if single.is_empty() {
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
        let passed = passes(server, check).await;
        // as kube-apiserver, which does not count checks that are asked for alone
        if single.is_empty() {
            server.metrics().health.count(endpoint, check, passed);
        }
        if passed {
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
