//! Pods run as a service account that exists, and get its token as a projected volume.

use std::sync::Arc;
use std::time::Duration;

use davit_api::names::GENERATED_ALPHABET;
use davit_api::status::Status;
use rand::seq::IndexedRandom;
use serde_json::{Value, json};

use super::{Attributes, Mutating, Operation, Validating, forbidden, mountable_secrets};

const DEFAULT: &str = "default";
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const MIRROR: &str = "kubernetes.io/config.mirror";
/// Tokens of pods are renewed by the node; the odd seven seconds mark them as injected.
const TOKEN_SECONDS: i64 = 3607;
const VOLUME_PREFIX: &str = "kube-api-access-";
/// A new namespace gets its default account a moment after it is made.
const DEFAULT_ATTEMPTS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(100);

pub(super) struct ServiceAccount;

impl Mutating for ServiceAccount {
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&mut Value>,
    ) -> Result<(), Status> {
        let creates = attributes.operation == Operation::Create && attributes.is("", "pods");
        let Some(pod) = object.filter(|_| creates) else {
            return Ok(());
        };
        if pod
            .pointer("/metadata/annotations")
            .is_some_and(|a| a.get(MIRROR).is_some())
        {
            return mirror_pod(attributes, pod);
        }
        let named = pod
            .pointer("/spec/serviceAccountName")
            .and_then(Value::as_str);
        let name = named
            .filter(|name| !name.is_empty())
            .unwrap_or(DEFAULT)
            .to_owned();
        let Some(account) = account(attributes, &name).await? else {
            let why = format!(
                "error looking up service account {}/{name}: serviceaccount \"{name}\" not found",
                attributes.namespace
            );
            return Err(forbidden(attributes, Some(pod), why));
        };
        let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else {
            return Ok(());
        };
        spec.insert("serviceAccountName".to_owned(), json!(name));
        spec.insert("serviceAccount".to_owned(), json!(name));
        let automount = spec
            .get("automountServiceAccountToken")
            .and_then(Value::as_bool)
            .or_else(|| account["automountServiceAccountToken"].as_bool())
            .unwrap_or(true);
        if automount {
            mount_token(spec);
        }
        let has_secrets = spec.get("imagePullSecrets").and_then(Value::as_array);
        if has_secrets.is_none_or(Vec::is_empty)
            && let Some(secrets) = account["imagePullSecrets"].as_array()
            && !secrets.is_empty()
        {
            spec.insert("imagePullSecrets".to_owned(), json!(secrets));
        }
        Ok(())
    }
}

/// After all changes: which Secrets the account lets its pods name.
impl Validating for ServiceAccount {
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let ephemeral = attributes.operation == Operation::Update
            && attributes.about("", "pods")
            && attributes.subresource == "ephemeralcontainers";
        let creates = attributes.operation == Operation::Create && attributes.is("", "pods");
        let Some(pod) = object.filter(|_| creates || ephemeral) else {
            return Ok(());
        };
        let name = pod["spec"]["serviceAccountName"].as_str();
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return Ok(());
        };
        let account = account(attributes, name).await?;
        let Some(account) = account.filter(|held| mountable_secrets::is_enforced(held)) else {
            return Ok(());
        };
        let judged = if ephemeral {
            mountable_secrets::check_ephemeral(&account, &pod["spec"])
        } else {
            mountable_secrets::check(&account, &pod["spec"])
        };
        judged.map_err(|why| forbidden(attributes, Some(pod), why))
    }
}

/// A node's static pods have no identity towards the API.
fn mirror_pod(attributes: &Attributes<'_>, pod: &Value) -> Result<(), Status> {
    let named = pod
        .pointer("/spec/serviceAccountName")
        .and_then(Value::as_str);
    if named.is_some_and(|name| !name.is_empty()) {
        return Err(forbidden(
            attributes,
            Some(pod),
            "a mirror pod may not reference service accounts",
        ));
    }
    let refused = |why: &str| Err(forbidden(attributes, Some(pod), why));
    // Of an account that may mount none.
    if mountable_secrets::check(&Value::Null, &pod["spec"]).is_err() {
        return refused("a mirror pod may not reference secrets");
    }
    let is_token = |source: &Value| source.get("serviceAccountToken").is_some();
    let sources = |volume: &Value| volume["projected"]["sources"].as_array().cloned();
    let volumes = pod["spec"]["volumes"].as_array();
    if volumes
        .into_iter()
        .flatten()
        .filter_map(sources)
        .any(|sources| sources.iter().any(is_token))
    {
        return refused("a mirror pod may not use ServiceAccountToken volume projections");
    }
    Ok(())
}

async fn account(attributes: &Attributes<'_>, name: &str) -> Result<Option<Arc<Value>>, Status> {
    let attempts = if name == DEFAULT { DEFAULT_ATTEMPTS } else { 1 };
    for attempt in 0..attempts {
        if attempt > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        let found = attributes
            .server
            .object("", "serviceaccounts", attributes.namespace, name)
            .await?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

fn mount_token(spec: &mut serde_json::Map<String, Value>) {
    let held = spec
        .get("volumes")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let existing = held.iter().find_map(|volume| {
        let name = volume["name"].as_str()?;
        let token = volume.pointer("/projected/sources")?.as_array()?;
        let is_token = token
            .iter()
            .any(|source| source.get("serviceAccountToken").is_some());
        (name.starts_with(VOLUME_PREFIX) && is_token).then(|| name.to_owned())
    });
    let volume = existing.clone().unwrap_or_else(|| volume_name(&held));
    let mut mounted = false;
    for list in ["initContainers", "containers"] {
        let Some(containers) = spec.get_mut(list).and_then(Value::as_array_mut) else {
            continue;
        };
        for container in containers {
            mounted |= mount(container, &volume);
        }
    }
    if mounted && existing.is_none() {
        let mut volumes = held;
        volumes.push(token_volume(&volume));
        spec.insert("volumes".to_owned(), Value::Array(volumes));
    }
}

fn mount(container: &mut Value, volume: &str) -> bool {
    let Some(container) = container.as_object_mut() else {
        return false;
    };
    let mounts = container.entry("volumeMounts").or_insert_with(|| json!([]));
    if mounts.is_null() {
        *mounts = json!([]);
    }
    let Some(mounts) = mounts.as_array_mut() else {
        return false;
    };
    if mounts.iter().any(|mount| mount["mountPath"] == MOUNT_PATH) {
        return false;
    }
    mounts.push(json!({ "name": volume, "readOnly": true, "mountPath": MOUNT_PATH }));
    true
}

fn volume_name(held: &[Value]) -> String {
    let mut rng = rand::rng();
    loop {
        let suffix: String = (0..5)
            .map(|_| char::from(*GENERATED_ALPHABET.choose(&mut rng).unwrap_or(&b'x')))
            .collect();
        let name = format!("{VOLUME_PREFIX}{suffix}");
        if !held.iter().any(|volume| volume["name"] == name.as_str()) {
            return name;
        }
    }
}

fn token_volume(name: &str) -> Value {
    json!({
        "name": name,
        "projected": {
            "defaultMode": 420,
            "sources": [
                { "serviceAccountToken": { "expirationSeconds": TOKEN_SECONDS, "path": "token" } },
                { "configMap": {
                    "name": "kube-root-ca.crt",
                    "items": [{ "key": "ca.crt", "path": "ca.crt" }],
                } },
                { "downwardAPI": { "items": [{
                    "path": "namespace",
                    "fieldRef": { "apiVersion": "v1", "fieldPath": "metadata.namespace" },
                }] } },
            ],
        },
    })
}
