//! The cases of spec section 3.10 (checklist 51), by the names they have there, as our own tests.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(
    clippy::needless_pass_by_value,
    reason = "tests hand over what they write in place"
)]

mod answers;
mod basics;
mod bed;
mod hostile;
mod reference;
mod sharing;
mod signatures;

/// Names of cases stand above the tests that hold them.
#[test]
fn the_bed_reads_selectors() {
    use davit_allocator::CompileSelector;
    assert!(bed::Words.compile("nonsense").is_err());
}
