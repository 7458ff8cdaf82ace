//! Policy rules: what they allow, whether one covers another, how they are named in refusals.
//!
//! Semantics: <https://kubernetes.io/docs/reference/access-authn-authz/rbac/>.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::{Value, json};

use crate::request_info::RequestInfo;

const ALL: &str = "*";

/// A rule of a Role or ClusterRole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) verbs: Vec<String>,
    pub(crate) groups: Vec<String>,
    pub(crate) resources: Vec<String>,
    pub(crate) names: Vec<String>,
    pub(crate) urls: Vec<String>,
}

fn texts(value: &Value) -> Vec<String> {
    let items = value.as_array().into_iter().flatten();
    items.filter_map(Value::as_str).map(str::to_owned).collect()
}

impl Rule {
    /// The rules of a Role or ClusterRole object.
    pub(crate) fn of(role: &Value) -> Vec<Self> {
        let rules = role["rules"].as_array().into_iter().flatten();
        rules.map(Self::from_value).collect()
    }

    fn from_value(rule: &Value) -> Self {
        Self {
            verbs: texts(&rule["verbs"]),
            groups: texts(&rule["apiGroups"]),
            resources: texts(&rule["resources"]),
            names: texts(&rule["resourceNames"]),
            urls: texts(&rule["nonResourceURLs"]),
        }
    }

    /// The object form; empty lists are left out.
    pub(crate) fn to_value(&self) -> Value {
        let mut rule = json!({ "verbs": self.verbs });
        let lists = [
            ("apiGroups", &self.groups),
            ("resources", &self.resources),
            ("resourceNames", &self.names),
            ("nonResourceURLs", &self.urls),
        ];
        for (key, list) in lists {
            if !list.is_empty() {
                rule[key] = json!(list);
            }
        }
        rule
    }

    /// Everything on all resources, and on all paths.
    pub(crate) fn everything() -> [Self; 2] {
        let all = || vec![ALL.to_owned()];
        let resources = Self {
            verbs: all(),
            groups: all(),
            resources: all(),
            ..Self::default()
        };
        let paths = Self {
            verbs: all(),
            urls: all(),
            ..Self::default()
        };
        [resources, paths]
    }

    /// Whether the rule allows a request.
    pub(crate) fn allows(&self, request: &RequestInfo) -> bool {
        if !has(&self.verbs, &request.verb) {
            return false;
        }
        if !request.is_resource {
            return self.urls.iter().any(|url| url_matches(url, &request.path));
        }
        has(&self.groups, &request.group)
            && self.names_resource(&request.resource, &request.subresource)
            && (self.names.is_empty() || self.names.contains(&request.name))
    }

    fn names_resource(&self, resource: &str, subresource: &str) -> bool {
        self.resources.iter().any(|pattern| {
            if pattern == ALL {
                return true;
            }
            match (pattern.split_once('/'), subresource.is_empty()) {
                (None, true) => pattern == resource,
                (Some((main, sub)), false) => {
                    sub == subresource && (main == ALL || main == resource)
                }
                _ => false,
            }
        })
    }

    /// The rule cut into rules of one verb, group, resource and name (or one verb and path) each.
    fn pieces(&self) -> Vec<Self> {
        let one = |text: &String| vec![text.clone()];
        let mut pieces = Vec::new();
        for verb in &self.verbs {
            for url in &self.urls {
                pieces.push(Self {
                    verbs: one(verb),
                    urls: one(url),
                    ..Self::default()
                });
            }
            for group in &self.groups {
                for resource in &self.resources {
                    let piece = Self {
                        verbs: one(verb),
                        groups: one(group),
                        resources: one(resource),
                        ..Self::default()
                    };
                    if self.names.is_empty() {
                        pieces.push(piece);
                        continue;
                    }
                    pieces.extend(self.names.iter().map(|name| Self {
                        names: one(name),
                        ..piece.clone()
                    }));
                }
            }
        }
        pieces
    }

