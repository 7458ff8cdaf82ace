//! Mode `Webhook`: a server outside reviews access.
//!
//! Specified in <https://kubernetes.io/docs/reference/access-authn-authz/webhook/>; match
//! conditions and the structured configuration in KEP-3221.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use davit_api::fields::FieldSelector;
use davit_api::labels::{Operator, Selector};
use davit_webhook::{Call, CallError, Client, Kubeconfig, KubeconfigError, Tasks};
use parking_lot::Mutex;
use serde_json::{Value, json};

mod conditions;

use conditions::Conditions;

use super::{Attributes, Authorizer, Decision, UserRules};
use crate::metrics::AccessMetrics;
use crate::user::UserInfo;

const TRIES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const CACHED: usize = 4096;
/// Longer requests are not kept: an attacker could fill the cache with them.
const LONGEST_KEY: usize = 10_000;

/// A webhook authorizer's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessWebhook {
    /// Names the authorizer in logs.
    pub name: String,
    /// A kubeconfig: the cluster is the server asked, the user is how this server is known to it.
    /// None for the service account of the pod that this server runs in.
    pub kubeconfig: Option<PathBuf>,
    /// `v1` or `v1beta1`.
    pub version: String,
    /// How long a call may take.
    pub timeout: Duration,
    /// How long permissions are kept; zero: not at all.
    pub authorized_ttl: Duration,
    /// How long refusals are kept; zero: not at all.
    pub unauthorized_ttl: Duration,
    /// A server that does not answer refuses, instead of having no opinion.
    pub fails_closed: bool,
    /// Expressions over `request` that must all be true for the server to be asked.
    pub match_conditions: Vec<String>,
}

/// A webhook that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AccessWebhookError {
    /// The kubeconfig.
    #[error("authorization webhook {name}: {source}")]
    Kubeconfig {
        /// The authorizer.
        name: String,
        /// What is wrong.
        source: KubeconfigError,
    },
    /// Another setting.
    #[error("authorization webhook {name}: {detail}")]
    Setting {
        /// The authorizer.
        name: String,
        /// What is wrong.
        detail: String,
    },
}

/// The authorizer.
pub(super) struct WebhookAuthorizer {
    config: AccessWebhook,
    client: Client,
    conditions: Conditions,
    known: Mutex<HashMap<String, (Instant, Decision)>>,
    metrics: Arc<AccessMetrics>,
}

impl WebhookAuthorizer {
    pub(super) fn new(
        config: &AccessWebhook,
        tasks: &Tasks,
        metrics: Arc<AccessMetrics>,
    ) -> Result<Self, AccessWebhookError> {
        let name = config.name.clone();
        let setting = |detail: String| AccessWebhookError::Setting {
            name: name.clone(),
            detail,
        };
        if !matches!(config.version.as_str(), "v1" | "v1beta1") {
            let version = &config.version;
            return Err(setting(format!(
                "unknown SubjectAccessReview version {version:?}"
            )));
        }
        let kubeconfig = match &config.kubeconfig {
            Some(path) => Kubeconfig::read(path),
            None => Kubeconfig::in_cluster(),
        };
        let settings = kubeconfig
            .and_then(|kubeconfig| kubeconfig.settings())
            .map_err(|source| AccessWebhookError::Kubeconfig {
                name: name.clone(),
                source,
            })?;
        let client =
            Client::new(settings, tasks.clone()).map_err(|error| setting(error.to_string()))?;
        Ok(Self {
            conditions: Conditions::compile(&config.match_conditions).map_err(setting)?,
            config: config.clone(),
            client,
            known: Mutex::default(),
            metrics,
        })
    }

    fn undecided(&self, why: &str) -> Decision {
        tracing::warn!(authorizer = self.config.name, why, "authorization webhook");
        if self.config.fails_closed {
            Decision::Deny(why.to_owned())
        } else {
            Decision::NoOpinion(String::new())
        }
    }

    async fn ask(&self, spec: &Value) -> Result<Value, CallError> {
        let review = json!({
            "apiVersion": format!("authorization.k8s.io/{}", self.config.version),
            "kind": "SubjectAccessReview",
            "metadata": {},
            "spec": spec,
        });
        let body = bytes::Bytes::from(review.to_string());
        let until = Instant::now() + self.config.timeout;
        let mut pause = FIRST_PAUSE;
        let mut tries = 0;
        loop {
            tries += 1;
            let left = until.saturating_duration_since(Instant::now());
            let call = Call::post(body.clone(), left.max(Duration::from_millis(1)));
            match self.client.json(call).await {
                Err(error)
                    if crate::authn::is_passing(&error)
                        && tries < TRIES
                        && Instant::now() + pause < until => {}
                result => return result,
            }
            tokio::time::sleep(pause.mul_f64(1.0 + 0.2 * rand::random::<f64>())).await;
            pause = pause.mul_f64(1.5);
        }
    }

    fn remember(&self, key: String, decision: &Decision) {
        let ttl = match decision {
            Decision::Allow(_) => self.config.authorized_ttl,
            _ => self.config.unauthorized_ttl,
        };
        if ttl.is_zero() || key.len() > LONGEST_KEY {
            return;
        }
        let mut known = self.known.lock();
        if known.len() >= CACHED {
            let now = Instant::now();
            known.retain(|_, (until, _)| *until > now);
            if known.len() >= CACHED {
                known.clear();
            }
        }
        known.insert(key, (Instant::now() + ttl, decision.clone()));
    }
}

