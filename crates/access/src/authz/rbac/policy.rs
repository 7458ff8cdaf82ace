//! The roles and bindings every cluster has, as data.
//!
//! A rule is written `VERBS GROUPS RESOURCES [NAMES]` or `VERBS PATHS`, lists separated by commas;
//! `-` is the core group, `read` stands for get, list and watch, `write` for the verbs that change,
//! and `events` for the rule that lets events be written. What the roles are for:
//! <https://kubernetes.io/docs/reference/access-authn-authz/rbac/#default-roles-and-role-bindings>.

mod bindings;
mod cluster_roles;
mod controllers;

use davit_api::features::Features;
use serde_json::{Value, json};

use self::bindings::{BINDINGS, CLUSTER_BINDINGS, ROLES};
use self::cluster_roles::{AGGREGATED, CLUSTER_ROLES, GATED_RULES, NODE};
use self::controllers::{CONTROLLER_ROLES, GATED_CONTROLLER_ROLES, OWN_CONTROLLER_ROLES};
use super::rule::Rule;

const LABEL: &str = "kubernetes.io/bootstrapping";
/// Roles and bindings with this annotation are brought back to their contents at each start.
pub const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
const AGGREGATE: &str = "rbac.authorization.k8s.io/aggregate-to-";
const CONTROLLER: &str = "system:controller:";
const OWN_CONTROLLER: &str = "davit:controller:";
const EVENTS: &str = "create,patch,update -,events.k8s.io events";

fn rule(text: &str) -> Rule {
    let text = if text == "events" { EVENTS } else { text };
    let list = |words: &str| -> Vec<String> {
        words
            .split(',')
            .flat_map(|word| match word {
                "-" => vec![""],
                "read" => vec!["get", "list", "watch"],
                "write" => vec!["create", "delete", "deletecollection", "patch", "update"],
                word => vec![word],
            })
            .map(str::to_owned)
            .collect()
    };
    let mut words = text.split(' ').map(list);
    let mut next = || words.next().unwrap_or_default();
    let (verbs, second) = (next(), next());
    let resources = next();
    if resources.is_empty() {
        return Rule {
            verbs,
            urls: second,
            ..Rule::default()
        };
    }
    Rule {
        verbs,
        groups: second,
        resources,
        names: next(),
        urls: Vec::new(),
    }
}

fn rules(texts: &[&str]) -> Value {
    texts.iter().map(|text| rule(text).to_value()).collect()
}
/// What every node may do.
pub(crate) fn node_rules() -> Vec<Rule> {
    NODE.iter().map(|text| rule(text)).collect()
}

fn object(kind: &str, namespace: &str, name: &str) -> Value {
    let mut object = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": {
            "name": name,
            "labels": { LABEL: "rbac-defaults" },
            "annotations": { AUTOUPDATE: "true" },
        },
    });
    if !namespace.is_empty() {
        object["metadata"]["namespace"] = json!(namespace);
    }
    object
}

fn role_ref(kind: &str, name: &str) -> Value {
    json!({ "apiGroup": super::GROUP, "kind": kind, "name": name })
}

fn subject(kind: &str, name: &str) -> Value {
    match kind {
        "ServiceAccount" => json!({ "kind": kind, "name": name, "namespace": "kube-system" }),
        _ => json!({ "apiGroup": super::GROUP, "kind": kind, "name": name }),
    }
}

/// The cluster roles where these feature gates are on.
pub fn cluster_roles(features: &Features) -> Vec<Value> {
    let gathered = AGGREGATED.iter().map(|(name, into)| {
        let mut role = object("ClusterRole", "", name);
        let label = format!("{AGGREGATE}{name}");
        role["aggregationRule"] =
            json!({ "clusterRoleSelectors": [{ "matchLabels": { label: "true" } }] });
        aggregate(&mut role, into);
        role
    });
    let plain = CLUSTER_ROLES.iter().map(|(name, into, texts)| {
        let mut role = object("ClusterRole", "", name);
        role["rules"] = rules(&with_gated(name, texts, features));
        aggregate(&mut role, into);
        role
    });
    let controllers = controller_roles(features).map(|(prefix, name, texts)| {
        let name = format!("{prefix}{name}");
        let mut role = object("ClusterRole", "", &name);
        role["rules"] = rules(&with_gated(&name, texts, features));
        role
    });
    gathered.chain(plain).chain(controllers).collect()
}

