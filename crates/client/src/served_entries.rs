//! What a backend says it serves, as far as discovery tells it to everybody.
//!
//! All groups are in one document: an entry that a client cannot read would take the others from it, and namespaces would not
//! be emptied, nor anything be collected, in the whole cluster. So what is no entry is no answer, as with kube-apiserver, which
//! decodes it. Form: <https://kubernetes.io/docs/reference/using-api/api-concepts/#aggregated-discovery>.

use crate::path_segment;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Resources of one version that can be watched or deleted: whoever follows all kinds watches each, and each is looked for in a
/// namespace that goes. Adapters tell of each metric as a resource
/// or subresource that can be had alone; of those there are as many as there is room for in the answer.
const MAX_FOLLOWED: usize = 1000;
/// Verbs of a resource, and its other names.
const MAX_ITEMS: usize = 100;
/// Bytes of a name.
const MAX_NAME: usize = 1024;

/// `APIResourceDiscovery`
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ServedResource {
    resource: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    response_kind: Option<NamedKind>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scope: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    singular_resource: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    verbs: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    short_names: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    categories: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    subresources: Option<Vec<ServedSubresource>>,
}

/// `APISubresourceDiscovery`
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ServedSubresource {
    subresource: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    response_kind: Option<NamedKind>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    accepted_types: Option<Vec<NamedKind>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    verbs: Option<Vec<String>>,
}

/// `GroupVersionKind`
#[derive(Debug, Serialize, Deserialize)]
struct NamedKind {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    group: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
}

impl NamedKind {
    fn texts(&self) -> impl Iterator<Item = &String> {
        [&self.group, &self.version, &self.kind]
            .into_iter()
            .flatten()
    }
}

/// The entries in the form that all clients read.
///
/// # Errors
/// Why there is no such answer.
pub fn served_entries(entries: &[Value]) -> Result<Vec<Value>, String> {
    let mut followed = 0;
    let entry = |entry: &Value| {
        let resource = ServedResource::deserialize(entry).map_err(|error| error.to_string())?;
        resource.check()?;
        let mut verbs = resource.verbs.iter().flatten();
        followed += usize::from(verbs.any(|verb| matches!(&**verb, "watch" | "delete")));
        if followed > MAX_FOLLOWED {
            return Err(format!(
                "more than {MAX_FOLLOWED} can be watched or deleted"
            ));
        }
        serde_json::to_value(resource).map_err(|error| error.to_string())
    };
    let all = entries.iter().map(entry);
    all.collect::<Result<_, _>>()
        .map_err(|error| format!("a resource that is none: {error}"))
}

impl ServedResource {
    fn check(&self) -> Result<(), String> {
        is_segment(&self.resource)?;
        for subresource in self.subresources.iter().flatten() {
            subresource.check()?;
        }
        are_names(self.verbs.iter().flatten())?;
        are_names(self.short_names.iter().flatten())?;
        are_names(self.categories.iter().flatten())?;
        let others = self.scope.iter().chain(&self.singular_resource);
        are_names(others.chain(self.response_kind.iter().flat_map(NamedKind::texts)))
    }
}

impl ServedSubresource {
    fn check(&self) -> Result<(), String> {
        self.subresource.split('/').try_for_each(is_segment)?;
        are_names(self.verbs.iter().flatten())?;
        let accepted = self.accepted_types.iter().flatten();
        let kinds = accepted.chain(&self.response_kind);
        are_names(kinds.flat_map(NamedKind::texts))
    }
}

/// Names become part of paths.
fn is_segment(name: &str) -> Result<(), String> {
    let leads_on = |c: char| matches!(c, '?' | '#' | '\\') || c.is_control();
    let plain = path_segment(name).is_some() && !name.contains(leads_on);
    (plain && name.len() <= MAX_NAME)
        .then_some(())
        .ok_or_else(|| "its name is none".to_owned())
}

fn are_names<'a>(names: impl Iterator<Item = &'a String>) -> Result<(), String> {
    for (number, name) in names.enumerate() {
        if number >= MAX_ITEMS || name.len() > MAX_NAME {
            return Err("its lists or names are too long".to_owned());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn entry(name: &str) -> Value {
        json!({
            "resource": name, "responseKind": { "group": "g", "version": "v1", "kind": "Gauge" },
            "scope": "Namespaced", "singularResource": "gauge", "verbs": ["get", "list"],
            "shortNames": ["gg"], "categories": ["all"],
            "subresources": [{ "subresource": "scale", "verbs": ["get"],
                "acceptedTypes": [{ "kind": "Scale" }], "responseKind": { "kind": "Scale" } }],
        })
    }

    #[test]
    fn what_servers_say_is_passed_on() {
        let all = [entry("gauges"), json!({ "resource": "bare" })];
        assert_eq!(served_entries(&all).unwrap(), all);
        let mut more = entry("gauges");
        more["future"] = json!([{}]);
        assert_eq!(served_entries(&[more]).unwrap(), [entry("gauges")]);
    }

    /// One server's entry that cannot be read, in the document of all.
    #[test]
    fn what_clients_cannot_read_is_no_answer() {
        for (place, wrong) in [
            ("resource", json!(5)),
            (
                "resource",
                json!("../../../v1/namespaces/kube-system/secrets"),
            ),
            ("resource", json!("a?watch=1")),
            ("resource", json!("x".repeat(MAX_NAME + 1))),
            ("resource", json!("a\nb")),
            ("responseKind", json!("Gauge")),
            ("responseKind", json!({ "kind": ["Gauge"] })),
            ("scope", json!({})),
            ("verbs", json!("get")),
            ("verbs", json!([1])),
            ("verbs", json!(vec!["get"; 1000])),
            ("shortNames", json!([null])),
            ("subresources", json!([{ "subresource": ".." }])),
            (
                "subresources",
                json!([{ "subresource": "scale", "verbs": 1 }]),
            ),
        ] {
            let mut odd = entry("gauges");
            odd[place] = wrong.clone();
            let found = served_entries(&[entry("other"), odd]);
            assert!(found.is_err(), "{place} {wrong}");
        }
        assert!(served_entries(&[json!(null)]).is_err());
    }

    #[test]
    fn kinds_that_are_watched_have_an_end_and_metrics_are_none() {
        let with = |verb: &str| -> Vec<Value> {
            let of = |n: usize| {
                let mut entry = entry(&format!("r{n}|a:b c"));
                entry["verbs"] = json!([verb]);
                entry
            };
            (0..=MAX_FOLLOWED).map(of).collect()
        };
        served_entries(&with("get")).unwrap();
        served_entries(&with("watch")[1..]).unwrap();
        assert!(served_entries(&with("watch")).is_err());
        // Whoever empties a namespace looks at each.
        assert!(served_entries(&with("delete")).is_err());
    }
}
