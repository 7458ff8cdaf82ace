//! Role-based access control: Roles, ClusterRoles and their bindings, indexed by subject.
//!
//! A request looks up the bindings of its user and groups (cluster-wide ones and those of its
//! namespace) and reads the rules of the roles they name; how many roles, bindings and namespaces
//! there are does not matter. Semantics:
//! <https://kubernetes.io/docs/reference/access-authn-authz/rbac/>.

pub mod policy;
pub mod rule;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use davit_api::meta;
use davit_api::status::{Qualified, Status};
use davit_watchcache::{Index, Mirror};
use parking_lot::RwLock;
use serde_json::Value;

use super::{Attributes, Authorizer, Decision, UserRules};
use crate::lookup::{FindObjects, StoredObjects};
use crate::request_info::RequestInfo;
use crate::tokens;
use crate::user::UserInfo;

pub(crate) use policy::node_rules;
pub use rule::Rule;

/// The API group of roles and bindings.
pub const GROUP: &str = "rbac.authorization.k8s.io";

/// Whom a binding is for: users (service accounts by their user name) and groups.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Subject {
    User(String),
    Group(String),
}

/// Which role a binding is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleRef {
    /// A ClusterRole; otherwise a Role of the binding's namespace.
    pub cluster: bool,
    /// Its name.
    pub name: String,
}

#[derive(Debug)]
struct Binding {
    /// Empty for a ClusterRoleBinding.
    namespace: String,
    name: String,
    role: RoleRef,
    /// Each subject with the words that name it in a reason.
    subjects: Vec<(Subject, String)>,
}

type BySubject = HashMap<Subject, Vec<Arc<Binding>>>;
/// The rules of one role.
pub type Rules = Arc<[Rule]>;

#[derive(Debug, Default)]
struct Tables {
    cluster_roles: HashMap<String, Rules>,
    /// By namespace and name.
    roles: HashMap<(String, String), Rules>,
    /// By namespace (empty: cluster-wide) and name.
    bindings: HashMap<(String, String), Arc<Binding>>,
    /// By namespace (empty: cluster-wide).
    by_subject: HashMap<String, BySubject>,
}

impl Tables {
    fn bind(&mut self, binding: Binding) {
        let key = (binding.namespace.clone(), binding.name.clone());
        self.unbind(&key);
        let binding = Arc::new(binding);
        let subjects = self.by_subject.entry(key.0.clone()).or_default();
        for (subject, _) in &binding.subjects {
            let bound = subjects.entry(subject.clone()).or_default();
            if !bound.iter().any(|known| Arc::ptr_eq(known, &binding)) {
                bound.push(Arc::clone(&binding));
            }
        }
        self.bindings.insert(key, binding);
    }

    fn unbind(&mut self, key: &(String, String)) {
        let Some(old) = self.bindings.remove(key) else {
            return;
        };
        let Some(subjects) = self.by_subject.get_mut(&key.0) else {
            return;
        };
        for (subject, _) in &old.subjects {
            if let Some(bound) = subjects.get_mut(subject) {
                bound.retain(|known| !Arc::ptr_eq(known, &old));
                if bound.is_empty() {
                    subjects.remove(subject);
                }
            }
        }
        if subjects.is_empty() {
            self.by_subject.remove(&key.0);
        }
    }

    fn rules(&self, binding: &Binding) -> Result<&Rules, String> {
        self.role(&binding.role, &binding.namespace)
    }

    fn role(&self, role: &RoleRef, namespace: &str) -> Result<&Rules, String> {
        let name = &role.name;
        let (found, kind) = if role.cluster {
            (self.cluster_roles.get(name), "clusterrole")
        } else {
            let key = (namespace.to_owned(), name.clone());
            (self.roles.get(&key), "role")
        };
        found.ok_or_else(|| format!("{kind}.{GROUP} \"{name}\" not found"))
    }

