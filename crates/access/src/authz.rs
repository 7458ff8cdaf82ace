//! Authorization: a chain of authorizers, the first with an opinion decides.

mod abac;
mod config;
mod node;
pub mod rbac;
mod webhook;

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use davit_api::status::{Qualified, Status};
use davit_webhook::Tasks;

use crate::lookup::FindObjects;
use crate::metrics::AccessMetrics;
use crate::request_info::RequestInfo;
use crate::user::{MASTERS, UserInfo};

pub use abac::{Abac, PolicyError};
pub use config::AuthorizationConfigError;
pub use webhook::{AccessWebhook, AccessWebhookError};

pub use node::node_of;
use rbac::{Rbac, Rule};

/// What is to be allowed or refused.
#[derive(Debug, Clone)]
pub struct Attributes<'a> {
    /// Who asks.
    pub user: &'a UserInfo,
    /// What is asked for.
    pub request: &'a RequestInfo,
}

/// An authorizer's opinion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Yes; with the reason.
    Allow(String),
    /// No, and no other authorizer is asked.
    Deny(String),
    /// Ask the next; with what to tell the user if nobody allows.
    NoOpinion(String),
}

/// Decides whether a user may do something.
#[async_trait]
pub trait Authorizer: Send + Sync {
    /// This authorizer's opinion.
    async fn authorize(&self, attributes: &Attributes<'_>) -> Decision;

    /// Its type and name, under which its decisions are counted; those without are not.
    fn identity(&self) -> Option<(&'static str, &str)> {
        None
    }

    /// The rules by which this authorizer decides about a user in a namespace, as far as it has
    /// any that can be listed.
    async fn rules(&self, _user: &UserInfo, _namespace: &str) -> UserRules {
        UserRules::default()
    }
}

/// What a user may do, as rules.
#[derive(Debug, Clone, Default)]
pub struct UserRules {
    /// The rules.
    pub rules: Vec<Rule>,
    /// There may be more than the rules say.
    pub incomplete: bool,
    /// What could not be resolved.
    pub faults: Vec<String>,
}

/// `system:masters` may do everything.
#[derive(Debug, Clone, Copy)]
pub struct Masters;

#[async_trait]
impl Authorizer for Masters {
    async fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        if attributes.user.in_group(MASTERS) {
            Decision::Allow(String::new())
        } else {
            Decision::NoOpinion(String::new())
        }
    }
}

/// Paths anyone may read: what `system:public-info-viewer` grants.
#[derive(Debug, Clone, Copy)]
pub struct PublicInfo;

const PUBLIC: [&str; 4] = ["/healthz", "/livez", "/readyz", "/version"];

#[async_trait]
impl Authorizer for PublicInfo {
    async fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        let request = attributes.request;
        let path = request.path.trim_end_matches('/');
        if !request.is_resource && request.verb == "get" && PUBLIC.contains(&path) {
            Decision::Allow(String::new())
        } else {
            Decision::NoOpinion(String::new())
        }
    }
}

/// Every authenticated caller may do everything ([`Authorization::Authenticated`]).
#[derive(Debug, Clone, Copy)]
pub struct AuthenticatedOnly;

#[async_trait]
impl Authorizer for AuthenticatedOnly {
    async fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        // acting as others would make everybody an administrator
        let impersonates = attributes.request.verb.starts_with("impersonate");
        if attributes.user.in_group(crate::user::AUTHENTICATED) && !impersonates {
            Decision::Allow("authenticated callers are allowed".to_owned())
        } else {
            Decision::NoOpinion(String::new())
        }
    }

    async fn rules(&self, user: &UserInfo, _namespace: &str) -> UserRules {
        let allowed = user.in_group(crate::user::AUTHENTICATED);
        UserRules {
            rules: if allowed {
                Rule::everything().to_vec()
            } else {
                Vec::new()
            },
            ..UserRules::default()
        }
    }
}

/// Mode `AlwaysAllow`: everybody may do everything.
#[derive(Debug, Clone, Copy)]
pub struct AlwaysAllow;

