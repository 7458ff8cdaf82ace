//! Flags about who is let in and who may do what, with the names that kube-apiserver gives them.

use anyhow::{Context, Result, bail};
use davit_access::authn::{Anonymous, Authentication, OidcFlags, RequestHeader, TokenWebhook};
use davit_access::authz::{Abac, AccessWebhook, Authorization, Mode};
use davit_access::tokens::TokenLife;
use davit_apiserver::{KubeletAuthority, Options};
use davit_pki::Identity;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Authentication and authorization")]
pub(crate) struct AccessOptions {
    /// Who decides what callers may do, asked in this order: Node, RBAC, Webhook, ABAC, AlwaysAllow, AlwaysDeny
    #[arg(
        long,
        value_name = "MODES",
        value_delimiter = ',',
        default_value = "Node,RBAC"
    )]
    authorization_mode: Vec<String>,
    /// An AuthorizationConfiguration instead of the modes; read again when it changes
    #[arg(long, value_name = "FILE", conflicts_with = "authorization_mode")]
    authorization_config: Option<PathBuf>,
    /// Policies of mode ABAC, one a line
    #[arg(long, value_name = "FILE")]
    authorization_policy_file: Option<PathBuf>,
    /// Kubeconfig of the server that mode Webhook asks
    #[arg(long, value_name = "FILE")]
    authorization_webhook_config_file: Option<PathBuf>,
    /// Version of SubjectAccessReview sent to it
    #[arg(long, value_name = "VERSION", default_value = "v1beta1")]
    authorization_webhook_version: String,
    /// How long its permissions are kept
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    authorization_webhook_cache_authorized_ttl: Duration,
    /// How long its refusals are kept
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    authorization_webhook_cache_unauthorized_ttl: Duration,
    /// Further authorities of client certificates
    #[arg(long, value_name = "FILE")]
    client_ca_file: Option<PathBuf>,
    /// Whether callers without credentials are served as system:anonymous
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    anonymous_auth: bool,
    /// Accept bootstrap tokens (Secrets of kube-system)
    #[arg(long, value_name = "BOOL", default_value_t = true, default_missing_value = "true", num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set)]
    enable_bootstrap_token_auth: bool,
    /// An AuthenticationConfiguration: OpenID Connect issuers and anonymous access; read again when it changes
    #[arg(long, value_name = "FILE")]
    authentication_config: Option<PathBuf>,
    /// Kubeconfig of a server that reviews tokens
    #[arg(long, value_name = "FILE")]
    authentication_token_webhook_config_file: Option<PathBuf>,
    /// How long its answers are kept
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = duration)]
    authentication_token_webhook_cache_ttl: Duration,
    /// Version of TokenReview sent to it
    #[arg(long, value_name = "VERSION", default_value = "v1beta1")]
    authentication_token_webhook_version: String,
    /// Authorities of the certificates of authenticating proxies
    #[arg(long, value_name = "FILE")]
    requestheader_client_ca_file: Option<PathBuf>,
    /// Common names of proxies that are believed; none: all
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    requestheader_allowed_names: Vec<String>,
    /// Headers with the user name
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "x-remote-user"
    )]
    requestheader_username_headers: Vec<String>,
    /// Headers with the user's id
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "x-remote-uid"
    )]
    requestheader_uid_headers: Vec<String>,
    /// Headers with groups
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "x-remote-group"
    )]
    requestheader_group_headers: Vec<String>,
    /// Prefixes of headers with further attributes
    #[arg(
        long,
        value_name = "PREFIXES",
        value_delimiter = ',',
        default_value = "x-remote-extra-"
    )]
    requestheader_extra_headers_prefix: Vec<String>,
    /// Certificate shown to aggregated API servers [default: one of the cluster's own front-proxy authority]
    #[arg(long, value_name = "FILE", requires = "proxy_client_key_file")]
    proxy_client_cert_file: Option<PathBuf>,
    /// Key of that certificate
    #[arg(long, value_name = "FILE", requires = "proxy_client_cert_file")]
    proxy_client_key_file: Option<PathBuf>,
    /// Authority of the certificates of nodes' servers [default: `davit up` believes the cluster's own, `davit server`
    /// whoever answers at the node's address]
    #[arg(long, value_name = "FILE")]
    kubelet_certificate_authority: Option<PathBuf>,
    /// Certificate shown to nodes' servers [default: one of the cluster's own authority]
    #[arg(long, value_name = "FILE", requires = "kubelet_client_key")]
    kubelet_client_certificate: Option<PathBuf>,
    /// Key of that certificate
    #[arg(long, value_name = "FILE", requires = "kubelet_client_certificate")]
    kubelet_client_key: Option<PathBuf>,
    /// An OpenID Connect issuer
    #[arg(long, value_name = "URL", conflicts_with = "authentication_config")]
    oidc_issuer_url: Option<String>,
    /// The audience its tokens must have
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    oidc_client_id: String,
    /// The issuer's authority
    #[arg(long, value_name = "FILE")]
    oidc_ca_file: Option<PathBuf>,
    /// The claim with the user name
    #[arg(long, value_name = "CLAIM", default_value = "sub")]
    oidc_username_claim: String,
    /// Before user names; the issuer and # unless the claim is email; - for nothing
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    oidc_username_prefix: String,
    /// The claim with groups
    #[arg(
        long,
        value_name = "CLAIM",
        default_value = "",
        hide_default_value = true
    )]
    oidc_groups_claim: String,
    /// Before groups
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    oidc_groups_prefix: String,
    /// A claim and its value that tokens must have
    #[arg(long, value_name = "CLAIM=VALUE")]
    oidc_required_claim: Vec<String>,
    /// Issuer of service account tokens; further ones are former issuers whose tokens are still good
    #[arg(long, value_name = "URL")]
    service_account_issuer: Vec<String>,
    /// The key that signs service account tokens, P-256 or RSA [default: one made at the first start]
    #[arg(long, value_name = "FILE")]
    service_account_signing_key_file: Option<PathBuf>,
    /// Further keys by which service account tokens are checked
    #[arg(long, value_name = "FILE")]
    service_account_key_file: Vec<PathBuf>,
    /// Let the tokens of pods live for a year, for clients that do not read them anew; late uses are told to the audit log
    #[arg(long, value_name = "BOOL", default_value_t = true, default_missing_value = "true", num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set)]
    service_account_extend_token_expiration: bool,
    /// The longest life of tokens; longer ones are shortened [default: as asked for]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    service_account_max_token_expiration: Option<Duration>,
    /// Audiences a token must name one of [default: the issuer]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    api_audiences: Vec<String>,
}

