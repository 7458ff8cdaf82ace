//! What several plugins ask of pods: their containers and what they request.

use serde_json::{Map, Value};

pub(super) use davit_api::amounts::{Amounts, of_map as amounts, of_pod as total};

/// Lists of containers in a pod's spec, ephemeral ones last.
pub(super) const CONTAINERS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// The containers of the lists named.
pub(super) fn containers<'a>(
    spec: &'a Value,
    lists: &'a [&'a str],
) -> impl Iterator<Item = &'a Value> {
    lists
        .iter()
        .flat_map(|list| spec[*list].as_array().into_iter().flatten())
}

/// The containers of the lists named, for writing.
pub(super) fn containers_mut<'a>(
    spec: &'a mut Value,
    lists: &'a [&'a str],
) -> impl Iterator<Item = &'a mut Value> {
    let found = spec.as_object_mut().into_iter().flat_map(Map::iter_mut);
    found
        .filter(|(key, _)| lists.contains(&key.as_str()))
        .flat_map(|(_, list)| list.as_array_mut().into_iter().flatten())
}
