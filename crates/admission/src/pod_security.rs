//! PodSecurity: the Pod Security Standards, by labels of the namespace.
//!
//! Pods are refused by the enforced level; pods and what makes pods are warned about and noted for
//! audit. <https://kubernetes.io/docs/concepts/security/pod-security-admission/>

mod baseline;
mod checks;
mod policy;
mod restricted;

use davit_api::field::{FieldError, quote};
use davit_api::status::Status;
use serde_json::Value;

use self::policy::{Level, LevelVersion, Policy};
use super::config::{Config, ConfigError};
use super::{Attributes, Operation, Validating, forbidden};

const NAME: &str = "PodSecurity";
const PREFIX: &str = "pod-security.kubernetes.io/";
/// Subresources of pods that do not change what runs.
const IGNORED: [&str; 8] = [
    "exec",
    "attach",
    "binding",
    "eviction",
    "log",
    "portforward",
    "proxy",
    "status",
];
/// Pods of a namespace that are looked at when its level is raised.
const MAX_PODS: usize = 3000;

/// The plugin.
pub(super) struct PodSecurity {
    defaults: Policy,
    exempt_users: Vec<String>,
    exempt_namespaces: Vec<String>,
    exempt_classes: Vec<String>,
}

impl PodSecurity {
    pub(super) fn new(config: &Config) -> Result<Self, ConfigError> {
        let value = config.of(NAME).cloned().unwrap_or_default();
        let (defaults, faults) = Policy::of_defaults(&value["defaults"]);
        if let Some(fault) = faults.first() {
            return Err(ConfigError::Plugin {
                plugin: NAME,
                detail: fault.to_string(),
            });
        }
        let list = |key: &str| {
            let entries = value["exemptions"][key].as_array().into_iter().flatten();
            entries
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect()
        };
        Ok(Self {
            defaults,
            exempt_users: list("usernames"),
            exempt_namespaces: list("namespaces"),
            exempt_classes: list("runtimeClasses"),
        })
    }

    fn is_exempt(&self, attributes: &Attributes<'_>) -> bool {
        let namespace = attributes.request_namespace();
        self.exempt_namespaces.iter().any(|held| held == namespace)
            || self.exempt_users.contains(&attributes.user.name)
    }

    /// Labels of a namespace are checked, and its pods when it becomes stricter.
    async fn namespace(&self, attributes: &Attributes<'_>, new: &Value) -> Result<(), Status> {
        let (policy, faults) = self.policy_of(new);
        let name = davit_registry::object::name(new);
        if attributes.operation == Operation::Create {
            return refuse(attributes, name, &faults);
        }
        let (before, old_faults) = attributes
            .old
            .map(|old| self.policy_of(old))
            .unwrap_or_default();
        if faults != old_faults {
            refuse(attributes, name, &faults)?;
        }
        let stricter = policy.enforce != before.enforce
            && policy.enforce.level != Level::Privileged
            && (policy.enforce.version != before.enforce.version
                || policy.enforce.level > before.enforce.level);
        if stricter && !self.is_exempt(attributes) {
            self.warn_of_pods(attributes, name, policy.enforce).await?;
        }
        Ok(())
    }

    async fn warn_of_pods(
        &self,
        attributes: &Attributes<'_>,
        namespace: &str,
        enforce: LevelVersion,
    ) -> Result<(), Status> {
        let pods = attributes
            .server
            .objects("", "pods", Some(namespace))
            .await?;
        let mut warnings: Vec<(String, Vec<&str>)> = Vec::new();
        for pod in pods.iter().take(MAX_PODS) {
            if self.class_is_exempt(&pod["spec"]) {
                continue;
            }
            let faults = checks::evaluate(enforce, &pod["metadata"], &pod["spec"]);
            if faults.is_empty() {
                continue;
            }
            let reasons: Vec<&str> = faults.iter().map(|fault| fault.reason).collect();
            let text = reasons.join(", ");
            let name = davit_registry::object::name(pod);
            match warnings.iter_mut().find(|(held, _)| *held == text) {
                Some((_, names)) => names.push(name),
                None => warnings.push((text, vec![name])),
            }
        }
        if warnings.is_empty() {
            return Ok(());
        }
        attributes.warn(format!(
            "existing pods in namespace {} violate the new PodSecurity enforce level {}",
            quote(namespace),
            quote(&enforce.to_string())
        ));
        for (reasons, mut names) in warnings {
            names.sort_unstable();
            let first = names.first().copied().unwrap_or_default();
            attributes.warn(match names.len() {
                1 => format!("{first}: {reasons}"),
                2 => format!("{first} (and 1 other pod): {reasons}"),
                n => format!("{first} (and {} other pods): {reasons}", n - 1),
            });
        }
        Ok(())
    }

    fn class_is_exempt(&self, spec: &Value) -> bool {
        let class = spec["runtimeClassName"].as_str().unwrap_or_default();
        !class.is_empty() && self.exempt_classes.iter().any(|held| held == class)
    }

