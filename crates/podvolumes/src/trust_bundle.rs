//! Projected ClusterTrustBundles ([KEP-3257](https://kep.k8s.io/3257)): the certificates of one by name, or of those of a
//! signer that labels select, each certificate once.

use super::Cause;
use super::sources::Sources;
use davit_api::labels::{Selector, SelectorError};
use k8s_openapi::api::certificates::v1beta1::ClusterTrustBundle;
use k8s_openapi::api::core::v1::ClusterTrustBundleProjection;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use std::collections::BTreeSet;

/// Why there is nothing to project.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The source says nothing about which bundles.
    #[error("ClusterTrustBundle projection requires either name or signerName to be set")]
    Unnamed,
    /// The selector is broken.
    #[error("label selector of a ClusterTrustBundle projection: {0}")]
    Selector(#[from] SelectorError),
    /// No bundle of the signer has such labels.
    #[error("combination of signerName and labelSelector matched zero ClusterTrustBundles")]
    NoMatch,
}

/// The certificates in PEM, ordered by their bytes. Empty where there are no bundles and they are optional.
pub(super) async fn anchors(
    source: &ClusterTrustBundleProjection,
    sources: &Sources<'_>,
) -> Result<String, Cause> {
    let optional = source.optional == Some(true);
    if let Some(name) = &source.name {
        let bundle = sources.trust_bundle(name).await?;
        if bundle.is_none() && !optional {
            return Err(Cause::Missing {
                kind: "clustertrustbundle",
                name: name.clone(),
            });
        }
        Ok(merged(bundle.iter()))
    } else if let Some(signer) = &source.signer_name {
        let selector = selector(source.label_selector.as_ref()).map_err(Error::from)?;
        let bundles = sources.trust_bundles_of(signer).await?;
        let is_meant =
            |bundle: &&ClusterTrustBundle| selector.matches(&bundle.metadata.labels.as_ref());
        let mut meant = bundles.iter().filter(is_meant).peekable();
        if meant.peek().is_none() && !optional {
            return Err(Error::NoMatch.into());
        }
        Ok(merged(meant))
    } else {
        Err(Error::Unnamed.into())
    }
}

/// No selector selects nothing, an empty one everything.
fn selector(given: Option<&LabelSelector>) -> Result<Selector, SelectorError> {
    // plain maps and lists of strings always serialize
    let given = given.and_then(|selector| serde_json::to_value(selector).ok());
    Selector::from_label_selector(given.as_ref())
}

fn merged<'a>(bundles: impl Iterator<Item = &'a ClusterTrustBundle>) -> String {
    let certificates: BTreeSet<Vec<u8>> = bundles
        .flat_map(|bundle| CertificateDer::pem_slice_iter(bundle.spec.trust_bundle.as_bytes()))
        .filter_map(|certificate| certificate.ok().map(|der| der.to_vec()))
        .collect();
    certificates.iter().map(|der| pem(der)).collect()
}

fn pem(der: &[u8]) -> String {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let mut out = "-----BEGIN CERTIFICATE-----\n".to_owned();
    let mut rest = &*text;
    while !rest.is_empty() {
        let (line, further) = rest.split_at(rest.len().min(64));
        out.push_str(line);
        out.push('\n');
        rest = further;
    }
    out.push_str("-----END CERTIFICATE-----\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use davit_pods::objects::FixedObjects;
    use serde_json::{Value, json};

    fn bundle(name: &str, signer: &str, label: &str, certificates: &[&[u8]]) -> Value {
        let text: String = certificates.iter().map(|der| pem(der)).collect();
        json!({
            "kind": "ClusterTrustBundle",
            "metadata": { "name": name, "labels": { "set": label } },
            "spec": { "signerName": signer, "trustBundle": format!("of {name}:\n{text}") },
        })
    }

    async fn projected(source: Value) -> Result<String, String> {
        let objects = FixedObjects::from_json(&[
            bundle("plain", "", "x", &[b"b", b"a"]),
            bundle("e.com:s:1", "e.com/s", "live", &[b"one", b"both"]),
            bundle("e.com:s:2", "e.com/s", "live", &[b"two", b"both"]),
            bundle("e.com:s:3", "e.com/s", "canary", &[b"three"]),
            bundle("e.com:t:1", "e.com/t", "live", &[b"other"]),
        ]);
        let mut source = source;
        source["path"] = json!("ca.pem");
        let source = serde_json::from_value(source).unwrap();
        let sources = Sources::new(&objects, "n");
        anchors(&source, &sources).await.map_err(|e| e.to_string())
    }

    fn all(certificates: &[&[u8]]) -> Result<String, String> {
        Ok(certificates.iter().map(|der| pem(der)).collect())
    }

    #[tokio::test]
    async fn by_name_and_by_signer() {
        assert_eq!(
            projected(json!({ "name": "plain" })).await,
            all(&[b"a", b"b"])
        );
        let live = json!({ "matchLabels": { "set": "live" } });
        let source = json!({ "signerName": "e.com/s", "labelSelector": live });
        assert_eq!(projected(source).await, all(&[b"both", b"one", b"two"]));
        let source = json!({ "signerName": "e.com/s", "labelSelector": {} });
        assert_eq!(
            projected(source).await,
            all(&[b"both", b"one", b"three", b"two"])
        );
    }

    #[tokio::test]
    async fn what_is_missing_must_be_optional() {
        let mut named = json!({ "name": "none" });
        let error = projected(named.clone()).await.unwrap_err();
        assert_eq!(error, "clustertrustbundle \"none\" not found");
        named["optional"] = json!(true);
        assert_eq!(projected(named).await, Ok(String::new()));
        // without a selector none is selected
        let mut signer = json!({ "signerName": "e.com/s" });
        let error = projected(signer.clone()).await.unwrap_err();
        assert!(
            error.ends_with("matched zero ClusterTrustBundles"),
            "{error}"
        );
        signer["optional"] = json!(true);
        assert_eq!(projected(signer).await, Ok(String::new()));
        let error = projected(json!({})).await.unwrap_err();
        assert!(error.contains("either name or signerName"), "{error}");
    }

    #[test]
    fn lines_of_pem_are_as_long_as_elsewhere() {
        let text = pem(&[7; 100]);
        assert!(text.lines().all(|line| line.len() <= 64), "{text}");
        let back = CertificateDer::pem_slice_iter(text.as_bytes()).next();
        assert_eq!(&*back.unwrap().unwrap(), &[7; 100]);
    }
}