/// The rules of a role, with those of the gates that are on.
fn with_gated<'a>(role: &str, texts: &[&'a str], features: &Features) -> Vec<&'a str> {
    let more = GATED_RULES
        .iter()
        .filter(|(gate, of, _)| *of == role && features.is_on(gate));
    let more = more.flat_map(|(_, _, texts)| texts.iter());
    texts.iter().chain(more).copied().collect()
}

/// `into` names the roles that it becomes a part of, parted by commas.
fn aggregate(role: &mut Value, into: &str) {
    for into in into.split(',').filter(|name| !name.is_empty()) {
        role["metadata"]["labels"][format!("{AGGREGATE}{into}")] = json!("true");
    }
}

/// The roles of controllers where these feature gates are on: the prefix of their names, the names of the service accounts
/// that have them, which follow it, and their rules.
fn controller_roles(
    features: &Features,
) -> impl Iterator<Item = (&'static str, &'static str, &'static [&'static str])> {
    let always = CONTROLLER_ROLES.iter();
    let always = always.map(|(name, texts)| (CONTROLLER, *name, *texts));
    let gated = GATED_CONTROLLER_ROLES.iter();
    let gated = gated.filter(|(gate, ..)| features.is_on(gate));
    let gated = gated.map(|(_, name, texts)| (CONTROLLER, *name, *texts));
    let own = OWN_CONTROLLER_ROLES.iter();
    let own = own.map(|(name, texts)| (OWN_CONTROLLER, *name, *texts));
    always.chain(gated).chain(own)
}

/// The bindings of cluster roles where these feature gates are on.
pub fn cluster_role_bindings(features: &Features) -> Vec<Value> {
    let plain = CLUSTER_BINDINGS.iter().map(|(name, role, subjects)| {
        let mut binding = object("ClusterRoleBinding", "", name);
        binding["roleRef"] = role_ref("ClusterRole", role);
        let (kind, names) = match subjects.split_first() {
            Some((kind, names)) => (*kind, names),
            None => ("", &[][..]),
        };
        let kind = if kind == "u" { "User" } else { "Group" };
        if !names.is_empty() {
            binding["subjects"] = names.iter().map(|name| subject(kind, name)).collect();
        }
        binding
    });
    let controllers = controller_roles(features).map(|(prefix, name, _)| {
        let role = format!("{prefix}{name}");
        let mut binding = object("ClusterRoleBinding", "", &role);
        binding["roleRef"] = role_ref("ClusterRole", &role);
        binding["subjects"] = json!([subject("ServiceAccount", name)]);
        binding
    });
    plain.chain(controllers).collect()
}

/// The roles of kube-system and kube-public.
pub fn roles() -> Vec<Value> {
    let roles = ROLES.iter().map(|(namespace, name, texts)| {
        let mut role = object("Role", namespace, name);
        role["rules"] = rules(texts);
        role
    });
    roles.collect()
}

/// The bindings of those.
pub fn role_bindings() -> Vec<Value> {
    let bindings = BINDINGS
        .iter()
        .map(|(namespace, name, role, users, accounts, groups)| {
            let mut binding = object("RoleBinding", namespace, name);
            binding["roleRef"] = role_ref("Role", role);
            let users = users.iter().map(|name| subject("User", name));
            let accounts = accounts.iter().map(|name| subject("ServiceAccount", name));
            let groups = groups.iter().map(|name| subject("Group", name));
            binding["subjects"] = users.chain(accounts).chain(groups).collect();
            binding
        });
    bindings.collect()
}

#[cfg(test)]
mod tests;
