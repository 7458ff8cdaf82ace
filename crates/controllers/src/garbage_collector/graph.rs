//! Who owns whom, by UID.

use super::{FOREGROUND, ORPHAN, Uid};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;

/// Of how many objects that are gone this is remembered.
const REMEMBERED: usize = 1024;

/// Where an object is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    /// `plural.group`, the key of [`super::resources::Resources`].
    pub(super) resource: String,
    /// Empty for cluster-scoped objects.
    pub(super) namespace: String,
    pub(super) name: String,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "" => write!(f, "{} {}", self.resource, self.name),
            namespace => write!(f, "{} {namespace}/{}", self.resource, self.name),
        }
    }
}

#[derive(Debug)]
struct Node {
    identity: Identity,
    owners: Vec<OwnerReference>,
    /// It is being deleted, after its dependents.
    waits: bool,
    /// It is being deleted, and nothing of that is the garbage collector's.
    leaves: bool,
}

/// Objects that own or are owned.
#[derive(Debug, Default)]
pub(super) struct Graph {
    nodes: HashMap<Uid, Node>,
    dependents: HashMap<Uid, HashSet<Uid>>,
    /// About how much memory the objects of each resource take.
    weights: HashMap<String, usize>,
    gone: Gone,
}

/// What an object weighs beside what it says.
const OBJECT_WEIGHT: usize = 512;

impl Node {
    fn weight(&self) -> usize {
        let Identity {
            namespace, name, ..
        } = &self.identity;
        let owner = |o: &OwnerReference| {
            OBJECT_WEIGHT / 2 + o.uid.len() + o.name.len() + o.kind.len() + o.api_version.len()
        };
        let owners: usize = self.owners.iter().map(owner).sum();
        OBJECT_WEIGHT + namespace.len() + name.len() + owners
    }
}

/// Objects that were seen to go last, with their resources: no other of the resource will have their UIDs. Whoever serves a
/// resource of its own can give its objects the UIDs of others.
#[derive(Debug, Default)]
struct Gone {
    uids: HashMap<Uid, String>,
    order: VecDeque<Uid>,
}

impl Gone {
    fn insert(&mut self, uid: &str, resource: &str) {
        let known = self.uids.insert(uid.to_owned(), resource.to_owned());
        if known.is_some() {
            return;
        }
        self.order.push_back(uid.to_owned());
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.uids.remove(&oldest);
        }
    }
}

impl Graph {
    /// Notes an object; returns the UIDs to look at because of what is new about it. `owner_of` says where the object is that
    /// a reference of its means.
    pub(super) fn observe(
        &mut self,
        identity: Identity,
        meta: &ObjectMeta,
        owner_of: impl Fn(&OwnerReference) -> Option<Identity>,
    ) -> Vec<Uid> {
        let Some(uid) = meta.uid.clone() else {
            return Vec::new();
        };
        if self.is_of_another(&uid, &identity.resource) {
            return Vec::new();
        }
        let owners = meta.owner_references.clone().unwrap_or_default();
        let deleting = meta.deletion_timestamp.is_some();
        let has = |finalizer: &str| meta.finalizers.iter().flatten().any(|f| f == finalizer);
        let held = has(FOREGROUND) || has(ORPHAN);
        let node = Node {
            identity,
            owners: owners.clone(),
            waits: deleting && has(FOREGROUND),
            leaves: deleting && !held,
        };
        let weight = self.weights.entry(node.identity.resource.clone());
        *weight.or_default() += node.weight() + uid.len();
        let before = self.nodes.insert(uid.clone(), node);
        self.lighten(&uid, before.as_ref());
        let owners_before = before.map(|node| node.owners).unwrap_or_default();
        for owner in &owners_before {
            self.unlink(&owner.uid, &uid);
        }
        for owner in &owners {
            self.dependents
                .entry(owner.uid.clone())
                .or_default()
                .insert(uid.clone());
        }
        let mut concerned = Vec::new();
        // An owner that is there needs no look, unless it is another object or will take its dependents along.
        let is_new = owners != owners_before;
        let unsure = |owner: &OwnerReference| match self.nodes.get(&owner.uid) {
            Some(node) => {
                is_new && (node.waits || owner_of(owner).as_ref() != Some(&node.identity))
            }
            None => true,
        };
        // Of one that is being deleted there is nothing to find out.
        if (deleting && held) || (!deleting && owners.iter().any(unsure)) {
            concerned.push(uid);
        }
        // An owner that waits for its dependents may have one less to wait for.
        concerned.extend(
            owners_before
                .into_iter()
                .filter(|o| !owners.contains(o))
                .map(|o| o.uid),
        );
        concerned
    }

