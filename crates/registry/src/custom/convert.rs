//! Conversion of custom objects between versions: by rewriting apiVersion, or by a webhook
//! (<https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definition-versioning/>).

use std::iter::Peekable;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use davit_api::kinds::split_api_version;
use davit_api::status::Status;
use davit_webhook::{Call, ClientConfig, Webhooks, told};
use serde_json::{Map, Value, json};

use super::definition::{Conversion, Definition};
use super::metrics::ConversionMetrics;
use crate::object;

const TIMEOUT: Duration = Duration::from_secs(30);
/// Objects of one call, and bytes of them, save that the first one is asked about whatever it weighs.
const OBJECTS: usize = 500;
const BYTES: usize = 2 << 20;
/// Bytes of an answer, beside four for each of the question.
const ANSWER: usize = 4 << 20;

/// Brings objects of one definition into a version.
#[derive(Clone)]
pub struct Converter {
    definition: Arc<Definition>,
    webhooks: Arc<Webhooks>,
    metrics: Arc<ConversionMetrics>,
}

impl Converter {
    /// For the objects of `definition`, by its webhook if it has one.
    pub fn new(
        definition: Arc<Definition>,
        webhooks: Arc<Webhooks>,
        metrics: Arc<ConversionMetrics>,
    ) -> Self {
        Self {
            definition,
            webhooks,
            metrics,
        }
    }

    /// The objects in the API version `wanted`, in the same order. Those that are in it already are not touched; all others go
    /// to the webhook, so many as fit into a call.
    pub(super) async fn convert(
        &self,
        mut objects: Vec<Value>,
        wanted: &str,
    ) -> Result<Vec<Value>, Status> {
        let foreign: Vec<usize> = objects
            .iter()
            .enumerate()
            .filter(|(_, object)| object["apiVersion"] != wanted)
            .map(|(index, _)| index)
            .collect();
        if foreign.is_empty() {
            return Ok(objects);
        }
        let Conversion::Webhook {
            client,
            review_versions,
        } = &self.definition.conversion
        else {
            for index in foreign {
                objects[index]["apiVersion"] = json!(wanted);
            }
            return Ok(objects);
        };
        let mut next = foreign.into_iter().peekable();
        while next.peek().is_some() {
            let (asked, texts) = of_one_call(&objects, &mut next);
            let sent: Vec<&Value> = asked.iter().map(|index| &objects[*index]).collect();
            let started = Instant::now();
            let answered = self.call(client, review_versions, &sent, &texts, wanted);
            let answered = answered.await;
            self.metrics
                .observe(&self.definition.name, answered.is_ok(), started.elapsed());
            let converted = answered.map_err(|why| Status::unknown(told(&why)))?;
            for (index, converted) in asked.into_iter().zip(converted) {
                objects[index] = converted;
            }
        }
        Ok(objects)
    }

    /// `texts` are the objects `sent`, as the elements of a list.
    async fn call(
        &self,
        client: &Value,
        review_versions: &[String],
        sent: &[&Value],
        texts: &str,
        wanted: &str,
    ) -> Result<Vec<Value>, String> {
        let review_version = review_versions
            .iter()
            .find(|version| matches!(version.as_str(), "v1" | "v1beta1"))
            .ok_or("no supported conversion review versions")?;
        let described = sent
            .first()
            .map_or(String::new(), |object| described(object));
        let failed = |why: &dyn std::fmt::Display| {
            format!("conversion webhook for {described} failed: {why}")
        };
        let uid = uuid::Uuid::new_v4().to_string();
        let wanted_text = json!(wanted);
        let review = format!(
            r#"{{"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/{review_version}","request":{{"uid":"{uid}","desiredAPIVersion":{wanted_text},"objects":[{texts}]}}}}"#
        );
        let config = ClientConfig::from_value(client).map_err(|error| failed(&error))?;
        let client = self
            .webhooks
            .client(&config, None)
            .map_err(|error| failed(&error))?;
        let limit = ANSWER + 4 * review.len();
        let mut call = Call::post(Bytes::from(review), TIMEOUT).with_timeout_query();
        call.limit = call.limit.min(limit);
        let answer = client.json(call).await.map_err(|error| failed(&error))?;
        read_answer(answer, &uid, review_version, sent, wanted)
    }
}

/// As many of the next objects as a call has room for: which they are, and the elements of the list that they make.
fn of_one_call(
    objects: &[Value],
    next: &mut Peekable<impl Iterator<Item = usize>>,
) -> (Vec<usize>, String) {
    let (mut asked, mut texts) = (Vec::new(), String::new());
    while let Some(index) = next.peek() {
        let text = objects[*index].to_string();
        let is_full = asked.len() >= OBJECTS || texts.len() + text.len() > BYTES;
        if is_full && !asked.is_empty() {
            break;
        }
        if !asked.is_empty() {
            texts.push(',');
        }
        texts.push_str(&text);
        asked.extend(next.next());
    }
    (asked, texts)
}

