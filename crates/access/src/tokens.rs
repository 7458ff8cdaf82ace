//! Service account tokens: signed and checked by the cluster's own key (ES256, or RS256).

use std::collections::HashSet;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use davit_client::signing::{SigningKey, SigningKeyError, key_id};
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

/// Clock difference that expiry checks forgive, seconds.
const LEEWAY_SECONDS: u64 = 10;
/// The shortest life that may be asked for.
pub const MIN_EXPIRATION_SECONDS: i64 = 600;
/// The longest life that may be asked for.
pub const MAX_EXPIRATION_SECONDS: i64 = 1 << 32;
/// The life of a token when none is asked for.
pub const DEFAULT_EXPIRATION_SECONDS: i64 = 3600;
/// The life that the tokens of pods are asked for with: those that ask so are prolonged.
const PROLONGED_SECONDS: i64 = 3607;
/// How long they live then: clients that do not read their token anew go on for a time.
const PROLONGATION_SECONDS: i64 = 365 * 24 * 3600;

/// How long service account tokens live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenLife {
    /// Tokens of pods live for a year, and later uses than asked for are told to the audit log.
    pub prolongs: bool,
    /// Longer lives are shortened to it, seconds.
    pub longest: Option<i64>,
}

impl Default for TokenLife {
    fn default() -> Self {
        Self {
            prolongs: true,
            longest: None,
        }
    }
}

impl TokenLife {
    /// The life for one that was asked for, shortened, and whether it was.
    pub fn shortened(self, asked: i64) -> (i64, bool) {
        match self.longest {
            Some(longest) if asked > longest => (longest, true),
            _ => (asked, false),
        }
    }

    /// The life of a pod's token for this server that was asked for so, if it is prolonged.
    pub fn prolonged(self, asked: i64) -> Option<i64> {
        let life = self.longest.unwrap_or(i64::MAX).min(PROLONGATION_SECONDS);
        (self.prolongs && asked == PROLONGED_SECONDS && life > asked).then_some(life)
    }
}

/// The signing key could not be used, or signing failed.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The key is neither a P-256 nor an RSA key.
    #[error("service account signing key: {0}")]
    Key(String),
    /// A token could not be signed.
    #[error("signing a service account token: {0}")]
    Sign(SigningKeyError),
    /// The token is malformed, expired, for another audience, or not ours.
    #[error("invalid bearer token: {0}")]
    Invalid(String),
}

/// The claims of a service account token.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Claims {
    /// For whom it is good.
    pub aud: Audiences,
    /// Its end, seconds since 1970.
    pub exp: i64,
    /// When it was made, seconds since 1970.
    pub iat: i64,
    /// Who made it.
    pub iss: String,
    /// Its own identifier.
    #[serde(default)]
    pub jti: String,
    /// What it is bound to.
    #[serde(rename = "kubernetes.io")]
    pub kubernetes: KubernetesClaims,
    /// From when it is good, seconds since 1970.
    pub nbf: i64,
    /// The user, see [`subject`].
    pub sub: String,
}

/// One audience or a list of them.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Audiences {
    /// A list.
    Many(Vec<String>),
    /// One.
    One(String),
}

impl Audiences {
    /// All of them.
    pub fn as_slice(&self) -> &[String] {
        match self {
            Self::Many(list) => list,
            Self::One(one) => std::slice::from_ref(one),
        }
    }
}

/// What the token is bound to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct KubernetesClaims {
    /// The namespace of the account, and of what else is not a node.
    pub namespace: String,
    /// The node, or that of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<ObjectRef>,
    /// The pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<ObjectRef>,
    /// The Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<ObjectRef>,
    /// The account.
    pub serviceaccount: ObjectRef,
    /// When a token of prolonged life would have ended: later uses are told to the audit log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warnafter: Option<i64>,
}

/// The issuer of tokens that live in Secrets.
const LEGACY_ISSUER: &str = "kubernetes/serviceaccount";

