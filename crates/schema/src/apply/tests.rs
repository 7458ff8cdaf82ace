use std::fs;
use std::path::Path as FilePath;

use davit_api::kinds::builtin;
use serde_json::json;

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
    for (file, at_least) in [("scenarios.jsonl", 30), ("random.jsonl", 40)] {
        let path = FilePath::new(env!("CARGO_MANIFEST_DIR"))
            .join("testdata/apply")
            .join(file);
        let (seen, failures) = replay_file(&path);
        assert!(failures.is_empty(), "{}", failures.join("\n\n"));
        assert!(seen >= at_least, "{seen} scenarios in {file}");
    }
}

fn manager<'a>(kind: &'a str, api_version: &'a str, filter: &'a Filter) -> FieldManager<'a> {
    let table = builtin();
    let (group, version) = split_api_version(api_version);
    FieldManager {
        schema: Schema::new(&table.types, table.kind_type(group, version, kind).unwrap()),
        api_version,
        kind,
        subresource: "",
        filter,
        versions: None,
        now: NOW,
    }
}

fn config_map(data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data})
}

fn names(object: &Value) -> Vec<&str> {
    let entries = object["metadata"]["managedFields"].as_array();
    let entries = entries.into_iter().flatten();
    entries.map(|e| e["manager"].as_str().unwrap()).collect()
}

#[test]
fn a_missing_object_is_created_by_apply() {
    let manager = manager("ConfigMap", "v1", &Filter::All);
    let new = manager
        .apply(None, &config_map(&json!({"a": "1"})), "m", false)
        .unwrap();
    assert_eq!(
        new["metadata"]["managedFields"],
        json!([{"manager": "m", "operation": "Apply", "apiVersion": "v1", "time": NOW,
            "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {"f:a": {}}}}])
    );
}

#[test]
fn what_is_created_is_owned_without_what_always_stands() {
    let manager = manager("Pod", "v1", &Filter::All);
    let types = &builtin().types;
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "uid": "u"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let pod = crate::decode::decode_value(types, manager.schema.root, pod).unwrap();
    let new = manager.update(None, pod.object, "");
    assert_eq!(names(&new), ["unknown"]);
    assert_eq!(
        new["metadata"]["managedFields"][0]["fieldsV1"],
        json!({"f:spec": {"f:containers": {"k:{\"name\":\"c\"}":
            {".": {}, "f:name": {}, "f:image": {}, "f:resources": {}}}}})
    );
}

/// A kind that is served in the version of the request only.
#[derive(Debug)]
struct OnlyKnown;

impl Versions for OnlyKnown {
    fn schema(&self, _: &str) -> Option<Schema<'_>> {
        None
    }

    fn convert(&self, _: &Value, _: &str, _: &str) -> Option<Value> {
        None
    }
}

#[test]
fn entries_of_unknown_versions_are_dropped() {
    let all = Filter::All;
    let mut manager = manager("Deployment", "apps/v1", &all);
    let mut live = json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "d"}, "spec": {"replicas": 1}});
    live["metadata"]["managedFields"] = json!([
        {"manager": "old", "operation": "Apply", "apiVersion": "apps/v1beta1",
            "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:replicas": {}}}},
        {"manager": "now", "operation": "Apply", "apiVersion": "apps/v1",
            "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:replicas": {}}}}]);
    let update = |manager: &FieldManager<'_>| {
        let mut new = live.clone();
        new["spec"]["paused"] = json!(true);
        manager.update(Some(&live), new, "u")
    };
    assert_eq!(names(&update(&manager)), ["now", "old", "u"]);
    manager.versions = Some(&OnlyKnown);
    assert_eq!(names(&update(&manager)), ["now", "u"]);
}

#[test]
fn fields_that_have_become_one_value_are_owned_as_one() {
    // The selector of a service: owned by keys, as if it had been granular once.
    let manager = manager("Service", "v1", &Filter::All);
    let mut live = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
        "spec": {"selector": {"a": "b"}}});
    live["metadata"]["managedFields"] = json!([{"manager": "m", "operation": "Apply",
        "apiVersion": "v1", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {"f:selector": {"f:a": {}}}}}]);
    let mut new = live.clone();
    new["spec"]["type"] = json!("ClusterIP");
    let new = manager.update(Some(&live), new, "u");
    assert_eq!(
        new["metadata"]["managedFields"][0]["fieldsV1"],
        json!({"f:spec": {"f:selector": {}}})
    );
}

