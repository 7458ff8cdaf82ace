//! What kinds that name a signer have in common
//! (<https://kubernetes.io/docs/reference/access-authn-authz/certificate-signing-requests/#signers>).

use davit_api::field::{ErrorList, FieldError, Path, quote};
use davit_api::names;
use serde_json::Value;

use super::json::str_at;

/// What kinds that name a signer are selectable by.
pub(super) const SIGNER_FIELDS: &[&str] = &["spec.signerName"];

/// The values of [`SIGNER_FIELDS`].
pub(super) fn signer_fields(obj: &Value) -> Vec<(&'static str, String)> {
    let signer = str_at(obj, &["spec", "signerName"]);
    vec![(SIGNER_FIELDS[0], signer.to_owned())]
}

/// Faults of the name of a signer: a domain, and what it signs for.
pub(super) fn signer_name(signer: &str, path: &Path, errors: &mut ErrorList) {
    const LONGEST: usize = 2 * names::SUBDOMAIN_MAX + names::LABEL_MAX + 2;
    if signer.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    let mut invalid = |value: &str, fault: String| {
        errors.push(FieldError::invalid(path, value, fault));
    };
    let parts: Vec<&str> = signer.split('/').collect();
    let [domain, rest] = parts.as_slice() else {
        let fault =
            "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        return invalid(signer, fault.to_owned());
    };
    let mut first_faulty = |text: &str, check: fn(&str) -> Vec<String>| {
        let mut labels = text.split('.').map(|label| (label, check(label)));
        if let Some((label, faults)) = labels.find(|(_, faults)| !faults.is_empty()) {
            for fault in faults {
                invalid(text, format!("validating label {}: {fault}", quote(label)));
            }
        }
    };
    first_faulty(domain, names::check_dns1123_label);
    first_faulty(rest, names::check_dns1123_subdomain);
    if !domain.contains('.') {
        let fault = "should be a domain with at least two segments separated by dots";
        invalid(domain, fault.to_owned());
    }
    for (text, most) in [(*domain, names::SUBDOMAIN_MAX), (signer, LONGEST)] {
        if text.len() > most {
            errors.push(FieldError::too_long(path, most));
        }
    }
}
