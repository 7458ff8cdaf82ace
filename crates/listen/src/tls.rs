//! Which versions and cipher suites of TLS a server offers, under the names of Kubernetes' flags
//! (`--tls-min-version`, `--tls-cipher-suites`).

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::version::{TLS12, TLS13};
use rustls::{CipherSuite, ConfigBuilder, ServerConfig, WantsVerifier};

/// Names of Kubernetes for suites of TLS 1.2 that are offered here, those of today and of former days.
const SUITES: [(&str, CipherSuite); 8] = {
    use CipherSuite as C;
    [
        (
            "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
            C::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        ),
        (
            "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
            C::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        ),
        (
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
            C::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        ),
        (
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
            C::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        ),
        (
            "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
            C::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        ),
        (
            "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
            C::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        ),
        (
            "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
            C::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        ),
        (
            "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
            C::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        ),
    ]
};
/// Suites of TLS 1.3: nobody can choose among them, in Kubernetes either.
const ALWAYS: [&str; 3] = [
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
];
/// What Kubernetes knows besides, by key exchange; none of it is offered here.
const NEVER: [(&str, &[&str]); 3] = [
    (
        "TLS_ECDHE_ECDSA_WITH_",
        &[
            "AES_128_CBC_SHA",
            "AES_128_CBC_SHA256",
            "AES_256_CBC_SHA",
            "RC4_128_SHA",
        ],
    ),
    (
        "TLS_ECDHE_RSA_WITH_",
        &[
            "3DES_EDE_CBC_SHA",
            "AES_128_CBC_SHA",
            "AES_128_CBC_SHA256",
            "AES_256_CBC_SHA",
            "RC4_128_SHA",
        ],
    ),
    (
        "TLS_RSA_WITH_",
        &[
            "3DES_EDE_CBC_SHA",
            "AES_128_CBC_SHA",
            "AES_128_CBC_SHA256",
            "AES_128_GCM_SHA256",
            "AES_256_CBC_SHA",
            "AES_256_GCM_SHA384",
            "RC4_128_SHA",
        ],
    ),
];

/// What a server offers. The default is all that is good: TLS 1.2 and 1.3 with authenticated encryption and keys that are
/// forgotten.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsPolicy {
    min_version: Option<String>,
    names: Vec<String>,
    only_newest: bool,
    /// The suites of TLS 1.2; all without.
    suites: Option<Vec<CipherSuite>>,
}

/// A name that Kubernetes does not know either.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TlsPolicyError {
    /// No suite is called so.
    #[error("Cipher suite {0} not supported or doesn't exist")]
    Suite(String),
    /// No version is called so.
    #[error("unknown tls version {0:?} (VersionTLS10, VersionTLS11, VersionTLS12 or VersionTLS13)")]
    Version(String),
}

impl TlsPolicy {
    /// By names. Without suites all are offered, without a version 1.2 is the least, as it is for an older one: this server
    /// has nothing older.
    ///
    /// # Errors
    /// There is nothing of such a name.
    pub fn new(suites: &[String], min_version: Option<&str>) -> Result<Self, TlsPolicyError> {
        let min_version = min_version.filter(|version| !version.is_empty());
        let only_newest = match min_version {
            None | Some("VersionTLS10" | "VersionTLS11" | "VersionTLS12") => false,
            Some("VersionTLS13") => true,
            Some(other) => return Err(TlsPolicyError::Version(other.to_owned())),
        };
        let mut chosen = Vec::new();
        for name in suites {
            match SUITES.iter().find(|(known, _)| known == name) {
                Some((_, suite)) => chosen.push(*suite),
                None if ALWAYS.contains(&name.as_str()) || is_never(name) => {}
                None => return Err(TlsPolicyError::Suite(name.clone())),
            }
        }
        Ok(Self {
            min_version: min_version.map(str::to_owned),
            names: suites.to_vec(),
            only_newest,
            suites: (!suites.is_empty()).then_some(chosen),
        })
    }

    /// The suites that were asked for.
    pub fn suites(&self) -> &[String] {
        &self.names
    }

    /// The version that was asked for.
    pub fn min_version(&self) -> Option<&str> {
        self.min_version.as_deref()
    }

    /// Begins the configuration of a server, and says in the log which of the suites that were asked for nobody is offered.
    ///
    /// # Errors
    /// Nothing is left to be offered.
    pub fn builder(&self) -> Result<ConfigBuilder<ServerConfig, WantsVerifier>, rustls::Error> {
        let absent: Vec<&String> = self.names.iter().filter(|name| is_never(name)).collect();
        if !absent.is_empty() {
            tracing::warn!(
                ?absent,
                "cipher suites that this server has not are not offered"
            );
        }
        let mut provider: CryptoProvider = ring::default_provider();
        if let Some(chosen) = &self.suites {
            let is_offered = |suite: CipherSuite, newest: bool| newest || chosen.contains(&suite);
            provider
                .cipher_suites
                .retain(|suite| is_offered(suite.suite(), suite.tls13().is_some()));
        }
        let builder = ServerConfig::builder_with_provider(Arc::new(provider));
        let older = self.suites.as_ref().is_none_or(|suites| !suites.is_empty());
        match self.only_newest || !older {
            true => builder.with_protocol_versions(&[&TLS13]),
            false => builder.with_protocol_versions(&[&TLS13, &TLS12]),
        }
    }
}

fn is_never(name: &str) -> bool {
    NEVER.iter().any(|(exchange, rest)| {
        name.strip_prefix(exchange)
            .is_some_and(|end| rest.contains(&end))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(suites: &[&str], version: Option<&str>) -> (usize, usize) {
        let suites: Vec<String> = suites.iter().map(|s| (*s).to_owned()).collect();
        let policy = TlsPolicy::new(&suites, version).unwrap();
        let builder = policy.builder().unwrap();
        let all = &builder.crypto_provider().cipher_suites;
        let newest = all.iter().filter(|suite| suite.tls13().is_some()).count();
        (newest, all.len() - newest)
    }

    #[test]
    fn suites_of_the_older_version_are_chosen_by_name() {
        assert_eq!(offered(&[], None), (3, 6));
        let one = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256";
        assert_eq!(offered(&[one], Some("VersionTLS12")), (3, 1));
        // What is known and never offered leaves the rest; alone it leaves the newest version.
        let weak = "TLS_RSA_WITH_AES_128_CBC_SHA";
        assert_eq!(offered(&[one, weak], Some("VersionTLS10")), (3, 1));
        assert_eq!(offered(&[weak], None), (3, 0));
        assert_eq!(offered(&["TLS_AES_128_GCM_SHA256"], None), (3, 0));
        let new = |suites: &[&str], version| {
            let suites: Vec<String> = suites.iter().map(|s| (*s).to_owned()).collect();
            TlsPolicy::new(&suites, version).unwrap_err().to_string()
        };
        assert!(new(&["TLS_NONE"], None).starts_with("Cipher suite TLS_NONE not supported"));
        assert!(new(&[], Some("SSL3")).starts_with("unknown tls version \"SSL3\""));
    }
}
