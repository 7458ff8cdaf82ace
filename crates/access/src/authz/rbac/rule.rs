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
pub struct Rule {
    /// Verbs; `*` is any.
    pub verbs: Vec<String>,
    /// API groups; `*` is any.
    pub groups: Vec<String>,
    /// Resources, also `resource/subresource`; `*` is any.
    pub resources: Vec<String>,
    /// Names of objects; none: all.
    pub names: Vec<String>,
    /// Paths that are no resources; a `*` may end them.
    pub urls: Vec<String>,
}

fn texts(value: &Value) -> Vec<String> {
    let items = value.as_array().into_iter().flatten();
    items.filter_map(Value::as_str).map(str::to_owned).collect()
}

impl Rule {
    /// The rules of a Role or ClusterRole object.
    pub fn of(role: &Value) -> Vec<Self> {
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
    pub fn to_value(&self) -> Value {
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
    pub fn everything() -> [Self; 2] {
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
            // Who asks by a review may write `pods/log` as the resource, and no subresource.
            if subresource.is_empty() {
                return pattern == resource;
            }
            pattern
                .split_once('/')
                .is_some_and(|(main, sub)| sub == subresource && (main == ALL || main == resource))
        })
    }

    /// How many pieces the rule has.
    fn size(&self) -> usize {
        let resources = self
            .groups
            .len()
            .saturating_mul(self.resources.len())
            .saturating_mul(self.names.len().max(1));
        self.verbs
            .len()
            .saturating_mul(resources.saturating_add(self.urls.len()))
    }

    /// The rule cut into rules of one verb, group, resource and name (or one verb and path) each.
    fn pieces(&self) -> impl Iterator<Item = Self> {
        let one = |text: &String| vec![text.clone()];
        self.verbs.iter().flat_map(move |verb| {
            let urls = self.urls.iter().map(move |url| Self {
                verbs: one(verb),
                urls: one(url),
                ..Self::default()
            });
            let resources = self.groups.iter().flat_map(move |group| {
                let of_group = self.resources.iter().map(move |resource| (group, resource));
                of_group.flat_map(move |(group, resource)| {
                    let unnamed = self.names.is_empty().then(Vec::new);
                    let names = self.names.iter().map(one).chain(unnamed);
                    names.map(move |names| Self {
                        verbs: one(verb),
                        groups: one(group),
                        resources: one(resource),
                        names,
                        urls: Vec::new(),
                    })
                })
            });
            urls.chain(resources)
        })
    }

    /// Whether this rule alone allows all that another allows, however many pieces that has.
    fn covers_whole(&self, wanted: &Self) -> bool {
        let verbs = wanted.verbs.iter().all(|verb| has(&self.verbs, verb));
        let urls = |url: &String| self.urls.iter().any(|held| url_covers(held, url));
        let resources = wanted.groups.is_empty()
            || wanted.resources.is_empty()
            || wanted.groups.iter().all(|group| has(&self.groups, group))
                && wanted
                    .resources
                    .iter()
                    .all(|resource| covers_resource(&self.resources, resource))
                && (self.names.is_empty()
                    || !wanted.names.is_empty()
                        && wanted.names.iter().all(|name| self.names.contains(name)));
        verbs && wanted.urls.iter().all(urls) && resources
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

/// Most pieces into which rules are cut for one comparison: what nobody could read either.
const MAX_PIECES: usize = 100_000;
/// Most missing pieces that a refusal names, and bytes of its text.
const MAX_NAMED: usize = 200;
const MAX_TEXT: usize = 16 * 1024;

/// Rules that allow too many things one by one to be compared with what somebody holds.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the rules combine to more than {MAX_PIECES} verbs on resources that are not held as one rule: write fewer of them"
)]
pub struct TooManyPieces;

/// What of `wanted` no rule of `held` covers, put together again where only the verb differs. Of very much only the
/// first part.
///
/// # Errors
/// When `wanted` allows more things than are compared.
pub fn missing(held: &[Rule], wanted: &[Rule]) -> Result<Vec<Rule>, TooManyPieces> {
    let open: Vec<&Rule> = wanted
        .iter()
        .filter(|wanted| !held.iter().any(|rule| rule.covers_whole(wanted)))
        .collect();
    let sizes = open.iter().map(|rule| rule.size());
    if sizes.fold(0, usize::saturating_add) > MAX_PIECES {
        return Err(TooManyPieces);
    }
    let pieces = open.into_iter().flat_map(Rule::pieces);
    let missing = pieces.filter(|piece| !held.iter().any(|rule| rule.covers(piece)));
    Ok(compact(missing.take(MAX_NAMED)))
}

