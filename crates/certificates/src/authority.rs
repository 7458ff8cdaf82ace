//! Writing certificates.
//!
//! The subject is written from what was read and judged, the key is taken over from the request: a subject may hold one
//! attribute several times (a user in several organizations, which are groups), which builders of certificates do not
//! provide for.

use crate::request::{Request, RequestError};
use davit_client::subject::Subject;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use rcgen::{KeyPair, PublicKeyData, SigningKey};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// How long certificates are valid unless less is asked for or configured, seconds.
const LONGEST: i64 = 365 * 24 * 3600;
/// The shortest validity, seconds.
const SHORTEST: i64 = 600;
/// Clocks of others may be behind by this much, seconds.
const BACKDATED: i64 = 300;

/// The authority's certificate or key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// Not a certificate.
    #[error("certificate of the signing authority: {0}")]
    Certificate(String),
    /// Not a key, or of a kind that cannot sign.
    #[error("key of the signing authority: {0}")]
    Key(String),
}

/// The authority that signs certificates for the built-in signers.
pub struct Authority {
    key: KeyPair,
    /// The subject, DER.
    name: Vec<u8>,
    key_id: Option<Vec<u8>>,
    not_after: i64,
    algorithm: Vec<u8>,
    /// How long certificates are valid at most, seconds.
    longest: i64,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authority(..)")
    }
}

impl Authority {
    /// The authority of a certificate and its private key, both PEM.
    ///
    /// # Errors
    /// When either cannot be read.
    pub fn new(certificate: &str, key: &str) -> Result<Self, AuthorityError> {
        let wrong = |error: &dyn std::fmt::Display| AuthorityError::Certificate(error.to_string());
        let key = KeyPair::from_pem(key).map_err(|error| AuthorityError::Key(error.to_string()))?;
        let (_, pem) =
            x509_parser::pem::parse_x509_pem(certificate.as_bytes()).map_err(|e| wrong(&e))?;
        let (_, parsed) = X509Certificate::from_der(&pem.contents).map_err(|e| wrong(&e))?;
        let key_id =
            parsed
                .iter_extensions()
                .find_map(|extension| match extension.parsed_extension() {
                    x509_parser::extensions::ParsedExtension::SubjectKeyIdentifier(id) => {
                        Some(id.0.to_vec())
                    }
                    _ => None,
                });
        if parsed.public_key().subject_public_key.data.as_ref() != key.der_bytes() {
            return Err(AuthorityError::Key(
                "it does not belong to the certificate".to_owned(),
            ));
        }
        Ok(Self {
            name: parsed.subject().as_raw().to_vec(),
            key_id,
            not_after: parsed.validity().not_after.timestamp(),
            algorithm: signature_algorithm(&key)?,
            key,
            longest: LONGEST,
        })
    }

    /// Has certificates be valid for `longest` at most (`--cluster-signing-duration`).
    #[must_use]
    pub fn valid_for(mut self, longest: std::time::Duration) -> Self {
        self.longest = i64::try_from(longest.as_secs()).unwrap_or(i64::MAX);
        self
    }

    /// Reads, judges and signs a request, as it is done for one that was approved; the certificate is PEM.
    ///
    /// # Errors
    /// Why it is not signed, for its status.
    pub fn answer(&self, asked: &CertificateSigningRequest) -> Result<String, RequestError> {
        let request = Request::parse(asked)?;
        request.check_for(&asked.spec.signer_name)?;
        let signed = self.sign(&request, asked.spec.expiration_seconds);
        signed.map_err(|error| RequestError::from(error.to_string().as_str()))
    }

    /// A certificate for the request, PEM, valid for `seconds` or as long as may be.
    pub(crate) fn sign(
        &self,
        request: &Request,
        seconds: Option<i32>,
    ) -> Result<String, AuthorityError> {
        let now = Timestamp::now();
        let seconds = match seconds.map(i64::from) {
            Some(asked) if asked < self.longest => asked.max(SHORTEST),
            _ => self.longest,
        };
        let after = |seconds: i64| now + SignedDuration::from_secs(seconds);
        let end = after(seconds).as_second().min(self.not_after);
        let end = Timestamp::from_second(end).unwrap_or(now);
        // Verifiers know no time before 1970, where boxes without a battery begin.
        let begin = after(-BACKDATED).max(Timestamp::UNIX_EPOCH);
        let validity = [time(begin), time(end)].concat();
        let mut serial = uuid::Uuid::new_v4().into_bytes();
        // positive and not zero
        serial[0] = serial[0] & 0x7f | 0x40;
        let body = [
            tlv(0xa0, &tlv(0x02, &[2])),
            tlv(0x02, &serial),
            self.algorithm.clone(),
            self.name.clone(),
            tlv(SEQUENCE, &validity),
            subject(&request.subject),
            request.public_key.clone(),
            tlv(0xa3, &tlv(SEQUENCE, &self.extensions(request))),
        ]
        .concat();
        let body = tlv(SEQUENCE, &body);
        let signature = self
            .key
            .sign(&body)
            .map_err(|error| AuthorityError::Key(error.to_string()))?;
        let signature = [&[0][..], &signature].concat();
        let certificate = [body, self.algorithm.clone(), tlv(0x03, &signature)].concat();
        Ok(pem("CERTIFICATE", &tlv(SEQUENCE, &certificate)))
    }

