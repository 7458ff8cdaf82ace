//! Flags of the control plane, from the command lines of its pods.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;

use super::facts::{Facts, named};
use super::{CheckResult, Finding, Judged};

/// A program of the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Program {
    ApiServer,
    ControllerManager,
    Scheduler,
    Etcd,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Etcd => "etcd",
        }
    }
}

/// What becomes of a rule that is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Breach {
    /// The benchmark has it checked by machines.
    Fails,
    /// The benchmark has it checked by people.
    Warns,
}

impl Breach {
    pub(super) fn verdict(self) -> CheckResult {
        match self {
            Self::Fails => CheckResult::Fail,
            Self::Warns => CheckResult::Warn,
        }
    }
}

/// What a flag has to be.
#[derive(Debug, Clone, Copy)]
pub(super) enum Rule {
    /// All of them are given.
    Given(&'static [&'static str]),
    /// It is not given.
    NotGiven(&'static str),
    /// It is given with this value.
    Is(&'static str, &'static str),
    /// It is not given, or with this value.
    IsOrNotGiven(&'static str, &'static str),
    /// It is not given, or with another value.
    IsNot(&'static str, &'static str),
    /// Its list has this item.
    Has(&'static str, &'static str),
    /// Its list, if it is given, has not this item.
    HasNot(&'static str, &'static str),
    /// Its number is at least this.
    AtLeast(&'static str, i64),
    /// Its list, if it is given, has none but these items.
    Among(&'static str, &'static [&'static str]),
}

type Flags = BTreeMap<String, String>;

impl Rule {
    /// What is wrong with a command line.
    fn breach(self, flags: &Flags) -> Option<String> {
        let value = |flag: &str| flags.get(flag).map(String::as_str);
        let items = |flag: &str| value(flag).unwrap_or_default().split(',').map(str::trim);
        let shown = |flag: &str| {
            value(flag).map_or_else(
                || format!("--{flag} is not given"),
                |v| format!("--{flag}={v}"),
            )
        };
        let (flag, kept) = match self {
            Self::Given(all) => {
                let missing = all.iter().find(|f| value(f).is_none_or(str::is_empty));
                return missing.map(|flag| format!("--{flag} is not given"));
            }
            Self::NotGiven(flag) => (flag, value(flag).is_none()),
            Self::Is(flag, wanted) => (flag, value(flag) == Some(wanted)),
            Self::IsOrNotGiven(flag, wanted) => (flag, value(flag).is_none_or(|v| v == wanted)),
            Self::IsNot(flag, bad) => (flag, value(flag) != Some(bad)),
            Self::Has(flag, item) => (flag, items(flag).any(|i| i == item)),
            Self::HasNot(flag, item) => (flag, !items(flag).any(|i| i == item)),
            Self::AtLeast(flag, least) => {
                let number = value(flag).and_then(|v| v.parse::<i64>().ok());
                (flag, number.is_some_and(|n| n >= least))
            }
            Self::Among(flag, allowed) => (
                flag,
                value(flag).is_none() || items(flag).all(|i| allowed.contains(&i)),
            ),
        };
        (!kept).then(|| shown(flag))
    }
}

/// Judges a flag of every instance of a program.
pub(super) fn judge(facts: &Facts, program: Program, rule: Rule, breach: Breach) -> Judged {
    let lines = command_lines(facts, program)?;
    let broken: Vec<String> = lines
        .iter()
        .filter_map(|(pod, flags)| rule.breach(flags).map(|why| format!("{pod}: {why}")))
        .collect();
    if broken.is_empty() {
        return Ok(Finding::pass(format!("the flags of {}", program.name())));
    }
    let seen = format!("{} of {} {}", broken.len(), lines.len(), program.name());
    Ok(Finding::of(breach.verdict(), seen, broken))
}

/// The flags of each instance of a program that runs as a pod of kube-system.
fn command_lines(facts: &Facts, program: Program) -> Result<Vec<(String, Flags)>, String> {
    let pods = facts.pods.as_ref().map_err(Clone::clone)?;
    let system = |pod: &&Pod| pod.metadata.namespace.as_deref() == Some("kube-system");
    let lines: Vec<_> = pods
        .iter()
        .filter(system)
        .flat_map(|pod| {
            let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
            containers.filter_map(|container| {
                let words = container.command.iter().chain(&container.args).flatten();
                let words: Vec<&str> = words.map(String::as_str).collect();
                flags_of(program, &words).map(|flags| (named(&pod.metadata), flags))
            })
        })
        .collect();
    if lines.is_empty() {
        let name = program.name();
        return Err(format!(
            "{name} is not run as a pod of kube-system: its flags cannot be seen through the API"
        ));
    }
    Ok(lines)
}

fn flags_of(program: Program, words: &[&str]) -> Option<Flags> {
    let is_program = |word: &&str| word.rsplit('/').next() == Some(program.name());
    let begin = words.iter().position(is_program)?;
    let mut flags = Flags::new();
    let mut rest = words[begin + 1..].iter().peekable();
    while let Some(word) = rest.next() {
        let Some(flag) = word.strip_prefix("--") else {
            continue;
        };
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => match rest.next_if(|next| !next.starts_with("--")) {
                Some(value) => (flag, (*value).to_owned()),
                None => (flag, "true".to_owned()),
            },
        };
        flags.insert(name.to_owned(), value);
    }
    Some(flags)
}
