//! Against the kernel, in a network namespace of the test's own. Without root, or without nf_tables, nothing is tested.

use super::*;
use nix::sched::{CloneFlags, unshare};

/// Runs on a thread with a network namespace of its own.
fn alone(work: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
            eprintln!("skipped: no network namespace of one's own: {error}");
            return;
        }
        work();
    });
    thread.join().unwrap();
}

fn key(address: [u8; 4], port: u16) -> Vec<u8> {
    let [high, low] = port.to_be_bytes();
    [&address[..], &[6, 0, 0, 0, high, low, 0, 0]].concat()
}

fn to_chain(address: [u8; 4], chain: &str) -> Element {
    Element {
        key: key(address, 80),
        is_end: false,
        data: Some(Data::Verdict(Verdict::Goto(chain.to_owned()))),
    }
}

const SERVICE: [Field; 3] = [Field::Address, Field::Protocol, Field::Port];
const SERVICES: Set<'_> = Set {
    name: "services",
    keys: &SERVICE,
    values: Values::Verdicts,
    intervals: false,
    dynamic: None,
};

#[test]
fn a_table_is_made_changed_and_read_back() {
    alone(|| {
        let table = Table::new("davit-test", IpVersion::Four);
        assert_eq!(table.mark().unwrap(), None);
        let mut change = table.transaction();
        change.add_table(b"7");
        change.add_chain("choose", None);
        change.add_set(&SERVICES);
        change.add_elements("services", &[to_chain([10, 96, 0, 1], "choose")]);
        table.commit(change).unwrap();
        assert_eq!(table.mark().unwrap(), Some(b"7".to_vec()));
        assert_eq!(table.chains().unwrap(), ["choose"]);
        let found = table.elements("services").unwrap();
        assert_eq!(found, [to_chain([10, 96, 0, 1], "choose")]);
        // All or nothing.
        let mut change = table.transaction();
        change.add_elements("services", &[to_chain([10, 96, 0, 2], "choose")]);
        change.delete_elements("services", &[to_chain([10, 96, 0, 3], "choose")]);
        let error = table.commit(change).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
        assert_eq!(table.elements("services").unwrap().len(), 1);
        let mut change = table.transaction();
        change.delete_table();
        table.commit(change).unwrap();
        assert_eq!(table.mark().unwrap(), None);
    });
}

#[test]
fn thousands_of_elements_at_once() {
    alone(|| {
        let table = Table::new("davit-test", IpVersion::Four);
        let mut change = table.transaction();
        change.add_table(b"");
        change.add_chain("choose", None);
        change.add_set(&SERVICES);
        let many: Vec<Element> = (0..10_000_u16)
            .map(|number| {
                let [high, low] = number.to_be_bytes();
                to_chain([10, 97, high, low], "choose")
            })
            .collect();
        change.add_elements("services", &many);
        table.commit(change).unwrap();
        assert_eq!(table.elements("services").unwrap().len(), many.len());
        let mut change = table.transaction();
        change.delete_elements("services", &many);
        table.commit(change).unwrap();
        assert_eq!(table.elements("services").unwrap(), []);
    });
}

#[test]
fn the_kernel_takes_every_expression() {
    for version in [IpVersion::Four, IpVersion::Six] {
        alone(move || every_expression(version));
    }
}