/// A duration as Go writes it, of one unit: `2m`, `30s`, `500ms`.
fn duration(text: &str) -> Result<Duration, String> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let number: u64 = text[..end]
        .parse()
        .map_err(|_| "expected a number and a unit (ms, s, m, h)".to_owned())?;
    match &text[end..] {
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        "m" => Ok(Duration::from_secs(number * 60)),
        "h" => Ok(Duration::from_secs(number * 3600)),
        _ => Err("expected a number and a unit (ms, s, m, h)".to_owned()),
    }
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("file {}", path.display()))
}

fn read_optional(path: Option<&PathBuf>) -> Result<Option<String>> {
    path.map(|path| read(path)).transpose()
}

impl AccessOptions {
    /// Sets what the flags say.
    pub(crate) fn apply(&self, options: &mut Options) -> Result<()> {
        options.authorization = self.authorization()?;
        options.authentication = self.authentication()?;
        if let Some((first, rest)) = self.service_account_issuer.split_first() {
            options.service_account_issuer.clone_from(first);
            options.former_issuers = rest.to_vec();
        }
        let proxy_client = self
            .proxy_client_cert_file
            .as_ref()
            .zip(self.proxy_client_key_file.as_ref());
        if let Some((certificate, key)) = proxy_client {
            let (certificate, key) = (read(certificate)?, read(key)?);
            options.proxy_client = Some(Identity { certificate, key });
        }
        if let Some(file) = &self.kubelet_certificate_authority {
            options.kubelet_authority = KubeletAuthority::Pem(read(file)?);
        }
        let kubelet_client = self
            .kubelet_client_certificate
            .as_ref()
            .zip(self.kubelet_client_key.as_ref());
        if let Some((certificate, key)) = kubelet_client {
            let (certificate, key) = (read(certificate)?, read(key)?);
            options.kubelet_client = Some(Identity { certificate, key });
        }
        let signing_key = self.service_account_signing_key_file.as_ref();
        options.service_account_signing_key = read_optional(signing_key)?;
        for path in &self.service_account_key_file {
            options.service_account_keys.push(read(path)?);
        }
        let longest = self.service_account_max_token_expiration;
        options.token_life = TokenLife {
            prolongs: self.service_account_extend_token_expiration,
            longest: longest.map(|life| i64::try_from(life.as_secs()).unwrap_or(i64::MAX)),
        };
        if options
            .token_life
            .longest
            .is_some_and(|longest| longest < 3600)
        {
            bail!("--service-account-max-token-expiration must be at least 1h");
        }
        options.api_audiences.clone_from(&self.api_audiences);
        Ok(())
    }

