//! PodCertificateRequests (KEP-4317): what a node asks for in the name of a pod, and what a signer answers. That the key is
//! its asker's own is for the signer to check: signatures are not verified here.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use serde_json::Value;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer as _;

use super::json::{at, has, int_at, is_empty, list_at, same, str_at};
use super::signers::signer_name;
use super::volumes::user_annotations;
use super::{KindInfo, Strategy, access, meta, status_conditions};

const FIELDS: &[&str] = &["spec.podName", "spec.nodeName", "spec.signerName"];
/// Bytes of a uid.
const LONGEST_UID: usize = 128;
/// Bytes of a request, of a key, of a proof.
const LONGEST_REQUEST: usize = 10 * 1024;
const LONGEST_CHAIN: usize = 100 * 1024;
const HOUR: i64 = 3600;
/// The conditions with which a request is answered.
const ANSWERS: [&str; 3] = ["Issued", "Denied", "Failed"];

pub(super) struct PodCertificateRequest(pub(super) KindInfo);

impl Strategy for PodCertificateRequest {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        request(at(obj, &["spec"]), &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        meta::immutable_at(new, old, &["spec"], &mut errors);
        errors
    }

    fn prepare_status_update(&self, new: &mut Value, old: &Value) {
        access::keep_all_but_status(new, old);
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        if errors.is_empty() {
            answer(new, old, &mut errors);
        }
        errors
    }

    fn field_names(&self) -> &'static [&'static str] {
        FIELDS
    }

    fn fields(&self, obj: &Value) -> Vec<(&'static str, String)> {
        let value = |field: &&'static str| {
            let parts: Vec<&str> = field.split('.').collect();
            (*field, str_at(obj, &parts).to_owned())
        };
        FIELDS.iter().map(value).collect()
    }
}

fn request(spec: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec");
    let signer = str_at(spec, &["signerName"]);
    signer_name(signer, &path.child("signerName"), errors);
    let part = "unverifiedUserAnnotations";
    user_annotations(at(spec, &[part]), &path.child(part), errors);
    for (name, uid) in [
        ("podName", "podUID"),
        ("serviceAccountName", "serviceAccountUID"),
        ("nodeName", "nodeUID"),
    ] {
        let text = str_at(spec, &[name]);
        let faults = names::check_dns1123_subdomain(text);
        errors.extend(invalid_each(&path.child(name), text, faults));
        let (text, path) = (str_at(spec, &[uid]), path.child(uid));
        if text.is_empty() {
            errors.push(FieldError::invalid(&path, text, "must not be empty"));
        } else if text.len() > LONGEST_UID {
            errors.push(FieldError::too_long(&path, LONGEST_UID));
        }
    }
    let at_seconds = path.child("maxExpirationSeconds");
    let Some(seconds) = int_at(spec, &["maxExpirationSeconds"]) else {
        errors.push(FieldError::required(&at_seconds, "must be set"));
        return;
    };
    let is_kubernetes = signer
        .split_once('/')
        .is_some_and(|(domain, _)| domain == "kubernetes.io" || domain.ends_with(".kubernetes.io"));
    let most = if is_kubernetes { 24 } else { 91 * 24 } * HOUR;
    if !(HOUR..=most).contains(&seconds) {
        let fault = format!("must be in the range [{HOUR}, {most}]");
        errors.push(FieldError::invalid(&at_seconds, seconds, fault));
    }
    key(spec, &path, errors);
}

/// The key comes in a request, or alone with a proof.
fn key(spec: &Value, path: &Path, errors: &mut ErrorList) {
    const MODULUS: [usize; 2] = [3072, 4096];
    let parts = ["stubPKCS10Request", "pkixPublicKey", "proofOfPossession"];
    let given = parts.map(|part| !is_empty(at(spec, &[part])));
    if given != [true, false, false] && given != [false, true, true] {
        let fault =
            "exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set";
        errors.push(FieldError::invalid_unshown(path, fault));
        return;
    }
    let bytes = parts.map(|part| STANDARD.decode(str_at(spec, &[part])).unwrap_or_default());
    let long = parts
        .iter()
        .zip(&bytes)
        .find(|(_, b)| b.len() > LONGEST_REQUEST);
    if let Some((part, _)) = long {
        errors.push(FieldError::too_long(&path.child(part), LONGEST_REQUEST));
        return;
    }
    let (path, parsed) = if given[0] {
        let parsed = X509CertificationRequest::from_der(&bytes[0]).ok();
        let key = parsed.map(|(_, request)| request.certification_request_info.subject_pki);
        (path.child(parts[0]), key)
    } else {
        let parsed = x509_parser::x509::SubjectPublicKeyInfo::from_der(&bytes[1]).ok();
        (path.child(parts[1]), parsed.map(|(_, key)| key))
    };
    let Some(key) = parsed else {
        errors.push(match given[0] {
            true => FieldError::invalid_unshown(&path, "must be a valid PKCS#10 CSR"),
            false => {
                let shown = str_at(spec, &[parts[1]]);
                FieldError::invalid(&path, shown, "must be a valid PKIX-serialized public key")
            }
        });
        return;
    };
    match Key::of(&key) {
        Key::Good => {}
        Key::Rsa(bits) if MODULUS.contains(&bits) => {}
        Key::Rsa(bits) => {
            let fault = "RSA keys must have modulus size 3072 or 4096";
            errors.push(FieldError::invalid(
                &path,
                format!("{bits}-bit modulus"),
                fault,
            ));
        }
        Key::Other => {
            let fault = "unknown public key type; supported types are Ed25519, ECDSA, and RSA";
            errors.push(FieldError::invalid_unshown(&path, fault));
        }
    }
}

