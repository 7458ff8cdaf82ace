//! Signing of tokens that have no end.

use davit_client::signing::{SigningKey, SigningKeyError};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use serde_json::json;

/// Signs service account tokens as the API server does.
#[derive(Debug)]
pub struct TokenSigner(SigningKey);

impl TokenSigner {
    /// `pem`: the key that signs service account tokens, P-256 or RSA.
    ///
    /// # Errors
    /// When it is something else.
    pub fn new(pem: &str) -> Result<Self, SigningKeyError> {
        SigningKey::from_pem(pem).map(Self)
    }

    /// A token of the account that is good as long as the Secret holds it.
    ///
    /// # Errors
    /// When signing fails.
    pub(super) fn sign(
        &self,
        secret: &Secret,
        account: &ServiceAccount,
    ) -> Result<String, SigningKeyError> {
        let namespace = secret.metadata.namespace.as_deref().unwrap_or_default();
        let name = account.metadata.name.as_deref().unwrap_or_default();
        let claims = json!({
            "iss": "kubernetes/serviceaccount",
            "kubernetes.io/serviceaccount/namespace": namespace,
            "kubernetes.io/serviceaccount/secret.name": secret.metadata.name,
            "kubernetes.io/serviceaccount/service-account.name": name,
            "kubernetes.io/serviceaccount/service-account.uid": account.metadata.uid,
            "sub": format!("system:serviceaccount:{namespace}:{name}"),
        });
        self.0.token(&claims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use rcgen::{KeyPair, PublicKeyData as _};
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
