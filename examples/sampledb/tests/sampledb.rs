//! The files that users apply are what they say. The whole story is `tests/sampledb.rs` of the repository; a test of the same
//! name here has cargo build the program for it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Pod, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::process::Command;

fn documents(file: &str) -> Vec<Value> {
    let path = format!("{}/deploy/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    let documents = text.split("\n---\n");
    documents
        .map(|text| serde_saphyr::from_str(text).unwrap())
        .collect()
}

/// Fails when the object has a field that its kind has not.
fn whole<K: DeserializeOwned + Serialize>(object: &Value) {
    let typed: K = serde_json::from_value(object.clone()).unwrap();
    let again = serde_json::to_value(&typed).unwrap();
    contains(&again, object, "");
}

fn contains(all: &Value, part: &Value, path: &str) {
    match (all, part) {
        (Value::Object(all), Value::Object(part)) => {
            for (name, value) in part {
                let path = format!("{path}.{name}");
                contains(
                    all.get(name)
                        .unwrap_or_else(|| panic!("{path} is no field")),
                    value,
                    &path,
                );
            }
        }
        (Value::Array(all), Value::Array(part)) => {
            for (all, part) in all.iter().zip(part) {
                contains(all, part, path);
            }
        }
        // what is 1 in a file may be 1.0 in a type
        (Value::Number(all), Value::Number(part)) => {
            assert_eq!(all.as_f64(), part.as_f64(), "{path}");
        }
        _ => assert_eq!(all, part, "{path}"),
    }
}

#[test]
fn manifests_have_no_field_that_is_not_there() {
    for file in ["crd.yaml", "operator.yaml", "shop.yaml"] {
        for object in documents(file) {
            match object["kind"].as_str().unwrap() {
                "Namespace" => whole::<Namespace>(&object),
                "ServiceAccount" => whole::<ServiceAccount>(&object),
                "ClusterRole" => whole::<ClusterRole>(&object),
                "ClusterRoleBinding" => whole::<ClusterRoleBinding>(&object),
                "Role" => whole::<Role>(&object),
                "RoleBinding" => whole::<RoleBinding>(&object),
                "Deployment" => whole::<Deployment>(&object),
                "Service" => whole::<Service>(&object),
                "Pod" => whole::<Pod>(&object),
                "ValidatingWebhookConfiguration" => {
                    whole::<ValidatingWebhookConfiguration>(&object);
                }
                "CustomResourceDefinition" => whole::<CustomResourceDefinition>(&object),
                "SampleDB" => {}
                other => panic!("{file} has a {other}"),
            }
        }
    }
}

/// No rule has a wildcard; Secrets of others are not read.
#[test]
fn the_operator_may_do_what_it_does_and_nothing_else() {
    let rules = |kind: &str, name: &str| {
        let all = documents("operator.yaml");
        let role = all
            .into_iter()
            .find(|o| o["kind"] == kind && o["metadata"]["name"] == name)
            .unwrap();
        role["rules"].as_array().unwrap().clone()
    };
    for rule in rules("ClusterRole", "sampledb-operator") {
        let text = rule.to_string();
        assert!(!text.contains('*'), "{text}");
        if text.contains("secrets") {
            assert_eq!(rule["verbs"], serde_json::json!(["create", "delete"]));
        }
    }
}

#[test]
fn the_program_says_what_it_can() {
    let out = Command::new(env!("CARGO_BIN_EXE_sampledb"))
        .args(["work", "--engine", "sqlite", "--help"])
        .output()
        .unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    for task in ["init", "serve", "ready", "upgrade", "backup", "rows"] {
        assert!(text.contains(task), "{text}");
    }
}
