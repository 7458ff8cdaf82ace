//! Runs targets for a time: inputs made by grammar, damaged byte by byte, and spliced with ones that went before.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::{Numbers, Target};

/// An input that takes longer than this is a finding: servers run on bounded time.
const SLOW: Duration = Duration::from_secs(5);
/// Inputs kept for splicing.
const KEPT: usize = 256;
/// As large as a stack of the server's threads, times what a build without optimisation needs more.
const STACK: usize = 8 << 20;
const MAX_INPUT: usize = 1 << 16;

/// What a run found.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Inputs that were run.
    pub runs: u64,
    /// Where it went wrong, with the first input that did.
    pub findings: BTreeMap<String, Vec<u8>>,
}

/// How long a run goes on: it ends at the first of the two.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    /// How long.
    pub time: Duration,
    /// After how many inputs.
    pub inputs: u64,
}

impl Extent {
    /// As many inputs as there is time for.
    pub fn of_time(time: Duration) -> Self {
        let inputs = u64::MAX;
        Self { time, inputs }
    }
}

/// Runs `target` over `extent`, from the inputs of `seed`.
///
/// # Panics
/// When a thread cannot be started.
pub fn run(target: Target, extent: Extent, seed: u64) -> Report {
    let worker = std::thread::Builder::new()
        .name(target.name.to_owned())
        .stack_size(STACK)
        .spawn(move || run_here(target, extent, seed));
    let worker = worker.expect("a thread can be started");
    worker.join().unwrap_or_default()
}

/// Where the last panic of this process happened.
static LAST: Mutex<String> = Mutex::new(String::new());

fn quiet() {
    std::panic::set_hook(Box::new(|info| {
        let at = info.location().map(ToString::to_string).unwrap_or_default();
        let text = info.payload_as_str().unwrap_or_default();
        let text: String = text.chars().take(300).collect();
        *LAST.lock().unwrap_or_else(PoisonError::into_inner) = format!("{at}: {text}");
    }));
}

fn run_here(target: Target, extent: Extent, seed: u64) -> Report {
    quiet();
    let mut numbers = Numbers::new(seed);
    let mut kept: Vec<Arc<[u8]>> = Vec::new();
    let mut report = Report::default();
    let mut places = BTreeMap::new();
    let end = Instant::now() + extent.time;
    while report.runs < extent.inputs && Instant::now() < end {
        let input = input(target, &mut numbers, &kept);
        let attempt = || {
            let began = Instant::now();
            let outcome = catch_unwind(AssertUnwindSafe(|| (target.run)(&input)));
            (outcome, began.elapsed())
        };
        let (mut outcome, mut took) = attempt();
        // A machine that has other things to do is slow now and then, an input always.
        for _ in 0..2 {
            if outcome.is_ok() && took > SLOW {
                (outcome, took) = attempt();
            }
        }
        report.runs += 1;
        let finding = match outcome {
            Err(_) => Some(LAST.lock().unwrap_or_else(PoisonError::into_inner).clone()),
            Ok(()) if took > SLOW => Some(format!("slow: {took:?}")),
            Ok(()) => None,
        };
        if let Some(finding) = finding {
            // One input a place is enough.
            let place = finding.split(": ").next().unwrap_or_default().to_owned();
            if places.insert(place, ()).is_none() {
                report.findings.insert(finding, input.clone());
            }
        }
        if kept.len() < KEPT {
            kept.push(input.into());
        } else if numbers.once_in(16) {
            let at = numbers.below(KEPT);
            kept[at] = input.into();
        }
    }
    report
}

fn input(target: Target, n: &mut Numbers, kept: &[Arc<[u8]>]) -> Vec<u8> {
    let mut input = if kept.is_empty() || !n.once_in(4) {
        (target.make)(n)
    } else {
        n.one(kept).to_vec()
    };
    if n.once_in(2) {
        for _ in 0..=n.below(4) {
            damage(&mut input, n, kept);
        }
    }
    input.truncate(MAX_INPUT);
    input
}

fn damage(input: &mut Vec<u8>, n: &mut Numbers, kept: &[Arc<[u8]>]) {
    const WORDS: [&str; 22] = [
        "null",
        "\"\"",
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "-",
        "1e999",
        "\\u0000",
        "\\ud800",
        "\u{feff}",
        "\n",
        "&a ",
        "*a",
        "!!binary ",
        "<<: ",
        "%",
        "\"$patch\":\"delete\",",
        "\u{0}",
        "'",
    ];
    let at = n.below(input.len() + 1);
    let end = (at + n.below(16)).min(input.len());
    match n.below(8) {
        0 if at < input.len() => input[at] ^= 1 << n.below(8),
        1 if at < input.len() => input[at] = n.byte(),
        2 => drop(input.drain(at..end)),
        3 => {
            let again = input[at..end].to_vec();
            input.splice(at..at, again);
        }
        4 => {
            // Deep nesting and long runs.
            let word = n.one(&WORDS).as_bytes().repeat(1 + n.below(2000));
            input.splice(at..at, word);
        }
        5 if !kept.is_empty() => {
            let other = n.one(kept);
            let from = n.below(other.len() + 1);
            let to = (from + n.below(64)).min(other.len());
            input.splice(at..at, other[from..to].iter().copied());
        }
        _ => drop(input.splice(at..at, n.one(&WORDS).bytes())),
    }
}