    fn policy_of(&self, namespace: &Value) -> (Policy, Vec<FieldError>) {
        Policy::of_labels(namespace, self.defaults)
    }

    async fn evaluate(
        &self,
        attributes: &Attributes<'_>,
        object: &Value,
        metadata: &Value,
        spec: &Value,
        enforces: bool,
    ) -> Result<(), Status> {
        if self.class_is_exempt(spec) {
            return Ok(());
        }
        let namespace = attributes
            .server
            .object("", "namespaces", "", attributes.namespace)
            .await?;
        let Some(namespace) = namespace else {
            let why = format!("failed to lookup namespace {}", attributes.namespace);
            return Err(Status::internal(why));
        };
        let (policy, faults) = self.policy_of(&namespace);
        if let Some(fault) = faults.first() {
            attributes.annotate(
                format!("{PREFIX}error"),
                format!("Failed to parse policy: {fault}"),
            );
        }
        if enforces {
            attributes.annotate(
                format!("{PREFIX}enforce-policy"),
                policy.enforce.to_string(),
            );
            if let Some(text) = violations(policy.enforce, metadata, spec) {
                let level = quote(&policy.enforce.to_string());
                let why = format!("violates PodSecurity {level}: {text}");
                note(attributes, policy, metadata, spec);
                return Err(forbidden(attributes, Some(object), why));
            }
        }
        note(attributes, policy, metadata, spec);
        if let Some(text) = violations(policy.warn, metadata, spec) {
            let level = quote(&policy.warn.to_string());
            attributes.warn(format!("would violate PodSecurity {level}: {text}"));
        }
        Ok(())
    }
}

fn note(attributes: &Attributes<'_>, policy: Policy, metadata: &Value, spec: &Value) {
    if let Some(text) = violations(policy.audit, metadata, spec) {
        let level = quote(&policy.audit.to_string());
        attributes.annotate(
            format!("{PREFIX}audit-violations"),
            format!("would violate PodSecurity {level}: {text}"),
        );
    }
}

/// Every reason with its details, if there is one.
fn violations(wanted: LevelVersion, metadata: &Value, spec: &Value) -> Option<String> {
    let faults = checks::evaluate(wanted, metadata, spec);
    let texts: Vec<String> = faults
        .iter()
        .map(|fault| {
            if fault.detail.is_empty() {
                fault.reason.to_owned()
            } else {
                format!("{} ({})", fault.reason, fault.detail)
            }
        })
        .collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}

fn refuse(attributes: &Attributes<'_>, name: &str, faults: &[FieldError]) -> Result<(), Status> {
    if faults.is_empty() {
        return Ok(());
    }
    let kind = attributes.resource.qualified_kind();
    Err(Status::invalid(kind, name, faults))
}

/// Metadata and spec of the pods that an object makes.
fn template<'a>(attributes: &Attributes<'_>, object: &'a Value) -> Option<(&'a Value, &'a Value)> {
    let row = &attributes.resource.row;
    let template = match (row.group, row.plural) {
        ("", "podtemplates") => &object["template"],
        ("", "replicationcontrollers")
        | ("apps", "replicasets" | "deployments" | "statefulsets" | "daemonsets")
        | ("batch", "jobs") => &object["spec"]["template"],
        ("batch", "cronjobs") => &object["spec"]["jobTemplate"]["spec"]["template"],
        _ => return None,
    };
    template
        .is_object()
        .then(|| (&template["metadata"], &template["spec"]))
}

/// Whether an update of a pod changes what is judged.
fn is_significant(new: &Value, old: &Value) -> bool {
    let of = |pod: &Value| {
        let mut found = Vec::new();
        for list in super::pods::CONTAINERS {
            for container in super::pods::containers(&pod["spec"], &[list]) {
                let ephemeral = (list == "ephemeralContainers").then(|| container.clone());
                found.push((
                    container["name"].clone(),
                    container["image"].clone(),
                    ephemeral,
                ));
            }
        }
        found
    };
    of(new) != of(old)
}

impl Validating for PodSecurity {
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let (true, Some(object)) = (attributes.writes(), object) else {
            return Ok(());
        };
        if attributes.is("", "namespaces") {
            return self.namespace(attributes, object).await;
        }
        if attributes.about("", "pods") {
            if IGNORED.contains(&attributes.subresource) || self.is_exempt(attributes) {
                return Ok(());
            }
            if let (Operation::Update, Some(old)) = (attributes.operation, attributes.old)
                && !is_significant(object, old)
            {
                return Ok(());
            }
            let (metadata, spec) = (&object["metadata"], &object["spec"]);
            return self
                .evaluate(attributes, object, metadata, spec, true)
                .await;
        }
        if !attributes.subresource.is_empty() || self.is_exempt(attributes) {
            return Ok(());
        }
        match template(attributes, object) {
            Some((metadata, spec)) => {
                self.evaluate(attributes, object, metadata, spec, false)
                    .await
            }
            None => Ok(()),
        }
    }
}