fn every_expression(version: IpVersion) {
    let table = Table::new("davit-test", version);
    let mut change = table.transaction();
    change.add_table(b"");
    let hook = |kind, point, priority| Hook {
        kind,
        point,
        priority,
    };
    change.add_chain("dnat", Some(hook("nat", Point::Prerouting, -100)));
    change.add_chain("snat", Some(hook("nat", Point::Postrouting, 100)));
    change.add_chain("filter", Some(hook("filter", Point::Forward, 0)));
    change.add_set(&SERVICES);
    let endpoint = [Field::Address, Field::Port];
    let indexed = [Field::Address, Field::Protocol, Field::Port, Field::Number];
    change.add_set(&Set {
        name: "endpoints",
        keys: &indexed,
        values: Values::Fields(&endpoint),
        intervals: false,
        dynamic: None,
    });
    let client = [Field::Address, Field::Address, Field::Protocol, Field::Port];
    change.add_set(&Set {
        name: "affinity",
        keys: &client,
        values: Values::Fields(&endpoint),
        intervals: false,
        dynamic: Some(65536),
    });
    change.add_set(&Set {
        name: "pairs",
        keys: &[Field::Address, Field::Address],
        values: Values::None,
        intervals: false,
        dynamic: None,
    });
    // addresses take one slot or four
    let width = u8::try_from(version.address_length() / 4).unwrap();
    let [a, b, c, d, e] = [0, width, width + 1, width + 2, 10].map(Slot);
    let [port, protocol] = [2 * width + 1, 2 * width].map(Slot);
    change.add_rule(
        "dnat",
        &[
            Expression::InputName(a),
            Expression::NotEqual(a, b"dvt".to_vec()),
            Expression::DestinationKind(a),
            Expression::Equal(a, 2_u32.to_ne_bytes().to_vec()),
            Expression::SourceKind(a),
            Expression::NotEqual(a, 2_u32.to_ne_bytes().to_vec()),
            Expression::DestinationAddress(a),
            Expression::Protocol(b),
            Expression::DestinationPort(c),
            Expression::Random {
                to: d,
                modulus: 2,
                offset: 65536,
            },
            Expression::Lookup {
                map: "endpoints".to_owned(),
                key: a,
                to: e,
            },
            Expression::Load(a, vec![0; usize::from(4 * width)]),
            Expression::IcmpType(b),
            Expression::TunnelNumber(b),
            Expression::OriginalDestination(a),
            Expression::SourceAddress(a),
            Expression::DestinationAddress(b),
            Expression::Protocol(protocol),
            Expression::DestinationPort(port),
            Expression::Remember {
                map: "affinity".to_owned(),
                key: a,
                value: e,
                time: Duration::from_secs(10_800),
            },
            Expression::Destination(e),
        ],
    );
    change.add_rule(
        "snat",
        &[
            Expression::Status(a),
            Expression::Bits {
                of: a,
                mask: 0x20_u32.to_ne_bytes().to_vec(),
                change: vec![0; 4],
            },
            Expression::NotEqual(a, vec![0; 4]),
            Expression::SourceAddress(a),
            Expression::DestinationAddress(b),
            Expression::In {
                set: "pairs".to_owned(),
                key: a,
                absent: false,
            },
            Expression::Mark(a),
            Expression::SetMark(a),
            Expression::OutputName(a),
            Expression::Counter,
            Expression::Masquerade,
        ],
    );
    let dispatch = Expression::Dispatch {
        map: "services".to_owned(),
        key: a,
    };
    change.add_rule(
        "filter",
        &[
            Expression::DestinationAddress(a),
            Expression::Protocol(b),
            Expression::DestinationPort(c),
            dispatch,
        ],
    );
    change.add_rule("filter", &[Expression::State(a), Expression::Reject]);
    let tcp = Expression::Equal(a, vec![6]);
    change.add_rule("filter", &[Expression::Protocol(a), tcp, Expression::Reset]);
    let end = Expression::Verdict(Verdict::Drop);
    change.add_rule("filter", &[end]);
    table.commit(change).unwrap();
    let mut chains = table.chains().unwrap();
    chains.sort();
    assert_eq!(chains, ["dnat", "filter", "snat"]);
    let mut change = table.transaction();
    change.flush_chain("filter");
    change.delete_chain("dnat");
    table.commit(change).unwrap();
}

#[test]
fn intervals_next_to_one_another() {
    alone(|| {
        let table = Table::new("davit-test", IpVersion::Four);
        let mut change = table.transaction();
        change.add_table(b"");
        change.add_set(&Set {
            name: "inside",
            keys: &[Field::Address],
            values: Values::None,
            intervals: true,
            dynamic: None,
        });
        let edge = |third: u8, is_end| Element {
            key: vec![10, 244, third, 0],
            is_end,
            data: None,
        };
        let both = [edge(0, false), edge(1, true), edge(1, false), edge(2, true)];
        change.add_elements("inside", &both);
        table.commit(change).unwrap();
        let found = table.elements("inside").unwrap();
        assert!(both.iter().all(|edge| found.contains(edge)), "{found:?}");
        let mut change = table.transaction();
        change.delete_elements("inside", &both[..2]);
        table.commit(change).unwrap();
        let found = table.elements("inside").unwrap();
        assert!(both[2..].iter().all(|edge| found.contains(edge)));
        assert!(!found.contains(&both[0]), "{found:?}");
    });
}

#[test]
fn a_held_table_goes_with_its_holder() {
    alone(|| {
        let table = Table::new("davit-test", IpVersion::Four);
        let held = match table.hold() {
            Ok(held) => held,
            Err(error) => return eprintln!("skipped: no tables with an owner: {error}"),
        };
        assert!(table.mark().unwrap().is_some());
        // Neither a second holder nor anybody's transaction has it.
        let taken = table.hold().unwrap_err();
        assert_eq!(taken.raw_os_error(), Some(libc::EPERM));
        let mut change = table.transaction();
        change.delete_table();
        assert!(table.commit(change).is_err());
        drop(held);
        assert_eq!(table.mark().unwrap(), None);
        table.hold().unwrap();
    });
}