    fn extensions(&self, request: &Request) -> Vec<u8> {
        let mut extensions = Vec::new();
        let usages = key_usage(&request.usages);
        if let Some(usages) = usages {
            extensions.extend(extension(&[0x55, 0x1d, 0x0f], true, &usages));
        }
        let extended: Vec<u8> = request
            .usages
            .iter()
            .filter_map(|usage| extended_usage(usage))
            .flat_map(|oid| tlv(OID, oid))
            .collect();
        if !extended.is_empty() {
            let value = tlv(SEQUENCE, &extended);
            extensions.extend(extension(&[0x55, 0x1d, 0x25], false, &value));
        }
        extensions.extend(extension(&[0x55, 0x1d, 0x13], true, &tlv(SEQUENCE, &[])));
        if let Some(id) = &self.key_id {
            let value = tlv(SEQUENCE, &tlv(0x80, id));
            extensions.extend(extension(&[0x55, 0x1d, 0x23], false, &value));
        }
        if let Some(names) = &request.alternative_names {
            extensions.extend(extension(&[0x55, 0x1d, 0x11], false, names));
        }
        extensions
    }
}

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OID: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;

fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut encoded = vec![tag];
    let length = content.len();
    if length < 0x80 {
        encoded.push(u8::try_from(length).unwrap_or(0x7f));
    } else {
        let bytes = length.to_be_bytes();
        let significant = &bytes[bytes.iter().take_while(|byte| **byte == 0).count()..];
        encoded.push(0x80 | u8::try_from(significant.len()).unwrap_or(8));
        encoded.extend(significant);
    }
    encoded.extend(content);
    encoded
}

fn extension(oid: &[u8], critical: bool, value: &[u8]) -> Vec<u8> {
    let mut content = tlv(OID, oid);
    if critical {
        content.extend([0x01, 0x01, 0xff]);
    }
    content.extend(tlv(0x04, value));
    tlv(SEQUENCE, &content)
}

/// A name of organizations and a common name, one set an attribute.
fn subject(of: &Subject) -> Vec<u8> {
    const COMMON_NAME: [u8; 3] = [0x55, 4, 3];
    const ORGANIZATION: [u8; 3] = [0x55, 4, 10];
    let set = |kind: &[u8], text: &str| {
        let attribute = [tlv(OID, kind), tlv(UTF8_STRING, text.as_bytes())].concat();
        tlv(SET, &tlv(SEQUENCE, &attribute))
    };
    let mut sets: Vec<u8> = of
        .organizations
        .iter()
        .flat_map(|organization| set(&ORGANIZATION, organization))
        .collect();
    sets.extend(set(&COMMON_NAME, &of.common_name));
    tlv(SEQUENCE, &sets)
}

