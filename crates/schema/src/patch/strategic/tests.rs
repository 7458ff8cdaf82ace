use davit_api::kinds::builtin;
use proptest::prelude::*;
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

use super::*;

fn patch(kind: &str, document: Value, patch: Value) -> Result<Value, PatchError> {
    let types = &builtin().types;
    strategic_merge_patch(types, types.id(kind).unwrap(), document, patch)
}

fn pod(document: Value, change: Value) -> Value {
    patch("core/v1.PodSpec", document, change).unwrap()
}

#[test]
fn lists_of_objects_merge_by_key() {
    assert_eq!(
        pod(
            json!({"containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "y"}]}),
            json!({"containers": [{"name": "b", "image": "z"}, {"name": "c", "image": "n"}]}),
        ),
        json!({"containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "z"},
            {"name": "c", "image": "n"}]})
    );
    assert_eq!(
        pod(
            json!({"containers": [{"name": "a"}, {"name": "b"}]}),
            json!({"containers": [{"name": "a", "$patch": "delete"}]}),
        ),
        json!({"containers": [{"name": "b"}]})
    );
    assert_eq!(
        pod(
            json!({"containers": [{"name": "a"}, {"name": "b"}]}),
            json!({"containers": [{"$patch": "replace"}, {"name": "c"}]}),
        ),
        json!({"containers": [{"name": "c"}]})
    );
    // two of one key are two
    let two = json!([{"name": "c", "image": "a"}, {"name": "c", "image": "b"}]);
    let patch = json!({"containers": [two[0], two[1], {"$patch": "replace"}]});
    let found = pod(json!({"containers": [{"name": "c", "image": "a"}]}), patch);
    assert_eq!(found, json!({"containers": two}));
    // where nothing was there is nothing to replace
    assert_eq!(
        pod(
            json!({}),
            json!({"containers": [{"$patch": "replace"}, {"name": "c"}], "os": {"$patch": "replace"}}),
        ),
        json!({"containers": [{"name": "c"}]})
    );
}

#[test]
fn lists_without_strategy_are_replaced() {
    assert_eq!(
        pod(
            json!({"containers": [{"name": "a", "args": ["1", "2"]}], "tolerations": [{"key": "a"}]}),
            json!({"containers": [{"name": "a", "args": ["3"]}], "tolerations": [{"key": "b"}]}),
        ),
        json!({"containers": [{"name": "a", "args": ["3"]}], "tolerations": [{"key": "b"}]})
    );
}

#[test]
fn lists_of_scalars_merge_and_shrink() {
    let meta = |d, p| patch("meta/v1.ObjectMeta", d, p).unwrap();
    assert_eq!(
        meta(
            json!({"finalizers": ["a", "b"]}),
            json!({"finalizers": ["c", "b"]})
        ),
        json!({"finalizers": ["c", "a", "b"]})
    );
    assert_eq!(
        meta(
            json!({"finalizers": ["a", "b", "c"]}),
            json!({"$deleteFromPrimitiveList/finalizers": ["b"]}),
        ),
        json!({"finalizers": ["a", "c"]})
    );
    assert_eq!(
        meta(
            json!({}),
            json!({"$deleteFromPrimitiveList/finalizers": ["b"]})
        ),
        json!({})
    );
    assert_eq!(
        meta(
            json!({"finalizers": ["a", "b", "c"]}),
            json!({"$setElementOrder/finalizers": ["d", "c", "a"], "finalizers": ["d"],
                "$deleteFromPrimitiveList/finalizers": ["b"]}),
        ),
        json!({"finalizers": ["d", "c", "a"]})
    );
}

#[test]
fn order_of_objects() {
    assert_eq!(
        pod(
            json!({"containers": [{"name": "a"}, {"name": "b"}, {"name": "s"}]}),
            json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "c"}, {"name": "a"}],
                "containers": [{"name": "c", "image": "n"}]}),
        ),
        json!({"containers": [{"name": "b"}, {"name": "c", "image": "n"}, {"name": "a"}, {"name": "s"}]})
    );
    let error = patch(
        "core/v1.PodSpec",
        json!({"containers": []}),
        json!({"$setElementOrder/containers": [{"name": "a"}], "containers": [{"name": "b"}]}),
    )
    .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("doesn't match $setElementOrder list")
    );
}

