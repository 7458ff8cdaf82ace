//! One kubeconfig put into another. Both are taken as they are: what davit does not know stays.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::path::Path;

/// What became of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MergedEntry {
    /// The name of the entries.
    pub(super) name: String,
    /// The context that is asked from now on.
    pub(super) current: String,
}

/// The kinds of entries, and where their content is.
const CLUSTERS: (&str, &str) = ("clusters", "cluster");
const USERS: (&str, &str) = ("users", "user");
const CONTEXTS: (&str, &str) = ("contexts", "context");
/// Fields that name files.
const FILES: [&str; 4] = [
    "certificate-authority",
    "client-certificate",
    "client-key",
    "tokenFile",
];

/// A kubeconfig without entries.
pub(super) fn empty(own: &Value) -> Value {
    json!({"apiVersion": own["apiVersion"], "kind": own["kind"], "preferences": {},
        "clusters": [], "users": [], "contexts": [], "current-context": ""})
}

/// Files that are named from the kubeconfig's directory are named from the root: it will be read elsewhere.
pub(super) fn with_whole_paths(config: &mut Value, dir: &Path) {
    for (list, content) in [CLUSTERS, USERS] {
        for entry in config[list].as_array_mut().into_iter().flatten() {
            for field in FILES {
                let named = entry.get_mut(content).and_then(|of| of.get_mut(field));
                let Some(Value::String(path)) = named else {
                    continue;
                };
                if !path.is_empty() && Path::new(path).is_relative() {
                    *path = dir.join(&*path).display().to_string();
                }
            }
        }
    }
}

/// Puts the current context of `own`, with its cluster and user, into `there`.
///
/// # Errors
/// `own` has no current context, or the name stands for another cluster `there` and is not to be replaced.
pub(super) fn merge(
    mut there: Value,
    own: &Value,
    name: Option<&str>,
    switch: bool,
    replace: bool,
) -> Result<(Value, MergedEntry)> {
    let current = own["current-context"].as_str().unwrap_or_default();
    let context = found(own, CONTEXTS, current).filter(|context| context.is_object());
    let context = context.context("the cluster's kubeconfig has no current context")?;
    let part = |kind: (&str, &str)| -> Result<Value> {
        let named = context[kind.1].as_str().unwrap_or_default();
        let content = found(own, kind, named);
        content
            .cloned()
            .with_context(|| format!("the cluster's kubeconfig has no {} {named}", kind.1))
    };
    let (cluster, user) = (part(CLUSTERS)?, part(USERS)?);
    let name = name.unwrap_or(current).to_owned();
    if let Some(other) = found(&there, CLUSTERS, &name)
        && !replace
        && !is_same(other, &cluster)
    {
        bail!(
            "its cluster {name} is another one ({}); --name names this one, --replace replaces that",
            other["server"].as_str().unwrap_or("no server")
        );
    }
    let mut context = context.clone();
    context["cluster"] = json!(name);
    context["user"] = json!(name);
    for (kind, content) in [(CLUSTERS, cluster), (USERS, user), (CONTEXTS, context)] {
        put(&mut there, kind, &name, &content)?;
    }
    let asked = there["current-context"].as_str().unwrap_or_default();
    if switch || asked.is_empty() {
        there["current-context"] = json!(name);
    }
    let current = there["current-context"].as_str().unwrap_or_default();
    let merged = MergedEntry {
        current: current.to_owned(),
        name,
    };
    Ok((there, merged))
}

/// The same server, or one that the same authority vouches for: it may have another port than before.
fn is_same(one: &Value, other: &Value) -> bool {
    let same = |field: &str| one[field].is_string() && one[field] == other[field];
    same("server") || same("certificate-authority-data")
}

fn found<'a>(config: &'a Value, (list, content): (&str, &str), name: &str) -> Option<&'a Value> {
    let mut entries = config[list].as_array().into_iter().flatten();
    let entry = entries.find(|entry| entry["name"] == name)?;
    entry.get(content)
}

