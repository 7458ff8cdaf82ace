//! After a new list: what is not in it is gone, though nobody said so.

use std::sync::Arc;

use super::Zone;
use super::index::Namespace;

impl Zone {
    /// Removes the Services that are not to be kept, by namespace and name: those a complete list lacks.
    pub fn retain_services(&mut self, keep: impl Fn(&str, &str) -> bool) {
        let names = |objects: &Namespace| {
            let live = objects
                .services
                .iter()
                .filter(|(_, entry)| entry.service.is_some());
            live.map(|(name, _)| name.clone()).collect()
        };
        for (namespace, name) in self.others(names, keep) {
            self.remove_service(&namespace, &name);
        }
    }

    /// Removes the EndpointSlices that are not to be kept, by namespace and name.
    pub fn retain_slices(&mut self, keep: impl Fn(&str, &str) -> bool) {
        let names = |objects: &Namespace| objects.slice_owners.keys().cloned().collect();
        for (namespace, name) in self.others(names, keep) {
            self.remove_slice(&namespace, &name);
        }
    }

    /// Removes the Namespaces that are not to be kept.
    pub fn retain_namespaces(&mut self, keep: impl Fn(&str) -> bool) {
        let all = self
            .namespaces
            .iter()
            .filter(|(name, known)| known.declared && !keep(name));
        let gone: Vec<Arc<str>> = all.map(|(name, _)| name.clone()).collect();
        for name in gone {
            self.remove_namespace(&name);
        }
    }

    fn others(
        &self,
        names: impl Fn(&Namespace) -> Vec<Arc<str>>,
        keep: impl Fn(&str, &str) -> bool,
    ) -> Vec<(Arc<str>, Arc<str>)> {
        let mut others = Vec::new();
        for (namespace, objects) in &self.namespaces {
            let gone = names(objects)
                .into_iter()
                .filter(|name| !keep(namespace, name));
            others.extend(gone.map(|name| (namespace.clone(), name)));
        }
        others
    }
}
