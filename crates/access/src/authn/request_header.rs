//! An authenticating proxy in front: it proves who it is by certificate and names the user in
//! headers. See
//! <https://kubernetes.io/docs/reference/access-authn-authz/authentication/#authenticating-proxy>.

use std::path::PathBuf;

use davit_webhook::tls::TlsError;
use http::{HeaderMap, HeaderName, HeaderValue};
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

/// A part of an identity. Names of people and groups have letters of all languages.
fn text(value: &HeaderValue) -> Option<&str> {
    std::str::from_utf8(value.as_bytes()).ok()
}

impl RequestHeader {
    /// The user whom the headers name; none where they name nobody, or a part of it is no text: without it, it would be
    /// somebody else.
    fn user(&self, headers: &HeaderMap) -> Option<UserInfo> {
        let first = |names: &[String]| -> Option<String> {
            for value in names.iter().filter_map(|name| headers.get(name)) {
                let value = text(value)?;
                if !value.is_empty() {
                    return Some(value.to_owned());
                }
            }
            Some(String::new())
        };
        let mut user = UserInfo {
            name: first(&self.username_headers).filter(|name| !name.is_empty())?,
            uid: first(&self.uid_headers)?,
            ..UserInfo::default()
        };
        for name in &self.group_headers {
            for value in headers.get_all(name) {
                user.add_group(text(value)?);
            }
        }
        for (name, value) in headers {
            if let Some(key) = self.extra_key(name) {
                let value = text(value)?.to_owned();
                user.extra.entry(key).or_default().push(value);
            }
        }
        if !user.in_group(UNAUTHENTICATED) {
            user.add_group(AUTHENTICATED);
        }
        Some(user)
    }

    fn extra_key(&self, name: &HeaderName) -> Option<String> {
        let prefixes = self.extra_prefixes.iter();
        let key = prefixes
            .filter(|prefix| !prefix.is_empty())
            .find_map(|prefix| name.as_str().strip_prefix(&prefix.to_ascii_lowercase()))?;
        Some(percent_decode_str(key).decode_utf8_lossy().into_owned())
    }
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
        self.config.user(headers)
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
                || self.config.extra_key(name).is_some()
                || parsed.is_ok_and(|name| self.config.extra_key(&name).is_some())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_part_of_an_identity_is_left_out() {
        let config = RequestHeader {
            client_ca: String::new(),
            client_ca_file: None,
            allowed_names: Vec::new(),
            username_headers: vec!["x-remote-user".to_owned()],
            uid_headers: vec!["x-remote-uid".to_owned()],
            group_headers: vec!["x-remote-group".to_owned()],
            extra_prefixes: vec!["x-remote-extra-".to_owned()],
        };
        let of = |named: &[(&'static str, &[u8])]| {
            let mut headers = HeaderMap::new();
            for (name, value) in named {
                headers.append(*name, HeaderValue::from_bytes(value).unwrap());
            }
            config.user(&headers)
        };
        let user = of(&[
            ("x-remote-user", "Zoë".as_bytes()),
            ("x-remote-group", "Développeurs".as_bytes()),
            ("x-remote-extra-team", "größer".as_bytes()),
        ])
        .unwrap();
        assert_eq!((user.name.as_str(), user.uid.as_str()), ("Zoë", ""));
        assert_eq!(user.groups, ["Développeurs", AUTHENTICATED]);
        assert_eq!(user.extra["team"], ["größer"]);
        let broken: &[u8] = b"d\xe9";
        for name in ["x-remote-uid", "x-remote-group", "x-remote-extra-team"] {
            assert!(
                of(&[("x-remote-user", b"a"), (name, broken)]).is_none(),
                "{name}"
            );
        }
        assert!(of(&[("x-remote-user", broken)]).is_none());
        assert!(of(&[("x-remote-group", b"a")]).is_none());
    }
}
