//! Owners that an object names twice count once, and whoever writes them is told.

use std::collections::HashSet;

use davit_registry::object;
use serde_json::{Value, json};

/// All that a reference says.
const FIELDS: [&str; 6] = [
    "apiVersion",
    "kind",
    "name",
    "uid",
    "controller",
    "blockOwnerDeletion",
];

/// What stands between the words of the warning: when the repetitions were seen.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Seen {
    InRequest,
    AfterAdmission,
}

/// Leaves each of equal owner references in once; the warning when there was something to leave out.
pub(crate) fn leave_out_repeated(object: &mut Value, seen: Seen) -> Option<String> {
    let owners = object.pointer("/metadata/ownerReferences");
    let owners = owners.and_then(Value::as_array).filter(|o| o.len() > 1)?;
    // As many as a request has room for: each is looked up, not compared with all others.
    let mut known = HashSet::new();
    let (mut once, mut repeated) = (Vec::with_capacity(owners.len()), Vec::new());
    for owner in owners {
        match known.insert(FIELDS.map(|field| owner[field].to_string())) {
            true => once.push(owner),
            false => repeated.push(owner["uid"].as_str().unwrap_or_default()),
        }
    }
    if repeated.is_empty() {
        return None;
    }
    let when = match seen {
        Seen::InRequest => "",
        Seen::AfterAdmission => " after mutating admission happens",
    };
    let warning = format!(
        ".metadata.ownerReferences contains duplicate entries{when}; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
        repeated.join(", ")
    );
    let once = json!(once);
    object::set_meta(object, "ownerReferences", once);
    Some(warning)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_owners_count_once() {
        let owner = |uid: &str, name: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid});
        let of = |owners: &[Value]| json!({"metadata": {"name": "a", "ownerReferences": owners}});
        let (a, b, other) = (owner("u", "a"), owner("v", "b"), owner("u", "c"));
        let mut object = of(&[a.clone(), b.clone(), a.clone(), other.clone()]);
        let warning = leave_out_repeated(&mut object, Seen::InRequest).unwrap();
        assert!(warning.ends_with("observed: u"), "{warning}");
        assert_eq!(object, of(&[a.clone(), b, other]));
        assert_eq!(leave_out_repeated(&mut object, Seen::InRequest), None);
        let mut object = of(&[a.clone(), a.clone()]);
        let warning = leave_out_repeated(&mut object, Seen::AfterAdmission).unwrap();
        assert!(
            warning.contains("entries after mutating admission happens;"),
            "{warning}"
        );
        assert_eq!(object, of(&[a]));
    }
}
