//! Secrets that volumes name.

use k8s_openapi::api::core::v1::Secret;
use std::collections::BTreeMap;
use std::fmt;

/// Which secret a volume names.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecretName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for SecretName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The field by which a secret is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretField {
    /// `nodeStageSecretRef`.
    Stage,
    /// `nodePublishSecretRef`.
    Publish,
    /// `nodeExpandSecretRef`.
    Expand,
}

impl fmt::Display for SecretField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node{self:?}SecretRef")
    }
}

/// A secret could not be had. It may come, so the volume is tried again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("fetching {field} {secret} failed: {cause}")]
pub struct SecretError {
    /// By which field it is named.
    pub field: SecretField,
    /// Which one.
    pub secret: SecretName,
    /// What the API server says, or what is wrong with the data. Never a value.
    pub cause: String,
}

/// The data of a secret as drivers get it: texts.
///
/// # Errors
/// A value is not UTF-8; such a text cannot be sent.
pub fn data(
    field: SecretField,
    name: &SecretName,
    secret: &Secret,
) -> Result<BTreeMap<String, String>, SecretError> {
    let each = secret.data.iter().flatten().map(|(key, value)| {
        let text = String::from_utf8(value.0.clone()).map_err(|_| SecretError {
            field,
            secret: name.clone(),
            cause: format!("the value of key {key:?} is not UTF-8"),
        })?;
        Ok((key.clone(), text))
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::ByteString;

    #[test]
    fn values_are_texts() {
        let name = SecretName {
            namespace: "ns".to_owned(),
            name: "s".to_owned(),
        };
        let secret = |value: &[u8]| Secret {
            data: Some(BTreeMap::from([(
                "k".to_owned(),
                ByteString(value.to_vec()),
            )])),
            ..Secret::default()
        };
        let read = |value| data(SecretField::Stage, &name, &secret(value));
        assert_eq!(read(b"plain").unwrap()["k"], "plain");
        assert_eq!(
            read(b"hidden\xff").unwrap_err().to_string(),
            "fetching NodeStageSecretRef ns/s failed: the value of key \"k\" is not UTF-8"
        );
    }
}
