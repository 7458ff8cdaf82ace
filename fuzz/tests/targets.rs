//! Every target for a moment, so that targets keep up with what they read; `DAVIT_FUZZ_SECONDS` for longer.

use std::time::Duration;

use davit_fuzz::{TARGETS, driver};

#[test]
fn nothing_is_found_in_a_moment() {
    let seconds = std::env::var("DAVIT_FUZZ_SECONDS").ok();
    let seconds = seconds.and_then(|text| text.parse().ok()).unwrap_or(1);
    for target in TARGETS {
        let report = driver::run(*target, Duration::from_secs(seconds), 7);
        println!("{}: {} inputs", target.name, report.runs);
        assert!(report.runs > 0, "{} was not run", target.name);
        let places: Vec<&String> = report.findings.keys().collect();
        assert!(places.is_empty(), "{}: {places:?}", target.name);
    }
}
