//! `AuthorizationConfiguration` (apiserver.config.k8s.io): the chain of authorizers as a file.
//!
//! Specified in
//! <https://kubernetes.io/docs/reference/access-authn-authz/authorization/#using-configuration-file-for-authorization>.

use davit_api::config_shape::ConfigShape::{self, List, Object, Scalar};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use davit_schema::decode::{self, Encoding};
use serde_json::Value;

use super::Mode;
use super::webhook::AccessWebhook;

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuthorizationConfigError {
    /// The file cannot be read.
    #[error("reading {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A field is wrong.
    #[error("authorization configuration: {field}: {detail}")]
    Field {
        /// The field's path.
        field: String,
        /// What is wrong.
        detail: String,
    },
}

const FILE: ConfigShape = Object(&[
    ("apiVersion", Scalar),
    ("kind", Scalar),
    (
        "authorizers",
        List(&Object(&[
            ("type", Scalar),
            ("name", Scalar),
            ("webhook", WEBHOOK),
        ])),
    ),
]);
const WEBHOOK: ConfigShape = Object(&[
    ("authorizedTTL", Scalar),
    ("cacheAuthorizedRequests", Scalar),
    ("unauthorizedTTL", Scalar),
    ("cacheUnauthorizedRequests", Scalar),
    ("timeout", Scalar),
    ("subjectAccessReviewVersion", Scalar),
    ("matchConditionSubjectAccessReviewVersion", Scalar),
    ("failurePolicy", Scalar),
    (
        "connectionInfo",
        Object(&[("type", Scalar), ("kubeConfigFile", Scalar)]),
    ),
    ("matchConditions", List(&Object(&[("expression", Scalar)]))),
]);

fn fault(field: impl Into<String>, detail: impl Into<String>) -> AuthorizationConfigError {
    AuthorizationConfigError::Field {
        field: field.into(),
        detail: detail.into(),
    }
}

/// Reads the authorizers of a file.
///
/// # Errors
/// The first field that is wrong.
pub(super) fn read(path: &Path) -> Result<Vec<Mode>, AuthorizationConfigError> {
    let text = std::fs::read(path).map_err(|source| AuthorizationConfigError::Read {
        path: path.to_owned(),
        source,
    })?;
    parse(&text)
}

