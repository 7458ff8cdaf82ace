//! Projected volumes.

use std::collections::HashSet;

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use serde_json::Value;

use super::{downward, files, mode, not_stepping_out, required};
use crate::json::{at, has, int_at, list_at, str_at};
use crate::selectors::label_selector;
use crate::signers::signer_name;
use crate::trust_bundles::faults_of_name;

/// Kinds of keys, in the order in which kube-apiserver lists them.
const KEYS: [&str; 6] = [
    "ECDSAP256",
    "ECDSAP384",
    "ECDSAP521",
    "ED25519",
    "RSA3072",
    "RSA4096",
];
/// Seconds that a certificate is good for: the least, the most, and the most of a signer of Kubernetes' own.
const EXPIRATION: (i64, i64, i64) = (3600, 91 * 24 * 3600, 24 * 3600);
/// Bytes of all annotations together.
const ANNOTATIONS: usize = 256 << 10;

/// The paths that the sources take: two of them at one path would hide one another.
#[derive(Default)]
struct Taken<'a> {
    paths: HashSet<&'a str>,
}

impl<'a> Taken<'a> {
    /// A path of a source that errors call `name`; `volume` is where the volume stands.
    fn take(&mut self, target: &'a str, name: &str, volume: &Path, errors: &mut ErrorList) {
        if !self.paths.insert(target) {
            let fault = "conflicting duplicate paths";
            errors.push(FieldError::invalid(volume, name, fault));
        }
    }
}

pub(super) fn validate(source: &Value, volume: &Path, errors: &mut ErrorList) {
    mode(source, "defaultMode", volume, errors);
    let mut taken = Taken::default();
    for (i, part) in list_at(source, &["sources"]).iter().enumerate() {
        let path = volume.child("sources").index(i);
        let mut given = 0;
        for (kind, value) in part.as_object().into_iter().flatten() {
            if value.is_null() {
                continue;
            }
            given += 1;
            let path = path.child(kind);
            if given > 1 {
                let why = "may not specify more than 1 volume type per source";
                errors.push(FieldError::forbidden(&path, why));
                continue;
            }
            match kind.as_str() {
                "configMap" | "secret" => {
                    required(value, "name", &path, errors);
                    files(value, &path, errors);
                }
                "downwardAPI" => downward(list_at(value, &["items"]), &path.child("items"), errors),
                "serviceAccountToken" => token(value, &path, errors),
                "clusterTrustBundle" => trust_bundle(value, &path, errors),
                "podCertificate" => certificate(value, &path, errors),
                _ => {}
            }
            for (target, name) in targets(kind, value) {
                taken.take(target, name, volume, errors);
            }
        }
    }
}

/// The paths of a source that no other may have, and what errors call each.
fn targets<'a>(kind: &str, value: &'a Value) -> Vec<(&'a str, &'a str)> {
    let items = || list_at(value, &["items"]).iter();
    let mut found: Vec<(&str, &str)> = match kind {
        "configMap" | "secret" => {
            let name = str_at(value, &["name"]);
            items().map(|i| (str_at(i, &["path"]), name)).collect()
        }
        "downwardAPI" => items()
            .map(|i| str_at(i, &["path"]))
            .map(|p| (p, p))
            .collect(),
        "clusterTrustBundle" => vec![str_at(value, &["path"])]
            .into_iter()
            .map(|p| (p, p))
            .collect(),
        "podCertificate" => PATHS
            .iter()
            .map(|key| str_at(value, &[key]))
            .map(|p| (p, p))
            .collect(),
        _ => Vec::new(),
    };
    found.retain(|(target, _)| !target.is_empty());
    found
}

fn token(of: &Value, path: &Path, errors: &mut ErrorList) {
    let seconds = int_at(of, &["expirationSeconds"]).unwrap_or(0);
    let at_seconds = path.child("expirationSeconds");
    if seconds < 600 {
        let fault = "may not specify a duration less than 10 minutes";
        errors.push(FieldError::invalid(&at_seconds, seconds, fault));
    }
    if seconds > 1 << 32 {
        let fault = "may not specify a duration larger than 2^32 seconds";
        errors.push(FieldError::invalid(&at_seconds, seconds, fault));
    }
    required(of, "path", path, errors);
    not_stepping_out(str_at(of, &["path"]), &path.child("path"), errors);
}

