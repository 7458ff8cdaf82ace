use super::file::{camel_case, sections};
use super::show::settings;
use super::{Completed, Faults, Source, complete};
use crate::args::Args;
use std::ffi::OsString;

fn no_environment(_: &str) -> Option<OsString> {
    None
}

fn line(text: &str) -> Vec<OsString> {
    text.split_whitespace().map(OsString::from).collect()
}

/// The line with what a file says; `FILE` in the line stands for its path.
fn with_file(
    text: &str,
    words: &str,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<(Completed, String), Faults> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("davit.yaml");
    std::fs::write(&path, text).unwrap();
    let words = words.replace("FILE", path.to_str().unwrap());
    let completed = complete(&Args::full_command(), line(&words), environment)?;
    let shown: Vec<&str> = completed.line.iter().map(|w| w.to_str().unwrap()).collect();
    let shown = shown.join(" ").replace(path.to_str().unwrap(), "FILE");
    Ok((completed, shown))
}

const HEAD: &str = "apiVersion: davit.dev/v1\nkind: Configuration\n";

#[test]
fn what_the_file_says_stands_where_the_line_is_silent() {
    let text = format!(
        "{HEAD}up:
  port: 7443
  bindAddress: 0.0.0.0
  tlsSan: [a.example, b.example]
  enableAdmissionPlugins: [PodNodeSelector, AlwaysPullImages]
  featureGates: {{DRAConsumableCapacity: true}}
  noNode: true
  noScheduler: false
  dns: false
node:
  kubeconfig: /etc/davit/node.kubeconfig
"
    );
    let (completed, shown) = with_file(
        &text,
        "davit -v up --configuration FILE --port 1",
        no_environment,
    )
    .unwrap();
    assert_eq!(
        shown,
        "davit -v up --bind-address=0.0.0.0 --dns=false --enable-admission-plugins=PodNodeSelector \
         --enable-admission-plugins=AlwaysPullImages --feature-gates=DRAConsumableCapacity=true --no-node \
         --tls-san=a.example --tls-san=b.example --configuration FILE --port 1"
    );
    assert!(
        Args::full_command()
            .try_get_matches_from(&completed.line)
            .is_ok()
    );
    // a flag that has to be there may stand in the file
    let (completed, _) =
        with_file(&text, "davit node --configuration FILE", no_environment).unwrap();
    assert!(
        Args::full_command()
            .try_get_matches_from(&completed.line)
            .is_ok()
    );
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let text = format!("{HEAD}up: {{port: 1, nodePort: 1, nodeName: file, dataDir: /file}}\n");
    let environment = |name: &str| match name {
        "DAVIT_PORT" | "DAVIT_NODE_PORT" => Some("2".into()),
        "DAVIT_NO_NODE" => Some("true".into()),
        _ => None,
    };
    let (completed, shown) =
        with_file(&text, "davit up --port 3 --configuration FILE", environment).unwrap();
    assert_eq!(
        shown,
        "davit up --node-port=2 --no-node --data-dir=/file --node-name=file --port 3 --configuration FILE"
    );
    assert_eq!(completed.sources["node_port"], Source::Environment);
    assert_eq!(completed.sources["node_name"], Source::File);
}

#[test]
fn every_fault_is_said_with_its_path() {
    let text = "apiVersion: davit.dev/v2
kind: Configuration
up:
  port: many
  bind_address: 0.0.0.0
  colour: red
  securePort: 1
  tlsSan: [a, [b]]
  nodeName: [a, b]
  noNode: perhaps
  root:
server: 1
frontend: {}
scheduler:
  leaderElect: 7
";
    let faults = sections(&Args::full_command(), text).unwrap_err();
    let has = |wanted: &str| {
        assert!(
            faults.iter().any(|f| f.contains(wanted)),
            "{wanted} in {faults:#?}"
        );
    };
    has("apiVersion: must be davit.dev/v1");
    has("up.port: invalid value 'many' for '--port <N>'");
    has("up.bind_address: unknown field, did you mean bindAddress?");
    has("up.colour: unknown field, davit up has no such flag");
    has("up.tlsSan: is nested too deeply");
    has("up.nodeName: must be one value, not a list");
    has("up.noNode: must be true or false");
    has("up.root: has no value");
    has("server: must be an object");
    has("frontend: unknown field, expected one of up, server");
    has("scheduler.leaderElect: invalid value '7'");
    assert_eq!(faults.len(), 11, "{faults:#?}");
}

#[test]
fn one_flag_under_two_names_is_a_fault() {
    let text = format!("{HEAD}up: {{port: 1, securePort: 2}}\n");
    let faults = sections(&Args::full_command(), &text).unwrap_err();
    assert_eq!(faults, ["up.securePort: is the same as port"]);
}

#[test]
fn files_that_are_none_are_refused() {
    for text in ["", "[]", "a: {b", "apiVersion: davit.dev/v1"] {
        assert!(sections(&Args::full_command(), text).is_err(), "{text:?}");
    }
    let missing = complete(
        &Args::full_command(),
        line("davit up --configuration /none/davit.yaml"),
        no_environment,
    );
    let Faults(faults) = missing.unwrap_err();
    assert!(
        faults[0].starts_with("/none/davit.yaml: cannot be read"),
        "{faults:?}"
    );
}

#[test]
fn other_commands_and_wrong_lines_stay_as_they_are() {
    for words in [
        "davit version",
        "davit",
        "davit nonsense",
        "davit devices --watch",
    ] {
        let completed = complete(&Args::full_command(), line(words), |_| Some("x".into())).unwrap();
        assert_eq!(completed.line, line(words));
    }
}

#[test]
fn what_is_shown_can_be_read_again() {
    let shown = settings(
        &Args::full_command(),
        line("up --port 0 --tls-san a --tls-san b:c --no-node"),
        no_environment,
    )
    .unwrap();
    let by_name = |name: &str| shown.iter().find(|s| s.name == name).unwrap();
    assert_eq!(
        serde_json::to_value(by_name("port")).unwrap()["source"],
        "flag"
    );
    assert_eq!(
        serde_json::to_value(by_name("bindAddress")).unwrap()["source"],
        "default"
    );
    let text = super::show::text("up", &shown, true);
    assert!(text.contains("  tlsSan: [a, \"b:c\"] # flag\n"), "{text}");
    let again = sections(&Args::full_command(), &text).unwrap();
    assert!(
        again["up"]
            .iter()
            .any(|(id, words)| id == "port" && words == &["--port=0"])
    );
}

#[test]
fn fields_are_flags_in_camel_case() {
    assert_eq!(camel_case("tls-san"), "tlsSan");
    assert_eq!(camel_case("port"), "port");
}