/// The claims of a token that lives in a Secret.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LegacyClaims {
    sub: String,
    #[serde(rename = "kubernetes.io/serviceaccount/namespace")]
    pub(crate) namespace: String,
    #[serde(rename = "kubernetes.io/serviceaccount/secret.name")]
    pub(crate) secret_name: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.name")]
    pub(crate) account_name: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.uid")]
    pub(crate) account_uid: String,
}

/// Name and uid of an object.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct ObjectRef {
    /// Its name.
    pub name: String,
    /// Its UID.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

/// A key by which tokens are checked.
struct CheckingKey {
    id: String,
    algorithm: Algorithm,
    key: DecodingKey,
    jwk: Value,
}

impl CheckingKey {
    /// `pem`: a public key, a certificate's key or a private key.
    fn new(pem: &str) -> Result<Self, TokenError> {
        let wrong = |error: &dyn std::fmt::Display| TokenError::Key(error.to_string());
        let info = if pem.contains("PRIVATE KEY") {
            let key = SigningKey::from_pem(pem).map_err(|error| wrong(&error))?;
            key.public_key()
        } else {
            let (_, block) =
                x509_parser::pem::parse_x509_pem(pem.as_bytes()).map_err(|error| wrong(&error))?;
            match block.label.as_str() {
                "CERTIFICATE" => {
                    let certificate = block.parse_x509().map_err(|error| wrong(&error))?;
                    certificate.public_key().raw.to_vec()
                }
                _ => block.contents,
            }
        };
        Self::of_public_key(&info)
    }

    /// `info`: DER of SubjectPublicKeyInfo.
    fn of_public_key(info: &[u8]) -> Result<Self, TokenError> {
        let wrong = |error: &dyn std::fmt::Display| TokenError::Key(error.to_string());
        let (_, parsed) = SubjectPublicKeyInfo::from_der(info).map_err(|error| wrong(&error))?;
        let id = key_id(info);
        match parsed.parsed().map_err(|error| wrong(&error))? {
            // an uncompressed point of P-256: 4, x, y
            PublicKey::EC(point) if point.data().len() == 65 => {
                let (x, y) = (&point.data()[1..33], &point.data()[33..]);
                let (x, y) = (URL_SAFE_NO_PAD.encode(x), URL_SAFE_NO_PAD.encode(y));
                let key = DecodingKey::from_ec_components(&x, &y).map_err(|error| wrong(&error))?;
                let jwk = json!({
                    "use": "sig", "kty": "EC", "kid": id, "crv": "P-256", "alg": "ES256", "x": x, "y": y,
                });
                Ok(Self {
                    id,
                    algorithm: Algorithm::ES256,
                    key,
                    jwk,
                })
            }
            PublicKey::RSA(rsa) => {
                let without_sign = |bytes: &[u8]| -> String {
                    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
                    URL_SAFE_NO_PAD.encode(&bytes[zeros..])
                };
                let (n, e) = (without_sign(rsa.modulus), without_sign(rsa.exponent));
                let key =
                    DecodingKey::from_rsa_components(&n, &e).map_err(|error| wrong(&error))?;
                let jwk = json!({
                    "use": "sig", "kty": "RSA", "kid": id, "alg": "RS256", "n": n, "e": e,
                });
                Ok(Self {
                    id,
                    algorithm: Algorithm::RS256,
                    key,
                    jwk,
                })
            }
            _ => Err(TokenError::Key("neither a P-256 nor an RSA key".to_owned())),
        }
    }
}

/// Signs and checks service account tokens.
pub struct TokenKeys {
    /// The first one signs.
    issuers: Vec<String>,
    audiences: Vec<String>,
    signing: SigningKey,
    life: TokenLife,
    /// The first one belongs to the signing key.
    checking: Vec<CheckingKey>,
}

