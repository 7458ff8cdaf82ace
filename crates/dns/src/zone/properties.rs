//! Whatever the order of changes, the zone is that of the objects that are left.

use std::collections::BTreeMap;

use hickory_proto::op::Query;
use hickory_proto::rr::{Name, RecordType};
use proptest::prelude::*;

use super::Zone;
use super::objects::{alias, service, slice};

const SERVICES: [&str; 3] = ["a", "b", "c"];
const ADDRESSES: [&str; 4] = ["10.0.0.1", "10.0.0.2=host", "10.0.0.1=host", "!10.0.0.3"];

#[derive(Debug, Clone)]
enum Change {
    Namespace(bool),
    Service(usize, Option<u8>),
    Slice(usize, Option<(usize, u8)>),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        any::<bool>().prop_map(Change::Namespace),
        (0..SERVICES.len(), proptest::option::of(0_u8..5))
            .prop_map(|(name, kind)| Change::Service(name, kind)),
        (
            0_usize..4,
            proptest::option::of((0..SERVICES.len(), 0_u8..16))
        )
            .prop_map(|(name, content)| Change::Slice(name, content)),
    ]
}

/// The objects as the API server would hold them.
#[derive(Default)]
struct Objects {
    namespace: bool,
    services: BTreeMap<usize, u8>,
    slices: BTreeMap<usize, (usize, u8)>,
}

fn apply(zone: &mut Zone, change: &Change) {
    match change {
        Change::Namespace(true) => zone.apply_namespace("ns"),
        Change::Namespace(false) => zone.remove_namespace("ns"),
        Change::Service(name, Some(kind)) => {
            let name = SERVICES[*name];
            zone.apply_service(&match kind {
                0 => service(name, &["10.96.0.1"], &["http/TCP/80"]),
                1 => service(name, &["10.96.0.2", "fd00::2"], &[]),
                2 => service(name, &["None"], &["http/TCP/80"]),
                3 => alias(name, "a.ns.svc.cluster.local"),
                _ => service(name, &["10.0.0.1"], &[]),
            });
        }
        Change::Service(name, None) => zone.remove_service("ns", SERVICES[*name]),
        Change::Slice(name, Some((owner, bits))) => {
            let chosen = ADDRESSES
                .iter()
                .enumerate()
                .filter(|(bit, _)| bits >> bit & 1 == 1);
            let endpoints: Vec<&str> = chosen.map(|(_, address)| *address).collect();
            zone.apply_slice(&slice(
                SERVICES[*owner],
                &format!("slice-{name}"),
                &endpoints,
                &["http/TCP/8080"],
            ));
        }
        Change::Slice(name, None) => zone.remove_slice("ns", &format!("slice-{name}")),
    }
}

impl Objects {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Namespace(exists) => self.namespace = *exists,
            Change::Service(name, Some(kind)) => drop(self.services.insert(*name, *kind)),
            Change::Service(name, None) => drop(self.services.remove(name)),
            Change::Slice(name, Some(content)) => drop(self.slices.insert(*name, *content)),
            Change::Slice(name, None) => drop(self.slices.remove(name)),
        }
    }

    fn zone(&self) -> Zone {
        let mut zone = empty();
        // Slices first: either order of informers is possible.
        for (name, content) in &self.slices {
            apply(&mut zone, &Change::Slice(*name, Some(*content)));
        }
        for (name, kind) in &self.services {
            apply(&mut zone, &Change::Service(*name, Some(*kind)));
        }
        if self.namespace {
            zone.apply_namespace("ns");
        }
        zone
    }
}

fn empty() -> Zone {
    let mut zone = Zone::with_clock("cluster.local", 5, || 1).unwrap();
    zone.set_synced(true);
    zone
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn order_does_not_matter(changes in proptest::collection::vec(change(), 0..40)) {
        let mut zone = empty();
        let mut objects = Objects::default();
        for change in &changes {
            apply(&mut zone, change);
            objects.apply(change);
        }
        let expected = objects.zone();
        prop_assert_eq!(&zone.namespaces, &expected.namespaces);
        prop_assert_eq!(&zone.pointers, &expected.pointers);
        for name in ["a.ns.svc.cluster.local.", "host.b.ns.svc.cluster.local.", "ns.svc.cluster.local.",
            "_http._tcp.c.ns.svc.cluster.local.", "1.0.0.10.in-addr.arpa.", "1.0.96.10.in-addr.arpa."] {
            for kind in [RecordType::A, RecordType::SRV, RecordType::PTR] {
                let query = Query::query(Name::from_ascii(name).unwrap(), kind);
                prop_assert_eq!(zone.answer(&query), expected.answer(&query));
            }
        }
    }

    #[test]
    fn all_names_are_answered(labels in proptest::collection::vec("[a-c_]{1,3}|svc|pod|ns|_tcp|_http|10-0-0-1", 0..6)) {
        let mut zone = empty();
        apply(&mut zone, &Change::Service(0, Some(2)));
        apply(&mut zone, &Change::Slice(0, Some((0, 15))));
        let mut name = Name::from_labels(labels.iter().map(String::as_bytes)).unwrap();
        name = name.append_domain(&Name::from_ascii("cluster.local.").unwrap()).unwrap();
        for kind in [RecordType::A, RecordType::SRV, RecordType::TXT] {
            let _ = zone.answer(&Query::query(name.clone(), kind));
        }
    }
}
