//! Says of what users write for the network that no node does anything with it: ports of nodes where nothing proxies
//! Services, network policies where nobody enforces them.
//!
//! Nodes say by annotations what they do ([`PROXIES_SERVICES`], [`ENFORCES_POLICIES`]); of agents other than davit's nothing is
//! known, and nothing is said.

use async_trait::async_trait;
use davit_client::{Informer, Object, ObjectKey};
use davit_netplan::{ENFORCES_POLICIES, PROXIES_SERVICES};
use davit_reconcile::{Error, Informers, Next, Notices, Reconcile, Spawner, Tone};
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::watcher;
use std::time::Duration;

/// How long nodes may take to join before it is said that there are none.
const JOINING: Duration = Duration::from_secs(10);

/// Something that nodes have to do something for.
trait Served: Object + kube::Resource<DynamicType = ()> {
    /// Name of the controller.
    const NAME: &'static str;
    /// By which a node says that it does.
    const ANNOTATION: &'static str;
    const REASON: &'static str;
    /// Whether it needs anything.
    fn is_needy(&self) -> bool;
    /// What is missing where, in one sentence.
    fn words(place: &str) -> String;
}

impl Served for Service {
    const NAME: &'static str = "unserved-services";
    const ANNOTATION: &'static str = PROXIES_SERVICES;
    const REASON: &'static str = "NoServiceProxy";

    /// Services of type LoadBalancer are told that they get no address.
    fn is_needy(&self) -> bool {
        self.spec.as_ref().and_then(|s| s.type_.as_deref()) == Some("NodePort")
    }

    fn words(place: &str) -> String {
        format!("nothing answers at the node ports of this Service: {place} proxies Services")
    }
}

impl Served for NetworkPolicy {
    const NAME: &'static str = "unserved-policies";
    const ANNOTATION: &'static str = ENFORCES_POLICIES;
    const REASON: &'static str = "NotEnforced";

    fn is_needy(&self) -> bool {
        true
    }

    fn words(place: &str) -> String {
        format!("pods are not isolated by this policy: {place} enforces network policies")
    }
}

/// Where nobody does what the annotation is about; nothing if somebody does or may do it everywhere.
fn place(nodes: &[impl AsRef<Node>], annotation: &str) -> Option<String> {
    let refuses = |node: &Node| {
        node.annotations()
            .get(annotation)
            .is_some_and(|v| v == "false")
    };
    let refusing: Vec<String> = nodes
        .iter()
        .filter(|node| refuses(node.as_ref()))
        .map(|node| node.as_ref().name_any())
        .collect();
    match refusing.as_slice() {
        [] if nodes.is_empty() => Some("the cluster has no node that".to_owned()),
        [] => None,
        all if all.len() == nodes.len() => Some("no node of the cluster".to_owned()),
        [one] => Some(format!("nobody on node {one}")),
        [first, rest @ ..] => Some(format!("nobody on node {first} and {} more", rest.len())),
    }
}

struct Unserved<K> {
    informers: Informers,
    objects: Informer<K>,
    notices: Notices,
}

pub(crate) fn spawn(spawner: &mut Spawner<'_>) {
    let Some(spawner) = &mut spawner.start("network-controller") else {
        return;
    };
    let services = spawner.informers.services.clone();
    watch(spawner, services);
    let policies: Informer<NetworkPolicy> = Informer::spawn(
        kube::Api::all(spawner.shared.clone()),
        watcher::Config::default(),
        spawner.tasks.set(),
        spawner.cancel.clone(),
    );
    watch(spawner, policies);
}

fn watch<K: Served>(spawner: &mut Spawner<'_>, objects: Informer<K>) {
    let informers = spawner.informers.clone();
    let notices = Notices::new(spawner.events("network-controller"));
    let queue = spawner.controller(Unserved {
        informers: informers.clone(),
        objects: objects.clone(),
        notices,
    });
    let key = |object: &K| object.is_needy().then(|| ObjectKey::of(object));
    spawner.feed(&objects, &queue, move |object: &K| {
        key(object).into_iter().collect()
    });
    let says = |node: &Node| node.annotations().get(K::ANNOTATION).cloned();
    spawner.feed_changes(
        &informers.nodes,
        &queue,
        move |old: &Node, new: &Node| says(old) != says(new),
        move |_: &Node| {
            let all = objects.list();
            all.iter().filter_map(|object| key(object)).collect()
        },
    );
}

#[async_trait]
impl<K: Served> Reconcile for Unserved<K> {
    const NAME: &'static str = K::NAME;
    const WORKERS: usize = 1;

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let held = self.objects.get(Some(&key.namespace), &key.name);
        let Some(object) = held.filter(|object| object.is_needy()) else {
            self.notices.forget(key);
            return Ok(Next::Wait);
        };
        let Some(place) = place(&self.informers.nodes.list(), K::ANNOTATION) else {
            self.notices.forget(key);
            return Ok(Next::Wait);
        };
        let created = object.meta().creation_timestamp.as_ref();
        let until = created.and_then(|time| time.0.checked_add(JOINING).ok());
        let left = until.map(|until| until.duration_since(Timestamp::now()));
        if let Some(left) = left.and_then(|left| Duration::try_from(left).ok())
            && !left.is_zero()
        {
            return Ok(Next::After(left));
        }
        let words = K::words(&place);
        self.notices
            .say(object.as_ref(), Tone::Warning, K::REASON, &words);
        Ok(Next::Wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn where_nobody_does_it() {
        let node = |name: &str, says: Option<&str>| -> Arc<Node> {
            let mut node = Node::default();
            node.metadata.name = Some(name.to_owned());
            if let Some(says) = says {
                let annotations = node.annotations_mut();
                annotations.insert(ENFORCES_POLICIES.to_owned(), says.to_owned());
            }
            Arc::new(node)
        };
        let place = |nodes: &[Arc<Node>]| place(nodes, ENFORCES_POLICIES).unwrap_or_default();
        assert_eq!(place(&[]), "the cluster has no node that");
        assert_eq!(place(&[node("a", None), node("b", Some("true"))]), "");
        assert_eq!(place(&[node("a", Some("false"))]), "no node of the cluster");
        let one = [node("a", Some("false")), node("b", None)];
        assert_eq!(place(&one), "nobody on node a");
        let two = [
            node("a", Some("false")),
            node("b", Some("false")),
            node("c", None),
        ];
        assert_eq!(place(&two), "nobody on node a and 1 more");
    }
}
