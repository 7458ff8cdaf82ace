//! Looking at keys and certificates without making any.

use std::path::Path;

use jiff::Timestamp;
use rcgen::KeyPair;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::store::read_optional;
use crate::{PkiError, belongs, first_certificate};

/// What there is in a PKI directory.
#[derive(Debug, Default)]
pub struct PkiSummary {
    /// Authorities.
    pub authorities: usize,
    /// What the next start cannot mend by itself, a sentence each. Damaged certificates of the parts are none: they are made anew.
    pub faults: Vec<String>,
}

/// The authorities of a cluster: what they have signed is worth as much as they are.
const AUTHORITIES: [&str; 2] = ["ca", "front-proxy/ca"];

/// Reads the keys and certificates of a PKI directory.
///
/// # Errors
/// A file is there and cannot be read.
pub fn examine(dir: &Path, now: Timestamp) -> Result<PkiSummary, PkiError> {
    let mut summary = PkiSummary::default();
    for name in AUTHORITIES {
        let certificate = read_optional(&dir.join(format!("{name}.crt")))?;
        let key = read_optional(&dir.join(format!("{name}.key")))?;
        summary.authorities += usize::from(certificate.is_some());
        let fault = match (certificate, key) {
            (Some(certificate), Some(key)) => authority_fault(&certificate, &key, now),
            (Some(_), None) => Some("the key is missing: the next start makes another authority, whose clients nobody knows".to_owned()),
            (None, Some(_)) => Some("the certificate is missing: the next start makes another authority, whose clients nobody knows".to_owned()),
            // The front proxy's is made when it is needed.
            (None, None) => (name == "ca").then(|| "there is none".to_owned()),
        };
        summary
            .faults
            .extend(fault.map(|fault| format!("authority {name}: {fault}")));
    }
    let signer = read_optional(&dir.join("sa.key"))?;
    match signer.map(|key| KeyPair::from_pem(&key).is_ok()) {
        Some(true) => {}
        Some(false) => summary.faults.push(
            "sa.key: this is no key; tokens of service accounts cannot be signed".to_owned(),
        ),
        None => summary.faults.push(
            "sa.key is missing: the next start makes another, and tokens that pods have are refused until they are renewed"
                .to_owned(),
        ),
    }
    Ok(summary)
}

fn authority_fault(certificate: &str, key: &str, now: Timestamp) -> Option<String> {
    let der = first_certificate(certificate);
    let Some((_, parsed)) = der
        .as_ref()
        .and_then(|der| X509Certificate::from_der(der).ok())
    else {
        return Some("this is no certificate".to_owned());
    };
    let Ok(key) = KeyPair::from_pem(key) else {
        return Some("its key cannot be read".to_owned());
    };
    if !belongs(&key, certificate) {
        return Some("the key is not that of the certificate".to_owned());
    }
    let ends = parsed.validity().not_after.timestamp();
    (ends <= now.as_second()).then(|| format!("it has ended ({})", parsed.validity().not_after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pki;

    fn faults(dir: &Path) -> Vec<String> {
        examine(dir, Timestamp::now()).unwrap().faults
    }

    #[test]
    fn what_a_start_cannot_mend_is_a_fault() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert!(faults(dir)[0].starts_with("authority ca: there is none"));
        let pki = Pki::open(dir).unwrap();
        pki.admin().unwrap();
        pki.front_proxy().unwrap();
        pki.service_account_key().unwrap();
        let whole = examine(dir, Timestamp::now()).unwrap();
        assert!(whole.faults.is_empty(), "{:?}", whole.faults);
        assert_eq!(whole.authorities, 2);
        let later = Timestamp::now() + jiff::SignedDuration::from_hours(30 * 366 * 24);
        assert!(examine(dir, later).unwrap().faults[0].contains("it has ended"));

        // What is made anew is no fault.
        std::fs::write(dir.join("admin.crt"), "x").unwrap();
        assert!(faults(dir).is_empty());
        let key = std::fs::read(dir.join("ca.key")).unwrap();
        std::fs::write(
            dir.join("ca.key"),
            std::fs::read(dir.join("sa.key")).unwrap(),
        )
        .unwrap();
        assert!(faults(dir)[0].contains("not that of the certificate"));
        std::fs::remove_file(dir.join("ca.key")).unwrap();
        assert!(faults(dir)[0].contains("the key is missing"));
        std::fs::write(dir.join("ca.key"), key).unwrap();
        std::fs::write(dir.join("sa.key"), "x").unwrap();
        assert!(faults(dir)[0].starts_with("sa.key: this is no key"));
    }
}