fn trust_bundle(of: &Value, path: &Path, errors: &mut ErrorList) {
    match (has(of, &["name"]), has(of, &["signerName"])) {
        (true, true) => {
            let fault = "only one of name and signerName may be used";
            errors.push(FieldError::invalid(path, of.clone(), fault));
        }
        (true, false) => {
            let name = str_at(of, &["name"]);
            let at_name = path.child("name");
            if name.is_empty() {
                let why = "must be a valid object name";
                errors.push(FieldError::required(&at_name, why));
            }
            // What stands before the last colon is the signer whose bundle it is.
            let signer = name.rsplit_once(':').map(|(s, _)| s.replace(':', "/"));
            let faults = faults_of_name(name, &signer.unwrap_or_default()).into_iter();
            let faults = faults.map(|f| format!("not a valid clustertrustbundlename: {f}"));
            errors.extend(invalid_each(&at_name, name, faults.collect()));
            let selector = at(of, &["labelSelector"]);
            if !selector.is_null() {
                let fault = "labelSelector must be unset if name is specified";
                let path = path.child("labelSelector");
                errors.push(FieldError::invalid(&path, selector.clone(), fault));
            }
        }
        (false, true) => {
            let at_signer = path.child("signerName");
            signer_name(str_at(of, &["signerName"]), &at_signer, errors);
            let selector = at(of, &["labelSelector"]);
            label_selector(selector, &path.child("labelSelector"), errors);
        }
        (false, false) => {
            let why = "either name or signerName must be specified";
            errors.push(FieldError::required(path, why));
        }
    }
    required(of, "path", path, errors);
    not_stepping_out(str_at(of, &["path"]), &path.child("path"), errors);
}

/// Where a certificate and its key may be written.
const PATHS: [&str; 3] = ["credentialBundlePath", "keyPath", "certificateChainPath"];

fn certificate(of: &Value, path: &Path, errors: &mut ErrorList) {
    let signer = str_at(of, &["signerName"]);
    signer_name(signer, &path.child("signerName"), errors);
    let asked = at(of, &["userAnnotations"]);
    user_annotations(asked, &path.child("userAnnotations"), errors);
    let key = str_at(of, &["keyType"]);
    if !KEYS.contains(&key) {
        let path = path.child("keyType");
        errors.push(FieldError::not_supported(&path, key, &KEYS));
    }
    if let Some(seconds) = int_at(of, &["maxExpirationSeconds"]) {
        let domain = signer.split('/').next().unwrap_or_default();
        let own = domain == "kubernetes.io" || domain.ends_with(".kubernetes.io");
        let (least, most) = (EXPIRATION.0, if own { EXPIRATION.2 } else { EXPIRATION.1 });
        let mut invalid = |bound: String| {
            let fault = format!("if provided, maxExpirationSeconds must be {bound}");
            let path = path.child("maxExpirationSeconds");
            errors.push(FieldError::invalid(&path, seconds, fault));
        };
        if seconds < least {
            invalid(format!(">= {least}"));
        }
        if seconds > most {
            invalid(format!("<= {most}"));
        }
    }
    let given = PATHS.map(|key| (key, str_at(of, &[key])));
    let mut given = given.into_iter().filter(|(_, p)| !p.is_empty()).peekable();
    if given.peek().is_none() {
        let why = "specify at least one of credentialBundlePath, keyPath, and certificateChainPath";
        errors.push(FieldError::required(path, why));
    }
    for (key, target) in given {
        not_stepping_out(target, &path.child(key), errors);
    }
}

