//! Keys that a plugin keeps (KMS v2, <https://kubernetes.io/docs/tasks/administer-cluster/kms-provider/>).
//!
//! The plugin encrypts a seed, seldom; from the seed a key is derived for each value that is
//! written. The encrypted seed is stored with the value, so that reading needs the plugin once for
//! each seed. The plugin's status is polled: a new key id brings a new seed and makes what was
//! written before stale; without the plugin's word writes end after some minutes.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aes_gcm::Aes256Gcm;
use aes_gcm::aead::{Aead, KeyInit, Payload};
use bytes::Bytes;
use davit_api::names::is_dns1123_subdomain;
use davit_proto::kms::stored::{EncryptedDekSourceType, EncryptedObject};
use davit_proto::kms::v2::key_management_service_client::KeyManagementServiceClient;
use davit_proto::kms::v2::{DecryptRequest, EncryptRequest, StatusRequest};
use parking_lot::{Mutex, RwLock};
use prost::Message as _;
use rand::RngCore as _;
use sha2::{Digest, Sha256};
use tonic::transport::Channel;

use super::EncryptionError;

const INFO_SIZE: usize = 32;
const SEED_SIZE: usize = 32;
const NONCE_SIZE: usize = 12;
const KEY_ID_SIZE: usize = 1024;
const WRAPPED_SIZE: usize = 1024;
const ANNOTATIONS_SIZE: usize = 32 * 1024;
/// How long a seed may be written with after the plugin's last good word.
const WRITE_LIFE: Duration = Duration::from_secs(180);
/// How often the plugin is asked while it is well, and while it is not.
const POLL: Duration = Duration::from_secs(60);
const POLL_FAILING: Duration = Duration::from_secs(10);
/// Seeds kept for reading.
const SEEDS: usize = 1000;
const PROVIDER: &str = "kms";

/// A plugin, and what was learned from it.
pub(super) struct Plugin {
    name: String,
    endpoint: PathBuf,
    timeout: Duration,
    prefix: Vec<u8>,
    channel: OnceChannel,
    state: RwLock<State>,
    /// By digest of the encrypted seed with what belongs to it.
    seeds: Mutex<HashMap<[u8; 32], Arc<[u8]>>>,
    /// One refresh at a time.
    refreshing: tokio::sync::Mutex<()>,
}

/// Made at the first call, since a channel wants a runtime.
type OnceChannel = std::sync::OnceLock<Channel>;

#[derive(Default)]
struct State {
    write: Option<Arc<WriteSeed>>,
    /// Until when `write` may be used.
    good_until: Option<Instant>,
    asked: Option<Instant>,
    fault: Option<String>,
}

struct WriteSeed {
    seed: [u8; SEED_SIZE],
    wrapped: Vec<u8>,
    key_id: String,
    annotations: BTreeMap<String, Vec<u8>>,
}

impl std::fmt::Debug for Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // no secrets in logs
        write!(f, "kms({})", self.name)
    }
}

fn derived(seed: &[u8], info: &[u8]) -> Option<[u8; 32]> {
    let prk = ring::hkdf::Prk::new_less_safe(ring::hkdf::HKDF_SHA256, seed);
    let info = [info];
    let okm = prk.expand(&info, ring::hkdf::HKDF_SHA256).ok()?;
    let mut key = [0; 32];
    okm.fill(&mut key).ok()?;
    Some(key)
}

fn seal(seed: &[u8], context: &[u8], plain: &[u8]) -> Option<Vec<u8>> {
    let mut out = vec![0; INFO_SIZE + NONCE_SIZE];
    rand::rng().fill_bytes(&mut out);
    let (info, nonce) = out.split_at(INFO_SIZE);
    let cipher = Aes256Gcm::new_from_slice(&derived(seed, info)?).ok()?;
    let nonce: [u8; NONCE_SIZE] = nonce.try_into().ok()?;
    let payload = Payload {
        msg: plain,
        aad: context,
    };
    let sealed = cipher.encrypt(&nonce.into(), payload).ok()?;
    out.extend_from_slice(&sealed);
    Some(out)
}