fn decision(answer: &Value) -> Decision {
    let status = &answer["status"];
    let reason = status["reason"].as_str().unwrap_or_default().to_owned();
    match (status["allowed"] == true, status["denied"] == true) {
        (true, true) => Decision::Deny(
            "webhook subject access review returned both allow and deny response".to_owned(),
        ),
        (true, false) => Decision::Allow(reason),
        (false, true) => Decision::Deny(reason),
        (false, false) => Decision::NoOpinion(reason),
    }
}

/// The spec of a review. `v1beta1` calls groups `group`.
fn spec(attributes: &Attributes<'_>, version: &str) -> Value {
    let (user, request) = (attributes.user, attributes.request);
    let mut spec = json!({ "user": user.name });
    if !user.uid.is_empty() {
        spec["uid"] = json!(user.uid);
    }
    if !user.groups.is_empty() {
        let key = if version == "v1beta1" {
            "group"
        } else {
            "groups"
        };
        spec[key] = json!(user.groups);
    }
    if !user.extra.is_empty() {
        spec["extra"] = json!(user.extra);
    }
    if !request.is_resource {
        spec["nonResourceAttributes"] = json!({ "path": request.path, "verb": request.verb });
        return spec;
    }
    let mut resource = json!({});
    let namespace = request.namespace.as_deref().unwrap_or_default();
    for (key, value) in [
        ("namespace", namespace),
        ("verb", &request.verb),
        ("group", &request.group),
        ("version", &request.version),
        ("resource", &request.resource),
        ("subresource", &request.subresource),
        ("name", &request.name),
    ] {
        if !value.is_empty() {
            resource[key] = json!(value);
        }
    }
    if let Some(fields) = field_requirements(&request.field_selector) {
        resource["fieldSelector"] = json!({ "requirements": fields });
    }
    if let Some(labels) = label_requirements(&request.label_selector) {
        resource["labelSelector"] = json!({ "requirements": labels });
    }
    spec["resourceAttributes"] = resource;
    spec
}

fn field_requirements(selector: &str) -> Option<Vec<Value>> {
    let parsed = FieldSelector::parse(selector).ok()?;
    let terms = parsed.terms().iter().map(|term| {
        let operator = if term.equal { "In" } else { "NotIn" };
        json!({ "key": term.field, "operator": operator, "values": [term.value] })
    });
    Some(terms.collect::<Vec<_>>()).filter(|terms| !terms.is_empty())
}

fn label_requirements(selector: &str) -> Option<Vec<Value>> {
    let parsed = Selector::parse(selector).ok()?;
    let terms = parsed.requirements().iter().filter_map(|requirement| {
        let operator = match requirement.operator() {
            Operator::In | Operator::Equals | Operator::DoubleEquals => "In",
            Operator::NotIn | Operator::NotEquals => "NotIn",
            Operator::Exists => "Exists",
            Operator::DoesNotExist => "DoesNotExist",
            // comparisons of numbers have no form in reviews
            _ => return None,
        };
        let mut term = json!({ "key": requirement.key(), "operator": operator });
        if !requirement.values().is_empty() {
            term["values"] = json!(requirement.values());
        }
        Some(term)
    });
    Some(terms.collect::<Vec<_>>()).filter(|terms| !terms.is_empty())
}

#[async_trait]
impl Authorizer for WebhookAuthorizer {
    async fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        if !self.conditions.is_empty() {
            match self.conditions.hold(&spec(attributes, "v1")) {
                Ok(true) => {}
                Ok(false) => {
                    self.metrics.excluded(&self.config.name, false);
                    return Decision::NoOpinion(String::new());
                }
                Err(error) => {
                    self.metrics.excluded(&self.config.name, true);
                    return self.undecided(&format!("match condition: {error}"));
                }
            }
        }
        let spec = spec(attributes, &self.config.version);
        let key = spec.to_string();
        if let Some((until, known)) = self.known.lock().get(&key)
            && *until > Instant::now()
        {
            return known.clone();
        }
        let began = Instant::now();
        let asked = self.ask(&spec).await;
        let (result, open) = match &asked {
            Ok(_) => ("success", false),
            Err(_) if began.elapsed() >= self.config.timeout => ("timeout", true),
            Err(_) => ("error", true),
        };
        let open = open && !self.config.fails_closed;
        self.metrics
            .called(&self.config.name, result, open, began.elapsed());
        match asked {
            Ok(answer) => {
                let decision = decision(&answer);
                self.remember(key, &decision);
                decision
            }
            Err(error) => self.undecided(&error.to_string()),
        }
    }

    fn identity(&self) -> Option<(&'static str, &str)> {
        Some(("Webhook", &self.config.name))
    }

    async fn rules(&self, _user: &UserInfo, _namespace: &str) -> UserRules {
        UserRules {
            incomplete: true,
            faults: vec!["webhook authorizer does not support user rule resolution".to_owned()],
            ..UserRules::default()
        }
    }
}