    fn authorization(&self) -> Result<Authorization> {
        if let Some(path) = &self.authorization_config {
            return Ok(Authorization::ConfigFile(path.clone()));
        }
        let modes: Result<Vec<_>> = self
            .authorization_mode
            .iter()
            .map(|word| self.mode(word))
            .collect();
        Ok(Authorization::Modes(modes?))
    }

    fn mode(&self, word: &str) -> Result<Mode> {
        Ok(match word {
            "Node" => Mode::Node,
            "RBAC" => Mode::Rbac,
            "AlwaysAllow" => Mode::AlwaysAllow,
            "AlwaysDeny" => Mode::AlwaysDeny,
            "Webhook" => {
                let kubeconfig = self.authorization_webhook_config_file.clone();
                Mode::Webhook(AccessWebhook {
                    name: "webhook".to_owned(),
                    kubeconfig: Some(kubeconfig.context(
                        "authorization mode Webhook needs --authorization-webhook-config-file",
                    )?),
                    version: self.authorization_webhook_version.clone(),
                    timeout: Duration::from_secs(30),
                    authorized_ttl: self.authorization_webhook_cache_authorized_ttl,
                    unauthorized_ttl: self.authorization_webhook_cache_unauthorized_ttl,
                    fails_closed: false,
                    match_conditions: Vec::new(),
                })
            }
            "ABAC" => {
                let path = self.authorization_policy_file.as_ref();
                let path =
                    path.context("authorization mode ABAC needs --authorization-policy-file")?;
                let abac = Abac::parse(&read(path)?);
                Mode::Abac(abac.with_context(|| path.display().to_string())?)
            }
            _ => bail!("{word:?} is not a valid authorization mode"),
        })
    }

    fn authentication(&self) -> Result<Authentication> {
        let webhook = self.authentication_token_webhook_config_file.as_ref();
        let request_header = match &self.requestheader_client_ca_file {
            None => None,
            Some(path) => Some(RequestHeader {
                client_ca: read(path)?,
                client_ca_file: Some(path.clone()),
                allowed_names: self.requestheader_allowed_names.clone(),
                username_headers: self.requestheader_username_headers.clone(),
                uid_headers: self.requestheader_uid_headers.clone(),
                group_headers: self.requestheader_group_headers.clone(),
                extra_prefixes: self.requestheader_extra_headers_prefix.clone(),
            }),
        };
        Ok(Authentication {
            client_ca: read_optional(self.client_ca_file.as_ref())?,
            client_ca_file: self.client_ca_file.clone(),
            request_header,
            bootstrap_tokens: self.enable_bootstrap_token_auth,
            token_webhook: webhook.map(|path| TokenWebhook {
                config_file: path.clone(),
                cache_ttl: self.authentication_token_webhook_cache_ttl,
                version: self.authentication_token_webhook_version.clone(),
            }),
            config_file: self.authentication_config.clone(),
            oidc: self.oidc_issuer_url.as_ref().map(|url| OidcFlags {
                issuer_url: url.clone(),
                client_id: self.oidc_client_id.clone(),
                ca_file: self.oidc_ca_file.clone(),
                username_claim: self.oidc_username_claim.clone(),
                username_prefix: self.oidc_username_prefix.clone(),
                groups_claim: self.oidc_groups_claim.clone(),
                groups_prefix: self.oidc_groups_prefix.clone(),
                required_claims: self.oidc_required_claim.clone(),
            }),
            anonymous: Anonymous {
                enabled: self.anonymous_auth,
                paths: Vec::new(),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_writes_them() {
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert!(duration("2").is_err() && duration("m").is_err());
    }
}
