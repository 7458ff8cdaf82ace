//! The ciphers, in the stored forms of kube-apiserver.

use std::fmt;
use std::sync::Arc;

use aes::{Aes128, Aes192, Aes256};
use aes_gcm::aead::generic_array::typenum::U12;
use aes_gcm::aead::{Aead, KeyInit, Payload};
use aes_gcm::{Aes128Gcm, Aes256Gcm, AesGcm};
use bytes::Bytes;
use cbc::cipher::block_padding::Pkcs7;
use cbc::cipher::{BlockDecryptMut, BlockEncryptMut, KeyIvInit};
use crypto_secretbox::XSalsa20Poly1305;
use rand::RngCore as _;

use super::kms::Plugin;
use super::{EncryptionError, PREFIX};

type Aes192Gcm = AesGcm<Aes192, U12>;

/// The ciphers with local keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cipher {
    AesGcm,
    AesCbc,
    Secretbox,
}

impl Cipher {
    pub(super) fn name(self) -> &'static str {
        match self {
            Cipher::AesGcm => "aesgcm",
            Cipher::AesCbc => "aescbc",
            Cipher::Secretbox => "secretbox",
        }
    }

    pub(super) fn key_sizes(self) -> &'static [usize] {
        match self {
            Cipher::AesGcm | Cipher::AesCbc => &[16, 24, 32],
            Cipher::Secretbox => &[32],
        }
    }

    fn nonce_size(self) -> usize {
        match self {
            Cipher::AesGcm => 12,
            Cipher::AesCbc => 16,
            Cipher::Secretbox => 24,
        }
    }

    fn seal(self, key: &[u8], nonce: &[u8], context: &[u8], plain: &[u8]) -> Option<Vec<u8>> {
        match self {
            Cipher::AesGcm => {
                let nonce: &[u8; 12] = nonce.try_into().ok()?;
                let (msg, aad) = (plain, context);
                let payload = Payload { msg, aad };
                match key.len() {
                    16 => gcm::<Aes128Gcm>(key)?.encrypt(nonce.into(), payload),
                    24 => gcm::<Aes192Gcm>(key)?.encrypt(nonce.into(), payload),
                    _ => gcm::<Aes256Gcm>(key)?.encrypt(nonce.into(), payload),
                }
                .ok()
            }
            Cipher::AesCbc => match key.len() {
                16 => cbc_seal::<cbc::Encryptor<Aes128>>(key, nonce, plain),
                24 => cbc_seal::<cbc::Encryptor<Aes192>>(key, nonce, plain),
                _ => cbc_seal::<cbc::Encryptor<Aes256>>(key, nonce, plain),
            },
            Cipher::Secretbox => {
                let nonce: &[u8; 24] = nonce.try_into().ok()?;
                let cipher = XSalsa20Poly1305::new_from_slice(key).ok()?;
                cipher.encrypt(nonce.into(), plain).ok()
            }
        }
    }

    fn open(self, key: &[u8], nonce: &[u8], context: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        match self {
            Cipher::AesGcm => {
                let nonce: &[u8; 12] = nonce.try_into().ok()?;
                let (msg, aad) = (sealed, context);
                let payload = Payload { msg, aad };
                match key.len() {
                    16 => gcm::<Aes128Gcm>(key)?.decrypt(nonce.into(), payload),
                    24 => gcm::<Aes192Gcm>(key)?.decrypt(nonce.into(), payload),
                    _ => gcm::<Aes256Gcm>(key)?.decrypt(nonce.into(), payload),
                }
                .ok()
            }
            Cipher::AesCbc => match key.len() {
                16 => cbc_open::<cbc::Decryptor<Aes128>>(key, nonce, sealed),
                24 => cbc_open::<cbc::Decryptor<Aes192>>(key, nonce, sealed),
                _ => cbc_open::<cbc::Decryptor<Aes256>>(key, nonce, sealed),
            },
            Cipher::Secretbox => {
                let nonce: &[u8; 24] = nonce.try_into().ok()?;
                let cipher = XSalsa20Poly1305::new_from_slice(key).ok()?;
                cipher.decrypt(nonce.into(), sealed).ok()
            }
        }
    }
}