impl TokenKeys {
    /// `pem`: a private key, P-256 or RSA; `audiences`: what tokens for this server must name.
    pub fn new(pem: &str, issuer: &str, audiences: Vec<String>) -> Result<Self, TokenError> {
        let signing = SigningKey::from_pem(pem).map_err(|e| TokenError::Key(e.to_string()))?;
        let own = CheckingKey::of_public_key(&signing.public_key())?;
        Ok(Self {
            issuers: vec![issuer.to_owned()],
            audiences,
            signing,
            life: TokenLife::default(),
            checking: vec![own],
        })
    }

    /// Accepts tokens of former issuers and keys, too.
    ///
    /// # Errors
    /// When a key cannot be read.
    pub fn also_accept(&mut self, issuers: &[String], keys: &[String]) -> Result<(), TokenError> {
        self.issuers.extend(issuers.iter().cloned());
        for pem in keys {
            let key = CheckingKey::new(pem)?;
            if !self.checking.iter().any(|known| known.id == key.id) {
                self.checking.push(key);
            }
        }
        Ok(())
    }

    /// Limits how long tokens live.
    pub fn set_life(&mut self, life: TokenLife) {
        self.life = life;
    }

    /// How long tokens live.
    pub fn life(&self) -> TokenLife {
        self.life
    }

    /// Who makes tokens.
    pub fn issuer(&self) -> &str {
        self.issuers.first().map_or("", String::as_str)
    }

    /// The audiences of this API server.
    pub fn audiences(&self) -> &[String] {
        &self.audiences
    }

    /// The algorithms of the keys, each once.
    pub fn algorithms(&self) -> Vec<&'static str> {
        let has = |algorithm| self.checking.iter().any(|key| key.algorithm == algorithm);
        [("ES256", Algorithm::ES256), ("RS256", Algorithm::RS256)]
            .into_iter()
            .filter(|(_, algorithm)| has(*algorithm))
            .map(|(name, _)| name)
            .collect()
    }

    /// The key set document of `/openid/v1/jwks`.
    pub fn key_set(&self) -> Value {
        let keys: Vec<&Value> = self.checking.iter().map(|key| &key.jwk).collect();
        json!({ "keys": keys })
    }

    /// Makes a token.
    ///
    /// # Errors
    /// When it cannot be signed.
    pub fn sign(&self, claims: &Claims) -> Result<String, TokenError> {
        self.signing.token(claims).map_err(TokenError::Sign)
    }

    /// Whether the token claims to be one of ours.
    pub(crate) fn claims_issuer(&self, token: &str) -> bool {
        claimed_issuer(token).is_some_and(|issuer| self.issuers.contains(&issuer))
    }

    /// Whether the token claims to live in a Secret.
    pub(crate) fn claims_secret(token: &str) -> bool {
        claimed_issuer(token).is_some_and(|issuer| issuer == LEGACY_ISSUER)
    }

    /// Checks the signature of a token that lives in a Secret; it has neither end nor audience.
    pub(crate) fn verify_legacy(&self, token: &str) -> Result<LegacyClaims, TokenError> {
        let claims = self.checked::<LegacyClaims>(token, |validation| {
            validation.validate_exp = false;
            validation.validate_aud = false;
            validation.required_spec_claims = HashSet::new();
            validation.set_issuer(&[LEGACY_ISSUER]);
        })?;
        if claims.sub != subject(&claims.namespace, &claims.account_name) {
            return Err(TokenError::Invalid("sub claim is wrong".to_owned()));
        }
        Ok(claims)
    }

    /// Checks signature, issuer, times and audience.
    pub(crate) fn verify(&self, token: &str, audiences: &[String]) -> Result<Claims, TokenError> {
        let claims = self.checked::<Claims>(token, |validation| {
            validation.leeway = LEEWAY_SECONDS;
            validation.validate_nbf = true;
            validation.validate_aud = true;
            validation.aud = Some(audiences.iter().cloned().collect::<HashSet<_>>());
            validation.set_issuer(&self.issuers);
        })?;
        let bound = &claims.kubernetes;
        if claims.sub != subject(&bound.namespace, &bound.serviceaccount.name) {
            return Err(TokenError::Invalid("sub claim is wrong".to_owned()));
        }
        Ok(claims)
    }

    fn checked<T: serde::de::DeserializeOwned + Clone>(
        &self,
        token: &str,
        demand: impl Fn(&mut Validation),
    ) -> Result<T, TokenError> {
        let invalid = |error: jsonwebtoken::errors::Error| TokenError::Invalid(error.to_string());
        let header = jsonwebtoken::decode_header(token).map_err(invalid)?;
        let named = |key: &&CheckingKey| header.kid.as_deref().is_none_or(|id| id == key.id);
        let mut last = TokenError::Invalid("no key fits the token".to_owned());
        for key in self.checking.iter().filter(named) {
            let mut validation = Validation::new(key.algorithm);
            demand(&mut validation);
            match jsonwebtoken::decode::<T>(token, &key.key, &validation) {
                Ok(data) => return Ok(data.claims),
                Err(error) => last = invalid(error),
            }
        }
        Err(last)
    }
}

