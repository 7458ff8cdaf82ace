//! Who may have certificates signed, approve that, and sign them.
//!
//! The plugins CertificateApproval, CertificateSigning and CertificateSubjectRestriction, and the
//! fields of a request that only the server writes: who asked for it, and when its conditions
//! changed. See
//! <https://kubernetes.io/docs/reference/access-authn-authz/certificate-signing-requests/>.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use davit_access::authz::{self, Decision};
use davit_access::{MASTERS, RequestInfo, UserInfo};
use davit_api::field::{ErrorList, FieldError, Path};
use davit_api::status::Status;
use davit_client::subject::Subject;
use davit_registry::{ResourceInfo, object};
use serde_json::{Value, json};

use super::{Attributes, Mutating, Operation, Validating, forbidden};

const GROUP: &str = "certificates.k8s.io";
const REQUESTS: &str = "certificatesigningrequests";
/// The signers whose certificates this server believes are its users'.
const BUILT_IN: [&str; 4] = [
    "kubernetes.io/kube-apiserver-client",
    "kubernetes.io/kube-apiserver-client-kubelet",
    "kubernetes.io/kubelet-serving",
    "kubernetes.io/legacy-unknown",
];

/// Writes who asks for a certificate, whatever the request says about it.
pub fn set_requester(resource: &ResourceInfo, user: &UserInfo, new: &mut Value) {
    if resource.row.group != GROUP || resource.row.plural != REQUESTS {
        return;
    }
    let Some(spec) = new.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    for key in ["username", "uid", "groups", "extra"] {
        spec.remove(key);
    }
    spec.insert("username".to_owned(), json!(user.name));
    if !user.uid.is_empty() {
        spec.insert("uid".to_owned(), json!(user.uid));
    }
    if !user.groups.is_empty() {
        spec.insert("groups".to_owned(), json!(user.groups));
    }
    if !user.extra.is_empty() {
        spec.insert("extra".to_owned(), json!(user.extra));
    }
}

fn is_request(attributes: &Attributes<'_>, subresource: &str) -> bool {
    let row = &attributes.resource.row;
    row.group == GROUP && row.plural == REQUESTS && attributes.subresource == subresource
}

fn signer(object: &Value) -> &str {
    object["spec"]["signerName"].as_str().unwrap_or_default()
}

/// Whether the user may do `verb` for a signer: by its name, or for all of its domain.
async fn may(attributes: &Attributes<'_>, verb: &str, signer: &str) -> bool {
    let domain = signer.split_once('/').map_or(signer, |(domain, _)| domain);
    for name in [signer.to_owned(), format!("{domain}/*")] {
        let request = RequestInfo {
            verb: verb.to_owned(),
            is_resource: true,
            prefix: "apis".to_owned(),
            group: GROUP.to_owned(),
            version: "*".to_owned(),
            resource: "signers".to_owned(),
            name,
            ..RequestInfo::default()
        };
        let asked = authz::Attributes {
            user: attributes.user,
            request: &request,
        };
        let decision = attributes.server.authorizer().decide(&asked).await;
        if matches!(decision, Decision::Allow(_)) {
            return true;
        }
    }
    false
}

/// Sets the times of conditions that are new or changed their status.
fn stamp(new: &mut Value, old: Option<&Value>) {
    let held: Vec<Value> = old
        .and_then(|old| old.pointer("/status/conditions"))
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let conditions = new
        .pointer_mut("/status/conditions")
        .and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten() {
        let before = held.iter().find(|held| held["type"] == condition["type"]);
        if before == Some(condition) {
            continue;
        }
        if condition["lastUpdateTime"].is_null() {
            condition["lastUpdateTime"] = json!(object::now());
        }
        let same = before.filter(|before| before["status"] == condition["status"]);
        match same.map(|before| before["lastTransitionTime"].clone()) {
            Some(time) if !time.is_null() => condition["lastTransitionTime"] = time,
            _ if condition["lastTransitionTime"].is_null() => {
                condition["lastTransitionTime"] = json!(object::now());
            }
            _ => {}
        }
    }
}