/// Faults of what a pod tells the signer of its certificate beside.
pub(in super::super) fn user_annotations(all: &Value, path: &Path, errors: &mut ErrorList) {
    let mut size = 0;
    for (key, value) in all.as_object().into_iter().flatten() {
        size += key.len() + value.as_str().unwrap_or_default().len();
        let key = key.to_lowercase();
        let mut faults = names::check_qualified_name(&key);
        if key.is_empty() {
            errors.push(FieldError::required(path, ""));
            continue;
        }
        if faults.is_empty() && !key.contains('/') {
            let fault = "must be a domain-prefixed key (such as \"acme.io/foo\")";
            faults.push(fault.to_owned());
        }
        errors.extend(invalid_each(path, &key, faults));
    }
    if size > ANNOTATIONS {
        errors.push(FieldError::too_long(path, ANNOTATIONS));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn faults(sources: Value) -> Vec<String> {
        let mut errors = ErrorList::new();
        validate(&json!({"sources": sources}), &Path::new("v"), &mut errors);
        let texts = errors.iter().map(|e| format!("{}: {}", e.field, e.body()));
        texts.collect()
    }

    fn certificate(change: Value) -> Value {
        let mut of = json!({"signerName": "example.com/s", "keyType": "ED25519", "keyPath": "key"});
        for (key, value) in change.as_object().unwrap() {
            of[key] = value.clone();
        }
        json!([{"podCertificate": of}])
    }

    #[test]
    fn no_source_leaves_the_volume_or_hides_another() {
        let good = json!([
            {"podCertificate": {"signerName": "example.com/s", "keyType": "RSA3072", "maxExpirationSeconds": 3600,
                "credentialBundlePath": "a/bundle", "userAnnotations": {"Example.com/x": "y"}}},
            {"clusterTrustBundle": {"signerName": "example.com/s", "labelSelector": {"matchLabels": {"a": "b"}}, "path": "a/roots"}},
            {"clusterTrustBundle": {"name": "example.com:s:x", "path": "b"}},
            {"clusterTrustBundle": {"name": "plain", "path": "c"}},
            {"secret": {"name": "s", "items": [{"key": "k", "path": "d"}]}},
        ]);
        assert_eq!(faults(good), Vec::<String>::new());
        let at = "v.sources[0].podCertificate";
        for key in PATHS {
            for (target, fault) in [
                ("/etc/x", "must be a relative path"),
                ("a/../../x", "must not contain '..'"),
                ("..data", "must not start with '..'"),
            ] {
                let expected = format!("{at}.{key}: Invalid value: {target:?}: {fault}");
                assert_eq!(faults(certificate(json!({key: target}))), [expected]);
            }
        }
        let bundle = |path: &str| json!([{"clusterTrustBundle": {"name": "n", "path": path}}]);
        assert_eq!(
            faults(bundle("../x")),
            [
                "v.sources[0].clusterTrustBundle.path: Invalid value: \"../x\": must not contain '..'"
            ]
        );
        assert_eq!(
            faults(bundle("")),
            ["v.sources[0].clusterTrustBundle.path: Required value"]
        );
        let twice = json!([
            {"secret": {"name": "s", "items": [{"key": "k", "path": "x"}]}},
            {"clusterTrustBundle": {"name": "n", "path": "x"}},
            {"podCertificate": {"signerName": "example.com/s", "keyType": "ED25519", "keyPath": "x", "certificateChainPath": "x"}},
            {"downwardAPI": {"items": [{"path": "x", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}]}},
            {"configMap": {"name": "c", "items": [{"key": "k", "path": "x"}]}},
        ]);
        let duplicate =
            |name: &str| format!("v: Invalid value: {name:?}: conflicting duplicate paths");
        let expected = ["x", "x", "x", "x", "c"].map(duplicate);
        assert_eq!(faults(twice), expected);
    }

    #[test]
    fn certificates_are_ones_that_can_be_asked_for() {
        let at = "v.sources[0].podCertificate";
        let none = faults(certificate(json!({"keyPath": null})));
        let why = "specify at least one of credentialBundlePath, keyPath, and certificateChainPath";
        assert_eq!(none, [format!("{at}: Required value: {why}")]);
        for (change, expected) in [
            (
                json!({"signerName": "x"}),
                "signerName: Invalid value: \"x\": must be a fully qualified domain and path of the form 'example.com/signer-name'",
            ),
            (
                json!({"keyType": "DSA"}),
                "keyType: Unsupported value: \"DSA\": supported values: \"ECDSAP256\", \"ECDSAP384\", \"ECDSAP521\", \"ED25519\", \"RSA3072\", \"RSA4096\"",
            ),
            (
                json!({"maxExpirationSeconds": 3599}),
                "maxExpirationSeconds: Invalid value: 3599: if provided, maxExpirationSeconds must be >= 3600",
            ),
            (
                json!({"maxExpirationSeconds": 7_862_401}),
                "maxExpirationSeconds: Invalid value: 7862401: if provided, maxExpirationSeconds must be <= 7862400",
            ),
            (
                json!({"maxExpirationSeconds": 86_401, "signerName": "kubernetes.io/x"}),
                "maxExpirationSeconds: Invalid value: 86401: if provided, maxExpirationSeconds must be <= 86400",
            ),
            (
                json!({"userAnnotations": {"x": ""}}),
                "userAnnotations: Invalid value: \"x\": must be a domain-prefixed key (such as \"acme.io/foo\")",
            ),
        ] {
            assert_eq!(faults(certificate(change)), [format!("{at}.{expected}")]);
        }
    }

    #[test]
    fn a_bundle_is_a_signers_or_has_a_name() {
        let at = "v.sources[0].clusterTrustBundle";
        let of = |change: Value| {
            let mut of = json!({"path": "p"});
            for (key, value) in change.as_object().unwrap() {
                of[key] = value.clone();
            }
            faults(json!([{"clusterTrustBundle": of}]))
        };
        assert_eq!(
            of(json!({})),
            [format!(
                "{at}: Required value: either name or signerName must be specified"
            )]
        );
        let both = of(json!({"name": "n", "signerName": "example.com/s"}));
        assert!(
            both[0].ends_with("only one of name and signerName may be used"),
            "{both:?}"
        );
        let selected = of(json!({"name": "n", "labelSelector": {}}));
        assert!(
            selected[0].starts_with(&format!("{at}.labelSelector: Invalid value")),
            "{selected:?}"
        );
        assert!(selected[0].ends_with("labelSelector must be unset if name is specified"));
        let name = of(json!({"name": "../x"}));
        assert!(
            name[0].starts_with(&format!(
                "{at}.name: Invalid value: \"../x\": not a valid clustertrustbundlename: "
            )),
            "{name:?}"
        );
    }
}
