//! Shuffle sharding: each flow is dealt a small hand of queues, so that a flood of one flow fills
//! few of another's.

/// Deals `hand` different cards of a deck of `deck` by a hash.
///
/// The hash is read as a number whose digits have the bases `deck`, `deck - 1`, …; each digit
/// names one of the cards that are left.
pub(super) fn deal(mut hash: u64, deck: usize, hand: usize) -> Vec<usize> {
    let mut cards: Vec<usize> = Vec::with_capacity(hand.min(deck));
    for dealt in 0..hand.min(deck) {
        let left = (deck - dealt) as u64;
        // below `deck`, which is a usize
        let mut card = (hash % left) as usize;
        hash /= left;
        let mut lower: Vec<usize> = cards.clone();
        lower.sort_unstable();
        for held in lower {
            if card >= held {
                card += 1;
            }
        }
        cards.push(card);
    }
    cards
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn hands_have_different_cards_of_the_deck(hash: u64, deck in 1usize..200, hand in 0usize..12) {
            let mut cards = deal(hash, deck, hand);
            prop_assert_eq!(cards.len(), hand.min(deck));
            prop_assert!(cards.iter().all(|card| *card < deck));
            cards.sort_unstable();
            cards.dedup();
            prop_assert_eq!(cards.len(), hand.min(deck));
        }
    }

    #[test]
    fn every_card_is_dealt_to_somebody() {
        let mut seen = [false; 64];
        for hash in 0..10_000u64 {
            for card in deal(hash.wrapping_mul(0x9e37_79b9_7f4a_7c15), 64, 6) {
                seen[card] = true;
            }
        }
        assert!(seen.iter().all(|seen| *seen));
    }
}
