//! Who gets which names: no two definitions of a group share one, and none is called as a built-in kind, whose objects would
//! be its own.

use std::collections::HashSet;

use davit_registry::storage;
use serde_json::{Value, json};

/// Whether the objects of a definition would be those of a built-in kind: by the name that it asks for, or the one that its status
/// says it has, which others may write.
pub(super) fn are_built_in(definition: &Value) -> bool {
    let spec = &definition["spec"];
    let group = spec["group"].as_str().unwrap_or_default();
    let accepted = &definition["status"]["acceptedNames"];
    let plurals = [&spec["names"]["plural"], &accepted["plural"]];
    let mut plurals = plurals.into_iter().filter_map(Value::as_str);
    plurals.any(|plural| storage::is_built_in(group, plural))
}

/// The names a definition gets, and whether it gets all that it asked for.
#[derive(Debug, PartialEq)]
pub(super) struct Accepted {
    pub(super) names: Value,
    /// Reason and message of the conflict.
    pub(super) conflict: Option<(&'static str, String)>,
}

/// Decides by the names that the other definitions of the group have.
pub(super) fn accept<'a>(definition: &Value, others: impl Iterator<Item = &'a Value>) -> Accepted {
    let mut resources = HashSet::new();
    let mut kinds = HashSet::new();
    for other in others {
        let names = &other["status"]["acceptedNames"];
        let text = |key: &str| names[key].as_str().filter(|name| !name.is_empty());
        resources.extend(text("plural"));
        resources.extend(text("singular"));
        let short = names["shortNames"].as_array();
        resources.extend(short.into_iter().flatten().filter_map(Value::as_str));
        kinds.extend(text("kind"));
        kinds.extend(text("listKind"));
    }
    let wanted = &definition["spec"]["names"];
    let group = definition["spec"]["group"].as_str().unwrap_or_default();
    let built_in = wanted["plural"].as_str();
    resources.extend(built_in.filter(|plural| storage::is_built_in(group, plural)));
    let mut names = definition["status"]["acceptedNames"].clone();
    if !names.is_object() {
        names = json!({});
    }
    let mut conflict = None;
    let in_use = |name: &str| format!("{} is already in use", davit_api::field::quote(name));
    for (key, reason, used) in [
        ("plural", "PluralConflict", &resources),
        ("singular", "SingularConflict", &resources),
        ("shortNames", "ShortNamesConflict", &resources),
        ("kind", "KindConflict", &kinds),
        ("listKind", "ListKindConflict", &kinds),
    ] {
        let asked: Vec<&str> = match &wanted[key] {
            Value::Array(list) => list.iter().filter_map(Value::as_str).collect(),
            Value::String(name) => vec![name],
            _ => Vec::new(),
        };
        let taken: Vec<String> = asked
            .iter()
            .filter(|name| used.contains(**name))
            .map(|name| in_use(name))
            .collect();
        match taken.as_slice() {
            [] => match wanted.get(key) {
                Some(value) => names[key] = value.clone(),
                None => {
                    names.as_object_mut().map(|names| names.remove(key));
                }
            },
            [one] => conflict = Some((reason, one.clone())),
            many => conflict = Some((reason, format!("[{}]", many.join(", ")))),
        }
    }
    match wanted.get("categories") {
        Some(categories) => names["categories"] = categories.clone(),
        None => {
            names
                .as_object_mut()
                .map(|names| names.remove("categories"));
        }
    }
    Accepted { names, conflict }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_definition_is_called_as_a_built_in_kind() {
        for (group, plural, taken) in [
            ("rbac.authorization.k8s.io", "clusterroles", true),
            // where classic claims are
            ("resource.k8s.io-v1alpha1", "resourceclaims", true),
            ("rbac.authorization.k8s.io", "roles2", false),
            ("example.com", "clusterroles", false),
        ] {
            let names = json!({"plural": plural, "kind": "A"});
            let definition = json!({"spec": {"group": group, "names": names.clone()}});
            let accepted = accept(&definition, std::iter::empty());
            assert_eq!(accepted.conflict.is_some(), taken, "{plural}.{group}");
            let status = json!({"acceptedNames": names});
            let names = json!({"plural": "others", "kind": "A"});
            let written = json!({"spec": {"group": group, "names": names}, "status": status});
            assert_eq!(are_built_in(&written), taken, "{plural}.{group}");
        }
    }

    // 159
    #[test]
    fn the_second_to_ask_for_a_name_does_not_get_it() {
        let names = json!({"plural": "as", "singular": "a", "kind": "A", "listKind": "AList",
            "shortNames": ["x"]});
        let first = json!({"spec": {"names": names}});
        let accepted = accept(&first, std::iter::empty());
        assert_eq!(accepted.conflict, None);
        let first = json!({"status": {"acceptedNames": accepted.names}});
        let mut names = names;
        names["plural"] = json!("bs");
        names["singular"] = json!("b");
        let second = json!({"spec": {"names": names}});
        let accepted = accept(&second, std::iter::once(&first));
        assert_eq!(
            accepted.conflict,
            Some(("ListKindConflict", "\"AList\" is already in use".to_owned()))
        );
        assert_eq!(accepted.names, json!({"plural": "bs", "singular": "b"}));
    }
}
