//! Requests for certificates: CertificateSigningRequests, and the certificates they are answered with.

use std::collections::HashSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use davit_api::field::{ErrorList, FieldError, Path, quote};
use serde_json::{Value, json};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer as _;

use super::fields::required;
use super::json::{at, at_mut, int_at, is_empty, keep, list_at, repeats, same, set, str_at};
use super::signers::{SIGNER_FIELDS, signer_fields, signer_name};
use super::trust_bundles::blocks;
use super::{KindInfo, Strategy, access, meta};

/// What keys may be used for.
const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

const APPROVED: &str = "Approved";
const DENIED: &str = "Denied";
const LEGACY: &str = "kubernetes.io/legacy-unknown";

pub(super) struct SigningRequest(pub(super) KindInfo);

impl Strategy for SigningRequest {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        if let Some(spec) = at_mut(obj, &["spec"])
            && list_at(spec, &["usages"]).is_empty()
            && self.0.version != "v1"
        {
            let usages = json!(["digital signature", "key encipherment"]);
            set(spec, "usages", usages);
        }
        // that there are none needs no list
        if let Some(status) = at_mut(obj, &["status"])
            && at(status, &["conditions"])
                .as_array()
                .is_some_and(Vec::is_empty)
        {
            super::json::remove(status, "conditions");
        }
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value) {
        keep(new, old, "spec");
        keep(new, old, "status");
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        self.content(obj, None, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        self.content(new, Some(old), &mut errors);
        errors
    }

    /// Approval writes the conditions Approved and Denied, status everything else.
    fn prepare_subresource_update(&self, subresource: &str, new: &mut Value, old: &Value) {
        let written = at(new, &["status"]).clone();
        access::keep_all_but_status_and_metadata(new, old);
        let decided = |c: &&Value| matches!(str_at(c, &["type"]), APPROVED | DENIED);
        let (conditions, mut status) = if subresource == "approval" {
            let conditions = at(&written, &["conditions"]).clone();
            (conditions, at(old, &["status"]).clone())
        } else {
            let stored = list_at(old, &["status", "conditions"])
                .iter()
                .filter(decided);
            let others = list_at(&written, &["conditions"])
                .iter()
                .filter(|c| !decided(c));
            (stored.chain(others).cloned().collect(), written)
        };
        if status.is_null() {
            status = json!({});
        }
        if is_empty(&conditions) {
            super::json::remove(&mut status, "conditions");
        } else {
            set(&mut status, "conditions", conditions);
        }
        set(new, "status", status);
    }

    fn prepare_status_update(&self, new: &mut Value, old: &Value) {
        self.prepare_subresource_update("status", new, old);
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> ErrorList {
        self.validate_subresource_update("status", new, old)
    }

    fn validate_subresource_update(
        &self,
        _subresource: &str,
        new: &Value,
        old: &Value,
    ) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        self.content(new, Some(old), &mut errors);
        let path = Path::new("status").child("conditions");
        for kind in [APPROVED, DENIED, "Failed"] {
            if of_type(new, kind) < of_type(old, kind) {
                let fault = format!("updates may not remove a condition of type {kind:?}");
                errors.push(FieldError::forbidden(&path, fault));
            }
        }
        let [certificate, before] = [new, old].map(|obj| at(obj, &["status", "certificate"]));
        if !is_empty(before) && !same(certificate, before) {
            let path = Path::new("status").child("certificate");
            let why = "updates may not modify existing certificate content";
            errors.push(FieldError::forbidden(&path, why));
        }
        errors
    }

    fn field_names(&self) -> &'static [&'static str] {
        SIGNER_FIELDS
    }

    fn fields(&self, obj: &Value) -> Vec<(&'static str, String)> {
        signer_fields(obj)
    }
}

/// How many conditions of a type there are.
fn of_type(obj: &Value, kind: &str) -> usize {
    let conditions = list_at(obj, &["status", "conditions"]).iter();
    conditions.filter(|c| str_at(c, &["type"]) == kind).count()
}