    /// Whether this rule allows all that `piece` (a rule of one of each) allows.
    fn covers(&self, piece: &Self) -> bool {
        let verb = piece.verbs.iter().all(|verb| has(&self.verbs, verb));
        if !verb {
            return false;
        }
        if let Some(url) = piece.urls.first() {
            return self.urls.iter().any(|held| url_covers(held, url));
        }
        let (Some(group), Some(resource)) = (piece.groups.first(), piece.resources.first()) else {
            return false;
        };
        let names = match piece.names.first() {
            _ if self.names.is_empty() => true,
            Some(name) => self.names.contains(name),
            None => false,
        };
        has(&self.groups, group) && covers_resource(&self.resources, resource) && names
    }
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|held| held == ALL || held == wanted)
}

fn url_matches(pattern: &str, path: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix),
        None => pattern == path,
    }
}

/// Whether the pattern `held` matches all that the pattern `wanted` matches.
fn url_covers(held: &str, wanted: &str) -> bool {
    match held.strip_suffix('*') {
        Some(prefix) => wanted.trim_end_matches('*').starts_with(prefix),
        None => held == wanted,
    }
}

fn covers_resource(held: &[String], wanted: &str) -> bool {
    let subresource = wanted.split_once('/').map(|(_, sub)| sub);
    held.iter().any(|pattern| {
        pattern == ALL
            || pattern == wanted
            || subresource.is_some_and(|sub| pattern.strip_prefix("*/") == Some(sub))
    })
}

/// What of `wanted` no rule of `held` covers, put together again where only the verb differs.
pub(crate) fn missing(held: &[Rule], wanted: &[Rule]) -> Vec<Rule> {
    let pieces = wanted.iter().flat_map(Rule::pieces);
    let missing = pieces.filter(|piece| !held.iter().any(|rule| rule.covers(piece)));
    compact(missing)
}

/// Joins the verbs of rules that are about the same resource.
fn compact(rules: impl Iterator<Item = Rule>) -> Vec<Rule> {
    type Key = (Vec<String>, Vec<String>, Vec<String>);
    let mut joined: BTreeMap<Key, Rule> = BTreeMap::new();
    let mut rest = Vec::new();
    for rule in rules {
        if !rule.urls.is_empty() {
            rest.push(rule);
            continue;
        }
        let key = (
            rule.groups.clone(),
            rule.resources.clone(),
            rule.names.clone(),
        );
        match joined.get_mut(&key) {
            None => {
                joined.insert(key, rule);
            }
            Some(known) => {
                for verb in rule.verbs {
                    if !known.verbs.contains(&verb) {
                        known.verbs.push(verb);
                    }
                }
            }
        }
    }
    joined.into_values().chain(rest).collect()
}

/// The lines that name missing rules in a refusal, sorted.
pub(crate) fn describe(rules: &[Rule]) -> String {
    let lines: BTreeSet<String> = rules.iter().map(ToString::to_string).collect();
    lines.into_iter().collect::<Vec<_>>().join("\n")
}

