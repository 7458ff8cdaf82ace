//! The environment of a container: literal values, references to the pod's own fields, ConfigMaps and Secrets, and the
//! variables that announce services.
//!
//! Order, and so precedence: device variables first, then `envFrom`, then `env`, then service variables nobody set.
//! A later entry of the same name wins.

use crate::env_files::EnvFiles;
use crate::expansion::{TooLong, expand};
use crate::objects::ObjectSource;
use crate::pod::PodExt;
use crate::references::References;
use crate::resources;
use davit_api::host_port::host_port;
use k8s_openapi::api::core::v1::{Container, EnvVarSource, Pod, ResourceFieldSelector, Service};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Why a container's environment cannot be built; becomes the message of `CreateContainerConfigError`.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A ConfigMap or Secret that is not optional does not exist.
    #[error("{kind} \"{name}\" not found")]
    Missing {
        /// `configmap` or `secret`.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// The object has no such key.
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    MissingKey {
        /// `ConfigMap` or `Secret`.
        kind: &'static str,
        /// Namespace of the pod.
        namespace: String,
        /// The object's name.
        name: String,
        /// The key asked for.
        key: String,
    },
    /// A field path the downward API does not offer.
    #[error("unsupported fieldPath: {0}")]
    FieldPath(String),
    /// A resource the downward API does not offer, or a container that does not exist.
    #[error("unsupported resource reference: {0}")]
    Resource(String),
    /// What a file of a volume should say.
    #[error(transparent)]
    File(#[from] crate::env_files::EnvFileError),
    /// More than a program can be started with.
    #[error(
        "environment, command and arguments come to more than {} bytes",
        MAX_BYTES
    )]
    TooLong,
    /// Objects that variables refer to, and of which each is read as a whole.
    #[error("the objects that variables refer to come to more than {0} bytes")]
    TooMuch(usize),
    /// The API server could not be asked.
    #[error(transparent)]
    Api(#[from] crate::objects::Error),
}

impl From<TooLong> for Error {
    fn from(_: TooLong) -> Self {
        Self::TooLong
    }
}

/// Bytes of a container's environment and command together. The kernel starts nothing with more than 6 MiB, and with the
/// usual limit of the stack nothing with more than two.
const MAX_BYTES: usize = 6 << 20;
/// What each word and variable costs beside its text, as in the kernel.
const WORD: usize = 9;

/// What the node itself knows and the downward API may show.
#[derive(Debug, Clone, Default)]
pub struct NodeFacts {
    /// Addresses of the node, the first is `status.hostIP`.
    pub host_ips: Vec<String>,
    /// Addresses of the pod's sandbox.
    pub pod_ips: Vec<String>,
    /// The node's allocatable amounts, the default of missing limits.
    pub allocatable: resources::Quantities,
    /// The node's labels, by which volumes say where they can be reached.
    pub labels: BTreeMap<String, String>,
}

/// A built environment.
#[derive(Debug)]
pub struct Environment {
    /// The variables in order, names unique.
    vars: Vec<(String, String)>,
    /// Where each is.
    places: HashMap<String, usize>,
    /// What may still be added, in bytes.
    left: usize,
    /// Keys of `envFrom` objects that cannot be variable names: (object kind and name, keys), for an event.
    pub skipped: Vec<(String, Vec<String>)>,
}

impl Environment {
    fn new() -> Self {
        Self {
            vars: Vec::new(),
            places: HashMap::new(),
            left: MAX_BYTES,
            skipped: Vec::new(),
        }
    }

    /// The variables in order, names unique.
    pub fn vars(&self) -> impl Iterator<Item = (&str, &str)> {
        self.vars
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Value of a variable.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.places
            .get(name)
            .map(|place| self.vars[*place].1.as_str())
    }

