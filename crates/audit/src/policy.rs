//! The audit policy: which requests are recorded, and how much of them.

use std::path::{Path, PathBuf};

use davit_access::{RequestInfo, UserInfo};
use davit_schema::decode::{Encoding, parse as parse_text};
use serde::Deserialize;

/// How much is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum Level {
    /// Nothing.
    None,
    /// Who, what, when, and the outcome.
    Metadata,
    /// Also the object of the request.
    Request,
    /// Also the object of the answer.
    RequestResponse,
}

impl Level {
    pub(super) fn name(self) -> &'static str {
        match self {
            Level::None => "None",
            Level::Metadata => "Metadata",
            Level::Request => "Request",
            Level::RequestResponse => "RequestResponse",
        }
    }
}

/// When an event is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Stage {
    /// The request is known, nothing is done yet.
    RequestReceived,
    /// The headers of an answer that goes on have been sent.
    ResponseStarted,
    /// The answer is complete.
    ResponseComplete,
    /// Handling it failed by a panic.
    Panic,
}

impl Stage {
    pub(super) fn name(self) -> &'static str {
        match self {
            Stage::RequestReceived => "RequestReceived",
            Stage::ResponseStarted => "ResponseStarted",
            Stage::ResponseComplete => "ResponseComplete",
            Stage::Panic => "Panic",
        }
    }
}

/// Why a policy cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// The file cannot be read.
    #[error("audit policy {}: {detail}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        detail: String,
    },
    /// The text is no `Policy`, or one that makes no sense.
    #[error("audit policy: {0}")]
    Malformed(String),
}

/// A `Policy` of `audit.k8s.io/v1`. The first rule that matches decides.
///
/// A field that is not known is refused: a rule that is to choose little would choose everything.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Policy {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default, rename = "metadata")]
    _metadata: serde::de::IgnoredAny,
    #[serde(default)]
    rules: Vec<Rule>,
    #[serde(default)]
    omit_stages: Vec<Stage>,
    #[serde(default)]
    omit_managed_fields: bool,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Rule {
    level: Level,
    #[serde(default)]
    users: Vec<String>,
    #[serde(default)]
    user_groups: Vec<String>,
    #[serde(default)]
    verbs: Vec<String>,
    #[serde(default)]
    resources: Vec<GroupResources>,
    #[serde(default)]
    namespaces: Vec<String>,
    #[serde(default, rename = "nonResourceURLs")]
    non_resource_urls: Vec<String>,
    #[serde(default)]
    omit_stages: Vec<Stage>,
    omit_managed_fields: Option<bool>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GroupResources {
    #[serde(default)]
    group: String,
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    resource_names: Vec<String>,
}

/// What the policy says about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AuditDecision {
    pub(super) level: Level,
    pub(super) omit_stages: Vec<Stage>,
    pub(super) omit_managed_fields: bool,
}

impl Policy {
    /// Reads a policy (YAML or JSON).
    ///
    /// # Errors
    /// When it is malformed or contradicts itself.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let fault = |detail: String| PolicyError::Malformed(detail);
        let value =
            parse_text(text.as_bytes(), Encoding::Yaml).map_err(|e| fault(e.to_string()))?;
        let policy: Self = serde_json::from_value(value).map_err(|e| fault(e.to_string()))?;
        if policy.api_version != "audit.k8s.io/v1" || policy.kind != "Policy" {
            return Err(fault(format!(
                "{} {} is not audit.k8s.io/v1 Policy",
                policy.api_version, policy.kind
            )));
        }
        if policy.rules.is_empty() {
            return Err(fault("loaded illegal policy with 0 rules".to_owned()));
        }
        for (index, rule) in policy.rules.iter().enumerate() {
            rule.check()
                .map_err(|why| fault(format!("rules[{index}].{why}")))?;
        }
        Ok(policy)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// As [`Policy::parse`], and when the file cannot be read.
    pub fn from_file(path: &Path) -> Result<Self, PolicyError> {
        let text = std::fs::read_to_string(path).map_err(|error| PolicyError::File {
            path: path.to_owned(),
            detail: error.to_string(),
        })?;
        Self::parse(&text)
    }

