//! Bodies that are small and ask for much: what they make of an object, or of the answer, has a limit.

use super::{SOON, Target};
use serde_json::{Value, json};
use std::time::Instant;

const MAPS: &str = "/api/v1/namespaces/foo/configmaps";
const JSON: &str = "application/json";

/// A patch whose operations put values into one another until no stack was deep enough, which ended the process.
pub(super) fn patches_that_nest(t: &Target) {
    t.write(
        &format!("POST {MAPS}"),
        &json!({ "metadata": { "name": "deep" } }),
    );
    let nested = (0..100).fold(json!({}), |below, _| json!({ "a": below }));
    let deeper = |n: usize| json!({ "op": "add", "path": format!("/data{}", "/a".repeat(n * 100)), "value": nested });
    let patch: Value = (0..120).map(deeper).collect();
    let kind = [("Content-Type", "application/json-patch+json")];
    let line = format!("PATCH {MAPS}/deep");
    let answer = t.send("ed", &line, &kind, &patch.to_string());
    assert_eq!(answer.code, 422, "{}", answer.body);
    t.allowed("ed", &format!("{MAPS}/deep"));
}

/// Managers of fields: with a name that each conflict would repeat, and as many as a body has room for.
pub(super) fn managers_that_grow(t: &Target) {
    let map = |name: &str, managers: Vec<Value>| json!({ "metadata": { "name": name, "managedFields": managers } });
    let owner = |name: &str, field: String| {
        json!({ "manager": name, "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
            "fieldsV1": { "f:metadata": { "f:labels": { format!("f:{field}"): {} } } } })
    };
    let kind = [("Content-Type", JSON)];
    let line = format!("POST {MAPS}");
    let long = map("long", vec![owner(&"m".repeat(1 << 20), "a".to_owned())]);
    let answer = t.send("ed", &line, &kind, &long.to_string());
    assert_eq!(answer.code, 422, "{} bytes", answer.body.len());
    let wanted = "metadata.managedFields[0].manager: Too long: may not be more than 128 bytes";
    assert!(answer.body.contains(wanted), "{}", answer.body);

    let managers = (0..12_000).map(|n| owner(&format!("m{n}"), format!("l{n}")));
    let body = map("many", managers.collect()).to_string();
    let begun = Instant::now();
    let answer = t.send("ed", &line, &kind, &body);
    assert_eq!(answer.code, 201, "{} bytes", answer.body.len());
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
}

/// As many finalizers as a body has room for, each of which a deletion looked for among all others.
pub(super) fn finalizers_that_multiply(t: &Target) {
    let finalizers: Vec<String> = (0..150_000).map(|n| format!("a.b/{n}")).collect();
    let map = json!({ "metadata": { "name": "held", "finalizers": finalizers } }).to_string();
    let kind = [("Content-Type", JSON)];
    let answer = t.send("ed", &format!("POST {MAPS}"), &kind, &map);
    assert_eq!(answer.code, 201, "{} bytes", answer.body.len());
    let begun = Instant::now();
    let answer = t.send("ed", &format!("DELETE {MAPS}/held"), &[], "");
    assert_eq!(answer.code, 200, "{} bytes", answer.body.len());
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    let release = json!({ "metadata": { "finalizers": null } });
    t.write(&format!("PATCH {MAPS}/held"), &release);
}

/// What holds a namespace that is being deleted is in its status, which had no room for so much.
pub(super) fn finalizers_that_nobody_is_told(t: &Target) {
    let namespace = "/api/v1/namespaces/crowded";
    let named = json!({ "metadata": { "name": "crowded" } });
    t.write("POST /api/v1/namespaces", &named);
    let names = ["a", "b", "c"];
    for name in names {
        let held = (0..50_000).map(|n| format!("{name}.example.com/{n}"));
        let held = json!({ "metadata": { "name": name, "finalizers": held.collect::<Vec<_>>() } });
        t.write(&format!("POST {namespace}/configmaps"), &held);
    }
    t.delete(&format!("DELETE {namespace}"));
    t.eventually("root", namespace, "SomeFinalizersRemain");
    for name in names {
        let release = json!({ "metadata": { "finalizers": null } });
        t.write(&format!("PATCH {namespace}/configmaps/{name}"), &release);
    }
}