impl SigningRequest {
    /// What is asked of a request; a fault that the stored one has already is let pass.
    fn content(&self, obj: &Value, old: Option<&Value>, errors: &mut ErrorList) {
        let path = Path::new("spec");
        let spec = at(obj, &["spec"]);
        if let Err(fault) = request(str_at(spec, &["request"])) {
            // none is shown as none
            let given = str_at(spec, &["request"]);
            let value = match given.is_empty() {
                true => Value::Null,
                false => json!(given),
            };
            errors.push(FieldError::invalid(&path.child("request"), value, fault));
        }
        usages(spec, old, &path.child("usages"), errors);
        let signer = str_at(spec, &["signerName"]);
        let at_signer = path.child("signerName");
        let was = old.map(|old| str_at(old, &["spec", "signerName"]));
        if signer == LEGACY && self.0.version == "v1" && was != Some(LEGACY) {
            let fault = "the legacy signerName is not allowed via this API version";
            errors.push(FieldError::invalid(&at_signer, signer, fault));
        } else {
            signer_name(signer, &at_signer, errors);
        }
        let seconds = int_at(spec, &["expirationSeconds"]);
        if let Some(seconds) = seconds.filter(|s| *s < 600) {
            let fault = "may not specify a duration less than 600 seconds (10 minutes)";
            let path = path.child("expirationSeconds");
            errors.push(FieldError::invalid(&path, seconds, fault));
        }
        conditions(obj, old, errors);
        let certificate = str_at(obj, &["status", "certificate"]);
        let before = old.map(|old| str_at(old, &["status", "certificate"]));
        let is_new = before.is_none_or(|old| old != certificate && chain(old).is_ok());
        if let Err(fault) = chain(certificate).or_else(|fault| match is_new {
            true => Err(fault),
            false => Ok(()),
        }) {
            let path = Path::new("status").child("certificate");
            errors.push(FieldError::invalid(&path, "<certificate data>", fault));
        }
    }
}

fn usages(spec: &Value, old: Option<&Value>, path: &Path, errors: &mut ErrorList) {
    let of = |spec: &Value| -> Vec<String> {
        let usages = list_at(spec, &["usages"]).iter();
        usages
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect()
    };
    let is_known = |usage: &String| USAGES.contains(&usage.as_str());
    let usages = of(spec);
    let before = old.map(|old| of(at(old, &["spec"]))).unwrap_or_default();
    if usages.is_empty() {
        errors.push(FieldError::required(path, ""));
    }
    if before.iter().all(is_known) {
        let unknown = usages.iter().enumerate().filter(|(_, u)| !is_known(u));
        errors.extend(
            unknown.map(|(i, u)| FieldError::not_supported(&path.index(i), u.as_str(), &USAGES)),
        );
    }
    if !repeats(&before).contains(&true) {
        let twins = usages.iter().enumerate().zip(repeats(&usages));
        let twins = twins.filter(|(_, is_twin)| *is_twin);
        errors.extend(twins.map(|((i, u), _)| FieldError::duplicate(&path.index(i), u.as_str())));
    }
}

fn conditions(obj: &Value, old: Option<&Value>, errors: &mut ErrorList) {
    let path = Path::new("status").child("conditions");
    let kinds = |obj: &Value| -> Vec<String> {
        let conditions = list_at(obj, &["status", "conditions"]).iter();
        conditions
            .map(|c| str_at(c, &["type"]).to_owned())
            .collect()
    };
    let before = old.map(kinds).unwrap_or_default();
    let had_twins = repeats(&before).contains(&true);
    let before: HashSet<String> = before.into_iter().collect();
    let had = |kind: &str| before.contains(kind);
    let mut seen: HashSet<&str> = HashSet::new();
    for (i, condition) in list_at(obj, &["status", "conditions"]).iter().enumerate() {
        let (at_one, kind) = (path.index(i), str_at(condition, &["type"]));
        if !had("") {
            required(condition, "type", &at_one, errors);
        }
        let allowed: &[&str] = match kind {
            APPROVED | DENIED | "Failed" => &["True"],
            _ => &["False", "True", "Unknown"],
        };
        super::fields::choice(condition, "status", allowed, &at_one, errors);
        let other = match kind {
            APPROVED => DENIED,
            DENIED => APPROVED,
            _ => "-",
        };
        if seen.contains(other) && !(had(APPROVED) && had(DENIED)) {
            let fault = "Approved and Denied conditions are mutually exclusive";
            errors.push(FieldError::invalid(&path, kind, fault));
        }
        if !seen.insert(kind) && !had_twins {
            errors.push(FieldError::duplicate(&at_one.child("type"), kind));
        }
    }
}

