//! Which autoscalers look at the same pods.

use davit_api::labels::Selector;
use davit_client::ObjectKey;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The selector that each autoscaler's target had when it was last looked at.
#[derive(Default)]
pub(super) struct Selectors {
    known: Mutex<BTreeMap<ObjectKey, Selector>>,
}

impl Selectors {
    pub(super) fn put(&self, key: &ObjectKey, selector: Selector) {
        self.known.lock().insert(key.clone(), selector);
    }

    pub(super) fn forget(&self, key: &ObjectKey) {
        self.known.lock().remove(key);
    }

    /// The autoscalers of a namespace whose selector takes one of these pods of it, by name.
    pub(super) fn selecting(&self, namespace: &str, pods: &[Arc<Pod>]) -> Vec<ObjectKey> {
        let none = BTreeMap::new();
        let labels = |pod: &Arc<Pod>, selector: &Selector| {
            selector.matches(pod.metadata.labels.as_ref().unwrap_or(&none))
        };
        self.known
            .lock()
            .iter()
            .filter(|(key, _)| key.namespace == namespace)
            .filter(|(_, selector)| pods.iter().any(|pod| labels(pod, selector)))
            .map(|(key, _)| key.clone())
            .collect()
    }
}

/// Keys as the message of the condition shows them.
pub(super) fn shown(keys: &[ObjectKey]) -> String {
    let each = |key: &ObjectKey| format!("{{{} {}}}", key.name, key.namespace);
    let all: Vec<String> = keys.iter().map(each).collect();
    format!("[{}]", all.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(namespace: &str, name: &str) -> ObjectKey {
        ObjectKey {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    #[test]
    fn those_that_take_a_pod_are_found_until_they_go() {
        let selectors = Selectors::default();
        for (namespace, name, selector) in [
            ("n", "b", "tier=front"),
            ("n", "a", "app=d"),
            ("n", "other", "app=e"),
            ("m", "a", "app=d"),
        ] {
            selectors.put(&key(namespace, name), Selector::parse(selector).unwrap());
        }
        let mut pod = Pod::default();
        let labels = [("app", "d"), ("tier", "front")];
        pod.metadata.labels = Some(labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
        let pods = [Arc::new(pod)];
        let found = selectors.selecting("n", &pods);
        assert_eq!(shown(&found), "[{a n} {b n}]");
        selectors.forget(&key("n", "b"));
        assert_eq!(selectors.selecting("n", &pods), [key("n", "a")]);
        assert!(selectors.selecting("n", &[]).is_empty());
    }
}