/// The extension's value for the names that certificates of Kubernetes may carry.
pub(crate) fn alternative_names(names: &[GeneralName<'_>]) -> Vec<u8> {
    let encoded: Vec<u8> = names
        .iter()
        .filter_map(|name| match name {
            GeneralName::RFC822Name(text) => Some(tlv(0x81, text.as_bytes())),
            GeneralName::DNSName(text) => Some(tlv(0x82, text.as_bytes())),
            GeneralName::URI(text) => Some(tlv(0x86, text.as_bytes())),
            GeneralName::IPAddress(address) => Some(tlv(0x87, address)),
            _ => None,
        })
        .flatten()
        .collect();
    tlv(SEQUENCE, &encoded)
}

/// UTCTime until 2049, GeneralizedTime after that.
fn time(at: Timestamp) -> Vec<u8> {
    let at = at.to_zoned(k8s_openapi::jiff::tz::TimeZone::UTC);
    if at.year() < 2050 {
        tlv(0x17, at.strftime("%y%m%d%H%M%SZ").to_string().as_bytes())
    } else {
        tlv(0x18, at.strftime("%Y%m%d%H%M%SZ").to_string().as_bytes())
    }
}

/// The bits of the key usages; none if there are none.
fn key_usage(usages: &[String]) -> Option<Vec<u8>> {
    let mut bits: u16 = 0;
    for usage in usages {
        let bit = match usage.as_str() {
            "signing" | "digital signature" => 0,
            "content commitment" => 1,
            "key encipherment" => 2,
            "data encipherment" => 3,
            "key agreement" => 4,
            "cert sign" => 5,
            "crl sign" => 6,
            "encipher only" => 7,
            "decipher only" => 8,
            _ => continue,
        };
        bits |= 0x8000 >> bit;
    }
    if bits == 0 {
        return None;
    }
    let bytes = bits.to_be_bytes();
    let used = if bytes[1] == 0 {
        &bytes[..1]
    } else {
        &bytes[..]
    };
    let unused = used.last().map_or(0, |last| last.trailing_zeros() as u8);
    Some(tlv(0x03, &[&[unused][..], used].concat()))
}

fn extended_usage(usage: &str) -> Option<&'static [u8]> {
    Some(match usage {
        "any" => &[0x55, 0x1d, 0x25, 0x00],
        "server auth" => &[0x2b, 6, 1, 5, 5, 7, 3, 1],
        "client auth" => &[0x2b, 6, 1, 5, 5, 7, 3, 2],
        "code signing" => &[0x2b, 6, 1, 5, 5, 7, 3, 3],
        "email protection" | "s/mime" => &[0x2b, 6, 1, 5, 5, 7, 3, 4],
        "ipsec end system" => &[0x2b, 6, 1, 5, 5, 7, 3, 5],
        "ipsec tunnel" => &[0x2b, 6, 1, 5, 5, 7, 3, 6],
        "ipsec user" => &[0x2b, 6, 1, 5, 5, 7, 3, 7],
        "timestamping" => &[0x2b, 6, 1, 5, 5, 7, 3, 8],
        "ocsp signing" => &[0x2b, 6, 1, 5, 5, 7, 3, 9],
        _ => return None,
    })
}

fn signature_algorithm(key: &KeyPair) -> Result<Vec<u8>, AuthorityError> {
    let algorithm = key.algorithm();
    let null = tlv(0x05, &[]);
    let content = if algorithm == &rcgen::PKCS_ECDSA_P256_SHA256 {
        tlv(OID, &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2])
    } else if algorithm == &rcgen::PKCS_ECDSA_P384_SHA384 {
        tlv(OID, &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 3])
    } else if algorithm == &rcgen::PKCS_ED25519 {
        tlv(OID, &[0x2b, 0x65, 0x70])
    } else if algorithm == &rcgen::PKCS_RSA_SHA256 {
        [
            tlv(OID, &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 11]),
            null,
        ]
        .concat()
    } else {
        return Err(AuthorityError::Key(
            "only ECDSA (P-256, P-384), Ed25519 and RSA keys can sign".to_owned(),
        ));
    };
    Ok(tlv(SEQUENCE, &content))
}

