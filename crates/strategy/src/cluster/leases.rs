//! Leases, and those who would hold them.

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use serde_json::Value;

use super::super::fields::{not_negative, required};
use super::super::json::{at, int_at, str_at};
use super::super::{KindInfo, Strategy, meta};

const OLDEST: &str = "OldestEmulationVersion";

pub(super) struct Lease(pub(super) KindInfo);

impl Strategy for Lease {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        lease(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        lease(new, &mut errors);
        errors
    }
}

fn lease(obj: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec");
    let spec = at(obj, &["spec"]);
    if let Some(seconds) = int_at(spec, &["leaseDurationSeconds"]).filter(|s| *s <= 0) {
        let path = path.child("leaseDurationSeconds");
        let fault = "must be greater than 0";
        errors.push(FieldError::invalid(&path, seconds, fault));
    }
    not_negative(spec, "leaseTransitions", &path, errors);
    if let Some(word) = at(spec, &["strategy"]).as_str() {
        strategy(word, &path.child("strategy"), errors);
    }
    let preferred = str_at(spec, &["preferredHolder"]);
    if !preferred.is_empty() && str_at(spec, &["strategy"]).is_empty() {
        let why = "may only be specified if `strategy` is defined";
        errors.push(FieldError::forbidden(&path.child("preferredHolder"), why));
    }
}

/// How a holder is chosen. The field below the path is one of the original's.
fn strategy(word: &str, path: &Path, errors: &mut ErrorList) {
    let path = path.child("strategy");
    if word.contains('/') {
        let faults = names::check_qualified_name(word);
        errors.extend(invalid_each(&path, word, faults));
    } else if word != OLDEST {
        errors.push(FieldError::not_supported(&path, word, &[OLDEST]));
    }
}

pub(super) struct LeaseCandidate(pub(super) KindInfo);

impl Strategy for LeaseCandidate {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    /// Candidates are called as those who stand call themselves, with the name of their host and an underscore.
    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        // candidates are called as keys of ConfigMaps may be
        meta::own_rule(obj, &mut errors, |name| {
            names::check_config_map_key(name).into_iter().next()
        });
        candidate(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        candidate(new, &mut errors);
        meta::immutable_at(new, old, &["spec", "leaseName"], &mut errors);
        errors
    }
}

fn candidate(obj: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec");
    let spec = at(obj, &["spec"]);
    required(spec, "leaseName", &path, errors);
    let emulated = version(spec, "emulationVersion", &path, errors);
    required(spec, "binaryVersion", &path, errors);
    let binary = version(spec, "binaryVersion", &path, errors);
    let given = |key: &str| !str_at(spec, &[key]).is_empty();
    let older = binary.unwrap_or_default() < emulated.unwrap_or_default();
    if given("binaryVersion") && given("emulationVersion") && older {
        let fault = "must be greater than or equal to `emulationVersion`";
        let value = str_at(spec, &["binaryVersion"]);
        errors.push(FieldError::invalid(
            &path.child("binaryVersion"),
            value,
            fault,
        ));
    }
    let word = str_at(spec, &["strategy"]);
    let at_strategy = path.child("strategy");
    if word.is_empty() {
        errors.push(FieldError::required(&at_strategy, ""));
        return;
    }
    if word == OLDEST && emulated.unwrap_or_default() == SemanticVersion::default() {
        let why = "must be specified when `strategy` is 'OldestEmulationVersion'";
        errors.push(FieldError::required(&path.child("emulationVersion"), why));
    }
    strategy(word, &at_strategy, errors);
}

/// Numbers of a version, and whether it is a release.
type SemanticVersion = ([u64; 3], bool);

/// The version at a field, when it is given and one.
fn version(
    spec: &Value,
    key: &str,
    path: &Path,
    errors: &mut ErrorList,
) -> Option<SemanticVersion> {
    let text = str_at(spec, &[key]);
    let parsed = parse(text);
    if parsed.is_none() && !text.is_empty() {
        let fault = "must be a valid semantic version";
        errors.push(FieldError::invalid(&path.child(key), text, fault));
    }
    parsed
}

fn parse(text: &str) -> Option<SemanticVersion> {
    let (text, build) = text.split_once('+').unwrap_or((text, "x"));
    let (numbers, before) = match text.split_once('-') {
        Some((numbers, before)) => (numbers, Some(before)),
        None => (text, None),
    };
    let is_word = |part: &str| {
        let is_good = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
        !part.is_empty() && part.bytes().all(is_good)
    };
    let is_number = |part: &&str| {
        let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        digits && (part.len() == 1 || !part.starts_with('0'))
    };
    let words = before.into_iter().chain([build]);
    if !words.flat_map(|word| word.split('.')).all(is_word) {
        return None;
    }
    let numbers: Vec<&str> = numbers.split('.').collect();
    let [major, minor, patch] = numbers[..] else {
        return None;
    };
    let parts = [major, minor, patch];
    if !parts.iter().all(is_number) {
        return None;
    }
    let number = |part: &str| part.parse::<u64>().ok();
    let numbers = [number(major)?, number(minor)?, number(patch)?];
    Some((numbers, before.is_none() && numbers != [0; 3]))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::testing::{faults, none};

    const KIND: (&str, &str, &str) = ("coordination.k8s.io", "v1beta1", "LeaseCandidate");

    #[test]
    fn faults_of_candidates() {
        let of =
            |spec: Value| json!({"metadata": {"name": "c", "namespace": "default"}, "spec": spec});
        let good = json!({"leaseName": "l", "binaryVersion": "1.36.0", "emulationVersion": "1.35.0", "strategy": "OldestEmulationVersion"});
        let with = |key: &str, value: &str| {
            let mut spec = good.clone();
            spec[key] = json!(value);
            of(spec)
        };
        let cases = [
            (
                of(json!({})),
                "spec.leaseName: Required value\nspec.binaryVersion: Required value\nspec.strategy: Required value",
            ),
            (
                with("binaryVersion", "1.36"),
                "spec.binaryVersion: Invalid value: \"1.36\": must be a valid semantic version\n\
                spec.binaryVersion: Invalid value: \"1.36\": must be greater than or equal to `emulationVersion`",
            ),
            (
                with("binaryVersion", "1.34.0"),
                "spec.binaryVersion: Invalid value: \"1.34.0\": must be greater than or equal to `emulationVersion`",
            ),
            (
                with("emulationVersion", ""),
                "spec.emulationVersion: Required value: must be specified when `strategy` is 'OldestEmulationVersion'",
            ),
            (
                with("strategy", "Some"),
                "spec.strategy.strategy: Unsupported value: \"Some\": supported values: \"OldestEmulationVersion\"",
            ),
        ];
        for (obj, wanted) in cases {
            assert_eq!(faults(KIND.0, KIND.1, KIND.2, &obj), wanted);
        }
        none(KIND.0, KIND.1, KIND.2, &of(good.clone()));
        let mut named = of(good);
        named["metadata"]["name"] = json!("host_3f0c");
        none(KIND.0, KIND.1, KIND.2, &named);
        named["metadata"]["name"] = json!("a/b");
        let fault = faults(KIND.0, KIND.1, KIND.2, &named);
        assert!(
            fault.starts_with("metadata.name: Invalid value: \"a/b\": a valid config key"),
            "{fault}"
        );
        assert!(super::parse("1.36.0-alpha.1+abc") < super::parse("1.36.0"));
    }
}
