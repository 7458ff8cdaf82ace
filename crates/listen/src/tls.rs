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
    suites: Vec<String>,
}

/// The least version by which only the newest is left.
const NEWEST: &str = "VersionTLS13";

/// What a suite that Kubernetes knows is here.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KnownSuite {
    /// One of TLS 1.2.
    Offered(CipherSuite),
    /// One of TLS 1.3.
    Always,
    Never,
}

impl KnownSuite {
    fn named(name: &str) -> Option<Self> {
        if let Some((_, suite)) = SUITES.iter().find(|(known, _)| *known == name) {
            return Some(Self::Offered(*suite));
        }
        if ALWAYS.contains(&name) {
            return Some(Self::Always);
        }
        let is_never = NEVER.iter().any(|(exchange, rest)| {
            name.strip_prefix(exchange)
                .is_some_and(|end| rest.contains(&end))
        });
        is_never.then_some(Self::Never)
    }
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
        match min_version {
            None | Some("VersionTLS10" | "VersionTLS11" | "VersionTLS12" | NEWEST) => {}
            Some(other) => return Err(TlsPolicyError::Version(other.to_owned())),
        }
        if let Some(name) = suites.iter().find(|s| KnownSuite::named(s).is_none()) {
            return Err(TlsPolicyError::Suite(name.clone()));
        }
        Ok(Self {
            min_version: min_version.map(str::to_owned),
            suites: suites.to_vec(),
        })
    }

    /// The suites that were asked for.
    pub fn suites(&self) -> &[String] {
        &self.suites
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
        let known = |name: &String| KnownSuite::named(name);
        let absent = self.suites.iter();
        let absent: Vec<_> = absent
            .filter(|name| known(name) == Some(KnownSuite::Never))
            .collect();
        if !absent.is_empty() {
            tracing::warn!(
                ?absent,
                "cipher suites that this server has not are not offered"
            );
        }
        let mut provider: CryptoProvider = ring::default_provider();
        let chosen: Vec<KnownSuite> = self.suites.iter().filter_map(known).collect();
        if !chosen.is_empty() {
            provider.cipher_suites.retain(|suite| {
                suite.tls13().is_some() || chosen.contains(&KnownSuite::Offered(suite.suite()))
            });
        }
        let has_older = provider.cipher_suites.iter().any(|s| s.tls13().is_none());
        let builder = ServerConfig::builder_with_provider(Arc::new(provider));
        match has_older && self.min_version() != Some(NEWEST) {
            true => builder.with_protocol_versions(&[&TLS13, &TLS12]),
            false => builder.with_protocol_versions(&[&TLS13]),
        }
    }
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