    pub(super) fn judge(&self, user: &UserInfo, info: &RequestInfo) -> AuditDecision {
        let found = self.rules.iter().find(|rule| rule.matches(user, info));
        let mut omit_stages = self.omit_stages.clone();
        omit_stages.extend(
            found
                .iter()
                .flat_map(|rule| rule.omit_stages.iter().copied()),
        );
        AuditDecision {
            level: found.map_or(Level::None, |rule| rule.level),
            omit_stages,
            omit_managed_fields: found
                .and_then(|rule| rule.omit_managed_fields)
                .unwrap_or(self.omit_managed_fields),
        }
    }
}

impl Rule {
    fn check(&self) -> Result<(), String> {
        let of_resources = !self.resources.is_empty() || !self.namespaces.is_empty();
        if of_resources && !self.non_resource_urls.is_empty() {
            return Err(
                "nonResourceURLs: rules cannot apply to both regular resources and \
                        non-resource URLs"
                    .to_owned(),
            );
        }
        for url in &self.non_resource_urls {
            if url != "*" && !url.starts_with('/') {
                return Err(format!(
                    "nonResourceURLs: {url:?} must begin with a '/' character"
                ));
            }
            if url != "*" && url.trim_end_matches('*').contains('*') {
                return Err(format!(
                    "nonResourceURLs: {url:?} may have a '*' at its end only"
                ));
            }
        }
        for resources in &self.resources {
            if resources.group.contains('/') {
                return Err(format!(
                    "resources.group: {:?} has a version",
                    resources.group
                ));
            }
            if !resources.resource_names.is_empty() && resources.resources.is_empty() {
                return Err("resources.resourceNames: need resources".to_owned());
            }
        }
        Ok(())
    }

    fn matches(&self, user: &UserInfo, info: &RequestInfo) -> bool {
        let listed = |list: &[String], value: &str| list.iter().any(|held| held == value);
        if !self.users.is_empty() && !listed(&self.users, &user.name) {
            return false;
        }
        if !self.user_groups.is_empty()
            && !user
                .groups
                .iter()
                .any(|group| listed(&self.user_groups, group))
        {
            return false;
        }
        if !self.verbs.is_empty() && !listed(&self.verbs, &info.verb) {
            return false;
        }
        if !self.namespaces.is_empty() || !self.resources.is_empty() {
            return self.matches_resource(info);
        }
        if !self.non_resource_urls.is_empty() {
            return !info.is_resource
                && self
                    .non_resource_urls
                    .iter()
                    .any(|url| path_matches(url, &info.path));
        }
        true
    }

    fn matches_resource(&self, info: &RequestInfo) -> bool {
        if !info.is_resource {
            return false;
        }
        let namespace = info.namespace.as_deref().unwrap_or_default();
        if !self.namespaces.is_empty() && !self.namespaces.iter().any(|held| held == namespace) {
            return false;
        }
        if self.resources.is_empty() {
            return true;
        }
        let full = info.full_resource();
        self.resources
            .iter()
            .filter(|resources| resources.group == info.group)
            .any(|resources| {
                let named = resources.resource_names.is_empty()
                    || resources.resource_names.contains(&info.name);
                resources.resources.is_empty()
                    || named
                        && resources.resources.iter().any(|pattern| {
                            *pattern == full
                                || pattern == "*"
                                || (!info.subresource.is_empty()
                                    && pattern.strip_prefix("*/") == Some(&*info.subresource))
                                || pattern.strip_suffix("/*") == Some(&*info.resource)
                        })
            })
    }
}

fn path_matches(pattern: &str, path: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => path.starts_with(start),
        None => pattern == path,
    }
}
