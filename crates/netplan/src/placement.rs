//! Which endpoint stands in which slice: as few writes as possible, at most [`CAPACITY`] endpoints a slice.

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};

/// Endpoints of one slice (`--max-endpoints-per-slice` of the original).
const CAPACITY: usize = 100;

/// What is to be done with the slices of one address type and one set of ports.
#[derive(Debug, Default, PartialEq)]
pub struct SlicePlacement {
    /// Endpoints of new slices.
    pub create: Vec<Vec<Endpoint>>,
    /// Slices with their new endpoints.
    pub update: Vec<EndpointSlice>,
    /// Slices that hold nothing any more.
    pub delete: Vec<EndpointSlice>,
}

/// Whether two ports lists mean the same, whatever their order.
#[must_use]
pub fn same_ports(a: Option<&Vec<EndpointPort>>, b: &[EndpointPort]) -> bool {
    let sorted = |ports: &[EndpointPort]| {
        let mut keys: Vec<_> = ports
            .iter()
            .map(|p| {
                let name = p.name.clone().unwrap_or_default();
                (name, p.protocol.clone(), p.port, p.app_protocol.clone())
            })
            .collect();
        keys.sort();
        keys
    };
    sorted(a.map(Vec::as_slice).unwrap_or_default()) == sorted(b)
}

/// Endpoints are the same one when they have the same addresses and stand for the same object.
fn same_endpoint(a: &Endpoint, b: &Endpoint) -> bool {
    let uid = |e: &Endpoint| e.target_ref.as_ref().and_then(|r| r.uid.clone());
    a.addresses == b.addresses && uid(a) == uid(b)
}

/// Distributes `wanted` over the slices that are there.
#[must_use]
pub fn place_endpoints(existing: Vec<EndpointSlice>, mut wanted: Vec<Endpoint>) -> SlicePlacement {
    let mut placement = SlicePlacement::default();
    let mut unchanged = Vec::new();
    for mut slice in existing {
        let held = slice.endpoints.take().unwrap_or_default();
        let mut kept = Vec::with_capacity(held.len());
        let mut changed = false;
        for endpoint in held {
            match wanted.iter().position(|w| same_endpoint(w, &endpoint)) {
                Some(at) => {
                    let new = wanted.swap_remove(at);
                    changed |= new != endpoint;
                    kept.push(new);
                }
                None => changed = true,
            }
        }
        let empty = kept.is_empty();
        slice.endpoints = Some(kept);
        match (empty, changed) {
            (true, _) => placement.delete.push(slice),
            (false, true) => placement.update.push(slice),
            (false, false) => unchanged.push(slice),
        }
    }
    wanted.sort_by(|a, b| a.addresses.cmp(&b.addresses));
    // Room first in slices that are written anyway, even in those that were to go.
    placement
        .update
        .sort_by_key(|s| std::cmp::Reverse(count(s)));
    for slice in &mut placement.update {
        fill(slice, &mut wanted);
    }
    while !wanted.is_empty()
        && let Some(mut slice) = placement.delete.pop()
    {
        fill(&mut slice, &mut wanted);
        placement.update.push(slice);
    }
    let rest = wanted.len();
    if rest > 0 && rest < CAPACITY {
        // The fullest slice that takes all of the rest: one write, no new slice.
        let fits = unchanged
            .iter()
            .enumerate()
            .filter(|(_, s)| count(s) + rest <= CAPACITY)
            .max_by_key(|(_, s)| count(s))
            .map(|(at, _)| at);
        if let Some(at) = fits {
            let mut slice = unchanged.swap_remove(at);
            fill(&mut slice, &mut wanted);
            placement.update.push(slice);
        }
    }
    while !wanted.is_empty() {
        let rest = wanted.split_off(wanted.len().min(CAPACITY));
        placement.create.push(std::mem::replace(&mut wanted, rest));
    }
    placement
}

fn fill(slice: &mut EndpointSlice, wanted: &mut Vec<Endpoint>) {
    let room = CAPACITY.saturating_sub(count(slice));
    let endpoints = slice.endpoints.get_or_insert_default();
    endpoints.extend(wanted.drain(..wanted.len().min(room)));
}

fn count(slice: &EndpointSlice) -> usize {
    slice.endpoints.as_ref().map_or(0, Vec::len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn endpoint(n: u32) -> Endpoint {
        Endpoint {
            addresses: vec![std::net::Ipv4Addr::from(n).to_string()],
            ..Endpoint::default()
        }
    }

    fn slice(name: usize, of: &[u32]) -> EndpointSlice {
        let mut slice = EndpointSlice {
            endpoints: Some(of.iter().map(|n| endpoint(*n)).collect()),
            ..EndpointSlice::default()
        };
        slice.metadata.name = Some(format!("s{name}"));
        slice
    }

    proptest! {
        #[test]
        fn every_wanted_endpoint_stands_in_exactly_one_slice(
            held in proptest::collection::vec(proptest::collection::btree_set(0u32..400, 0..100), 0..5),
            wanted in proptest::collection::btree_set(0u32..400, 0..350),
        ) {
            // Slices of one service do not overlap.
            let mut seen = BTreeSet::new();
            let held: Vec<EndpointSlice> = held.into_iter().enumerate().map(|(i, of)| {
                let of: Vec<u32> = of.into_iter().filter(|n| seen.insert(*n)).collect();
                slice(i, &of)
            }).collect();
            let placed = place_endpoints(held.clone(), wanted.iter().map(|n| endpoint(*n)).collect());
            let touched: BTreeSet<_> = placed.update.iter().chain(&placed.delete)
                .map(|s| s.metadata.name.clone()).collect();
            prop_assert_eq!(touched.len(), placed.update.len() + placed.delete.len());
            let mut found: Vec<String> = held.iter()
                .filter(|s| !touched.contains(&s.metadata.name))
                .chain(&placed.update)
                .flat_map(|s| s.endpoints.iter().flatten())
                .chain(placed.create.iter().flatten())
                .flat_map(|e| e.addresses.clone())
                .collect();
            found.sort();
            let mut expected: Vec<String> = wanted.iter().flat_map(|n| endpoint(*n).addresses).collect();
            expected.sort();
            prop_assert_eq!(found, expected);
            prop_assert!(placed.update.iter().all(|s| count(s) <= CAPACITY));
            prop_assert!(placed.create.iter().all(|s| s.len() <= CAPACITY));
            // What it made is stable.
            let mut now: Vec<EndpointSlice> = held.into_iter()
                .filter(|s| !touched.contains(&s.metadata.name)).collect();
            now.extend(placed.update);
            now.extend(placed.create.into_iter().enumerate().map(|(i, endpoints)| EndpointSlice {
                endpoints: Some(endpoints), ..slice(100 + i, &[])
            }));
            now.retain(|s| count(s) > 0);
            let again = place_endpoints(now, wanted.iter().map(|n| endpoint(*n)).collect());
            prop_assert_eq!(again, SlicePlacement::default());
        }
    }
}
