//! Mode `ABAC`: a file with one policy a line.
//!
//! Specified in <https://kubernetes.io/docs/reference/access-authn-authz/abac/>.

use async_trait::async_trait;
use serde_json::Value;

use super::{Attributes, Authorizer, Decision};
use crate::request_info::RequestInfo;
use crate::user::{AUTHENTICATED, UNAUTHENTICATED, UserInfo};

/// What a line allows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Policy {
    user: String,
    group: String,
    read_only: bool,
    api_group: String,
    resource: String,
    namespace: String,
    path: String,
}

/// A line that cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("authorization policy line {line}: {detail}")]
pub struct PolicyError {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong.
    pub detail: String,
}

/// The authorizer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Abac(Vec<Policy>);

impl Abac {
    /// Reads the lines of a policy file; empty lines and those that begin with `#` say nothing.
    ///
    /// # Errors
    /// The first line that is no policy.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let mut policies = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let policy = policy(line).map_err(|detail| PolicyError {
                line: index + 1,
                detail,
            })?;
            policies.push(policy);
        }
        Ok(Self(policies))
    }
}

fn policy(line: &str) -> Result<Policy, String> {
    let value: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
    // the first form, without a version, has the fields at the top
    let spec = match value["apiVersion"].as_str() {
        None => &value,
        Some("abac.authorization.kubernetes.io/v1beta1") if value["kind"] == "Policy" => {
            &value["spec"]
        }
        Some(version) => return Err(format!("unknown version {version:?}")),
    };
    let old = value["apiVersion"].is_null();
    let text = |key: &str| spec[key].as_str().unwrap_or_default().to_owned();
    let mut policy = Policy {
        user: text("user"),
        group: text("group"),
        read_only: spec["readonly"] == true,
        api_group: text("apiGroup"),
        resource: text("resource"),
        namespace: text("namespace"),
        path: text("nonResourcePath"),
    };
    if old {
        // there, what is not said is everything
        let all = |text: &mut String| {
            if text.is_empty() {
                "*".clone_into(text);
            }
        };
        if policy.user.is_empty() && policy.group.is_empty() {
            AUTHENTICATED.clone_into(&mut policy.group);
        }
        if policy.resource.is_empty() && policy.namespace.is_empty() {
            all(&mut policy.path);
        }
        all(&mut policy.api_group);
        all(&mut policy.resource);
        all(&mut policy.namespace);
    } else if policy.user == "*" {
        // anybody who is known
        policy.user.clear();
        AUTHENTICATED.clone_into(&mut policy.group);
    }
    Ok(policy)
}

impl Policy {
    fn is_for(&self, user: &UserInfo) -> bool {
        let named = !self.user.is_empty() || !self.group.is_empty();
        let by_name = self.user.is_empty() || self.user == "*" || self.user == user.name;
        let by_group = self.group.is_empty()
            || user.in_group(&self.group)
            || (self.group == "*" && !user.in_group(UNAUTHENTICATED));
        named && by_name && by_group
    }

    fn allows(&self, request: &RequestInfo) -> bool {
        let fits = |policy: &str, wanted: &str| policy == "*" || policy == wanted;
        let reads = matches!(request.verb.as_str(), "get" | "list" | "watch");
        if self.read_only && !reads {
            return false;
        }
        if !request.is_resource {
            return match self.path.strip_suffix('*') {
                Some(prefix) => request.path.starts_with(prefix),
                None => self.path == request.path,
            };
        }
        fits(&self.api_group, &request.group)
            && fits(&self.resource, &request.resource)
            && fits(
                &self.namespace,
                request.namespace.as_deref().unwrap_or_default(),
            )
    }
}

#[async_trait]
impl Authorizer for Abac {
    async fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        let allowed = self
            .0
            .iter()
            .any(|policy| policy.is_for(attributes.user) && policy.allows(attributes.request));
        if allowed {
            Decision::Allow(String::new())
        } else {
            Decision::NoOpinion("No policy matched.".to_owned())
        }
    }

    fn identity(&self) -> Option<(&'static str, &str)> {
        Some(("ABAC", "abac"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_allow_users_and_groups() {
        let text = r#"
# a comment
{"apiVersion": "abac.authorization.kubernetes.io/v1beta1", "kind": "Policy", "spec": {"user": "bob", "namespace": "a", "resource": "pods", "apiGroup": "", "readonly": true}}
{"apiVersion": "abac.authorization.kubernetes.io/v1beta1", "kind": "Policy", "spec": {"group": "system:authenticated", "nonResourcePath": "/version*"}}
"#;
        let abac = Abac::parse(text).unwrap();
        let bob = UserInfo::new("bob", &[]);
        let pods = |verb: &str, namespace: &str| RequestInfo {
            verb: verb.to_owned(),
            is_resource: true,
            resource: "pods".to_owned(),
            namespace: Some(namespace.to_owned()),
            ..RequestInfo::default()
        };
        let version = RequestInfo {
            verb: "get".to_owned(),
            path: "/version".to_owned(),
            ..RequestInfo::default()
        };
        for (request, allowed) in [
            (pods("get", "a"), true),
            (pods("delete", "a"), false),
            (pods("get", "b"), false),
            (version, true),
        ] {
            let attributes = Attributes {
                user: &bob,
                request: &request,
            };
            let decision = abac.authorize(&attributes).await;
            assert_eq!(
                matches!(decision, Decision::Allow(_)),
                allowed,
                "{request:?}"
            );
        }
        assert_eq!(Abac::parse("{\n").unwrap_err().line, 1);
    }
}