    /// The bindings of a user, cluster-wide ones first, each with the words for the subject.
    fn bindings_of<'a>(
        &'a self,
        user: &'a UserInfo,
        namespace: &'a str,
    ) -> impl Iterator<Item = (&'a Arc<Binding>, &'a str)> {
        let places = if namespace.is_empty() {
            vec![""]
        } else {
            vec!["", namespace]
        };
        places.into_iter().flat_map(move |place| {
            let subjects = self.by_subject.get(place);
            let names = std::iter::once(Subject::User(user.name.clone()));
            let names = names.chain(user.groups.iter().cloned().map(Subject::Group));
            names.flat_map(move |subject| {
                let bound = subjects.and_then(|subjects| subjects.get(&subject));
                bound.into_iter().flatten().map(move |binding| {
                    let words = binding
                        .subjects
                        .iter()
                        .find(|(known, _)| *known == subject)
                        .map_or("", |(_, words)| words.as_str());
                    (binding, words)
                })
            })
        })
    }
}

/// The policy of the cluster, kept up to date from the watch caches.
#[derive(Debug)]
pub struct Rbac {
    tables: Arc<RwLock<Tables>>,
    storages: Vec<(&'static str, Arc<dyn StoredObjects>)>,
    /// Nothing is followed before somebody asks.
    mirrors: OnceLock<Vec<Mirror>>,
}

impl Rbac {
    /// The policy in the roles and bindings that `find` finds.
    pub(crate) fn new(find: &FindObjects<'_>) -> Self {
        let storages = [
            "clusterroles",
            "roles",
            "clusterrolebindings",
            "rolebindings",
        ]
        .into_iter()
        .filter_map(|plural| Some((plural, find(GROUP, plural)?)))
        .collect();
        Self {
            tables: Arc::default(),
            storages,
            mirrors: OnceLock::new(),
        }
    }

    fn follow(&self) -> Vec<Mirror> {
        let mirrors = self.storages.iter().map(|(plural, storage)| {
            let index = Arc::new(Follower {
                tables: Arc::clone(&self.tables),
                binds: plural.ends_with("bindings"),
                cluster: plural.starts_with("cluster"),
            });
            Mirror::spawn(Arc::<dyn StoredObjects>::clone(storage), index)
        });
        mirrors.collect()
    }

    /// Waits until everything written through this server is known.
    pub async fn fresh(&self) {
        for mirror in self.mirrors.get_or_init(|| self.follow()) {
            if !mirror.fresh().await {
                tracing::warn!(?mirror, "the access rules known may be old");
            }
        }
    }

    /// Whether a rule allows the request; the reason names binding, role and subject.
    fn decide(&self, user: &UserInfo, request: &RequestInfo) -> Decision {
        let tables = self.tables.read();
        let namespace = request.namespace.as_deref().unwrap_or_default();
        let mut faults = Vec::new();
        for (binding, subject) in tables.bindings_of(user, namespace) {
            match tables.rules(binding) {
                Ok(rules) if rules.iter().any(|rule| rule.allows(request)) => {
                    return Decision::Allow(reason(binding, subject));
                }
                Ok(_) => {}
                Err(fault) if faults.contains(&fault) => {}
                Err(fault) => faults.push(fault),
            }
        }
        Decision::NoOpinion(match faults.as_slice() {
            [] => String::new(),
            [one] => format!("RBAC: {one}"),
            several => format!("RBAC: [{}]", several.join(", ")),
        })
    }

    /// All rules of a user in a namespace (and cluster-wide), and what could not be resolved.
    pub fn rules_of(&self, user: &UserInfo, namespace: &str) -> (Vec<Rule>, Vec<String>) {
        let tables = self.tables.read();
        let (mut rules, mut faults) = (Vec::new(), Vec::new());
        for (binding, _) in tables.bindings_of(user, namespace) {
            match tables.rules(binding) {
                Ok(found) => rules.extend(found.iter().cloned()),
                Err(fault) => faults.push(fault),
            }
        }
        (rules, faults)
    }

