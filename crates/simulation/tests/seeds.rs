//! Runs the simulation for many seeds: `cargo test --workspace --test seeds -- 17` for one, `-- 100..200` for some.
//!
//! The cluster is started once; each seed goes on from there in a copy of the process, so that a run depends on nothing but
//! its seed.

use std::fmt::Write;
use std::ops::Range;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use davit_simulation::run::{RunOutcome, Simulation};
use davit_simulation::world::{self, Left};
use tokio::time::Instant;

/// What runs without an argument: about half a minute.
const SEEDS: Range<u64> = 0..7;
/// Processor time that a seed may take, in seconds.
const MOST: u64 = 120;
/// Lines of the trace that are shown of a seed that failed.
const SHOWN: usize = 60;

/// The seeds to run: those asked for; none where the argument is the name of another test.
fn seeds() -> Range<u64> {
    let mut given = std::env::args().skip(1).filter(|arg| !arg.starts_with('-'));
    let Some(given) = given.next() else {
        return SEEDS;
    };
    let (from, to) = given.split_once("..").unwrap_or((&given, ""));
    let Ok(from) = from.parse() else {
        return 0..0;
    };
    from..to.parse().unwrap_or(from + 1)
}

fn main() -> ExitCode {
    let seeds = seeds();
    if seeds.is_empty() || std::env::args().any(|arg| arg == "--list") {
        return ExitCode::SUCCESS;
    }
    // another than those of the runs, which would make the UIDs of the start once more
    world::enter(u64::MAX);
    if let Ok(filter) = std::env::var("RUST_LOG") {
        let log = tracing_subscriber::fmt().with_env_filter(filter);
        log.with_writer(std::io::stderr).init();
    }
    let began: Arc<OnceLock<Instant>> = Arc::default();
    let since = Arc::clone(&began);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .on_thread_unpark(move || {
            let now = Instant::now();
            world::set_elapsed(now - *since.get_or_init(|| now));
        })
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        began.get_or_init(Instant::now);
        let simulation = Simulation::start().await.expect("a cluster without faults");
        let failed = run_all(&simulation, seeds).await;
        if failed.is_empty() {
            return ExitCode::SUCCESS;
        }
        println!("seeds that failed: {failed:?}");
        ExitCode::FAILURE
    })
}

async fn run_all(simulation: &Simulation, seeds: Range<u64>) -> Vec<u64> {
    let mut failed = Vec::new();
    let first = seeds.start;
    for seed in seeds.clone() {
        let left = one(simulation, seed).await;
        // the same seed is the same run
        if seed == first && one(simulation, seed).await != left {
            println!("seed {seed} gives other runs each time");
            failed.push(seed);
        }
        if seed % 25 == 24 {
            println!("up to seed {seed}: {} failed", failed.len());
        }
        match left.code {
            Some(0) if std::env::var_os("DAVIT_SIMULATION_TRACE").is_none() => {}
            code => println!("seed {seed} ends with {code:?}\n{}", left.text),
        }
        if left.code != Some(0) {
            failed.push(seed);
        }
    }
    println!("{} seeds, {} failed", seeds.count(), failed.len());
    failed
}

async fn one(simulation: &Simulation, seed: u64) -> Left {
    let run = async {
        world::reseed(seed);
        let outcome = simulation.run(seed).await;
        (i32::from(!outcome.violations.is_empty()), told(&outcome))
    };
    world::in_copy(MOST, run)
        .await
        .expect("a copy of the process")
}

fn told(outcome: &RunOutcome) -> String {
    let mut text = format!(
        "fingerprint {:016x}, {:.0} simulated seconds\n",
        outcome.fingerprint,
        outcome.took.max(Duration::ZERO).as_secs_f64()
    );
    for violation in outcome.violations.iter().take(30) {
        let _ = writeln!(text, "  {violation}");
    }
    let whole = std::env::var_os("DAVIT_SIMULATION_TRACE").is_some();
    let from = match whole {
        true => 0,
        false if outcome.violations.is_empty() => outcome.lines.len(),
        false => outcome.lines.len().saturating_sub(SHOWN),
    };
    for line in &outcome.lines[from..] {
        let _ = writeln!(text, "{line}");
    }
    text
}
