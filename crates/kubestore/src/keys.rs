//! davit's keys and kube-apiserver's, which stand here without the prefix of `--etcd-prefix`.
//!
//! | | davit | kube-apiserver |
//! |---|---|---|
//! | built-in kinds | `/registry/apps/deployments/…` | `/deployments/…`, some under older names ([`PATHS`]) |
//! | definitions, API services | `/registry/apiextensions.k8s.io/…` | `/apiextensions.k8s.io/…` |
//! | custom kinds | `/registry/example.com/things/…` | `/example.com/things/…` |
//! | what servers share | `/registry/ranges/…`, `/registry/masterleases/…` | `/ranges/…`, `/masterleases/…` |
//! | what is davit's alone | `/registry/davit.dev/…`, classic claims | `/davit.dev/…` |

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::LazyLock;

use davit_api::kinds::{ResourceRow, builtin};
use davit_encryption::{Named, Naming};

/// What davit's keys begin with.
const REGISTRY: &str = "/registry/";
/// Resources whose keys are not named after them.
const PATHS: &[(&str, &str, &str)] = &[
    ("core", "replicationcontrollers", "controllers"),
    ("core", "endpoints", "services/endpoints"),
    ("core", "services", "services/specs"),
    ("core", "nodes", "minions"),
    ("networking.k8s.io", "ingresses", "ingress"),
];
/// Kinds that kube-apiserver serves as it does custom ones: the group stands in the key, the value is JSON.
const AS_CUSTOM: &[(&str, &str)] = &[
    ("apiextensions.k8s.io", "customresourcedefinitions"),
    ("apiregistration.k8s.io", "apiservices"),
];
/// What stands beside the objects: of which resource it is for encryption.
const BESIDE: &[(&str, &str)] = &[
    ("ranges/servicenodeports", "servicenodeportallocations"),
    ("ranges/serviceips", "serviceipallocations"),
    ("masterleases", "apiServerIPInfo"),
];
/// The group of what is davit's alone.
const OWN: &str = "davit.dev";
/// How davit calls the group of classic claims, which is not kube-apiserver's group of that name.
const CLASSIC: &str = "resource.k8s.io-v1alpha1";