    /// Takes the weight of an object away that is not there any more.
    fn lighten(&mut self, uid: &str, node: Option<&Node>) {
        let Some(node) = node else { return };
        if let Some(weight) = self.weights.get_mut(&node.identity.resource) {
            *weight = weight.saturating_sub(node.weight() + uid.len());
        }
    }

    /// About how many bytes of memory the objects of a resource take.
    pub(super) fn weight(&self, resource: &str) -> usize {
        self.weights.get(resource).copied().unwrap_or_default()
    }

    /// Forgets all objects of a resource, as if it had never been watched: nothing says that they are gone.
    pub(super) fn unwatch(&mut self, resource: &str) {
        for uid in self.of_resource(resource) {
            let node = self.nodes.remove(&uid);
            for owner in node.into_iter().flat_map(|node| node.owners) {
                self.unlink(&owner.uid, &uid);
            }
        }
        self.weights.remove(resource);
    }

    /// Whether the UID is that of an object of another resource.
    fn is_of_another(&self, uid: &str, resource: &str) -> bool {
        let node = self.nodes.get(uid);
        node.is_some_and(|node| node.identity.resource != resource)
    }

    /// Forgets an object of a resource; returns the UIDs to look at because it is gone.
    pub(super) fn remove(&mut self, uid: &str, resource: &str) -> Vec<Uid> {
        if self.is_of_another(uid, resource) {
            return Vec::new();
        }
        let mut concerned: Vec<Uid> = self.dependent_uids(uid);
        concerned.retain(|uid| !self.nodes.get(uid).is_some_and(|node| node.leaves));
        self.gone.insert(uid, resource);
        if let Some(node) = self.nodes.remove(uid) {
            self.lighten(uid, Some(&node));
            for owner in node.owners {
                self.unlink(&owner.uid, uid);
                concerned.push(owner.uid);
            }
        }
        concerned
    }

    /// Whether the object of a resource was seen to go, and is not back (a backup that was restored has the UIDs of then).
    pub(super) fn is_gone(&self, uid: &str, resource: &str) -> bool {
        let gone = self.gone.uids.get(uid);
        gone.is_some_and(|of| of == resource) && !self.nodes.contains_key(uid)
    }

    fn unlink(&mut self, owner: &str, dependent: &str) {
        if let Some(set) = self.dependents.get_mut(owner) {
            set.remove(dependent);
            if set.is_empty() {
                self.dependents.remove(owner);
            }
        }
    }

    pub(super) fn identity(&self, uid: &str) -> Option<Identity> {
        self.nodes.get(uid).map(|node| node.identity.clone())
    }

    /// All objects of a resource.
    pub(super) fn of_resource(&self, resource: &str) -> Vec<Uid> {
        self.nodes
            .iter()
            .filter(|(_, node)| node.identity.resource == resource)
            .map(|(uid, _)| uid.clone())
            .collect()
    }

    pub(super) fn has_dependents(&self, uid: &str) -> bool {
        self.dependents.contains_key(uid)
    }

    pub(super) fn dependent_uids(&self, uid: &str) -> Vec<Uid> {
        self.dependents
            .get(uid)
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }

    pub(super) fn dependents(&self, uid: &str) -> Vec<Identity> {
        self.dependent_uids(uid)
            .iter()
            .filter_map(|d| self.identity(d))
            .collect()
    }

    /// The dependents that an owner in a namespace can have: those there.
    fn near_dependents(&self, uid: &str) -> impl Iterator<Item = (&Uid, &Node)> {
        let namespace = self.nodes.get(uid).map(|node| &*node.identity.namespace);
        let dependents = self.dependents.get(uid).into_iter().flatten();
        dependents
            .filter_map(|dependent| Some((dependent, self.nodes.get(dependent)?)))
            .filter(move |(_, node)| {
                namespace.is_none_or(|of| of.is_empty() || *of == *node.identity.namespace)
            })
    }

    /// Dependents that are not being deleted after their own dependents.
    pub(super) fn idle_dependents(&self, uid: &str) -> Vec<Uid> {
        let idle = self.near_dependents(uid).filter(|(_, node)| !node.waits);
        idle.map(|(dependent, _)| dependent.clone()).collect()
    }

    /// Whether the object, once it waits for its dependents, waits for itself: through dependents that wait for theirs.
    pub(super) fn in_circle(&self, uid: &str) -> bool {
        let mut seen = HashSet::new();
        let mut open = vec![uid];
        while let Some(at) = open.pop() {
            for dependent in self.dependents.get(at).into_iter().flatten() {
                if dependent == uid {
                    return true;
                }
                let waits = self.nodes.get(dependent).is_some_and(|node| node.waits);
                if waits && seen.insert(dependent) {
                    open.push(dependent);
                }
            }
        }
        false
    }

