//! Node agents: their configurations, and their ports without credentials.

use std::collections::BTreeMap;

use serde_json::Value;

use super::facts::Facts;
use super::flags::Breach;
use super::{CheckResult, Finding, Judged};

/// What a field of a configuration has to be, by its JSON pointer.
#[derive(Debug, Clone, Copy)]
pub(super) enum Rule {
    /// False, given.
    False(&'static str),
    /// True, given.
    True(&'static str),
    /// Not false.
    TrueOrNotGiven(&'static str),
    /// A text that is not empty.
    Given(&'static str),
    /// Any other text.
    IsNot(&'static str, &'static str),
    /// Not given, or a number at least this.
    NotBelow(&'static str, i64),
    /// A number above zero.
    Positive(&'static str),
    /// Its list, if it is given, has none but these items.
    Among(&'static str, &'static [&'static str]),
    /// A certificate by file, or by request.
    OwnCertificate,
}

impl Rule {
    fn breach(self, config: &Value) -> Option<String> {
        let at = |pointer: &str| config.pointer(pointer).unwrap_or(&Value::Null);
        let (pointer, kept) = match self {
            Self::False(p) => (p, at(p) == &Value::Bool(false)),
            Self::True(p) => (p, at(p) == &Value::Bool(true)),
            Self::TrueOrNotGiven(p) => (p, at(p) != &Value::Bool(false)),
            Self::Given(p) => (p, at(p).as_str().is_some_and(|s| !s.is_empty())),
            Self::IsNot(p, bad) => (p, at(p).as_str() != Some(bad)),
            Self::NotBelow(p, least) => (p, at(p).as_i64().is_none_or(|n| n >= least)),
            Self::Positive(p) => (p, at(p).as_i64().is_some_and(|n| n > 0)),
            Self::Among(p, allowed) => {
                let mut items = at(p).as_array().into_iter().flatten();
                (
                    p,
                    items.all(|i| i.as_str().is_some_and(|i| allowed.contains(&i))),
                )
            }
            Self::OwnCertificate => {
                let file = at("/tlsCertFile").as_str().is_some_and(|s| !s.is_empty());
                let requested = at("/serverTLSBootstrap") == &Value::Bool(true);
                ("/tlsCertFile", file || requested)
            }
        };
        let field = pointer.trim_start_matches('/').replace('/', ".");
        (!kept).then(|| match at(pointer) {
            Value::Null => format!("{field} is not given"),
            value => format!("{field}: {value}"),
        })
    }
}

/// Judges a field of the configuration of every node agent that shows it.
pub(super) fn judge(facts: &Facts, rule: Rule, breach: Breach) -> Judged {
    let mut broken = Vec::new();
    let mut shown = 0;
    let mut silent = None;
    for (node, config) in &facts.kubelets {
        match config {
            Ok(config) => {
                shown += 1;
                let why = rule.breach(config);
                broken.extend(why.map(|why| format!("{node}: {why}")));
            }
            Err(why) => silent = Some(format!("{node}: {why}")),
        }
    }
    if shown == 0 {
        return Err(silent.unwrap_or_else(|| "there are no nodes".to_owned()));
    }
    if broken.is_empty() {
        return Ok(Finding::pass(format!("the configuration of {shown} nodes")));
    }
    let seen = format!("{} of {shown} nodes", broken.len());
    Ok(Finding::of(breach.verdict(), seen, broken))
}

/// Nobody gets pages of node agents without credentials.
pub(super) fn anonymous(facts: &Facts) -> Judged {
    let by_port = served(&facts.tried.kubelet_port, "without credentials");
    let by_config = judge(
        facts,
        Rule::False("/authentication/anonymous/enabled"),
        Breach::Fails,
    );
    both(by_port, by_config)
}

/// Node agents ask who may do what.
pub(super) fn authorization(facts: &Facts) -> Judged {
    let by_port = served(&facts.tried.kubelet_port, "to whoever asks");
    let by_config = judge(
        facts,
        Rule::IsNot("/authorization/mode", "AlwaysAllow"),
        Breach::Fails,
    );
    both(by_port, by_config)
}

/// The port without TLS is closed.
pub(super) fn open_port(facts: &Facts) -> Judged {
    let closed = |config: &Value| config["readOnlyPort"].as_i64().unwrap_or(0) == 0;
    let open = facts.kubelets.iter();
    let open: Vec<String> = open
        .filter(|(_, config)| config.as_ref().is_ok_and(|c| !closed(c)))
        .map(|(node, _)| node.clone())
        .collect();
    if !open.is_empty() {
        let seen = format!("{} nodes have a readOnlyPort", open.len());
        return Ok(Finding::of(CheckResult::Fail, seen, open));
    }
    let tried = &facts.tried;
    let served: Vec<String> = answering(&tried.kubelet_open_port);
    if !served.is_empty() {
        let seen = format!(
            "{} nodes list their pods on port 10255, without TLS",
            served.len()
        );
        return Ok(Finding::of(CheckResult::Fail, seen, served));
    }
    // A port that is closed says something only about a node that is within reach.
    let reached = tried.kubelet_port.values().filter(|a| a.is_some()).count();
    let shown = facts.kubelets.values().filter(|c| c.is_ok()).count();
    match (reached, shown) {
        (0, 0) => {
            Err("no node is within reach from here, and none shows its configuration".to_owned())
        }
        (0, shown) => Ok(Finding::pass(format!("the configuration of {shown} nodes"))),
        (reached, _) => Ok(Finding::pass(format!(
            "port 10255 is closed on {reached} nodes"
        ))),
    }
}

/// Nodes that served a page.
fn answering(answers: &BTreeMap<String, Option<u16>>) -> Vec<String> {
    let open = answers
        .iter()
        .filter(|(_, a)| a.is_some_and(|code| code < 400));
    open.map(|(node, _)| node.clone()).collect()
}

/// What was seen on a port: a page that was served fails, a refusal passes.
fn served(answers: &BTreeMap<String, Option<u16>>, how: &str) -> Judged {
    let open = answering(answers);
    if !open.is_empty() {
        let seen = format!("{} nodes list their pods {how}", open.len());
        return Ok(Finding::of(CheckResult::Fail, seen, open));
    }
    let refused = answers.values().filter(|a| a.is_some()).count();
    match (answers.len(), refused) {
        (0, _) => Err("the ports of nodes were not tried".to_owned()),
        (all, 0) => Err(format!(
            "nobody answers on the ports of {all} nodes, from here"
        )),
        (_, refused) => Ok(Finding::pass(format!("{refused} nodes refuse it"))),
    }
}

/// The worse of two, where both tell.
fn both(first: Judged, second: Judged) -> Judged {
    match (first, second) {
        (Ok(first), Ok(second)) if second.verdict == CheckResult::Pass => Ok(first),
        (Ok(first), Ok(_)) if first.verdict == CheckResult::Fail => Ok(first),
        (Ok(_), Ok(second)) => Ok(second),
        (Ok(one), Err(_)) | (Err(_), Ok(one)) => Ok(one),
        (Err(why), Err(_)) => Err(why),
    }
}