    /// Replaces references in a word of the command, which counts with the variables.
    ///
    /// # Errors
    /// [`Error::TooLong`].
    pub fn expand<'a>(
        &mut self,
        word: &str,
        others: impl Fn(&str) -> Option<Cow<'a, str>>,
    ) -> Result<String, Error> {
        let own = &*self;
        let word = expand(word, own.left, |name| {
            own.get(name)
                .map(|value| Cow::Owned(value.to_owned()))
                .or_else(|| others(name))
        })?;
        self.take(word.len())?;
        Ok(word)
    }

    fn set(&mut self, name: String, value: String) -> Result<(), Error> {
        self.take(name.len() + value.len() + 1)?;
        match self.places.get(&name) {
            Some(place) => self.vars[*place].1 = value,
            None => {
                self.places.insert(name.clone(), self.vars.len());
                self.vars.push((name, value));
            }
        }
        Ok(())
    }

    /// Counts what has been worked on, also of what another replaces.
    fn take(&mut self, bytes: usize) -> Result<(), Error> {
        let left = self.left.checked_sub(bytes.saturating_add(WORD));
        self.left = left.ok_or(Error::TooLong)?;
        Ok(())
    }
}

/// Builds the environment of one container without the devices' part.
///
/// # Errors
/// [`Error`] for references that cannot be followed and are not optional.
pub async fn build(
    pod: &Pod,
    container: &Container,
    facts: &NodeFacts,
    services: &[Arc<Service>],
    objects: &dyn ObjectSource,
    files: &EnvFiles,
) -> Result<Environment, Error> {
    let mut out = Environment::new();
    let mut references = References::new(objects, pod.ns());
    from_objects(pod, container, &mut references, &mut out).await?;
    let service_vars = service_variables(pod, services);
    for var in container.env.iter().flatten() {
        let value = match &var.value_from {
            None => {
                let lookup = |name: &str| {
                    let of_service = || service_vars.get(name).map(String::as_str);
                    out.get(name).or_else(of_service).map(Cow::Borrowed)
                };
                let value = var.value.as_deref().unwrap_or_default();
                Some(expand(value, out.left, lookup)?)
            }
            Some(source) => {
                from_source(pod, container, source, facts, &mut references, files).await?
            }
        };
        if let Some(value) = value {
            out.set(var.name.clone(), value)?;
        }
    }
    for (name, value) in service_vars {
        if out.get(&name).is_none() {
            out.set(name, value)?;
        }
    }
    Ok(out)
}

async fn from_objects(
    pod: &Pod,
    container: &Container,
    objects: &mut References<'_>,
    out: &mut Environment,
) -> Result<(), Error> {
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        let (label, pairs) = if let Some(reference) = &from.config_map_ref {
            let Some(map) = objects.config_map(&reference.name).await? else {
                if reference.optional == Some(true) {
                    continue;
                }
                return Err(Error::Missing {
                    kind: "configmap",
                    name: reference.name.clone(),
                });
            };
            let pairs: Vec<_> = map
                .data
                .iter()
                .flatten()
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect();
            (format!("ConfigMap {}/{}", pod.ns(), reference.name), pairs)
        } else if let Some(reference) = &from.secret_ref {
            let Some(secret) = objects.secret(&reference.name).await? else {
                if reference.optional == Some(true) {
                    continue;
                }
                return Err(Error::Missing {
                    kind: "secret",
                    name: reference.name.clone(),
                });
            };
            let text = |v: &[u8]| String::from_utf8_lossy(v).into_owned();
            let pairs: Vec<_> = secret
                .data
                .iter()
                .flatten()
                .map(|(k, v)| (k.clone(), text(&v.0)))
                .collect();
            (format!("Secret {}/{}", pod.ns(), reference.name), pairs)
        } else {
            continue;
        };
        let mut bad = Vec::new();
        for (key, value) in pairs {
            let name = format!("{prefix}{key}");
            if is_env_name(&name) {
                out.set(name, value)?;
            } else {
                out.take(name.len())?;
                bad.push(name);
            }
        }
        if !bad.is_empty() {
            out.skipped.push((label, bad));
        }
    }
    Ok(())
}

