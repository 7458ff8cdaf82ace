use super::*;
use crate::cpuset::CpuSet;
use crate::hardware::Hardware;
use crate::hints::TopologyHint;
use crate::numa::NumaMask;
use proptest::prelude::*;

fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

/// Two sockets, one node each, four cores of two threads: siblings are n and n + 8.
fn two_sockets() -> CpuTopology {
    CpuTopology::new(&Hardware::grid(2, 1, 4, 2, 1 << 30))
}

fn packed(t: &CpuTopology, free: &str, count: usize) -> String {
    take_packed(t, &set(free), count, Sorting::Packed, false)
        .unwrap()
        .to_string()
}

#[test]
fn places_follow_the_description() {
    let t = two_sockets();
    assert_eq!(t.cpus_per_core(), 2);
    assert_eq!(t.place(12).unwrap().core, 4);
    assert_eq!(t.place(12).unwrap().socket, 1);
    assert_eq!(t.with_siblings(&set("1,4")).to_string(), "1,4,9,12");
    assert_eq!(
        t.sockets_of(NumaMask::from_bits(2)),
        [1],
        "node 1 is socket 1"
    );
}

#[test]
fn packed_selection_takes_whole_units_and_fills_broken_ones_first() {
    let t = two_sockets();
    assert_eq!(packed(&t, "0-15", 1), "0");
    assert_eq!(packed(&t, "0-15", 2), "0,8");
    assert_eq!(packed(&t, "0-15", 8), "0-3,8-11");
    assert_eq!(packed(&t, "0-15", 10), "0-4,8-12");
    // CPU 0 is gone: the other socket is whole, the broken one is used for small requests.
    assert_eq!(packed(&t, "1-15", 8), "4-7,12-15");
    assert_eq!(packed(&t, "1-15", 1), "8");
    assert_eq!(packed(&t, "1-15", 2), "1,9");
    assert_eq!(
        take_packed(&t, &set("0-1"), 3, Sorting::Packed, false)
            .unwrap_err()
            .to_string(),
        "not enough cpus available to satisfy request: requested=3, available=2"
    );
}

#[test]
fn spread_selection_takes_one_thread_of_each_core_first() {
    let t = two_sockets();
    let spread = |n| {
        take_packed(&t, &set("0-15"), n, Sorting::Spread, false)
            .unwrap()
            .to_string()
    };
    assert_eq!(spread(3), "0-2");
    assert_eq!(spread(4), "0-3");
    assert_eq!(spread(8), "0-3,8-11", "a whole socket is taken whole");
}

/// One socket and node, four caches of two cores with two threads; siblings are n and n + 8.
fn caches() -> CpuTopology {
    let mut hardware = Hardware::grid(1, 1, 8, 2, 1 << 30);
    let whole = hardware.cpus[0].clone();
    hardware.cpus = (0..4)
        .map(|i| crate::hardware::CpuGroup {
            cpus: set(&format!(
                "{}-{},{}-{}",
                2 * i,
                2 * i + 1,
                2 * i + 8,
                2 * i + 9
            )),
            cache: Some(i),
            ..whole.clone()
        })
        .collect();
    CpuTopology::new(&hardware)
}

#[test]
fn caches_are_kept_together_where_that_is_asked_for() {
    let t = caches();
    let take = |free: &str, n, by_cache| {
        take_packed(&t, &set(free), n, Sorting::Packed, by_cache).unwrap()
    };
    // Cache 0 has one core left. Four CPUs fit into the whole cache 1.
    assert_eq!(take("1-7,9-15", 4, true).to_string(), "2-3,10-11");
    assert_eq!(t.cache_count(&take("1-7,9-15", 4, false)), 2);
    // Two CPUs fill the broken cache up.
    assert_eq!(take("1-7,9-15", 2, true).to_string(), "1,9");
    assert_eq!(take("0-15", 6, true).to_string(), "0-2,8-10");
    assert_eq!(take("0-15", 3, true).to_string(), "0-1,8");
}