/// `["a" "b"]`, as Go prints a list of quoted texts.
pub(crate) fn quoted_list(list: &[String]) -> String {
    let items: Vec<String> = list.iter().map(|item| format!("{item:?}")).collect();
    format!("[{}]", items.join(" "))
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lists = [
            ("APIGroups", &self.groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.urls),
            ("ResourceNames", &self.names),
            ("Verbs", &self.verbs),
        ];
        let parts: Vec<String> = lists
            .into_iter()
            .filter(|(_, list)| !list.is_empty())
            .map(|(name, list)| format!("{name}:{}", quoted_list(list)))
            .collect();
        write!(f, "{{{}}}", parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rule(verbs: &[&str], groups: &[&str], resources: &[&str], names: &[&str]) -> Rule {
        let own = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
        Rule {
            verbs: own(verbs),
            groups: own(groups),
            resources: own(resources),
            names: own(names),
            urls: Vec::new(),
        }
    }

    fn request(verb: &str, group: &str, resource: &str, sub: &str, name: &str) -> RequestInfo {
        RequestInfo {
            verb: verb.to_owned(),
            is_resource: true,
            group: group.to_owned(),
            resource: resource.to_owned(),
            subresource: sub.to_owned(),
            name: name.to_owned(),
            ..RequestInfo::default()
        }
    }

    #[test]
    fn item_188_resources_subresources_and_names() {
        let pods = rule(&["get"], &[""], &["pods"], &[]);
        assert!(pods.allows(&request("get", "", "pods", "", "a")));
        assert!(!pods.allows(&request("get", "", "pods", "log", "a")));
        assert!(!pods.allows(&request("get", "apps", "pods", "", "a")));
        assert!(!pods.allows(&request("list", "", "pods", "", "")));
        let scale = rule(&["*"], &["*"], &["*/scale"], &[]);
        assert!(scale.allows(&request("update", "apps", "deployments", "scale", "a")));
        assert!(!scale.allows(&request("update", "apps", "deployments", "", "a")));
        let named = rule(&["get", "create", "list"], &[""], &["secrets"], &["a"]);
        assert!(named.allows(&request("get", "", "secrets", "", "a")));
        assert!(!named.allows(&request("get", "", "secrets", "", "b")));
        assert!(!named.allows(&request("create", "", "secrets", "", "")));
        assert!(!named.allows(&request("list", "", "secrets", "", "")));
    }

    #[test]
    fn item_188_paths() {
        let mut paths = rule(&["get"], &[], &[], &[]);
        paths.urls = vec!["/healthz".to_owned(), "/api/*".to_owned()];
        let path = |path: &str| RequestInfo {
            verb: "get".to_owned(),
            path: path.to_owned(),
            ..RequestInfo::default()
        };
        assert!(paths.allows(&path("/healthz")));
        assert!(!paths.allows(&path("/healthz/etcd")));
        assert!(paths.allows(&path("/api/v1")));
        assert!(!paths.allows(&path("/apis")));
    }

    #[test]
    fn item_189_missing_rules_are_joined_and_named() {
        let held = [rule(&["get"], &[""], &["pods"], &[])];
        let wanted = [
            rule(&["get", "list", "watch"], &[""], &["pods"], &[]),
            rule(&["create"], &["apps"], &["deployments"], &[]),
        ];
        let missing = missing(&held, &wanted);
        assert_eq!(
            describe(&missing),
            "{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"list\" \"watch\"]}\n\
             {APIGroups:[\"apps\"], Resources:[\"deployments\"], Verbs:[\"create\"]}"
        );
    }

    fn some(of: &'static [&'static str]) -> impl Strategy<Value = Vec<String>> {
        proptest::sample::subsequence(of, 1..=of.len())
            .prop_map(|chosen| chosen.into_iter().map(str::to_owned).collect())
    }

    fn any_rule() -> impl Strategy<Value = Rule> {
        (
            some(&["get", "list", "*"]),
            some(&["", "apps", "*"]),
            some(&["pods", "pods/log", "*/log", "*"]),
            proptest::option::of(some(&["a", "b"])),
        )
            .prop_map(|(verbs, groups, resources, names)| Rule {
                verbs,
                groups,
                resources,
                names: names.unwrap_or_default(),
                urls: Vec::new(),
            })
    }

    proptest! {
        #[test]
        fn what_is_covered_allows_nothing_more(
            held in proptest::collection::vec(any_rule(), 0..4),
            wanted in any_rule(),
            verb in proptest::sample::select(vec!["get", "list", "delete"]),
            group in proptest::sample::select(vec!["", "apps", "batch"]),
            sub in proptest::sample::select(vec!["", "log", "exec"]),
            name in proptest::sample::select(vec!["", "a", "b", "c"]),
        ) {
            let asked = request(verb, group, "pods", sub, name);
            if missing(&held, std::slice::from_ref(&wanted)).is_empty() && wanted.allows(&asked) {
                prop_assert!(held.iter().any(|rule| rule.allows(&asked)));
            }
        }

        #[test]
        fn rules_cover_themselves(wanted in any_rule()) {
            prop_assert!(missing(std::slice::from_ref(&wanted), std::slice::from_ref(&wanted)).is_empty());
        }
    }
}