    /// The rules of the role that a binding in `namespace` refers to.
    pub fn referenced(&self, role_ref: &Value, namespace: &str) -> Result<Rules, Status> {
        let role = role_ref_of(role_ref);
        let found = self.tables.read().role(&role, namespace).map(Arc::clone);
        found.map_err(|_| {
            let plural = if role.cluster {
                "clusterroles"
            } else {
                "roles"
            };
            Status::not_found(Qualified::new(GROUP, plural), &role.name)
        })
    }
}

fn reason(binding: &Binding, subject: &str) -> String {
    let kind = if binding.role.cluster {
        "ClusterRole"
    } else {
        "Role"
    };
    let (name, role) = (&binding.name, &binding.role.name);
    if binding.namespace.is_empty() {
        format!("RBAC: allowed by ClusterRoleBinding {name:?} of {kind} {role:?} to {subject}")
    } else {
        let name = format!("{name}/{}", binding.namespace);
        format!("RBAC: allowed by RoleBinding {name:?} of {kind} {role:?} to {subject}")
    }
}

/// Reads the `roleRef` of a binding.
pub fn role_ref_of(role_ref: &Value) -> RoleRef {
    RoleRef {
        cluster: role_ref["kind"] == "ClusterRole",
        name: role_ref["name"].as_str().unwrap_or_default().to_owned(),
    }
}

fn binding_of(object: &Value) -> Binding {
    let namespace = meta::namespace(object).to_owned();
    let subjects = object["subjects"].as_array().into_iter().flatten();
    let subjects = subjects.filter_map(|subject| subject_of(subject, &namespace));
    Binding {
        subjects: subjects.collect(),
        name: meta::name(object).to_owned(),
        role: role_ref_of(&object["roleRef"]),
        namespace,
    }
}

fn subject_of(subject: &Value, namespace: &str) -> Option<(Subject, String)> {
    let text = |key: &str| subject[key].as_str().unwrap_or_default();
    let (kind, name) = (text("kind"), text("name").to_owned());
    let words = format!("{kind} {name:?}");
    Some(match kind {
        "User" => (Subject::User(name), words),
        "Group" => (Subject::Group(name), words),
        "ServiceAccount" => {
            let namespace = Some(text("namespace"))
                .filter(|namespace| !namespace.is_empty())
                .unwrap_or(namespace);
            if namespace.is_empty() {
                return None;
            }
            let words = format!("{kind} {:?}", format!("{name}/{namespace}"));
            (Subject::User(tokens::subject(namespace, &name)), words)
        }
        _ => return None,
    })
}

/// Brings one of the four resources into the tables.
struct Follower {
    tables: Arc<RwLock<Tables>>,
    binds: bool,
    cluster: bool,
}

impl Follower {
    fn put_into(&self, tables: &mut Tables, object: &Value) {
        if self.binds {
            tables.bind(binding_of(object));
            return;
        }
        let (name, rules) = (meta::name(object).to_owned(), Rule::of(object).into());
        if self.cluster {
            tables.cluster_roles.insert(name, rules);
        } else {
            let key = (meta::namespace(object).to_owned(), name);
            tables.roles.insert(key, rules);
        }
    }
}

impl Index for Follower {
    fn replace(&self, objects: &[Value]) {
        let mut tables = self.tables.write();
        match (self.binds, self.cluster) {
            (true, cluster) => {
                let keys: Vec<_> = tables.bindings.keys().cloned().collect();
                for key in keys.iter().filter(|key| key.0.is_empty() == cluster) {
                    tables.unbind(key);
                }
            }
            (false, true) => tables.cluster_roles.clear(),
            (false, false) => tables.roles.clear(),
        }
        for object in objects {
            self.put_into(&mut tables, object);
        }
    }

    fn put(&self, object: &Value) {
        self.put_into(&mut self.tables.write(), object);
    }

