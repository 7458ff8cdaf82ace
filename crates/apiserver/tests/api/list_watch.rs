//! Items 48–77: lists and watches.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cluster::*;

#[tokio::test]
async fn item_048_a_watch_from_a_lists_rv_misses_nothing() {
    let c = Cluster::new().await;
    c.config_map("a", &json!({})).await;
    let list = c.get(CONFIG_MAPS).await.ok(200);
    c.config_map("b", &json!({})).await;
    let url = format!(
        "{CONFIG_MAPS}?watch=1&timeoutSeconds=5&resourceVersion={}",
        rv(&list)
    );
    let mut events = c.watch(&url).await;
    assert_eq!(events.summary().await, ("ADDED".into(), "b".into()));
    c.config_map("c", &json!({})).await;
    assert_eq!(events.summary().await, ("ADDED".into(), "c".into()));
}

#[tokio::test]
async fn item_049_rv_zero_ignores_the_limit() {
    let c = Cluster::new().await;
    for name in ["a", "b", "c"] {
        c.config_map(name, &json!({})).await;
    }
    let list = c
        .get(&format!("{CONFIG_MAPS}?resourceVersion=0&limit=1"))
        .await
        .ok(200);
    assert!(list["metadata"].get("continue").is_none());
}

#[tokio::test]
async fn item_050_and_056_list_options_are_checked() {
    let c = Cluster::new().await;
    for query in [
        "resourceVersionMatch=Exact",
        "resourceVersionMatch=Exact&resourceVersion=0",
        "resourceVersionMatch=Odd&resourceVersion=1",
        "sendInitialEvents=true",
        "resourceVersionMatch=Exact&resourceVersion=1&continue=x",
    ] {
        let status = c
            .get(&format!("{CONFIG_MAPS}?{query}"))
            .await
            .error(422, "Invalid");
        assert_eq!(status["details"]["kind"], "ListOptions", "{query}");
        assert_eq!(status["details"]["group"], "meta.k8s.io", "{query}");
    }
    let status = c
        .get(&format!("{CONFIG_MAPS}?continue=abc&resourceVersion=5"))
        .await;
    assert_eq!(
        status.error(400, "BadRequest")["message"],
        "specifying resource version is not allowed when using continue"
    );
    c.get(&format!("{CONFIG_MAPS}?continue=abc"))
        .await
        .error(400, "BadRequest");
    c.get(&format!("{CONFIG_MAPS}?labelSelector=a%3D%3D%3Db"))
        .await
        .error(400, "BadRequest");
}

#[tokio::test]
async fn item_051_exact_returns_the_old_snapshot() {
    let c = Cluster::new().await;
    let made = c.config_map("a", &json!({"v": "1"})).await;
    let old = rv(&made);
    c.patch(
        &format!("{CONFIG_MAPS}/a"),
        "merge",
        &json!({"data": {"v": "2"}}),
    )
    .await
    .ok(200);
    c.config_map("b", &json!({})).await;
    let url = format!("{CONFIG_MAPS}?resourceVersion={old}&resourceVersionMatch=Exact");
    let list = c.get(&url).await.ok(200);
    assert_eq!(rv(&list), old);
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    assert_eq!(list["items"][0]["data"]["v"], "1");
}

#[tokio::test]
async fn item_052_a_future_rv_times_out_with_its_cause() {
    let c = Cluster::new().await;
    let started = Instant::now();
    let status = c
        .get(&format!("{CONFIG_MAPS}?resourceVersion=1000000"))
        .await;
    let status = status.error(504, "Timeout");
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_eq!(
        status["details"]["causes"][0]["reason"],
        "ResourceVersionTooLarge"
    );
    let message = status["message"].as_str().unwrap();
    assert!(
        message.starts_with("Timeout: Too large resource version: 1000000"),
        "{message}"
    );
}

