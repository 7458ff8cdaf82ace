//! ClusterTrustBundles (KEP-3257): certificates of authorities, of a signer or of nobody in particular.

use std::collections::BTreeMap;

use base64::Engine as _;
use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use serde_json::Value;

use super::json::{at, same, str_at};
use super::signers::{SIGNER_FIELDS, signer_fields};
use super::{KindInfo, Strategy, meta};

/// Bytes of a bundle.
const MAX: usize = 1024 * 1024;
/// Shown in place of a bundle.
const OMITTED: &str = "<value omitted>";

pub(super) struct TrustBundle(pub(super) KindInfo);

impl Strategy for TrustBundle {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        errors.extend(name_and_signer(obj));
        errors.extend(bundle(str_at(obj, &["spec", "trustBundle"])));
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        errors.extend(name_and_signer(new));
        let path = ["spec", "trustBundle"];
        if !same(at(new, &path), at(old, &path)) {
            errors.extend(bundle(str_at(new, &path)));
        }
        meta::immutable_at(new, old, &["spec", "signerName"], &mut errors);
        errors
    }

    fn field_names(&self) -> &'static [&'static str] {
        SIGNER_FIELDS
    }

    fn fields(&self, obj: &Value) -> Vec<(&'static str, String)> {
        signer_fields(obj)
    }
}

/// Faults of the name of a signer's bundle, or, where `signer` is empty, of nobody's.
pub(super) fn faults_of_name(name: &str, signer: &str) -> Vec<String> {
    if !signer.is_empty() {
        let prefix = format!("{}:", signer.replace('/', ":"));
        return match name.strip_prefix(&prefix) {
            Some(rest) => names::check_dns1123_subdomain(rest),
            None => vec![format!(
                "ClusterTrustBundle for signerName {signer} must be named with prefix {prefix}"
            )],
        };
    }
    if name.contains(':') {
        let fault = "ClusterTrustBundle without signer name must not have \":\" in its name";
        return vec![fault.to_owned()];
    }
    names::check_dns1123_subdomain(name)
}

/// The name of a signer's bundle begins with the signer.
fn name_and_signer(obj: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let name = str_at(obj, &["metadata", "name"]);
    let at_name = Path::new("metadata").child("name");
    let signer = str_at(obj, &["spec", "signerName"]);
    if !name.is_empty() {
        let faults = faults_of_name(name, signer);
        errors.extend(invalid_each(&at_name, name, faults));
    }
    if signer.is_empty() {
        return errors;
    }
    if signer.split('/').count() != 2 || signer.split('/').any(str::is_empty) {
        let path = Path::new("spec").child("signerName");
        let fault =
            "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        errors.push(FieldError::invalid(&path, signer, fault));
    }
    errors
}

fn bundle(text: &str) -> ErrorList {
    let path = Path::new("spec").child("trustBundle");
    if text.len() > MAX {
        return vec![FieldError::too_long(&path, MAX)];
    }
    let invalid = |fault: String| FieldError::invalid(&path, OMITTED, fault);
    let mut errors = ErrorList::new();
    let mut places: BTreeMap<Vec<u8>, Vec<usize>> = BTreeMap::new();
    for (index, block) in blocks(text).into_iter().enumerate() {
        match fault(&block) {
            Some(fault) => errors.push(invalid(format!("entry {index} {fault}"))),
            None => places.entry(block.der).or_default().push(index),
        }
    }
    if !errors.is_empty() {
        return errors;
    }
    if places.is_empty() {
        errors.push(invalid(
            "at least one trust anchor must be provided".to_owned(),
        ));
    }
    for indices in places.values().filter(|indices| indices.len() > 1) {
        let list: Vec<String> = indices.iter().map(usize::to_string).collect();
        errors.push(invalid(format!(
            "duplicate trust anchor (indices [{}])",
            list.join(" ")
        )));
    }
    errors
}

/// What is wrong with one certificate.
fn fault(block: &Block<'_>) -> Option<String> {
    if block.label != "CERTIFICATE" {
        return Some(format!("has bad block type: {}", block.label));
    }
    if block.has_headers {
        return Some("has PEM block headers".to_owned());
    }
    let parsed = x509_parser::parse_x509_certificate(&block.der);
    let Ok((rest, certificate)) = parsed else {
        return Some("does not parse as X.509".to_owned());
    };
    if !rest.is_empty() {
        return Some("does not parse as X.509".to_owned());
    }
    (!certificate.is_ca()).then(|| "does not have the CA bit set".to_owned())
}

