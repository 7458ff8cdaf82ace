use std::fs;
use std::path::Path as FilePath;

use davit_api::kinds::builtin;
use serde_json::{Value, json};

use super::*;

const NOW: &str = "2024-01-01T00:00:00Z";

/// Replays requests whose outcome in the original is known and says where davit's is another.
fn replay(scenario: &Value) -> Result<(), String> {
    let table = builtin();
    let (version, kind) = (
        scenario["apiVersion"].as_str().unwrap(),
        scenario["kind"].as_str().unwrap(),
    );
    let (group, v) = split_api_version(version);
    let root = table.kind_type(group, v, kind).unwrap();
    let mut live = json!({"apiVersion": version, "kind": kind});
    for (i, step) in scenario["steps"].as_array().unwrap().iter().enumerate() {
        let subresource = step["subresource"].as_str().unwrap();
        let filter = match (subresource, scenario["reset"][0].is_string()) {
            ("", false) => Filter::All,
            ("", true) => Filter::Except(Set::of_fields([["status"]])),
            _ => Filter::Except(Set::of_fields([
                vec!["spec"],
                vec!["metadata", "deletionTimestamp"],
            ])),
        };
        let manager = FieldManager {
            schema: Schema::new(&table.types, root),
            api_version: version,
            kind,
            subresource,
            filter: &filter,
            versions: None,
            now: NOW,
        };
        let name = step["manager"].as_str().unwrap();
        let force = step["force"].as_bool().unwrap();
        let object = step["object"].clone();
        let result = match step["op"].as_str().unwrap() {
            "apply" => manager.apply(Some(&live), &object, name, force),
            _ => Ok(manager.update(Some(&live), object, name)),
        };
        match (result, step["error"].as_str()) {
            (Ok(new), None) => {
                let mut shown = new.clone();
                for entry in shown
                    .pointer_mut("/metadata/managedFields")
                    .and_then(Value::as_array_mut)
                    .into_iter()
                    .flatten()
                {
                    entry["time"] = Value::Bool(!entry["time"].is_null());
                }
                if shown != step["live"] {
                    return Err(format!(
                        "step {i}: {}",
                        first_difference("", &shown, &step["live"])
                    ));
                }
                live = new;
            }
            (Err(error), Some(want)) => {
                let (have, mut want_lines) = (error.to_string(), want.lines().collect::<Vec<_>>());
                let mut have_lines: Vec<&str> = have.lines().collect();
                // The original lists managers of causes in the order of a hash map.
                want_lines.sort_unstable();
                have_lines.sort_unstable();
                if have_lines != want_lines {
                    return Err(format!("step {i}: error {have}\nwanted {want}"));
                }
                if let Some(causes) = step["causes"].as_array() {
                    let mut have: Vec<Value> = error.status().details.map_or(vec![], |d| {
                        d.causes
                            .iter()
                            .map(|c| serde_json::to_value(c).unwrap())
                            .collect()
                    });
                    let mut want = causes.clone();
                    have.sort_by_key(Value::to_string);
                    want.sort_by_key(Value::to_string);
                    if have != want {
                        return Err(format!("step {i}: causes {have:?}\nwanted {want:?}"));
                    }
                }
            }
            (Ok(new), Some(error)) => return Err(format!("step {i}: {new}\nwanted error {error}")),
            (Err(error), None) => return Err(format!("step {i}: unexpected error {error}")),
        }
    }
    Ok(())
}

/// Where two values differ first.
fn first_difference(at: &str, a: &Value, b: &Value) -> String {
    match (a, b) {
        (Value::Object(x), Value::Object(y)) => {
            let keys = x.keys().chain(y.keys());
            match keys.into_iter().find(|key| x.get(*key) != y.get(*key)) {
                Some(key) => first_difference(&format!("{at}.{key}"), &a[key], &b[key]),
                None => at.to_owned(),
            }
        }
        (Value::Array(x), Value::Array(y)) if x.len() == y.len() => {
            match (0..x.len()).find(|i| x[*i] != y[*i]) {
                Some(i) => first_difference(&format!("{at}[{i}]"), &x[i], &y[i]),
                None => at.to_owned(),
            }
        }
        _ => format!("{at}: {a}\nwanted {b}"),
    }
}

fn replay_file(path: &FilePath) -> (usize, Vec<String>) {
    let (mut seen, mut failures) = (0, Vec::new());
    for line in fs::read_to_string(path).unwrap().lines() {
        let scenario: Value = serde_json::from_str(line).unwrap();
        if let Err(why) = replay(&scenario) {
            failures.push(format!("{}: {why}", scenario["name"].as_str().unwrap()));
        }
        seen += 1;
    }
    (seen, failures)
}

#[test]
fn outcomes_are_those_of_the_original() {
    let path = FilePath::new(env!("CARGO_MANIFEST_DIR")).join("testdata/apply/scenarios.jsonl");
    let (seen, failures) = replay_file(&path);
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    assert!(seen > 20, "{seen} scenarios");
}

#[test]
fn random_outcomes() {
    let Ok(path) = std::env::var("APPLY_FUZZ") else {
        return;
    };
    let (seen, failures) = replay_file(FilePath::new(&path));
    eprintln!("{seen} seen, {} failed", failures.len());
    for failure in failures.iter().take(8) {
        eprintln!("{failure}\n");
    }
    assert!(failures.is_empty());
}
