//! Distributed claims: the groups are not in the token but at an address that it names
//! (<https://openid.net/specs/openid-connect-core-1_0.html#AggregatedDistributedClaims>).
//!
//! What is there is a token again, of any issuer that can be reached as the first one, for the same audiences. It is fetched
//! each time, as kube-apiserver does; only the issuers' keys are kept.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;

use super::unverified_issuer;
use super::verifier::Verifier;

const NAMES: &str = "_claim_names";
const SOURCES: &str = "_claim_sources";
/// Issuers whose keys are kept; beyond it all are dropped and fetched again as needed.
const MAX_ISSUERS: usize = 64;

/// Looks up one claim.
pub(super) struct Resolver {
    claim: String,
    issuers: Mutex<BTreeMap<String, Arc<Verifier>>>,
}

/// Where a claim is.
#[derive(Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
struct Source {
    endpoint: String,
    access_token: String,
}

impl Resolver {
    pub(super) fn new(claim: &str) -> Self {
        Self {
            claim: claim.to_owned(),
            issuers: Mutex::default(),
        }
    }

    /// Enters the claim among `claims`, which `first` has verified, if it is elsewhere.
    ///
    /// # Errors
    /// When the token is wrong about where, or what is there cannot be had or believed.
    pub(super) async fn expand(&self, first: &Verifier, claims: &mut Value) -> Result<(), String> {
        let failed = |why: String| format!("oidc: could not expand distributed claims: {why}");
        let source = source(claims, &self.claim).map_err(failed)?;
        let Some(source) = source else { return Ok(()) };
        let value = self.resolve(first, &source).await.map_err(failed)?;
        if let Some(claims) = claims.as_object_mut() {
            claims.insert(self.claim.clone(), value);
        }
        Ok(())
    }

    async fn resolve(&self, first: &Verifier, source: &Source) -> Result<Value, String> {
        let (claim, endpoint) = (&self.claim, &source.endpoint);
        let token = first.get_text(endpoint, &source.access_token).await;
        let token =
            token.map_err(|error| format!("while getting distributed claim {claim:?}: {error}"))?;
        let token = token.trim();
        let issuer = unverified_issuer(token).ok_or_else(|| {
            format!("what endpoint {endpoint} answers for claim {claim:?} is no token of an issuer")
        })?;
        let verified = self.verifier(first, &issuer).verify(token).await;
        let mut verified =
            verified.map_err(|error| format!("verify distributed claim token: {error}"))?;
        let value = verified.get_mut(claim).map(Value::take);
        value.ok_or_else(|| {
            format!("jwt returned by distributed claim endpoint {endpoint:?} did not contain claim: {claim}")
        })
    }

    fn verifier(&self, first: &Verifier, issuer: &str) -> Arc<Verifier> {
        let mut issuers = self.issuers.lock();
        if let Some(known) = issuers.get(issuer) {
            return Arc::clone(known);
        }
        if issuers.len() >= MAX_ISSUERS {
            issuers.clear();
        }
        let made = Arc::new(first.for_other(issuer));
        issuers.insert(issuer.to_owned(), Arc::clone(&made));
        made
    }
}

/// Where a claim is that is not among the claims; none if it is, or nowhere, or inside the token in a token of its own
/// (an aggregated claim, which is passed over).
fn source(claims: &Value, claim: &str) -> Result<Option<Source>, String> {
    if claims.get(claim).is_some() {
        return Ok(None);
    }
    let Some(names) = claims.get(NAMES) else {
        return Ok(None);
    };
    let names: BTreeMap<String, String> = serde_json::from_value(names.clone())
        .map_err(|error| format!("error parsing distributed claim names: {error}"))?;
    let Some(sources) = claims.get(SOURCES) else {
        return Err("no claim sources".to_owned());
    };
    let mut sources: BTreeMap<String, Source> = serde_json::from_value(sources.clone())
        .map_err(|error| format!("could not parse claim sources: {error}"))?;
    let Some(name) = names.get(claim) else {
        return Ok(None);
    };
    match sources.remove(name) {
        Some(source) if source.endpoint.is_empty() => Ok(None),
        Some(source) => Ok(Some(source)),
        None => Err(format!(
            "id token _claim_names contained a source {name} missing in _claims_sources"
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn item_184_sources_are_found_or_wrong() {
        let at = |claims: Value| source(&claims, "groups");
        let sources =
            json!({ "s": { "endpoint": "https://e", "access_token": "t" }, "a": { "JWT": "x" } });
        let of = |names: Value| json!({ "_claim_names": names, "_claim_sources": sources });
        let found = at(of(json!({ "groups": "s" }))).unwrap().unwrap();
        assert_eq!(found.endpoint, "https://e");
        assert_eq!(found.access_token, "t");
        for none in [
            json!({}),
            of(json!({})),
            of(json!({ "groups": "a" })),
            json!({ "groups": [], "_claim_names": { "groups": "s" } }),
        ] {
            assert_eq!(at(none), Ok(None));
        }
        for wrong in [
            of(json!("groups")),
            of(json!({ "groups": "elsewhere" })),
            json!({ "_claim_names": { "groups": "s" } }),
            json!({ "_claim_names": { "groups": "s" }, "_claim_sources": [] }),
        ] {
            assert!(at(wrong).is_err());
        }
    }
}
