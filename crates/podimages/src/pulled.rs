//! Which images the agent has pulled, and with whose credentials: who may use them without pulling them once more
//! (KEP-2535).
//!
//! An image that is on the node is not everybody's: whoever pulled it may have shown a password to its registry. Kept in the
//! kubelet's form below `image_manager`: a file in `pulling` while an image is pulled, one in `pulled` for each image that
//! was. What neither names came some other way, by an administrator's hand.

use super::keyring::{self, Credential, Source};
use davit_beneath::{private_dir, read_own, write_private};
use davit_proto::cri::v1 as cri;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// Of a record. Its credentials are those of the pods of one node.
const MAX_RECORD: u64 = 4 << 20;

/// Whose right to an image that is on the node is asked about (`imagePullCredentialsVerificationPolicy`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Verification {
    /// Nobody's: what is there is everybody's.
    Never,
    /// Everybody's, to images that the agent has pulled.
    #[default]
    NeverPreloaded,
    /// Everybody's, but to images of these repositories (`preloadedImagesVerificationAllowlist`).
    NeverAllowlisted(Vec<String>),
    /// Everybody's.
    Always,
}

impl Verification {
    /// Whether a pod has to show that it may have the image.
    fn asks(&self, repository: &str, pulled: bool) -> bool {
        match self {
            Self::Never => false,
            Self::NeverPreloaded => pulled,
            Self::NeverAllowlisted(list) => !list.iter().any(|entry| admits(entry, repository)),
            Self::Always => true,
        }
    }
}

/// An entry is a repository, or with `/*` at its end all below it.
fn admits(entry: &str, repository: &str) -> bool {
    match entry.strip_suffix("/*") {
        Some(above) => repository
            .strip_prefix(above)
            .is_some_and(|rest| rest.starts_with('/')),
        None => entry == repository,
    }
}

/// Whether an entry of the allowlist can be read: a repository without tag or digest, `*` only as its last segment.
#[must_use]
pub fn is_allowlist_entry(entry: &str) -> bool {
    let name = match entry.strip_suffix("/*") {
        Some(above) => format!("{above}/x"),
        None => entry.to_owned(),
    };
    !name.contains(['*', '@', ' ']) && keyring::repository(&name) == name
}

/// What has to be done for a pod to use an image that is there.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Nothing.
    Open,
    /// It has to have one of the record's credentials, or to pull.
    Asked(Allowed),
    /// It has to pull.
    Pull,
}

/// Who may use an image of one repository.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Allowed {
    /// All pods of the node.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    node_pods_accessible: bool,
    /// Who has one of these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kubernetes_secrets: Vec<OfSecret>,
    /// Pods of these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kubernetes_service_accounts: Vec<CredentialOrigin>,
}

/// An object that credentials came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CredentialOrigin {
    pub(super) uid: String,
    pub(super) namespace: String,
    pub(super) name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct OfSecret {
    #[serde(flatten)]
    place: CredentialOrigin,
    credential_hash: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    kind: String,
    api_version: String,
    #[serde(default)]
    last_updated_time: String,
    image_ref: String,
    /// By repository: what a registry gives under one name it may refuse under another.
    #[serde(default)]
    credential_mapping: BTreeMap<String, Allowed>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Intent {
    kind: String,
    api_version: String,
    image: String,
}

impl Allowed {
    /// Whether one of these credentials is known. A Secret that was given other content is the same Secret: whoever may
    /// write it could pull before.
    pub(super) fn admits(&self, credentials: &[Credential]) -> bool {
        self.node_pods_accessible
            || credentials
                .iter()
                .any(|credential| match &credential.source {
                    Source::Secret(place) => {
                        let hash = hash_of(&credential.auth);
                        let known = |known: &OfSecret| {
                            known.credential_hash == hash || known.place == *place
                        };
                        self.kubernetes_secrets.iter().any(known)
                    }
                    Source::ServiceAccount(place) => {
                        self.kubernetes_service_accounts.contains(place)
                    }
                    Source::Node | Source::Pod => false,
                })
    }

    fn add(&mut self, used: Option<&Credential>) {
        match used.map(|used| &used.source) {
            // Without a password, or with one that every pod of the node is given.
            None | Some(Source::Node) => {
                *self = Self {
                    node_pods_accessible: true,
                    ..Self::default()
                }
            }
            _ if self.node_pods_accessible => {}
            Some(Source::Secret(place)) => {
                self.kubernetes_secrets
                    .retain(|known| known.place != *place);
                self.kubernetes_secrets.push(OfSecret {
                    place: place.clone(),
                    credential_hash: used.map(|used| hash_of(&used.auth)).unwrap_or_default(),
                });
            }
            Some(Source::ServiceAccount(place)) => {
                if !self.kubernetes_service_accounts.contains(place) {
                    self.kubernetes_service_accounts.push(place.clone());
                }
            }
            // Nobody else has it.
            Some(Source::Pod) => {}
        }
    }
}

/// The agent's records, and what they mean for pods.
#[derive(Debug)]
pub(super) struct PullRecords {
    policy: Verification,
    pulling: PathBuf,
    pulled: PathBuf,
    /// How many pulls of an image are under way; guards the files, too.
    running: Mutex<HashMap<String, u32>>,
    /// Pods that were let in, with image and its ID: their credentials are not read anew at each start of a container.
    let_in: Mutex<HashSet<[String; 3]>>,
}

/// A pull that is under way. Until it is known how it ended, and also after a crash, the image counts as pulled by nobody
/// knows whom.
#[derive(Debug)]
pub(super) struct Pull<'a> {
    records: &'a PullRecords,
    image: String,
    /// The end was told.
    ended: bool,
}

