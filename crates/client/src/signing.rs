//! The key that signs service account tokens, in the forms in which kube-apiserver and kubeadm have it: P-256 (ES256) or
//! RSA (RS256), in PKCS#8, SEC 1 or PKCS#1 PEM.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair,
};
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject;
use serde::Serialize;
use serde_json::json;

/// OID 1.2.840.10045.2.1 with 1.2.840.10045.3.1.7: a key on P-256.
const P256: &[u8] = &[
    0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d,
    0x03, 0x01, 0x07,
];
/// OID 1.2.840.113549.1.1.1 with NULL: an RSA key.
const RSA: &[u8] = &[
    0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00,
];
const SEQUENCE: u8 = 0x30;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;

/// A key that cannot sign tokens, or did not.
#[derive(Debug, thiserror::Error)]
pub enum SigningKeyError {
    /// The text holds no private key.
    #[error("no private key in PEM: {0}")]
    Pem(String),
    /// The key is of another kind.
    #[error("neither a P-256 key nor an RSA key of 2048 to 4096 bits: {0}")]
    Kind(String),
    /// The claims of a token have no JSON form.
    #[error("claims: {0}")]
    Claims(#[from] serde_json::Error),
    /// The random number generator failed.
    #[error("signing failed")]
    Sign,
}

enum Pair {
    P256(EcdsaKeyPair),
    Rsa(RsaKeyPair),
}

/// Signs service account tokens.
pub struct SigningKey {
    pair: Pair,
    random: SystemRandom,
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // no secrets in logs
        write!(f, "SigningKey({})", self.algorithm())
    }
}

impl SigningKey {
    /// The first private key of a PEM text.
    ///
    /// # Errors
    /// When there is none, or it is of a kind that signs no tokens.
    pub fn from_pem(pem: &str) -> Result<Self, SigningKeyError> {
        let key = PrivateKeyDer::from_pem_slice(pem.as_bytes());
        let key = key.map_err(|error| SigningKeyError::Pem(error.to_string()))?;
        let random = SystemRandom::new();
        let p256 = |pkcs8: &[u8]| {
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8, &random)
        };
        let pair = match &key {
            PrivateKeyDer::Pkcs1(key) => {
                RsaKeyPair::from_der(key.secret_pkcs1_der()).map(Pair::Rsa)
            }
            PrivateKeyDer::Sec1(key) => p256(&pkcs8(P256, key.secret_sec1_der())).map(Pair::P256),
            PrivateKeyDer::Pkcs8(key) => match p256(key.secret_pkcs8_der()) {
                Ok(pair) => Ok(Pair::P256(pair)),
                Err(_) => RsaKeyPair::from_pkcs8(key.secret_pkcs8_der()).map(Pair::Rsa),
            },
            _ => return Err(SigningKeyError::Kind("an unknown form".to_owned())),
        };
        let pair = pair.map_err(|error| SigningKeyError::Kind(error.to_string()))?;
        Ok(Self { pair, random })
    }

    /// `ES256` or `RS256` (RFC 7518).
    pub fn algorithm(&self) -> &'static str {
        match self.pair {
            Pair::P256(_) => "ES256",
            Pair::Rsa(_) => "RS256",
        }
    }

    /// The public key with its kind, DER of SubjectPublicKeyInfo (RFC 5280).
    pub fn public_key(&self) -> Vec<u8> {
        let (kind, key) = match &self.pair {
            Pair::P256(pair) => (P256, pair.public_key().as_ref()),
            Pair::Rsa(pair) => (RSA, pair.public_key().as_ref()),
        };
        let whole_bytes = [&[0], key].concat();
        let content = [der(SEQUENCE, kind), der(BIT_STRING, &whole_bytes)].concat();
        der(SEQUENCE, &content)
    }

    /// A signed token in JWS's compact form (RFC 7515).
    ///
    /// # Errors
    /// When the claims have no JSON form, or the random number generator fails.
    pub fn token(&self, claims: &impl Serialize) -> Result<String, SigningKeyError> {
        let header = json!({ "alg": self.algorithm(), "kid": key_id(&self.public_key()) });
        let part = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let (header, claims) = (header.to_string(), serde_json::to_vec(claims)?);
        let signed = format!("{}.{}", part(header.as_bytes()), part(&claims));
        let signature = self.sign(signed.as_bytes())?;
        Ok(format!("{signed}.{}", part(&signature)))
    }

    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, SigningKeyError> {
        match &self.pair {
            Pair::P256(pair) => pair
                .sign(&self.random, message)
                .map(|signature| signature.as_ref().to_vec())
                .map_err(|_| SigningKeyError::Sign),
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &self.random, message, &mut signature)
                    .map_err(|_| SigningKeyError::Sign)?;
                Ok(signature)
            }
        }
    }
}