/// How a value is kept.
#[derive(Debug, Clone, Copy)]
pub enum Form {
    /// A built-in kind: protobuf, or JSON if that is chosen.
    BuiltIn(&'static ResourceRow),
    /// A built-in kind that is JSON always.
    BuiltInJson(&'static ResourceRow),
    /// An object that servers share and do not serve, of the kind that it names.
    Shared,
    /// JSON of a kind that is not known here.
    Custom,
    /// Whatever davit has written.
    Own,
}

/// The built-in resources that are stored, each in the row of davit's storage version.
struct BuiltIns {
    /// By group and plural name in davit's keys.
    by_name: HashMap<(&'static str, &'static str), (String, Form)>,
    /// Group and plural name by kube-apiserver's path.
    by_path: HashMap<String, (&'static str, &'static str)>,
}

static BUILT_IN: LazyLock<BuiltIns> = LazyLock::new(|| {
    let kinds = builtin();
    let mut built_ins = BuiltIns {
        by_name: HashMap::new(),
        by_path: HashMap::new(),
    };
    let stored = |row: &&ResourceRow| row.has_verb("create") && row.has_verb("get");
    for row in kinds.resources.iter().filter(stored) {
        let row = kinds.storage_row(row);
        if row.is_classic_dra() {
            continue;
        }
        let group = if row.group.is_empty() {
            "core"
        } else {
            row.group
        };
        let name = (group, row.plural);
        let (path, form) = if AS_CUSTOM.contains(&name) {
            (format!("{group}/{}", row.plural), Form::BuiltInJson(row))
        } else {
            let mut other = PATHS.iter().filter(|(g, p, _)| (*g, *p) == name);
            let path = other.next().map_or(row.plural, |(_, _, path)| path);
            (path.to_owned(), Form::BuiltIn(row))
        };
        built_ins.by_path.insert(path.clone(), name);
        built_ins.by_name.insert(name, (path, form));
    }
    built_ins
});

/// The first two parts of a path, and what follows with its slash.
fn parts(path: &str) -> Option<(&str, &str, &str)> {
    let (first, rest) = path.split_once('/')?;
    let end = rest.find('/').unwrap_or(rest.len());
    let (second, rest) = rest.split_at(end);
    Some((first, second, rest))
}

/// kube-apiserver's key, or prefix of keys, for one of davit's; `None` for what is none.
#[must_use]
pub fn to_kubernetes(key: &str) -> Option<String> {
    let path = key.strip_prefix(REGISTRY)?;
    let (group, plural, rest) = parts(path)?;
    if let Some((path, _)) = BUILT_IN.by_name.get(&(group, plural)) {
        return Some(format!("/{path}{rest}"));
    }
    if group == CLASSIC {
        return (!plural.is_empty()).then(|| format!("/{OWN}/{path}"));
    }
    is_kept(group, path).then(|| format!("/{path}"))
}

/// davit's key for one of kube-apiserver's; `None` for what davit does not know.
#[must_use]
pub fn from_kubernetes(key: &str) -> Option<String> {
    let path = key.strip_prefix('/')?;
    let (first, second, rest) = parts(path)?;
    if let Some((group, plural)) = BUILT_IN.by_path.get(first) {
        return Some(format!("{REGISTRY}{group}/{plural}/{second}{rest}"));
    }
    if let Some((group, plural)) = BUILT_IN.by_path.get(&format!("{first}/{second}")) {
        return Some(format!("{REGISTRY}{group}/{plural}{rest}"));
    }
    // Nobody's: this is where davit would look for a built-in kind.
    if BUILT_IN.by_name.contains_key(&(first, second)) {
        return None;
    }
    if first == OWN && second == CLASSIC {
        let has_plural = rest.len() > 1 && !rest.starts_with("//");
        return has_plural.then(|| format!("{REGISTRY}{second}{rest}"));
    }
    is_kept(first, path).then(|| format!("{REGISTRY}{path}"))
}

/// Whether keys are the same on both sides: of groups that are not built in, which have a dot, and of what servers share.
fn is_kept(first: &str, path: &str) -> bool {
    let is_beside = |(beside, _): &(&str, &str)| {
        path.strip_prefix(beside)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    (first.contains('.') && first != CLASSIC) || BESIDE.iter().any(is_beside)
}

/// How the value under one of davit's keys is kept.
#[must_use]
pub fn form(key: &str) -> Form {
    let path = key.strip_prefix(REGISTRY).unwrap_or_default();
    let Some((group, plural, _)) = parts(path) else {
        return Form::Own;
    };
    match BUILT_IN.by_name.get(&(group, plural)) {
        Some((_, form)) => *form,
        None if group == OWN || group == CLASSIC => Form::Own,
        None if group.contains('.') => Form::Custom,
        None => Form::Shared,
    }
}

/// Reads kube-apiserver's keys for encryption at rest: the whole key is authenticated, with the prefix.
#[derive(Debug, Clone)]
pub struct KubeNaming {
    prefix: String,
}

impl KubeNaming {
    /// `prefix` as in `--etcd-prefix`, with or without slashes around.
    #[must_use]
    pub fn new(prefix: &str) -> Self {
        let inner = prefix.trim_matches('/');
        let slash = if inner.is_empty() { "" } else { "/" };
        Self {
            prefix: format!("{slash}{inner}"),
        }
    }
}

impl Naming for KubeNaming {
    fn named<'a>(&self, key: &'a str) -> Named<'a> {
        Named {
            resource: resource(key.trim_start_matches('/')),
            context: Cow::Owned(format!("{}{key}", self.prefix)),
        }
    }
}

fn resource(path: &str) -> Option<(&str, &str)> {
    let (first, second, _) = parts(path)?;
    let built_in = BUILT_IN.by_path.get(first);
    let built_in = built_in.or_else(|| BUILT_IN.by_path.get(&format!("{first}/{second}")));
    if let Some((group, plural)) = built_in {
        return Some((if *group == "core" { "" } else { group }, plural));
    }
    let beside = BESIDE.iter().find(|(beside, _)| path.starts_with(beside));
    match beside {
        Some((_, name)) => Some(("", name)),
        None if first == OWN => None,
        None => Some((first, second)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keys_are_those_of_kube_apiserver() {
        for (own, theirs) in [
            ("/registry/core/pods/default/a", "/pods/default/a"),
            ("/registry/core/nodes/n", "/minions/n"),
            (
                "/registry/core/services/default/s",
                "/services/specs/default/s",
            ),
            (
                "/registry/core/endpoints/default/s",
                "/services/endpoints/default/s",
            ),
            (
                "/registry/core/replicationcontrollers/d/r",
                "/controllers/d/r",
            ),
            ("/registry/networking.k8s.io/ingresses/d/i", "/ingress/d/i"),
            ("/registry/coordination.k8s.io/leases/d/l", "/leases/d/l"),
            ("/registry/core/events/d/e", "/events/d/e"),
            (
                "/registry/apiextensions.k8s.io/customresourcedefinitions/a.b.c",
                "/apiextensions.k8s.io/customresourcedefinitions/a.b.c",
            ),
            (
                "/registry/apiregistration.k8s.io/apiservices/v1.apps",
                "/apiregistration.k8s.io/apiservices/v1.apps",
            ),
            (
                "/registry/example.com/things/d/t",
                "/example.com/things/d/t",
            ),
            (
                "/registry/ranges/servicenodeports",
                "/ranges/servicenodeports",
            ),
            ("/registry/masterleases/10.0.0.1", "/masterleases/10.0.0.1"),
            ("/registry/davit.dev/keys", "/davit.dev/keys"),
            (
                "/registry/resource.k8s.io-v1alpha1/resourceclaims/d/c",
                "/davit.dev/resource.k8s.io-v1alpha1/resourceclaims/d/c",
            ),
            // prefixes
            ("/registry/core/services/", "/services/specs/"),
            ("/registry/core/pods/default/", "/pods/default/"),
            ("/registry/masterleases/", "/masterleases/"),
        ] {
            assert_eq!(to_kubernetes(own).as_deref(), Some(theirs));
            assert_eq!(from_kubernetes(theirs).as_deref(), Some(own));
        }
    }

    #[test]
    fn what_davit_does_not_know_has_no_key() {
        for theirs in [
            "/registry/x",
            "/peerserverleases/a",
            "/networking.k8s.io/ingresses/d/i",
            "/pods",
            "",
            "x",
        ] {
            assert_eq!(from_kubernetes(theirs), None, "{theirs}");
        }
        for own in [
            "/registry/core/gone/d/x",
            "/registry/",
            "",
            "/registry/apps/pods/d/x",
        ] {
            assert_eq!(to_kubernetes(own), None, "{own}");
        }
    }

    #[test]
    fn encryption_goes_by_resource_and_authenticates_the_whole_key() {
        let naming = KubeNaming::new("registry/");
        for (key, resource) in [
            ("/secrets/default/s", Some(("", "secrets"))),
            ("/services/specs/d/s", Some(("", "services"))),
            ("/deployments/d/x", Some(("apps", "deployments"))),
            ("/example.com/things/d/x", Some(("example.com", "things"))),
            (
                "/ranges/servicenodeports",
                Some(("", "servicenodeportallocations")),
            ),
            ("/davit.dev/keys", None),
        ] {
            let named = naming.named(key);
            assert_eq!(named.resource, resource, "{key}");
            assert_eq!(named.context, format!("/registry{key}"));
        }
        assert_eq!(KubeNaming::new("/").named("/pods/a/b").context, "/pods/a/b");
    }

    proptest! {
        #[test]
        fn there_and_back(key in "/(registry|pods|services|example\\.com|davit\\.dev|core|apps)/(core|pods|specs|a\\.b|deployments|resource\\.k8s\\.io-v1alpha1)(/[a-z./]{0,12})?") {
            if let Some(theirs) = to_kubernetes(&key) {
                prop_assert_eq!(from_kubernetes(&theirs), Some(key.clone()));
            }
            if let Some(own) = from_kubernetes(&key) {
                prop_assert_eq!(to_kubernetes(&own), Some(key));
            }
        }
    }
}
