//! An authenticating proxy in front: it proves who it is by certificate and names the user in
//! headers. See
//! <https://kubernetes.io/docs/reference/access-authn-authz/authentication/#authenticating-proxy>.

use std::path::PathBuf;

use davit_webhook::tls::TlsError;
use http::{HeaderMap, HeaderName};
use percent_encoding::percent_decode_str;
use rustls_pki_types::CertificateDer;

use super::client_certificates::ClientCertificates;
use crate::user::{AUTHENTICATED, UNAUTHENTICATED, UserInfo};

/// Which proxies are believed and where they write the user (`--requestheader-*`).
#[derive(Debug, Clone)]
pub struct RequestHeader {
    /// The authorities of proxies' client certificates, PEM.
    pub client_ca: String,
    /// The file they were read from; it is read again when it changes.
    pub client_ca_file: Option<PathBuf>,
    /// Common names of the certificates; empty for any.
    pub allowed_names: Vec<String>,
    /// Headers with the user name; the first that is there counts.
    pub username_headers: Vec<String>,
    /// Headers with the user's id.
    pub uid_headers: Vec<String>,
    /// Headers with groups, one a value.
    pub group_headers: Vec<String>,
    /// Prefixes of headers with further attributes.
    pub extra_prefixes: Vec<String>,
}

/// [`RequestHeader`], ready to use.
#[derive(Debug)]
pub(super) struct Proxies {
    config: RequestHeader,
    certificates: ClientCertificates,
}

impl Proxies {
    pub(super) fn new(config: RequestHeader) -> Result<Self, TlsError> {
        let certificates = ClientCertificates::new(&config.client_ca)?;
        Ok(Self {
            config,
            certificates,
        })
    }

    pub(super) fn config(&self) -> &RequestHeader {
        &self.config
    }

    /// Whether a connection's certificate is that of a proxy.
    pub(super) fn is_proxy(&self, chain: &[CertificateDer<'_>]) -> bool {
        let names = &self.config.allowed_names;
        self.certificates
            .identify(chain)
            .is_ok_and(|user| names.is_empty() || names.contains(&user.name))
    }

    /// The user that a proxy names; none when it names nobody.
    pub(super) fn user(&self, headers: &HeaderMap) -> Option<UserInfo> {
        let first = |names: &[String]| -> Option<String> {
            names
                .iter()
                .filter_map(|name| headers.get(name)?.to_str().ok())
                .find(|value| !value.is_empty())
                .map(str::to_owned)
        };
        let mut user = UserInfo {
            name: first(&self.config.username_headers)?,
            uid: first(&self.config.uid_headers).unwrap_or_default(),
            ..UserInfo::default()
        };
        for name in &self.config.group_headers {
            for value in headers.get_all(name) {
                if let Ok(group) = value.to_str() {
                    user.add_group(group);
                }
            }
        }
        for (name, value) in headers {
            let Some(key) = self.extra_key(name) else {
                continue;
            };
            if let Ok(value) = value.to_str() {
                user.extra.entry(key).or_default().push(value.to_owned());
            }
        }
        if !user.in_group(UNAUTHENTICATED) {
            user.add_group(AUTHENTICATED);
        }
        Some(user)
    }

    fn extra_key(&self, name: &HeaderName) -> Option<String> {
        let prefixes = self.config.extra_prefixes.iter();
        let key = prefixes
            .filter(|prefix| !prefix.is_empty())
            .find_map(|prefix| name.as_str().strip_prefix(&prefix.to_ascii_lowercase()))?;
        Some(percent_decode_str(key).decode_utf8_lossy().into_owned())
    }

    /// Removes the headers, whoever sent them: nobody further on is to believe them.
    pub(super) fn strip(&self, headers: &mut HeaderMap) {
        let config = &self.config;
        let lists = [
            &config.username_headers,
            &config.uid_headers,
            &config.group_headers,
        ];
        // spelled with underscores, too: servers behind gateways of the CGI kind take both for the same
        let known: Vec<String> = lists
            .into_iter()
            .flatten()
            .map(|name| dashed(name))
            .collect();
        let is_claim = |name: &HeaderName| {
            let spelled = dashed(name.as_str());
            let parsed = spelled.parse::<HeaderName>();
            known.contains(&spelled)
                || self.extra_key(name).is_some()
                || parsed.is_ok_and(|name| self.extra_key(&name).is_some())
        };
        let extra: Vec<HeaderName> = headers
            .keys()
            .filter(|name| is_claim(name))
            .cloned()
            .collect();
        for name in extra {
            headers.remove(name);
        }
    }
}
fn dashed(name: &str) -> String {
    name.to_ascii_lowercase().replace('_', "-")
}
