use davit_api::kinds;
use serde_json::Value;

use super::*;

const VERSION: &str = "v1.36.0";

fn v3(group: &str, version: &str) -> Value {
    let bytes = v3_json(kinds::builtin(), group, version, VERSION).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

fn v2() -> Value {
    serde_json::from_slice(&v2_json(kinds::builtin(), &[], &[], VERSION)).unwrap()
}

/// Every `$ref` below a value.
fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                match value.as_str() {
                    Some(reference) if key == "$ref" => found.push(reference),
                    _ => references(value, found),
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|v| references(v, found)),
        _ => {}
    }
}

#[test]
fn every_row_has_a_definition_and_no_reference_dangles() {
    let table = kinds::builtin();
    let paths = v3_paths(table);
    assert!(paths.contains(&"api/v1".to_owned()) && paths.contains(&"apis/apps/v1".to_owned()));
    let served: BTreeSet<(&str, &str)> = table
        .resources
        .iter()
        .map(|r| (r.group, r.version))
        .collect();
    for (group, version) in served {
        let doc = v3(group, version);
        for row in table
            .resources
            .iter()
            .filter(|r| (r.group, r.version) == (group, version))
        {
            let name = definition_name(&table.types.get(row.type_id).name);
            let schema = &doc["components"]["schemas"][&name];
            let kinds = schema["x-kubernetes-group-version-kind"]
                .as_array()
                .unwrap();
            assert!(
                kinds.contains(&Gvk::new(group, version, row.kind).to_json()),
                "{name}"
            );
        }
        let mut found = Vec::new();
        references(&doc, &mut found);
        for reference in found {
            let name = reference.strip_prefix("#/components/schemas/").unwrap();
            assert!(!doc["components"]["schemas"][name].is_null(), "{reference}");
        }
    }
    assert!(v3_json(table, "example.com", "v1", VERSION).is_none());
}

#[test]
fn the_second_version_is_complete() {
    let doc = v2();
    let mut found = Vec::new();
    references(&doc, &mut found);
    assert!(found.len() > 1000);
    for reference in found {
        let name = reference.strip_prefix("#/definitions/").unwrap();
        assert!(!doc["definitions"][name].is_null(), "{reference}");
    }
    for name in [
        "io.k8s.api.apps.v1.DeploymentList",
        "io.k8s.api.policy.v1.Eviction",
    ] {
        assert!(doc["definitions"][name].is_object(), "{name}");
    }
}

#[test]
fn what_apply_and_explain_need_is_there() {
    let doc = v3("", "v1");
    let schemas = &doc["components"]["schemas"];
    let spec = &schemas["io.k8s.api.core.v1.PodSpec"]["properties"];
    assert_eq!(spec["containers"]["x-kubernetes-patch-merge-key"], "name");
    assert_eq!(spec["containers"]["x-kubernetes-patch-strategy"], "merge");
    assert_eq!(
        spec["volumes"]["x-kubernetes-patch-strategy"],
        "merge,retainKeys"
    );
    assert_eq!(spec["containers"]["x-kubernetes-list-map-keys"][0], "name");
    let port = &schemas["io.k8s.api.core.v1.ContainerPort"];
    assert_eq!(port["properties"]["protocol"]["default"], "TCP");
    assert_eq!(port["required"][0], "containerPort");
    assert_eq!(port["properties"]["containerPort"]["default"], 0);
    assert_eq!(spec["nodeName"].get("default"), None);
    assert_eq!(spec["containers"]["items"]["default"], json!({}));
    let container = "#/components/schemas/io.k8s.api.core.v1.Container";
    assert_eq!(spec["containers"]["items"]["allOf"][0]["$ref"], container);
    assert_eq!(spec["nodeSelector"]["x-kubernetes-map-type"], "atomic");
    let selector = &schemas["io.k8s.api.core.v1.SecretKeySelector"];
    assert_eq!(selector["x-kubernetes-map-type"], "atomic");

    let patch = &doc["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"]["patch"];
    assert_eq!(patch["x-kubernetes-action"], "patch");
    assert_eq!(patch["x-kubernetes-group-version-kind"]["kind"], "Pod");
    let types = patch["requestBody"]["content"].as_object().unwrap();
    assert!(types.contains_key("application/strategic-merge-patch+json"));
    let parameters = patch["parameters"].as_array().unwrap();
    assert!(parameters.iter().any(|p| p["name"] == "fieldValidation"));
    insta::assert_json_snapshot!(schemas["io.k8s.api.core.v1.ContainerPort"]);
    insta::assert_json_snapshot!(
        doc["paths"]["/api/v1/namespaces/{namespace}/pods/{name}/binding"]
    );
}

