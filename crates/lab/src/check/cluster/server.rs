//! The API server, by what it is seen to do: sections 1.2 and 5 of the benchmark where no flag is needed.

use serde_json::Value;

use super::facts::{Attempt, Facts};
use super::{CheckResult, Finding, Judged};

/// Paths that everybody may ask for.
const PUBLIC: [&str; 4] = ["/healthz", "/livez", "/readyz", "/version"];

fn answer(facts: &Facts, attempt: Attempt) -> Result<(u16, &Value), String> {
    let answer = facts.tried.answers.get(&attempt);
    let why = || facts.tried.no_dry_run.clone();
    let why = || why().unwrap_or_else(|| "the API server did not answer".to_owned());
    answer.map(|(code, body)| (*code, body)).ok_or_else(why)
}

fn message(body: &Value) -> &str {
    body["message"].as_str().unwrap_or_default()
}

fn unclear(code: u16, body: &Value) -> String {
    format!(
        "it cannot be told from the answer: HTTP {code} {}",
        message(body)
    )
}

/// Callers without credentials get nothing but what is public.
pub(super) fn anonymous(facts: &Facts) -> Judged {
    let answers = facts.tried.anonymous.as_ref().map_err(Clone::clone)?;
    let served = answers.iter().filter(|(_, code)| **code < 400);
    let (public, open): (Vec<&String>, Vec<&String>) = served
        .map(|(path, _)| path)
        .partition(|path| PUBLIC.contains(&path.as_str()));
    let owned = |paths: Vec<&String>| paths.into_iter().cloned().collect();
    if answers.is_empty() {
        return Err("the API server did not answer without credentials".to_owned());
    }
    Ok(Finding::graded(
        owned(open),
        "paths are served without credentials",
        owned(public),
        "public paths, and no others, are served without credentials",
        "nothing is served without credentials",
    ))
}

/// Somebody unknown may do nothing.
pub(super) fn not_always_allow(facts: &Facts) -> Judged {
    let (code, body) = answer(facts, Attempt::ReviewOfNobody)?;
    match body["status"]["allowed"].as_bool() {
        Some(true) => {
            let seen = "a user whom no role knows may read every Secret";
            Ok(Finding::of(CheckResult::Fail, seen, Vec::new()))
        }
        Some(false) => Ok(Finding::pass(
            "a user whom no role knows may read no Secret",
        )),
        None => Err(unclear(code, body)),
    }
}

/// The Node authorizer is asked about nodes.
pub(super) fn node_authorizer(facts: &Facts) -> Judged {
    let (code, body) = answer(facts, Attempt::ReviewOfNode)?;
    let reason = body["status"]["reason"].as_str().unwrap_or_default();
    match body["status"]["allowed"].as_bool() {
        Some(true) => {
            let seen = "a node may read Secrets that no pod of it uses";
            Ok(Finding::of(CheckResult::Fail, seen, Vec::new()))
        }
        Some(false) if reason.contains("no relationship found") => Ok(Finding::pass(
            "a node may read the Secrets of its pods and no others",
        )),
        _ => Err(unclear(code, body)),
    }
}

/// Roles are asked.
pub(super) fn rbac(facts: &Facts) -> Judged {
    let (code, body) = answer(facts, Attempt::ReviewOfScheduler)?;
    let reason = body["status"]["reason"].as_str().unwrap_or_default();
    if reason.starts_with("RBAC:") {
        return Ok(Finding::pass("the scheduler may list pods by its role"));
    }
    Err(unclear(code, body))
}

/// Services get no external addresses.
pub(super) fn external_addresses(facts: &Facts) -> Judged {
    let (code, body) = answer(facts, Attempt::ExternalAddress)?;
    match code {
        403 => Ok(Finding::pass("a Service with externalIPs is refused")),
        200..=299 => {
            let seen = "a Service with any externalIPs is admitted";
            Ok(Finding::of(CheckResult::Warn, seen, Vec::new()))
        }
        _ => Err(unclear(code, body)),
    }
}

/// Images are always pulled.
pub(super) fn always_pull(facts: &Facts) -> Judged {
    let (code, body) = answer(facts, Attempt::Pod)?;
    match body["spec"]["containers"][0]["imagePullPolicy"].as_str() {
        Some("Always") => Ok(Finding::pass("a pod was given imagePullPolicy Always")),
        Some(policy) => {
            let seen = format!("a pod keeps imagePullPolicy {policy}");
            Ok(Finding::of(CheckResult::Warn, seen, Vec::new()))
        }
        None => Err(unclear(code, body)),
    }
}

/// Pods get an account.
pub(super) fn service_account(facts: &Facts) -> Judged {
    let (code, body) = answer(facts, Attempt::Pod)?;
    match (code, body["spec"]["serviceAccountName"].as_str()) {
        (200..=299, Some(name)) if !name.is_empty() => {
            Ok(Finding::pass("a pod was given an account"))
        }
        (200..=299, _) => {
            let seen = "a pod was given no account";
            Ok(Finding::of(CheckResult::Fail, seen, Vec::new()))
        }
        _ if message(body).contains("service account") => {
            Ok(Finding::pass("a pod whose account is not there is refused"))
        }
        _ => Err(unclear(code, body)),
    }
}

/// Nothing is made in a namespace that does not exist.
pub(super) fn namespace_lifecycle(facts: &Facts) -> Judged {
    let (code, body) = answer(facts, Attempt::NoNamespace)?;
    match code {
        200..=299 => {
            let seen = "a pod is admitted to a namespace that does not exist";
            Ok(Finding::of(CheckResult::Fail, seen, Vec::new()))
        }
        404 => Ok(Finding::pass(
            "a pod in a namespace that does not exist is refused",
        )),
        _ => Err(unclear(code, body)),
    }
}

/// Nodes write nothing about other nodes.
pub(super) fn node_restriction(facts: &Facts) -> Judged {
    let (code, body) = answer(facts, Attempt::OtherNode)?;
    let text = message(body);
    match code {
        200..=299 => {
            let seen = "a node may make another node";
            Ok(Finding::of(CheckResult::Fail, seen, Vec::new()))
        }
        // The admission plugin's words; without it the refusal is that of an authorizer.
        403 if text.contains("is not allowed to") || text.contains("can only") => {
            Ok(Finding::pass("a node that makes another is refused"))
        }
        _ => Err(unclear(code, body)),
    }
}

/// The profiler has no pages.
pub(super) fn profiling(facts: &Facts) -> Judged {
    let (code, body) = answer(facts, Attempt::Profiler)?;
    match code {
        200..=299 => {
            let seen = "/debug/pprof/ is served";
            Ok(Finding::of(CheckResult::Fail, seen, Vec::new()))
        }
        404 => Ok(Finding::pass("/debug/pprof/ is not there")),
        _ => Err(unclear(code, body)),
    }
}

/// The API is served with TLS.
pub(super) fn tls(facts: &Facts) -> Judged {
    if facts.tried.tls {
        Ok(Finding::pass(
            "the kubeconfig's server is reached with TLS, its certificate verified",
        ))
    } else {
        let seen =
            "the kubeconfig's server is reached without TLS, or its certificate is not verified";
        Ok(Finding::of(CheckResult::Fail, seen, Vec::new()))
    }
}