/// Whether base64 of PEM holds a request that can be read; what is wrong otherwise.
fn request(encoded: &str) -> Result<(), String> {
    let pem = STANDARD.decode(encoded).unwrap_or_default();
    let text = String::from_utf8_lossy(&pem);
    let block = blocks(&text).into_iter().next();
    let Some(block) = block.filter(|block| block.label == "CERTIFICATE REQUEST") else {
        return Err("PEM block type must be CERTIFICATE REQUEST".to_owned());
    };
    match X509CertificationRequest::from_der(&block.der) {
        Ok(([], _)) => Ok(()),
        Ok(_) => Err("x509: trailing data".to_owned()),
        Err(error) => Err(format!("x509: malformed certificate request: {error}")),
    }
}

/// Whether base64 of PEM is of certificates alone; nothing is well-formed, too.
fn chain(encoded: &str) -> Result<(), String> {
    if encoded.is_empty() {
        return Ok(());
    }
    let pem = STANDARD.decode(encoded).unwrap_or_default();
    let text = String::from_utf8_lossy(&pem);
    let blocks = blocks(&text);
    for block in &blocks {
        if block.label != "CERTIFICATE" {
            let found = quote(block.label);
            return Err(format!(
                "only CERTIFICATE PEM blocks are allowed, found {found}"
            ));
        }
        if block.has_headers {
            return Err("no PEM block headers are permitted".to_owned());
        }
        if x509_parser::parse_x509_certificate(&block.der).is_err() {
            return Err("x509: malformed certificate".to_owned());
        }
    }
    match blocks.is_empty() {
        true => Err("must contain at least one CERTIFICATE PEM block".to_owned()),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{faults, none, status_faults};

    const KIND: (&str, &str, &str) = ("certificates.k8s.io", "v1", "CertificateSigningRequest");

    fn of(change: impl FnOnce(&mut Value)) -> Value {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::default();
        let pem = params.serialize_request(&key).unwrap().pem().unwrap();
        let mut obj = json!({"metadata": {"name": "Any Name"}, "spec": {"request": STANDARD.encode(pem),
            "signerName": "example.com/s", "usages": ["client auth"]}});
        change(&mut obj);
        obj
    }

    #[test]
    fn faults_of_signing_requests() {
        let (group, version, kind) = KIND;
        none(group, version, kind, &of(|_| {}));
        type Change = fn(&mut Value);
        let cases: &[(Change, &str)] = &[
            (
                |o| o["spec"]["request"] = json!("YQ=="),
                "spec.request: Invalid value: \"YQ==\": PEM block type must be CERTIFICATE REQUEST",
            ),
            (
                |o| o["spec"]["usages"] = json!(["any", "any"]),
                "spec.usages[1]: Duplicate value: \"any\"",
            ),
            (
                |o| o["spec"]["usages"] = json!(["x"]),
                "spec.usages[0]: Unsupported value: \"x\": supported values: \"any\",",
            ),
            (
                |o| o["spec"]["signerName"] = json!("example/s"),
                "spec.signerName: Invalid value: \"example\": should be a domain with at least two segments separated by dots",
            ),
            (
                |o| o["spec"]["signerName"] = json!(LEGACY),
                "spec.signerName: Invalid value: \"kubernetes.io/legacy-unknown\": the legacy signerName is not allowed via this API version",
            ),
        ];
        for (change, wanted) in cases {
            let found = faults(group, version, kind, &of(change));
            assert!(found.starts_with(wanted), "{found}");
        }
    }

    #[test]
    fn certificates_in_a_status_are_certificates() {
        let (group, version, kind) = KIND;
        let old = of(|_| {});
        let with = |status: Value| {
            let mut new = old.clone();
            new["status"] = status;
            status_faults(group, version, kind, &new, &old)
        };
        let fault = "status.certificate: Invalid value: \"<certificate data>\": must contain at least one CERTIFICATE PEM block";
        assert_eq!(with(json!({"certificate": "YQ=="})), fault);
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::default();
        let pem = params.self_signed(&key).unwrap().pem();
        assert_eq!(with(json!({"certificate": STANDARD.encode(pem)})), "");
        let failed = json!({"conditions": [{"type": "Failed", "status": "False"}]});
        assert_eq!(
            with(failed),
            "status.conditions[0].status: Unsupported value: \"False\": supported values: \"True\""
        );
    }
}