#[test]
fn log_is_text_and_scale_is_a_scale() {
    let core = v3("", "v1");
    let log = &core["paths"]["/api/v1/namespaces/{namespace}/pods/{name}/log"]["get"];
    assert!(log["responses"]["200"]["content"]["text/plain"].is_object());
    let apps = v3("apps", "v1");
    let scale =
        &apps["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale"]["patch"];
    assert_eq!(
        scale["x-kubernetes-group-version-kind"]["group"],
        "autoscaling"
    );
}

/// A protobuf message taken apart: field numbers and contents.
fn fields(mut message: &[u8]) -> Vec<(u64, Vec<u8>)> {
    fn varint(message: &mut &[u8]) -> u64 {
        let mut n = 0;
        for shift in (0..).step_by(7) {
            let byte = message[0];
            *message = &message[1..];
            n |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        n
    }
    let mut all = Vec::new();
    while !message.is_empty() {
        let tag = varint(&mut message);
        let content = match tag & 7 {
            0 => varint(&mut message).to_le_bytes().to_vec(),
            1 => {
                let (head, tail) = message.split_at(8);
                message = tail;
                head.to_vec()
            }
            2 => {
                let (head, tail) = {
                    let len = varint(&mut message) as usize;
                    message.split_at(len)
                };
                message = tail;
                head.to_vec()
            }
            wire => panic!("wire type {wire}"),
        };
        all.push((tag >> 3, content));
    }
    all
}

fn one(message: &[u8], number: u64) -> Vec<u8> {
    let found = fields(message).into_iter().find(|(n, _)| *n == number);
    found.unwrap_or_else(|| panic!("no field {number}")).1
}

/// The value of the entry `name` in a message of `Named…` messages.
fn entry(message: &[u8], number: u64, name: &str) -> Vec<u8> {
    fields(message)
        .into_iter()
        .filter(|(n, _)| *n == number)
        .find(|(_, m)| one(m, 1) == name.as_bytes())
        .map_or_else(|| panic!("no entry {name}"), |(_, m)| one(&m, 2))
}

#[test]
fn the_protobuf_form_decodes_to_the_same() {
    let bytes = v2_protobuf(kinds::builtin(), &[], &[], VERSION);
    let json = v2();
    assert_eq!(one(&bytes, 1), b"2.0");
    let definitions = one(&bytes, 9);
    let names: Vec<String> = fields(&definitions)
        .iter()
        .map(|(_, m)| String::from_utf8(one(m, 1)).unwrap())
        .collect();
    let mut expected: Vec<String> = json["definitions"]
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect();
    let mut sorted = names.clone();
    sorted.sort();
    expected.sort();
    assert_eq!(sorted, expected);

    let spec = entry(&definitions, 1, "io.k8s.api.core.v1.PodSpec");
    assert_eq!(one(&one(&spec, 22), 1), b"object");
    let containers = entry(&one(&spec, 25), 1, "containers");
    assert_eq!(one(&one(&containers, 22), 1), b"array");
    let items = one(&one(&containers, 23), 1);
    assert_eq!(
        one(&items, 1),
        b"#/definitions/io.k8s.api.core.v1.Container"
    );
    let key = entry(&containers, 31, "x-kubernetes-patch-merge-key");
    assert_eq!(one(&key, 2), b"\"name\"\n");

    let pods = entry(
        &one(&bytes, 8),
        2,
        "/api/v1/namespaces/{namespace}/pods/{name}",
    );
    let patch = one(&pods, 8);
    let gvk = entry(&patch, 13, "x-kubernetes-group-version-kind");
    let gvk: Value = serde_json::from_slice(&one(&gvk, 2)).unwrap();
    assert_eq!(gvk["kind"], "Pod");
    let validates = fields(&patch)
        .iter()
        .filter(|(n, _)| *n == 8)
        .any(|(_, p)| {
            let parameter = one(p, 1);
            fields(&parameter).first().is_some_and(|(kind, sub)| {
                *kind == 2 && fields(sub)[0].0 == 3 && one(&one(sub, 3), 4) == b"fieldValidation"
            })
        });
    assert!(validates);
}

#[test]
fn operations_are_named_as_generated_clients_know_them() {
    let ids = |group: &str, version: &str| -> Vec<String> {
        let document = v3(group, version);
        let items = document["paths"].as_object().unwrap().values();
        let operations = items.flat_map(|item| item.as_object().unwrap().values());
        let ids = operations.filter_map(|operation| operation["operationId"].as_str());
        ids.map(str::to_owned).collect()
    };
    let core = ids("", "v1");
    for id in [
        "listCoreV1PodForAllNamespaces",
        "listCoreV1NamespacedPod",
        "deleteCoreV1CollectionNamespacedPod",
        "connectCoreV1GetNamespacedPodProxy",
        "connectCoreV1GetNamespacedPodProxyWithPath",
        "createCoreV1NamespacedPodBinding",
    ] {
        assert!(core.iter().any(|known| known == id), "{id}");
    }
    let unique: BTreeSet<&String> = core.iter().collect();
    assert_eq!(unique.len(), core.len(), "no id stands twice");
    let roles = ids("rbac.authorization.k8s.io", "v1");
    assert!(
        roles
            .iter()
            .any(|id| id == "readRbacAuthorizationV1ClusterRole")
    );
}

#[test]
fn generators_find_the_parameters_of_connections_and_what_deletions_answer() {
    let (second, third) = (v2(), v3("", "v1"));
    let pods = "/api/v1/namespaces/{namespace}/pods";
    let named = |operation: &Value| -> BTreeSet<String> {
        let parameters = operation["parameters"].as_array().unwrap().iter();
        parameters
            .map(|p| p["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let exec = &second["paths"][format!("{pods}/{{name}}/exec")]["post"];
    let wanted = ["command", "container", "stderr", "stdin", "stdout", "tty"];
    assert_eq!(named(exec), wanted.map(str::to_owned).into());
    assert_eq!(exec["produces"], json!(["*/*"]));
    assert_eq!(
        exec["x-kubernetes-group-version-kind"]["kind"],
        "PodExecOptions"
    );
    let log = &third["paths"][format!("{pods}/{{name}}/log")]["get"];
    assert!(
        named(log).contains("tailLines")
            && log["responses"]["200"]["content"]["text/plain"].is_object()
    );
    let list = &second["paths"][pods]["get"]["produces"];
    assert!(
        list.as_array()
            .unwrap()
            .contains(&json!("application/json;stream=watch"))
    );
    let all = named(&second["paths"][pods]["delete"]);
    assert!(
        all.contains("labelSelector") && !all.contains("watch"),
        "{all:?}"
    );
    let answer = |path: &str| {
        second["paths"][path]["delete"]["responses"]["200"]["schema"]["$ref"].to_string()
    };
    assert!(answer(&format!("{pods}/{{name}}")).contains("core.v1.Pod"));
    assert!(answer("/api/v1/namespaces/{namespace}/configmaps/{name}").contains("meta.v1.Status"));
}