/// Any printable ASCII but `=` may stand in a variable's name (KEP-4369).
fn is_env_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| (0x20..0x7f).contains(&b) && b != b'=')
}

async fn from_source(
    pod: &Pod,
    container: &Container,
    source: &EnvVarSource,
    facts: &NodeFacts,
    objects: &mut References<'_>,
    files: &EnvFiles,
) -> Result<Option<String>, Error> {
    if let Some(field) = &source.field_ref {
        return field_value(pod, &field.field_path, facts).map(Some);
    }
    if let Some(resource) = &source.resource_field_ref {
        return resource_value(pod, Some(container), resource, facts).map(Some);
    }
    if let Some(key) = &source.config_map_key_ref {
        let optional = key.optional == Some(true);
        let map = objects.config_map(&key.name).await?;
        let Some(map) = map else {
            return missing_object(optional, "configmap", &key.name);
        };
        return match map.data.as_ref().and_then(|d| d.get(&key.key)) {
            Some(value) => Ok(Some(value.clone())),
            None => missing_key(optional, "ConfigMap", pod, &key.name, &key.key),
        };
    }
    if let Some(key) = &source.secret_key_ref {
        let optional = key.optional == Some(true);
        let Some(secret) = objects.secret(&key.name).await? else {
            return missing_object(optional, "secret", &key.name);
        };
        return match secret.data.as_ref().and_then(|d| d.get(&key.key)) {
            Some(value) => Ok(Some(String::from_utf8_lossy(&value.0).into_owned())),
            None => missing_key(optional, "Secret", pod, &key.name, &key.key),
        };
    }
    if let Some(file) = &source.file_key_ref {
        return Ok(files.get(file).map(str::to_owned));
    }
    Ok(Some(String::new()))
}

fn missing_object(optional: bool, kind: &'static str, name: &str) -> Result<Option<String>, Error> {
    if optional {
        Ok(None)
    } else {
        Err(Error::Missing {
            kind,
            name: name.to_owned(),
        })
    }
}

fn missing_key(
    optional: bool,
    kind: &'static str,
    pod: &Pod,
    name: &str,
    key: &str,
) -> Result<Option<String>, Error> {
    if optional {
        return Ok(None);
    }
    Err(Error::MissingKey {
        kind,
        namespace: pod.ns().to_owned(),
        name: name.to_owned(),
        key: key.to_owned(),
    })
}

/// A field of the pod by the path that the downward API allows.
///
/// # Errors
/// [`Error::FieldPath`] for any other path.
pub fn field_value(pod: &Pod, path: &str, facts: &NodeFacts) -> Result<String, Error> {
    let meta = &pod.metadata;
    if let Some((map, key)) = path.split_once("['") {
        let key = key
            .strip_suffix("']")
            .ok_or_else(|| Error::FieldPath(path.to_owned()))?;
        let map = match map {
            "metadata.labels" => &meta.labels,
            "metadata.annotations" => &meta.annotations,
            _ => return Err(Error::FieldPath(path.to_owned())),
        };
        return Ok(map
            .as_ref()
            .and_then(|m| m.get(key))
            .cloned()
            .unwrap_or_default());
    }
    let spec = pod.pod_spec();
    let status = pod.pod_status();
    let first = |own: &[String], api: &Option<String>| {
        own.first()
            .cloned()
            .or_else(|| api.clone())
            .unwrap_or_default()
    };
    Ok(match path {
        "metadata.name" => pod.pod_name().to_owned(),
        "metadata.namespace" => pod.ns().to_owned(),
        "metadata.uid" => pod.uid().to_owned(),
        "metadata.labels" => format_map(meta.labels.as_ref()),
        "metadata.annotations" => format_map(meta.annotations.as_ref()),
        "spec.nodeName" => spec.node_name.clone().unwrap_or_default(),
        "spec.serviceAccountName" => spec.service_account_name.clone().unwrap_or_default(),
        "status.hostIP" => first(&facts.host_ips, &status.host_ip),
        "status.hostIPs" => facts.host_ips.join(","),
        "status.podIP" => first(&facts.pod_ips, &status.pod_ip),
        "status.podIPs" => facts.pod_ips.join(","),
        _ => return Err(Error::FieldPath(path.to_owned())),
    })
}

