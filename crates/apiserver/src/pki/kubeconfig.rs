//! The kubeconfig of an identity, with everything embedded, readable by its owner only.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::store::{create_dir, write_private};
use super::{Identity, PkiError};

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
            key = STANDARD.encode(&identity.key),
        )
    }
}

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