#[test]
fn distribution_gives_equal_shares() {
    let t = CpuTopology::new(&Hardware::grid(2, 1, 8, 2, 1 << 30));
    let take =
        |free: &str, n, unit| take_distributed(&t, &set(free), n, unit, Sorting::Packed).unwrap();
    let shares = |cpus: &CpuSet| {
        let on = |n: u64| cpus.intersection(&t.in_nodes(NumaMask::from_bits(n))).len();
        (on(1), on(2))
    };
    assert_eq!(shares(&take("0-31", 4, 1)), (4, 0), "one node is enough");
    assert_eq!(shares(&take("0-31", 20, 2)), (10, 10));
    assert_eq!(shares(&take("0-31", 18, 2)), (10, 8), "whole cores");
    // Node 0 has ten CPUs left, node 1 all sixteen.
    assert_eq!(shares(&take("3-15,19-31", 18, 1)), (9, 9));
    assert_eq!(
        shares(&take("5-15,21-31", 20, 1)),
        (4, 16),
        "no equal shares: packed"
    );
}

fn policy(topology: CpuTopology, options: CpuOptions, reserved: &str) -> CpuPolicy {
    CpuPolicy {
        topology,
        options,
        reserved: set(reserved),
    }
}

fn choose(p: &CpuPolicy, held: &str, n: usize, mask: Option<u64>) -> Result<String, CpuError> {
    let free = p.free(&set(held));
    let request = CpuRequest {
        count: n,
        free: &free,
        reusable: &CpuSet::new(),
    };
    p.choose(&request, mask.map(NumaMask::from_bits))
        .map(|c| c.to_string())
}

#[test]
fn item_119_full_cores_only() {
    let options = CpuOptions {
        full_pcpus_only: true,
        ..CpuOptions::default()
    };
    let p = policy(two_sockets(), options, "0");
    assert_eq!(
        choose(&p, "", 3, None).unwrap_err().to_string(),
        "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2"
    );
    assert_eq!(
        choose(&p, "1-5,9-13", 6, None).unwrap_err().to_string(),
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 4, requested CPUs = 6, CPUs per core = 2"
    );
    // CPU 8 is the sibling of a reserved CPU: it is no core's worth.
    assert!(!p.free(&set("")).contains(8));
    assert_eq!(choose(&p, "", 2, None).unwrap(), "1,9");
}

#[test]
fn the_hint_comes_first_and_the_rest_from_elsewhere() {
    let p = policy(two_sockets(), CpuOptions::default(), "0");
    assert_eq!(choose(&p, "", 2, Some(2)).unwrap(), "4,12");
    assert_eq!(choose(&p, "4-6,12-14", 4, Some(2)).unwrap(), "1,7,9,15");
    let socket = CpuOptions {
        align_by_socket: true,
        ..CpuOptions::default()
    };
    // Two nodes a socket: a hint of node 0 reaches to its socket.
    let four = CpuTopology::new(&Hardware::grid(2, 2, 2, 1, 1 << 30));
    let p = policy(four, socket, "");
    assert_eq!(choose(&p, "", 4, Some(1)).unwrap(), "0-3");
}

#[test]
fn item_124_cpus_of_init_containers_come_first() {
    let p = policy(two_sockets(), CpuOptions::default(), "0");
    let choose = |reusable: &str, count, mask| {
        let reusable = set(reusable);
        let free = p.free(&reusable);
        let request = CpuRequest {
            count,
            free: &free,
            reusable: &reusable,
        };
        let mask: Option<u64> = mask;
        p.choose(&request, mask.map(NumaMask::from_bits))
            .unwrap()
            .to_string()
    };
    assert_eq!(choose("5,13", 2, None), "5,13");
    assert_eq!(choose("5,13", 4, Some(2)), "4-5,12-13");
    assert_eq!(choose("5-6,13-14", 2, None), "5,13");
}

#[test]
fn pools() {
    let mut p = policy(two_sockets(), CpuOptions::default(), "0,8");
    assert_eq!(p.shared(&set("1,9")).to_string(), "0,2-8,10-15");
    p.options.strict_reservation = true;
    assert_eq!(p.shared(&set("1,9")).to_string(), "2-7,10-15");
    assert_eq!(p.allocatable().to_string(), "1-7,9-15");
    assert_eq!(
        CpuPolicy::reserve(&p.topology, 2).unwrap().to_string(),
        "0,8"
    );
}