/// What matters of a key.
enum Key {
    /// Ed25519, or of the curves P-256, P-384 and P-521.
    Good,
    /// Bits of the modulus.
    Rsa(usize),
    Other,
}

impl Key {
    fn of(key: &x509_parser::x509::SubjectPublicKeyInfo<'_>) -> Self {
        const CURVES: [&str; 3] = ["1.2.840.10045.3.1.7", "1.3.132.0.34", "1.3.132.0.35"];
        let parameters = key.algorithm.parameters.as_ref();
        let curve = || parameters.and_then(|any| any.as_oid().ok());
        let is_good = || curve().is_some_and(|oid| CURVES.contains(&&*oid.to_id_string()));
        match key.algorithm.algorithm.to_id_string().as_str() {
            "1.3.101.112" => Self::Good,
            "1.2.840.10045.2.1" if is_good() => Self::Good,
            "1.2.840.113549.1.1.1" => match key.parsed() {
                Ok(x509_parser::public_key::PublicKey::RSA(rsa)) => Self::Rsa(rsa.key_size()),
                _ => Self::Other,
            },
            _ => Self::Other,
        }
    }
}

/// Which of the conditions is there with which a request is answered.
fn answered(obj: &Value) -> Option<&str> {
    let conditions = list_at(obj, &["status", "conditions"]).iter();
    let mut kinds = conditions.map(|condition| str_at(condition, &["type"]));
    kinds.find(|kind| ANSWERS.contains(kind))
}

/// A request is answered once, with one condition; a refusal says nothing else.
fn answer(new: &Value, old: &Value, errors: &mut ErrorList) {
    let path = Path::new("status");
    let at_conditions = path.child("conditions");
    let conditions = list_at(new, &["status", "conditions"]);
    let mut known = 0;
    for (i, condition) in conditions.iter().enumerate() {
        let (kind, path) = (str_at(condition, &["type"]), at_conditions.index(i));
        if !ANSWERS.contains(&kind) {
            errors.push(FieldError::not_supported(
                &path.child("type"),
                kind,
                &ANSWERS,
            ));
            continue;
        }
        known += 1;
        if known > 1 {
            let fault = "There may be at most one condition with type \"Issued\", \"Denied\", or \"Failed\"";
            errors.push(FieldError::invalid(&path.child("type"), kind, fault));
        }
        let status = str_at(condition, &["status"]);
        if status != "True" {
            errors.push(FieldError::not_supported(
                &path.child("status"),
                status,
                &["True"],
            ));
        }
    }
    status_conditions::validate(conditions, &at_conditions, errors);
    if !errors.is_empty() {
        return;
    }
    let (status, before) = (at(new, &["status"]), at(old, &["status"]));
    if answered(old).is_some() {
        if !same(status, before) {
            let fault = "immutable after PodCertificateRequest is issued, denied, or failed";
            errors.push(FieldError::invalid_unshown(&path, fault));
        }
        return;
    }
    let others = status.as_object().into_iter().flatten();
    let others = others.filter(|(key, value)| *key != "conditions" && !is_empty(value));
    match answered(new) {
        Some("Issued") => chain(status, &path, errors),
        Some(_) if others.count() > 0 => {
            let fault = "non-condition status fields must be empty when denying or failing the PodCertificateRequest";
            errors.push(FieldError::invalid_unshown(&path, fault));
        }
        None if !same(status, before) => {
            let fault =
                "status is immutable unless transitioning to \"Issued\", \"Denied\", or \"Failed\"";
            errors.push(FieldError::invalid_unshown(&path, fault));
        }
        _ => {}
    }
}