#[test]
fn times_alone_are_no_change() {
    let filter = Filter::All;
    let mut manager = manager("ConfigMap", "v1", &filter);
    let applied = config_map(&json!({"a": "1000m"}));
    let live = manager.apply(None, &applied, "m", false).unwrap();
    manager.now = "2025-01-01T00:00:00Z";
    let mut same = live.clone();
    same["metadata"]["managedFields"][0]["time"] = json!(manager.now);
    ignore_times(&live, &mut same);
    assert_eq!(same, live);
    let mut other = live.clone();
    other["metadata"]["managedFields"][0]["time"] = json!(manager.now);
    other["data"]["a"] = json!("2");
    let want = other.clone();
    ignore_times(&live, &mut other);
    assert_eq!(other, want);
}

#[test]
fn strategies_reset_what_a_request_may_not_change() {
    let set = Set::from_fields_v1(&json!({
        "f:metadata": {"f:labels": {"f:a": {}}, "f:ownerReferences": {"k:{\"uid\":\"1\"}": {}}},
        "f:spec": {".": {}, "f:ephemeralContainers": {"k:{\"name\":\"e\"}": {".": {}}},
            "f:containers": {"k:{\"name\":\"c\"}": {".": {}, "f:image": {},
                "f:resources": {"f:limits": {"f:cpu": {}}}}}},
        "f:status": {"f:phase": {}}}))
    .unwrap();
    let left = |group, plural, subresource| {
        let filter = Filter::of(group, plural, subresource, true);
        filter.filter(set.clone()).to_fields_v1()
    };
    assert_eq!(left("", "pods", "").get("f:status"), None);
    let groups = |subresource| left("scheduling.k8s.io", "podgroups", subresource);
    assert_eq!(groups(""), set.to_fields_v1());
    assert_eq!(groups("status"), json!({"f:status": {"f:phase": {}}}));
    assert_eq!(
        left("", "pods", "status"),
        json!({"f:metadata": {"f:labels": {"f:a": {}}}, "f:status": {"f:phase": {}}})
    );
    assert_eq!(
        left("", "pods", "resize"),
        json!({"f:spec": {".": {}, "f:containers": {"k:{\"name\":\"c\"}": {".": {},
            "f:resources": {"f:limits": {"f:cpu": {}}}}}}})
    );
    assert_eq!(
        left("", "pods", "ephemeralcontainers"),
        json!({"f:spec": {".": {}, "f:ephemeralContainers": {"k:{\"name\":\"e\"}": {}}}})
    );
    assert_eq!(
        left("stable.example.com", "shirts", "status").get("f:spec"),
        None
    );
}

#[test]
fn custom_kinds_merge_by_their_schema() {
    use davit_api::kinds::{Field, ListType, TypeBody, TypeDef, TypeId, TypeTable};
    let field = |name: &str, ty| Field {
        name: name.to_owned().into(),
        ty,
        nullable: true,
        ..Field::default()
    };
    let body = |fields| TypeBody::Struct {
        fields,
        union: false,
    };
    let strings = || FieldType::List(Box::new(FieldType::String));
    let list = |name: &str, item: FieldType, kind| Field {
        list_type: kind,
        list_map_keys: vec!["id".to_owned().into()],
        ..field(name, FieldType::List(Box::new(item)))
    };
    let types = TypeTable::new(vec![
        TypeDef::new(
            "shirts.Shirt".to_owned(),
            body(vec![
                field("apiVersion", FieldType::String),
                field("kind", FieldType::String),
                field("metadata", FieldType::Any),
                field("spec", FieldType::Named(TypeId(1))),
            ]),
        ),
        TypeDef::new(
            "shirts.Spec".to_owned(),
            body(vec![
                list("parts", FieldType::Named(TypeId(2)), Some(ListType::Map)),
                list("tags", FieldType::String, Some(ListType::Set)),
                field("sizes", strings()),
                field("free", FieldType::Any),
            ]),
        ),
        TypeDef::new(
            "shirts.Part".to_owned(),
            body(vec![
                field("id", FieldType::Int64),
                field("a", FieldType::String),
                // Other properties are texts.
                Field {
                    inline: true,
                    ..field("", FieldType::Map(Box::new(FieldType::String)))
                },
            ]),
        ),
    ]);
    let manager = FieldManager {
        schema: Schema::new(&types, TypeId(0)),
        api_version: "stable.example.com/v1",
        kind: "Shirt",
        subresource: "",
        filter: &Filter::of("stable.example.com", "shirts", "", true),
        versions: None,
        now: NOW,
    };
    let shirt = |spec: Value| {
        json!({"apiVersion": "stable.example.com/v1", "kind": "Shirt",
        "metadata": {"name": "s"}, "spec": spec})
    };
    let first = shirt(
        json!({"parts": [{"id": 1, "a": "x"}], "tags": ["t"], "sizes": ["s"],
        "free": {"k": {"l": 1}}}),
    );
    let live = manager.apply(None, &first, "m1", false).unwrap();
    let second = shirt(
        json!({"parts": [{"id": 1, "more": "y"}, {"id": 2}], "tags": ["u"],
        "free": {"k": {"m": [1]}}}),
    );
    let live = manager.apply(Some(&live), &second, "m2", false).unwrap();
    assert_eq!(
        live["spec"],
        json!({"parts": [{"id": 1, "a": "x", "more": "y"}, {"id": 2}], "tags": ["t", "u"],
            "sizes": ["s"], "free": {"k": {"l": 1, "m": [1]}}})
    );
    let conflict = shirt(json!({"sizes": ["m"], "free": {"k": {"l": 2}}}));
    let error = manager
        .apply(Some(&live), &conflict, "m2", false)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "Apply failed with 2 conflicts: conflicts with \"m1\":\n- .spec.sizes\n- .spec.free.k.l"
    );
    let live = manager
        .apply(Some(&live), &shirt(json!({})), "m2", false)
        .unwrap();
    assert_eq!(live["spec"], first["spec"]);
}

