//! Who a certificate, or a request for one, is about.
//!
//! Approving, signing and authenticating read a subject by [`Subject::of`] and nothing else: a subject that two readers
//! could take for two names is read by none.

use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::oid_registry::{OID_X509_COMMON_NAME, OID_X509_ORGANIZATION_NAME};
use x509_parser::pem::Pem;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

/// The attribute that holds a user's id.
const UID: &str = "1.3.6.1.4.1.57683.2";

/// A subject in the words of Kubernetes: the common name is the user, organizations are groups.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subject {
    /// The user.
    pub common_name: String,
    /// The groups, in their order.
    pub organizations: Vec<String>,
    /// Identifies the user over time; empty when not given.
    pub uid: String,
    /// Whether there are attributes that say nothing about user and groups.
    pub has_others: bool,
}

/// Why nobody is known by a subject.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubjectError {
    /// Not a certificate, or something behind it.
    #[error("not a certificate")]
    Malformed,
    /// Not one request for a certificate in PEM.
    #[error("PEM block type must be CERTIFICATE REQUEST")]
    NoRequest,
    /// An attribute that is no text, or holds characters that no name has.
    #[error("the subject's attribute {0} cannot be read")]
    Unreadable(String),
    /// The user is missing.
    #[error("the subject has no common name")]
    Nameless,
    /// Which of several values counts would be a matter of taste.
    #[error("the subject has more than one {0}")]
    Ambiguous(&'static str),
}

impl Subject {
    /// Reads a subject.
    ///
    /// # Errors
    /// When it does not have exactly one common name, or when user, groups or id cannot be read.
    pub fn of(name: &X509Name<'_>) -> Result<Self, SubjectError> {
        let (mut names, mut uids) = (Vec::new(), Vec::new());
        let mut subject = Self::default();
        for attribute in name.iter_attributes() {
            let kind = attribute.attr_type();
            if *kind == OID_X509_COMMON_NAME {
                names.push(text(attribute)?);
            } else if *kind == OID_X509_ORGANIZATION_NAME {
                subject.organizations.push(text(attribute)?);
            } else if kind.to_id_string() == UID {
                uids.push(text(attribute)?);
            } else {
                subject.has_others = true;
            }
        }
        subject.common_name = single(names, "common name")?.unwrap_or_default();
        subject.uid = single(uids, "user id")?.unwrap_or_default();
        if subject.common_name.is_empty() {
            return Err(SubjectError::Nameless);
        }
        Ok(subject)
    }

    /// Reads the subject of a certificate (DER).
    ///
    /// # Errors
    /// As [`Subject::of`], and when this is not one certificate.
    pub fn of_certificate(der: &[u8]) -> Result<Self, SubjectError> {
        match X509Certificate::from_der(der) {
            Ok(([], certificate)) => Self::of(certificate.subject()),
            _ => Err(SubjectError::Malformed),
        }
    }

    /// Reads the subject of a request for a certificate (PEM), as [`request`] takes it apart.
    ///
    /// # Errors
    /// As [`Subject::of`] and [`request`].
    pub fn of_request(pem: &[u8]) -> Result<Self, SubjectError> {
        let der = request(pem)?;
        match X509CertificationRequest::from_der(&der) {
            Ok(([], parsed)) => Self::of(&parsed.certification_request_info.subject),
            _ => Err(SubjectError::NoRequest),
        }
    }

    /// Whether there is nothing but a common name and organizations.
    pub fn is_plain(&self) -> bool {
        self.uid.is_empty() && !self.has_others
    }
}

/// The request for a certificate in a PEM text, DER. There is one block, so that nobody reads another one.
///
/// # Errors
/// When that is not so.
pub fn request(pem: &[u8]) -> Result<Vec<u8>, SubjectError> {
    let mut blocks = Pem::iter_from_buffer(pem);
    match (blocks.next(), blocks.next()) {
        (Some(Ok(block)), None) if block.label == "CERTIFICATE REQUEST" => Ok(block.contents),
        _ => Err(SubjectError::NoRequest),
    }
}

