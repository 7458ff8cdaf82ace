//! Reports: for people as a table, for programs as JSON.

use std::fmt;

use serde::Serialize;

/// What is expected, under which id. The tables of these are the checks that there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expectation {
    /// Stable id.
    pub id: &'static str,
    /// What is expected.
    pub expected: &'static str,
}

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckResult {
    /// As expected.
    Pass,
    /// Not as expected.
    Fail,
    /// People have to judge it.
    Warn,
    /// It does not apply, or could not be made.
    Skip,
}

impl fmt::Display for CheckResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pass => "pass",
            Self::Fail => "FAIL",
            Self::Warn => "warn",
            Self::Skip => "skip",
        })
    }
}

/// One check that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Stable id.
    pub id: String,
    /// How it came out.
    pub verdict: CheckResult,
    /// What was expected.
    pub expected: String,
    /// What was seen.
    pub seen: String,
    /// On which objects it was seen, where it is about objects.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<String>,
}

/// How many checks came out how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// As expected.
    pub passed: usize,
    /// Not as expected.
    pub failed: usize,
    /// For people to judge.
    pub warned: usize,
    /// Not made.
    pub skipped: usize,
}

/// All checks of a program. The JSON form is stable: fields are added, never changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// `lab.davit.dev/v1`.
    pub api_version: &'static str,
    /// `CheckReport`.
    pub kind: &'static str,
    /// What was checked: `device-plugin`, `podresources-client`, `cluster`.
    pub target: &'static str,
    /// The program or socket, or the URL of the API server.
    pub subject: String,
    /// What it was found to serve, such as the names of resources.
    pub resources: Vec<String>,
    /// The sums.
    pub summary: Summary,
    /// The checks, in the order of their table.
    pub checks: Vec<Check>,
}

/// Objects of a check that the table for people shows.
const SHOWN: usize = 10;

impl Report {
    pub(super) fn new(
        target: &'static str,
        subject: String,
        resources: Vec<String>,
        checks: Vec<Check>,
    ) -> Self {
        let mut summary = Summary::default();
        for check in &checks {
            *match check.verdict {
                CheckResult::Pass => &mut summary.passed,
                CheckResult::Fail => &mut summary.failed,
                CheckResult::Warn => &mut summary.warned,
                CheckResult::Skip => &mut summary.skipped,
            } += 1;
        }
        Self {
            api_version: "lab.davit.dev/v1",
            kind: "CheckReport",
            target,
            subject,
            resources,
            summary,
            checks,
        }
    }

    /// Whether no check failed.
    pub fn passed(&self) -> bool {
        self.summary.failed == 0
    }

    /// One check.
    pub fn check(&self, id: &str) -> Option<&Check> {
        self.checks.iter().find(|c| c.id == id)
    }

    /// The report for people: what was seen has one line, whatever the program under test says.
    pub fn table(&self) -> String {
        let width = self.checks.iter().map(|c| c.id.len()).max().unwrap_or(0);
        let mut out = String::new();
        for check in &self.checks {
            let Check { id, verdict, .. } = check;
            let seen = on_a_line(&check.seen);
            out += &format!("{verdict}   {id:width$}   {seen}\n");
            if matches!(verdict, CheckResult::Fail | CheckResult::Warn) {
                out += &format!("       {:width$}   expected: {}\n", "", check.expected);
            }
            for object in check.objects.iter().take(SHOWN) {
                out += &format!("       {:width$}   - {}\n", "", on_a_line(object));
            }
            if let Some(more) = check.objects.len().checked_sub(SHOWN).filter(|n| *n > 0) {
                out += &format!("       {:width$}   … and {more} more\n", "");
            }
        }
        let Summary {
            passed,
            failed,
            warned,
            skipped,
        } = self.summary;
        let warned = match warned {
            0 => String::new(),
            n => format!("{n} to judge, "),
        };
        out + &format!("\n{passed} passed, {failed} failed, {warned}{skipped} skipped\n")
    }
}

/// The text without ends of lines, so that nothing in it looks like the verdict of another check.
fn on_a_line(text: &str) -> String {
    text.trim_end().replace(['\n', '\r'], " ")
}

/// Collects the checks of a table.
pub(super) struct Recorder {
    table: &'static [Expectation],
    made: Vec<Option<(CheckResult, String)>>,
}

impl Recorder {
    pub(super) fn new(table: &'static [Expectation]) -> Self {
        Self {
            table,
            made: vec![None; table.len()],
        }
    }

    fn record(&mut self, id: &str, verdict: CheckResult, seen: String) {
        let at = self.table.iter().position(|e| e.id == id);
        let at = at.expect("every id that is recorded is in the table");
        let made = &mut self.made[at];
        // What has failed once stays so.
        if !matches!(made, Some((CheckResult::Fail, _))) {
            *made = Some((verdict, seen));
        }
    }

    pub(super) fn pass(&mut self, id: &str, seen: impl Into<String>) {
        self.record(id, CheckResult::Pass, seen.into());
    }

    pub(super) fn fail(&mut self, id: &str, seen: impl Into<String>) {
        self.record(id, CheckResult::Fail, seen.into());
    }

    pub(super) fn skip(&mut self, id: &str, why: impl Into<String>) {
        self.record(id, CheckResult::Skip, why.into());
    }

    /// `Ok` passes, `Err` fails, each with what was seen. Returns whether it passed.
    pub(super) fn verdict(&mut self, id: &str, seen: Result<String, String>) -> bool {
        let passed = seen.is_ok();
        match seen {
            Ok(seen) => self.pass(id, seen),
            Err(seen) => self.fail(id, seen),
        }
        passed
    }

    pub(super) fn report(
        self,
        target: &'static str,
        subject: String,
        resources: Vec<String>,
    ) -> Report {
        let made = self.table.iter().zip(self.made);
        let checks = made.map(|(expectation, made)| {
            let (verdict, seen) =
                made.unwrap_or_else(|| (CheckResult::Skip, "not reached".to_owned()));
            Check {
                id: expectation.id.to_owned(),
                verdict,
                expected: expectation.expected.to_owned(),
                seen,
                objects: Vec::new(),
            }
        });
        Report::new(target, subject, resources, checks.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[Expectation] = &[
        Expectation {
            id: "one",
            expected: "that it is",
        },
        Expectation {
            id: "second",
            expected: "that it was",
        },
        Expectation {
            id: "third",
            expected: "that it will be",
        },
    ];

    #[test]
    fn reports_have_every_check_once_and_failures_stay() {
        let mut recorder = Recorder::new(TABLE);
        assert!(!recorder.verdict("second", Err("it was not".to_owned())));
        recorder.pass("second", "it was, later");
        recorder.pass("one", "it is");
        let report = recorder.report("device-plugin", "x".to_owned(), Vec::new());
        assert!(!report.passed());
        assert_eq!(report.check("second").unwrap().seen, "it was not");
        assert_eq!(
            report.table(),
            "pass   one      it is\nFAIL   second   it was not\n                expected: that it was\nskip   third    not reached\n\n1 passed, 1 failed, 1 skipped\n"
        );
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["apiVersion"], "lab.davit.dev/v1");
        assert_eq!(json["checks"][0]["verdict"], "pass");
    }

    #[test]
    fn what_a_program_says_is_no_verdict() {
        let mut recorder = Recorder::new(TABLE);
        recorder.fail("one", "it says: x\r\npass   second   it was\n");
        let table = recorder
            .report("device-plugin", "x".to_owned(), Vec::new())
            .table();
        assert!(table.starts_with("FAIL   one      it says: x  pass   second   it was\n"));
    }
}
