//! Nobody has an admission policy read for him what he may not read.
//!
//! Policies see their parameters with the server's rights, and tell of them in messages and audit annotations. Who writes a
//! policy needs the verb `get` on all objects of its `paramKind`; who writes a binding needs `get` on the object that
//! `paramRef` names, or `list` of those that it selects. Members of system:masters are not asked, nor who changes nothing of
//! what they say.

use davit_access::authz::{self, Decision};
use davit_access::{MASTERS, RequestInfo};
use davit_admission::{Attributes, Operation};
use davit_api::field::{FieldError, Path};
use davit_api::status::Status;
use davit_registry::object;
use serde_json::Value;

use crate::server::ApiServer;

const GROUP: &str = "admissionregistration.k8s.io";

/// Refuses the write of a policy or binding whose writer may not read its parameters. Does nothing for other kinds.
///
/// # Errors
/// Invalid, with what the writer may not; what reading the policy of a binding fails with.
pub(super) async fn check(
    server: &ApiServer,
    attributes: &Attributes<'_>,
    new: &Value,
) -> Result<(), Status> {
    let row = &attributes.resource.row;
    let written = matches!(attributes.operation, Operation::Create | Operation::Update);
    if row.group != GROUP || !written || attributes.user.in_group(MASTERS) {
        return Ok(());
    }
    match row.plural {
        "validatingadmissionpolicies" | "mutatingadmissionpolicies" => {
            policy(server, attributes, new).await
        }
        "validatingadmissionpolicybindings" => {
            binding(server, attributes, new, "validatingadmissionpolicies").await
        }
        "mutatingadmissionpolicybindings" => {
            binding(server, attributes, new, "mutatingadmissionpolicies").await
        }
        _ => Ok(()),
    }
}

/// Whether an update leaves all that a policy or binding says as it is. Everything may tell of parameters: messages and
/// expressions, and for whom they are told.
fn says_the_same(attributes: &Attributes<'_>, new: &Value) -> bool {
    attributes.old.is_some_and(|old| old["spec"] == new["spec"])
}

async fn policy(
    server: &ApiServer,
    attributes: &Attributes<'_>,
    new: &Value,
) -> Result<(), Status> {
    let kind = &new["spec"]["paramKind"];
    if kind.is_null() || says_the_same(attributes, new) {
        return Ok(());
    }
    let mut request = of_kind(server, kind);
    "get".clone_into(&mut request.verb);
    "*".clone_into(&mut request.name);
    request.namespace = Some("*".to_owned());
    if may(server, attributes, &request).await {
        return Ok(());
    }
    let text = |key: &str| kind[key].as_str().unwrap_or_default();
    let why = format!(
        "user {:?} must have \"get\" permission on all objects of the referenced paramKind (kind={}, apiVersion={})",
        attributes.user.name,
        text("kind"),
        text("apiVersion"),
    );
    Err(refused(attributes, new, "paramKind", why))
}

async fn binding(
    server: &ApiServer,
    attributes: &Attributes<'_>,
    new: &Value,
    policies: &str,
) -> Result<(), Status> {
    let reference = &new["spec"]["paramRef"];
    if reference.is_null() || says_the_same(attributes, new) {
        return Ok(());
    }
    let text = |key: &str| reference[key].as_str().unwrap_or_default();
    let policy = new["spec"]["policyName"].as_str().unwrap_or_default();
    let policy = server.object(GROUP, policies, "", policy).await?;
    // of a policy that is not there yet nobody knows the kind
    let kind = policy.map_or(Value::Null, |policy| policy["spec"]["paramKind"].clone());
    let mut request = of_kind(server, &kind);
    let verb = match text("name") {
        "" => "list",
        _ => "get",
    };
    verb.clone_into(&mut request.verb);
    text("name").clone_into(&mut request.name);
    // without one it is that of whatever is admitted: any
    request.namespace =
        Some(text("namespace").to_owned()).filter(|namespace| !namespace.is_empty());
    if may(server, attributes, &request).await {
        return Ok(());
    }
    let why = format!(
        "user {:?} does not have {verb:?} permission on the object referenced by paramRef",
        attributes.user.name
    );
    Err(refused(attributes, new, "paramRef", why))
}

/// A request about objects of a kind: about everything as far as the kind is not known.
fn of_kind(server: &ApiServer, kind: &Value) -> RequestInfo {
    let text = |key: &str| kind[key].as_str().unwrap_or_default();
    let any = || "*".to_owned();
    let (group, version) = match (kind.is_null(), text("apiVersion").split_once('/')) {
        (true, _) => (any(), any()),
        (false, Some((group, version))) => (group.to_owned(), version.to_owned()),
        (false, None) => (String::new(), text("apiVersion").to_owned()),
    };
    let snapshot = server.registry().snapshot();
    let mut all = snapshot.all();
    let found = all.find(|resource| {
        resource.api_version() == text("apiVersion") && resource.row.kind == text("kind")
    });
    RequestInfo {
        is_resource: true,
        prefix: "apis".to_owned(),
        group,
        version,
        resource: found.map_or_else(any, |resource| resource.row.plural.to_owned()),
        ..RequestInfo::default()
    }
}

async fn may(server: &ApiServer, attributes: &Attributes<'_>, request: &RequestInfo) -> bool {
    let asked = authz::Attributes {
        user: attributes.user,
        request,
    };
    let decision = server.authorizer().decide(&asked).await;
    matches!(decision, Decision::Allow(_))
}

fn refused(attributes: &Attributes<'_>, new: &Value, field: &str, why: String) -> Status {
    let fault = FieldError::forbidden(&Path::new("spec").child(field), why);
    let kind = attributes.resource.qualified_kind();
    Status::invalid(kind, object::name(new), &[fault])
}