/// What tokens call a key (`kid`), by its [`SigningKey::public_key`], as kube-apiserver does.
pub fn key_id(public_key: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(digest(&SHA256, public_key))
}

/// A private key in the envelope of PKCS#8 (RFC 5208).
fn pkcs8(kind: &[u8], key: &[u8]) -> Vec<u8> {
    let version = [0x02, 0x01, 0x00];
    let content = [&version[..], &der(SEQUENCE, kind), &der(OCTET_STRING, key)].concat();
    der(SEQUENCE, &content)
}

/// One element of DER.
fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let length = &length[length.iter().take_while(|byte| **byte == 0).count()..];
    let mut element = vec![tag];
    match length {
        [] => element.push(0),
        [short] if *short < 0x80 => element.push(*short),
        // at most eight bytes of them
        long => {
            element.push(0x80 | u8::try_from(long.len()).unwrap_or(8));
            element.extend(long);
        }
    }
    element.extend(content);
    element
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::signature::{ECDSA_P256_SHA256_FIXED, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
    use rustls_pki_types::SubjectPublicKeyInfoDer;

    fn public(pem: &str) -> Vec<u8> {
        SubjectPublicKeyInfoDer::from_pem_slice(pem.as_bytes())
            .unwrap()
            .to_vec()
    }

    #[test]
    fn all_forms_of_a_key_sign_and_are_one_key() {
        let message = b"head.claims";
        let rsa = public(include_str!("signing/rsa-public.pem"));
        for pem in [
            include_str!("signing/rsa-pkcs1.pem"),
            include_str!("signing/rsa-pkcs8.pem"),
        ] {
            let key = SigningKey::from_pem(pem).unwrap();
            assert_eq!((key.algorithm(), key.public_key()), ("RS256", rsa.clone()));
            let Pair::Rsa(pair) = &key.pair else { panic!() };
            UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, pair.public_key().as_ref())
                .verify(message, &key.sign(message).unwrap())
                .unwrap();
        }
        let p256 = public(include_str!("signing/p256-public.pem"));
        for pem in [
            include_str!("signing/p256-sec1.pem"),
            include_str!("signing/p256-pkcs8.pem"),
        ] {
            let key = SigningKey::from_pem(pem).unwrap();
            assert_eq!((key.algorithm(), key.public_key()), ("ES256", p256.clone()));
            let point = &p256[p256.len() - 65..];
            UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point)
                .verify(message, &key.sign(message).unwrap())
                .unwrap();
        }
    }

    #[test]
    fn other_keys_are_refused() {
        let refused = |pem: &str| SigningKey::from_pem(pem).unwrap_err();
        let p384 = refused(include_str!("signing/p384-pkcs8.pem"));
        assert!(matches!(p384, SigningKeyError::Kind(_)), "{p384}");
        for pem in ["", "nonsense", include_str!("signing/rsa-public.pem")] {
            assert!(matches!(refused(pem), SigningKeyError::Pem(_)), "{pem}");
        }
    }
}