fn gcm<C: KeyInit>(key: &[u8]) -> Option<C> {
    C::new_from_slice(key).ok()
}

fn cbc_seal<C: KeyIvInit + BlockEncryptMut>(
    key: &[u8],
    iv: &[u8],
    plain: &[u8],
) -> Option<Vec<u8>> {
    let cipher = C::new_from_slices(key, iv).ok()?;
    Some(cipher.encrypt_padded_vec_mut::<Pkcs7>(plain))
}

fn cbc_open<C: KeyIvInit + BlockDecryptMut>(
    key: &[u8],
    iv: &[u8],
    sealed: &[u8],
) -> Option<Vec<u8>> {
    let cipher = C::new_from_slices(key, iv).ok()?;
    cipher.decrypt_padded_vec_mut::<Pkcs7>(sealed).ok()
}

/// What writes and reads the values of a resource.
pub(super) enum Provider {
    /// In the clear.
    Identity,
    /// A cipher with keys.
    Keyed(Keyed),
    /// Keys that a plugin keeps.
    Kms(Arc<Plugin>),
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // no secrets in logs
        match self {
            Provider::Identity => f.write_str("identity"),
            Provider::Keyed(keyed) => f.write_str(keyed.cipher.name()),
            Provider::Kms(plugin) => write!(f, "{plugin:?}"),
        }
    }
}

/// A cipher with its keys by name; the first one writes.
pub(super) struct Keyed {
    cipher: Cipher,
    keys: Vec<(String, Vec<u8>)>,
}

impl Keyed {
    /// `keys` have sizes the cipher takes, and there is at least one.
    pub(super) fn new(cipher: Cipher, keys: Vec<(String, Vec<u8>)>) -> Self {
        Self { cipher, keys }
    }

    fn prefix(&self, name: &str) -> Vec<u8> {
        format!("k8s:enc:{}:v1:{name}:", self.cipher.name()).into_bytes()
    }
}

impl Provider {
    pub(super) fn encrypt(&self, context: &str, value: Bytes) -> Result<Bytes, EncryptionError> {
        let keyed = match self {
            Provider::Identity => return Ok(value),
            Provider::Kms(plugin) => return plugin.encrypt(context, &value),
            Provider::Keyed(keyed) => keyed,
        };
        let failed = |detail: &str| EncryptionError::Encrypt {
            provider: keyed.cipher.name(),
            detail: detail.to_owned(),
        };
        let (name, key) = keyed
            .keys
            .first()
            .ok_or_else(|| failed("there is no key"))?;
        let mut nonce = vec![0; keyed.cipher.nonce_size()];
        rand::rng().fill_bytes(&mut nonce);
        let sealed = keyed
            .cipher
            .seal(key, &nonce, context.as_bytes(), &value)
            .ok_or_else(|| failed("the cipher refused"))?;
        let mut stored = keyed.prefix(name);
        stored.reserve(nonce.len() + sealed.len());
        stored.extend_from_slice(&nonce);
        stored.extend_from_slice(&sealed);
        Ok(stored.into())
    }

    /// None when the value is not of this provider; otherwise the value, and whether the first key
    /// wrote it.
    pub(super) fn decrypt(
        &self,
        context: &str,
        stored: &Bytes,
    ) -> Option<Result<(Bytes, bool), String>> {
        let keyed = match self {
            Provider::Identity => {
                return (!stored.starts_with(PREFIX)).then(|| Ok((stored.clone(), true)));
            }
            Provider::Kms(plugin) => return plugin.decrypt(context, stored),
            Provider::Keyed(keyed) => keyed,
        };
        let mut failed = None;
        for (at, (name, key)) in keyed.keys.iter().enumerate() {
            let Some(body) = stored.strip_prefix(&*keyed.prefix(name)) else {
                continue;
            };
            let size = keyed.cipher.nonce_size();
            let opened = body.split_at_checked(size).and_then(|(nonce, sealed)| {
                keyed.cipher.open(key, nonce, context.as_bytes(), sealed)
            });
            match opened {
                Some(plain) => return Some(Ok((plain.into(), at == 0))),
                None => {
                    failed = Some(Err(format!(
                        "{} key {name:?} does not open it",
                        keyed.cipher.name()
                    )));
                }
            }
        }
        failed
    }
}