/// The plugin CertificateApproval.
pub(super) struct Approval;

impl Mutating for Approval {
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&mut Value>,
    ) -> Result<(), Status> {
        let updates = attributes.operation == Operation::Update
            && (is_request(attributes, "approval") || is_request(attributes, "status"));
        if let Some(object) = object.filter(|_| updates) {
            stamp(object, attributes.old);
        }
        Ok(())
    }
}

impl Validating for Approval {
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        if attributes.operation != Operation::Update || !is_request(attributes, "approval") {
            return Ok(());
        }
        let signer = attributes.old.or(object).map(signer).unwrap_or_default();
        if may(attributes, "approve", signer).await {
            return Ok(());
        }
        let why = format!("user not permitted to approve requests with signerName {signer:?}");
        Err(forbidden(attributes, object, why))
    }
}

/// The plugin CertificateSigning.
pub(super) struct Signing;

impl Validating for Signing {
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        if attributes.operation != Operation::Update || !is_request(attributes, "status") {
            return Ok(());
        }
        let status = |request: Option<&Value>, key: &str| {
            request
                .map(|request| request["status"][key].clone())
                .unwrap_or_default()
        };
        let same = |key: &str| status(object, key) == status(attributes.old, key);
        if same("certificate") && same("conditions") {
            return Ok(());
        }
        let signer = attributes.old.or(object).map(signer).unwrap_or_default();
        if may(attributes, "sign", signer).await {
            return Ok(());
        }
        let why = format!("user not permitted to sign requests with signerName {signer:?}");
        Err(forbidden(attributes, object, why))
    }
}

/// What of the status of a PodCertificateRequest a writer may not write: who changes it has to be allowed to `sign` for the signer
/// that it names (KEP-4317). This is a rule of the kind and no plugin: no configuration switches it off.
pub async fn signing_faults(attributes: &Attributes<'_>, new: &Value) -> ErrorList {
    let row = &attributes.resource.row;
    let is_status = row.group == GROUP && row.kind == "PodCertificateRequest";
    let Some(old) = attributes.old.filter(|_| is_status) else {
        return ErrorList::new();
    };
    let signer = signer(old);
    if new["status"] == old["status"] || may(attributes, "sign", signer).await {
        return ErrorList::new();
    }
    let user = &attributes.user.name;
    let why = format!("User {user:?} is not permitted to \"sign\" for signer {signer:?}");
    let path = Path::new("spec").child("signerName");
    vec![FieldError::forbidden(&path, why)]
}

/// The plugin CertificateSubjectRestriction: nobody becomes system:masters by certificate.
pub(super) struct SubjectRestriction;

impl Validating for SubjectRestriction {
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let creates = attributes.operation == Operation::Create && is_request(attributes, "");
        let Some(request) = object.filter(|_| creates) else {
            return Ok(());
        };
        let signer = signer(request);
        if !BUILT_IN.contains(&signer) {
            return Ok(());
        }
        let subject = subject(request).map_err(|why| {
            let why = format!("failed to parse CSR: {why}");
            forbidden(attributes, object, why)
        })?;
        if subject.organizations.iter().any(|name| name == MASTERS) {
            let why = format!("use of {signer} signer with {MASTERS} group is not allowed");
            return Err(forbidden(attributes, object, why));
        }
        if !subject.is_plain() {
            let why = format!("{signer} signs common name and organizations only");
            return Err(forbidden(attributes, object, why));
        }
        Ok(())
    }
}

/// The subject of a request, as its signer will read it.
fn subject(request: &Value) -> Result<Subject, String> {
    let encoded = request["spec"]["request"].as_str().unwrap_or_default();
    let pem = STANDARD.decode(encoded).map_err(|e| e.to_string())?;
    Subject::of_request(&pem).map_err(|e| e.to_string())
}
