//! The files that objects, tokens and pod fields become in a volume.

use super::atomic::{File, Payload};
use super::{Cause, Volumes, trust_bundle};
use crate::env::{NodeFacts, field_value, resource_value};
use crate::objects::ObjectSource;
use crate::pod::PodExt;
use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, DownwardAPIVolumeFile, KeyToPath, Pod, ProjectedVolumeSource,
    SecretVolumeSource,
};
use std::collections::BTreeMap;

const DEFAULT_MODE: i32 = 0o644;
const TOKEN_SECONDS: i64 = 3600;

type Data = BTreeMap<String, Vec<u8>>;

struct Selection<'a> {
    items: Option<&'a Vec<KeyToPath>>,
    mode: i32,
    optional: bool,
    kind: &'static str,
}

pub(super) async fn config_map(
    pod: &Pod,
    source: &ConfigMapVolumeSource,
    objects: &dyn ObjectSource,
) -> Result<Payload, Cause> {
    let selection = Selection {
        items: source.items.as_ref(),
        mode: source.default_mode.unwrap_or(DEFAULT_MODE),
        optional: source.optional == Some(true),
        kind: "config",
    };
    config_map_files(pod, &source.name, &selection, objects).await
}

pub(super) async fn secret(
    pod: &Pod,
    source: &SecretVolumeSource,
    objects: &dyn ObjectSource,
) -> Result<Payload, Cause> {
    let selection = Selection {
        items: source.items.as_ref(),
        mode: source.default_mode.unwrap_or(DEFAULT_MODE),
        optional: source.optional == Some(true),
        kind: "secret",
    };
    secret_files(
        pod,
        source.secret_name.as_deref().unwrap_or_default(),
        &selection,
        objects,
    )
    .await
}

async fn config_map_files(
    pod: &Pod,
    name: &str,
    selection: &Selection<'_>,
    objects: &dyn ObjectSource,
) -> Result<Payload, Cause> {
    let Some(map) = objects.config_map(pod.ns(), name).await? else {
        return missing(selection, "configmap", name);
    };
    let mut data: Data = map
        .data
        .unwrap_or_default()
        .into_iter()
        .map(|(k, v)| (k, v.into_bytes()))
        .collect();
    data.extend(
        map.binary_data
            .unwrap_or_default()
            .into_iter()
            .map(|(k, v)| (k, v.0)),
    );
    select(data, selection)
}

async fn secret_files(
    pod: &Pod,
    name: &str,
    selection: &Selection<'_>,
    objects: &dyn ObjectSource,
) -> Result<Payload, Cause> {
    let Some(secret) = objects.secret(pod.ns(), name).await? else {
        return missing(selection, "secret", name);
    };
    select(
        secret
            .data
            .unwrap_or_default()
            .into_iter()
            .map(|(k, v)| (k, v.0))
            .collect(),
        selection,
    )
}

fn missing(selection: &Selection<'_>, kind: &'static str, name: &str) -> Result<Payload, Cause> {
    if selection.optional {
        Ok(Payload::new())
    } else {
        Err(Cause::Missing {
            kind,
            name: name.to_owned(),
        })
    }
}

fn file(data: Vec<u8>, mode: i32) -> File {
    File {
        data,
        mode: u32::try_from(mode).unwrap_or(0o644) & 0o777,
        owner: None,
    }
}

fn select(mut data: Data, selection: &Selection<'_>) -> Result<Payload, Cause> {
    let Some(items) = selection.items.filter(|i| !i.is_empty()) else {
        return Ok(data
            .into_iter()
            .map(|(k, v)| (k, file(v, selection.mode)))
            .collect());
    };
    let mut out = Payload::new();
    for item in items {
        match data.get_mut(&item.key) {
            Some(content) => {
                out.insert(
                    item.path.clone(),
                    file(content.clone(), item.mode.unwrap_or(selection.mode)),
                );
            }
            None if selection.optional => {}
            None => {
                return Err(Cause::MissingKey {
                    kind: selection.kind,
                    key: item.key.clone(),
                });
            }
        }
    }
    Ok(out)
}

