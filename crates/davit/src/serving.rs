//! Flags of how the API server is reached, and of the addresses of Services, with the names that kube-apiserver gives
//! them.

use anyhow::{Result, bail};
use davit_apiserver::{NodePorts, ServiceRanges, ServingFiles};
use davit_listen::{TlsPolicy, TlsPolicyError};
use std::path::{Path, PathBuf};

/// Which TLS a server offers.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct TlsFlags {
    /// Cipher suites of TLS 1.2 that are offered, by Go's names; those of TLS 1.3 always are [default: all that davit has]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    tls_cipher_suites: Vec<String>,
    /// The least version of TLS: VersionTLS12 or VersionTLS13 [default: VersionTLS12]
    #[arg(long, value_name = "VERSION")]
    tls_min_version: Option<String>,
}

impl TlsFlags {
    /// What is offered.
    ///
    /// # Errors
    /// A name that nobody knows.
    pub(crate) fn policy(&self) -> Result<TlsPolicy, TlsPolicyError> {
        TlsPolicy::new(&self.tls_cipher_suites, self.tls_min_version.as_deref())
    }
}

/// The certificate that is shown, by `davit server`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ServingFlags {
    /// Certificate that clients are shown, with those of its issuers; read again when it changes
    /// [default: one of the cluster's own authority]
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    tls_cert_file: Option<PathBuf>,
    /// Key of that certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    tls_private_key_file: Option<PathBuf>,
    /// Directory of apiserver.crt and apiserver.key, shown where --tls-cert-file names no others; also the data directory
    /// unless --data-dir names another
    #[arg(long, value_name = "DIR")]
    pub(crate) cert_dir: Option<PathBuf>,
    /// As for kube-apiserver. Here privileged pods are a matter of admission (Pod Security), so that only true is taken
    #[arg(long, value_name = "BOOL", default_value_t = true, default_missing_value = "true", num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set)]
    allow_privileged: bool,
}

impl ServingFlags {
    /// The files of a certificate that is given.
    ///
    /// # Errors
    /// A flag asks for what is not done.
    pub(crate) fn files(&self) -> Result<Option<ServingFiles>> {
        if !self.allow_privileged {
            bail!(
                "--allow-privileged=false: privileged pods are refused by Pod Security admission here (label \
                 pod-security.kubernetes.io/enforce of namespaces, or --admission-control-config-file)"
            );
        }
        let given = self
            .tls_cert_file
            .as_ref()
            .zip(self.tls_private_key_file.as_ref());
        if let Some((certificate, key)) = given {
            return Ok(Some(ServingFiles {
                certificate: certificate.clone(),
                key: key.clone(),
            }));
        }
        let in_dir = |dir: &PathBuf| ServingFiles {
            certificate: dir.join("apiserver.crt"),
            key: dir.join("apiserver.key"),
        };
        let found = self.cert_dir.as_ref().map(in_dir);
        Ok(found.filter(|files| files.certificate.exists() && files.key.exists()))
    }

    /// The data directory, where no other is asked for.
    pub(crate) fn data_dir<'a>(&'a self, asked: Option<&'a Path>) -> Option<&'a Path> {
        asked.or(self.cert_dir.as_deref())
    }
}

/// The addresses and ports of Services.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ServiceFlags {
    /// Addresses of Services, for the cluster's life: one range, or one of each family, of which the first is that of Services
    /// that do not say
    #[arg(long, value_name = "CIDR[,CIDR]", default_value_t)]
    pub(crate) service_cluster_ip_range: ServiceRanges,
    /// Ports of Services on nodes
    #[arg(long, value_name = "FIRST-LAST", default_value_t)]
    pub(crate) service_node_port_range: NodePorts,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: ServingFlags,
    }

    fn flags(words: &[&str]) -> ServingFlags {
        Line::parse_from(std::iter::once(&"davit").chain(words)).flags
    }

    #[test]
    fn a_certificate_is_given_by_name_or_by_directory() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().to_str().unwrap();
        assert_eq!(flags(&["--cert-dir", at]).files().unwrap(), None);
        std::fs::write(dir.path().join("apiserver.crt"), "").unwrap();
        assert_eq!(flags(&["--cert-dir", at]).files().unwrap(), None);
        std::fs::write(dir.path().join("apiserver.key"), "").unwrap();
        let files = flags(&["--cert-dir", at]).files().unwrap().unwrap();
        assert_eq!(files.key, dir.path().join("apiserver.key"));
        let named = [
            "--cert-dir",
            at,
            "--tls-cert-file=c",
            "--tls-private-key-file=k",
        ];
        assert_eq!(
            flags(&named).files().unwrap().unwrap().certificate,
            Path::new("c")
        );
        assert!(flags(&["--allow-privileged=false"]).files().is_err());
        assert!(flags(&["--allow-privileged"]).files().unwrap().is_none());
    }
}
