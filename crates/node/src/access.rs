//! Whose word the node's server takes, as configured.

use std::time::Duration;

/// Whose word is taken (KubeletConfiguration `authentication` and `authorization`,
/// <https://kubernetes.io/docs/reference/access-authn-authz/kubelet-authn-authz/>). The defaults are the file's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccessOptions {
    /// Who shows nothing is `system:anonymous`.
    pub anonymous: bool,
    /// The API server is asked whose a bearer token is; else none is taken.
    pub tokens: bool,
    /// How long its answer is kept.
    pub token_for: Duration,
    /// Who decides.
    pub authorize: Authorize,
    /// How long a yes is kept.
    pub allowed_for: Duration,
    /// How long a no is kept.
    pub denied_for: Duration,
}

/// Who decides what callers may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Authorize {
    /// The API server, by SubjectAccessReview.
    Webhook,
    /// Nobody: whoever is known may do everything.
    AlwaysAllow,
}

impl Default for AccessOptions {
    fn default() -> Self {
        Self {
            anonymous: false,
            tokens: true,
            token_for: Duration::from_secs(2 * 60),
            authorize: Authorize::Webhook,
            allowed_for: Duration::from_secs(5 * 60),
            denied_for: Duration::from_secs(30),
        }
    }
}
