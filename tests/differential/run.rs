//! All cases of one run: what was asked, what differed.

use crate::differential::answers::{Answer, Mask, differences};
use crate::differential::cases::without_what_follows;
use crate::differential::known::Known;
use crate::differential::servers::{Pair, Request};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// So many kinds of new differences are shown.
const SHOWN: usize = 40;

pub(crate) struct Run {
    pub(crate) pair: Pair,
    known: Known,
    /// The seed of the case that runs.
    pub(crate) seed: u64,
    asked: usize,
    same_code: usize,
    same_answer: usize,
    /// New differences: how often, and the first one with its request and the two answers.
    new: BTreeMap<String, (usize, String)>,
    /// All differences, for DAVIT_DIFFERENTIAL_REPORT.
    report: String,
}

impl Run {
    pub(crate) fn new(pair: Pair) -> Self {
        Self {
            pair,
            known: Known::read(),
            seed: 0,
            asked: 0,
            same_code: 0,
            same_answer: 0,
            new: BTreeMap::new(),
            report: String::new(),
        }
    }

    /// Asks both and compares.
    pub(crate) async fn ask(&mut self, request: &Request, name: &str) -> (Answer, Answer) {
        let (mut theirs, mut ours) = self.ask_only(request, name).await;
        without_what_follows(request, &mut theirs);
        without_what_follows(request, &mut ours);
        self.compare(request, &theirs, &ours);
        (theirs, ours)
    }

    /// Compares two answers to a request.
    pub(crate) fn compare(&mut self, request: &Request, theirs: &Answer, ours: &Answer) {
        self.asked += 1;
        self.same_code += usize::from(theirs.code == ours.code);
        self.same_answer += usize::from(theirs.is_same(ours));
        for difference in differences(theirs, ours) {
            let text = format!("{} | {difference}", request.label);
            let is_known = self.known.has(&text);
            let sign = if is_known { "known" } else { "new" };
            let _fits = writeln!(
                self.report,
                "{}\t{sign}\t{text}\t{} {} {}",
                self.seed, request.method, request.path, request.body
            );
            if !is_known {
                let shown = || {
                    format!(
                        "case {}: {} {}\n  body: {}\n  kube-apiserver: {}\n  davit: {}",
                        self.seed,
                        request.method,
                        request.path,
                        request.body,
                        brief(theirs),
                        brief(ours)
                    )
                };
                let entry = self.new.entry(text).or_insert_with(|| (0, shown()));
                entry.0 += 1;
            }
        }
    }

    /// Asks both.
    pub(crate) async fn ask_only(&mut self, request: &Request, name: &str) -> (Answer, Answer) {
        let now = jiff::Timestamp::now();
        let day = |hours: i64| {
            (now + jiff::SignedDuration::from_hours(hours)).to_string()[..11].to_owned()
        };
        let body: Value = serde_json::from_str(&request.body).unwrap_or_default();
        let generate_name = body["metadata"]["generateName"].as_str();
        // the servers cut what would make a name too long
        let generate_name = generate_name.map(|name| name.chars().take(58).collect());
        let mask = Mask {
            name,
            generate_name: generate_name.unwrap_or_default(),
            today: [day(0), day(2)],
        };
        self.pair.send(request, &mask).await
    }

    /// Prints the numbers; fails when there are new differences.
    pub(crate) fn finish(self) {
        let share = |count: usize| 100.0 * count as f64 / self.asked.max(1) as f64;
        println!(
            "{} requests: {:.2} % the same code, {:.2} % the same answer, {} new differences",
            self.asked,
            share(self.same_code),
            share(self.same_answer),
            self.new.len()
        );
        for pattern in self.known.unseen() {
            println!("known, but not seen in this run: {pattern}");
        }
        if let Some(path) = std::env::var_os("DAVIT_DIFFERENTIAL_REPORT") {
            std::fs::write(path, &self.report).unwrap();
        }
        let mut text = String::new();
        for (difference, (count, first)) in self.new.iter().take(SHOWN) {
            let _fits = writeln!(text, "\n{count} times: {difference}\n  {first}");
        }
        assert!(
            self.new.is_empty(),
            "{} differences that known.txt does not have:\n{text}",
            self.new.len()
        );
    }
}

fn brief(answer: &Answer) -> String {
    let body: String = answer.body.to_string().chars().take(1500).collect();
    format!("{} {:?} {body}", answer.code, answer.warnings)
}
