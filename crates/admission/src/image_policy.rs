//! ImagePolicyWebhook: asks a server outside whether the images of a pod may run.
//! <https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#imagepolicywebhook>

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use davit_api::status::Status;
use davit_webhook::{Call, CallError, Client, Kubeconfig, Settings};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use super::config::{Config, ConfigError};
use super::pods::{CONTAINERS, containers};
use super::{Attributes, Mutating, Operation, Validating, forbidden};

const NAME: &str = "ImagePolicyWebhook";
const API: &str = "imagepolicy.k8s.io/v1alpha1";
const FAILED_OPEN: &str = "alpha.image-policy.k8s.io/failed-open";
const AUDIT: &str = "imagepolicywebhook.image-policy.k8s.io/";
const MARK: &str = ".image-policy.k8s.io/";
const TIMEOUT: Duration = Duration::from_secs(30);
const CACHE: usize = 1024;
/// A call is tried this often when the server is out of order.
const ATTEMPTS: u32 = 5;
const FACTOR: f64 = 1.5;
const LIMIT: usize = 1024 * 1024;

/// The plugin.
#[derive(Clone)]
pub(super) struct ImagePolicy(Arc<Inner>);

struct Inner {
    settings: Settings,
    client: Mutex<Option<Arc<Client>>>,
    allow: Duration,
    deny: Duration,
    backoff: Duration,
    default_allow: bool,
    answers: Mutex<HashMap<String, (Value, Instant)>>,
}

impl ImagePolicy {
    pub(super) fn new(config: &Config) -> Result<Self, ConfigError> {
        let fault = |detail: String| ConfigError::Plugin {
            plugin: NAME,
            detail,
        };
        let value = config.of(NAME).map(|value| &value["imagePolicy"]);
        let Some(value) = value.filter(|value| value.is_object()) else {
            return Err(fault(
                "no imagePolicy is configured; name a file with --admission-control-config-file"
                    .to_owned(),
            ));
        };
        let second = Duration::from_secs(1);
        let minutes = |n: u64| Duration::from_secs(60 * n);
        let time = |key: &str, unit: Duration, default, least, most| {
            duration(value[key].as_i64(), unit, default, least, most)
                .map_err(|why| fault(format!("{key}: {why}")))
        };
        let (allow, deny) = (
            time("allowTTL", second, minutes(5), second, minutes(30))?,
            time(
                "denyTTL",
                second,
                Duration::from_secs(30),
                second,
                minutes(30),
            )?,
        );
        let milli = Duration::from_millis(1);
        let backoff = time(
            "retryBackoff",
            milli,
            Duration::from_millis(500),
            milli,
            minutes(5),
        )?;
        let file = value["kubeConfigFile"].as_str().unwrap_or_default();
        if file.is_empty() {
            return Err(fault("kubeConfigFile is required".to_owned()));
        }
        let settings = Kubeconfig::read(&config.path(NAME, file))
            .and_then(|kubeconfig| kubeconfig.settings())
            .map_err(|source| ConfigError::Kubeconfig {
                plugin: NAME,
                source,
            })?;
        Ok(Self(Arc::new(Inner {
            settings,
            client: Mutex::new(None),
            allow,
            deny,
            backoff,
            default_allow: value["defaultAllow"].as_bool().unwrap_or(false),
            answers: Mutex::new(HashMap::new()),
        })))
    }

    fn client(&self, attributes: &Attributes<'_>) -> Result<Arc<Client>, CallError> {
        let mut held = self.0.client.lock();
        if let Some(client) = &*held {
            return Ok(Arc::clone(client));
        }
        let tasks = attributes.server.webhooks().tasks().clone();
        let client = Arc::new(Client::new(self.0.settings.clone(), tasks)?);
        *held = Some(Arc::clone(&client));
        Ok(client)
    }

    /// The status of the review of a pod, kept for a while.
    async fn review(&self, attributes: &Attributes<'_>, pod: &Value) -> Result<Value, CallError> {
        let inner = &self.0;
        let spec = spec(attributes, pod);
        let key = spec.to_string();
        let now = Instant::now();
        if let Some((status, until)) = inner.answers.lock().get(&key)
            && now < *until
        {
            return Ok(status.clone());
        }
        let body = json!({ "kind": "ImageReview", "apiVersion": API, "spec": spec });
        let answer = self.call(attributes, &body.to_string()).await?;
        let status = answer["status"].clone();
        if !status["allowed"].is_boolean() {
            let why = "the answer has no status.allowed";
            return Err(CallError::Malformed(why.to_owned()));
        }
        let keep = if status["allowed"] == true {
            inner.allow
        } else {
            inner.deny
        };
        if !keep.is_zero() {
            let mut answers = inner.answers.lock();
            if answers.len() >= CACHE {
                answers.retain(|_, (_, until)| now < *until);
            }
            if answers.len() >= CACHE {
                answers.clear();
            }
            answers.insert(key, (status.clone(), now + keep));
        }
        Ok(status)
    }