impl PullRecords {
    /// With the records in `dir`, which is made when something is written.
    pub(super) fn new(dir: &Path, policy: Verification) -> Self {
        Self {
            policy,
            pulling: dir.join("pulling"),
            pulled: dir.join("pulled"),
            running: Mutex::default(),
            let_in: Mutex::default(),
        }
    }

    /// What a pod has to do to use the image that is there under this ID. A record that cannot be read admits nobody.
    pub(super) fn access(&self, image: &str, id: &str) -> Access {
        if self.policy == Verification::Never {
            return Access::Open;
        }
        let _one = self.running.lock();
        let record: io::Result<Option<Record>> = read(&self.pulled.join(file_name(id)));
        let intended = self.pulling.join(file_name(image)).exists();
        let pulled = intended || !matches!(record, Ok(None));
        let repository = keyring::repository(image);
        if !self.policy.asks(&repository, pulled) {
            return Access::Open;
        }
        let mut record = match record {
            Ok(Some(record)) => record,
            Ok(None) => return Access::Pull,
            Err(error) => {
                tracing::warn!(%image, %error, "the record of an image's pull cannot be read");
                return Access::Pull;
            }
        };
        match record.credential_mapping.remove(&repository) {
            Some(allowed) if allowed.node_pods_accessible => Access::Open,
            Some(allowed) => Access::Asked(allowed),
            None => Access::Pull,
        }
    }

    /// A pull begins.
    ///
    /// # Errors
    /// It cannot be written that it does.
    pub(super) fn begin(&self, image: &str) -> io::Result<Pull<'_>> {
        let mut running = self.running.lock();
        let intent = Intent {
            kind: "ImagePullIntent".to_owned(),
            api_version: API_VERSION.to_owned(),
            image: image.to_owned(),
        };
        write(&self.pulling, image, &intent)?;
        *running.entry(image.to_owned()).or_default() += 1;
        Ok(Pull {
            records: self,
            image: image.to_owned(),
            ended: false,
        })
    }

    /// Whether the pod was let in before.
    pub(super) fn knows(&self, pod: &str, image: &str, id: &str) -> bool {
        self.let_in
            .lock()
            .contains(&[pod, image, id].map(str::to_owned))
    }

    /// The pod may use the image.
    pub(super) fn let_in(&self, pod: &str, image: &str, id: &str) {
        self.let_in
            .lock()
            .insert([pod, image, id].map(str::to_owned));
    }

    /// The pod is gone.
    pub(super) fn forget(&self, pod: &str) {
        self.let_in.lock().retain(|[of, ..]| of != pod);
    }

    /// Forgets images that were not there any more at this time: what comes under their name later is another's. What was
    /// pulled since is not among them.
    pub(super) fn retain(&self, there: &[cri::Image], at: Timestamp) {
        let running = self.running.lock();
        let ids: HashSet<String> = there.iter().map(|image| file_name(&image.id)).collect();
        for (path, name) in files(&self.pulled) {
            let is_new = || {
                let record = read::<Record>(&path).ok().flatten();
                let updated = record.and_then(|r| r.last_updated_time.parse::<Timestamp>().ok());
                updated.is_some_and(|updated| updated >= at)
            };
            if !ids.contains(&name) && !is_new() {
                removed(&path);
            }
        }
        for (path, _) in files(&self.pulling) {
            let Ok(Some(intent)) = read::<Intent>(&path) else {
                continue;
            };
            // What a process that died was pulling: if it is there it is known to be pulled, by whom is not.
            let left = !running.contains_key(&intent.image);
            let is_there = there.iter().any(|image| {
                let mut names = image.repo_tags.iter().chain(&image.repo_digests);
                names.any(|name| same(name, &intent.image))
            });
            if left && !is_there {
                removed(&path);
            }
        }
    }
}