fn parse(text: &[u8]) -> Result<Vec<Mode>, AuthorizationConfigError> {
    let value =
        decode::parse(text, Encoding::Yaml).map_err(|error| fault("file", error.to_string()))?;
    let version = value["apiVersion"].as_str().unwrap_or_default();
    let known = ["v1", "v1beta1", "v1alpha1"]
        .iter()
        .any(|known| version == format!("apiserver.config.k8s.io/{known}"));
    if !known || value["kind"] != "AuthorizationConfiguration" {
        return Err(fault(
            "kind",
            "must be AuthorizationConfiguration of apiserver.config.k8s.io/v1",
        ));
    }
    FILE.check(&value)
        .map_err(|error| fault(error.field, error.fault.to_string()))?;
    let entries = value["authorizers"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    if entries.is_empty() {
        return Err(fault(
            "authorizers",
            "at least one authorization mode must be defined",
        ));
    }
    let (mut names, mut types, mut modes) = (HashSet::new(), HashSet::new(), Vec::new());
    for (index, entry) in entries.iter().enumerate() {
        let at = format!("authorizers[{index}]");
        let text = |key: &str| entry[key].as_str().unwrap_or_default();
        let (kind, name) = (text("type"), text("name"));
        if name.is_empty() || !names.insert(name.to_owned()) {
            return Err(fault(
                format!("{at}.name"),
                "is required and must be unique",
            ));
        }
        if kind == "Webhook" {
            modes.push(Mode::Webhook(webhook(name, &entry["webhook"], &at)?));
            continue;
        }
        if !entry["webhook"].is_null() {
            return Err(fault(
                format!("{at}.webhook"),
                "may only be given when type is Webhook",
            ));
        }
        if !types.insert(kind.to_owned()) {
            return Err(fault(
                format!("{at}.type"),
                format!("{kind} is given twice"),
            ));
        }
        modes.push(match kind {
            "Node" => Mode::Node,
            "RBAC" => Mode::Rbac,
            "AlwaysAllow" => Mode::AlwaysAllow,
            "AlwaysDeny" => Mode::AlwaysDeny,
            _ => {
                return Err(fault(
                    format!("{at}.type"),
                    format!("{kind:?} is none of Webhook, RBAC, Node, AlwaysAllow, AlwaysDeny"),
                ));
            }
        });
    }
    Ok(modes)
}

fn webhook(name: &str, value: &Value, at: &str) -> Result<AccessWebhook, AuthorizationConfigError> {
    let field = |key: &str| format!("{at}.webhook.{key}");
    let text = |key: &str| value[key].as_str().unwrap_or_default();
    let ttl = |key: &str, default: u64, cached: &str| -> Result<Duration, _> {
        if value[cached] == false {
            return Ok(Duration::ZERO);
        }
        duration(text(key), Duration::from_secs(default))
            .map_err(|detail| fault(field(key), detail))
    };
    let timeout = duration(text("timeout"), Duration::ZERO)
        .map_err(|detail| fault(field("timeout"), detail))?;
    if timeout.is_zero() || timeout > Duration::from_secs(30) {
        return Err(fault(
            field("timeout"),
            "must be more than 0 and at most 30s",
        ));
    }
    let fails_closed = match text("failurePolicy") {
        "Deny" => true,
        "NoOpinion" => false,
        other => {
            let detail = format!("{other:?} is neither NoOpinion nor Deny");
            return Err(fault(field("failurePolicy"), detail));
        }
    };
    let version = text("subjectAccessReviewVersion");
    if !matches!(version, "v1" | "v1beta1") {
        return Err(fault(
            field("subjectAccessReviewVersion"),
            "must be v1 or v1beta1",
        ));
    }
    let conditions = value["matchConditions"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    if !conditions.is_empty() && text("matchConditionSubjectAccessReviewVersion") != "v1" {
        return Err(fault(
            field("matchConditionSubjectAccessReviewVersion"),
            "must be v1",
        ));
    }
    let connection = &value["connectionInfo"];
    let file = connection["kubeConfigFile"].as_str().unwrap_or_default();
    let kubeconfig = match connection["type"].as_str().unwrap_or_default() {
        "KubeConfigFile" if !file.is_empty() => Some(file.into()),
        "InClusterConfig" if file.is_empty() => None,
        _ => {
            return Err(fault(
                field("connectionInfo"),
                "must be of type KubeConfigFile and name a kubeConfigFile, or of type \
                 InClusterConfig and name none",
            ));
        }
    };
    let expressions = conditions
        .iter()
        .filter_map(|condition| condition["expression"].as_str())
        .map(str::to_owned);
    Ok(AccessWebhook {
        name: name.to_owned(),
        kubeconfig,
        version: version.to_owned(),
        timeout,
        authorized_ttl: ttl("authorizedTTL", 300, "cacheAuthorizedRequests")?,
        unauthorized_ttl: ttl("unauthorizedTTL", 30, "cacheUnauthorizedRequests")?,
        fails_closed,
        match_conditions: expressions.collect(),
    })
}

/// A duration as Go writes it: `1m30s`, `300ms`.
fn duration(text: &str, default: Duration) -> Result<Duration, String> {
    if text.is_empty() {
        return Ok(default);
    }
    let wrong = || format!("{text:?} is not a duration");
    let (mut total, mut rest) = (0.0, text);
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .ok_or_else(wrong)?;
        let number: f64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let unit_length = rest
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(rest.len());
        let unit = match &rest[..unit_length] {
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(wrong()),
        };
        total += number * unit;
        rest = &rest[unit_length..];
    }
    Duration::try_from_secs_f64(total).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = r#"
apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
- {type: Node, name: node}
- type: Webhook
  name: out
  webhook:
    timeout: 3s
    authorizedTTL: 1m30s
    cacheUnauthorizedRequests: false
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    failurePolicy: Deny
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: /etc/out.kubeconfig}
    matchConditions: [{expression: "has(request.resourceAttributes)"}]
- {type: RBAC, name: rbac}
"#;

    #[test]
    fn item_192_chains_are_read_and_wrong_fields_named() {
        let modes = parse(CONFIG.as_bytes()).unwrap();
        assert_eq!((&modes[0], &modes[2]), (&Mode::Node, &Mode::Rbac));
        let Mode::Webhook(webhook) = &modes[1] else {
            panic!("{modes:?}")
        };
        assert_eq!(webhook.authorized_ttl, Duration::from_secs(90));
        assert_eq!(webhook.unauthorized_ttl, Duration::ZERO);
        assert!(webhook.fails_closed);
        let wrong = |from: &str, to: &str| {
            let text = CONFIG.replace(from, to);
            parse(text.as_bytes()).err().map(|e| e.to_string()).unwrap()
        };
        assert!(wrong("timeout: 3s", "timeout: 31s").contains("timeout"));
        assert!(wrong("failurePolicy: Deny", "failurePolicy: No").contains("failurePolicy"));
        assert!(wrong("name: rbac", "name: node").contains("authorizers[2].name"));
        assert!(wrong("type: RBAC", "type: Node").contains("twice"));
    }
}