fn text(attribute: &AttributeTypeAndValue<'_>) -> Result<String, SubjectError> {
    let readable = attribute.as_str().ok();
    let readable = readable.filter(|text| !text.chars().any(char::is_control));
    readable
        .map(str::to_owned)
        .ok_or_else(|| SubjectError::Unreadable(attribute.attr_type().to_id_string()))
}

fn single(values: Vec<String>, what: &'static str) -> Result<Option<String>, SubjectError> {
    match <[String; 1]>::try_from(values) {
        Ok([value]) => Ok(Some(value)),
        Err(values) if values.is_empty() => Ok(None),
        Err(_) => Err(SubjectError::Ambiguous(what)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMON_NAME: [u8; 3] = [0x55, 4, 3];
    const ORGANIZATION: [u8; 3] = [0x55, 4, 10];
    const COUNTRY: [u8; 3] = [0x55, 4, 6];
    const UTF8: u8 = 0x0c;
    const BMP: u8 = 0x1e;

    fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
        [&[tag, u8::try_from(content.len()).unwrap()], content].concat()
    }

    fn attribute(kind: &[u8], tag: u8, value: &[u8]) -> Vec<u8> {
        tlv(0x30, &[tlv(6, kind), tlv(tag, value)].concat())
    }

    /// A name of one set an attribute, as all tools write it.
    fn name(attributes: &[Vec<u8>]) -> Vec<u8> {
        let sets: Vec<u8> = attributes.iter().flat_map(|a| tlv(0x31, a)).collect();
        tlv(0x30, &sets)
    }

    fn read(der: &[u8]) -> Result<Subject, SubjectError> {
        Subject::of(&X509Name::from_der(der).unwrap().1)
    }

    fn common_name(text: &str) -> Vec<u8> {
        attribute(&COMMON_NAME, UTF8, text.as_bytes())
    }

    #[test]
    fn a_subject_with_one_common_name_is_read() {
        let nodes = attribute(&ORGANIZATION, UTF8, b"system:nodes");
        let more = attribute(&ORGANIZATION, UTF8, b"more");
        let read = read(&name(&[nodes, more, common_name("system:node:a")])).unwrap();
        assert_eq!(read.common_name, "system:node:a");
        assert_eq!(read.organizations, ["system:nodes", "more"]);
        assert!(read.is_plain());
    }

    #[test]
    fn two_common_names_are_nobody_however_they_are_written() {
        let (first, last) = (
            common_name("system:kube-controller-manager"),
            common_name("x"),
        );
        let ambiguous = Err(SubjectError::Ambiguous("common name"));
        assert_eq!(read(&name(&[first.clone(), last.clone()])), ambiguous);
        assert_eq!(read(&name(&[last.clone(), last.clone()])), ambiguous);
        // both in one set
        let together = tlv(0x30, &tlv(0x31, &[first.clone(), last.clone()].concat()));
        assert_eq!(read(&together), ambiguous);
        // one of them in an encoding that readers skip
        let wide = attribute(&COMMON_NAME, BMP, &[0, b'x']);
        assert!(read(&name(&[first, wide])).is_err());
    }

    #[test]
    fn subjects_without_a_readable_name_are_nobody() {
        assert_eq!(read(&name(&[])), Err(SubjectError::Nameless));
        assert_eq!(read(&name(&[common_name("")])), Err(SubjectError::Nameless));
        assert!(read(&name(&[common_name("a\0b")])).is_err());
        let masters = attribute(&ORGANIZATION, BMP, &[0, b'm']);
        assert!(read(&name(&[masters, common_name("a")])).is_err());
    }

    #[test]
    fn other_attributes_are_told() {
        let country = attribute(&COUNTRY, UTF8, b"DE");
        let with = read(&name(&[country, common_name("a")])).unwrap();
        assert!(with.has_others && !with.is_plain());
        // 1.3.6.1.4.1.57683.2
        let id = [0x2b, 6, 1, 4, 1, 0x83, 0xc2, 0x53, 2];
        let uid = attribute(&id, UTF8, b"7");
        let with = read(&name(&[uid.clone(), common_name("a")])).unwrap();
        assert_eq!(with.uid, "7");
        assert!(!with.is_plain());
        assert!(read(&name(&[uid.clone(), uid, common_name("a")])).is_err());
    }
}
