//! Authorization: a chain of authorizers, the first with an opinion decides.

use async_trait::async_trait;

use crate::request_info::RequestInfo;
use crate::user::{MASTERS, UserInfo};

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

/// Every authenticated caller may do everything: the rule until RBAC is there.
#[derive(Debug, Clone, Copy)]
pub struct AuthenticatedOnly;

#[async_trait]
impl Authorizer for AuthenticatedOnly {
    async fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        if attributes.user.in_group(crate::user::AUTHENTICATED) {
            Decision::Allow("authenticated callers are allowed".to_owned())
        } else {
            Decision::NoOpinion(String::new())
        }
    }
}

/// The configured authorizers in their order.
pub struct Chain(Vec<Box<dyn Authorizer>>);

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Chain({})", self.0.len())
    }
}

impl Chain {
    /// Asks `authorizers` in order.
    pub fn new(authorizers: Vec<Box<dyn Authorizer>>) -> Self {
        Self(authorizers)
    }

    /// The chain of a server without further configuration.
    pub fn standard() -> Self {
        Self(vec![
            Box::new(Masters),
            Box::new(PublicInfo),
            Box::new(AuthenticatedOnly),
        ])
    }

    /// The first opinion; no opinion at all refuses.
    pub async fn decide(&self, attributes: &Attributes<'_>) -> Decision {
        let mut reasons = Vec::new();
        for authorizer in &self.0 {
            match authorizer.authorize(attributes).await {
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
}

/// Why a request is refused, in Kubernetes' words.
pub(crate) fn refusal(user: &UserInfo, request: &RequestInfo, reason: &str) -> String {
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
