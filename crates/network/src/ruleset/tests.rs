//! Against the kernel, in a network namespace of the test's own. Without root nothing is tested.

use super::*;
use davit_net::nft::Verdict;
use nix::sched::{CloneFlags, unshare};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

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

fn endpoint(last: u8) -> Wanted {
    Wanted::Data(Data::Value(vec![10, 244, 0, last, 0, 80, 0, 0]))
}

fn key(number: u32) -> Vec<u8> {
    let service = [10, 96, 0, 9, 6, 0, 0, 0, 0, 80, 0, 0];
    [&service[..], &number.to_ne_bytes()].concat()
}

#[test]
fn what_stands_is_taken_over_and_changed() {
    alone(|| {
        let ruleset = Ruleset::open("davit-t", Family::V4, "dvtffff", None).unwrap();
        let mut update = Update::default();
        update.set(Map::Endpoints, key(0), endpoint(2));
        update.set(Map::Endpoints, key(1), endpoint(3));
        let choice = davit_netplan::Choice {
            count: 2,
            offset: 0,
            node_port: false,
            masquerade: davit_netplan::Masquerade::Others,
            affinity: Some(30),
        };
        let chain = Chain::Choose(choice);
        update.chains.insert(Chain::Guard {
            sources: vec!["192.0.2.0/24".parse().unwrap()],
            then: Box::new(chain.clone()),
        });
        let goto = Wanted::Data(Data::Verdict(Verdict::Goto(chain.name())));
        update.set(Map::Services, key(0)[..12].to_vec(), goto);
        let edges = [(vec![10, 244, 0, 0], false), (vec![10, 245, 0, 0], true)];
        for edge in edges {
            update.elements.insert((Map::Inside, edge), Wanted::Member);
        }
        ruleset.apply(&update).unwrap();
        ruleset.set_pods("10.244.0.0/24".parse().ok()).unwrap();

        // Another run finds it, and changes what differs.
        let again = Ruleset::open("davit-t", Family::V4, "dvtffff", None).unwrap();
        assert_eq!(again.places(Map::Endpoints).len(), 2);
        assert_eq!(again.places(Map::Inside).len(), 2);
        let mut update = Update::default();
        update.set(Map::Endpoints, key(0), endpoint(7));
        again.replace(&[Map::Endpoints], update).unwrap();
        let found = again.table.elements("endpoints").unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0].data,
            Some(Data::Value(vec![10, 244, 0, 7, 0, 80, 0, 0]))
        );

        // Somebody removes it.
        assert!(!again.restore().unwrap());
        again.remove().unwrap();
        assert!(again.restore().unwrap());
        assert_eq!(again.places(Map::Endpoints), []);
        // Another layout does not stay.
        let other = Ruleset::open("davit-t", Family::V4, "dvteeee", None).unwrap();
        assert_eq!(other.places(Map::Endpoints), []);
    });
}

#[test]
fn a_refused_change_leaves_what_was_there() {
    alone(|| {
        let ruleset = Ruleset::open("davit-t", Family::V4, "dvtffff", None).unwrap();
        let mut update = Update::default();
        update.set(Map::Endpoints, key(0), endpoint(2));
        ruleset.apply(&update).unwrap();
        let mut bad = Update::default();
        bad.set(Map::Endpoints, key(1), endpoint(3));
        let nowhere = Verdict::Goto("no-such-chain".to_owned());
        let goto = Wanted::Data(Data::Verdict(nowhere));
        bad.set(Map::Services, key(0)[..12].to_vec(), goto);
        ruleset.apply(&bad).unwrap_err();
        assert_eq!(ruleset.places(Map::Endpoints).len(), 1);
        assert_eq!(ruleset.places(Map::Services), []);
    });
}

#[test]
fn ranges_grow_and_shrink() {
    use crate::node::{Seen, write_sets};
    alone(|| {
        let tables = crate::tables::Tables::open("davit-t", "dvtffff", None).unwrap();
        let ruleset = tables.of(Family::V4).unwrap();
        let at = "192.0.2.7".parse::<std::net::IpAddr>().unwrap();
        let mut edges = Vec::new();
        for others in [
            &[][..],
            &["10.244.1.0/24"],
            &["10.244.1.0/24", "10.244.2.0/24", "10.244.9.0/24"],
            &["10.244.2.0/24"],
            &[],
        ] {
            let others = others.iter().map(|range| (range.parse().unwrap(), at));
            let seen = Seen {
                own: vec!["10.244.0.0/24".parse().unwrap()],
                addresses: [at].into(),
                others: others.collect(),
                services: ["10.96.0.0/16".parse().unwrap()].into(),
                ..Seen::default()
            };
            write_sets(&tables, &seen).unwrap();
            let mut found = ruleset.table.elements("inside").unwrap();
            found.retain(|element| element.key[..2] == [10, 244]);
            edges.push(found.len());
        }
        assert_eq!(edges, [2, 2, 4, 4, 2]);
    });
}

#[test]
fn pods_come_while_services_are_written() {
    alone(|| {
        let ruleset = Ruleset::open("davit-t", Family::V4, "dvtffff", None).unwrap();
        let mut update = Update::default();
        for number in 0..30 * u32::try_from(BATCH).unwrap() {
            update.set(Map::Endpoints, key(number), endpoint(2));
        }
        let own = std::fs::File::open("/proc/thread-self/ns/net").unwrap();
        std::thread::scope(|scope| {
            let ruleset = &ruleset;
            let (update, own) = (&update, &own);
            let writing = scope.spawn(move || {
                davit_net::within(own, || ruleset.apply(update))
                    .unwrap()
                    .unwrap();
            });
            while ruleset.places(Map::Endpoints).is_empty() {
                std::thread::yield_now();
            }
            let mut pod = Update::default();
            pod.set(
                Map::Pods,
                vec![10, 244, 0, 2, 10, 244, 0, 2],
                Wanted::Member,
            );
            assert_eq!(ruleset.apply_pods(&pod).unwrap(), 1);
            assert!(!writing.is_finished(), "nobody waits for all Services");
            writing.join().unwrap();
        });
        assert_eq!(ruleset.places(Map::Endpoints).len(), 30 * BATCH);
        assert_eq!(ruleset.places(Map::Pods).len(), 1);
    });
}

#[test]
fn tables_of_nobody_are_taken_away_by_their_marks() {
    alone(|| {
        let dir = tempfile::tempdir().unwrap();
        let made = |name: &str| {
            let owner = dir.path().join(name);
            let links = crate::links_of(&owner);
            let table = crate::table_of(&links);
            Ruleset::open(&table, Family::V4, &links, Some(&owner)).unwrap();
            owner
        };
        let (gone, used, there) = (made("gone"), made("used"), made("there"));
        std::fs::create_dir(&there).unwrap();
        // in a container of its own, whose directories are not seen here
        let _present = crate::presence(&used).hold().unwrap();
        // an account of the machine that takes what says so by name
        let name = format!("davit-network-{:04x}", crate::number_of(&gone));
        let name = SocketAddr::from_abstract_name(name).unwrap();
        let _taken = UnixDatagram::bind_addr(&name).unwrap();
        let own = made("own");
        crate::sweep_marked(&own).unwrap();
        let stands = |owner: &Path| crate::tables(owner)[0].mark().unwrap().is_some();
        assert!(!stands(&gone));
        assert!(stands(&used) && stands(&there) && stands(&own));
        let long = dir.path().join("x".repeat(240));
        assert_eq!(owner_of(&mark("dvt0000", Some(&long))), None);
        assert_eq!(owner_of(&mark("dvt0000", Some(&gone))), Some(gone));
    });
}
