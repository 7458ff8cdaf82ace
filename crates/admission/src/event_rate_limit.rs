//! EventRateLimit: token buckets for writes of events.
//! <https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#eventratelimit>

use std::collections::HashMap;
use std::time::Instant;

use davit_api::status::Status;
use parking_lot::Mutex;
use serde_json::Value;

use super::config::{Config, ConfigError};
use super::{Attributes, Validating};

const NAME: &str = "EventRateLimit";
const CACHE: u64 = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    Server,
    Namespace,
    User,
    SourceAndObject,
}

#[derive(Debug)]
struct Limit {
    scope: Scope,
    qps: f64,
    burst: f64,
    entries: usize,
    buckets: Mutex<HashMap<String, (f64, Instant)>>,
}

/// The plugin.
pub(super) struct EventRateLimit(Vec<Limit>);

impl EventRateLimit {
    pub(super) fn new(config: &Config) -> Result<Self, ConfigError> {
        let fault = |detail: String| ConfigError::Plugin {
            plugin: NAME,
            detail,
        };
        let entries = config.of(NAME).and_then(|value| value["limits"].as_array());
        let Some(entries) = entries.filter(|entries| !entries.is_empty()) else {
            return Err(fault(
                "limits: Required value: must have at least one limit".to_owned(),
            ));
        };
        let limits = entries.iter().map(|entry| {
            let scope = match entry["type"].as_str().unwrap_or_default() {
                "Server" => Scope::Server,
                "Namespace" => Scope::Namespace,
                "User" => Scope::User,
                "SourceAndObject" => Scope::SourceAndObject,
                other => return Err(fault(format!("limits: type: Unsupported value: {other:?}"))),
            };
            let number = |key: &str| entry[key].as_f64().filter(|n| *n > 0.0);
            let (Some(qps), Some(burst)) = (number("qps"), number("burst")) else {
                return Err(fault("limits: qps and burst must be positive".to_owned()));
            };
            let entries = entry["cacheSize"]
                .as_u64()
                .filter(|n| *n > 0)
                .unwrap_or(CACHE);
            Ok(Limit {
                scope,
                qps,
                burst,
                entries: usize::try_from(entries).unwrap_or(usize::MAX),
                buckets: Mutex::new(HashMap::new()),
            })
        });
        limits.collect::<Result<_, _>>().map(Self)
    }
}

impl Limit {
    fn takes(&self, key: String, now: Instant) -> bool {
        let mut buckets = self.buckets.lock();
        if buckets.len() >= self.entries && !buckets.contains_key(&key) {
            // the one that rested longest is full again anyway, or nearly
            let oldest = buckets.iter().min_by_key(|(_, (_, at))| *at);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                buckets.remove(&oldest);
            }
        }
        let (tokens, at) = buckets.entry(key).or_insert((self.burst, now));
        let refilled = *tokens + now.duration_since(*at).as_secs_f64() * self.qps;
        *tokens = refilled.min(self.burst);
        *at = now;
        if *tokens < 1.0 {
            return false;
        }
        *tokens -= 1.0;
        true
    }

    fn key(&self, attributes: &Attributes<'_>, event: &Value) -> String {
        let text = |pointer: &str| {
            event
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        match self.scope {
            Scope::Server => String::new(),
            Scope::Namespace => attributes.namespace.to_owned(),
            Scope::User => attributes.user.name.clone(),
            Scope::SourceAndObject => [
                "/source/component",
                "/source/host",
                "/involvedObject/kind",
                "/involvedObject/namespace",
                "/involvedObject/name",
                "/involvedObject/uid",
                "/involvedObject/apiVersion",
            ]
            .map(text)
            .join("/"),
        }
    }
}

impl Validating for EventRateLimit {
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let writes = attributes.resource.row.kind == "Event" && attributes.writes();
        let Some(event) = object.filter(|_| writes && !attributes.dry_run) else {
            return Ok(());
        };
        let now = Instant::now();
        let mut refused = Vec::new();
        for limit in &self.0 {
            if !limit.takes(limit.key(attributes, event), now) {
                let scope = match limit.scope {
                    Scope::Server => "Server",
                    Scope::Namespace => "Namespace",
                    Scope::User => "User",
                    Scope::SourceAndObject => "SourceAndObject",
                };
                refused.push(format!(
                    "limit reached on type {scope} for key {}",
                    limit.key(attributes, event)
                ));
            }
        }
        if refused.is_empty() {
            return Ok(());
        }
        let status = Status::too_many_requests(refused.join(", "), 0);
        Err(status)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn buckets_empty_and_fill() {
        let limit = Limit {
            scope: Scope::Server,
            qps: 1.0,
            burst: 2.0,
            entries: 1,
            buckets: Mutex::new(HashMap::new()),
        };
        let now = Instant::now();
        let take = |key: &str, after| limit.takes(key.to_owned(), now + Duration::from_secs(after));
        assert!(take("a", 0) && take("a", 0) && !take("a", 0));
        assert!(take("a", 1) && !take("a", 1));
        assert!(take("b", 1), "another key has its own bucket");
        assert_eq!(limit.buckets.lock().len(), 1);
    }
}
