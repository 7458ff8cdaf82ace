//! Bootstrap tokens: `id.secret`, kept in Secrets of kube-system. Machines join by them, and they sign what such a machine
//! is told about the cluster. Specified in <https://kubernetes.io/docs/reference/access-authn-authz/bootstrap-tokens/>.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use serde_json::Value;
use std::str::FromStr;

/// The type of Secrets that hold a token.
pub const SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";
/// The namespace of those Secrets.
pub const SECRET_NAMESPACE: &str = "kube-system";
/// What the keys of the ConfigMap `cluster-info` begin with that hold signatures; the token's id follows.
pub const SIGNATURE_PREFIX: &str = "jws-kubeconfig-";

const SECRET_PREFIX: &str = "bootstrap-token-";
const ID_LENGTH: usize = 6;
const SECRET_LENGTH: usize = 16;
const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
/// The largest multiple of the alphabet's length that a byte can count to: what is above would prefer some letters.
const FAIR: u8 = 252;

/// A token in the form `[a-z0-9]{6}.[a-z0-9]{16}`. The first part is public.
#[derive(Clone, PartialEq, Eq)]
pub struct BootstrapToken {
    id: String,
    secret: String,
}

/// The secret part is for nobody's log.
impl std::fmt::Debug for BootstrapToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BootstrapToken({})", self.id)
    }
}

/// Why there is no bootstrap token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BootstrapTokenError {
    /// The text has another form.
    #[error("a bootstrap token is of the form \"[a-z0-9]{{6}}.[a-z0-9]{{16}}\"")]
    Form,
    /// The system gives no random numbers.
    #[error("no random numbers for a bootstrap token")]
    Random,
}

impl FromStr for BootstrapToken {
    type Err = BootstrapTokenError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (id, secret) = text.split_once('.').ok_or(BootstrapTokenError::Form)?;
        if !is_id(id) || !fits(secret, SECRET_LENGTH) {
            return Err(BootstrapTokenError::Form);
        }
        Ok(Self {
            id: id.to_owned(),
            secret: secret.to_owned(),
        })
    }
}

fn fits(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| ALPHABET.contains(&byte))
}

/// Whether a text can be the public part of a token.
pub fn is_id(text: &str) -> bool {
    fits(text, ID_LENGTH)
}

/// The name of the Secret that holds the token with this id.
pub fn secret_name(id: &str) -> String {
    format!("{SECRET_PREFIX}{id}")
}

impl BootstrapToken {
    /// A token that nobody can guess.
    ///
    /// # Errors
    /// [`BootstrapTokenError::Random`].
    pub fn generate() -> Result<Self, BootstrapTokenError> {
        Ok(Self {
            id: random(ID_LENGTH)?,
            secret: random(SECRET_LENGTH)?,
        })
    }

    /// The public part.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The secret part.
    pub fn secret(&self) -> &str {
        &self.secret
    }

    /// The whole token, as clients show it to a server.
    pub fn reveal(&self) -> String {
        format!("{}.{}", self.id, self.secret)
    }

    /// A detached signature (JWS, HS256) of the text.
    pub fn sign(&self, text: &str) -> String {
        let header = serde_json::json!({ "alg": "HS256", "kid": self.id }).to_string();
        let header = URL_SAFE_NO_PAD.encode(header);
        let tag = hmac::sign(&self.key(), signed(&header, text).as_bytes());
        format!("{header}..{}", URL_SAFE_NO_PAD.encode(tag.as_ref()))
    }

    /// Whether a detached signature is this token's, of the text.
    pub fn has_signed(&self, text: &str, signature: &str) -> bool {
        let parts: Vec<&str> = signature.split('.').collect();
        let [header, "", tag] = parts[..] else {
            return false;
        };
        let (Ok(read), Ok(tag)) = (URL_SAFE_NO_PAD.decode(header), URL_SAFE_NO_PAD.decode(tag))
        else {
            return false;
        };
        let Ok(read) = serde_json::from_slice::<Value>(&read) else {
            return false;
        };
        read["alg"] == "HS256"
            && read["kid"] == self.id.as_str()
            && hmac::verify(&self.key(), signed(header, text).as_bytes(), &tag).is_ok()
    }

    fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, self.secret.as_bytes())
    }
}

/// What a signature covers.
fn signed(header: &str, text: &str) -> String {
    format!("{header}.{}", URL_SAFE_NO_PAD.encode(text))
}

fn random(length: usize) -> Result<String, BootstrapTokenError> {
    let random = SystemRandom::new();
    let mut out = String::with_capacity(length);
    let mut bytes = [0; 32];
    while out.len() < length {
        random
            .fill(&mut bytes)
            .map_err(|_| BootstrapTokenError::Random)?;
        let fair = bytes.iter().filter(|byte| **byte < FAIR);
        let letters = fair.map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()]));
        out.extend(letters.take(length - out.len()));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str) -> BootstrapToken {
        text.parse().unwrap()
    }

    #[test]
    fn tokens_have_one_form() {
        assert_eq!(token("abcdef.0123456789abcdef").id(), "abcdef");
        for wrong in [
            "",
            "abcdef",
            "abcdef.",
            "abcdef.0123456789abcde",
            "abcdef.0123456789abcdef0",
            "abcdeF.0123456789abcdef",
            "abcdef.0123456789ABCDEF",
            "abcdé.0123456789abcdef",
        ] {
            assert_eq!(
                wrong.parse::<BootstrapToken>(),
                Err(BootstrapTokenError::Form),
                "{wrong}"
            );
        }
        let (one, other) = (BootstrapToken::generate(), BootstrapToken::generate());
        let (one, other) = (one.unwrap(), other.unwrap());
        assert_eq!(token(&one.reveal()), one);
        assert_ne!(one, other);
        assert!(!format!("{one:?}").contains(one.secret()));
    }

    #[test]
    fn a_signature_is_of_one_token_and_one_text() {
        let signer = token("abcdef.0123456789abcdef");
        let signature = signer.sign("text");
        let parts: Vec<&str> = signature.split('.').collect();
        assert_eq!((parts.len(), parts[1]), (3, ""));
        assert_eq!(
            URL_SAFE_NO_PAD.decode(parts[0]).unwrap(),
            br#"{"alg":"HS256","kid":"abcdef"}"#
        );
        assert!(signer.has_signed("text", &signature));
        assert!(!signer.has_signed("Text", &signature));
        assert!(!token("abcdef.0123456789abcdee").has_signed("text", &signature));
        assert!(!token("abcdeg.0123456789abcdef").has_signed("text", &signature));
        // no other algorithm, nothing in the middle, nothing that is no signature
        let none = URL_SAFE_NO_PAD.encode(r#"{"alg":"none","kid":"abcdef"}"#);
        for wrong in [
            format!("{none}..{}", parts[2]),
            format!("{none}.."),
            format!("{}.dGV4dA.{}", parts[0], parts[2]),
            format!("{}..", parts[0]),
            "...".to_owned(),
            String::new(),
        ] {
            assert!(!signer.has_signed("text", &wrong), "{wrong}");
        }
    }
}