fn put(config: &mut Value, (list, content): (&str, &str), name: &str, value: &Value) -> Result<()> {
    let entries = &mut config[list];
    if entries.is_null() {
        *entries = json!([]);
    }
    let entries = entries.as_array_mut();
    let entries = entries.with_context(|| format!("{list} is no list"))?;
    let entry = json!({"name": name, content: value});
    match entries.iter_mut().find(|entry| entry["name"] == name) {
        Some(before) => *before = entry,
        None => entries.push(entry),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(server: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Config", "current-context": "davit",
            "clusters": [{"name": "davit", "cluster": {"server": server, "certificate-authority": "ca.crt"}}],
            "users": [{"name": "admin", "user": {"client-key": "/k"}}],
            "contexts": [{"name": "davit", "context": {"cluster": "davit", "user": "admin", "namespace": "n"}}]})
    }

    #[test]
    fn others_stay_and_are_asked_as_before() {
        let there = json!({"kind": "Config", "current-context": "prod", "x": 1,
            "clusters": [{"name": "prod", "cluster": {"server": "https://p"}}], "contexts": [], "users": null});
        let (now, merged) =
            merge(there.clone(), &own("https://a"), Some("lab"), false, false).unwrap();
        assert_eq!(now["clusters"][0], there["clusters"][0]);
        assert_eq!(now["x"], 1);
        assert_eq!(merged.current, "prod");
        assert_eq!(
            now["contexts"][0]["context"],
            json!({"cluster": "lab", "user": "lab", "namespace": "n"})
        );
        assert_eq!(now["users"][0]["name"], "lab");
        let (now, merged) = merge(now, &own("https://a"), Some("lab"), true, false).unwrap();
        assert_eq!(
            (now["clusters"].as_array().unwrap().len(), &*merged.current),
            (2, "lab")
        );
    }

    #[test]
    fn another_cluster_of_the_same_name_stays_unless_told() {
        let (there, _) = merge(empty(&own("")), &own("https://a"), None, false, false).unwrap();
        assert_eq!(there["current-context"], "davit");
        let other = own("https://b");
        let error = merge(there.clone(), &other, None, false, false).unwrap_err();
        assert!(error.to_string().contains("https://a"), "{error}");
        assert!(merge(there.clone(), &other, None, false, true).is_ok());
        assert!(merge(there, &own("https://a"), None, false, false).is_ok());
    }

    #[test]
    fn files_are_named_from_the_root() {
        let mut config = own("https://a");
        with_whole_paths(&mut config, Path::new("/etc/k"));
        assert_eq!(
            config["clusters"][0]["cluster"]["certificate-authority"],
            "/etc/k/ca.crt"
        );
        assert_eq!(config["users"][0]["user"]["client-key"], "/k");
    }

    #[test]
    fn entries_that_are_none_are_passed_over_or_refused() {
        let mut odd = own("https://a");
        odd["clusters"] = json!(["text", 1, null, {"name": "davit", "cluster": "text"}]);
        odd["users"] = json!([["admin"]]);
        with_whole_paths(&mut odd, Path::new("/k"));
        assert!(merge(json!({}), &odd, None, false, false).is_err());
        let mut odd = own("https://a");
        odd["contexts"] = json!([{"name": "davit", "context": "text"}]);
        assert!(merge(json!({}), &odd, None, false, false).is_err());
    }

    #[test]
    fn what_names_nothing_is_refused() {
        let mut none = own("https://a");
        none["current-context"] = json!("gone");
        assert!(merge(json!({}), &none, None, false, false).is_err());
        let mut lists = own("https://a");
        lists["users"] = json!("text");
        assert!(merge(json!({"users": 3}), &own("https://a"), None, false, false).is_err());
        assert!(merge(json!({}), &lists, None, false, false).is_err());
    }
}
