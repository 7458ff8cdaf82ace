//! What a client shows to the servers it calls.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::tls::{Identity, Trust};

/// A client certificate, a token, a name and password, or nothing.
#[derive(Clone, Default)]
pub struct Credentials {
    /// Shown when the server asks for it.
    pub identity: Option<Identity>,
    /// Sent as a bearer token.
    pub token: Option<String>,
    /// As `token`, read anew for each call: such files are rotated.
    pub(crate) token_file: Option<PathBuf>,
    /// Name and password.
    pub(crate) basic: Option<(String, String)>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials(..)")
    }
}

impl Credentials {
    /// The token to send now.
    pub(super) fn bearer(&self) -> std::io::Result<Option<String>> {
        match &self.token_file {
            Some(path) => std::fs::read_to_string(path).map(|text| Some(text.trim().to_owned())),
            None => Ok(self.token.clone()),
        }
    }
}

/// Credentials by the host of the webhook, from the kubeconfig that `WebhookAdmissionConfiguration`
/// names: its users are called like hosts (`*.ns.svc`, `hooks.example.com:8443`, `*`).
/// <https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#authenticate-apiservers>
#[derive(Debug, Clone, Default)]
pub struct HostCredentials {
    users: BTreeMap<String, Credentials>,
    trust: Option<Trust>,
}

impl HostCredentials {
    /// Those users; `trust` is for webhooks that name no authority.
    pub fn new(users: BTreeMap<String, Credentials>, trust: Option<Trust>) -> Self {
        Self { users, trust }
    }

    /// The most exact entry for `host:port`.
    pub(super) fn for_host(&self, host: &str) -> Option<(Credentials, Option<Trust>)> {
        let found = self.user(host)?;
        Some((found.clone(), self.trust.clone()))
    }

    fn user(&self, host: &str) -> Option<&Credentials> {
        if let Some(found) = self.users.get(host) {
            return Some(found);
        }
        let bare = host.strip_suffix(":443").unwrap_or(host);
        if let Some(found) = self.users.get(bare) {
            return Some(found);
        }
        let mut rest = bare;
        while let Some((_, parent)) = rest.split_once('.') {
            if let Some(found) = self.users.get(&format!("*.{parent}")) {
                return Some(found);
            }
            rest = parent;
        }
        self.users.get("*")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_find_their_most_exact_user() {
        let user = |token: &str| Credentials {
            token: Some(token.to_owned()),
            ..Credentials::default()
        };
        let held = HostCredentials::new(
            BTreeMap::from([
                ("a.ns.svc".to_owned(), user("exact")),
                ("*.ns.svc".to_owned(), user("namespace")),
                ("b.ns.svc:8443".to_owned(), user("port")),
                ("*".to_owned(), user("any")),
            ]),
            None,
        );
        let token = |host: &str| held.user(host).and_then(|c| c.token.clone()).unwrap();
        assert_eq!(token("a.ns.svc:443"), "exact");
        assert_eq!(token("c.ns.svc:443"), "namespace");
        assert_eq!(token("b.ns.svc:8443"), "port");
        assert_eq!(token("example.com:443"), "any");
    }
}
