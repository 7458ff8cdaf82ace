//! The kubeconfig of an identity, with everything embedded, readable by its owner only.

use std::borrow::Cow;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::store::{create_dir, write_private};
use crate::{Identity, PkiError};

/// What a kubeconfig says.
#[derive(Debug, Clone)]
pub struct Kubeconfig<'a> {
    /// The cluster's and context's name.
    pub cluster: &'a str,
    /// The user's name in the file.
    pub user: &'a str,
    /// The server's URL.
    pub server: &'a str,
    /// The name to ask for in the handshake, where it is not that of the URL.
    pub server_name: Option<&'a str>,
    /// The authority's certificate, PEM.
    pub ca: &'a str,
    /// The client certificate and key.
    pub identity: &'a Identity,
}

impl Kubeconfig<'_> {
    /// The file's text, YAML.
    pub fn to_yaml(&self) -> String {
        let Self {
            cluster,
            user,
            server,
            server_name,
            ca,
            identity,
        } = self;
        let server_name = match server_name {
            Some(name) => format!("    tls-server-name: {name}\n"),
            None => String::new(),
        };
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: {cluster}\nclusters:\n- name: {cluster}\n  \
             cluster:\n    server: \"{server}\"\n{server_name}    certificate-authority-data: {ca}\ncontexts:\n- name: \
             {cluster}\n  context:\n    cluster: {cluster}\n    user: {user}\nusers:\n- name: {user}\n  \
             user:\n    client-certificate-data: {certificate}\n    client-key-data: {key}\n",
            ca = STANDARD.encode(ca),
            certificate = STANDARD.encode(&identity.certificate),
            key = STANDARD.encode(for_clients(&identity.key).as_bytes()),
        )
    }
}

/// A key in the form that most clients read. Some (fabric8's for Java) know only by the words of its first line that a
/// key is one of an elliptic curve, which PKCS #8 does not have; so P-256 keys, davit's own, are written as in RFC 5915.
fn for_clients(key: &str) -> Cow<'_, str> {
    let lines = key.lines().filter(|line| !line.starts_with("-----"));
    let pkcs8 = STANDARD.decode(lines.collect::<String>());
    let rewritten = pkcs8.ok().and_then(|pkcs8| {
        let (secret, public) = p256(&pkcs8)?;
        let der = [&SEC1_SECRET[..], secret, &SEC1_CURVE, public].concat();
        let body = STANDARD.encode(der);
        let lines: Vec<&str> = (0..body.len())
            .step_by(64)
            .map(|at| &body[at..body.len().min(at + 64)])
            .collect();
        let body = lines.join("\n");
        Some(format!(
            "-----BEGIN EC PRIVATE KEY-----\n{body}\n-----END EC PRIVATE KEY-----\n"
        ))
    });
    rewritten.map_or(Cow::Borrowed(key), Cow::Owned)
}

/// The secret of a P-256 key and its public key (an element `[1]`), if it is one in PKCS #8 with both.
fn p256(pkcs8: &[u8]) -> Option<(&[u8], &[u8])> {
    let (secret, public) = pkcs8.strip_prefix(&PKCS8_P256)?.split_at_checked(32)?;
    (public.len() == 70 && public.starts_with(&[0xa1, 0x44, 0x03, 0x42, 0x00]))
        .then_some((secret, public))
}

/// What comes before the secret in PKCS #8: version 0, the algorithm, and as its key version 1 of RFC 5915.
const PKCS8_P256: [u8; 36] = [
    0x30, 0x81, 0x87, 0x02, 0x01, 0x00, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02,
    0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x04, 0x6d, 0x30, 0x6b, 0x02,
    0x01, 0x01, 0x04, 0x20,
];
/// What comes before the secret in RFC 5915, and between it and the public key: the curve.
const SEC1_SECRET: [u8; 7] = [0x30, 0x77, 0x02, 0x01, 0x01, 0x04, 0x20];
const SEC1_CURVE: [u8; 12] = [
    0xa0, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07,
];

/// Writes a kubeconfig to `path` with mode 0600, replacing what was there.
///
/// # Errors
/// When the file or its directory cannot be written.
pub fn write_kubeconfig(path: &Path, config: &Kubeconfig<'_>) -> Result<(), PkiError> {
    if let Some(dir) = path.parent()
        && !dir.as_os_str().is_empty()
        && !dir.exists()
    {
        create_dir(dir)?;
    }
    write_private(path, &config.to_yaml())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::PublicKeyData as _;
    use rustls_pki_types::PrivateKeyDer;
    use rustls_pki_types::pem::PemObject as _;

    #[test]
    fn keys_of_clients_say_that_they_are_of_a_curve() {
        let made = rcgen::KeyPair::generate().unwrap();
        let written = for_clients(&made.serialize_pem()).into_owned();
        assert!(written.starts_with("-----BEGIN EC PRIVATE KEY-----\n"));
        let key = PrivateKeyDer::from_pem_slice(written.as_bytes()).unwrap();
        assert!(matches!(key, PrivateKeyDer::Sec1(_)));
        let read = rustls::crypto::ring::sign::any_ecdsa_type(&key).unwrap();
        let public = read.public_key().unwrap();
        assert_eq!(public.as_ref(), made.subject_public_key_info());
        // others stay as they are
        let rsa = "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\n";
        assert_eq!(for_clients(rsa), rsa);
    }
}