fn pem(label: &str, der: &[u8]) -> String {
    use base64::Engine as _;
    let encoded = base64::engine::general_purpose::STANDARD.encode(der);
    let mut text = format!("-----BEGIN {label}-----\n");
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(64));
        text.push_str(line);
        text.push('\n');
        rest = after;
    }
    text.push_str(&format!("-----END {label}-----\n"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::ByteString;
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa};

    fn authority() -> (Authority, Vec<u8>) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "ca");
        let ca = params.self_signed(&key).unwrap();
        let authority = Authority::new(&ca.pem(), &key.serialize_pem()).unwrap();
        (authority, ca.der().to_vec())
    }

    fn node_request(usages: &[&str], names: Vec<String>) -> CertificateSigningRequest {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        let name = &mut params.distinguished_name;
        name.push(DnType::OrganizationName, "system:nodes");
        name.push(DnType::CommonName, "system:node:n");
        let pem = params.serialize_request(&key).unwrap().pem().unwrap();
        let mut request = CertificateSigningRequest::default();
        request.spec.request = ByteString(pem.into_bytes());
        request.spec.usages = Some(usages.iter().map(|u| (*u).to_owned()).collect());
        request
    }

    #[test]
    fn signed_certificates_verify_and_keep_the_subject() {
        let (authority, ca) = authority();
        let usages = ["digital signature", "client auth"];
        let request = Request::parse(&node_request(&usages, Vec::new())).unwrap();
        request.check_node_client().unwrap();
        let pem = authority.sign(&request, Some(3600)).unwrap();
        let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap();
        let (_, certificate) = X509Certificate::from_der(&pem.contents).unwrap();
        let (_, ca) = X509Certificate::from_der(&ca).unwrap();
        certificate.verify_signature(Some(ca.public_key())).unwrap();
        assert_eq!(certificate.issuer(), ca.subject());
        let subject = Subject::of(certificate.subject()).unwrap();
        assert_eq!(subject, request.subject);
        assert_eq!(subject.common_name, "system:node:n");
        assert_eq!(subject.organizations, ["system:nodes"]);
        let usage = certificate.key_usage().unwrap().unwrap().value;
        assert!(usage.digital_signature() && !usage.key_encipherment());
        assert!(
            certificate
                .extended_key_usage()
                .unwrap()
                .unwrap()
                .value
                .client_auth
        );
        let seconds = certificate.validity().not_after.timestamp()
            - certificate.validity().not_before.timestamp();
        assert!((3899..=3901).contains(&seconds), "{seconds}");
    }

    #[test]
    fn serving_certificates_need_names_and_client_ones_have_none() {
        let (authority, _) = authority();
        let usages = ["digital signature", "server auth"];
        let bare = Request::parse(&node_request(&usages, Vec::new())).unwrap();
        assert!(bare.check_for(crate::request::NODE_SERVING).is_err());
        let names = vec!["host.example".to_owned(), "192.0.2.1".to_owned()];
        let named = Request::parse(&node_request(&usages, names)).unwrap();
        named.check_for(crate::request::NODE_SERVING).unwrap();
        assert!(named.check_node_client().is_err());
        let pem = authority.sign(&named, None).unwrap();
        let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap();
        let (_, certificate) = X509Certificate::from_der(&pem.contents).unwrap();
        let names = certificate.subject_alternative_name().unwrap().unwrap();
        assert_eq!(names.value.general_names.len(), 2);
    }

    /// A request with a subject that builders do not write: the common name twice.
    fn with_two_names(first: &str, last: &str) -> CertificateSigningRequest {
        let key = KeyPair::generate().unwrap();
        let written = Subject {
            common_name: last.to_owned(),
            organizations: vec!["system:nodes".to_owned()],
            ..Subject::default()
        };
        let attribute = [tlv(OID, &[0x55, 4, 3]), tlv(UTF8_STRING, first.as_bytes())].concat();
        let one = subject(&written);
        let both = [tlv(SET, &tlv(SEQUENCE, &attribute)), one[2..].to_vec()].concat();
        let info = [
            tlv(0x02, &[0]),
            tlv(SEQUENCE, &both),
            key.subject_public_key_info(),
            tlv(0xa0, &[]),
        ]
        .concat();
        let info = tlv(SEQUENCE, &info);
        let signature = [&[0][..], &key.sign(&info).unwrap()].concat();
        let algorithm = signature_algorithm(&key).unwrap();
        let der = tlv(SEQUENCE, &[info, algorithm, tlv(0x03, &signature)].concat());
        let mut request = CertificateSigningRequest::default();
        request.spec.request = ByteString(pem("CERTIFICATE REQUEST", &der).into_bytes());
        request.spec.usages = Some(vec!["digital signature".into(), "client auth".into()]);
        request
    }

    #[test]
    fn a_request_with_two_common_names_is_neither_approved_nor_signed() {
        let controllers = "system:kube-controller-manager";
        for (first, last) in [
            (controllers, "system:node:n"),
            ("system:node:n", controllers),
        ] {
            let refused = Request::parse(&with_two_names(first, last)).unwrap_err();
            let refused = refused.to_string();
            assert!(refused.contains("more than one common name"), "{refused}");
        }
    }

    #[test]
    fn attributes_that_say_nothing_are_refused_not_dropped() {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CountryName, "DE");
        let text = params.serialize_request(&key).unwrap().pem().unwrap();
        let mut request = CertificateSigningRequest::default();
        request.spec.request = ByteString(text.clone().into_bytes());
        assert!(Request::parse(&request).is_err());
        // and a second request behind the first
        let plain = node_request(&[], Vec::new()).spec.request.0;
        request.spec.request = ByteString([plain, text.into_bytes()].concat());
        assert!(Request::parse(&request).is_err());
    }

    #[test]
    fn a_request_whose_sender_does_not_hold_the_key_is_refused() {
        let mut request = node_request(&["client auth"], Vec::new());
        let (_, pem) = x509_parser::pem::parse_x509_pem(&request.spec.request.0).unwrap();
        let mut der = pem.contents.clone();
        let last = der.len() - 1;
        der[last] ^= 1;
        request.spec.request = ByteString(super::pem("CERTIFICATE REQUEST", &der).into_bytes());
        assert!(Request::parse(&request).is_err());
    }
}
