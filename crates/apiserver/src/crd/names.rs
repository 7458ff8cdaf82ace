//! Who gets which names: no two definitions of a group share one.

use std::collections::HashSet;

use serde_json::{Value, json};

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
