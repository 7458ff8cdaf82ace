//! The files that objects, tokens and pod fields become in a volume.

use super::sources::{MAX_OF_POD, PodBudget, Sources};
use super::tokens::Tokens;
use super::{Cause, trust_bundle};
use davit_disk::published::{File, Payload};
use davit_pods::env::{NodeFacts, field_value, resource_value};
use davit_pods::pod::PodExt;
use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, DownwardAPIVolumeFile, KeyToPath, Pod, ProjectedVolumeSource,
    SecretVolumeSource,
};
use std::collections::BTreeMap;

const DEFAULT_MODE: i32 = 0o644;
const TOKEN_SECONDS: i64 = 3600;

/// Bytes of a volume's files at most: a pod may name a key of a megabyte as often as it likes.
const MAX_BYTES: usize = 32 << 20;
/// What a file costs beside what is in it.
const FILE: usize = 1 << 10;
/// Files of a volume at most; more than an object has keys.
const MAX_FILES: usize = 1 << 16;

type Data<'a> = BTreeMap<&'a str, &'a [u8]>;

fn take(budget: &PodBudget, bytes: usize) -> Result<(), Cause> {
    match budget.take(bytes) {
        true => Ok(()),
        false => Err(Cause::TooMuchOfPod(MAX_OF_POD >> 20)),
    }
}

/// The files of a volume, as far as they are known.
pub(super) struct Files<'a> {
    budget: &'a PodBudget,
    payload: Payload,
    added: usize,
    bytes: usize,
}

impl<'a> Files<'a> {
    pub(super) fn within(budget: &'a PodBudget) -> Self {
        Self {
            budget,
            payload: Payload::default(),
            added: 0,
            bytes: 0,
        }
    }

    /// Adds a file of that many bytes, which is not made if it is too much.
    fn add(&mut self, path: &str, bytes: usize, make: impl FnOnce() -> File) -> Result<(), Cause> {
        self.bytes = self.bytes.saturating_add(bytes);
        self.added += 1;
        if self.bytes > MAX_BYTES || self.added > MAX_FILES {
            return Err(Cause::TooMuch {
                files: MAX_FILES,
                mebibytes: MAX_BYTES >> 20,
            });
        }
        take(self.budget, bytes.saturating_add(FILE))?;
        self.payload.insert(path.to_owned(), make());
        Ok(())
    }

    /// What is in the volume.
    pub(super) fn into_payload(self) -> Payload {
        self.payload
    }
}

/// Which keys of an object become files, and what holds for them unless a key says otherwise.
struct Selection<'a> {
    items: Option<&'a Vec<KeyToPath>>,
    mode: i32,
    optional: bool,
}

impl<'a> Selection<'a> {
    fn new(items: Option<&'a Vec<KeyToPath>>, mode: Option<i32>, optional: Option<bool>) -> Self {
        Self {
            items,
            mode: mode.unwrap_or(DEFAULT_MODE),
            optional: optional == Some(true),
        }
    }
}

pub(super) async fn config_map(
    source: &ConfigMapVolumeSource,
    sources: &Sources<'_>,
    files: &mut Files<'_>,
) -> Result<(), Cause> {
    let selection = Selection::new(source.items.as_ref(), source.default_mode, source.optional);
    config_map_files(&source.name, &selection, sources, files).await
}

pub(super) async fn secret(
    source: &SecretVolumeSource,
    sources: &Sources<'_>,
    files: &mut Files<'_>,
) -> Result<(), Cause> {
    let selection = Selection::new(source.items.as_ref(), source.default_mode, source.optional);
    let name = source.secret_name.as_deref().unwrap_or_default();
    secret_files(name, &selection, sources, files).await
}

async fn config_map_files(
    name: &str,
    selection: &Selection<'_>,
    sources: &Sources<'_>,
    files: &mut Files<'_>,
) -> Result<(), Cause> {
    let found = sources.config_map(name).await?;
    let Some(map) = &*found else {
        return missing(selection, "configmap", name);
    };
    let texts = map.data.iter().flatten();
    let texts = texts.map(|(key, value)| (key.as_str(), value.as_bytes()));
    let bytes = map.binary_data.iter().flatten();
    let bytes = bytes.map(|(key, value)| (key.as_str(), &*value.0));
    select(&texts.chain(bytes).collect(), selection, "config", files)
}

async fn secret_files(
    name: &str,
    selection: &Selection<'_>,
    sources: &Sources<'_>,
    files: &mut Files<'_>,
) -> Result<(), Cause> {
    let found = sources.secret(name).await?;
    let Some(secret) = &*found else {
        return missing(selection, "secret", name);
    };
    let data = secret.data.iter().flatten();
    let data = data.map(|(key, value)| (key.as_str(), &*value.0)).collect();
    select(&data, selection, "secret", files)
}

fn missing(selection: &Selection<'_>, kind: &'static str, name: &str) -> Result<(), Cause> {
    if selection.optional {
        Ok(())
    } else {
        Err(Cause::Missing {
            kind,
            name: name.to_owned(),
        })
    }
}

fn file(data: &[u8], mode: i32) -> File {
    File {
        data: data.to_vec(),
        mode: u32::try_from(mode).unwrap_or(0o644) & 0o777,
        owner: None,
    }
}

