use super::*;

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn seen() -> Seen {
    let range = |text: &str| text.parse::<Network>().unwrap();
    Seen {
        own: vec![range("10.244.0.0/24"), range("fd00:10:244::/64")],
        internal: vec![address("192.0.2.10"), address("2001:db8::10")],
        others: [
            (range("10.244.1.0/24"), address("192.0.2.11")),
            (range("10.244.2.0/24"), address("198.51.100.12")),
            (range("fd00:10:244:1::/64"), address("2001:db8::11")),
            (range("10.244.3.0/24"), address("192.0.2.10")),
        ]
        .into(),
        ..Seen::default()
    }
}

/// A machine with `lo` and one more device.
fn around() -> Option<MachineLinks> {
    let mut netlink = Netlink::open().unwrap();
    let link = netlink.link("lo").unwrap()?;
    let found = |name: &str, mtu| LinkFacts {
        link,
        name: name.to_owned(),
        mtu,
    };
    Some(MachineLinks {
        addresses: vec![
            (link, address("192.0.2.10"), 24),
            (link, address("2001:db8::10"), 64),
        ],
        links: vec![found("lo", 65536), found("eth0", 1500), found("eth1", 9000)],
        out: Family::ALL.map(|family| (family, link)).into(),
    })
}

#[test]
fn services_are_reached_without_a_default_route() {
    let Some(mut around) = around() else { return };
    // No device of the test is `lo`, which leads nowhere in IPv6.
    let lo = around.links.remove(0);
    let seen = Seen {
        services: ["10.96.0.0/16", "fd00:10:96::/112"]
            .map(|text| text.parse().unwrap())
            .into(),
        ..seen()
    };
    let ways = |around: &MachineLinks, routes| {
        let options = WayOptions {
            routes,
            ..WayOptions::default()
        };
        let ways = plan(&options, &seen, around).services;
        ways.iter().map(|way| way.source).collect::<Vec<_>>()
    };
    assert!(ways(&around, NodeRoutes::Auto).is_empty());
    around.out.retain(|(family, _)| *family == Family::V6);
    assert_eq!(ways(&around, NodeRoutes::Auto), [address("192.0.2.10")]);
    around.out.clear();
    assert_eq!(ways(&around, NodeRoutes::Auto).len(), 2);
    assert!(ways(&around, NodeRoutes::None).is_empty());
    // Without any network.
    around.addresses = vec![(lo.link, address("127.0.0.1"), 8)];
    assert!(ways(&around, NodeRoutes::Auto).is_empty());
    let seen = Seen {
        internal: vec![address("127.0.0.1")],
        ..seen.clone()
    };
    let source =
        |around: &MachineLinks| plan(&WayOptions::default(), &seen, around).services[0].source;
    assert_eq!(source(&around), address("127.0.0.1"));
    around.addresses.push((lo.link, address("10.244.0.1"), 32));
    assert_eq!(source(&around), address("10.244.0.1"));
    around
        .addresses
        .extend([(lo.link, address("fd00:10:244::1"), 128)]);
    around.links.push(lo);
    let of_six = plan(&WayOptions::default(), &seen, &around).services;
    assert_eq!(of_six.len(), 1, "none of IPv6");
}

#[test]
fn neighbours_are_routers_and_others_are_tunnelled_to() {
    let Some(around) = around() else { return };
    let of = |routes| {
        let options = WayOptions {
            routes,
            ..WayOptions::default()
        };
        plan(&options, &seen(), &around)
    };
    let auto = of(NodeRoutes::Auto);
    assert_eq!(auto.routers.len(), 2, "one of each family");
    assert_eq!(auto.tunnels.len(), 1, "none of IPv6 is far");
    let tunnel = &auto.tunnels[&Family::V4];
    assert_eq!(tunnel.local, address("192.0.2.10"));
    assert_eq!(tunnel.gateway, address("10.244.0.1"));
    assert_eq!(tunnel.far.len(), 1);
    assert_eq!((auto.mtu, tunnel.mtu, auto.lost.len()), (1450, 1450, 0));
    let routers = of(NodeRoutes::HostGateway);
    assert_eq!((routers.routers.len(), routers.mtu), (2, 1500));
    assert_eq!(routers.lost.len(), 1);
    let tunnels = of(NodeRoutes::Vxlan);
    assert!(tunnels.routers.is_empty());
    assert_eq!(tunnels.tunnels[&Family::V4].far.len(), 2);
    assert_eq!(
        (tunnels.tunnels[&Family::V6].mtu, tunnels.mtu),
        (1430, 1430)
    );
    let none = of(NodeRoutes::None);
    assert_eq!(
        none,
        WayPlan {
            mtu: 1500,
            ..WayPlan::default()
        }
    );
}

#[test]
fn a_node_without_its_address_has_no_tunnel() {
    let Some(mut around) = around() else { return };
    around.addresses.clear();
    let of = |seen: &Seen| plan(&WayOptions::default(), seen, &around);
    assert!(of(&seen()).tunnels.is_empty() && of(&seen()).routers.is_empty());
    assert_eq!(of(&seen()).lost.len(), 4);
    // Of one that has just come there is nothing to tell yet.
    let new = Seen {
        own: Vec::new(),
        internal: Vec::new(),
        ..seen()
    };
    assert_eq!(of(&new).lost.len(), 0);
}

/// Two addresses whose ends are called alike: such are found in a second, one to a given one in hours.
#[test]
fn no_node_takes_the_end_of_another() {
    let (first, second) = (address("2001:db8::12:3b86"), address("2001:db8::16:10dc"));
    assert_eq!(end_of(first), end_of(second));
    let (local, beside) = (address("2001:db8::10"), address("2001:db8::11"));
    let all = [first, second, beside].into();
    let reached = |local, known: &[IpAddr]| {
        let known: Vec<FarEnd> = known.iter().map(|at| (end_of(*at), *at)).collect();
        let (ends, alike) = apart(local, &all, &known);
        assert_eq!(ends.len() + alike.len(), 3);
        let ends: BTreeSet<IpAddr> = ends.into_iter().map(|(_, at)| at).collect();
        (ends.contains(&first), ends.contains(&second))
    };
    assert_eq!(reached(local, &[]), (true, false));
    assert_eq!(reached(local, &[first]), (true, false));
    assert_eq!(reached(local, &[second]), (false, true), "known first");
    assert_eq!(reached(local, &[address("2001:db8::99")]), (true, false));
    let own = |local| apart(local, &[second, beside].into(), &[]).1;
    assert_eq!(own(first).keys().collect::<Vec<_>>(), [&second]);
    assert!(own(local).is_empty());
}

#[test]
fn ends_are_called_by_their_addresses() {
    let four = end_of(address("192.0.2.10"));
    assert_eq!(four, [0xda, 4, 192, 0, 2, 10]);
    let six = ["2001:db8::1", "2001:db8::2"].map(|text| end_of(address(text)));
    assert_ne!(six[0], six[1]);
    for end in [four, six[0]] {
        assert_eq!(end[0] & 3, 2, "one receiver, and locally given");
    }
}