/// The objects of an answer, if it is one to the question about `sent`.
fn read_answer(
    answer: Value,
    uid: &str,
    review_version: &str,
    sent: &[&Value],
    wanted: &str,
) -> Result<Vec<Value>, String> {
    let described = sent
        .first()
        .map_or(String::new(), |object| described(object));
    let converted = converted_objects(answer, uid, review_version)
        .map_err(|why| format!("conversion webhook for {described} failed: {why}"))?;
    if converted.len() != sent.len() {
        return Err(format!(
            "conversion webhook for {described} returned {} objects, expected {}",
            converted.len(),
            sent.len()
        ));
    }
    let many = sent.len() > 1;
    sent.iter()
        .zip(converted)
        .enumerate()
        .map(|(index, (original, converted))| {
            checked(original, converted, wanted, many.then_some(index))
                .map_err(|why| format!("conversion webhook for {described} returned {why}"))
        })
        .collect()
}

/// Whether the ConversionReview with which a webhook answered the request `uid` about `sent` is
/// believed, and the objects that come of it: what fuzzing tries on arbitrary answers.
///
/// # Errors
/// What is wrong with it, in the words of kube-apiserver.
pub fn check_conversion_answer(
    answer: Value,
    uid: &str,
    review_version: &str,
    sent: &[Value],
    wanted: &str,
) -> Result<Vec<Value>, String> {
    let sent: Vec<&Value> = sent.iter().collect();
    read_answer(answer, uid, review_version, &sent, wanted)
}

/// `group/version, Kind=Kind`.
fn described(object: &Value) -> String {
    let api_version = object["apiVersion"].as_str().unwrap_or_default();
    let kind = object["kind"].as_str().unwrap_or_default();
    let (group, version) = split_api_version(api_version);
    format!("{group}/{version}, Kind={kind}")
}

fn converted_objects(
    mut answer: Value,
    uid: &str,
    review_version: &str,
) -> Result<Vec<Value>, String> {
    let wanted = format!("apiextensions.k8s.io/{review_version}");
    if review_version == "v1"
        && (answer["apiVersion"] != wanted.as_str() || answer["kind"] != "ConversionReview")
    {
        return Err(format!(
            "expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got {}",
            described(&answer)
        ));
    }
    let Some(response) = answer.get_mut("response").filter(|r| r.is_object()) else {
        return Err("no response provided".to_owned());
    };
    let got = response["uid"].as_str().unwrap_or_default();
    if review_version == "v1" && got != uid {
        return Err(format!("expected response.uid={uid:?}, got {got:?}"));
    }
    let status = response["result"]["status"].as_str().unwrap_or_default();
    if status != "Success" {
        let message = response["result"]["message"].as_str().unwrap_or_default();
        return Err(if message.is_empty() {
            format!("response.result.status was '{status}', not 'Success'")
        } else {
            message.to_owned()
        });
    }
    Ok(match response["convertedObjects"].take() {
        Value::Array(objects) => objects,
        _ => Vec::new(),
    })
}

/// A converted object with the metadata it must not have changed. `index` is its place in a list.
fn checked(
    original: &Value,
    mut converted: Value,
    wanted: &str,
    index: Option<usize>,
) -> Result<Value, String> {
    let place = |what: &str| match index {
        Some(index) => format!("invalid converted object at index {index}: {what}"),
        None => format!("invalid object at index 0: {what}"),
    };
    let invalid = |what: &str| match index {
        Some(index) => format!("invalid converted object at index {index}: {what}"),
        None => format!("invalid object: {what}"),
    };
    let text = |object: &Value, key: &str| object[key].as_str().unwrap_or_default().to_owned();
    let version = text(&converted, "apiVersion");
    if version != wanted {
        return Err(place(&format!(
            "invalid groupVersion (expected {wanted}, received {version})"
        )));
    }
    let (was, is) = (text(original, "kind"), text(&converted, "kind"));
    if was != is {
        return Err(place(&format!(
            "invalid kind (expected {was}, received {is})"
        )));
    }
    for (what, key) in [("name", "name"), ("namespace", "namespace"), ("UID", "uid")] {
        let was = object::meta_str(original, key);
        let is = object::meta_str(&converted, key);
        if was != is {
            return Err(invalid(&format!(
                "must have the same {what}: {was} != {is}"
            )));
        }
    }
    restore_metadata(original, &mut converted).map_err(|why| match index {
        Some(index) => format!("invalid metadata in object at index {index}: {why}"),
        None => format!("invalid metadata: {why}"),
    })?;
    Ok(converted)
}