#[test]
fn fields_v1_of_unknown_forms() {
    let read = |value| Set::from_fields_v1(&value);
    // A type of step that does not exist yet is left out.
    assert_eq!(
        read(json!({"q:new": {}, "f:a": {}}))
            .unwrap()
            .to_fields_v1(),
        json!({"f:a": {}})
    );
    assert_eq!(read(json!({"f": {}})), Err(ParseFieldsError::Short));
    assert!(read(json!({"fa:": {}})).is_err());
    assert!(read(json!({"k:{": {}})).is_err());
    assert!(read(json!({"i:x": {}})).is_err());
    assert!(read(json!([])).is_err());
    let value = json!({"f:a": {".": {}, "v:\"\\u003cx\\u003e\"": {}, "v:1.5": {}, "i:3": {}}});
    assert_eq!(read(value.clone()).unwrap().to_fields_v1(), value);
}

mod laws {
    use proptest::prelude::*;

    use super::*;

    fn step() -> impl Strategy<Value = PathElement> {
        prop_oneof![
            "[a-c]".prop_map(PathElement::Field),
            (0..3_i64, "[x<&]").prop_map(|(n, s)| PathElement::Key(vec![
                ("n".to_owned(), json!(n)),
                ("s".to_owned(), json!(s)),
            ])),
            prop_oneof![Just(json!(1)), Just(json!("a")), Just(json!(true))]
                .prop_map(PathElement::Value),
            (0..3_i64).prop_map(PathElement::Index),
        ]
    }

    fn set() -> impl Strategy<Value = Set> {
        prop::collection::vec(prop::collection::vec(step(), 1..4), 0..12).prop_map(|paths| {
            let mut set = Set::default();
            for path in paths {
                set.insert(&path);
            }
            set
        })
    }

    fn names(max: usize) -> impl Strategy<Value = Vec<String>> {
        prop::collection::btree_set("[a-d]", 0..max).prop_map(|names| names.into_iter().collect())
    }