impl Pull<'_> {
    /// The image is there now, by these credentials.
    pub(super) fn succeeded(mut self, id: &str, used: Option<&Credential>) {
        let mut running = self.records.running.lock();
        self.ended = true;
        let written = self.record(id, used);
        let last = count_down(&mut running, &self.image);
        match written {
            Ok(()) if last => removed(&self.records.pulling.join(file_name(&self.image))),
            Ok(()) => {}
            Err(error) => {
                let image = &self.image;
                tracing::warn!(%image, %error, "it cannot be recorded who pulled an image: all pods have to pull it");
            }
        }
    }

    /// Nothing came of it.
    pub(super) fn failed(mut self) {
        let mut running = self.records.running.lock();
        self.ended = true;
        if count_down(&mut running, &self.image) {
            removed(&self.records.pulling.join(file_name(&self.image)));
        }
    }

    fn record(&self, id: &str, used: Option<&Credential>) -> io::Result<()> {
        let path = self.records.pulled.join(file_name(id));
        // One that cannot be read is written anew.
        let known: Option<Record> = read(&path).unwrap_or_default();
        let mut record = known.unwrap_or_else(|| Record {
            kind: "ImagePulledRecord".to_owned(),
            api_version: API_VERSION.to_owned(),
            last_updated_time: String::new(),
            image_ref: id.to_owned(),
            credential_mapping: BTreeMap::new(),
        });
        record.last_updated_time = Timestamp::now().to_string();
        let repository = keyring::repository(&self.image);
        record
            .credential_mapping
            .entry(repository)
            .or_default()
            .add(used);
        write(&self.records.pulled, id, &record)
    }
}

impl Drop for Pull<'_> {
    fn drop(&mut self) {
        // Given up half-way: the file stays, since the image may have come all the same.
        if !self.ended {
            count_down(&mut self.records.running.lock(), &self.image);
        }
    }
}

/// Whether this was the last one.
fn count_down(running: &mut HashMap<String, u32>, image: &str) -> bool {
    match running.get_mut(image) {
        Some(count) if *count > 1 => {
            *count -= 1;
            false
        }
        _ => {
            running.remove(image);
            true
        }
    }
}

/// Whether two references mean the same repository and tag or digest.
fn same(one: &str, other: &str) -> bool {
    let full = |text: &str| {
        let name = keyring::repository(text);
        let end = text.rsplit('/').next().unwrap_or(text);
        let end = end.split_once('@').or_else(|| end.split_once(':'));
        (name, end.map_or("latest", |(_, end)| end).to_owned())
    };
    full(one) == full(other)
}

fn hash_of(auth: &cri::AuthConfig) -> String {
    let mut hash = Sha256::new();
    for part in [
        &auth.username,
        &auth.password,
        &auth.auth,
        &auth.identity_token,
        &auth.registry_token,
    ] {
        hash.update(part.len().to_be_bytes());
        hash.update(part);
    }
    hex(&hash.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn file_name(of: &str) -> String {
    format!("sha256-{}", hex(&Sha256::digest(of)))
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match read_own(path, MAX_RECORD) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn write(dir: &Path, of: &str, what: &impl Serialize) -> io::Result<()> {
    private_dir(dir, 0o700)?;
    write_private(dir.join(file_name(of)), &serde_json::to_vec(what)?)?;
    Ok(())
}

fn files(dir: &Path) -> Vec<(PathBuf, String)> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let named = |entry: std::fs::DirEntry| {
        (
            entry.path(),
            entry.file_name().to_string_lossy().into_owned(),
        )
    };
    entries.map(named).collect()
}

fn removed(path: &Path) {
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "the record of an image's pull cannot be removed");
    }
}

#[cfg(test)]
mod tests;
