//! Bringing the bootstrap policy into the cluster at each start.
//!
//! What is missing is made. What is there and has not opted out (annotation autoupdate "false")
//! gets back the rules and subjects it lacks, and keeps what was added to it. A binding that names
//! another role is made anew, since a role reference cannot change.

use std::sync::Arc;

use davit_access::authz::rbac::GROUP;
use davit_access::authz::rbac::policy::{self, AUTOUPDATE};
use davit_access::authz::rbac::rule::{Rule, lacking};
use davit_api::status::{Reason, Status};
use davit_registry::object;
use futures::StreamExt;
use serde_json::{Value, json};

use crate::ownership::Tracking;
use crate::server::ApiServer;
use crate::writes::{Author, DeleteOptions};

/// Who owns the fields written here.
const MANAGER: &str = "kube-apiserver";

/// Writes under way at the same time; the store syncs them together.
const TOGETHER: usize = 64;

/// Makes and repairs the bootstrap roles and bindings.
///
/// # Errors
/// The first write that fails, with the object's name.
pub(crate) async fn ensure(server: &Arc<ApiServer>) -> Result<(), (String, Status)> {
    let all = [
        ("clusterroles", policy::cluster_roles(server.features())),
        (
            "clusterrolebindings",
            policy::cluster_role_bindings(server.features()),
        ),
        ("roles", policy::roles()),
        ("rolebindings", policy::role_bindings()),
    ];
    let mut work = Vec::new();
    for (plural, wanted) in all {
        let held = server.objects(GROUP, plural, None).await;
        let held = held.map_err(|status| (plural.to_owned(), status))?;
        for wanted in wanted {
            let held = held
                .iter()
                .find(|held| {
                    object::name(held) == object::name(&wanted)
                        && object::namespace(held) == object::namespace(&wanted)
                })
                .cloned();
            work.push((plural, wanted, held));
        }
    }
    let mut writes = Vec::new();
    for (plural, wanted, held) in work {
        let write = async move {
            let what = format!("{plural} {}", object::name(&wanted));
            bring(server, plural, wanted, held)
                .await
                .map_err(|status| (what, status))
        };
        writes.push(write);
    }
    let mut done = futures::stream::iter(writes).buffer_unordered(TOGETHER);
    while let Some(result) = done.next().await {
        result?;
    }
    Ok(())
}

async fn bring(
    server: &ApiServer,
    plural: &str,
    wanted: Value,
    held: Option<Value>,
) -> Result<(), Status> {
    let snapshot = server.registry().snapshot();
    let Some(resource) = snapshot.by_group_resource(GROUP, plural) else {
        return Ok(());
    };
    let author = Author::apiserver();
    let name = object::name(&wanted).to_owned();
    let namespace = object::namespace(&wanted).to_owned();
    let writer = author.writer(
        server,
        resource,
        &namespace,
        Tracking::Update(MANAGER.to_owned()),
    );
    let Some(held) = held else {
        return made(writer.create(wanted).await.map(|_| ()));
    };
    if held["metadata"]["annotations"][AUTOUPDATE] == "false" {
        return Ok(());
    }
    if wanted.get("roleRef").is_some() && held["roleRef"] != wanted["roleRef"] {
        let options = DeleteOptions::from_value(&Value::Null)?;
        writer.delete(&name, &options).await?;
        return made(writer.create(wanted).await.map(|_| ()));
    }
    if repaired(&held, &wanted) == held {
        return Ok(());
    }
    let mut transform = |current: &Value| Ok(repaired(current, &wanted));
    writer.update(&name, "", &mut transform).await.map(|_| ())
}

/// Another server may have been faster.
fn made(result: Result<(), Status>) -> Result<(), Status> {
    match result {
        Err(status) if status.reason == Reason::AlreadyExists => Ok(()),
        result => result,
    }
}

/// The held object with what it lacks of the wanted one.
fn repaired(held: &Value, wanted: &Value) -> Value {
    let mut new = held.clone();
    for map in ["labels", "annotations"] {
        for (key, value) in wanted["metadata"][map].as_object().into_iter().flatten() {
            if new["metadata"][map].get(key).is_none() {
                new["metadata"][map][key.as_str()] = value.clone();
            }
        }
    }
    if let Some(rule) = wanted.get("aggregationRule") {
        if new.get("aggregationRule").is_none_or(Value::is_null) {
            new["aggregationRule"] = rule.clone();
        }
        return new;
    }
    if wanted.get("rules").is_some() {
        let lacking = lacking(&Rule::of(held), &Rule::of(wanted));
        append(&mut new, "rules", lacking.iter().map(Rule::to_value));
    }
    let subjects = wanted["subjects"].as_array().into_iter().flatten();
    let has = |subject: &&Value| {
        let held = held["subjects"].as_array().into_iter().flatten();
        let keys = ["kind", "name", "namespace"];
        held.into_iter()
            .any(|held| keys.iter().all(|key| held.get(key) == subject.get(key)))
    };
    let lacking: Vec<Value> = subjects.filter(|subject| !has(subject)).cloned().collect();
    append(&mut new, "subjects", lacking.into_iter());
    new
}

fn append(object: &mut Value, key: &str, items: impl Iterator<Item = Value>) {
    let items: Vec<Value> = items.collect();
    if items.is_empty() {
        return;
    }
    if !object[key].is_array() {
        object[key] = json!([]);
    }
    if let Some(list) = object[key].as_array_mut() {
        list.extend(items);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use davit_api::features::Features;

    #[test]
    fn item_190_what_is_lacking_comes_back_and_what_was_added_stays() {
        let wanted = &policy::cluster_roles(&Features::default())[3];
        assert_eq!(&repaired(wanted, wanted), wanted);
        let mut held = wanted.clone();
        let own = json!({"verbs": ["get"], "apiGroups": ["own"], "resources": ["things"]});
        held["rules"] = json!([own]);
        let new = repaired(&held, wanted);
        assert_eq!(new["rules"][0], own);
        assert!(lacking(&Rule::of(&new), &Rule::of(wanted)).is_empty());
    }
}
