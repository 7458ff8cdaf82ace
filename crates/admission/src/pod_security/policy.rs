//! Levels, versions, and the labels that choose them.

use std::fmt;

use davit_api::field::{FieldError, Path};
use serde_json::Value;

const PREFIX: &str = "pod-security.kubernetes.io/";

/// How much a pod may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) enum Level {
    #[default]
    Privileged,
    Baseline,
    Restricted,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Privileged => "privileged",
            Self::Baseline => "baseline",
            Self::Restricted => "restricted",
        })
    }
}

/// A level as one minor version of Kubernetes understood it; none is the latest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct LevelVersion {
    pub(super) level: Level,
    pub(super) version: Option<u32>,
}

impl LevelVersion {
    /// Whether the version is at least `1.minor`.
    pub(super) fn since(self, minor: u32) -> bool {
        self.version.is_none_or(|held| held >= minor)
    }
}

impl fmt::Display for LevelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.version {
            None => write!(f, "{}:latest", self.level),
            Some(minor) => write!(f, "{}:v1.{minor}", self.level),
        }
    }
}

/// What a namespace asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Policy {
    pub(super) enforce: LevelVersion,
    pub(super) audit: LevelVersion,
    pub(super) warn: LevelVersion,
}

fn level(text: &str) -> Result<Level, String> {
    match text {
        "privileged" => Ok(Level::Privileged),
        "baseline" => Ok(Level::Baseline),
        "restricted" => Ok(Level::Restricted),
        _ => Err("must be one of privileged, baseline, restricted".to_owned()),
    }
}

fn version(text: &str) -> Result<Option<u32>, String> {
    if text == "latest" {
        return Ok(None);
    }
    let minor = text
        .strip_prefix("v1.")
        .and_then(|minor| minor.parse().ok());
    match minor {
        Some(minor) if format!("v1.{minor}") == text => Ok(Some(minor)),
        _ => Err("must be \"latest\" or \"v1.x\"".to_owned()),
    }
}

impl Policy {
    /// The policy of a namespace and what is wrong with its labels. A level to enforce that is
    /// not known is the strictest; one to audit or warn by is the mildest.
    pub(super) fn of_labels(namespace: &Value, defaults: Self) -> (Self, Vec<FieldError>) {
        let labels = &namespace["metadata"]["labels"];
        let read = |key: &str| labels[format!("{PREFIX}{key}").as_str()].as_str();
        let path = |key: &str| {
            Path::new("metadata")
                .child("labels")
                .key(&format!("{PREFIX}{key}"))
        };
        Self::read(read, path, defaults)
    }

    /// The `defaults` of a `PodSecurityConfiguration`.
    pub(super) fn of_defaults(value: &Value) -> (Self, Vec<FieldError>) {
        let read = |key: &str| value[key].as_str().filter(|text| !text.is_empty());
        let path = |key: &str| Path::new("defaults").child(key);
        let (mut policy, faults) = Self::read(read, path, Self::default());
        // unlike a namespace's labels, defaults do not imply one another
        if read("warn").is_none() {
            policy.warn.level = Level::Privileged;
        }
        (policy, faults)
    }

    fn read<'a>(
        read: impl Fn(&str) -> Option<&'a str>,
        path: impl Fn(&str) -> Path,
        defaults: Self,
    ) -> (Self, Vec<FieldError>) {
        let mut policy = defaults;
        let mut faults = Vec::new();
        let modes: [(&str, &mut LevelVersion, Level); 3] = [
            ("enforce", &mut policy.enforce, Level::Restricted),
            ("audit", &mut policy.audit, Level::Privileged),
            ("warn", &mut policy.warn, Level::Privileged),
        ];
        for (mode, target, otherwise) in modes {
            if let Some(text) = read(mode) {
                target.level = level(text).unwrap_or_else(|why| {
                    faults.push(FieldError::invalid(&path(mode), text, why));
                    otherwise
                });
                // a level of one's own is of the latest version unless it says otherwise
                target.version = None;
            }
            let key = format!("{mode}-version");
            if let Some(text) = read(&key) {
                target.version = version(text).unwrap_or_else(|why| {
                    faults.push(FieldError::invalid(&path(&key), text, why));
                    None
                });
            }
        }
        if read("enforce").is_some()
            && read("warn").is_none()
            && policy.enforce.level > policy.warn.level
        {
            policy.warn = policy.enforce;
        }
        (policy, faults)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(labels: Value) -> (Policy, Vec<String>) {
        let namespace = json!({ "metadata": { "labels": labels } });
        let (policy, faults) = Policy::of_labels(&namespace, Policy::default());
        (policy, faults.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn labels_choose_levels_and_versions() {
        let (policy, faults) = of(json!({
            "pod-security.kubernetes.io/enforce": "baseline",
            "pod-security.kubernetes.io/enforce-version": "v1.25",
            "pod-security.kubernetes.io/audit": "restricted",
        }));
        assert!(faults.is_empty());
        assert_eq!(policy.enforce.to_string(), "baseline:v1.25");
        assert_eq!(policy.audit.to_string(), "restricted:latest");
        assert_eq!(
            policy.warn.to_string(),
            "baseline:v1.25",
            "as what is enforced"
        );
        assert!(!policy.enforce.since(26) && policy.enforce.since(25));
    }

    #[test]
    fn unknown_levels_are_told_and_taken_strictly() {
        let (policy, faults) = of(json!({
            "pod-security.kubernetes.io/enforce": "loose",
            "pod-security.kubernetes.io/warn-version": "1.2",
        }));
        assert_eq!(policy.enforce.level, Level::Restricted);
        assert_eq!(
            faults,
            [
                "metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: \"loose\": must be one of privileged, baseline, restricted",
                "metadata.labels[pod-security.kubernetes.io/warn-version]: Invalid value: \"1.2\": must be \"latest\" or \"v1.x\"",
            ]
        );
    }
}