/// What of `wanted` no rule of `held` covers, as [`missing`], and all of it: for rules that are not strangers'.
pub fn lacking(held: &[Rule], wanted: &[Rule]) -> Vec<Rule> {
    let pieces = wanted.iter().flat_map(Rule::pieces);
    compact(pieces.filter(|piece| !held.iter().any(|rule| rule.covers(piece))))
}

/// Whether each of `wanted` is covered by one rule of `held`.
pub fn holds_all(held: &[Rule], wanted: &[Rule]) -> bool {
    wanted
        .iter()
        .all(|wanted| held.iter().any(|rule| rule.covers_whole(wanted)))
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

/// The lines that name missing rules in a refusal, sorted; the end of a very long text is left out.
pub fn describe(rules: &[Rule]) -> String {
    let lines: BTreeSet<String> = rules.iter().map(ToString::to_string).collect();
    let mut text = lines.into_iter().collect::<Vec<_>>().join("\n");
    if text.len() > MAX_TEXT {
        text.truncate(text.floor_char_boundary(MAX_TEXT));
        text.push('…');
    }
    text
}

/// `["a" "b"]`, as Go prints a list of quoted texts.
pub fn quoted_list(list: &[String]) -> String {
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
        let log = rule(&["get"], &[""], &["pods/log"], &[]);
        assert!(log.allows(&request("get", "", "pods", "log", "a")));
        assert!(
            log.allows(&request("get", "", "pods/log", "", "a")),
            "as in reviews"
        );
        assert!(!log.allows(&request("get", "", "pods", "", "a")));
        assert!(!pods.allows(&request("get", "", "pods/log", "", "a")));
        assert!(!scale.allows(&request("update", "apps", "deployments/scale", "", "a")));
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
        let missing = missing(&held, &wanted).unwrap();
        assert_eq!(
            describe(&missing),
            "{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"list\" \"watch\"]}\n\
             {APIGroups:[\"apps\"], Resources:[\"deployments\"], Verbs:[\"create\"]}"
        );
    }

    /// A refusal took ten seconds and a gigabyte, twice.
    #[test]
    fn rules_that_multiply_are_refused_before_they_are_cut_up() {
        let many = |what: &str, count: usize| -> Vec<String> {
            (0..count).map(|n| format!("{what}{n}")).collect()
        };
        let cube = |count| Rule {
            verbs: many("v", count),
            groups: many("g", count),
            resources: many("r", count),
            ..Rule::default()
        };
        let held = [rule(&["get"], &[""], &["pods"], &[])];
        assert_eq!(missing(&held, &[cube(60)]), Err(TooManyPieces));
        assert_eq!(missing(&held, &[cube(4000)]), Err(TooManyPieces));
        // parts that only together are too much
        let parts = vec![cube(20); 13];
        assert_eq!(missing(&held, &parts), Err(TooManyPieces));
        // what is held as it is written needs no cutting up
        assert_eq!(missing(&[cube(60)], &[cube(60)]), Ok(Vec::new()));
        // refusals do not grow with what is refused
        let named = missing(&held, &[cube(40)]).unwrap();
        assert!(!named.is_empty() && named.len() <= MAX_NAMED);
        let long = rule(&["get"], &[""], &[&"é".repeat(MAX_TEXT)], &[]);
        assert!(describe(&[long]).len() < MAX_TEXT + 8);
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
            prop_assert_eq!(wanted.pieces().count(), wanted.size());
            let whole = held.iter().any(|rule| rule.covers_whole(&wanted));
            let cut = held.iter().any(|rule| wanted.pieces().all(|piece| rule.covers(&piece)));
            prop_assert_eq!(whole, cut);
            if missing(&held, std::slice::from_ref(&wanted)).unwrap().is_empty() && wanted.allows(&asked) {
                prop_assert!(held.iter().any(|rule| rule.allows(&asked)));
            }
        }

        #[test]
        fn rules_cover_themselves(wanted in any_rule()) {
            let own = std::slice::from_ref(&wanted);
            prop_assert!(missing(own, own).unwrap().is_empty());
            prop_assert!(holds_all(own, own));
        }
    }
}
