//! Service account tokens: signed and checked by the cluster's own key (ES256).

use std::collections::HashSet;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use rcgen::KeyPair;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Clock difference that expiry checks forgive, seconds.
const LEEWAY_SECONDS: u64 = 10;
/// The shortest life that may be asked for.
pub(crate) const MIN_EXPIRATION_SECONDS: i64 = 600;
/// The longest life that may be asked for.
pub(crate) const MAX_EXPIRATION_SECONDS: i64 = 1 << 32;
/// The life of a token when none is asked for.
pub(crate) const DEFAULT_EXPIRATION_SECONDS: i64 = 3600;

/// The signing key could not be used, or signing failed.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The key is not a P-256 key in PKCS#8 PEM.
    #[error("service account signing key: {0}")]
    Key(String),
    /// A token could not be signed.
    #[error("signing a service account token: {0}")]
    Sign(jsonwebtoken::errors::Error),
    /// The token is malformed, expired, for another audience, or not ours.
    #[error("invalid bearer token: {0}")]
    Invalid(String),
}

/// The claims of a service account token.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Claims {
    pub(crate) aud: Audiences,
    pub(crate) exp: i64,
    pub(crate) iat: i64,
    pub(crate) iss: String,
    #[serde(default)]
    pub(crate) jti: String,
    #[serde(rename = "kubernetes.io")]
    pub(crate) kubernetes: KubernetesClaims,
    pub(crate) nbf: i64,
    pub(crate) sub: String,
}

/// One audience or a list of them.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Audiences {
    Many(Vec<String>),
    One(String),
}

impl Audiences {
    pub(crate) fn as_slice(&self) -> &[String] {
        match self {
            Self::Many(list) => list,
            Self::One(one) => std::slice::from_ref(one),
        }
    }
}

/// What the token is bound to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct KubernetesClaims {
    pub(crate) namespace: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<ObjectRef>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pod: Option<ObjectRef>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) secret: Option<ObjectRef>,
    pub(crate) serviceaccount: ObjectRef,
}

/// Name and uid of an object.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) struct ObjectRef {
    pub(crate) name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) uid: String,
}

/// Signs and checks service account tokens.
pub(crate) struct TokenKeys {
    issuer: String,
    audiences: Vec<String>,
    key_id: String,
    signing: EncodingKey,
    checking: DecodingKey,
    jwk: Value,
}

impl TokenKeys {
    /// `pem`: a P-256 private key in PKCS#8; `audiences`: what tokens for this server must name.
    pub(crate) fn new(pem: &str, issuer: &str, audiences: Vec<String>) -> Result<Self, TokenError> {
        let pair = KeyPair::from_pem(pem).map_err(|e| TokenError::Key(e.to_string()))?;
        let signing = EncodingKey::from_ec_der(pair.serialized_der());
        let point = pair.public_key_raw();
        // an uncompressed point: 4, x, y
        if point.len() != 65 {
            return Err(TokenError::Key("not a P-256 key".to_owned()));
        }
        let (x, y) = (
            URL_SAFE_NO_PAD.encode(&point[1..33]),
            URL_SAFE_NO_PAD.encode(&point[33..]),
        );
        let checking =
            DecodingKey::from_ec_components(&x, &y).map_err(|e| TokenError::Key(e.to_string()))?;
        let key_id = URL_SAFE_NO_PAD.encode(Sha256::digest(point));
        let jwk = json!({
            "use": "sig", "kty": "EC", "kid": key_id, "crv": "P-256", "alg": "ES256", "x": x, "y": y,
        });
        Ok(Self {
            issuer: issuer.to_owned(),
            audiences,
            key_id,
            signing,
            checking,
            jwk,
        })
    }

    pub(crate) fn issuer(&self) -> &str {
        &self.issuer
    }

    /// The audiences of this API server.
    pub(crate) fn audiences(&self) -> &[String] {
        &self.audiences
    }

    /// The key set document of `/openid/v1/jwks`.
    pub(crate) fn key_set(&self) -> Value {
        json!({ "keys": [self.jwk] })
    }

    pub(crate) fn sign(&self, claims: &Claims) -> Result<String, TokenError> {
        let mut header = Header::new(Algorithm::ES256);
        header.kid = Some(self.key_id.clone());
        header.typ = None;
        jsonwebtoken::encode(&header, claims, &self.signing).map_err(TokenError::Sign)
    }

    /// Whether the token claims to be one of ours (and so no other authenticator need look).
    pub(crate) fn claims_issuer(&self, token: &str) -> bool {
        let Some(payload) = token.split('.').nth(1) else {
            return false;
        };
        URL_SAFE_NO_PAD
            .decode(payload)
            .ok()
            .and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok())
            .is_some_and(|claims| claims["iss"] == self.issuer.as_str())
    }

    /// Checks signature, issuer, times and audience.
    pub(crate) fn verify(&self, token: &str, audiences: &[String]) -> Result<Claims, TokenError> {
        let mut validation = Validation::new(Algorithm::ES256);
        validation.leeway = LEEWAY_SECONDS;
        validation.validate_nbf = true;
        validation.validate_aud = true;
        validation.aud = Some(audiences.iter().cloned().collect::<HashSet<_>>());
        validation.set_issuer(&[&self.issuer]);
        jsonwebtoken::decode::<Claims>(token, &self.checking, &validation)
            .map(|data| data.claims)
            .map_err(|error| TokenError::Invalid(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(audience: &str, expires_in: i64) -> Claims {
        let now = jiff::Timestamp::now().as_second();
        Claims {
            aud: Audiences::Many(vec![audience.to_owned()]),
            exp: now + expires_in,
            iat: now,
            iss: "https://issuer".to_owned(),
            jti: "id".to_owned(),
            kubernetes: KubernetesClaims {
                namespace: "ns".to_owned(),
                node: None,
                pod: None,
                secret: None,
                serviceaccount: ObjectRef {
                    name: "a".to_owned(),
                    uid: "u".to_owned(),
                },
            },
            nbf: now,
            sub: "system:serviceaccount:ns:a".to_owned(),
        }
    }

    #[test]
    fn tokens_are_checked_for_signature_expiry_and_audience() {
        let pem = KeyPair::generate().unwrap().serialize_pem();
        let keys = TokenKeys::new(&pem, "https://issuer", vec!["api".to_owned()]).unwrap();
        let token = keys.sign(&claims("api", 600)).unwrap();
        assert!(keys.claims_issuer(&token));
        assert_eq!(
            keys.verify(&token, keys.audiences())
                .unwrap()
                .kubernetes
                .namespace,
            "ns"
        );
        assert!(keys.verify(&token, &["other".to_owned()]).is_err());
        let old = keys.sign(&claims("api", -600)).unwrap();
        assert!(keys.verify(&old, keys.audiences()).is_err());
        let other = KeyPair::generate().unwrap().serialize_pem();
        let other = TokenKeys::new(&other, "https://issuer", vec!["api".to_owned()]).unwrap();
        assert!(other.verify(&token, other.audiences()).is_err());
    }
}