/// `key="value"` lines, sorted, as files of the downward API show labels and annotations.
pub fn format_map(map: Option<&BTreeMap<String, String>>) -> String {
    let lines: Vec<String> = map
        .into_iter()
        .flatten()
        .map(|(k, v)| format!("{k}={}", davit_api::field::quote(v)))
        .collect();
    lines.join("\n")
}

/// A container's request or limit in units of the divisor, rounded up; limits that are not set fall back to the pod's
/// own (KEP-2837), then to the node's allocatable.
///
/// # Errors
/// [`Error::Resource`] for unknown resources or containers.
pub fn resource_value(
    pod: &Pod,
    own: Option<&Container>,
    selector: &ResourceFieldSelector,
    facts: &NodeFacts,
) -> Result<String, Error> {
    let bad = || Error::Resource(selector.resource.clone());
    let named = selector.container_name.as_deref().filter(|n| !n.is_empty());
    let found;
    let container = match named {
        Some(name) => {
            found = pod
                .container(name)
                .map(|(_, c)| c.into_owned())
                .ok_or_else(bad)?;
            &found
        }
        None => own.ok_or_else(bad)?,
    };
    let (list, resource) = selector.resource.split_once('.').ok_or_else(bad)?;
    let known = matches!(resource, "cpu" | "memory" | "ephemeral-storage")
        || resource.starts_with("hugepages-");
    if !known {
        return Err(bad());
    }
    let set = match list {
        "limits" => resources::container_limit(container, resource).filter(|n| *n != 0),
        "requests" => resources::container_request(container, resource),
        _ => return Err(bad()),
    };
    let of_pod = || {
        let spec = pod.spec.as_ref()?.resources.as_ref()?;
        let limit = spec.limits.as_ref()?.get(resource)?;
        Some(resources::amount(resource, limit)).filter(|n| *n != 0)
    };
    let fallback = || match list {
        "limits" => of_pod().unwrap_or_else(|| {
            let node = facts.allocatable.get(resource);
            node.map_or(0, |q| resources::amount(resource, q))
        }),
        _ => 0,
    };
    let amount = set.unwrap_or_else(fallback);
    let divisor = selector
        .divisor
        .as_ref()
        .map_or(0, |d| resources::amount(resource, d));
    // Without divisor the unit is one core or one byte.
    let unit = if divisor > 0 {
        divisor
    } else if resource == "cpu" {
        1000
    } else {
        1
    };
    Ok(((amount + unit - 1) / unit).to_string())
}

/// Variables that announce the services of the pod's namespace (when `enableServiceLinks`) and the API server's.
fn service_variables(pod: &Pod, services: &[Arc<Service>]) -> BTreeMap<String, String> {
    let links = pod.pod_spec().enable_service_links.unwrap_or(true);
    let mut chosen: HashMap<&str, &Service> = HashMap::new();
    for service in services {
        let name = service.metadata.name.as_deref().unwrap_or_default();
        let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
        let ip = service
            .spec
            .as_ref()
            .and_then(|s| s.cluster_ip.as_deref())
            .unwrap_or_default();
        if ip.is_empty() || ip == "None" {
            continue;
        }
        if namespace == pod.ns() && links {
            chosen.insert(name, service);
        } else if namespace == "default" && name == "kubernetes" {
            chosen.entry(name).or_insert(service);
        }
    }
    let mut out = BTreeMap::new();
    for (name, service) in chosen {
        one_service(name, service, &mut out);
    }
    out
}

