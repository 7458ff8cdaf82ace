//! Every target for a moment, so that targets keep up with what they read; `DAVIT_FUZZ_SECONDS` for longer.

use std::time::Duration;

use davit_fuzz::TARGETS;
use davit_fuzz::driver::{self, Extent};

/// A faster machine runs no other inputs than the one on which the change was written.
const MOMENT: Extent = Extent {
    time: Duration::from_secs(1),
    inputs: 1000,
};

#[test]
fn nothing_is_found_in_a_moment() {
    let seconds = std::env::var("DAVIT_FUZZ_SECONDS").ok();
    let seconds = seconds.and_then(|text| text.parse().ok());
    let extent = seconds.map_or(MOMENT, |s| Extent::of_time(Duration::from_secs(s)));
    for target in TARGETS {
        let report = driver::run(*target, extent, 7);
        println!("{}: {} inputs", target.name, report.runs);
        assert!(report.runs > 0, "{} was not run", target.name);
        let places: Vec<&String> = report.findings.keys().collect();
        assert!(places.is_empty(), "{}: {places:?}", target.name);
    }
}