/// One block of a PEM text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Block<'a> {
    pub(super) label: &'a str,
    pub(super) has_headers: bool,
    pub(super) der: Vec<u8>,
}

/// The well-formed blocks of a PEM text; what is between them, and what is malformed, is passed over.
pub(super) fn blocks(text: &str) -> Vec<Block<'_>> {
    let mut found = Vec::new();
    // label, headers, encoded
    let mut open: Option<(&str, bool, String)> = None;
    for line in text.lines().map(str::trim_end) {
        if let Some(label) = boundary(line, "-----BEGIN ") {
            open = Some((label, false, String::new()));
            continue;
        }
        let Some((label, has_headers, encoded)) = &mut open else {
            continue;
        };
        let Some(end) = boundary(line, "-----END ") else {
            if line.contains(": ") {
                *has_headers = true;
            } else {
                encoded.push_str(line.trim());
            }
            continue;
        };
        let der = base64::engine::general_purpose::STANDARD.decode(encoded);
        found.extend(der.ok().filter(|_| end == *label).map(|der| Block {
            label,
            has_headers: *has_headers,
            der,
        }));
        open = None;
    }
    found
}

/// The label of a line that begins or ends a block.
fn boundary<'a>(line: &'a str, begin: &str) -> Option<&'a str> {
    line.strip_prefix(begin)?.strip_suffix("-----")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pem(ca: bool) -> String {
        let mut params = rcgen::CertificateParams::default();
        if ca {
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        }
        let key = rcgen::KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().pem()
    }

    fn faults(text: &str) -> Vec<String> {
        bundle(text).iter().map(FieldError::body).collect()
    }

    #[test]
    fn bundles_hold_certificates_of_authorities() {
        let (ca, leaf) = (pem(true), pem(false));
        let of = |fault: &str| vec![format!("Invalid value: \"<value omitted>\": {fault}")];
        assert!(faults(&format!("a comment\n{ca}\nand\n{}", pem(true))).is_empty());
        assert_eq!(
            faults("nothing"),
            of("at least one trust anchor must be provided")
        );
        assert_eq!(faults(&leaf), of("entry 0 does not have the CA bit set"));
        let twice = format!("{ca}\n{ca}");
        assert_eq!(faults(&twice), of("duplicate trust anchor (indices [0 1])"));
        let key = ca.replace("CERTIFICATE", "PRIVATE KEY");
        assert_eq!(
            faults(&format!("{ca}\n{key}")),
            of("entry 1 has bad block type: PRIVATE KEY")
        );
        let headed = ca.replacen("-----\n", "-----\nA: b\n\n", 1);
        let headed = headed.replacen("-----\r\n", "-----\r\nA: b\r\n\r\n", 1);
        assert_eq!(faults(&headed), of("entry 0 has PEM block headers"));
        let text = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----";
        assert_eq!(faults(text), of("entry 0 does not parse as X.509"));
        let broken =
            "-----BEGIN CERTIFICATE-----\nAA!\n-----END CERTIFICATE-----\n-----BEGIN X-----";
        assert!(faults(&format!("{broken}\n{ca}")).is_empty());
        assert_eq!(bundle(&"x".repeat(MAX + 1)).len(), 1);
    }

    #[test]
    fn names_begin_with_the_signer() {
        let check = |name: &str, signer: &str| -> Vec<String> {
            let object = serde_json::json!({
                "metadata": { "name": name }, "spec": { "signerName": signer },
            });
            let errors = name_and_signer(&object);
            errors.iter().map(|e| e.field.clone()).collect()
        };
        assert!(check("a", "").is_empty());
        assert!(check("example.com:s:a", "example.com/s").is_empty());
        assert_eq!(check("a:b", ""), ["metadata.name"]);
        assert_eq!(check("a", "example.com/s"), ["metadata.name"]);
        assert_eq!(check("example.com:s:_", "example.com/s"), ["metadata.name"]);
        assert_eq!(check("nodomain:a", "nodomain"), ["spec.signerName"]);
    }
}