fn one_service(name: &str, service: &Service, out: &mut BTreeMap<String, String>) {
    let variable = |text: &str| text.to_uppercase().replace('-', "_");
    let prefix = variable(name);
    let Some(spec) = &service.spec else { return };
    let ip = spec.cluster_ip.clone().unwrap_or_default();
    out.insert(format!("{prefix}_SERVICE_HOST"), ip.clone());
    for (i, port) in spec.ports.iter().flatten().enumerate() {
        let number = port.port.to_string();
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        if i == 0 {
            out.insert(format!("{prefix}_SERVICE_PORT"), number.clone());
            out.insert(
                format!("{prefix}_PORT"),
                format!(
                    "{}://{}",
                    protocol.to_lowercase(),
                    host_port(&ip, port.port)
                ),
            );
        }
        if let Some(port_name) = port.name.as_deref().filter(|n| !n.is_empty()) {
            out.insert(
                format!("{prefix}_SERVICE_PORT_{}", variable(port_name)),
                number.clone(),
            );
        }
        let base = format!("{prefix}_PORT_{number}_{}", protocol.to_uppercase());
        out.insert(
            base.clone(),
            format!(
                "{}://{}",
                protocol.to_lowercase(),
                host_port(&ip, port.port)
            ),
        );
        out.insert(format!("{base}_PROTO"), protocol.to_lowercase());
        out.insert(format!("{base}_PORT"), number.clone());
        out.insert(format!("{base}_ADDR"), ip.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::FixedObjects;
    use serde_json::json;

    fn objects() -> FixedObjects {
        FixedObjects::from_json(&[
            json!({"kind": "ConfigMap", "metadata": {"name": "cm", "namespace": "ns"}, "data": {"a": "1", "b=c": "2"}}),
            json!({"kind": "Secret", "metadata": {"name": "sec", "namespace": "ns"}, "data": {"k": "dmFsdWU="}}),
        ])
    }

    #[expect(
        clippy::needless_pass_by_value,
        reason = "reads best with json! in place"
    )]
    fn sample(env: serde_json::Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u1", "labels": {"app": "x\"y", "b": "2"}},
            "spec": {"nodeName": "n1", "serviceAccountName": "sa", "containers": [
                {"name": "c", "env": env, "resources": {"limits": {"cpu": "1500m", "memory": "64Mi"}}}]},
        }))
        .unwrap()
    }

    async fn build_one(pod: &Pod) -> Result<Environment, Error> {
        let facts = NodeFacts {
            labels: BTreeMap::new(),
            host_ips: vec!["10.0.0.1".into()],
            pod_ips: vec!["10.1.0.2".into()],
            ..NodeFacts::default()
        };
        let service: Service = serde_json::from_value(json!({
            "metadata": {"name": "my-db", "namespace": "ns"},
            "spec": {"clusterIP": "10.96.0.7", "ports": [{"name": "sql", "port": 5432}]}
        }))
        .unwrap();
        build(
            pod,
            &pod.pod_spec().containers[0],
            &facts,
            &[Arc::new(service)],
            &objects(),
            &EnvFiles::default(),
        )
        .await
    }

    #[tokio::test]
    async fn references_and_expansion() {
        let p = sample(json!([
            {"name": "A", "value": "one"},
            {"name": "B", "value": "$(A)-$(MISSING)-$(MY_DB_SERVICE_HOST)-$$(A)"},
            {"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "L", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['b']"}}},
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
            {"name": "MCPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
            {"name": "MEM", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
            {"name": "CM", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "a"}}},
            {"name": "S", "valueFrom": {"secretKeyRef": {"name": "sec", "key": "k"}}},
            {"name": "OPT", "valueFrom": {"secretKeyRef": {"name": "none", "key": "k", "optional": true}}},
        ]));
        let env = build_one(&p).await.unwrap();
        let expected = [
            ("A", "one"),
            ("B", "one-$(MISSING)-10.96.0.7-$(A)"),
            ("N", "p"),
            ("L", "2"),
            ("IP", "10.1.0.2"),
            ("CPU", "2"),
            ("MCPU", "1500"),
            ("MEM", "64"),
            ("CM", "1"),
            ("S", "value"),
            ("MY_DB_PORT_5432_TCP", "tcp://10.96.0.7:5432"),
            ("MY_DB_SERVICE_PORT_SQL", "5432"),
        ];
        for (name, value) in expected {
            assert_eq!(env.get(name), Some(value), "{name}");
        }
        assert_eq!(env.get("OPT"), None);
    }

    #[tokio::test]
    async fn what_names_itself_twice_over_and_over_is_too_long() {
        let mut vars = vec![json!({"name": "V0", "value": "x".repeat(1024)})];
        for i in 1..40 {
            let before = i - 1;
            vars.push(
                json!({"name": format!("V{i}"), "value": format!("$(V{before})$(V{before})")}),
            );
        }
        let error = build_one(&sample(json!(vars))).await.unwrap_err();
        assert!(matches!(error, Error::TooLong), "{error}");
        let mut env = build_one(&sample(json!(vars[..10]))).await.unwrap();
        let args = "$(V9)".repeat(20);
        assert!(matches!(env.expand(&args, |_| None), Err(Error::TooLong)));
        assert_eq!(env.expand("$(B)c", |_| Some("b".into())).unwrap(), "bc");
    }

    #[test]
    fn a_limit_that_is_missing_is_the_pods_then_the_nodes() {
        let amounts = |text: &str| serde_json::from_value(json!(text)).unwrap();
        let facts = NodeFacts {
            labels: BTreeMap::new(),
            allocatable: [
                ("cpu".to_owned(), amounts("8")),
                ("memory".to_owned(), amounts("1Gi")),
            ]
            .into(),
            ..NodeFacts::default()
        };
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": {
            "resources": {"limits": {"memory": "64Mi"}}, "containers": [{"name": "c"}]}}))
        .unwrap();
        let value = |resource: &str| {
            let selector = ResourceFieldSelector {
                resource: resource.to_owned(),
                ..ResourceFieldSelector::default()
            };
            let container = pod.pod_spec().containers.first();
            resource_value(&pod, container, &selector, &facts).unwrap()
        };
        assert_eq!(value("limits.memory"), (64 << 20).to_string());
        assert_eq!(value("limits.cpu"), "8");
    }

    #[tokio::test]
    async fn missing_references_have_upstream_texts() {
        let p = sample(
            json!([{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "nope", "key": "a"}}}]),
        );
        assert_eq!(
            build_one(&p).await.unwrap_err().to_string(),
            "configmap \"nope\" not found"
        );
        let p = sample(
            json!([{"name": "X", "valueFrom": {"secretKeyRef": {"name": "sec", "key": "zz"}}}]),
        );
        assert_eq!(
            build_one(&p).await.unwrap_err().to_string(),
            "couldn't find key zz in Secret ns/sec"
        );
    }

    #[tokio::test]
    async fn env_from_skips_names_that_cannot_be() {
        let mut p = sample(json!([{"name": "P_a", "value": "own"}]));
        let container = &mut p.spec.as_mut().unwrap().containers[0];
        container.env_from =
            serde_json::from_value(json!([{"prefix": "P_", "configMapRef": {"name": "cm"}}]))
                .unwrap();
        let env = build_one(&p).await.unwrap();
        assert_eq!(env.get("P_a"), Some("own"));
        assert_eq!(
            env.skipped,
            vec![("ConfigMap ns/cm".to_owned(), vec!["P_b=c".to_owned()])]
        );
    }

    #[test]
    fn maps_are_written_sorted_and_quoted() {
        let p = sample(json!([]));
        assert_eq!(
            field_value(&p, "metadata.labels", &NodeFacts::default()).unwrap(),
            "app=\"x\\\"y\"\nb=\"2\""
        );
    }
}
