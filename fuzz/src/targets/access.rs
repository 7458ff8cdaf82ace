//! What decides who somebody is and what is asked.

use std::sync::LazyLock;

use davit_controllers::Authority;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::{FromDer as _, X509Certificate};
use x509_parser::x509::X509Name;

const SIGNERS: [&str; 4] = [
    "kubernetes.io/kube-apiserver-client-kubelet",
    "kubernetes.io/kube-apiserver-client",
    "kubernetes.io/kubelet-serving",
    "kubernetes.io/legacy-unknown",
];
const COMMON_NAME: &str = "2.5.4.3";
const ORGANIZATION: &str = "2.5.4.10";

/// Attributes of a subject with their kinds, in their order.
fn attributes(name: &X509Name<'_>) -> Vec<(String, Option<String>)> {
    let all = name.iter_attributes();
    all.map(|a| {
        (
            a.attr_type().to_id_string(),
            a.as_str().ok().map(str::to_owned),
        )
    })
    .collect()
}

fn values<'a>(all: &'a [(String, Option<String>)], kind: &str) -> Vec<Option<&'a str>> {
    let of_kind = all.iter().filter(|(k, _)| k == kind);
    of_kind.map(|(_, text)| text.as_deref()).collect()
}

/// Any request for a certificate: what is signed has one name that nobody can read otherwise, that of the request, its
/// key, and what the signer allows.
pub fn certificate_request(data: &[u8]) {
    static AUTHORITY: LazyLock<Option<Authority>> = LazyLock::new(authority);
    let [signer, usages, pem @ ..] = data else {
        return;
    };
    let Some(authority) = AUTHORITY.as_ref() else {
        return;
    };
    let signer = SIGNERS[usize::from(*signer) % SIGNERS.len()];
    let all = [
        "digital signature",
        "key encipherment",
        "client auth",
        "server auth",
        "cert sign",
    ];
    let asked = all
        .iter()
        .enumerate()
        .filter(|(bit, _)| (usages >> bit) & 1 == 1);
    let mut request = CertificateSigningRequest::default();
    request.spec.signer_name = signer.to_owned();
    request.spec.usages = Some(asked.map(|(_, usage)| (*usage).to_owned()).collect());
    request.spec.request = ByteString(pem.to_vec());
    let Ok(signed) = authority.answer(&request) else {
        return;
    };
    let certificate = x509_parser::pem::parse_x509_pem(signed.as_bytes());
    let certificate = certificate.expect("what was signed is PEM").1.contents;
    let (rest, certificate) = X509Certificate::from_der(&certificate).expect("a certificate");
    assert!(rest.is_empty());
    let asked = x509_parser::pem::parse_x509_pem(pem)
        .expect("what was read is PEM")
        .1;
    let (_, asked) = X509CertificationRequest::from_der(&asked.contents).expect("a request");
    let asked = &asked.certification_request_info;
    assert_eq!(
        asked.subject_pki.raw,
        certificate.public_key().raw,
        "the key"
    );
    let (is, was) = (
        attributes(certificate.subject()),
        attributes(&asked.subject),
    );
    let (names, groups) = (values(&is, COMMON_NAME), values(&is, ORGANIZATION));
    assert!(
        matches!(names[..], [Some(name)] if !name.is_empty()),
        "{is:?}"
    );
    assert_eq!(names.len() + groups.len(), is.len(), "others: {is:?}");
    assert_eq!(names, values(&was, COMMON_NAME), "names");
    assert_eq!(groups, values(&was, ORGANIZATION), "groups");
    assert!(!certificate.is_ca(), "an authority");
    if signer.contains("kubelet") {
        let node = names[0].and_then(|name| name.strip_prefix("system:node:"));
        assert!(node.is_some_and(|name| !name.is_empty()), "{is:?}");
        assert_eq!(groups, [Some("system:nodes")]);
    }
}

/// An authority of its own, with the key of the inputs.
fn authority() -> Option<Authority> {
    let key = crate::make::access::key()?;
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).ok()?;
    Authority::new(&certificate.pem(), &key.serialize_pem()).ok()
}