pub(super) fn downward(
    pod: &Pod,
    items: &[DownwardAPIVolumeFile],
    default_mode: Option<i32>,
    facts: &NodeFacts,
) -> Result<Payload, Cause> {
    let mut out = Payload::new();
    for item in items {
        let text = match (&item.field_ref, &item.resource_field_ref) {
            (Some(field), _) => field_value(pod, &field.field_path, facts)?,
            (None, Some(resource)) => resource_value(pod, None, resource, facts)?,
            (None, None) => String::new(),
        };
        let mode = item.mode.or(default_mode).unwrap_or(DEFAULT_MODE);
        out.insert(item.path.clone(), file(text.into_bytes(), mode));
    }
    Ok(out)
}

pub(super) async fn projected(
    volumes: &Volumes,
    pod: &Pod,
    volume: &str,
    source: &ProjectedVolumeSource,
    facts: &NodeFacts,
) -> Result<Payload, Cause> {
    let default_mode = source.default_mode.unwrap_or(DEFAULT_MODE);
    let objects = &*volumes.objects;
    let mut out = Payload::new();
    for part in source.sources.iter().flatten() {
        if let Some(map) = &part.config_map {
            let optional = map.optional == Some(true);
            let selection = Selection {
                items: map.items.as_ref(),
                mode: default_mode,
                optional,
                kind: "config",
            };
            out.extend(config_map_files(pod, &map.name, &selection, objects).await?);
        } else if let Some(secret) = &part.secret {
            let optional = secret.optional == Some(true);
            let selection = Selection {
                items: secret.items.as_ref(),
                mode: default_mode,
                optional,
                kind: "secret",
            };
            out.extend(secret_files(pod, &secret.name, &selection, objects).await?);
        } else if let Some(fields) = &part.downward_api {
            let items = fields.items.as_deref().unwrap_or_default();
            out.extend(downward(pod, items, Some(default_mode), facts)?);
        } else if let Some(token) = &part.service_account_token {
            let audience = token.audience.as_deref().filter(|a| !a.is_empty());
            let seconds = token.expiration_seconds.unwrap_or(TOKEN_SECONDS);
            let held = volumes
                .tokens
                .token(pod, volume, &token.path, audience, seconds)
                .await?;
            out.insert(
                token.path.clone(),
                token_file(pod, held.token, default_mode),
            );
        } else if let Some(bundle) = &part.cluster_trust_bundle {
            let text = trust_bundle::anchors(bundle, objects).await?;
            out.insert(bundle.path.clone(), token_file(pod, text, default_mode));
        } else if part.pod_certificate.is_some() {
            return Err(Cause::NotBuilt("projected podCertificate"));
        }
    }
    Ok(out)
}

/// A token, and a bundle as well, is readable by its user only, where the pod says who that is.
fn token_file(pod: &Pod, text: String, default_mode: i32) -> File {
    let owner = common_user(pod);
    let grouped = pod
        .pod_spec()
        .security_context
        .as_ref()
        .is_some_and(|c| c.fs_group.is_some());
    let mode = if owner.is_some() || grouped {
        0o600
    } else {
        default_mode
    };
    File {
        owner,
        ..file(text.into_bytes(), mode)
    }
}

/// The user that every container of the pod runs as.
fn common_user(pod: &Pod) -> Option<u32> {
    let of_pod = pod
        .pod_spec()
        .security_context
        .as_ref()
        .and_then(|c| c.run_as_user);
    let mut users = pod.all_containers().into_iter().map(|(_, c)| {
        c.security_context
            .as_ref()
            .and_then(|s| s.run_as_user)
            .or(of_pod)
    });
    let first = users.next()??;
    if users.all(|u| u == Some(first)) {
        u32::try_from(first).ok()
    } else {
        None
    }
}