fn open(source: &[u8], is_seed: bool, context: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
    let (key, rest) = if is_seed {
        let (info, rest) = sealed.split_at_checked(INFO_SIZE)?;
        (derived(source, info)?.to_vec(), rest)
    } else {
        (source.to_vec(), sealed)
    };
    let (nonce, body) = rest.split_at_checked(NONCE_SIZE)?;
    let nonce: [u8; NONCE_SIZE] = nonce.try_into().ok()?;
    let cipher = Aes256Gcm::new_from_slice(&key).ok()?;
    let payload = Payload {
        msg: body,
        aad: context,
    };
    cipher.decrypt(&nonce.into(), payload).ok()
}

/// What identifies an encrypted seed together with what the plugin needs to open it.
fn digest(wrapped: &[u8], key_id: &str, annotations: &BTreeMap<String, Vec<u8>>) -> [u8; 32] {
    let mut digest = Sha256::new();
    let mut add = |bytes: &[u8]| {
        digest.update((bytes.len() as u64).to_be_bytes());
        digest.update(bytes);
    };
    add(wrapped);
    add(key_id.as_bytes());
    for (name, value) in annotations {
        add(name.as_bytes());
        add(value);
    }
    digest.finalize().into()
}

fn check_key_id(key_id: &str) -> Result<(), String> {
    if key_id.is_empty() {
        return Err("the plugin names no key".to_owned());
    }
    if key_id.len() > KEY_ID_SIZE {
        let size = key_id.len();
        return Err(format!(
            "the plugin's key id has {size} bytes, more than {KEY_ID_SIZE}"
        ));
    }
    Ok(())
}

fn check_wrapped(wrapped: &[u8], annotations: &BTreeMap<String, Vec<u8>>) -> Result<(), String> {
    if wrapped.is_empty() || wrapped.len() > WRAPPED_SIZE {
        let size = wrapped.len();
        return Err(format!(
            "the encrypted seed has {size} bytes, it must have 1 to {WRAPPED_SIZE}"
        ));
    }
    let mut size = 0;
    for (name, value) in annotations {
        if !is_dns1123_subdomain(name) || !name.contains('.') {
            return Err(format!(
                "annotation {name:?} is not a fully qualified domain name"
            ));
        }
        size += name.len() + value.len();
    }
    if size > ANNOTATIONS_SIZE {
        return Err(format!(
            "annotations have {size} bytes, more than {ANNOTATIONS_SIZE}"
        ));
    }
    Ok(())
}

