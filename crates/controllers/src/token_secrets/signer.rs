//! Signing of tokens that have no end.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use rcgen::{KeyPair, PublicKeyData};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use serde_json::json;

/// A key that cannot sign tokens.
#[derive(Debug, thiserror::Error)]
pub enum TokenSignerError {
    /// The key is not a P-256 key in PKCS#8 PEM.
    #[error("service account key: {0}")]
    Key(String),
    /// The random number generator failed.
    #[error("signing failed")]
    Sign,
}

/// Signs service account tokens as the API server does (ES256).
pub struct TokenSigner {
    key: EcdsaKeyPair,
    id: String,
    random: SystemRandom,
}

impl std::fmt::Debug for TokenSigner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // no secrets in logs
        write!(f, "TokenSigner({})", self.id)
    }
}

impl TokenSigner {
    /// `pem`: the key that signs service account tokens, P-256 in PKCS#8.
    ///
    /// # Errors
    /// When it is something else.
    pub fn new(pem: &str) -> Result<Self, TokenSignerError> {
        let pair = KeyPair::from_pem(pem).map_err(|e| TokenSignerError::Key(e.to_string()))?;
        let random = SystemRandom::new();
        let key = EcdsaKeyPair::from_pkcs8(
            &ECDSA_P256_SHA256_FIXED_SIGNING,
            pair.serialized_der(),
            &random,
        )
        .map_err(|error| TokenSignerError::Key(error.to_string()))?;
        let digest = ring::digest::digest(&ring::digest::SHA256, &pair.subject_public_key_info());
        Ok(Self {
            key,
            id: URL_SAFE_NO_PAD.encode(digest.as_ref()),
            random,
        })
    }

    /// A token of the account that is good as long as the Secret holds it.
    ///
    /// # Errors
    /// When signing fails.
    pub(super) fn sign(
        &self,
        secret: &Secret,
        account: &ServiceAccount,
    ) -> Result<String, TokenSignerError> {
        let namespace = secret.metadata.namespace.as_deref().unwrap_or_default();
        let name = account.metadata.name.as_deref().unwrap_or_default();
        let header = json!({ "alg": "ES256", "kid": self.id });
        let claims = json!({
            "iss": "kubernetes/serviceaccount",
            "kubernetes.io/serviceaccount/namespace": namespace,
            "kubernetes.io/serviceaccount/secret.name": secret.metadata.name,
            "kubernetes.io/serviceaccount/service-account.name": name,
            "kubernetes.io/serviceaccount/service-account.uid": account.metadata.uid,
            "sub": format!("system:serviceaccount:{namespace}:{name}"),
        });
        let encoded = |value: serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", encoded(header), encoded(claims));
        let signature = self.key.sign(&self.random, signed.as_bytes());
        let signature = signature.map_err(|_| TokenSignerError::Sign)?;
        Ok(format!(
            "{signed}.{}",
            URL_SAFE_NO_PAD.encode(signature.as_ref())
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};

    #[test]
    fn tokens_verify_with_the_public_key() {
        let pair = KeyPair::generate().unwrap();
        let signer = TokenSigner::new(&pair.serialize_pem()).unwrap();
        let token = signer
            .sign(&Secret::default(), &ServiceAccount::default())
            .unwrap();
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, pair.der_bytes())
            .verify(signed.as_bytes(), &signature)
            .unwrap();
        assert!(TokenSigner::new("nonsense").is_err());
    }
}