/// Bodies of a million values, most of which say nothing: what they are made of took gigabytes and half a minute, until it
/// was refused; and an apply was told of each that it is not one.
pub(super) fn values_that_say_nothing(t: &Target) {
    let nothing = vec!["{}"; 900_000].join(",");
    let pods = "/api/v1/namespaces/foo/pods";
    let apply = format!("PATCH {pods}/p?fieldManager=ed");
    let map = format!("PATCH {MAPS}/deep");
    let pod = |nothing: &str| {
        format!(
            "{{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{{\"name\":\"p\"}},\"spec\":{{\"containers\":[{nothing}]}}}}"
        )
    };
    let begun = Instant::now();
    for (line, kind, body) in [
        (&format!("POST {pods}"), JSON, pod(&nothing)),
        (&format!("POST {pods}"), JSON, pod(&nothing[..300_000 - 1])),
        (&apply, "application/apply-patch+yaml", pod(&nothing)),
        (&map, super::MERGE, pod(&nothing)),
        (&map, "application/json-patch+json", format!("[{nothing}]")),
    ] {
        let answer = t.send("ed", line, &[("Content-Type", kind)], &body);
        assert_eq!(answer.code, 413, "{line} ({kind}): {}", answer.body);
    }
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    let kind = [("Content-Type", "application/apply-patch+yaml")];
    let answer = t.send("ed", &apply, &kind, &pod(&nothing[..300_000 - 1]));
    assert!(answer.body.len() < 100_000, "{} bytes", answer.body.len());
    let keys = (0..200_000).map(|n| (format!("{n}"), json!("")));
    let keys = keys.collect::<serde_json::Map<_, _>>();
    t.write(
        &format!("POST {MAPS}"),
        &json!({ "metadata": { "name": "keys" }, "data": keys }),
    );
    t.write(
        &format!("PATCH {MAPS}/keys"),
        &json!({ "data": { "one": "more" } }),
    );
    t.delete(&format!("DELETE {MAPS}/keys"));
}

/// Each bad character of a name is a fault that shows the name.
pub(super) fn names_that_multiply(t: &Target) {
    let line = format!("POST {MAPS}?fieldManager={}", "%01".repeat(10_000));
    let kind = [("Content-Type", JSON)];
    let body = json!({ "metadata": { "name": "named" } }).to_string();
    let answer = t.send("ed", &line, &kind, &body);
    assert_eq!(answer.code, 422, "{} bytes", answer.body.len());
    assert!(answer.body.len() < 10_000, "{} bytes", answer.body.len());
}

/// An object with as many labels as it has room for, and selectors with as many conditions or values as a path has: each object
/// was asked for each of them, while others waited.
pub(super) fn selectors_that_multiply(t: &Target) {
    let labels = (0..60_000).map(|n| (format!("l{n}"), json!("")));
    let labels = labels.collect::<serde_json::Map<_, _>>();
    let map = json!({ "metadata": { "name": "labelled", "labels": labels } }).to_string();
    let kind = [("Content-Type", JSON)];
    let answer = t.send("ed", &format!("POST {MAPS}"), &kind, &map);
    assert_eq!(answer.code, 201, "{} bytes", answer.body.len());
    let conditions = |count: usize| {
        let conditions: Vec<String> = (0..count).map(|n| format!("!m{n}")).collect();
        format!("{MAPS}?labelSelector={}", conditions.join(","))
    };
    let values: Vec<String> = (0..9_000).map(|n| format!("v{n}")).collect();
    let values = format!("{MAPS}?labelSelector=a%20notin%20({})", values.join(","));
    let begun = Instant::now();
    t.allowed("ed", &conditions(1000));
    t.allowed("ed", &values);
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    for verb in ["GET", "DELETE"] {
        t.refused("ed", &format!("{verb} {}", conditions(1001)), &Value::Null);
    }
    t.allowed("ed", &format!("{MAPS}/labelled"));
}