    /// How many dependents the owner's foreground deletion must wait for.
    pub(super) fn blocking_dependents(&self, uid: &str) -> usize {
        let blocks = |node: &Node| {
            let mut owners = node.owners.iter();
            owners.any(|o| o.uid == uid && o.block_owner_deletion == Some(true))
        };
        self.near_dependents(uid)
            .filter(|(_, node)| blocks(node))
            .count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Timestamp;

    fn meta(uid: &str, owners: &[&str]) -> ObjectMeta {
        let owner = |uid: &&str| OwnerReference {
            uid: (*uid).to_owned(),
            block_owner_deletion: Some(true),
            ..OwnerReference::default()
        };
        ObjectMeta {
            uid: Some(uid.to_owned()),
            owner_references: Some(owners.iter().map(owner).collect()),
            ..ObjectMeta::default()
        }
    }

    fn identity(name: &str) -> Identity {
        Identity {
            resource: "pods.".into(),
            namespace: "ns".into(),
            name: name.into(),
        }
    }

    /// References that mean objects with their names.
    fn named(owner: &OwnerReference) -> Option<Identity> {
        let name = match owner.uid.as_str() {
            "o" => "owner",
            uid => uid,
        };
        Some(identity(name))
    }

    #[test]
    fn dependents_are_looked_at_when_their_owner_goes() {
        let mut graph = Graph::default();
        assert!(
            graph
                .observe(identity("owner"), &meta("o", &[]), named)
                .is_empty()
        );
        assert!(
            graph
                .observe(identity("a"), &meta("a", &["o"]), named)
                .is_empty(),
            "its owner is there"
        );
        assert!(
            graph
                .observe(identity("a"), &meta("a", &["o"]), named)
                .is_empty(),
            "nothing is new"
        );
        assert_eq!(graph.blocking_dependents("o"), 1);
        assert!(!graph.is_gone("o", "pods."));
        assert_eq!(graph.remove("o", "pods."), ["a"]);
        assert!(graph.is_gone("o", "pods."));
        assert!(!graph.is_gone("o", "others."));
        graph.observe(identity("owner"), &meta("o", &[]), named);
        assert!(!graph.is_gone("o", "pods."), "it is back");
    }

    #[test]
    fn what_is_being_deleted_already_is_left_alone() {
        let mut graph = Graph::default();
        let leaving = |finalizers: &[&str]| ObjectMeta {
            deletion_timestamp: Some(Time(Timestamp::UNIX_EPOCH)),
            finalizers: Some(finalizers.iter().map(|f| (*f).to_owned()).collect()),
            ..meta("a", &["o"])
        };
        graph.observe(identity("owner"), &meta("o", &[]), named);
        graph.observe(identity("a"), &leaving(&["other"]), named);
        assert!(graph.remove("o", "pods.").is_empty());
        let seen = graph.observe(identity("a"), &leaving(&["other"]), named);
        assert!(seen.is_empty());
        let seen = graph.observe(identity("a"), &leaving(&[ORPHAN]), named);
        assert_eq!(seen, ["a"], "its dependents are to be orphaned");
    }

    #[test]
    fn nobody_else_speaks_of_an_object() {
        let mut graph = Graph::default();
        graph.observe(identity("owner"), &meta("o", &[]), named);
        graph.observe(identity("a"), &meta("a", &["o"]), named);
        // Somebody's own kind with the UIDs of others, that comes and goes.
        let other = || Identity {
            resource: "others.".into(),
            ..identity("x")
        };
        assert!(graph.observe(other(), &meta("o", &[]), named).is_empty());
        assert!(graph.remove("o", "others.").is_empty());
        assert_eq!(graph.identity("o"), Some(identity("owner")));
        assert!(!graph.is_gone("o", "pods."));
        // Nor does a dependent in another namespace hold it up.
        let elsewhere = Identity {
            namespace: "elsewhere".into(),
            ..identity("b")
        };
        graph.observe(elsewhere, &meta("b", &["o"]), named);
        assert_eq!(graph.blocking_dependents("o"), 1);
        assert_eq!(graph.idle_dependents("o"), ["a"]);
    }

    #[test]
    fn an_owner_that_is_another_object_or_waits_is_looked_at() {
        let mut graph = Graph::default();
        graph.observe(identity("owner"), &meta("o", &[]), named);
        let elsewhere = |_: &OwnerReference| Some(identity("another"));
        assert_eq!(
            graph.observe(identity("a"), &meta("a", &["o"]), elsewhere),
            ["a"]
        );
        assert_eq!(
            graph.observe(identity("b"), &meta("b", &["o"]), |_| None),
            ["b"]
        );
        let waiting = ObjectMeta {
            deletion_timestamp: Some(Time(Timestamp::UNIX_EPOCH)),
            finalizers: Some(vec![FOREGROUND.to_owned()]),
            ..meta("o", &[])
        };
        graph.observe(identity("owner"), &waiting, named);
        assert_eq!(
            graph.observe(identity("c"), &meta("c", &["o"]), named),
            ["c"]
        );
    }

    #[test]
    fn what_is_gone_is_remembered_for_a_while() {
        let mut graph = Graph::default();
        for n in 0..=REMEMBERED {
            graph.remove(&n.to_string(), "pods.");
        }
        assert!(!graph.is_gone("0", "pods.") && graph.is_gone("1", "pods."));
        assert_eq!(graph.gone.order.len(), REMEMBERED);
    }

    #[test]
    fn owner_is_looked_at_when_a_dependent_goes_or_is_let_go() {
        let mut graph = Graph::default();
        graph.observe(identity("owner"), &meta("o", &[]), named);
        graph.observe(identity("a"), &meta("a", &["o"]), named);
        graph.observe(identity("b"), &meta("b", &["o"]), named);
        assert_eq!(graph.remove("a", "pods."), ["o"]);
        assert_eq!(graph.observe(identity("b"), &meta("b", &[]), named), ["o"]);
        assert!(!graph.has_dependents("o"));
    }

    #[test]
    fn those_that_wait_in_a_circle_are_seen() {
        let mut graph = Graph::default();
        let waiting = |uid: &str, owners: &[&str]| ObjectMeta {
            deletion_timestamp: Some(Time(Timestamp::UNIX_EPOCH)),
            finalizers: Some(vec![FOREGROUND.to_owned()]),
            ..meta(uid, owners)
        };
        graph.observe(identity("a"), &meta("a", &["c"]), named);
        graph.observe(identity("b"), &meta("b", &["a"]), named);
        graph.observe(identity("c"), &meta("c", &["b"]), named);
        graph.observe(identity("d"), &meta("d", &["a"]), named);
        assert!(!graph.in_circle("c"), "a does not wait");
        graph.observe(identity("a"), &waiting("a", &["c"]), named);
        assert!(!graph.in_circle("c"), "b does not wait");
        graph.observe(identity("b"), &waiting("b", &["a"]), named);
        assert!(graph.in_circle("c"));
        assert!(!graph.in_circle("d"));
        assert_eq!(graph.idle_dependents("a"), ["d"]);
    }

    #[test]
    fn object_whose_owner_was_never_seen_is_looked_at() {
        let mut graph = Graph::default();
        assert_eq!(
            graph.observe(identity("a"), &meta("a", &["missing"]), named),
            ["a"]
        );
        assert_eq!(
            graph.observe(identity("a"), &meta("a", &["missing"]), named),
            ["a"]
        );
    }

    /// A server that lists without end is watched until then, and forgotten as if it had never been.
    #[test]
    fn what_objects_weigh_is_counted_by_resource() {
        let mut graph = Graph::default();
        let foreign = |n: usize| Identity {
            resource: "things.example.com".into(),
            namespace: "x".repeat(1000),
            name: n.to_string(),
        };
        graph.observe(identity("o"), &meta("o", &[]), named);
        let own = graph.weight("pods.");
        for n in 0..100 {
            graph.observe(foreign(n), &meta(&format!("u{n}"), &["o"]), named);
        }
        let weight = graph.weight("things.example.com");
        assert!((150_000..300_000).contains(&weight), "{weight}");
        for n in 0..100 {
            graph.observe(foreign(n), &meta(&format!("u{n}"), &["o"]), named);
        }
        assert_eq!(
            graph.weight("things.example.com"),
            weight,
            "the same objects"
        );
        graph.remove("u0", "things.example.com");
        assert!(graph.weight("things.example.com") < weight);
        assert_eq!(graph.dependent_uids("o").len(), 99);
        graph.unwatch("things.example.com");
        assert_eq!(graph.weight("things.example.com"), 0);
        assert!(graph.of_resource("things.example.com").is_empty());
        assert!(graph.dependent_uids("o").is_empty());
        assert!(!graph.is_gone("u1", "things.example.com"));
        assert_eq!(graph.weight("pods."), own);
    }
}