/// Of the metadata, labels and annotations are the webhook's; everything else is as it was.
fn restore_metadata(original: &Value, converted: &mut Value) -> Result<(), String> {
    let Some(given) = converted.get("metadata").and_then(Value::as_object) else {
        return Err("missing metadata in converted object".to_owned());
    };
    let mut metadata = original["metadata"]
        .as_object()
        .cloned()
        .unwrap_or_default();
    for key in ["labels", "annotations"] {
        metadata.remove(key);
        match given.get(key) {
            None | Some(Value::Null) => {}
            Some(Value::Object(entries)) => {
                if let Some((name, _)) = entries.iter().find(|(_, value)| !value.is_string()) {
                    return Err(format!("metadata.{key}[{name}] is not a string"));
                }
                check_keys(key, entries)?;
                if !entries.is_empty() {
                    metadata.insert(key.to_owned(), Value::Object(entries.clone()));
                }
            }
            Some(_) => return Err(format!("metadata.{key} is not a map")),
        }
    }
    converted["metadata"] = Value::Object(metadata);
    Ok(())
}

fn check_keys(what: &str, entries: &Map<String, Value>) -> Result<(), String> {
    for (key, value) in entries {
        let mut faults = davit_api::names::check_qualified_name(&key.to_lowercase());
        if what == "labels" {
            let value = value.as_str().unwrap_or_default();
            faults.extend(davit_api::names::check_label_value(value));
        }
        if let Some(fault) = faults.first() {
            return Err(format!("metadata.{what}: Invalid value: {key:?}: {fault}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(version: &str) -> Value {
        json!({"apiVersion": format!("g.io/{version}"), "kind": "K",
            "metadata": {"name": "n", "uid": "u", "generation": 3, "labels": {"a": "b"}}})
    }

    #[test]
    fn a_call_is_about_so_much() {
        let of = |count: usize, size: usize| {
            let objects = vec![json!("x".repeat(size)); count];
            let mut next = (0..count).peekable();
            let mut calls = Vec::new();
            while next.peek().is_some() {
                let (asked, texts) = of_one_call(&objects, &mut next);
                let list: Vec<Value> = serde_json::from_str(&format!("[{texts}]")).unwrap();
                assert_eq!(list, objects[asked[0]..=asked[asked.len() - 1]]);
                calls.push(asked.len());
            }
            calls
        };
        assert_eq!(of(3, 1), [3]);
        assert_eq!(of(OBJECTS + 1, 1), [OBJECTS, 1]);
        // What is larger than a call is asked about alone.
        assert_eq!(of(2, BYTES + 1), [1, 1]);
        assert_eq!(of(5, BYTES / 2 - 100), [2, 2, 1]);
    }

    // 154
    #[test]
    fn a_webhook_may_change_labels_and_annotations_only() {
        let mut answer = object("v2");
        answer["metadata"]["labels"] = json!({"a": "c"});
        answer["metadata"]["generation"] = json!(99);
        let converted = checked(&object("v1"), answer.clone(), "g.io/v2", None).unwrap();
        assert_eq!(converted["metadata"]["labels"]["a"], "c");
        assert_eq!(converted["metadata"]["generation"], 3);
        answer["metadata"]["name"] = json!("other");
        assert_eq!(
            checked(&object("v1"), answer, "g.io/v2", Some(1)).unwrap_err(),
            "invalid converted object at index 1: must have the same name: n != other"
        );
        assert_eq!(
            checked(&object("v1"), object("v3"), "g.io/v2", None).unwrap_err(),
            "invalid object at index 0: invalid groupVersion (expected g.io/v2, received g.io/v3)"
        );
    }

    #[test]
    fn answers_are_believed_only_when_they_fit_the_question() {
        let answer = |response: Value| {
            json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
                "response": response})
        };
        let good = answer(json!({"uid": "1", "result": {"status": "Success"},
            "convertedObjects": [{}]}));
        assert_eq!(converted_objects(good.clone(), "1", "v1").unwrap().len(), 1);
        assert_eq!(
            converted_objects(good, "2", "v1").unwrap_err(),
            "expected response.uid=\"2\", got \"1\""
        );
        let failed = answer(json!({"uid": "1", "result": {"status": "Failed", "message": "no"}}));
        assert_eq!(converted_objects(failed, "1", "v1").unwrap_err(), "no");
        assert_eq!(
            converted_objects(answer(Value::Null), "1", "v1").unwrap_err(),
            "no response provided"
        );
    }
}
