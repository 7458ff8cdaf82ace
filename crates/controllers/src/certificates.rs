//! Certificate signing requests: approving those of nodes, signing approved ones, clearing away old ones.
//!
//! The built-in signers and what they require of a request:
//! <https://kubernetes.io/docs/reference/access-authn-authz/certificate-signing-requests/#kubernetes-signers>.

use async_trait::async_trait;
use davit_certificates::request::{self, Request};
use davit_client::{Informer, ObjectKey};
use davit_reconcile::{Context, Error, Next, Reconcile, Spawner, gone_is_none};
use k8s_openapi::ByteString;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestStatus,
};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, PostParams};
use std::time::Duration;

pub use davit_certificates::{Authority, AuthorityError};

const APPROVED: &str = "Approved";
const DENIED: &str = "Denied";
const FAILED: &str = "Failed";

/// How long requests are kept after they were decided, and how long while they wait.
const DECIDED: Duration = Duration::from_secs(3600);
const PENDING: Duration = Duration::from_secs(24 * 3600);
const LOOK_AGAIN: Duration = Duration::from_secs(600);

type Api = kube::Api<CertificateSigningRequest>;

pub(crate) fn spawn(spawner: &mut Spawner<'_>, authority: Option<Authority>) {
    let requests = spawner.informer();
    let keys = |request: &CertificateSigningRequest| vec![ObjectKey::of(request)];
    if let Some(spawner) = &mut spawner.start("certificatesigningrequest-approving-controller") {
        let queue = spawner.controller(Approver {
            client: spawner.client.clone(),
            requests: requests.clone(),
        });
        spawner.feed(&requests, &queue, keys);
    }
    let signing = spawner.start("certificatesigningrequest-signing-controller");
    if let Some((mut spawner, authority)) = signing.zip(authority) {
        let queue = spawner.controller(Signer {
            client: spawner.client.clone(),
            requests: requests.clone(),
            authority,
        });
        spawner.feed(&requests, &queue, keys);
    }
    if let Some(spawner) = &mut spawner.start("certificatesigningrequest-cleaner-controller") {
        let queue = spawner.controller(Cleaner {
            client: spawner.client.clone(),
            requests: requests.clone(),
        });
        spawner.feed(&requests, &queue, keys);
    }
}

fn conditions(
    request: &CertificateSigningRequest,
) -> impl Iterator<Item = &CertificateSigningRequestCondition> {
    let status = request.status.as_ref();
    status
        .and_then(|status| status.conditions.as_ref())
        .into_iter()
        .flatten()
}

fn has(request: &CertificateSigningRequest, kind: &str) -> bool {
    conditions(request).any(|condition| condition.type_ == kind)
}

fn certificate(request: &CertificateSigningRequest) -> Option<&[u8]> {
    let held = request.status.as_ref()?.certificate.as_ref()?;
    (!held.0.is_empty()).then_some(held.0.as_slice())
}

fn with_condition(
    request: &CertificateSigningRequest,
    kind: &str,
    reason: &str,
    message: &str,
) -> CertificateSigningRequest {
    let mut request = request.clone();
    let status = request
        .status
        .get_or_insert_with(CertificateSigningRequestStatus::default);
    status
        .conditions
        .get_or_insert_default()
        .push(CertificateSigningRequestCondition {
            type_: kind.to_owned(),
            status: "True".to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            ..CertificateSigningRequestCondition::default()
        });
    request
}

/// Approves client certificates of nodes that the requester may have.
struct Approver {
    client: kube::Client,
    requests: Informer<CertificateSigningRequest>,
}