    fn remove(&self, namespace: &str, name: &str) {
        let mut tables = self.tables.write();
        let key = (namespace.to_owned(), name.to_owned());
        match (self.binds, self.cluster) {
            (true, _) => tables.unbind(&key),
            (false, true) => {
                tables.cluster_roles.remove(name);
            }
            (false, false) => {
                tables.roles.remove(&key);
            }
        }
    }
}

/// The authorizer of mode `RBAC`.
#[derive(Debug)]
pub(crate) struct RbacAuthorizer(pub(super) Arc<Rbac>);

#[async_trait]
impl Authorizer for RbacAuthorizer {
    async fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        self.0.fresh().await;
        self.0.decide(attributes.user, attributes.request)
    }

    fn identity(&self) -> Option<(&'static str, &str)> {
        Some(("RBAC", "rbac"))
    }

    async fn rules(&self, user: &UserInfo, namespace: &str) -> UserRules {
        self.0.fresh().await;
        let (rules, faults) = self.0.rules_of(user, namespace);
        UserRules {
            rules,
            incomplete: !faults.is_empty(),
            faults,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn follower(tables: &Arc<RwLock<Tables>>, binds: bool, cluster: bool) -> Follower {
        Follower {
            tables: Arc::clone(tables),
            binds,
            cluster,
        }
    }

    fn rbac() -> (Rbac, Arc<RwLock<Tables>>) {
        let tables = Arc::new(RwLock::new(Tables::default()));
        let rbac = Rbac {
            tables: Arc::clone(&tables),
            storages: Vec::new(),
            mirrors: OnceLock::new(),
        };
        (rbac, tables)
    }

    fn list_pods(namespace: Option<&str>) -> RequestInfo {
        RequestInfo {
            verb: "list".to_owned(),
            is_resource: true,
            resource: "pods".to_owned(),
            namespace: namespace.map(str::to_owned),
            ..RequestInfo::default()
        }
    }

    #[test]
    fn item_188_bindings_allow_in_their_namespace_and_say_why() {
        let (rbac, tables) = rbac();
        let role = json!({
            "metadata": {"name": "reader"},
            "rules": [{"verbs": ["list"], "apiGroups": [""], "resources": ["pods"]}],
        });
        follower(&tables, false, true).put(&role);
        let binding = json!({
            "metadata": {"name": "b", "namespace": "a"},
            "roleRef": {"kind": "ClusterRole", "name": "reader"},
            "subjects": [{"kind": "ServiceAccount", "name": "s", "namespace": "x"}],
        });
        follower(&tables, true, false).put(&binding);
        let user = UserInfo::new("system:serviceaccount:x:s", &[]);
        assert_eq!(
            rbac.decide(&user, &list_pods(Some("a"))),
            Decision::Allow(
                "RBAC: allowed by RoleBinding \"b/a\" of ClusterRole \"reader\" to ServiceAccount \"s/x\"".to_owned()
            )
        );
        let none = Decision::NoOpinion(String::new());
        assert_eq!(rbac.decide(&user, &list_pods(Some("b"))), none);
        assert_eq!(rbac.decide(&user, &list_pods(None)), none);
        follower(&tables, true, false).remove("a", "b");
        assert_eq!(rbac.decide(&user, &list_pods(Some("a"))), none);
        assert!(tables.read().by_subject.is_empty());
    }

    #[test]
    fn a_missing_role_is_named() {
        let (rbac, tables) = rbac();
        let binding = json!({
            "metadata": {"name": "b"},
            "roleRef": {"kind": "ClusterRole", "name": "gone"},
            "subjects": [{"kind": "Group", "name": "g"}],
        });
        follower(&tables, true, true).replace(&[binding]);
        let user = UserInfo::new("u", &["g"]);
        assert_eq!(
            rbac.decide(&user, &list_pods(None)),
            Decision::NoOpinion(
                "RBAC: clusterrole.rbac.authorization.k8s.io \"gone\" not found".to_owned()
            )
        );
    }
}