    fn pod() -> impl Strategy<Value = Value> {
        let container = ("[xy]", any::<bool>(), names(3));
        let containers = prop::collection::btree_map("[a-d]", container, 0..4);
        (containers, names(3), prop::option::of(0..3)).prop_map(|(containers, labels, grace)| {
            let containers: Vec<Value> = containers
                .into_iter()
                .map(|(name, (image, tty, env))| {
                    let env: Vec<Value> = env.iter().map(|e| json!({"name": e})).collect();
                    json!({"name": name, "image": image, "tty": tty, "env": env})
                })
                .collect();
            let labels: Map<String, Value> = labels.into_iter().map(|l| (l, json!("1"))).collect();
            json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": "p", "labels": labels},
                "spec": {"containers": containers, "terminationGracePeriodSeconds": grace}})
        })
    }

    fn owned(object: &Value, name: &str) -> Set {
        Managers::of(object)
            .unwrap()
            .owned
            .into_iter()
            .find(|(manager, _)| manager.name == name)
            .map(|(_, owned)| owned.set)
            .unwrap_or_default()
    }

    proptest! {
        #[test]
        fn sets_survive_their_written_form(set in set()) {
            let fields = set.to_fields_v1();
            let read = Set::from_fields_v1(&fields).unwrap();
            prop_assert_eq!(read.paths(), set.paths());
            prop_assert_eq!(read.to_fields_v1(), fields);
        }

        #[test]
        fn sets_are_sets(a in set(), b in set()) {
            let both = a.intersection(&b);
            let all = a.union(&b);
            prop_assert_eq!(all.len() + both.len(), a.len() + b.len());
            prop_assert_eq!(a.difference(&b).len() + both.len(), a.len());
            for path in all.paths() {
                let (x, y) = (a.contains(&path), b.contains(&path));
                prop_assert!(x || y);
                prop_assert_eq!(both.contains(&path), x && y);
                prop_assert_eq!(a.difference(&b).contains(&path), x && !y);
                if a.recursive_difference(&b).contains(&path) {
                    prop_assert!(!(1..=path.len()).any(|n| b.contains(&path[..n])));
                }
            }
            prop_assert!(a.leaves().difference(&a).is_empty());
            prop_assert_eq!(a.touches(&b), !both.is_empty());
            let mut left = a.clone();
            left.take_below(&b);
            prop_assert_eq!(left, a.recursive_difference(&b));
        }

        #[test]
        fn applying_twice_changes_nothing(live in pod(), applied in pod()) {
            let manager = manager("Pod", "v1", &Filter::All);
            let once = manager.apply(Some(&live), &applied, "m", true).unwrap();
            let twice = manager.apply(Some(&once), &applied, "m", false).unwrap();
            prop_assert_eq!(once, twice);
        }

        #[test]
        fn who_forces_a_change_owns_it_alone(first in pod(), second in pod()) {
            let manager = manager("Pod", "v1", &Filter::All);
            let live = manager.apply(None, &first, "m1", false).unwrap();
            let new = manager.apply(Some(&live), &second, "m2", true).unwrap();
            let changed = manager.schema.compare(&live, &new).modified;
            let changed = changed.difference(&updater::untracked());
            let theirs = owned(&new, "m1");
            prop_assert!(theirs.intersection(&changed).is_empty());
            prop_assert!(changed.difference(&owned(&new, "m2")).is_empty());
            // Without force the same is refused if and only if someone owns what changes.
            let refused = manager.apply(Some(&live), &second, "m2", false).is_err();
            prop_assert_eq!(refused, !owned(&live, "m1").intersection(&changed).is_empty());
        }

        #[test]
        fn what_is_applied_stands_and_the_rest_stays(live in pod(), applied in pod()) {
            let manager = manager("Pod", "v1", &Filter::All);
            let new = manager.apply(Some(&live), &applied, "m", true).unwrap();
            let schema = manager.schema;
            let comparison = schema.compare(&applied, &new);
            prop_assert!(comparison.removed.is_empty());
            let lost = schema.compare(&live, &new).removed;
            prop_assert!(lost.is_empty(), "{:?}", lost.paths());
        }

        #[test]
        fn an_update_is_owned_by_whom_changed_it(first in pod(), second in pod()) {
            let manager = manager("Pod", "v1", &Filter::All);
            let live = manager.update(None, first, "u1");
            let new = manager.update(Some(&live), second, "u2");
            let changes = manager.schema.compare(&live, &new);
            let mine = owned(&new, "u2");
            let changed = changes.modified.union(&changes.added);
            prop_assert_eq!(&mine, &changed.difference(&updater::untracked()));
            prop_assert!(owned(&new, "u1").intersection(&mine).is_empty());
        }
    }
}

/// A body has room for some ten thousand managers, each of whom owns one field.
#[test]
fn many_managers_cost_their_number() {
    const MANY: usize = 12_000;
    let data = |value: &str| -> Value {
        let each = (0..MANY).map(|n| (format!("k{n}"), json!(value)));
        Value::Object(each.collect())
    };
    let owned = |operation: &str, data: &Value| {
        let entry = |name: String, n: usize| {
            json!({"manager": name, "operation": operation, "apiVersion": "v1",
                "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {format!("f:k{n}"): {}}}})
        };
        let entries = (1..MANY).map(|n| entry(format!("m{n}"), n));
        let mut object = config_map(data);
        object["metadata"]["managedFields"] = entries.chain([entry("a".to_owned(), 0)]).collect();
        object
    };
    let (told, done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let filter = Filter::All;
        let manager = manager("ConfigMap", "v1", &filter);
        let entries = |object: &Value| names(object).len();
        // those that update are joined
        let joined = manager.update(None, owned("Update", &json!({})), "me");
        // those that apply lose what somebody else writes
        let live = owned("Apply", &data("v"));
        let written = manager.update(Some(&live), owned("Apply", &data("w")), "me");
        let refused = manager.apply(Some(&live), &config_map(&data("x")), "b", false);
        // and one of them takes its own away
        let less = manager.apply(Some(&live), &config_map(&json!({})), "a", false);
        let less = less.unwrap()["data"].as_object().unwrap().len();
        told.send((
            entries(&joined),
            entries(&written),
            less,
            refused.unwrap_err().status(),
        ))
        .is_ok()
    });
    let done = done.recv_timeout(std::time::Duration::from_secs(60));
    let (joined, written, less, refused) = done.expect("not in a minute");
    assert_eq!((joined, written, less), (MAX_UPDATE_MANAGERS, 1, MANY - 1));
    // no more is told than anybody reads
    assert_eq!(refused.details.unwrap().causes.len(), 1000);
    assert!(refused.message.ends_with("\n- and 11000 more"));
}