fn select(
    data: &Data<'_>,
    selection: &Selection<'_>,
    kind: &'static str,
    files: &mut Files<'_>,
) -> Result<(), Cause> {
    take(
        files.budget,
        data.values().map(|content| content.len()).sum(),
    )?;
    let Some(items) = selection.items.filter(|i| !i.is_empty()) else {
        for (key, content) in data {
            files.add(key, content.len(), || file(content, selection.mode))?;
        }
        return Ok(());
    };
    for item in items {
        match data.get(item.key.as_str()) {
            Some(content) => {
                let mode = item.mode.unwrap_or(selection.mode);
                files.add(&item.path, content.len(), || file(content, mode))?;
            }
            None if selection.optional => {}
            None => {
                return Err(Cause::MissingKey {
                    kind,
                    key: item.key.clone(),
                });
            }
        }
    }
    Ok(())
}

pub(super) fn downward(
    pod: &Pod,
    items: &[DownwardAPIVolumeFile],
    default_mode: Option<i32>,
    facts: &NodeFacts,
    files: &mut Files<'_>,
) -> Result<(), Cause> {
    for item in items {
        let text = match (&item.field_ref, &item.resource_field_ref) {
            (Some(field), _) => field_value(pod, &field.field_path, facts)?,
            (None, Some(resource)) => resource_value(pod, None, resource, facts)?,
            (None, None) => String::new(),
        };
        let mode = item.mode.or(default_mode).unwrap_or(DEFAULT_MODE);
        files.add(&item.path, text.len(), || file(text.as_bytes(), mode))?;
    }
    Ok(())
}

/// A pod, and what its fields say where they are the node's.
#[derive(Clone, Copy)]
pub(super) struct OfPod<'a> {
    pub(super) pod: &'a Pod,
    pub(super) facts: &'a NodeFacts,
}

pub(super) async fn projected(
    tokens: &Tokens,
    of_pod: OfPod<'_>,
    source: &ProjectedVolumeSource,
    sources: &Sources<'_>,
    files: &mut Files<'_>,
) -> Result<(), Cause> {
    let default_mode = source.default_mode.unwrap_or(DEFAULT_MODE);
    let OfPod { pod, facts } = of_pod;
    for part in source.sources.iter().flatten() {
        if let Some(map) = &part.config_map {
            let selection = Selection::new(map.items.as_ref(), source.default_mode, map.optional);
            config_map_files(&map.name, &selection, sources, files).await?;
        } else if let Some(secret) = &part.secret {
            let selection =
                Selection::new(secret.items.as_ref(), source.default_mode, secret.optional);
            secret_files(&secret.name, &selection, sources, files).await?;
        } else if let Some(fields) = &part.downward_api {
            let items = fields.items.as_deref().unwrap_or_default();
            downward(pod, items, Some(default_mode), facts, files)?;
        } else if let Some(token) = &part.service_account_token {
            let audience = token.audience.as_deref().filter(|a| !a.is_empty());
            let seconds = token.expiration_seconds.unwrap_or(TOKEN_SECONDS);
            let held = tokens.token(pod, audience, seconds).await?;
            files.add(&token.path, held.token.len(), || {
                token_file(pod, &held.token, default_mode)
            })?;
        } else if let Some(bundle) = &part.cluster_trust_bundle {
            let text = trust_bundle::anchors(bundle, sources).await?;
            files.add(&bundle.path, text.len(), || {
                token_file(pod, &text, default_mode)
            })?;
        } else if part.pod_certificate.is_some() {
            return Err(Cause::NotBuilt("projected podCertificate"));
        }
    }
    Ok(())
}

/// A token, and a bundle as well, is readable by its user only, where the pod says who that is.
fn token_file(pod: &Pod, text: &str, default_mode: i32) -> File {
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
        ..file(text.as_bytes(), mode)
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_key_is_not_multiplied_without_end() {
        let content = vec![0; 1 << 20];
        let data = Data::from([("k", &*content)]);
        let select_times = |times: usize| {
            let items = (0..times).map(|n| json!({"key": "k", "path": format!("f{n}")}));
            let items: Vec<KeyToPath> =
                serde_json::from_value(items.collect::<Vec<_>>().into()).unwrap();
            let selection = Selection::new(Some(&items), None, None);
            let budget = PodBudget::default();
            let mut files = Files::within(&budget);
            let outcome = select(&data, &selection, "config", &mut files);
            (outcome, files.into_payload().len())
        };
        assert!(matches!(select_times(32), (Ok(()), 32)));
        let (outcome, made) = select_times(5000);
        assert!(matches!(outcome, Err(Cause::TooMuch { .. })));
        assert_eq!(made, 32);
    }

    #[test]
    fn volumes_are_not_multiplied_without_end() {
        let budget = PodBudget::default();
        let items = serde_json::from_value(json!([{"key": "k", "path": "f"}]));
        let items: Vec<KeyToPath> = items.unwrap();
        let volumes = (0..5000).take_while(|_| {
            let content = vec![0; 1 << 20];
            let data = Data::from([("k", &*content)]);
            let selection = Selection::new(Some(&items), None, None);
            let mut files = Files::within(&budget);
            select(&data, &selection, "secret", &mut files).is_ok()
        });
        assert_eq!(volumes.count(), 127);
    }
}
