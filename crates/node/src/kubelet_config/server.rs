//! The fields about the node's servers: who calls them, with what certificate they answer, where health is asked.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use davit_listen::{TlsPolicy, TlsPolicyError};
use serde::Deserialize;

use super::{ConfigError, KubeletConfig, time, value, wrong};
use crate::access::Authorize;
use crate::options::NodeOptions;
use crate::served::ServedPaths;

/// `authentication`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(super) struct Authentication {
    anonymous: Switch,
    webhook: TokenReviews,
    x509: X509,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct Switch {
    enabled: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct TokenReviews {
    enabled: Option<bool>,
    #[serde(rename = "cacheTTL")]
    cache_ttl: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct X509 {
    #[serde(rename = "clientCAFile")]
    client_ca_file: Option<PathBuf>,
}

/// `authorization`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(super) struct Authorization {
    mode: Option<String>,
    webhook: Reviews,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct Reviews {
    #[serde(rename = "cacheAuthorizedTTL")]
    allowed: Option<String>,
    #[serde(rename = "cacheUnauthorizedTTL")]
    denied: Option<String>,
}

fn read(field: &'static str, file: &Path) -> Result<Vec<u8>, ConfigError> {
    let content = std::fs::read(file);
    content.map_err(|e| wrong(field, format!("{}: {e}", file.display())))
}

/// A path that is not empty.
fn named(file: Option<&PathBuf>) -> Option<&Path> {
    file.map(PathBuf::as_path)
        .filter(|f| !f.as_os_str().is_empty())
}

impl KubeletConfig {
    /// Puts what concerns the servers into the options.
    pub(super) fn serve(&self, options: &mut NodeOptions) -> Result<(), ConfigError> {
        let given = &self.authentication;
        let access = &mut options.access;
        access.anonymous = given.anonymous.enabled.unwrap_or(access.anonymous);
        access.tokens = given.webhook.enabled.unwrap_or(access.tokens);
        let ttl = given.webhook.cache_ttl.as_ref();
        access.token_for = time("authentication.webhook.cacheTTL", ttl, access.token_for)?;
        let reviews = &self.authorization.webhook;
        let (allowed, denied) = (reviews.allowed.as_ref(), reviews.denied.as_ref());
        let field = "authorization.webhook.cacheAuthorizedTTL";
        access.allowed_for = time(field, allowed, access.allowed_for)?;
        let field = "authorization.webhook.cacheUnauthorizedTTL";
        access.denied_for = time(field, denied, access.denied_for)?;
        access.authorize = match self.authorization.mode.as_deref() {
            None | Some("" | "Webhook") => Authorize::Webhook,
            Some("AlwaysAllow") => Authorize::AlwaysAllow,
            Some(other) => {
                let text = format!("unknown mode: {other:?} (AlwaysAllow or Webhook)");
                return Err(wrong("authorization.mode", text));
            }
        };
        if let Some(file) = named(given.x509.client_ca_file.as_ref()) {
            let field = "authentication.x509.clientCAFile";
            options.client_ca = Some(read(field, file)?);
        }
        let tls = TlsPolicy::new(&self.tls_cipher_suites, self.tls_min_version.as_deref());
        options.tls = tls.map_err(|error| {
            let field = match error {
                TlsPolicyError::Suite(_) => "tlsCipherSuites",
                TlsPolicyError::Version(_) => "tlsMinVersion",
            };
            wrong(field, error.to_string())
        })?;
        let certificate = named(self.tls_cert_file.as_ref());
        match (certificate, named(self.tls_private_key_file.as_ref())) {
            (None, None) => {}
            (Some(certificate), Some(key)) => {
                options.serving_files = Some([certificate, key].map(Path::to_owned));
                let certificate = read("tlsCertFile", certificate)?;
                let key = read("tlsPrivateKeyFile", key)?;
                options.serving_certificate = Some((certificate, key));
            }
            (Some(_), None) => return Err(wrong("tlsCertFile", "needs tlsPrivateKeyFile")),
            (None, Some(_)) => return Err(wrong("tlsPrivateKeyFile", "needs tlsCertFile")),
        }
        options.healthz = self.healthz()?;
        options.served = ServedPaths {
            secure: self.enable_server.unwrap_or(true),
            debugging: self.enable_debugging_handlers.unwrap_or(true),
            system_logs: self.enable_system_log_handler.unwrap_or(true),
            read_only: self.read_only_port.filter(|port| *port != 0),
        };
        options.system_log_query = self.enable_system_log_query;
        if options.system_log_query && !options.served.system_logs {
            return Err(wrong(
                "enableSystemLogQuery",
                "needs enableSystemLogHandler",
            ));
        }
        Ok(())
    }

    /// Where health is asked without TLS: nowhere, unless a port is named.
    fn healthz(&self) -> Result<Option<SocketAddr>, ConfigError> {
        let address = self.healthz_bind_address.as_deref();
        let address: IpAddr = match address.filter(|a| !a.is_empty()) {
            Some(text) => value("healthzBindAddress", text.parse())?,
            None => Ipv4Addr::LOCALHOST.into(),
        };
        let port = self.healthz_port.filter(|p| *p != 0);
        Ok(port.map(|port| SocketAddr::new(address, port)))
    }
}