#[async_trait]
impl Authorizer for AlwaysAllow {
    async fn authorize(&self, _attributes: &Attributes<'_>) -> Decision {
        Decision::Allow(String::new())
    }

    fn identity(&self) -> Option<(&'static str, &str)> {
        Some(("AlwaysAllow", "alwaysallow"))
    }

    async fn rules(&self, _user: &UserInfo, _namespace: &str) -> UserRules {
        UserRules {
            rules: Rule::everything().to_vec(),
            ..UserRules::default()
        }
    }
}

/// Mode `AlwaysDeny`: nobody may do anything, save members of `system:masters`.
#[derive(Debug, Clone, Copy)]
pub struct AlwaysDeny;

#[async_trait]
impl Authorizer for AlwaysDeny {
    async fn authorize(&self, _attributes: &Attributes<'_>) -> Decision {
        Decision::NoOpinion("Everything is forbidden.".to_owned())
    }

    fn identity(&self) -> Option<(&'static str, &str)> {
        Some(("AlwaysDeny", "alwaysdeny"))
    }
}

/// How requests are authorized: by modes `Node` and `RBAC` unless something else is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Authorization {
    /// Whoever is authenticated may do everything; others see health and version.
    Authenticated,
    /// The authorizers of `--authorization-mode`, in their order.
    Modes(Vec<Mode>),
    /// The authorizers of an `AuthorizationConfiguration` file, read again when it changes.
    ConfigFile(PathBuf),
}

impl Default for Authorization {
    fn default() -> Self {
        Self::Modes(vec![Mode::Node, Mode::Rbac])
    }
}

/// A mode of `--authorization-mode`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    /// What nodes may do.
    Node,
    /// Role-based access control.
    Rbac,
    /// Everything.
    AlwaysAllow,
    /// Nothing.
    AlwaysDeny,
    /// A server outside.
    Webhook(AccessWebhook),
    /// A policy file.
    Abac(Abac),
}

/// Why authorization could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum AuthorizationError {
    /// The configuration file.
    #[error(transparent)]
    Config(#[from] AuthorizationConfigError),
    /// A webhook.
    #[error(transparent)]
    Webhook(#[from] AccessWebhookError),
}

/// What authorizers decide by, shared by all of them and by admission.
#[derive(Debug)]
pub struct Sources {
    /// Roles and bindings.
    pub rbac: Arc<Rbac>,
    graph: Arc<node::Graph>,
    metrics: Arc<AccessMetrics>,
}

impl Sources {
    /// What is in the objects that `find` finds.
    pub fn new(find: &FindObjects<'_>, metrics: Arc<AccessMetrics>) -> Self {
        Self {
            rbac: Arc::new(Rbac::new(find)),
            graph: Arc::new(node::Graph::new(find)),
            metrics,
        }
    }
}

impl Authorization {
    /// The modes, read from the file if there is one; none for the rule without configuration.
    pub fn modes(&self) -> Result<Option<Vec<Mode>>, AuthorizationError> {
        Ok(match self {
            Self::Authenticated => None,
            Self::Modes(modes) => Some(modes.clone()),
            Self::ConfigFile(path) => Some(config::read(path)?),
        })
    }

    /// The file to read again when it changes.
    pub fn config_file(&self) -> Option<&std::path::Path> {
        match self {
            Self::ConfigFile(path) => Some(path),
            _ => None,
        }
    }
}

/// The chain of modes; members of system:masters may do everything in every one.
pub fn chain(
    modes: Option<&[Mode]>,
    sources: &Sources,
    tasks: &Tasks,
) -> Result<Chain, AuthorizationError> {
    let Some(modes) = modes else {
        return Ok(Chain::authenticated());
    };
    let mut chain: Vec<Box<dyn Authorizer>> = vec![Box::new(Masters)];
    for mode in modes {
        chain.push(match mode {
            Mode::Node => Box::new(node::NodeAuthorizer::new(Arc::clone(&sources.graph))),
            Mode::Rbac => Box::new(rbac::RbacAuthorizer(Arc::clone(&sources.rbac))),
            Mode::AlwaysAllow => Box::new(AlwaysAllow),
            Mode::AlwaysDeny => Box::new(AlwaysDeny),
            Mode::Webhook(config) => Box::new(webhook::WebhookAuthorizer::new(
                config,
                tasks,
                Arc::clone(&sources.metrics),
            )?),
            Mode::Abac(abac) => Box::new(abac.clone()),
        });
    }
    Ok(Chain {
        authorizers: chain,
        metrics: Some(Arc::clone(&sources.metrics)),
    })
}

/// The configured authorizers in their order.
pub struct Chain {
    authorizers: Vec<Box<dyn Authorizer>>,
    metrics: Option<Arc<AccessMetrics>>,
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Chain({})", self.authorizers.len())
    }
}