/// The certificates that are issued, and when they begin, are renewed and end.
fn chain(status: &Value, path: &Path, errors: &mut ErrorList) {
    let text = str_at(status, &["certificateChain"]);
    let at_chain = path.child("certificateChain");
    if text.len() > LONGEST_CHAIN {
        errors.push(FieldError::too_long(&at_chain, LONGEST_CHAIN));
        return;
    }
    let blocks = super::trust_bundles::blocks(text);
    let fault = if blocks.is_empty() {
        "issued certificate chain must contain at least one certificate"
    } else if blocks.iter().any(|block| block.label != "CERTIFICATE") {
        "issued certificate chain must consist entirely of CERTIFICATE PEM blocks"
    } else if x509_parser::parse_x509_certificate(&blocks[0].der).is_err() {
        "leaf certificate does not parse as valid X.509"
    } else {
        ""
    };
    if !fault.is_empty() {
        errors.push(FieldError::invalid(&at_chain, text, fault));
        return;
    }
    for key in ["notBefore", "notAfter", "beginRefreshAt"] {
        if !has(status, &[key]) {
            let why = "must be present and consistent with the issued certificate";
            errors.push(FieldError::required(&path.child(key), why));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    fn strategy() -> std::sync::Arc<dyn crate::Strategy> {
        crate::strategy("certificates.k8s.io", "v1beta1", "PodCertificateRequest")
    }

    fn texts(errors: &[davit_api::field::FieldError]) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    fn object(change: impl FnOnce(&mut Value)) -> Value {
        let key = rcgen::KeyPair::generate().unwrap();
        let made = rcgen::CertificateParams::default().serialize_request(&key);
        let made = base64::Engine::encode(
            &base64::engine::general_purpose::STANDARD,
            made.unwrap().der(),
        );
        let mut object = json!({
            "metadata": {"name": "r", "namespace": "d", "resourceVersion": "1"},
            "spec": {"signerName": "example.com/s", "podName": "p", "podUID": "u", "serviceAccountName": "s",
                "serviceAccountUID": "v", "nodeName": "n", "nodeUID": "w", "maxExpirationSeconds": 3600, "stubPKCS10Request": made},
        });
        change(&mut object);
        object
    }

    #[test]
    fn a_request_names_whom_it_is_for_and_brings_one_key() {
        let of = |change: fn(&mut Value)| texts(&strategy().validate(&object(change)));
        assert_eq!(of(|_| {}), [""; 0]);
        assert_eq!(
            of(|o| {
                o["spec"]["podUID"] = json!("");
                o["spec"]["maxExpirationSeconds"] = json!(1);
                o["spec"]["pkixPublicKey"] = json!("YQ==");
            }),
            [
                "spec.podUID: Invalid value: \"\": must not be empty",
                "spec.maxExpirationSeconds: Invalid value: 1: must be in the range [3600, 7862400]",
                "spec: Invalid value: exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set",
            ]
        );
        assert_eq!(
            of(|o| o["spec"]["stubPKCS10Request"] = json!("YQ==")),
            ["spec.stubPKCS10Request: Invalid value: must be a valid PKCS#10 CSR"]
        );
    }

    #[test]
    fn what_is_asked_for_stays() {
        let old = object(|_| {});
        let mut new = old.clone();
        new["spec"]["nodeName"] = json!("other");
        let told = texts(&strategy().validate_update(&new, &old));
        assert!(
            told.len() == 1 && told[0].ends_with("field is immutable"),
            "{told:?}"
        );
    }

    #[test]
    fn a_request_is_answered_once() {
        let old = object(|_| {});
        let with = |status: Value| {
            let mut new = old.clone();
            new["status"] = status;
            new
        };
        let of = |status: Value, old: &Value| {
            texts(&strategy().validate_status_update(&with(status), old))
        };
        let condition = |kind: &str, status: &str| {
            json!({"type": kind, "status": status, "reason": "R", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        let denied = json!({"conditions": [condition("Denied", "True")]});
        assert_eq!(of(denied.clone(), &old), [""; 0]);
        assert_eq!(
            of(
                json!({"conditions": [condition("Denied", "False"), condition("X", "True")]}),
                &old
            ),
            [
                "status.conditions[0].status: Unsupported value: \"False\": supported values: \"True\"",
                "status.conditions[1].type: Unsupported value: \"X\": supported values: \"Issued\", \"Denied\", \"Failed\"",
            ]
        );
        let issued = json!({"conditions": [condition("Issued", "True")], "certificateChain": "x"});
        assert_eq!(
            of(issued.clone(), &old),
            [
                "status.certificateChain: Invalid value: \"x\": issued certificate chain must contain at least one certificate"
            ]
        );
        assert_eq!(
            of(json!({"certificateChain": "x"}), &old),
            [
                "status: Invalid value: status is immutable unless transitioning to \"Issued\", \"Denied\", or \"Failed\""
            ]
        );
        let told = of(issued, &with(denied));
        assert!(
            told.len() == 1 && told[0].contains("immutable after"),
            "{told:?}"
        );
    }
}