impl Plugin {
    /// The plugin that listens on `endpoint`; calls may take `timeout`.
    pub(super) fn new(name: String, endpoint: PathBuf, timeout: Duration) -> Self {
        Self {
            prefix: format!("k8s:enc:kms:v2:{name}:").into_bytes(),
            name,
            endpoint,
            timeout,
            channel: OnceChannel::new(),
            state: RwLock::default(),
            seeds: Mutex::default(),
            refreshing: tokio::sync::Mutex::default(),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    fn client(&self) -> KeyManagementServiceClient<Channel> {
        let channel = self
            .channel
            .get_or_init(|| davit_proto::unix::connect_lazy(&self.endpoint));
        KeyManagementServiceClient::new(channel.clone())
    }

    async fn call<T>(
        &self,
        what: &str,
        call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    ) -> Result<T, String> {
        match tokio::time::timeout(self.timeout, call).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(format!(
                "{what} of plugin {:?}: {:?}: {}",
                self.name,
                status.code(),
                status.message()
            )),
            Err(_) => Err(format!(
                "{what} of plugin {:?} took longer than {:?}",
                self.name, self.timeout
            )),
        }
    }

    /// Asks for the plugin's status, and for a new encrypted seed when the key has changed.
    ///
    /// # Errors
    /// What is wrong with the plugin.
    pub(super) async fn refresh(&self) -> Result<(), String> {
        let _one = self.refreshing.lock().await;
        let result = self.asked().await;
        let now = Instant::now();
        let mut state = self.state.write();
        state.asked = Some(now);
        match result {
            Ok(seed) => {
                if let Some(seed) = seed {
                    tracing::info!(plugin = self.name, "a new seed is written with");
                    self.keep(&seed);
                    state.write = Some(Arc::new(seed));
                }
                state.good_until = Some(now + WRITE_LIFE);
                state.fault = None;
                Ok(())
            }
            Err(fault) => {
                if state.fault.as_ref() != Some(&fault) {
                    tracing::error!(plugin = self.name, fault, "encryption at rest");
                }
                state.fault = Some(fault.clone());
                Err(fault)
            }
        }
    }

    /// The plugin's word; with a seed when there must be a new one.
    async fn asked(&self) -> Result<Option<WriteSeed>, String> {
        let mut client = self.client();
        let status = self.call("Status", client.status(StatusRequest {})).await?;
        if status.healthz != "ok" {
            return Err(format!("got unexpected healthz status: {}", status.healthz));
        }
        if !matches!(status.version.as_str(), "v2" | "v2beta1") {
            return Err(format!("got unexpected version: {}", status.version));
        }
        check_key_id(&status.key_id)?;
        let held = self.state.read().write.clone();
        if held.is_some_and(|held| held.key_id == status.key_id) {
            return Ok(None);
        }
        let mut seed = [0; SEED_SIZE];
        rand::rng().fill_bytes(&mut seed);
        let request = EncryptRequest {
            plaintext: seed.to_vec(),
            uid: uuid::Uuid::new_v4().to_string(),
        };
        let answer = self.call("Encrypt", client.encrypt(request)).await?;
        check_key_id(&answer.key_id)?;
        check_wrapped(&answer.ciphertext, &answer.annotations)?;
        Ok(Some(WriteSeed {
            seed,
            wrapped: answer.ciphertext,
            key_id: answer.key_id,
            annotations: answer.annotations,
        }))
    }

    fn keep(&self, seed: &WriteSeed) {
        let key = digest(&seed.wrapped, &seed.key_id, &seed.annotations);
        self.remember(key, &seed.seed);
    }

    fn remember(&self, key: [u8; 32], seed: &[u8]) {
        let mut seeds = self.seeds.lock();
        if seeds.len() >= SEEDS {
            seeds.clear();
        }
        seeds.insert(key, Arc::from(seed));
    }

    /// How long until the plugin is to be asked again.
    pub(super) fn due_in(&self) -> Duration {
        let state = self.state.read();
        let Some(asked) = state.asked else {
            return Duration::ZERO;
        };
        let pause = if state.fault.is_none() {
            POLL
        } else {
            POLL_FAILING
        };
        pause.saturating_sub(asked.elapsed())
    }

    /// What is wrong with the plugin, if anything is.
    pub(super) fn fault(&self) -> Option<String> {
        let state = self.state.read();
        match (&state.fault, state.asked) {
            (None, None) => Some("it was not asked yet".to_owned()),
            (fault, _) => fault.clone(),
        }
    }

    /// Sees to it that a value can be written now.
    pub(super) async fn prepare(&self) -> Result<(), EncryptionError> {
        if self.writable().is_ok() {
            return Ok(());
        }
        // the state says what is wrong
        let _asked = self.refresh().await;
        self.writable().map(|_| ())
    }

    fn writable(&self) -> Result<Arc<WriteSeed>, EncryptionError> {
        let state = self.state.read();
        let fault = || state.fault.clone().unwrap_or_default();
        let failed = |detail: String| EncryptionError::Encrypt {
            provider: PROVIDER,
            detail,
        };
        let seed = state.write.as_ref().ok_or_else(|| {
            failed(format!(
                "plugin {:?} has given no key: {}",
                self.name,
                fault()
            ))
        })?;
        if state.good_until.is_none_or(|until| until < Instant::now()) {
            return Err(failed(format!(
                "the key of plugin {:?} has expired: {}",
                self.name,
                fault()
            )));
        }
        Ok(Arc::clone(seed))
    }

    /// The stored form of a value.
    pub(super) fn encrypt(&self, context: &str, value: &[u8]) -> Result<Bytes, EncryptionError> {
        let seed = self.writable()?;
        let data = seal(&seed.seed, context.as_bytes(), value);
        let data = data.ok_or_else(|| EncryptionError::Encrypt {
            provider: PROVIDER,
            detail: "the cipher refused".to_owned(),
        })?;
        let object = EncryptedObject {
            encrypted_data: data,
            key_id: seed.key_id.clone(),
            encrypted_dek_source: seed.wrapped.clone(),
            annotations: seed.annotations.clone(),
            encrypted_dek_source_type: EncryptedDekSourceType::HkdfSha256XnonceAesGcmSeed.into(),
        };
        let mut stored = self.prefix.clone();
        object
            .encode(&mut stored)
            .map_err(|error| EncryptionError::Encrypt {
                provider: PROVIDER,
                detail: error.to_string(),
            })?;
        Ok(stored.into())
    }

    fn parsed(&self, stored: &[u8]) -> Option<Result<EncryptedObject, String>> {
        let body = stored.strip_prefix(&*self.prefix)?;
        Some(EncryptedObject::decode(body).map_err(|error| error.to_string()))
    }

    /// Asks the plugin for the seed of a stored value, unless it is known or the value is not of
    /// this plugin. That it fails shows when the value is read.
    pub(super) async fn unlock(&self, stored: &[u8]) -> Result<(), String> {
        let Some(Ok(object)) = self.parsed(stored) else {
            return Ok(());
        };
        let key = digest(
            &object.encrypted_dek_source,
            &object.key_id,
            &object.annotations,
        );
        if self.seeds.lock().contains_key(&key) {
            return Ok(());
        }
        let request = DecryptRequest {
            ciphertext: object.encrypted_dek_source,
            uid: uuid::Uuid::new_v4().to_string(),
            key_id: object.key_id,
            annotations: object.annotations,
        };
        let mut client = self.client();
        let answer = self.call("Decrypt", client.decrypt(request)).await?;
        self.remember(key, &answer.plaintext);
        Ok(())
    }

    /// None when the value is not of this plugin; otherwise the value, and whether it would be
    /// written with the same key now.
    pub(super) fn decrypt(
        &self,
        context: &str,
        stored: &[u8],
    ) -> Option<Result<(Bytes, bool), String>> {
        let object = match self.parsed(stored)? {
            Ok(object) => object,
            Err(error) => return Some(Err(error)),
        };
        let key = digest(
            &object.encrypted_dek_source,
            &object.key_id,
            &object.annotations,
        );
        let Some(seed) = self.seeds.lock().get(&key).cloned() else {
            let name = &self.name;
            return Some(Err(format!("plugin {name:?} has not given the key of it")));
        };
        let seeded = EncryptedDekSourceType::HkdfSha256XnonceAesGcmSeed;
        let is_seed = object.encrypted_dek_source_type == i32::from(seeded);
        let opened = open(&seed, is_seed, context.as_bytes(), &object.encrypted_data);
        let Some(plain) = opened else {
            return Some(Err(format!(
                "the key of plugin {:?} does not open it",
                self.name
            )));
        };
        let current = self.state.read().write.clone();
        let current = current.is_none_or(|write| write.key_id == object.key_id);
        Some(Ok((plain.into(), current && is_seed)))
    }
}

#[cfg(test)]
mod tests;
