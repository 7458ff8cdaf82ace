//! The restart rule action `RestartAllContainers`, through the whole agent.

use super::*;
use std::collections::BTreeMap;

/// Statuses of all containers by name, when `done` holds for each of them.
fn statuses(pod: &Value, done: impl Fn(&Value) -> bool) -> Option<BTreeMap<String, Value>> {
    let lists = ["initContainerStatuses", "containerStatuses"];
    let all: Vec<&Value> = lists
        .iter()
        .filter_map(|l| pod["status"][l].as_array())
        .flatten()
        .collect();
    let named = |s: &&Value| (s["name"].as_str().unwrap().to_owned(), (*s).clone());
    (all.len() == 4 && all.iter().all(|s| done(s))).then(|| all.iter().map(named).collect())
}

fn spec() -> Value {
    let rule = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]);
    let mut side = container("side", "sleep");
    side["restartPolicy"] = json!("Always");
    let mut source = container("source", "sleep");
    source["restartPolicy"] = json!("Never");
    source["restartPolicyRules"] = rule;
    json!({"restartPolicy": "Never", "initContainers": [container("init", "true"), side],
        "containers": [source, container("other", "sleep")]})
}

fn id_of(node: &Node, name: &str) -> Option<String> {
    let running = node.runtime.running();
    let found = running
        .iter()
        .find(|(_, c)| c.config.metadata.as_ref().unwrap().name == name);
    found.map(|(id, _)| id.clone())
}

#[tokio::test]
async fn one_end_makes_all_begin_anew_in_the_same_sandbox() {
    let mut node = Node::start().await;
    let status = node.api.get("/api/v1/nodes/n1").unwrap()["status"].clone();
    let declared = status["declaredFeatures"].as_array().unwrap();
    assert!(declared.contains(&json!("RestartAllContainersOnContainerExits")));
    let path = node.pod("a", spec());
    node.phase(&path, "Running").await;
    for round in 1..=2 {
        let source = wait("source runs", || id_of(&node, "source")).await;
        wait("other runs", || id_of(&node, "other")).await;
        node.runtime.exit(&source, 42);
        let api = node.api.clone();
        let all = wait("all have been restarted", || {
            let pod = api.get(&path)?;
            assert_ne!(pod["status"]["phase"], "Failed");
            let again = |s: &Value| {
                let runs = s["state"]["running"].is_object() || s["name"] == "init";
                s["restartCount"] == round && runs
            };
            statuses(&pod, again)
        })
        .await;
        let last = |name: &str| all[name]["lastState"]["terminated"].clone();
        assert_eq!(last("source")["exitCode"], 42);
        assert_eq!(last("init")["exitCode"], 0);
        for name in ["other", "side"] {
            assert_eq!(last(name)["reason"], "RestartingAllContainers");
            assert_eq!(last(name)["exitCode"], 137);
        }
        let pod = api.get(&path).unwrap();
        assert!(condition(&pod, "AllContainersRestarting").is_none());
        let conditions = pod["status"]["conditions"].as_array().unwrap();
        let told = conditions
            .iter()
            .any(|c| c["type"] == "AllContainersRestarting");
        assert!(told, "{conditions:?}");
    }
    let calls = node.runtime.calls();
    let sandboxes = calls
        .iter()
        .filter(|c| c.starts_with("run_pod_sandbox"))
        .count();
    assert_eq!(sandboxes, 1, "{calls:?}");
    // Another exit code is the end of the container.
    let source = wait("source runs", || id_of(&node, "source")).await;
    node.runtime.exit(&source, 1);
    let api = node.api.clone();
    wait("source has ended", || {
        let pod = api.get(&path)?;
        let status = &pod["status"]["containerStatuses"][0];
        (status["state"]["terminated"]["exitCode"] == 1).then_some(())
    })
    .await;
    assert!(id_of(&node, "other").is_some());
    node.stop().await;
}

/// The agent that takes over goes on with it, and counts no restart twice.
#[tokio::test]
async fn it_is_finished_by_the_next_agent() {
    let mut node = Node::start().await;
    let path = node.pod("a", spec());
    node.phase(&path, "Running").await;
    let source = wait("source runs", || id_of(&node, "source")).await;
    wait("other runs", || id_of(&node, "other")).await;
    node.stop().await;
    node.runtime.exit(&source, 42);
    node.run();
    let api = node.api.clone();
    wait("all have been restarted", || {
        let pod = api.get(&path)?;
        statuses(&pod, |s| {
            s["restartCount"] == 1 && (s["state"]["running"].is_object() || s["name"] == "init")
        })
    })
    .await;
    node.stop().await;
}