#[tokio::test]
async fn item_053_and_054_pages_show_one_snapshot() {
    let c = Cluster::new().await;
    for name in ["a", "b", "c"] {
        c.config_map(name, &json!({})).await;
    }
    let first = c.get(&format!("{CONFIG_MAPS}?limit=1")).await.ok(200);
    assert_eq!(first["metadata"]["remainingItemCount"], 2);
    c.config_map("bb", &json!({})).await;
    let mut names = vec![
        first["items"][0]["metadata"]["name"]
            .as_str()
            .unwrap()
            .to_owned(),
    ];
    let mut page = first.clone();
    while let Some(token) = page["metadata"]["continue"].as_str() {
        page = c
            .get(&format!("{CONFIG_MAPS}?limit=1&continue={token}"))
            .await
            .ok(200);
        assert_eq!(rv(&page), rv(&first));
        names.push(
            page["items"][0]["metadata"]["name"]
                .as_str()
                .unwrap()
                .to_owned(),
        );
    }
    assert_eq!(names, ["a", "b", "c"]);
    let selected = c
        .get(&format!("{CONFIG_MAPS}?limit=1&labelSelector=!x"))
        .await
        .ok(200);
    assert!(selected["metadata"]["continue"].is_string());
    assert!(selected["metadata"].get("remainingItemCount").is_none());
}

#[tokio::test]
async fn item_057_and_058_watches_start_with_what_exists_and_go_on_in_order() {
    let c = Cluster::new().await;
    c.config_map("a", &json!({})).await;
    let mut events = c
        .watch(&format!("{CONFIG_MAPS}?watch=true&timeoutSeconds=5"))
        .await;
    assert_eq!(events.summary().await, ("ADDED".into(), "a".into()));
    c.patch(
        &format!("{CONFIG_MAPS}/a"),
        "merge",
        &json!({"data": {"v": "2"}}),
    )
    .await
    .ok(200);
    c.delete(&format!("{CONFIG_MAPS}/a"), &Value::Null)
        .await
        .ok(200);
    let modified = events.next().await.unwrap();
    let deleted = events.next().await.unwrap();
    assert_eq!(modified["type"], "MODIFIED");
    assert_eq!(deleted["type"], "DELETED");
    // item 66: the last state, with a newer revision
    assert_eq!(deleted["object"]["data"]["v"], "2");
    assert!(rv(&deleted["object"]) > rv(&modified["object"]));
}

#[tokio::test]
async fn item_060_and_061_initial_events_end_with_a_bookmark() {
    let c = Cluster::new().await;
    c.config_map("a", &json!({})).await;
    let options = "watch=1&timeoutSeconds=5&allowWatchBookmarks=true&sendInitialEvents=true";
    let url = format!("{CONFIG_MAPS}?{options}&resourceVersionMatch=NotOlderThan");
    let mut events = c.watch(&url).await;
    assert_eq!(events.summary().await, ("ADDED".into(), "a".into()));
    let bookmark = events.next().await.unwrap();
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(bookmark["object"]["kind"], "ConfigMap");
    assert_eq!(
        bookmark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"],
        "true"
    );
    assert!(rv(&bookmark["object"]) > 0);
    for query in [
        options.to_owned(),
        "watch=1&resourceVersionMatch=NotOlderThan".to_owned(),
    ] {
        c.get(&format!("{CONFIG_MAPS}?{query}"))
            .await
            .error(422, "Invalid");
    }
}

#[tokio::test]
async fn item_059_a_compacted_rv_is_expired_inside_the_stream() {
    let c = Cluster::new().await;
    let made = c.config_map("a", &json!({})).await;
    let mut last = 0;
    for i in 0..5 {
        let patch = json!({"data": {"v": i.to_string()}});
        last = rv(&c
            .patch(&format!("{CONFIG_MAPS}/a"), "merge", &patch)
            .await
            .ok(200));
    }
    let store = c.store();
    store.compact(last).await.unwrap();
    let url = format!(
        "{CONFIG_MAPS}?watch=1&timeoutSeconds=5&resourceVersion={}",
        rv(&made)
    );
    let mut events = c.watch(&url).await;
    let event = events.next().await.unwrap();
    assert_eq!(event["type"], "ERROR", "{event}");
    assert_eq!(event["object"]["code"], 410);
    assert_eq!(event["object"]["reason"], "Expired");
    assert!(events.next().await.is_none());
    let old = format!(
        "{CONFIG_MAPS}?resourceVersion={}&resourceVersionMatch=Exact",
        rv(&made)
    );
    c.get(&old).await.error(410, "Expired");
}