impl Chain {
    /// Asks `authorizers` in order.
    pub fn new(authorizers: Vec<Box<dyn Authorizer>>) -> Self {
        Self {
            authorizers,
            metrics: None,
        }
    }

    /// The chain of [`Authorization::Authenticated`].
    pub fn authenticated() -> Self {
        Self::new(vec![
            Box::new(Masters),
            Box::new(PublicInfo),
            Box::new(AuthenticatedOnly),
        ])
    }

    /// The first opinion; no opinion at all refuses.
    pub async fn decide(&self, attributes: &Attributes<'_>) -> Decision {
        let mut reasons = Vec::new();
        for authorizer in &self.authorizers {
            let decision = authorizer.authorize(attributes).await;
            if let (Some(metrics), Some((kind, name))) = (&self.metrics, authorizer.identity()) {
                match &decision {
                    Decision::Allow(_) => metrics.decided(kind, name, "allowed"),
                    Decision::Deny(_) => metrics.decided(kind, name, "denied"),
                    Decision::NoOpinion(_) => {}
                }
            }
            match decision {
                Decision::NoOpinion(reason) => {
                    if !reason.is_empty() {
                        reasons.push(reason);
                    }
                }
                decision => return decision,
            }
        }
        Decision::NoOpinion(reasons.join("\n"))
    }

    /// The rules of all authorizers about a user in a namespace.
    pub async fn rules(&self, user: &UserInfo, namespace: &str) -> UserRules {
        let mut all = UserRules::default();
        for authorizer in &self.authorizers {
            let rules = authorizer.rules(user, namespace).await;
            all.rules.extend(rules.rules);
            all.incomplete |= rules.incomplete;
            all.faults.extend(rules.faults);
        }
        all
    }
}

/// Why a request is refused, in Kubernetes' words.
fn refusal(user: &UserInfo, request: &RequestInfo, reason: &str) -> String {
    let who = &user.name;
    let mut text = if request.is_resource {
        let resource = request.full_resource();
        let (verb, group) = (&request.verb, &request.group);
        let scope = match request.namespace.as_deref() {
            Some(namespace) if !namespace.is_empty() => format!("in the namespace \"{namespace}\""),
            _ => "at the cluster scope".to_owned(),
        };
        format!(
            "User \"{who}\" cannot {verb} resource \"{resource}\" in API group \"{group}\" {scope}"
        )
    } else {
        format!(
            "User \"{who}\" cannot {} path \"{}\"",
            request.verb, request.path
        )
    };
    if !reason.is_empty() {
        text.push_str(": ");
        text.push_str(reason);
    }
    text
}

/// Refuses (403) what no authorizer allows.
///
/// # Errors
/// The refusal.
pub async fn check(chain: &Chain, user: &UserInfo, request: &RequestInfo) -> Result<(), Status> {
    match chain.decide(&Attributes { user, request }).await {
        Decision::Allow(_) => Ok(()),
        Decision::Deny(reason) | Decision::NoOpinion(reason) => {
            Err(refused(user, request, &reason))
        }
    }
}

/// The refusal as the caller reads it.
pub fn refused(user: &UserInfo, request: &RequestInfo, reason: &str) -> Status {
    let why = refusal(user, request, reason);
    let why = why
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    if request.is_resource {
        Status::forbidden(
            Qualified::new(&request.group, &request.resource),
            &request.name,
            why,
        )
    } else {
        Status::forbidden(Qualified::new("", ""), "", why)
    }
}