impl Approver {
    async fn permitted(
        &self,
        request: &CertificateSigningRequest,
        subresource: &str,
    ) -> Result<bool, Error> {
        let spec = &request.spec;
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: spec.username.clone(),
                uid: spec.uid.clone(),
                groups: spec.groups.clone(),
                extra: spec.extra.clone(),
                resource_attributes: Some(ResourceAttributes {
                    group: Some("certificates.k8s.io".to_owned()),
                    resource: Some("certificatesigningrequests".to_owned()),
                    verb: Some("create".to_owned()),
                    version: Some("*".to_owned()),
                    subresource: Some(subresource.to_owned()),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let api: kube::Api<SubjectAccessReview> = kube::Api::all(self.client.clone());
        let answer = api
            .create(&PostParams::default(), &review)
            .await
            .context(|| "ask whether a node certificate may be approved".to_owned())?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }
}

#[async_trait]
impl Reconcile for Approver {
    const NAME: &'static str = "csrapproving";

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let Some(held) = self.requests.get(None, &key.name) else {
            return Ok(Next::Wait);
        };
        if certificate(&held).is_some() || has(&held, APPROVED) || has(&held, DENIED) {
            return Ok(Next::Wait);
        }
        let Ok(request) = Request::parse(&held) else {
            return Ok(Next::Wait);
        };
        if request.check_node_client().is_err() || held.spec.signer_name != request::NODE_CLIENT {
            return Ok(Next::Wait);
        }
        let own = held.spec.username.as_deref() == Some(request.common_name());
        let recognized: &[(&str, &str)] = if own {
            &[SELF_NODE_CLIENT, NODE_CLIENT]
        } else {
            &[NODE_CLIENT]
        };
        for (subresource, message) in recognized {
            if self.permitted(&held, subresource).await? {
                let approved = with_condition(&held, APPROVED, "AutoApproved", message);
                let written = Api::all(self.client.clone())
                    .replace_subresource("approval", &key.name, &PostParams::default(), &approved)
                    .await;
                gone_is_none(written).context(|| format!("approve {}", key.name))?;
                break;
            }
        }
        Ok(Next::Wait)
    }
}

const SELF_NODE_CLIENT: (&str, &str) = (
    "selfnodeclient",
    "Auto approving self kubelet client certificate after SubjectAccessReview.",
);
const NODE_CLIENT: (&str, &str) = (
    "nodeclient",
    "Auto approving kubelet client certificate after SubjectAccessReview.",
);

/// Signs what is approved, for the built-in signers.
struct Signer {
    client: kube::Client,
    requests: Informer<CertificateSigningRequest>,
    authority: Authority,
}

#[async_trait]
impl Reconcile for Signer {
    const NAME: &'static str = "csrsigning";

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let Some(held) = self.requests.get(None, &key.name) else {
            return Ok(Next::Wait);
        };
        let decided = certificate(&held).is_some() || has(&held, DENIED) || has(&held, FAILED);
        if decided || !has(&held, APPROVED) || !request::is_built_in(&held.spec.signer_name) {
            return Ok(Next::Wait);
        }
        let signed = self.authority.answer(&held);
        let next = match signed {
            Ok(pem) => {
                let mut signed = (*held).clone();
                signed.status.get_or_insert_default().certificate =
                    Some(ByteString(pem.into_bytes()));
                signed
            }
            Err(why) => with_condition(&held, FAILED, "SignerValidationFailure", &why.to_string()),
        };
        let written = Api::all(self.client.clone())
            .replace_status(&key.name, &PostParams::default(), &next)
            .await;
        gone_is_none(written).context(|| format!("sign {}", key.name))?;
        Ok(Next::Wait)
    }
}

/// Deletes requests that nobody needs any more.
struct Cleaner {
    client: kube::Client,
    requests: Informer<CertificateSigningRequest>,
}

/// Whether a request has been there for long enough, given what became of it.
fn is_old(request: &CertificateSigningRequest, now: Timestamp) -> bool {
    let older = |since: Option<Timestamp>, limit: Duration| {
        since.is_some_and(|since| {
            now.duration_since(since).as_secs() > i64::try_from(limit.as_secs()).unwrap_or(i64::MAX)
        })
    };
    let decided = |kind: &str| {
        conditions(request)
            .filter(|condition| condition.type_ == kind)
            .any(|condition| older(condition.last_update_time.as_ref().map(|t| t.0), DECIDED))
    };
    let issued = certificate(request);
    let pending = conditions(request).next().is_none() && issued.is_none();
    let created = request.metadata.creation_timestamp.as_ref().map(|t| t.0);
    decided(DENIED)
        || decided(FAILED)
        || (issued.is_some() && decided(APPROVED))
        || (pending && older(created, PENDING))
        || (issued.is_none() && has(request, APPROVED) && older(created, PENDING))
        || issued.is_some_and(|pem| request::is_expired(pem, now))
}

#[async_trait]
impl Reconcile for Cleaner {
    const NAME: &'static str = "csrcleaner";
    const WORKERS: usize = 1;

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let Some(held) = self.requests.get(None, &key.name) else {
            return Ok(Next::Wait);
        };
        if !is_old(&held, Timestamp::now()) {
            return Ok(Next::After(LOOK_AGAIN));
        }
        let deleted = Api::all(self.client.clone())
            .delete(&key.name, &DeleteParams::default())
            .await;
        gone_is_none(deleted).context(|| format!("delete {}", key.name))?;
        Ok(Next::Wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn request(conditions: serde_json::Value) -> CertificateSigningRequest {
        serde_json::from_value(json!({
            "metadata": {"name": "r", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"request": "", "signerName": "kubernetes.io/kube-apiserver-client"},
            "status": {"conditions": conditions},
        }))
        .unwrap()
    }

    #[test]
    fn requests_go_an_hour_after_their_decision_and_a_day_without_one() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let waiting = request(json!([]));
        assert!(!is_old(&waiting, at("2026-01-01T23:00:00Z")));
        assert!(is_old(&waiting, at("2026-01-02T01:00:00Z")));
        let denied = request(json!([{
            "type": "Denied", "status": "True", "lastUpdateTime": "2026-01-01T01:00:00Z",
        }]));
        assert!(!is_old(&denied, at("2026-01-01T01:30:00Z")));
        assert!(is_old(&denied, at("2026-01-01T02:30:00Z")));
    }
}