fn hints(p: &CpuPolicy, held: &str, n: usize) -> Vec<(u64, bool)> {
    let free = p.free(&set(held));
    let request = CpuRequest {
        count: n,
        free: &free,
        reusable: &CpuSet::new(),
    };
    let hint = |h: TopologyHint| (h.mask.unwrap().bits(), h.preferred);
    p.hints(&request, None).into_iter().map(hint).collect()
}

#[test]
fn hints_count_busy_cpus_for_the_narrowest_size() {
    let p = policy(two_sockets(), CpuOptions::default(), "0");
    assert_eq!(hints(&p, "", 2), [(1, true), (2, true), (3, false)]);
    assert_eq!(hints(&p, "", 8), [(2, true), (3, false)]);
    assert_eq!(hints(&p, "4", 8), [(3, false)]);
    assert_eq!(hints(&p, "", 10), [(3, true)]);
    assert!(hints(&p, "", 16).is_empty());
    let held = set("4,12");
    let request = CpuRequest {
        count: 2,
        free: &CpuSet::new(),
        reusable: &CpuSet::new(),
    };
    let again = p.hints(&request, Some(&held));
    assert_eq!(again[0], TopologyHint::new(NumaMask::from_bits(2), true));
}

#[test]
fn align_by_socket_prefers_few_sockets() {
    let options = CpuOptions {
        align_by_socket: true,
        ..CpuOptions::default()
    };
    let four = CpuTopology::new(&Hardware::grid(2, 2, 2, 1, 1 << 30));
    let p = policy(four, options, "");
    let preferred: Vec<u64> = hints(&p, "", 2)
        .into_iter()
        .filter(|h| h.1)
        .map(|h| h.0)
        .collect();
    assert_eq!(preferred, [1, 2, 4, 8, 0b0011, 0b1100]);
}

/// Machines of the kinds there are: sockets, sub-NUMA, threads.
fn machines() -> impl Strategy<Value = Hardware> {
    (1u32..3, 1u32..5, 1u32..5, 1u32..3)
        .prop_map(|(s, n, c, t)| Hardware::grid(s, n, c, t, 1 << 30))
}

proptest! {
    #[test]
    fn what_is_taken_was_free_and_is_as_many_as_asked(
        hardware in machines(), seed in any::<u64>(), count in 0usize..80,
        spread in any::<bool>(), by_cache in any::<bool>(), distribute in any::<bool>(),
    ) {
        let t = CpuTopology::new(&hardware);
        let free: CpuSet = t.all().iter().filter(|c| seed >> (c % 64) & 1 == 1).collect();
        let sorting = if spread { Sorting::Spread } else { Sorting::Packed };
        let taken = if distribute {
            take_distributed(&t, &free, count, 1, sorting)
        } else {
            take_packed(&t, &free, count, sorting, by_cache)
        };
        match taken {
            Ok(cpus) => {
                prop_assert_eq!(cpus.len(), count);
                prop_assert!(cpus.is_subset(&free));
            }
            Err(_) => prop_assert!(count > free.len()),
        }
    }

    #[test]
    fn whole_cores_stay_whole(hardware in machines(), held in any::<u64>(), cores in 1usize..8, reserved in 0u32..4, distribute in any::<bool>()) {
        let t = CpuTopology::new(&hardware);
        let per_core = t.cpus_per_core();
        let options = CpuOptions { full_pcpus_only: true, distribute_across_numa: distribute, ..CpuOptions::default() };
        let p = CpuPolicy { reserved: CpuSet::from_iter([reserved]), topology: t, options };
        let busy: CpuSet = p.topology.all().iter().filter(|c| held >> (p.topology.place(*c).unwrap().core % 64) & 1 == 1).collect();
        let free = p.free(&busy);
        let request = CpuRequest { count: cores * per_core, free: &free, reusable: &CpuSet::new() };
        if let Ok(cpus) = p.choose(&request, None) {
            prop_assert!(p.topology.is_whole_cores(&cpus), "{cpus}");
        }
    }
}
