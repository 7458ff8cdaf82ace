//! Nobody grants what they do not hold.
//!
//! Writing a role needs all of its rules, or the verb `escalate` on it; binding a role needs all
//! of its rules, or the verb `bind` on it. Members of system:masters are not asked. See
//! <https://kubernetes.io/docs/reference/access-authn-authz/rbac/#privilege-escalation-prevention-and-bootstrapping>.

use davit_access::authz::rbac::{GROUP, Rbac, Rule, role_ref_of, rule};
use davit_access::authz::{self, Decision};
use davit_access::{MASTERS, RequestInfo};
use davit_admission::{Attributes, Operation};
use davit_api::status::Status;
use davit_registry::object;
use serde_json::Value;

use crate::server::ApiServer;

/// Refuses the write of a role or binding that would give its writer's rights to others, or to
/// itself, beyond what the writer has. Does nothing for other kinds.
///
/// # Errors
/// Forbidden with the missing rules; not found when a binding names a role that does not exist.
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
    let rbac = server.rbac();
    rbac.fresh().await;
    match row.plural {
        "roles" | "clusterroles" => role(attributes, rbac, new).await,
        "rolebindings" | "clusterrolebindings" => binding(attributes, rbac, new).await,
        _ => Ok(()),
    }
}

async fn role(attributes: &Attributes<'_>, rbac: &Rbac, new: &Value) -> Result<(), Status> {
    if only_collects(attributes.old, new) {
        return Ok(());
    }
    // Labels count as much as rules: by them a role's rules are gathered into others.
    let plural = attributes.resource.row.plural;
    if may(attributes, "escalate", plural, object::name(new)).await {
        return Ok(());
    }
    let rules = Rule::of(new);
    holds(attributes, rbac, &rules, new)?;
    let aggregates = |role: &Value| !role["aggregationRule"].is_null();
    let aggregated = aggregates(new) || attributes.old.is_some_and(aggregates);
    // what an aggregation gathers is not known beforehand
    let (held, _) = rbac.rules_of(attributes.user, attributes.namespace);
    if aggregated && !rule::holds_all(&held, &Rule::everything()) {
        let why = "must have cluster-admin privileges to use an aggregationRule";
        return Err(forbidden(attributes, new, why));
    }
    Ok(())
}

async fn binding(attributes: &Attributes<'_>, rbac: &Rbac, new: &Value) -> Result<(), Status> {
    if only_collects(attributes.old, new) {
        return Ok(());
    }
    let same = |key: &str| {
        attributes
            .old
            .is_some_and(|old| old.get(key) == new.get(key))
    };
    if same("roleRef") && same("subjects") {
        return Ok(());
    }
    let role = role_ref_of(&new["roleRef"]);
    let plural = if role.cluster {
        "clusterroles"
    } else {
        "roles"
    };
    if may(attributes, "bind", plural, &role.name).await {
        return Ok(());
    }
    let rules = rbac.referenced(&new["roleRef"], attributes.namespace)?;
    holds(attributes, rbac, &rules, new)
}

/// Whether an update changes nothing but what garbage collection writes.
fn only_collects(old: Option<&Value>, new: &Value) -> bool {
    let Some(old) = old else { return false };
    let rest = |object: &Value| {
        let mut object = object.clone();
        let keys = [
            "ownerReferences",
            "finalizers",
            "resourceVersion",
            "managedFields",
        ];
        object::remove_meta(&mut object, &keys);
        object
    };
    rest(old) == rest(new)
}

async fn may(attributes: &Attributes<'_>, verb: &str, plural: &str, name: &str) -> bool {
    let namespace = attributes.namespace;
    let request = RequestInfo {
        verb: verb.to_owned(),
        is_resource: true,
        prefix: "apis".to_owned(),
        group: GROUP.to_owned(),
        version: "v1".to_owned(),
        resource: plural.to_owned(),
        name: name.to_owned(),
        namespace: Some(namespace.to_owned()).filter(|namespace| !namespace.is_empty()),
        ..RequestInfo::default()
    };
    let asked = authz::Attributes {
        user: attributes.user,
        request: &request,
    };
    let decision = attributes.server.authorizer().decide(&asked).await;
    matches!(decision, Decision::Allow(_))
}

fn holds(
    attributes: &Attributes<'_>,
    rbac: &Rbac,
    wanted: &[Rule],
    new: &Value,
) -> Result<(), Status> {
    let user = attributes.user;
    let (held, faults) = rbac.rules_of(user, attributes.namespace);
    let missing =
        rule::missing(&held, wanted).map_err(|error| Status::bad_request(error.to_string()))?;
    if missing.is_empty() {
        return Ok(());
    }
    let mut why = format!(
        "user {:?} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
        user.name,
        rule::quoted_list(&user.groups),
        rule::describe(&missing)
    );
    if !faults.is_empty() {
        why.push_str(&format!("; resolution errors: [{}]", faults.join(", ")));
    }
    Err(forbidden(attributes, new, why))
}

fn forbidden(attributes: &Attributes<'_>, new: &Value, why: impl Into<String>) -> Status {
    Status::forbidden(
        attributes.resource.qualified(),
        object::name(new),
        why.into(),
    )
}