    async fn call(&self, attributes: &Attributes<'_>, body: &str) -> Result<Value, CallError> {
        let client = self.client(attributes)?;
        let mut pause = self.0.backoff;
        let mut attempt = 1;
        loop {
            let mut call = Call::post(Bytes::from(body.to_owned()), TIMEOUT);
            call.limit = LIMIT;
            let result = client.json(call).await;
            let again = match &result {
                Err(CallError::Refused { code, .. }) => *code == 429 || *code >= 500,
                Err(CallError::Transport { .. }) => true,
                _ => false,
            };
            if !again || attempt == ATTEMPTS {
                return result;
            }
            attempt += 1;
            tokio::time::sleep(pause).await;
            pause = pause.mul_f64(FACTOR);
        }
    }

    async fn judge(&self, attributes: &Attributes<'_>, pod: &Value) -> Result<bool, Status> {
        match self.review(attributes, pod).await {
            Ok(status) => {
                let annotations = status["auditAnnotations"].as_object();
                for (key, value) in annotations.into_iter().flatten() {
                    let value = value.as_str().unwrap_or_default();
                    attributes.annotate(format!("{AUDIT}{key}"), value);
                }
                if status["allowed"] == true {
                    return Ok(false);
                }
                let why = match status["reason"].as_str().unwrap_or_default() {
                    "" => "one or more images rejected by webhook backend".to_owned(),
                    reason => {
                        format!("image policy webhook backend denied one or more images: {reason}")
                    }
                };
                Err(forbidden(attributes, Some(pod), why))
            }
            Err(error) if self.0.default_allow => {
                tracing::warn!(%error, "image policy webhook failed, failing open");
                attributes.annotate(format!("{AUDIT}failed-open"), "true");
                Ok(true)
            }
            Err(error) => {
                tracing::warn!(%error, "image policy webhook failed, failing closed");
                attributes.annotate(format!("{AUDIT}failed-open"), "false");
                Err(forbidden(attributes, Some(pod), error.to_string()))
            }
        }
    }
}

/// Zero means the default, -1 none; anything else must be within bounds.
fn duration(
    given: Option<i64>,
    unit: Duration,
    default: Duration,
    least: Duration,
    most: Duration,
) -> Result<Duration, String> {
    match given {
        None | Some(0) => Ok(default),
        Some(-1) => Ok(Duration::ZERO),
        Some(n) => {
            let n = u32::try_from(n).map_err(|_| format!("{n} is out of range"))?;
            let value = unit * n;
            if value < least || value > most {
                Err(format!(
                    "valid value is between {least:?} and {most:?}, got {value:?}"
                ))
            } else {
                Ok(value)
            }
        }
    }
}

/// What the server is asked.
fn spec(attributes: &Attributes<'_>, pod: &Value) -> Value {
    let images = containers(
        &pod["spec"],
        &["containers", "initContainers", "ephemeralContainers"],
    );
    let images: Vec<Value> = images.map(|c| json!({ "image": c["image"] })).collect();
    let annotations = pod["metadata"]["annotations"].as_object();
    let annotations: Map<String, Value> = annotations
        .into_iter()
        .flatten()
        .filter(|(key, _)| key.contains(MARK))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    let mut spec = json!({ "containers": images, "namespace": attributes.namespace });
    if !annotations.is_empty() {
        spec["annotations"] = Value::Object(annotations);
    }
    spec
}

/// Whether images are new in this request.
fn concerns(attributes: &Attributes<'_>, pod: &Value) -> bool {
    if !attributes.about("", "pods") {
        return false;
    }
    let images = |pod: &Value| -> Vec<Value> {
        containers(&pod["spec"], &CONTAINERS)
            .map(|c| c["image"].clone())
            .collect()
    };
    match (attributes.operation, attributes.subresource) {
        (Operation::Create, "") => true,
        (Operation::Update, "" | "ephemeralcontainers") => {
            attributes.old.is_none_or(|old| images(old) != images(pod))
        }
        _ => false,
    }
}

/// Marks pods that were let through because the server did not answer.
impl Mutating for ImagePolicy {
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&mut Value>,
    ) -> Result<(), Status> {
        let Some(pod) = object else { return Ok(()) };
        if !concerns(attributes, pod) {
            return Ok(());
        }
        if self.judge(attributes, pod).await? && attributes.operation == Operation::Create {
            if !pod["metadata"]["annotations"].is_object() {
                pod["metadata"]["annotations"] = json!({});
            }
            pod["metadata"]["annotations"][FAILED_OPEN] = json!("true");
        }
        Ok(())
    }
}

/// Images that other plugins and webhooks put in are judged, too; an answer is kept, so that
/// images that were judged already are not asked about twice.
impl Validating for ImagePolicy {
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let Some(pod) = object else { return Ok(()) };
        let failed_open = pod["metadata"]["annotations"][FAILED_OPEN] == "true";
        if !concerns(attributes, pod) || failed_open && self.0.default_allow {
            return Ok(());
        }
        self.judge(attributes, pod).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_defaults_bounds_and_an_off_switch() {
        let s = Duration::from_secs(1);
        let of = |n| duration(n, s, s * 300, s, s * 1800);
        assert_eq!(of(None).unwrap(), s * 300);
        assert_eq!(of(Some(0)).unwrap(), s * 300);
        assert_eq!(of(Some(-1)).unwrap(), Duration::ZERO);
        assert_eq!(of(Some(50)).unwrap(), s * 50);
        assert!(of(Some(1801)).is_err() && of(Some(-2)).is_err());
    }
}
