//! davit's API server and the real kube-apiserver answer the same (docs/testing.md).
//!
//! `DAVIT_DIFFERENTIAL_CASES` says how many cases are tried, `DAVIT_DIFFERENTIAL_SEED` with which they begin: case N of a
//! run is case 0 of one that begins with its seed. `DAVIT_DIFFERENTIAL_REPORT` names a file for all differences,
//! `DAVIT_DIFFERENTIAL_KINDS` the kinds that are asked about (`pods,deployments`).

mod answers;
mod cases;
mod dice;
mod known;
mod questions;
mod requests;
mod run;
mod servers;
mod targets;

use crate::{etcd::kube_apiserver, harness};
use base64::Engine as _;
use cases::Case;
use run::Run;
use serde_json::{Value, json};
use servers::{Pair, Request};
use std::process::Command;
use std::time::Duration;
use targets::{LIMITS, NAMESPACE, Target};

/// How many cases are tried where nothing else is said: a minute in a debug build.
const CASES: u64 = 400;
const SMALL: &str = include_str!("../crates/apiserver/tests/api/samples/kinds.yaml");
const LARGE: &str = include_str!("differential/objects.yaml");
const VERSIONS: &str = include_str!("differential/versions.yaml");
const CUSTOM: &str = include_str!("differential/definition.yaml");
const REVIEWS: &str = include_str!("differential/reviews.yaml");

fn documents(text: &str) -> Vec<Value> {
    let parts = text.split("\n---\n");
    parts
        .map(|part| serde_saphyr::from_str(part).unwrap())
        .collect()
}

/// What openssl's `req` answers in PEM with these arguments and a new key.
fn openssl(args: &[&str]) -> String {
    let mut command = Command::new("openssl");
    command.args(["req", "-new", "-nodes", "-keyout", "/dev/null"]);
    harness::run(command.args(args))
}

fn targets() -> Vec<Target> {
    const CURVE: [&str; 4] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"];
    let request = openssl(&["-newkey", "rsa:2048", "-subj", "/CN=u"]);
    let request = base64::engine::general_purpose::STANDARD.encode(request);
    let stub = openssl(&[&CURVE[..], &["-subj", "/CN=u"]].concat());
    let stub: String = stub.lines().filter(|l| !l.starts_with('-')).collect();
    let bundle = openssl(&[&CURVE[..], &["-subj", "/CN=b", "-x509", "-days", "3"]].concat());
    let bundle = json!(bundle).to_string();
    let fill = |text: &str| {
        text.replace("routes", NAMESPACE)
            .replace("REQUEST", &request)
            .replace("STUB", &stub)
            .replace("BUNDLE", &bundle)
    };
    let kept = [SMALL, LARGE, VERSIONS].map(|text| documents(&fill(text)));
    let kept = kept.concat();
    let mut targets: Vec<Target> = kept.into_iter().filter_map(Target::built_in).collect();
    targets.extend(documents(REVIEWS).into_iter().map(Target::review));
    // as often as all others of a dozen kinds
    let gadget = documents(CUSTOM).pop().unwrap();
    targets.extend((0..6).map(|_| Target::custom(gadget.clone())));
    targets
}

fn number(name: &str, otherwise: u64) -> u64 {
    let given = std::env::var(name).ok();
    given.map_or(otherwise, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is no number: {text}"))
    })
}

/// The kinds that are asked for, by the beginning of their labels; all where none is.
fn chosen(targets: Vec<Target>) -> Vec<Target> {
    let Ok(kinds) = std::env::var("DAVIT_DIFFERENTIAL_KINDS") else {
        return targets;
    };
    let is_chosen = |target: &Target| kinds.split(',').any(|kind| target.label.starts_with(kind));
    let chosen: Vec<Target> = targets.into_iter().filter(is_chosen).collect();
    assert!(!chosen.is_empty(), "no kind of {kinds}");
    chosen
}

/// What all cases find there.
async fn prepare(run: &mut Run) {
    let service_account = |namespace: &str| {
        let object =
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
        (
            format!("/api/v1/namespaces/{namespace}/serviceaccounts"),
            object,
        )
    };
    let namespace = |name: &str| {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        ("/api/v1/namespaces".to_owned(), object)
    };
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let definition = documents(CUSTOM).remove(0);
    let objects = [
        namespace(NAMESPACE),
        namespace(LIMITS),
        service_account(NAMESPACE),
        service_account(LIMITS),
        (definitions.to_owned(), definition),
    ];
    for (path, object) in objects {
        let (theirs, ours) = run
            .ask_only(&asked("POST", path, object.to_string()), "-")
            .await;
        assert_eq!((theirs.code, ours.code), (201, 201), "{theirs:?} {ours:?}");
    }
    let gadgets = format!("/apis/differential.example.com/v1/namespaces/{NAMESPACE}/gadgets");
    let end = std::time::Instant::now() + Duration::from_secs(30);
    loop {
        let (theirs, ours) = run
            .ask_only(&asked("GET", gadgets.clone(), String::new()), "-")
            .await;
        if (theirs.code, ours.code) == (200, 200) {
            break;
        }
        assert!(
            std::time::Instant::now() < end,
            "the custom kind is not served: {theirs:?} {ours:?}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn asked(method: &'static str, path: String, body: String) -> Request {
    let json = "application/json";
    Request {
        label: method.to_owned(),
        method,
        path,
        content_type: json,
        accept: json,
        body,
        headers: Vec::new(),
    }
}

#[tokio::test]
async fn davit_answers_as_kube_apiserver_does() {
    let (Some(binary), Some(kubectl), Some(_)) = (
        kube_apiserver::kube_apiserver(),
        harness::any_kubectl(),
        harness::program("openssl"),
    ) else {
        return;
    };
    let Some(pair) = Pair::start(&binary, &kubectl) else {
        return;
    };
    let (cases, first) = (
        number("DAVIT_DIFFERENTIAL_CASES", CASES),
        number("DAVIT_DIFFERENTIAL_SEED", 1),
    );
    println!("{cases} cases from seed {first}");
    let targets = chosen(targets());
    let mut run = Run::new(pair);
    prepare(&mut run).await;
    if std::env::var_os("DAVIT_DIFFERENTIAL_KINDS").is_none() {
        questions::ask(&mut run).await;
    }
    for seed in first..first + cases {
        let target = &targets[usize::try_from(seed).unwrap() % targets.len()];
        run.seed = seed;
        Case::new(&mut run, target, seed).go().await;
    }
    run.finish();
}