#[test]
fn maps_nulls_and_directives() {
    let meta = |d, p| patch("meta/v1.ObjectMeta", d, p).unwrap();
    assert_eq!(
        meta(
            json!({"labels": {"a": "1", "b": "2"}}),
            json!({"labels": {"a": null, "c": "3", "x": null}}),
        ),
        json!({"labels": {"b": "2", "c": "3"}})
    );
    assert_eq!(
        meta(
            json!({"labels": {"a": "1"}}),
            json!({"labels": {"$patch": "replace", "b": "2"}}),
        ),
        json!({"labels": {"b": "2"}})
    );
    assert_eq!(
        meta(
            json!({"labels": {"a": "1"}}),
            json!({"labels": {"$patch": "delete"}})
        ),
        json!({"labels": {}})
    );
    assert_eq!(
        meta(json!({}), json!({"labels": {"a": "1", "b": null}})),
        json!({"labels": {"a": "1"}})
    );
}

#[test]
fn retained_keys() {
    let strategy = |d, p| patch("apps/v1.DeploymentSpec", d, p);
    assert_eq!(
        strategy(
            json!({"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}),
            json!({"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}),
        )
        .unwrap(),
        json!({"strategy": {"type": "Recreate"}})
    );
    let error = strategy(
        json!({"strategy": {}}),
        json!({"strategy": {"$retainKeys": ["rollingUpdate"], "type": "Recreate"}}),
    )
    .unwrap_err();
    assert_eq!(error, malformed("invalid patch format of retainKeys"));
    assert_eq!(
        pod(
            json!({"volumes": [{"name": "v", "emptyDir": {}}]}),
            json!({"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"],
                "hostPath": {"path": "/x"}}]}),
        ),
        json!({"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]})
    );
}

#[test]
fn replaced_structs() {
    assert_eq!(
        patch(
            "policy/v1.PodDisruptionBudgetSpec",
            json!({"selector": {"matchLabels": {"a": "b"}}}),
            json!({"selector": {"matchLabels": {"c": "d"}}}),
        )
        .unwrap(),
        json!({"selector": {"matchLabels": {"c": "d"}}})
    );
}

#[test]
fn refusals() {
    for (document, change, text) in [
        (
            json!({"containers": [{"name": "a"}]}),
            json!({"containers": [{"image": "x"}]}),
            "map: {\"image\":\"x\"} does not contain declared merge key: name",
        ),
        (
            json!({"securityContext": {"runAsUser": 1}}),
            json!({"securityContext": {"$patch": "explode"}}),
            "unknown patch type: explode in map: {}",
        ),
        (
            json!({"containers": [{"name": "a"}]}),
            json!({"containers": [{"name": "a", "$patch": "merge"}]}),
            "merging lists cannot yet be specified in the patch",
        ),
        (
            json!({"containers": []}),
            json!({"containers": [[1]]}),
            "lists of lists are not supported",
        ),
        (
            json!({}),
            json!({"$setElementOrder/containers": {}}),
            "invalid patch format of setElementOrder list",
        ),
        (
            json!({}),
            json!({"$setElementOrder/bogus": []}),
            "unable to find api field in struct PodSpec for the json field \"bogus\"",
        ),
    ] {
        let error = patch("core/v1.PodSpec", document, change).unwrap_err();
        assert_eq!(error.to_string(), text);
    }
    assert!(patch("core/v1.PodSpec", json!({}), json!([])).is_err());
}

fn containers() -> impl Strategy<Value = Value> {
    let container = (
        "[a-e]",
        proptest::option::of("[x-z]"),
        proptest::collection::vec("[p-r]", 0..2),
    )
        .prop_map(|(name, image, args)| {
            let mut c = json!({"name": name});
            if let Some(image) = image {
                c["image"] = json!(image);
            }
            if !args.is_empty() {
                c["args"] = json!(args);
            }
            c
        });
    proptest::collection::vec(container, 0..5).prop_map(|list| {
        let mut seen = HashSet::new();
        let unique: Vec<Value> = list
            .into_iter()
            .filter(|c| seen.insert(c["name"].to_string()))
            .collect();
        json!({"containers": unique})
    })
}

/// Each element was compared with each: lists of five thousand took seconds, and of a hundred thousand hours.
#[test]
fn lists_that_merge_cost_their_length() {
    const MANY: u32 = 100_000;
    let names = |from: u32, word: &str| -> Vec<Value> {
        (from..from + MANY)
            .map(|n| json!({ "name": n.to_string(), word: word }))
            .collect()
    };
    let merged = |change: Value| {
        let document = json!({"containers": names(0, "image")});
        let merged = patch("core/v1.PodSpec", document, change).unwrap();
        merged["containers"].as_array().map_or(0, Vec::len)
    };
    let many = MANY as usize;
    // Of this thread: what else the machine does is no cost of ours.
    let spent = || clock_gettime(ClockId::ThreadCPUTime);
    let begun = spent();
    assert_eq!(
        merged(json!({"containers": names(MANY, "image")})),
        2 * many
    );
    assert_eq!(merged(json!({"containers": names(0, "command")})), many);
    let order =
        json!({"$setElementOrder/containers": names(0, "image"), "containers": names(0, "image")});
    assert_eq!(merged(order), many);
    let mut gone = names(0, "image");
    gone.iter_mut()
        .for_each(|element| element["$patch"] = json!("delete"));
    assert_eq!(merged(json!({"containers": gone})), 0);
    let words =
        |from: u32| -> Vec<Value> { (from..from + MANY).map(|n| json!(n.to_string())).collect() };
    let document = || json!({"finalizers": words(0)});
    let added = patch(
        "meta/v1.ObjectMeta",
        document(),
        json!({"finalizers": words(MANY)}),
    )
    .unwrap();
    assert_eq!(added["finalizers"].as_array().map(Vec::len), Some(2 * many));
    let gone = json!({"$deleteFromPrimitiveList/finalizers": words(0)});
    let left = patch("meta/v1.ObjectMeta", document(), gone).unwrap();
    assert_eq!(left, json!({"finalizers": []}));
    let spent = spent() - begun;
    assert!(spent.tv_sec < 60, "{spent:?}");
}

proptest! {
    #[test]
    fn applying_twice_is_applying_once(document in containers(), change in containers()) {
        let once = patch("core/v1.PodSpec", document, change.clone()).unwrap();
        let twice = patch("core/v1.PodSpec", once.clone(), change).unwrap();
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn the_empty_patch_changes_nothing(document in containers()) {
        prop_assert_eq!(patch("core/v1.PodSpec", document.clone(), json!({})).unwrap(), document);
    }

    #[test]
    fn elements_stay_unique_and_none_is_lost(document in containers(), change in containers()) {
        let names = |v: &Value| -> Vec<String> {
            v["containers"].as_array().unwrap().iter().map(|c| c["name"].to_string()).collect()
        };
        let (before, named) = (names(&document), names(&change));
        let after = names(&patch("core/v1.PodSpec", document, change).unwrap());
        let set: HashSet<&String> = after.iter().collect();
        prop_assert_eq!(set.len(), after.len());
        let all: HashSet<&String> = before.iter().chain(&named).collect();
        prop_assert_eq!(set, all);
        // What the patch names stands in the patch's order.
        let kept: Vec<&String> = after.iter().filter(|n| named.contains(n)).collect();
        prop_assert_eq!(kept, named.iter().collect::<Vec<_>>());
    }
}