#[tokio::test]
async fn item_064_a_watch_ends_cleanly_after_its_time() {
    let c = Cluster::new().await;
    let started = Instant::now();
    let mut events = c
        .watch(&format!("{CONFIG_MAPS}?watch=1&timeoutSeconds=1"))
        .await;
    assert!(events.next().await.is_none());
    assert!(started.elapsed() >= Duration::from_millis(900));
}

#[tokio::test]
async fn item_065_selected_watches_see_objects_come_and_go() {
    let c = Cluster::new().await;
    c.config_map("a", &json!({})).await;
    let url = format!("{CONFIG_MAPS}?watch=1&timeoutSeconds=5&labelSelector=on%3Dyes");
    let mut events = c.watch(&url).await;
    let label = |value: Value| json!({"metadata": {"labels": {"on": value}}});
    let one = format!("{CONFIG_MAPS}/a");
    c.patch(&one, "merge", &label(json!("yes"))).await.ok(200);
    assert_eq!(events.summary().await, ("ADDED".into(), "a".into()));
    c.patch(&one, "merge", &label(json!(null))).await.ok(200);
    assert_eq!(events.summary().await, ("DELETED".into(), "a".into()));
}

#[tokio::test]
async fn item_069_and_071_selectors_select() {
    let c = Cluster::new().await;
    c.service_account().await;
    for (name, tier) in [("a", "1"), ("b", "2"), ("c", "3")] {
        let mut pod = pod(name);
        pod["metadata"]["labels"]["tier"] = json!(tier);
        c.post(PODS, &pod).await.ok(201);
    }
    let names = async |query: &str| -> String {
        let list = c.get(&format!("{PODS}?{query}")).await.ok(200);
        let items = list["items"].as_array().unwrap().clone();
        items
            .iter()
            .map(|i| i["metadata"]["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names("fieldSelector=metadata.name%3Db").await, "b");
    assert_eq!(names("fieldSelector=spec.nodeName%3D").await, "abc");
    assert_eq!(
        names("fieldSelector=status.phase%3DPending,metadata.name!%3Da").await,
        "bc"
    );
    assert_eq!(names("labelSelector=tier+in+(1,3)").await, "ac");
    assert_eq!(names("labelSelector=tier+notin+(1)").await, "bc");
    assert_eq!(names("labelSelector=tier%3E1").await, "bc");
    assert_eq!(names("labelSelector=!tier").await, "");
    assert_eq!(names("labelSelector=app!%3Da,tier").await, "bc");
    let status = c
        .get(&format!("{PODS}?fieldSelector=spec.foo%3Dx"))
        .await
        .error(400, "BadRequest");
    assert_eq!(status["message"], "field label not supported: spec.foo");
}

#[tokio::test]
async fn item_072_table_watches_send_columns_once() {
    let c = Cluster::new().await;
    c.config_map("a", &json!({})).await;
    c.config_map("b", &json!({})).await;
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let url = format!("{CONFIG_MAPS}?watch=1&timeoutSeconds=5");
    let mut events = c.watch_as(&url, accept).await;
    let first = events.next().await.unwrap();
    let second = events.next().await.unwrap();
    assert_eq!(first["object"]["kind"], "Table");
    assert!(first["object"]["columnDefinitions"].is_array());
    assert!(second["object"]["columnDefinitions"].is_null());
    assert_eq!(second["object"]["rows"][0]["cells"][0], "b");
}

#[tokio::test]
async fn item_075_and_077_lists_show_acknowledged_writes_of_all_namespaces() {
    let c = Cluster::new().await;
    c.post(
        "/api/v1/namespaces",
        &json!({"metadata": {"name": "other"}}),
    )
    .await
    .ok(201);
    for i in 0..20 {
        let name = format!("m{i}");
        c.config_map(&name, &json!({})).await;
        let map = config_map(&name, &json!({}));
        c.post("/api/v1/namespaces/other/configmaps", &map)
            .await
            .ok(201);
        // The server keeps config maps of its own.
        let ours = |map: &&Value| map["metadata"]["name"].as_str().unwrap().starts_with('m');
        let count = |list: &Value| {
            list["items"]
                .as_array()
                .unwrap()
                .iter()
                .filter(ours)
                .count()
        };
        let own = c.get(CONFIG_MAPS).await.ok(200);
        let all = c.get("/api/v1/configmaps").await.ok(200);
        assert_eq!(count(&own), i + 1);
        assert_eq!(count(&all), 2 * (i + 1));
    }
}

#[tokio::test]
async fn item_076_partial_watches_keep_rv_and_bookmarks() {
    let c = Cluster::new().await;
    c.config_map("a", &json!({"a": "1"})).await;
    let accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let query = "watch=1&timeoutSeconds=5&allowWatchBookmarks=1&sendInitialEvents=1";
    let url = format!("{CONFIG_MAPS}?{query}&resourceVersionMatch=NotOlderThan");
    let mut events = c.watch_as(&url, accept).await;
    let added = events.next().await.unwrap();
    assert_eq!(added["object"]["kind"], "PartialObjectMetadata");
    assert!(added["object"].get("data").is_none() && rv(&added["object"]) > 0);
    let bookmark = events.next().await.unwrap();
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(bookmark["object"]["kind"], "PartialObjectMetadata");
}

#[tokio::test]
async fn item_063_an_idle_watch_gets_a_last_bookmark_before_it_ends() {
    let c = Cluster::new().await;
    let start = rv(&c.config_map("seen", &json!({})).await);
    // others write, and this watch hears nothing of it
    let elsewhere = json!({"metadata": {"name": "elsewhere"}});
    c.post("/api/v1/namespaces", &elsewhere).await.ok(201);
    let url = format!(
        "{CONFIG_MAPS}?watch=1&resourceVersion={start}&allowWatchBookmarks=true&timeoutSeconds=3"
    );
    let mut events = c.watch(&url).await;
    let bookmark = events.next().await.unwrap();
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(bookmark["object"]["kind"], "ConfigMap");
    assert!(rv(&bookmark["object"]) > start, "{bookmark}");
    assert!(bookmark["object"].get("data").is_none());
    assert!(events.next().await.is_none(), "the end comes after it");
    // who does not ask gets none
    let url = format!("{CONFIG_MAPS}?watch=1&resourceVersion={start}&timeoutSeconds=3");
    let mut events = c.watch(&url).await;
    assert!(events.next().await.is_none());
}

/// Each object is asked for each condition, while others wait; values cost next to nothing.
#[tokio::test]
async fn selectors_have_an_end() {
    let c = Cluster::new().await;
    c.config_map("a", &json!({})).await;
    let many = |count: usize| -> String {
        let conditions: Vec<String> = (0..count).map(|n| format!("!l{n}")).collect();
        conditions.join(",")
    };
    let ask = async |query: String| c.get(&format!("{CONFIG_MAPS}?{query}")).await;
    ask(format!("labelSelector={}", many(1000))).await.ok(200);
    let fields = vec!["metadata.name!=b"; 1001].join(",");
    for query in [
        format!("labelSelector={}", many(1001)),
        format!("labelSelector={}&watch=1", many(1001)),
        format!("fieldSelector={}", fields.replace('=', "%3D")),
    ] {
        ask(query).await.error(400, "BadRequest");
    }
    let values: Vec<String> = (0..9_000).map(|n| format!("v{n}")).collect();
    let query = format!("labelSelector=a%20notin%20({})", values.join(","));
    let list = ask(query).await.ok(200);
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
}
