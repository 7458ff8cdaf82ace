use super::*;
use crate::spent;
use proptest::prelude::*;

const GI: u64 = 1 << 30;

fn state(nodes: u32) -> MemoryState {
    MemoryState::new(&Hardware::grid(nodes, 1, 4, 1, 10 * GI), &BTreeMap::new())
}

fn request(gi: u64) -> MemoryAmounts {
    MemoryAmounts::from([(MEMORY.to_owned(), gi * GI)])
}

fn mask(nodes: &[u32]) -> NumaMask {
    NumaMask::from_nodes(nodes.iter().copied()).unwrap()
}

fn block(nodes: &[u32], gi: u64) -> MemoryBlock {
    MemoryBlock {
        nodes: mask(nodes),
        kind: MEMORY.to_owned(),
        size: gi * GI,
    }
}

fn masks(hints: &[TopologyHint]) -> Vec<(String, bool)> {
    hints
        .iter()
        .map(|h| (h.mask.unwrap().to_string(), h.preferred))
        .collect()
}

#[test]
fn reservations_and_huge_pages_lower_what_can_be_given_out() {
    let mut hardware = Hardware::grid(1, 1, 1, 1, 10 * GI);
    hardware.numa_nodes[0].hugepages = vec![crate::hardware::Hugepages {
        size: crate::hardware::Bytes(2 << 20),
        count: 512,
    }];
    let kept = BTreeMap::from([(0, request(2))]);
    let state = MemoryState::new(&hardware, &kept);
    let node = &state.nodes()[&0];
    assert_eq!(node.memory[MEMORY].allocatable, 7 * GI);
    assert_eq!(node.memory[MEMORY].total, 10 * GI);
    assert_eq!(node.memory["hugepages-2Mi"].allocatable, GI);
}

#[test]
fn item_122_single_and_cross_node_groups_never_mix() {
    let mut s = state(4);
    s.book(&block(&[0], 1));
    s.book(&block(&[1, 2], 15));
    // Node 0 is used alone, 1 and 2 as a group: nothing else may touch them but in that form.
    assert_eq!(
        masks(&s.hints(&request(5), &MemoryReuse::new())),
        [
            ("{0}".to_owned(), true),
            ("{3}".to_owned(), true),
            ("{1,2}".to_owned(), false)
        ]
    );
    let two = s.hints(&request(12), &MemoryReuse::new());
    assert!(two.is_empty(), "{two:?}");
    let hint = TopologyHint::new(mask(&[0, 3]), false);
    assert_eq!(
        s.choose(&request(12), &MemoryReuse::new(), hint),
        Err(MemoryError::Violation)
    );
}

#[test]
fn a_group_is_filled_node_by_node() {
    let mut s = state(2);
    s.book(&block(&[0, 1], 13));
    assert_eq!(s.nodes()[&0].memory[MEMORY].free, 0);
    assert_eq!(s.nodes()[&1].memory[MEMORY].free, 7 * GI);
    assert_eq!(s.nodes()[&1].cells, mask(&[0, 1]));
    assert_eq!(s.nodes()[&1].assignments, 1);
}

#[test]
fn without_a_hint_the_narrowest_nodes_are_found_and_narrow_hints_extended() {
    let s = state(2);
    let any = TopologyHint::any(false);
    let none = MemoryReuse::new();
    assert_eq!(s.choose(&request(4), &none, any), Ok(vec![block(&[0], 4)]));
    assert_eq!(
        s.choose(&request(14), &none, any),
        Ok(vec![block(&[0, 1], 14)])
    );
    let narrow = TopologyHint::new(mask(&[1]), false);
    assert_eq!(
        s.choose(&request(14), &none, narrow),
        Ok(vec![block(&[0, 1], 14)])
    );
    assert_eq!(
        s.choose(&request(30), &none, any),
        Err(MemoryError::NotEnough)
    );
    assert_eq!(
        s.choose(&request(30), &none, narrow),
        Err(MemoryError::Extension)
    );
    let mut full = s.clone();
    full.book(&block(&[0], 9));
    full.book(&block(&[1], 9));
    assert_eq!(
        full.choose(&request(4), &none, any),
        Err(MemoryError::NotEnough)
    );
}

#[test]
fn item_124_init_memory_is_reused_and_the_blocks_shrink() {
    let mut s = state(1);
    let mut reuse = MemoryReuse::new();
    let init = vec![block(&[0], 6)];
    s.book(&init[0]);
    offer(&mut reuse, &init);
    let mut inits = [("init".to_owned(), init)];
    let any = TopologyHint::any(true);
    let app = s.choose(&request(8), &reuse, any).unwrap();
    take_over(&mut reuse, &mut inits, &app);
    assert_eq!(inits[0].1[0].size, 0);
    assert!(reuse.values().all(|left| *left == 0));
    assert_eq!(
        s.choose(&request(8), &reuse, any),
        Err(MemoryError::NotEnough)
    );
}

#[test]
fn thirty_six_nodes_stay_fast() {
    let s = state(36);
    let started = spent();
    assert!(!s.hints(&request(25), &MemoryReuse::new()).is_empty());
    assert!((spent() - started).tv_sec < 2);
}

proptest! {
    /// Whatever is booked by choice never exceeds what there is, and nodes never mix groups.
    #[test]
    fn choices_keep_the_books(requests in prop::collection::vec(1u64..25, 1..12)) {
        let mut s = state(4);
        let mut given: Vec<MemoryBlock> = Vec::new();
        for gi in requests {
            let Ok(blocks) = s.choose(&request(gi), &MemoryReuse::new(), TopologyHint::any(false)) else {
                continue;
            };
            blocks.iter().for_each(|b| s.book(b));
            given.extend(blocks);
        }
        let total: u64 = given.iter().map(|b| b.size).sum();
        let booked: u64 = s.nodes().values().map(|n| n.memory[MEMORY].reserved).sum();
        prop_assert_eq!(total, booked);
        for a in &given {
            for b in &given {
                prop_assert!(a.nodes == b.nodes || !a.nodes.intersects(b.nodes));
            }
        }
    }
}