/// The user that a service account is.
pub fn subject(namespace: &str, account: &str) -> String {
    format!("system:serviceaccount:{namespace}:{account}")
}

/// What the token says of its issuer, unverified.
fn claimed_issuer(token: &str) -> Option<String> {
    let payload = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    let claims = serde_json::from_slice::<Value>(&payload).ok()?;
    claims["iss"].as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::KeyPair;

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
                warnafter: None,
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

    /// kubeadm's key is one of RSA in PKCS#1.
    #[test]
    fn an_rsa_key_signs_too() {
        let pem = include_str!("../../client/src/signing/rsa-pkcs1.pem");
        let keys = TokenKeys::new(pem, "https://issuer", vec!["api".to_owned()]).unwrap();
        assert_eq!(keys.algorithms(), ["RS256"]);
        let token = keys.sign(&claims("api", 600)).unwrap();
        keys.verify(&token, keys.audiences()).unwrap();
        let public = include_str!("../../client/src/signing/rsa-public.pem").to_owned();
        let own = KeyPair::generate().unwrap();
        let mut others = TokenKeys::new(
            &own.serialize_pem(),
            "https://issuer",
            vec!["api".to_owned()],
        )
        .unwrap();
        assert!(others.verify(&token, others.audiences()).is_err());
        others.also_accept(&[], &[public]).unwrap();
        others.verify(&token, others.audiences()).unwrap();
        assert_eq!(others.algorithms(), ["ES256", "RS256"]);
    }

    #[test]
    fn the_key_of_a_certificate_checks() {
        let key = KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(Vec::new()).unwrap();
        let certificate = certificate.self_signed(&key).unwrap();
        let of_certificate = CheckingKey::new(&certificate.pem()).unwrap();
        assert_eq!(
            of_certificate.id,
            CheckingKey::new(&key.serialize_pem()).unwrap().id
        );
    }

    #[test]
    fn former_issuers_and_keys_are_still_accepted() {
        let old_pem = KeyPair::generate().unwrap();
        let old = TokenKeys::new(
            &old_pem.serialize_pem(),
            "https://issuer",
            vec!["api".to_owned()],
        );
        let token = old.unwrap().sign(&claims("api", 600)).unwrap();
        let pem = KeyPair::generate().unwrap().serialize_pem();
        let mut keys = TokenKeys::new(&pem, "https://new", vec!["api".to_owned()]).unwrap();
        assert!(!keys.claims_issuer(&token));
        keys.also_accept(&["https://issuer".to_owned()], &[old_pem.public_key_pem()])
            .unwrap();
        assert!(keys.claims_issuer(&token));
        keys.verify(&token, &["api".to_owned()]).unwrap();
        assert_eq!(keys.key_set()["keys"].as_array().unwrap().len(), 2);
    }
}
